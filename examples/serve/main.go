// Serve answers completions over HTTP from a model that examples/chargpt trained.
//
//	go run ./examples/chargpt
//	go run ./examples/serve
//	curl -d '{"prompt": "func main() {", "length": 200}' localhost:8080/complete
//
// Each request computes in a scope of its own, so everything that it makes is freed when it ends, however it ends. A
// goroutine in a scope holds an OS thread, and tensor refuses more than 1,000 of them (tensor.ErrScope). So -jobs
// bounds how many requests compute at once; the others wait for their turn, which costs a goroutine each.
//
// No client can hold the server's resources: each part of an exchange has a time limit (timeouts), and a request's
// body has a size limit. After SIGTERM or Ctrl-C the server takes no new connection and gives the requests under way
// -grace to finish; those that are not finished then stop at the next character and are answered with status 503.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/tensor"
)

func main() {
	ctx, stop := untilSignal()
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// untilSignal returns a context that ends at the first Ctrl-C or SIGTERM. The second ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func command(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	path := f.String("model", filepath.Join("runs", "chargpt", "model.safetensors"), "a checkpoint of chargpt's")
	addr := f.String("addr", "127.0.0.1:8080", "where to listen")
	jobs := f.Int("jobs", runtime.NumCPU(), "requests that compute at once; others wait")
	limits := defaultTimeouts
	f.DurationVar(&limits.compute, "timeout", limits.compute, "how long a request may wait and compute before it is answered with 503")
	f.DurationVar(&limits.grace, "grace", limits.grace, "how long requests under way may go on after SIGTERM")
	threads := f.Int("threads", 1, "threads of an operator; requests are what runs in parallel here")
	deviceName := f.String("device", "cpu", "where to compute: cpu, cuda, cuda:1, mps")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if err := tensor.SetNumThreads(*threads); err != nil {
		return err
	}
	device, err := tensor.ParseDevice(*deviceName)
	if err != nil {
		return err
	}
	model, vocab, err := gpt.Load(*path, device)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	log.Printf("listening on http://%s", listener.Addr())
	return serve(ctx, listener, newServer(model, vocab, *jobs, limits))
}

// timeouts bound each part of an exchange with a client.
type timeouts struct {
	header  time.Duration // the client sends the request's header
	body    time.Duration // the client sends the body
	compute time.Duration // the request waits for its turn and computes
	write   time.Duration // the client takes the answer
	idle    time.Duration // nothing is sent between two requests of a connection
	grace   time.Duration // after SIGTERM: the requests under way go on
}

var defaultTimeouts = timeouts{
	header: 5 * time.Second, body: 10 * time.Second, compute: time.Minute, write: 10 * time.Second, idle: time.Minute, grace: 20 * time.Second,
}

// errShutdown ends the requests that are still under way when the grace period is over.
var errShutdown = errors.New("the server is shutting down")

// serve answers requests until ctx is done, then gives those under way the grace period, and answers 503 to those
// that have not finished in it. Every request whose header has arrived is answered.
func serve(ctx context.Context, listener net.Listener, s *server) error {
	requests, abandon := context.WithCancelCause(context.WithoutCancel(ctx)) // the parent of each request's context
	defer abandon(nil)
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.limits.header,
		// These two start at the first byte of the request and at the end of its header. The first ends with the body;
		// a request that computes moves the second when it begins to answer.
		ReadTimeout:    s.limits.header + s.limits.body,
		WriteTimeout:   s.limits.body + s.limits.write,
		IdleTimeout:    s.limits.idle,
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return requests },
	}
	failed := make(chan error, 1)
	go func() { failed <- h.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Printf("shutting down; requests under way have %v", s.limits.grace)
	err := shutdown(h, s.limits.grace)
	if errors.Is(err, context.DeadlineExceeded) {
		abandon(errShutdown)
		// The rest is up to the clients, and their time is bounded.
		err = shutdown(h, s.limits.header+s.limits.body+s.limits.write)
	}
	return errors.Join(err, h.Close())
}

// shutdown stops accepting connections and waits until the requests under way are answered, but not longer than limit.
func shutdown(h *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.Shutdown(ctx)
}

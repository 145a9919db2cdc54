// Serve answers completion requests over HTTP with a model that examples/chargpt trained.
//
//	go run ./examples/chargpt
//	go run ./examples/serve
//	curl -d '{"prompt": "func main() {", "length": 200}' localhost:8080/complete
//
// The model computes the next characters of several requests as one batch (package serve): all that wait when one of
// the -jobs goroutines that compute becomes free, -rows at most; with -window it also waits for more. The rows of a
// batch have the same length, which differs only until the model's context is full. So the text of a request is, up to
// rounding, the one that the model generates for it alone.
//
// At most -queue requests are active. Further ones are answered with status 503 and Retry-After. A request that has no
// answer after -timeout, or whose client has left, leaves the queue and is not computed further.
//
// No client can occupy the server's resources indefinitely: each part of an exchange has a time limit (limits), and
// the body of a request has a size limit. After SIGTERM or Ctrl-C the server accepts no new connections and gives
// active requests the time -grace to finish. Requests that have not finished by then stop at the next character and get
// status 503.
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
	"sync"
	"syscall"
	"time"

	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/examples/internal/cli"
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

// untilSignal returns a context that is cancelled at the first Ctrl-C or SIGTERM. The second ends the process.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

func command(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("serve", flag.ExitOnError)
	path := f.String("model", filepath.Join("runs", "chargpt", "model.safetensors"), "checkpoint written by chargpt")
	addr := f.String("addr", "127.0.0.1:8080", "address to listen on")
	limits := defaultLimits
	f.IntVar(&limits.jobs, "jobs", limits.jobs, "number of batches that are computed at once")
	f.IntVar(&limits.rows, "rows", limits.rows, "maximum number of requests in a batch")
	f.DurationVar(&limits.window, "window", limits.window, "how long a request may wait for others to fill its batch")
	f.IntVar(&limits.active, "queue", limits.active, "maximum number of active requests; others are answered with 503")
	f.DurationVar(&limits.compute, "timeout", limits.compute, "how long a request may wait and compute before it is answered with 503")
	f.DurationVar(&limits.grace, "grace", limits.grace, "how long active requests may continue after SIGTERM")
	threads := f.Int("threads", 1, "threads per operator; batches already run in parallel")
	deviceName := f.String("device", "cpu", "device: cpu, cuda, cuda:1")
	cli.ParseArgs(f, args)
	if min(limits.jobs, limits.rows, limits.active) < 1 {
		return fmt.Errorf("-jobs, -rows and -queue must be at least 1, got %d, %d and %d", limits.jobs, limits.rows, limits.active)
	}
	if limits.compute <= 0 || limits.window < 0 || limits.grace < 0 {
		return fmt.Errorf("-timeout must be more than 0, and -window and -grace at least 0, got %v, %v and %v", limits.compute, limits.window, limits.grace)
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
	s, err := newServer(model, vocab, limits)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *addr)
	if err != nil {
		return err
	}
	log.Printf("listening on http://%s", listener.Addr())
	return s.serve(ctx, listener)
}

// limits bounds what clients can occupy.
type limits struct {
	jobs   int           // batches that are computed at once
	rows   int           // requests in a batch
	window time.Duration // a request waits for others of its batch
	active int           // requests that wait or compute

	header  time.Duration // the client sends the request's header
	body    time.Duration // the client sends the body
	compute time.Duration // the request waits for its turn and computes
	write   time.Duration // the client reads the answer
	idle    time.Duration // nothing is sent between two requests of a connection
	grace   time.Duration // after SIGTERM: active requests continue
}

var defaultLimits = limits{
	jobs: runtime.NumCPU(), rows: 32, active: 256,
	header: 5 * time.Second, body: 10 * time.Second, compute: time.Minute, write: 10 * time.Second, idle: time.Minute, grace: 20 * time.Second,
}

// errShutdown cancels requests that are still active after the grace period.
var errShutdown = errors.New("the server is shutting down")

// serve answers requests until ctx is done. Then it gives active requests the grace period, and answers those that have
// not finished with 503. It answers every request whose header has arrived.
func (s *server) serve(ctx context.Context, listener net.Listener) error {
	var jobs sync.WaitGroup
	for range s.limits.jobs {
		jobs.Go(s.steps.Run)
	}
	defer jobs.Wait()
	defer s.steps.Close()
	requests, abandon := context.WithCancelCause(context.WithoutCancel(ctx)) // the parent of each request's context
	defer abandon(nil)
	h := &http.Server{
		Handler:           s,
		ReadHeaderTimeout: s.limits.header,
		// ReadTimeout starts at the first byte of the request and ends with its body. WriteTimeout starts at the end of
		// the header; a request that computes extends it when it begins to answer.
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
	log.Printf("shutting down; active requests have %v", s.limits.grace)
	err := shutdown(h, s.limits.grace)
	if errors.Is(err, context.DeadlineExceeded) {
		abandon(errShutdown)
		// What remains depends on the clients, whose time is limited.
		err = shutdown(h, s.limits.header+s.limits.body+s.limits.write)
	}
	return errors.Join(err, h.Close())
}

// shutdown stops accepting connections and waits at most limit until the active requests are answered.
func shutdown(h *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return h.Shutdown(ctx)
}

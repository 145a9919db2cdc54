// Serve answers completions over HTTP from a model that examples/chargpt trained.
//
//	go run ./examples/chargpt
//	go run ./examples/serve
//	curl -d '{"prompt": "func main() {", "length": 200}' localhost:8080/complete
//
// Each request computes in a scope of its own, so all that it makes is freed as it ends, however it ends. A
// goroutine in a scope holds an OS thread, and more than 1,000 of them are refused (tensor.ErrScope); nor would so
// many share the cores well. So -jobs bounds how many compute at once, and the others wait their turn, which costs
// a goroutine each.
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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("serve", flag.ContinueOnError)
	path := f.String("model", filepath.Join("runs", "chargpt", "model.safetensors"), "a checkpoint of chargpt's")
	addr := f.String("addr", "127.0.0.1:8080", "where to listen")
	jobs := f.Int("jobs", runtime.NumCPU(), "requests that compute at once; others wait")
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
	return serve(ctx, listener, newServer(model, vocab, *jobs))
}

// serve answers until ctx is done, then lets the requests under way finish, for ten seconds at most.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	// The requests' contexts come from this one: those that are still there after ten seconds stop at the next
	// character.
	requests, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	log.Print("shutting down")
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := server.Shutdown(limit)
	if errors.Is(err, context.DeadlineExceeded) {
		abandon()
		err = server.Close()
	}
	return err
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// server answers requests with one model, which all requests share and none changes.
type server struct {
	http.ServeMux
	model  *gpt.GPT
	vocab  gpt.Vocab
	limits limits
	steps  *serve.Batcher[[]int64, []float32] // computes the logits of the next characters

	active, done, failed, refused, internal atomic.Int64
}

func newServer(model *gpt.GPT, vocab gpt.Vocab, limits limits) (*server, error) {
	s := &server{model: model, vocab: vocab, limits: limits}
	next := func(rows [][]int64) (logits [][]float32, err error) {
		err = autograd.NoGrad(func() error {
			logits, err = model.Next(rows...)
			return err
		})
		return logits, err
	}
	// An active request has one step in the queue at most, so that the queue is never full.
	steps, err := serve.NewBatcher(next, serve.MaxBatch(limits.rows), serve.Window(limits.window), serve.Queue(limits.active),
		serve.Shape(func(ids []int64) int { return len(ids) }))
	if err != nil {
		return nil, err
	}
	s.steps = steps
	s.HandleFunc("POST /complete", s.complete)
	s.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.HandleFunc("GET /stats", s.stats)
	return s, nil
}

// Limits of a request.
const (
	maxBody   = 1 << 16
	maxLength = 2000
)

type request struct {
	Prompt      string   `json:"prompt"`
	Length      int      `json:"length"`
	Temperature *float64 `json:"temperature"`
	Seed        uint64   `json:"seed"`
}

type answer struct {
	Text string `json:"text"`
}

// read reads and checks the whole body. status is the status of the answer if err is not nil.
func (s *server) read(w http.ResponseWriter, r *http.Request) (q *request, status int, err error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body is larger than %d bytes", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return nil, http.StatusRequestTimeout, errors.New("the body did not arrive in time")
	case err != nil:
		return nil, http.StatusBadRequest, err
	}
	q = &request{Prompt: "\n", Length: 100}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return nil, http.StatusBadRequest, fmt.Errorf("the body is not a request in JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, http.StatusBadRequest, errors.New("the body holds more than one JSON value")
	}
	if q.Temperature == nil {
		q.Temperature = new(0.8)
	}
	if q.Length < 1 || q.Length > maxLength || q.Prompt == "" || *q.Temperature < 0 {
		return nil, http.StatusBadRequest, fmt.Errorf("want a prompt, a length from 1 to %d and a temperature of at least 0", maxLength)
	}
	_, err = s.vocab.Encode(q.Prompt)
	return q, http.StatusBadRequest, err
}

func (s *server) complete(w http.ResponseWriter, r *http.Request) {
	q, status, err := s.read(w, r)
	if err != nil {
		s.refuse(w, status, err)
		return
	}
	if s.active.Add(1) > int64(s.limits.active) {
		s.active.Add(-1)
		s.refused.Add(1)
		s.unavailable(w, fmt.Errorf("%d requests are active, as many as the server takes", s.limits.active))
		return
	}
	ctx, cancel := context.WithTimeoutCause(r.Context(), s.limits.compute, fmt.Errorf("no answer within %v", s.limits.compute))
	defer cancel()
	text, err := s.compute(ctx, q)
	// The server's WriteTimeout does not cover the computation.
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.limits.write)); err != nil {
		s.refuse(w, http.StatusInternalServerError, err)
		return
	}
	switch {
	case err == nil:
		s.done.Add(1)
		reply(w, http.StatusOK, answer{text})
	case ctx.Err() != nil:
		s.unavailable(w, context.Cause(ctx))
	case errors.Is(err, tensor.ErrScope) || errors.Is(err, serve.ErrClosed):
		s.unavailable(w, err)
	default:
		s.refuse(w, http.StatusInternalServerError, err)
	}
}

// compute generates the text. Each of its steps is a row of a batch.
func (s *server) compute(ctx context.Context, q *request) (string, error) {
	defer s.active.Add(-1)
	return gpt.Continue(ctx, s.vocab, q.Prompt, q.Length, gpt.Sampling{Temperature: *q.Temperature, Seed: q.Seed},
		func(ctx context.Context, ids []int64) ([]float32, error) { return s.steps.Do(ctx, s.model.Seen(ids)) }, nil)
}

func (s *server) stats(w http.ResponseWriter, _ *http.Request) {
	// Read the bytes last: a batch that is no longer counted has freed its tensors.
	active, steps := s.active.Load(), s.steps.Stats()
	native, err := vram.Stats(s.model.Tok.Weight.Device())
	if err != nil {
		s.refuse(w, http.StatusInternalServerError, err)
		return
	}
	computing := int64(steps.Running) // also of requests whose clients have left
	reply(w, http.StatusOK, map[string]int64{
		"waiting": max(0, active-computing), "computing": computing,
		"done": s.done.Load(), "failed": s.failed.Load(), "refused": s.refused.Load(), "internal": s.internal.Load(),
		"batches": steps.Batches, "rows": steps.Computed, "expired": steps.Expired,
		"native_bytes": native.Allocated, "native_peak_bytes": native.Peak, "goroutines": int64(runtime.NumGoroutine()),
	})
}

// unavailable tells the client to try again, here or at another server.
func (s *server) unavailable(w http.ResponseWriter, err error) {
	w.Header().Set("Retry-After", "1")
	s.refuse(w, http.StatusServiceUnavailable, err)
}

// refuse answers with an error. It logs one with status 500, which is not the client's, and the stack of a panic.
func (s *server) refuse(w http.ResponseWriter, status int, err error) {
	s.failed.Add(1)
	if status == http.StatusInternalServerError {
		s.internal.Add(1)
		var p *serve.PanicError
		if errors.As(err, &p) {
			log.Printf("%v\n%s", err, p.Stack)
		} else {
			log.Print(err)
		}
	}
	reply(w, status, map[string]string{"error": err.Error()})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The only possible error is that the client has disconnected.
	_ = json.NewEncoder(w).Encode(v)
}

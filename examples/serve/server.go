package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// server answers from one model, which the requests share: nothing in it changes any more.
type server struct {
	http.ServeMux
	model *gpt.GPT
	vocab gpt.Vocab
	jobs  *semaphore.Weighted

	waiting, computing, done, failed atomic.Int64
}

func newServer(model *gpt.GPT, vocab gpt.Vocab, jobs int) *server {
	s := &server{model: model, vocab: vocab, jobs: semaphore.NewWeighted(int64(max(1, jobs)))}
	s.HandleFunc("POST /complete", s.complete)
	s.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	s.HandleFunc("GET /stats", s.stats)
	return s
}

// What a request may ask for.
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

func read(w http.ResponseWriter, r *http.Request) (*request, error) {
	q := &request{Prompt: "\n", Length: 100}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(q); err != nil {
		return nil, err
	}
	if q.Temperature == nil {
		q.Temperature = new(0.8)
	}
	if q.Length < 1 || q.Length > maxLength || q.Prompt == "" || *q.Temperature < 0 {
		return nil, fmt.Errorf("a prompt, a length from 1 to %d and a temperature of at least 0 are needed", maxLength)
	}
	return q, nil
}

func (s *server) complete(w http.ResponseWriter, r *http.Request) {
	q, err := read(w, r)
	if err == nil {
		_, err = s.vocab.Encode(q.Prompt)
	}
	if err != nil {
		s.refuse(w, http.StatusBadRequest, err)
		return
	}
	text, err := s.compute(r, q)
	switch {
	case err == nil:
		s.done.Add(1)
		reply(w, http.StatusOK, answer{text})
	case r.Context().Err() != nil || errors.Is(err, tensor.ErrScope):
		s.refuse(w, http.StatusServiceUnavailable, err)
	default:
		s.refuse(w, http.StatusInternalServerError, err)
	}
}

// compute waits for its turn and generates in a scope.
func (s *server) compute(r *http.Request, q *request) (text string, err error) {
	s.waiting.Add(1)
	if err = s.jobs.Acquire(r.Context(), 1); err != nil {
		s.waiting.Add(-1)
		return "", err
	}
	defer s.jobs.Release(1)
	s.computing.Add(1) // before it waits no more: it is never in neither
	defer s.computing.Add(-1)
	s.waiting.Add(-1)
	err = tensor.WithScope(func() error {
		text, err = s.model.Generate(r.Context(), s.vocab, q.Prompt, q.Length, gpt.Sampling{Temperature: *q.Temperature, Seed: q.Seed}, nil)
		return err
	})
	return text, err
}

func (s *server) stats(w http.ResponseWriter, _ *http.Request) {
	// The bytes are read last: those of a request that is not counted any more are not among them.
	waiting, computing := s.waiting.Load(), s.computing.Load()
	native, err := vram.Stats(tensor.CPU)
	if err != nil {
		s.refuse(w, http.StatusInternalServerError, err)
		return
	}
	reply(w, http.StatusOK, map[string]int64{
		"waiting": waiting, "computing": computing, "done": s.done.Load(), "failed": s.failed.Load(),
		"native_bytes": native.Allocated, "native_peak_bytes": native.Peak, "goroutines": int64(runtime.NumGoroutine()),
	})
}

func (s *server) refuse(w http.ResponseWriter, status int, err error) {
	s.failed.Add(1)
	reply(w, status, map[string]string{"error": err.Error()})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// Who has hung up need not be answered.
	_ = json.NewEncoder(w).Encode(v)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
)

// serveGo is the Go server. It ends when its standard input does.
func serveGo(path string, threads, rows int) error {
	if err := tensor.SetNumThreads(threads); err != nil {
		return err
	}
	if err := tensor.Ones([]int{4}).Add(1).Err(); err != nil {
		return err
	}
	base, err := proc.Status("self", "VmRSS")
	if err != nil {
		return err
	}
	weights, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	model, err := network(floats(weights))
	if err != nil {
		return err
	}
	outputs := widths[len(widths)-1]
	forward := func(batch [][]float32) (out [][]float32, err error) {
		err = autograd.Inference(func() error {
			x := tensor.FromSlice(slices.Concat(batch...), []int{len(batch), widths[0]})
			flat, err := tensor.Data[float32](model.Forward(x))
			out = slices.Collect(slices.Chunk(flat, outputs))
			return err
		})
		return out, err
	}
	batcher, err := serve.NewBatcher(forward, serve.MaxBatch(rows))
	if err != nil {
		return err
	}
	predict := batcher.Do
	if rows == 1 {
		predict = func(_ context.Context, row []float32) (answer []float32, err error) {
			err = tensor.WithScope(func() error {
				out, err := forward([][]float32{row})
				answer = slices.Concat(out...)
				return err
			})
			return answer, err
		}
	}
	var mux http.ServeMux
	mux.HandleFunc("POST /predict", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<16))
		if err != nil || len(body) != 4*widths[0] {
			http.Error(w, "want a row of 32 floats", http.StatusBadRequest)
			return
		}
		answer, err := predict(r.Context(), floats(body))
		switch {
		case errors.Is(err, serve.ErrFull):
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(floatBytes(answer))
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var jobs sync.WaitGroup
	for range runtime.NumCPU() {
		jobs.Go(batcher.Run)
	}
	h := &http.Server{Handler: &mux}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = h.Close()
	}()
	fmt.Println(listener.Addr(), base>>10)
	if err := h.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	batcher.Close()
	jobs.Wait()
	return nil
}

// network returns the network with the weights of the file.
func network(weights []float32) (*nn.Sequential, error) {
	var layers []nn.Layer
	for i, in := range widths[:len(widths)-1] {
		out := widths[i+1]
		l := nn.NewLinear(in, out)
		w, b := weights[:in*out], weights[in*out:(in+1)*out]
		weights = weights[(in+1)*out:]
		if err := autograd.NoGrad(func() error {
			return errors.Join(l.Weight.Copy_(tensor.FromSlice(w, []int{out, in})).Err(), l.Bias.Copy_(tensor.FromSlice(b, nil)).Err())
		}); err != nil {
			return nil, err
		}
		if layers = append(layers, l); i < len(widths)-2 {
			layers = append(layers, &nn.ReLU{})
		}
	}
	model := nn.NewSequential(layers...)
	return model, nn.Check(model)
}

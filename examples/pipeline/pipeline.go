package main

import (
	"context"
	"math"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

const (
	features = 16
	classes  = 5
)

type options struct{ records, readers, batch int }

type sample struct {
	record   int
	features []float32
}

type result struct {
	record, class int
	score         float64 // probability
}

func newModel() *nn.Sequential {
	return nn.NewSequential(nn.NewLinear(features, 32), &nn.GELU{}, nn.NewLinear(32, classes))
}

// run sends records through the stages and calls write with each result, in the order of the records. It returns the
// first error of any stage, which stops the others.
func run(ctx context.Context, model nn.Layer, o options, write func(result) error) error {
	samples := make(chan sample, o.batch)
	results := make(chan result, o.batch)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(samples)
		return read(ctx, o, samples)
	})
	g.Go(func() error {
		defer close(results)
		return infer(ctx, model, o.batch, samples, results)
	})
	g.Go(func() error { return inOrder(results, write) })
	return g.Wait()
}

// read prepares records on several goroutines. It makes no tensors: only the model's goroutine does.
func read(ctx context.Context, o options, samples chan<- sample) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range max(1, o.readers) {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < o.records; i = int(next.Add(1)) - 1 {
				select {
				case samples <- sample{i, normalize(record(i))}:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// record returns the i-th record, which is synthetic.
func record(i int) []float64 {
	values := make([]float64, features)
	for j := range values {
		values[j] = float64((i*7 + j*3) % 11)
	}
	return values
}

// normalize scales values to mean 0 and standard deviation 1.
func normalize(values []float64) []float32 {
	mean, square := 0.0, 0.0
	for _, v := range values {
		mean += v / float64(len(values))
	}
	for _, v := range values {
		square += (v - mean) * (v - mean) / float64(len(values)-1)
	}
	out := make([]float32, len(values))
	for i, v := range values {
		out[i] = float32((v - mean) / math.Sqrt(square))
	}
	return out
}

// infer runs the model on batches of one sample or, if more are ready, up to most samples. Each batch has a scope.
func infer(ctx context.Context, model nn.Layer, most int, samples <-chan sample, results chan<- result) error {
	return autograd.NoGrad(func() error {
		for first := range samples {
			batch := []sample{first}
			for ready := true; ready && len(batch) < most; {
				select {
				case s, open := <-samples:
					if ready = open; open {
						batch = append(batch, s)
					}
				default:
					ready = false
				}
			}
			found, err := classify(model, batch)
			if err != nil {
				return err
			}
			for _, r := range found {
				select {
				case results <- r:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		return ctx.Err()
	})
}

func classify(model nn.Layer, batch []sample) (found []result, err error) {
	var rows []float32
	for _, s := range batch {
		rows = append(rows, s.features...)
	}
	err = tensor.WithScope(func() error {
		p := model.Forward(tensor.FromSlice(rows, []int{len(batch), features})).Softmax(1)
		best, which := p.MaxDim(1)
		scores, err := tensor.Data[float32](best)
		if err != nil {
			return err
		}
		labels, err := tensor.Data[int64](which)
		if err != nil {
			return err
		}
		for i, s := range batch {
			found = append(found, result{s.record, int(labels[i]), float64(scores[i])})
		}
		return nil
	})
	return found, err
}

// inOrder passes results on in the order of their records and buffers those that arrive early.
func inOrder(results <-chan result, write func(result) error) error {
	early, next := map[int]result{}, 0
	for r := range results {
		early[r.record] = r
		for {
			r, ok := early[next]
			if !ok {
				break
			}
			delete(early, next)
			next++
			if err := write(r); err != nil {
				return err
			}
		}
	}
	return nil
}

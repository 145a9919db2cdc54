package fakecuda

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
)

func init() { scenarios["served"], scenarios["unserved"] = served, unserved }

func TestBatcherAndStreams(t *testing.T)    { run(t, "served", 3, 1<<30) }
func TestBatcherAfterFailures(t *testing.T) { run(t, "unserved", 3, 1<<30) }

// batching calls do while a goroutine runs a batcher of f within a stream.
func batching[In, Out any](s *cuda.Stream, f func([]In) ([]Out, error), do func(b *serve.Batcher[In, Out]) error) error {
	b, err := serve.NewBatcher(f)
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- cuda.WithStream(s, func() error { b.Run(); return nil }) }()
	err = do(b)
	b.Close()
	return errors.Join(err, <-ran)
}

// served: the work of a batch waits for the work that the current streams of its requests' callers have, and those wait
// for the batch's, also if the batch has a stream of its own.
func served(c *Control) error {
	const kernel = time.Second
	type row struct{ x *tensor.Tensor } // a batcher does not know that it has a tensor
	for i := range 2 {
		d := tensor.CUDA(i)
		first, err := cuda.DefaultStream(d)
		if err != nil {
			return err
		}
		second, err := cuda.NewStream(d)
		if err != nil {
			return err
		}
		third, err := cuda.NewStream(d)
		if err != nil {
			return err
		}
		x := tensor.Zeros([]int{1}, d)
		defer x.Release()
		// each serves a request whose caller has a kernel in its stream. A kernel takes a second.
		each := func(caller, runner *cuda.Stream) error {
			if err := tensor.Synchronize(d); err != nil {
				return err
			}
			events, from := c.Events(), c.Clock()
			c.SetTimes(kernel, 0)
			defer c.SetTimes(0, 0)
			err := batching(runner, func(batch []row) ([]row, error) {
				err := runner.Synchronize()
				if now := c.Clock() - from; now < kernel {
					err = errors.Join(err, fmt.Errorf("the batch computes after %v, before its caller's stream is done", now))
				}
				return []row{{batch[0].x.Add(1).Keep()}}, err
			}, func(b *serve.Batcher[row, row]) error {
				return cuda.WithStream(caller, func() error {
					if err := x.Add_(1).Err(); err != nil {
						return err
					}
					y, err := b.Do(context.Background(), row{x})
					if err != nil {
						return err
					}
					defer y.x.Release()
					err = caller.Synchronize()
					if now := c.Clock() - from; now < 2*kernel {
						err = errors.Join(err, fmt.Errorf("the output is there after %v", now))
					}
					return err
				})
			})
			if n := c.Events(); err == nil && n != events {
				err = fmt.Errorf("%d events live, %d before", n, events)
			}
			return err
		}
		for _, streams := range [][2]*cuda.Stream{{second, first}, {first, second}, {second, third}} {
			if err := each(streams[0], streams[1]); err != nil {
				return fmt.Errorf("the caller has %v and the batch %v: %w", streams[0], streams[1], err)
			}
		}
		// One stream needs no events.
		if err := c.AddRule(Rule{Function: "cudaEventRecord", Device: -1, Times: Forever, Error: 999}); err != nil {
			return err
		}
		err = errors.Join(each(first, first), each(second, second))
		c.ClearRules()
		if err != nil {
			return fmt.Errorf("one stream: %w", err)
		}
	}
	return nil
}

// unserved: a request whose streams cannot be ordered with those of its batch gets the error and leaves no memory, one
// within a capture is refused, and a lost device does not concern requests of another one.
func unserved(c *Control) error {
	d := tensor.CUDA(0)
	s, err := cuda.NewStream(d)
	if err != nil {
		return err
	}
	first, err := cuda.DefaultStream(d)
	if err != nil {
		return err
	}
	x := tensor.Zeros([]int{1}, d)
	defer x.Release()
	next := func(batch []*tensor.Tensor) ([]*tensor.Tensor, error) {
		return []*tensor.Tensor{batch[0].Add(1).Keep()}, nil
	}
	return batching(first, next, func(b *serve.Batcher[*tensor.Tensor, *tensor.Tensor]) error {
		do := func(x *tensor.Tensor) error {
			y, err := b.Do(context.Background(), x)
			if err == nil {
				y.Release()
			}
			return err
		}
		inStream := func() error { return cuda.WithStream(s, func() error { return do(x) }) }
		if err := inStream(); err != nil { // libtorch makes its events and handles
			return err
		}
		before, err := stats(d)
		if err != nil {
			return err
		}
		// The first event is for the batch, the second for the caller. libtorch does not free an event that it cannot record.
		for _, function := range []string{"cudaEventRecord", "cudaStreamWaitEvent"} {
			for skip := range int64(2) {
				failed, events := c.Errors(), c.Events()
				if err := c.AddRule(Rule{Function: function, Device: -1, Skip: skip, Times: 1, Error: 999}); err != nil {
					return err
				}
				err := inStream()
				c.ClearRules()
				var e *tensor.Error
				if !errors.As(err, &e) || e.Op != "Do" || c.Errors() != failed+1 {
					return fmt.Errorf("call %d of %s: %d errors; %w", skip, function, c.Errors()-failed, err)
				}
				if function == "cudaEventRecord" {
					events++
				}
				if after, err := stats(d); err != nil || after.Allocated != before.Allocated || c.Events() != events {
					return fmt.Errorf("call %d of %s: %d bytes and %d events live, %d and %d before; %w", skip, function, after.Allocated, c.Events(), before.Allocated, events, err)
				}
			}
		}
		if err := inStream(); err != nil {
			return err
		}

		host := tensor.Zeros([]int{1})
		defer host.Release()
		var refused error
		g, captured := cuda.Capture(d, func() error {
			refused = do(host)
			return nil
		})
		if err := errors.Join(expect("Do in a capture", refused, tensor.ErrCapture), expect("the capture", captured, tensor.ErrCapture), g.Close()); err != nil {
			return err
		}

		lost := tensor.CUDA(2)
		if err := tensor.Ones([]int{1}, lost).Err(); err != nil {
			return err
		}
		c.Lose(2, 719)
		return errors.Join(expect("the lost device", tensor.Synchronize(lost), tensor.ErrDeviceLost), do(host), inStream())
	})
}

package fakecuda

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/serve"
	"github.com/linstock-ml/linstock/tensor"
)

func init() {
	scenarios["served"], scenarios["unserved"], scenarios["served-beside"] = served, unserved, servedBeside
}

func TestBatcherAndStreams(t *testing.T)    { run(t, "served", 3, 1<<30) }
func TestBatcherAfterFailures(t *testing.T) { run(t, "unserved", 3, 1<<30) }
func TestBatcherBesideFailures(t *testing.T) {
	run(t, "served-beside", 2, 1<<30)
}

// batching calls do while a goroutine runs a batcher of f within a stream.
func batching[In, Out any](s *cuda.Stream, f func([]In) ([]Out, error), do func(b *serve.Batcher[In, Out]) error, opts ...serve.Option) error {
	b, err := serve.NewBatcher(f, opts...)
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

// servedBeside: a request whose stream cannot be used when its batch is done does not concern the others of the batch, nor
// does one that has given up.
func servedBeside(c *Control) error {
	d, lost := tensor.CUDA(0), tensor.CUDA(1)
	if err := tensor.Ones([]int{1}, lost).Err(); err != nil {
		return err
	}
	var streams []*cuda.Stream
	for _, d := range []tensor.Device{d, d, lost} {
		s, err := cuda.NewStream(d)
		if err != nil {
			return err
		}
		streams = append(streams, s)
	}
	x := tensor.Zeros([]int{1}, d)
	defer x.Release()
	gaveUp := errors.New("the request gave up")

	// together computes a batch of two requests, of callers with streams[0] and second, and returns their errors. It calls
	// meanwhile while the batch is computed. giveUp ends the second request.
	together := func(second *cuda.Stream, meanwhile func(giveUp func()) error) (errs [2]error, err error) {
		first, err := cuda.DefaultStream(d)
		if err != nil {
			return errs, err
		}
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		left := make(chan struct{})
		giveUp := func() {
			cancel(gaveUp)
			<-left
		}
		err = batching(first, func(batch []*tensor.Tensor) (outs []*tensor.Tensor, err error) {
			if len(batch) != 2 {
				return nil, fmt.Errorf("a batch of %d", len(batch))
			}
			for _, in := range batch {
				outs = append(outs, in.Add(1).Keep())
			}
			return outs, meanwhile(giveUp)
		}, func(b *serve.Batcher[*tensor.Tensor, *tensor.Tensor]) error {
			do := func(ctx context.Context, s *cuda.Stream) error {
				return cuda.WithStream(s, func() error {
					y, err := b.Do(ctx, x)
					if err == nil {
						y.Release()
					}
					return err
				})
			}
			var group sync.WaitGroup
			group.Go(func() { errs[0] = do(context.Background(), streams[0]) })
			group.Go(func() {
				errs[1] = do(ctx, second)
				close(left)
			})
			group.Wait()
			return nil
		}, serve.MaxBatch(2), serve.Window(time.Hour))
		return errs, err
	}
	check := func(what string, second *cuda.Stream, kind error, meanwhile func(giveUp func()) error, end func() error) error {
		before, err := stats(d)
		if err != nil {
			return err
		}
		errs, err := together(second, meanwhile)
		err = errors.Join(err, end())
		if err != nil || errs[0] != nil || !errors.Is(errs[1], kind) {
			return fmt.Errorf("%s: %w; the requests got %v and %v", what, err, errs[0], errs[1])
		}
		if err := settled(d, before.Allocated); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	}

	err := errors.Join(
		check("no failure", streams[1], nil, func(func()) error { return nil }, func() error { return nil }),
		check("a lost device", streams[2], tensor.ErrDeviceLost, func(func()) error {
			c.Lose(1, 719)
			return nil
		}, func() error { return nil }),
	)
	if err != nil {
		return err
	}
	// The second request gives up, and its stream captures while its batch is computed.
	var g *cuda.Graph
	begun, end, captured := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	return check("a capture", streams[1], gaveUp, func(giveUp func()) error {
		giveUp()
		go func() {
			var err error
			g, err = cuda.Capture(d, func() error {
				begun <- nil
				<-end
				return x.Add(1).Err()
			}, cuda.On(streams[1]))
			begun <- err // if it has not begun
			captured <- err
		}()
		return <-begun
	}, func() error { // libtorch 2.11 frees what the batch has used only after the capture
		close(end)
		return errors.Join(<-captured, g.Close())
	})
}

package fakecuda

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/tensor"
)

func TestCheckpoint(t *testing.T) { run(t, "checkpoint", 2, 1<<30) }

func TestCheckpointBesideAnotherDevice(t *testing.T) { run(t, "besides", 2, 1<<30) }

// besides: a checkpoint on one device leaves alone what another goroutine draws on the other one.
func besides(*Control) error {
	there := func(f func() error) error {
		done := make(chan error)
		go func() { done <- f() }()
		return <-done
	}
	draw := func() error {
		x := tensor.Randn([]int{8}, tensor.CUDA(1))
		defer x.Release()
		return x.Err()
	}
	w := tensor.Randn([]int{8, 8}, tensor.CUDA(0)).Keep().RequiresGrad_()
	defer w.Release()
	if err := draw(); err != nil {
		return err
	}
	for _, keep := range []bool{false, true} {
		var seen [][]byte
		look := func() error {
			s, err := stateOf(1)
			seen = append(seen, s)
			return err
		}
		dropped := func(h *tensor.Tensor) *tensor.Tensor {
			if !keep {
				return h.Dropout(0.5, tensor.Train(true))
			}
			return autograd.KeepInCheckpoint(func() *tensor.Tensor { return h.Dropout(0.5, tensor.Train(true)) })
		}
		err := tensor.WithScope(func() error {
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				h := dropped(in[0].MatMul(w))
				if err := there(func() error { return errors.Join(look(), draw(), look()) }); err != nil {
					return tensor.Failed(err)
				}
				return h.Dropout(0.5, tensor.Train(true)).Tanh()
			}, tensor.Randn([]int{4, 8}, tensor.CUDA(0)))
			return errors.Join(y.Err(), look(), there(draw), look(), y.Sum().Backward(), look(), w.SetGrad(nil))
		})
		if err != nil {
			return err
		}
		// At both runs, before and after a draw, and around.
		if len(seen) != 7 {
			return fmt.Errorf("%d states, want 7", len(seen))
		}
		for i, same := range []bool{false, true, false, true, false, true} {
			if bytes.Equal(seen[i], seen[i+1]) != same {
				return fmt.Errorf("a result is kept: %v: state %d of cuda:1 is %v, the next %v; both equal: want %v", keep, i, seen[i], seen[i+1], same)
			}
		}
	}
	return nil
}

func TestCheckpointBeginsToUseADevice(t *testing.T) { run(t, "beginning", 2, 1<<30) }

// beginning: a checkpoint whose function is the first to use a device cannot repeat what it draws there.
func beginning(*Control) error {
	w := tensor.Randn([]int{8, 8}).RequiresGrad_()
	x := tensor.Randn([]int{4, 8})
	y := func() *tensor.Tensor {
		return autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
			return in[0].MatMul(w).To(tensor.CUDA(1)).Dropout(0.5, tensor.Train(true)).Tanh()
		}, x)
	}
	const text = "the first in this process to use cuda:1"
	if err := y().Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), text) {
		return fmt.Errorf("%w; want %q", err, text)
	}
	return y().Sum().Backward()
}

func TestADeviceIsLostInARecomputation(t *testing.T) { run(t, "losing", 2, 1<<30) }

// losing loses a device, whose random state is to be restored afterwards, in a recomputation.
func losing(c *Control) error {
	w := tensor.Randn([]int{8, 8}, tensor.CUDA(1)).RequiresGrad_()
	runs := 0
	y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
		h := in[0].MatMul(w).Dropout(0.5, tensor.Train(true)).Tanh()
		if runs++; runs == 2 {
			c.Lose(1, 700)
		}
		return h.Mul(h)
	}, tensor.Randn([]int{4, 8}, tensor.CUDA(1)))
	if err := y.Err(); err != nil {
		return err
	}
	if err := y.Sum().Backward(); !errors.Is(err, tensor.ErrDeviceLost) || runs != 2 {
		return fmt.Errorf("%d runs; the device is lost in the second: %v", runs, err)
	}
	return tensor.Ones([]int{2}).Add(1).Err()
}

// recompute recomputes a checkpointed part that uses two devices, on the engine's thread of one of them. It
// must draw the same random numbers on both, and restore both generators.
func recompute(*Control) error {
	var ws [2]*tensor.Tensor
	base := make([]int64, len(ws))
	for i := range ws {
		d := tensor.CUDA(i)
		// A product on each device, as earlier layers would run: from its first product on libtorch keeps cuBLAS's
		// workspace.
		ws[i] = tensor.Randn([]int{8, 8}, d).Keep().RequiresGrad_()
		ws[i].Detach().MatMul(ws[i].Detach()).Release()
		s, err := stats(d)
		if err != nil {
			return err
		}
		base[i] = s.Allocated
	}
	states := func() (all []byte, err error) {
		for i := range ws {
			s, err := tensor.Data[uint8](tensor.RNGState(tensor.CUDA(i)))
			if err != nil {
				return nil, err
			}
			all = append(all, s...)
		}
		return all, nil
	}
	var starts [][]byte
	err := tensor.WithScope(func() error {
		y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
			s, err := states()
			if err != nil {
				return tensor.Failed(err)
			}
			starts = append(starts, s)
			h := in[0]
			for i, w := range ws {
				h = h.To(tensor.CUDA(i)).MatMul(w).Dropout(0.5, tensor.Train(true)).Tanh()
			}
			return h
		}, tensor.Randn([]int{4, 8}))
		drawn, err := states()
		if err != nil {
			return err
		}
		if err := y.Sum().Backward(); err != nil {
			return err
		}
		after, err := states()
		if err != nil {
			return err
		}
		if len(starts) < 2 || bytes.Equal(starts[0], drawn) || !bytes.Equal(drawn, after) {
			return fmt.Errorf("%d runs; the generators' states: at the start %v, after the first run %v, after backward %v", len(starts), starts, drawn, after)
		}
		for _, s := range starts[1:] {
			if !bytes.Equal(s, starts[0]) {
				return fmt.Errorf("a run began with the state %v, the first with %v", s, starts[0])
			}
		}
		for i, w := range ws {
			if g := w.Grad(); g == nil || g.Device() != tensor.CUDA(i) {
				return fmt.Errorf("weight %d has no gradient on its device", i)
			}
			if err := w.SetGrad(nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for range 10 {
		for _, nested := range []bool{false, true} {
			if err := tensor.WithScope(func() error { return branches(ws[:], nested, states) }); err != nil {
				return err
			}
		}
	}
	if err := twoAtOnce(ws[:]); err != nil {
		return err
	}
	for i := range ws {
		if err := settled(tensor.CUDA(i), base[i]); err != nil {
			return err
		}
		ws[i].Release()
	}
	return nil
}

// branches checkpoints a part with a branch on each device. The threads of both devices need it at the same
// time; one of them recomputes it for both. A checkpointed function that runs a backward pass itself, which
// occupies both threads, does not deadlock.
func branches(ws []*tensor.Tensor, nested bool, states func() ([]byte, error)) error {
	var runs atomic.Int32
	y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
		runs.Add(1)
		sum := tensor.Zeros(nil, tensor.CUDA(0))
		for i, w := range ws {
			h := in[0].To(tensor.CUDA(i)).MatMul(w).Dropout(0.5, tensor.Train(!nested)).Tanh()
			if nested {
				g, err := autograd.Grad([]*tensor.Tensor{h.Sum()}, []*tensor.Tensor{w}, tensor.RetainGraph(true))
				if err != nil {
					return tensor.Failed(err)
				}
				h = h.Mul(g[0].Sum())
			}
			sum = sum.Add(h.Sum().To(tensor.CUDA(0)))
		}
		return sum
	}, tensor.Randn([]int{4, 8}))
	before, err := states()
	if err != nil {
		return err
	}
	if err := y.Backward(); err != nil {
		return err
	}
	after, err := states()
	if err != nil {
		return err
	}
	if !bytes.Equal(before, after) {
		return fmt.Errorf("nested %v: backward left the generators at %v; they were at %v", nested, after, before)
	}
	if n := runs.Load(); !nested && n != 2 {
		return fmt.Errorf("%d runs, want 2", n)
	}
	for _, w := range ws {
		if err := w.SetGrad(nil); err != nil {
			return err
		}
	}
	return nil
}

// twoAtOnce checkpoints a part with a branch on each device, which draws random numbers and runs a backward pass
// itself. When the threads of both devices need it at the same time, neither can wait for the other, and the
// generators can be set back for one only: that is an error.
func twoAtOnce(ws []*tensor.Tensor) error {
	const text = "two devices need it at once"
	for range 100 {
		err := tensor.WithScope(func() error {
			var runs atomic.Int32
			y := autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
				run := runs.Add(1)
				sum := tensor.Zeros(nil, tensor.CUDA(0))
				for i, w := range ws {
					h := in[0].To(tensor.CUDA(i)).MatMul(w).Dropout(0.5, tensor.Train(true)).Tanh()
					if _, err := autograd.Grad([]*tensor.Tensor{h.Sum()}, []*tensor.Tensor{w}, tensor.RetainGraph(true)); err != nil {
						return tensor.Failed(err)
					}
					if run == 2 {
						time.Sleep(5 * time.Millisecond)
					}
					sum = sum.Add(h.Sum().To(tensor.CUDA(0)))
				}
				return sum
			}, tensor.Randn([]int{4, 8}))
			return y.Backward()
		})
		for _, w := range ws {
			if err := w.SetGrad(nil); err != nil {
				return err
			}
		}
		if err != nil {
			if !strings.Contains(err.Error(), text) {
				return fmt.Errorf("%w; want %q", err, text)
			}
			return nil
		}
	}
	return fmt.Errorf("no error says that %s", text)
}

package fakecuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	for name, f := range map[string]func(*Control) error{
		"dropped": dropped, "stale": stale,
	} {
		scenarios[name] = f
	}
}

func TestDroppedGraph(t *testing.T)          { run(t, "dropped", 1, 1<<30) }
func TestCaptureAfterEagerStep(t *testing.T) { run(t, "stale", 1, 1<<30) }

// dropped: an unreachable graph is freed without a call of package cuda, by an allocation that needs its memory and by
// Collect.
func dropped(c *Control) error {
	d := tensor.CUDA(0)
	capture := func() error {
		g, err := cuda.Capture(d, func() error { return tensor.Empty([]int{600 << 20}, tensor.Uint8, d).Fill_(1).Err() })
		if err != nil {
			return err
		}
		return errors.Join(g.Replay(), tensor.Synchronize(d))
	}
	if err := capture(); err != nil {
		return err
	}
	x := tensor.Empty([]int{700 << 20}, tensor.Uint8, d)
	if err := x.Err(); err != nil {
		return fmt.Errorf("700 MiB of 1 GiB, when a graph of 600 MiB has become unreachable: %w", err)
	}
	x.Release()
	if n := c.Graphs(); n != 0 {
		return fmt.Errorf("%d graphs live, want 0", n)
	}
	if err := errors.Join(vram.EmptyCache(d), capture()); err != nil {
		return err
	}
	for range 100 {
		if err := vram.Collect(); err != nil || c.Graphs() == 0 {
			return err
		}
	}
	return fmt.Errorf("%d graphs live after Collect, want 0", c.Graphs())
}

// stale: the graph of an eager step that is not freed yet does not disturb a capture.
func stale(*Control) error {
	d := tensor.CUDA(0)
	lin := nn.NewLinear(64, 64, nn.Device(d))
	defer nn.Release(lin)
	x := tensor.Ones([]int{8, 64}, d).Keep()
	defer x.Release()
	step := func() error { return lin.Forward(x).Sum().Backward() }
	for range 3 {
		for _, warmup := range []int{0, 3} {
			if err := step(); err != nil {
				return err
			}
			g, err := cuda.Capture(d, step, cuda.Warmup(warmup))
			if err := errors.Join(err, g.Close()); err != nil {
				return fmt.Errorf("a step as a graph, after an eager one, with Warmup(%d): %w", warmup, err)
			}
		}
		if err := step(); err != nil {
			return err
		}
		made, err := cuda.MakeGraphedCallables([]nn.Layer{lin}, []*tensor.Tensor{x})
		if err != nil {
			return fmt.Errorf("a graphed layer, after an eager step: %w", err)
		}
		if err := made[0].Close(); err != nil {
			return err
		}
	}
	return nil
}

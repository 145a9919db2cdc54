package fakecuda

import (
	"errors"
	"fmt"
	"testing"

	"github.com/linstock-ml/linstock/cuda"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() {
	for name, f := range map[string]func(*Control) error{
		"dropped": dropped,
	} {
		scenarios[name] = f
	}
}

func TestDroppedGraph(t *testing.T) { run(t, "dropped", 1, 1<<30) }

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

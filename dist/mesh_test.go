package dist_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/linstock-ml/linstock/dist"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// TestDeviceMesh tests the groups and coordinates of meshes.
func TestDeviceMesh(t *testing.T) {
	leak.Check(t)
	ranks(t, 4, func(g *dist.Group) error {
		m, err := dist.NewDeviceMesh(ctx, g, []int{2, 2}, "dp", "tp")
		if err != nil {
			return err
		}
		r := g.Rank()
		if !slices.Equal(m.Coordinate(), []int{r / 2, r % 2}) || m.String() != "dp=2, tp=2" || m.Group("pp") != nil {
			t.Errorf("rank %d: %v of %v", r, m.Coordinate(), m)
		}
		for name, want := range map[string][]int{"dp": {r % 2, r%2 + 2}, "tp": {r / 2 * 2, r/2*2 + 1}} {
			sub := m.Group(name)
			if !slices.Equal(sub.Ranks(), want) {
				t.Errorf("rank %d: %s has ranks %v, want %v", r, name, sub.Ranks(), want)
			}
		}
		// In the same order on all ranks.
		for _, name := range []string{"dp", "tp"} {
			x, sum := vector(float32(r)), map[string]float32{"dp": float32(2*(r%2) + 2), "tp": float32(r/2*4 + 1)}[name]
			if err := errors.Join(m.Group(name).AllReduce(ctx, x, dist.Sum), want(name, x, sum)); err != nil {
				return err
			}
		}
		if err := m.Close(); err != nil {
			return err
		}
		for _, c := range []struct {
			g     *dist.Group
			shape []int
			names []string
		}{
			{nil, []int{4}, []string{"a"}}, {g, []int{3}, []string{"a"}}, {g, []int{-2, -2}, []string{"a", "b"}}, {g, []int{0}, []string{"a"}},
			{g, []int{2, 2}, []string{"a"}}, {g, []int{2, 2}, []string{"a", "a"}}, {g, []int{4}, []string{""}}, {g, nil, nil},
		} {
			if m, err := dist.NewDeviceMesh(ctx, c.g, c.shape, c.names...); err == nil || m != nil {
				return fmt.Errorf("%v %q: %v", c.shape, c.names, m)
			} else if c.g != nil && !errors.Is(err, tensor.ErrArgument) {
				return err
			}
		}
		var none *dist.DeviceMesh
		if none.Group("dp") != nil || none.Coordinate() != nil || none.Shape() != nil || none.Close() != nil || none.String() != "no mesh" {
			t.Error("a nil mesh")
		}
		return nil
	})
}

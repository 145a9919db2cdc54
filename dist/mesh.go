package dist

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// A DeviceMesh arranges the ranks of a group in several dimensions and has a group for each row, such as the replicas of data
// parallelism and the parts of another one:
//
//	mesh, err := dist.NewDeviceMesh(ctx, g, []int{2, 4}, "dp", "tp")
//	…
//	ddp, err := dist.NewDDP(ctx, mesh.Group("dp"), model) // of ranks 1 and 5, for rank 1
//
// PyTorch: torch.distributed.DeviceMesh.
type DeviceMesh struct {
	shape      []int
	names      []string
	coordinate []int
	groups     []*Group
}

// NewDeviceMesh arranges the ranks of g, the last dimension varying fastest. The product of the shape is the size of g, and
// each dimension has a name. All ranks must call it. PyTorch:
// torch.distributed.init_device_mesh.
func NewDeviceMesh(ctx context.Context, g *Group, shape []int, names ...string) (_ *DeviceMesh, err error) {
	const op = "NewDeviceMesh"
	if err := g.check(op); err != nil {
		return nil, err
	}
	if ctx == nil {
		return nil, refuse.Nil(op, "a context")
	}
	size := 1
	for _, n := range shape {
		if n < 1 || n > g.size/size {
			return nil, refuse.Error(op, tensor.ErrArgument, "shape %v for %d ranks", shape, g.size)
		}
		size *= n
	}
	if size != g.size {
		return nil, refuse.Error(op, tensor.ErrArgument, "shape %v has %d places for %d ranks", shape, size, g.size)
	}
	for i, name := range names {
		if name == "" || slices.Contains(names[:i], name) {
			return nil, refuse.Error(op, tensor.ErrArgument, "the names %q must be distinct", names)
		}
	}
	if len(names) != len(shape) {
		return nil, refuse.Error(op, tensor.ErrArgument, "%d names for %d dimensions", len(names), len(shape))
	}
	m := &DeviceMesh{shape: slices.Clone(shape), names: slices.Clone(names), coordinate: make([]int, len(shape))}
	defer func() {
		if err != nil {
			_ = m.Close()
		}
	}()
	stride := size
	for d, n := range shape {
		stride /= n
		m.coordinate[d] = g.rank / stride % n
		// The first rank of each row, and the others in steps of the stride.
		for first := range size {
			if first/stride%n != 0 {
				continue
			}
			row := make([]int, n)
			for i := range row {
				row[i] = first + i*stride
			}
			sub, err := g.NewGroup(ctx, row)
			if err != nil {
				return nil, err
			}
			if sub != nil {
				m.groups = append(m.groups, sub)
			}
		}
	}
	return m, nil
}

// Group returns the group of this rank's row in the dimension of the given name, or nil if there is none. PyTorch:
// DeviceMesh.get_group.
func (m *DeviceMesh) Group(name string) *Group {
	if m == nil {
		return nil
	}
	if d := slices.Index(m.names, name); d >= 0 {
		return m.groups[d]
	}
	return nil
}

// Coordinate returns this rank's place in each dimension. PyTorch: DeviceMesh.get_coordinate.
func (m *DeviceMesh) Coordinate() []int {
	if m == nil {
		return nil
	}
	return slices.Clone(m.coordinate)
}

// Shape returns the sizes of the dimensions. PyTorch: DeviceMesh.shape.
func (m *DeviceMesh) Shape() []int {
	if m == nil {
		return nil
	}
	return slices.Clone(m.shape)
}

// Close closes the groups.
func (m *DeviceMesh) Close() error {
	if m == nil {
		return nil
	}
	var errs []error
	for _, g := range m.groups {
		errs = append(errs, g.Close())
	}
	return errors.Join(errs...)
}

// String returns "dp=2, tp=4".
func (m *DeviceMesh) String() string {
	if m == nil {
		return "no mesh"
	}
	var all []string
	for d, name := range m.names {
		all = append(all, fmt.Sprintf("%s=%d", name, m.shape[d]))
	}
	return strings.Join(all, ", ")
}

package dist

import (
	"bytes"
	"context"
	"encoding/gob"

	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// AllGatherObject returns v of all ranks, on each of them. The values are encoded by package encoding/gob, like those of the
// other functions for objects: only exported fields arrive, a pointer in a struct to a zero value arrives as nil, an empty
// slice as nil, and types behind interfaces must be registered with gob.Register. Functions, channels and tensors
// cannot be sent. Ranks in Python cannot take part, since they exchange pickles. PyTorch:
// torch.distributed.all_gather_object.
func AllGatherObject[T any](ctx context.Context, g *Group, v T) ([]T, error) {
	const op = "AllGatherObject"
	var all []T
	err := exchange(ctx, op, g, &v, true, func(x *exchanged) error {
		parts := make([]*tensor.Tensor, g.size)
		for r := range parts {
			parts[r] = x.buffer()
		}
		if err := g.AllGather(ctx, parts, x.own); err != nil {
			return err
		}
		var err error
		all, err = decodeAll[T](op, parts, x.sizes)
		return err
	})
	return all, err
}

// GatherObject returns v of all ranks on the rank dst, and nil on the others. PyTorch: torch.distributed.gather_object.
func GatherObject[T any](ctx context.Context, g *Group, v T, dst int) ([]T, error) {
	const op = "GatherObject"
	var all []T
	err := exchange(ctx, op, g, &v, true, func(x *exchanged) error {
		var parts []*tensor.Tensor
		if g.rank == dst {
			for range g.size {
				parts = append(parts, x.buffer())
			}
		}
		if err := g.Gather(ctx, parts, x.own, dst); err != nil || parts == nil {
			return err
		}
		var err error
		all, err = decodeAll[T](op, parts, x.sizes)
		return err
	})
	return all, err
}

// BroadcastObject sets *v to that of the rank src, on all ranks. PyTorch: torch.distributed.broadcast_object_list.
func BroadcastObject[T any](ctx context.Context, g *Group, v *T, src int) error {
	const op = "BroadcastObject"
	if v == nil {
		return refuse.Nil(op, "a pointer")
	}
	return exchange(ctx, op, g, v, g.Rank() == src, func(x *exchanged) error {
		if src < 0 || src >= g.size {
			return refuse.Error(op, tensor.ErrArgument, "rank %d is not in a group of %d", src, g.size)
		}
		if err := g.Broadcast(ctx, x.own, src); err != nil || g.rank == src {
			return err
		}
		return decode(op, x.own, x.sizes[src], v)
	})
}

// ScatterObject returns vs[r] of the rank src on rank r. On the other ranks vs is not read. PyTorch:
// torch.distributed.scatter_object_list.
func ScatterObject[T any](ctx context.Context, g *Group, vs []T, src int) (v T, err error) {
	const op = "ScatterObject"
	if g.Rank() == src && len(vs) != g.Size() {
		return v, refuse.Error(op, tensor.ErrArgument, "%d values for %d ranks", len(vs), g.Size())
	}
	if g.Rank() != src {
		vs = nil
	}
	// Values are small compared with tensors: every rank gets all of them.
	if err := BroadcastObject(ctx, g, &vs, src); err != nil {
		return v, err
	}
	if len(vs) != g.size {
		return v, refuse.Error(op, tensor.ErrArgument, "rank %d gave %d values for %d ranks", src, len(vs), g.size)
	}
	return vs[g.rank], nil
}

// SendObject sends v to the rank dst, which receives it by RecvObject with the same tag. PyTorch:
// torch.distributed.send_object_list.
func SendObject[T any](ctx context.Context, g *Group, v T, dst, tag int) error {
	const op = "SendObject"
	if err := g.check(op); err != nil {
		return err
	}
	text, err := encode(op, v)
	if err != nil {
		return err
	}
	return tensor.WithScope(func() error {
		if err := g.Send(ctx, tensor.FromSlice([]int64{int64(len(text))}, []int{1}), dst, tag); err != nil {
			return err
		}
		return g.rest(ctx, op, g.Send(ctx, tensor.FromSlice(text, []int{len(text)}), dst, tag))
	})
}

// RecvObject returns the value that the rank src has sent, or any rank if src is AnySource, and the sender. PyTorch:
// torch.distributed.recv_object_list.
func RecvObject[T any](ctx context.Context, g *Group, src, tag int) (v T, from int, err error) {
	const op = "RecvObject"
	if err := g.check(op); err != nil {
		return v, -1, err
	}
	err = tensor.WithScope(func() error {
		size := tensor.Zeros([]int{1}, tensor.Int64)
		var w *Work
		err := g.run(ctx, op, func() (_ *Work, err error) {
			w, err = g.RecvAsync(size, src, tag)
			return w, err
		})
		if err != nil {
			return err
		}
		from = w.Source()
		n, err := tensor.Data[int64](size)
		if err != nil {
			return err
		}
		if n[0] < 0 {
			return refuse.Error(op, tensor.ErrArgument, "rank %d has sent a tensor without SendObject", from)
		}
		text := tensor.Zeros([]int{int(n[0])}, tensor.Uint8)
		if err := g.rest(ctx, op, g.Recv(ctx, text, from, tag)); err != nil {
			return err
		}
		return decode(op, text, n[0], &v)
	})
	return v, from, err
}

// boxed holds a value as a field, because gob encodes nil pointers and interfaces only as fields.
type boxed[T any] struct{ V T }

func encode[T any](op string, v T) (text []byte, err error) {
	defer func() {
		if p := recover(); p != nil { // gob panics for some values, such as a slice with a nil pointer in it
			err = refuse.Error(op, tensor.ErrArgument, "the value cannot be encoded: %v", p)
		}
	}()
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(boxed[T]{v}); err != nil {
		return nil, refuse.Error(op, tensor.ErrArgument, "the value cannot be encoded: %v", err)
	}
	return b.Bytes(), nil
}

// exchanged is this rank's part of an exchange of values.
type exchanged struct {
	own   *tensor.Tensor // the encoded value, as long as the longest of all ranks
	sizes []int64        // of the encoded values of all ranks
	most  int
}

func (x *exchanged) buffer() *tensor.Tensor { return tensor.Zeros([]int{x.most}, tensor.Uint8) }

// exchange encodes *v if this rank gives a value, agrees on the sizes of all ranks' values, and calls f, whose tensors are
// freed afterwards.
func exchange[T any](ctx context.Context, op string, g *Group, v *T, gives bool, f func(x *exchanged) error) error {
	if err := g.check(op); err != nil {
		return err
	}
	var text []byte
	if gives {
		var err error
		if text, err = encode(op, *v); err != nil {
			return err
		}
	}
	return tensor.WithScope(func() error {
		all := tensor.Zeros([]int{g.size}, tensor.Int64)
		if err := g.AllGatherIntoTensor(ctx, all, tensor.FromSlice([]int64{int64(len(text))}, []int{1})); err != nil {
			return err
		}
		x := &exchanged{most: 1}
		var err error
		if x.sizes, err = tensor.Data[int64](all); err != nil {
			return err
		}
		for _, n := range x.sizes {
			x.most = max(x.most, int(n))
		}
		padded := append(text, make([]byte, x.most-len(text))...)
		x.own = tensor.FromSlice(padded, []int{x.most})
		return g.rest(ctx, op, f(x))
	})
}

func decodeAll[T any](op string, parts []*tensor.Tensor, sizes []int64) ([]T, error) {
	all := make([]T, len(parts))
	for r, p := range parts {
		if err := decode(op, p, sizes[r], &all[r]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func decode[T any](op string, t *tensor.Tensor, size int64, to *T) error {
	b, err := tensor.Data[uint8](t)
	if err != nil {
		return err
	}
	var box boxed[T]
	if err := gob.NewDecoder(bytes.NewReader(b[:size])).Decode(&box); err != nil {
		return refuse.Error(op, tensor.ErrArgument, "a value that was received cannot be decoded: %v", err)
	}
	*to = box.V
	return nil
}

package dist

import (
	"context"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
)

// ReduceOp is how a collective combines the tensors of the ranks. PyTorch: torch.distributed.ReduceOp.
type ReduceOp int32

// The reductions. BAnd, BOr and BXor are for integers. Avg by gloo is for floating-point and complex tensors. The sum of
// booleans is true where one of them is.
const (
	Sum ReduceOp = iota
	Avg
	Product
	Min
	Max
	BAnd
	BOr
	BXor
)

func one(t *tensor.Tensor) []*tensor.Tensor { return []*tensor.Tensor{t} }

// Broadcast copies t of the rank src to t of the other ranks. PyTorch: torch.distributed.broadcast.
func (g *Group) Broadcast(ctx context.Context, t *tensor.Tensor, src int) error {
	return g.run(ctx, "Broadcast", func() (*Work, error) { return g.BroadcastAsync(t, src) })
}

// BroadcastAsync starts a Broadcast. PyTorch: torch.distributed.broadcast with async_op.
func (g *Group) BroadcastAsync(t *tensor.Tensor, src int) (*Work, error) {
	return g.beginWith("Broadcast", cshim.Collective{Kind: cshim.Broadcast}, src, 0, one(t), nil)
}

// AllReduce sets t to the reduction of t over all ranks, on each of them. PyTorch: torch.distributed.all_reduce.
func (g *Group) AllReduce(ctx context.Context, t *tensor.Tensor, op ReduceOp) error {
	return g.run(ctx, "AllReduce", func() (*Work, error) { return g.AllReduceAsync(t, op) })
}

// AllReduceAsync starts an AllReduce. PyTorch: torch.distributed.all_reduce with async_op.
func (g *Group) AllReduceAsync(t *tensor.Tensor, op ReduceOp) (*Work, error) {
	return g.begin("AllReduce", cshim.Collective{Kind: cshim.AllReduce, Reduce: int32(op)}, one(t), nil)
}

// AllReduceCoalesced is AllReduce for several tensors of one dtype, in one message. PyTorch:
// torch.distributed.all_reduce_coalesced.
func (g *Group) AllReduceCoalesced(ctx context.Context, ts []*tensor.Tensor, op ReduceOp) error {
	return g.run(ctx, "AllReduceCoalesced", func() (*Work, error) { return g.AllReduceCoalescedAsync(ts, op) })
}

// AllReduceCoalescedAsync starts an AllReduceCoalesced. PyTorch: torch.distributed.all_reduce_coalesced with async_op.
func (g *Group) AllReduceCoalescedAsync(ts []*tensor.Tensor, op ReduceOp) (*Work, error) {
	return g.begin("AllReduceCoalesced", cshim.Collective{Kind: cshim.AllReduceCoalesced, Reduce: int32(op)}, ts, nil)
}

// Reduce sets t of the rank dst to the reduction of t over all ranks. On the other ranks t is undefined afterwards.
// PyTorch: torch.distributed.reduce.
func (g *Group) Reduce(ctx context.Context, t *tensor.Tensor, dst int, op ReduceOp) error {
	return g.run(ctx, "Reduce", func() (*Work, error) { return g.ReduceAsync(t, dst, op) })
}

// ReduceAsync starts a Reduce. PyTorch: torch.distributed.reduce with async_op.
func (g *Group) ReduceAsync(t *tensor.Tensor, dst int, op ReduceOp) (*Work, error) {
	return g.beginWith("Reduce", cshim.Collective{Kind: cshim.Reduce, Reduce: int32(op)}, dst, 0, one(t), nil)
}

// AllGather sets out[r] to in of rank r, on all ranks. out has Size() tensors. PyTorch: torch.distributed.all_gather.
func (g *Group) AllGather(ctx context.Context, out []*tensor.Tensor, in *tensor.Tensor) error {
	return g.run(ctx, "AllGather", func() (*Work, error) { return g.AllGatherAsync(out, in) })
}

// AllGatherAsync starts an AllGather. PyTorch: torch.distributed.all_gather with async_op.
func (g *Group) AllGatherAsync(out []*tensor.Tensor, in *tensor.Tensor) (*Work, error) {
	return g.begin("AllGather", cshim.Collective{Kind: cshim.AllGather}, out, one(in))
}

// AllGatherIntoTensor sets out to in of all ranks, one after the other in its first dimension: out has Size() times the
// elements of in. PyTorch: torch.distributed.all_gather_into_tensor.
func (g *Group) AllGatherIntoTensor(ctx context.Context, out, in *tensor.Tensor) error {
	return g.run(ctx, "AllGatherIntoTensor", func() (*Work, error) { return g.AllGatherIntoTensorAsync(out, in) })
}

// AllGatherIntoTensorAsync starts an AllGatherIntoTensor. PyTorch: torch.distributed.all_gather_into_tensor with
// async_op.
func (g *Group) AllGatherIntoTensorAsync(out, in *tensor.Tensor) (*Work, error) {
	return g.begin("AllGatherIntoTensor", cshim.Collective{Kind: cshim.AllGatherOne}, one(out), one(in))
}

// Gather sets out[r] of the rank dst to in of rank r. On the other ranks out is empty. PyTorch:
// torch.distributed.gather.
func (g *Group) Gather(ctx context.Context, out []*tensor.Tensor, in *tensor.Tensor, dst int) error {
	return g.run(ctx, "Gather", func() (*Work, error) { return g.GatherAsync(out, in, dst) })
}

// GatherAsync starts a Gather. PyTorch: torch.distributed.gather with async_op.
func (g *Group) GatherAsync(out []*tensor.Tensor, in *tensor.Tensor, dst int) (*Work, error) {
	return g.beginWith("Gather", cshim.Collective{Kind: cshim.Gather}, dst, 0, out, one(in))
}

// Scatter sets out of rank r to in[r] of the rank src. On the other ranks in is empty. PyTorch:
// torch.distributed.scatter.
func (g *Group) Scatter(ctx context.Context, out *tensor.Tensor, in []*tensor.Tensor, src int) error {
	return g.run(ctx, "Scatter", func() (*Work, error) { return g.ScatterAsync(out, in, src) })
}

// ScatterAsync starts a Scatter. PyTorch: torch.distributed.scatter with async_op.
func (g *Group) ScatterAsync(out *tensor.Tensor, in []*tensor.Tensor, src int) (*Work, error) {
	return g.beginWith("Scatter", cshim.Collective{Kind: cshim.Scatter}, src, 0, one(out), in)
}

// ReduceScatter sets out of rank r to the reduction of in[r] over all ranks. PyTorch: torch.distributed.reduce_scatter.
func (g *Group) ReduceScatter(ctx context.Context, out *tensor.Tensor, in []*tensor.Tensor, op ReduceOp) error {
	return g.run(ctx, "ReduceScatter", func() (*Work, error) { return g.ReduceScatterAsync(out, in, op) })
}

// ReduceScatterAsync starts a ReduceScatter. PyTorch: torch.distributed.reduce_scatter with async_op.
func (g *Group) ReduceScatterAsync(out *tensor.Tensor, in []*tensor.Tensor, op ReduceOp) (*Work, error) {
	return g.begin("ReduceScatter", cshim.Collective{Kind: cshim.ReduceScatter, Reduce: int32(op)}, one(out), in)
}

// ReduceScatterTensor sets out of rank r to the reduction over all ranks of the part r of in, whose Size() parts are
// concatenated in its first dimension or stacked in an additional one. PyTorch:
// torch.distributed.reduce_scatter_tensor.
func (g *Group) ReduceScatterTensor(ctx context.Context, out, in *tensor.Tensor, op ReduceOp) error {
	return g.run(ctx, "ReduceScatterTensor", func() (*Work, error) { return g.ReduceScatterTensorAsync(out, in, op) })
}

// ReduceScatterTensorAsync starts a ReduceScatterTensor. PyTorch: torch.distributed.reduce_scatter_tensor with
// async_op.
func (g *Group) ReduceScatterTensorAsync(out, in *tensor.Tensor, op ReduceOp) (*Work, error) {
	return g.begin("ReduceScatterTensor", cshim.Collective{Kind: cshim.ReduceScatterOne, Reduce: int32(op)}, one(out), one(in))
}

// AllToAllSingle sends the part r of in to rank r and sets the part r of out to what rank r has sent. The sizes are
// those of the parts in the first dimension; nil means equal parts. PyTorch: torch.distributed.all_to_all_single.
func (g *Group) AllToAllSingle(ctx context.Context, out, in *tensor.Tensor, outSizes, inSizes []int) error {
	return g.run(ctx, "AllToAllSingle", func() (*Work, error) { return g.AllToAllSingleAsync(out, in, outSizes, inSizes) })
}

// AllToAllSingleAsync starts an AllToAllSingle. PyTorch: torch.distributed.all_to_all_single with async_op.
func (g *Group) AllToAllSingleAsync(out, in *tensor.Tensor, outSizes, inSizes []int) (*Work, error) {
	return g.beginSized("AllToAllSingle", cshim.Collective{Kind: cshim.AllToAllOne}, one(out), one(in), outSizes, inSizes)
}

// Send sends t to the rank dst, which receives it by Recv with the same tag, in [0, math.MaxInt32]. PyTorch:
// torch.distributed.send.
func (g *Group) Send(ctx context.Context, t *tensor.Tensor, dst, tag int) error {
	return g.run(ctx, "Send", func() (*Work, error) { return g.SendAsync(t, dst, tag) })
}

// SendAsync starts a Send. PyTorch: torch.distributed.isend.
func (g *Group) SendAsync(t *tensor.Tensor, dst, tag int) (*Work, error) {
	return g.beginWith("Send", cshim.Collective{Kind: cshim.Send}, dst, tag, nil, one(t))
}

// AnySource is a rank for Recv: any. [Work.Source] tells which one it was.
const AnySource = -1

// Recv receives t from the rank src, which sends a tensor of the same size and dtype, or from any rank if src is
// AnySource. PyTorch: torch.distributed.recv.
func (g *Group) Recv(ctx context.Context, t *tensor.Tensor, src, tag int) error {
	return g.run(ctx, "Recv", func() (*Work, error) { return g.RecvAsync(t, src, tag) })
}

// RecvAsync starts a Recv. PyTorch: torch.distributed.irecv.
func (g *Group) RecvAsync(t *tensor.Tensor, src, tag int) (*Work, error) {
	return g.beginWith("Recv", cshim.Collective{Kind: cshim.Receive}, src, tag, one(t), nil)
}

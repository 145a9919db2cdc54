package dist

import (
	"context"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// ConvertSyncBatchNorm makes the BatchNorm1d, BatchNorm2d and BatchNorm3d of a model normalize, in training, over the batches of
// all ranks of g, which can have different sizes, and returns how many there are. The modules and their state dict stay
// what they are; in evaluation nothing changes. In training they cannot be differentiated twice, nor used in DDP.Join
// of the group. All ranks must convert the same model, whose lazy ones are made. PyTorch:
// torch.nn.SyncBatchNorm.convert_sync_batchnorm.
func ConvertSyncBatchNorm(g *Group, model any) (int, error) {
	const op = "ConvertSyncBatchNorm"
	if err := g.check(op); err != nil {
		return 0, err
	}
	if err := nn.Check(model); err != nil {
		return 0, err
	}
	set := handle.SetBatchNorm.(func(op string, model any, f func(x, weight, bias, runningMean, runningVar *tensor.Tensor, momentum, eps float64) *tensor.Tensor) (int, error))
	return set(op, model, func(x, weight, bias, runningMean, runningVar *tensor.Tensor, momentum, eps float64) *tensor.Tensor {
		if err := g.unjoined("BatchNorm"); err != nil {
			return tensor.Failed(err)
		}
		f := &syncNorm{g: g, runningMean: runningMean, runningVar: runningVar, momentum: momentum, eps: eps}
		inputs := []*tensor.Tensor{x}
		for i, t := range []*tensor.Tensor{weight, bias} {
			if f.has[i] = t != nil; f.has[i] {
				inputs = append(inputs, t)
			}
		}
		return apply(f, inputs...)
	})
}

// syncNorm normalizes x, given with its weight and bias if it has them, over the ranks of a group.
type syncNorm struct {
	g                       *Group
	runningMean, runningVar *tensor.Tensor
	momentum, eps           float64
	has                     [2]bool // a weight, a bias
	biasType                tensor.DType
}

// sum adds up t over the ranks, in place.
func (f *syncNorm) sum(t *tensor.Tensor) error { return f.g.AllReduce(context.Background(), t, Sum) }

// layout returns the dimensions over which a channel's statistics are taken, and the shape of one value a channel.
func layout(x *tensor.Tensor) (dims, channel []int) {
	for d, n := range x.Shape() {
		if d == 1 {
			channel = append(channel, n)
		} else {
			dims, channel = append(dims, d), append(channel, 1)
		}
	}
	return dims, channel
}

func (f *syncNorm) Forward(ctx *autograd.Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	x := inputs[0]
	dims, channel := layout(x)
	wide := x
	if x.DType() != tensor.Float64 {
		wide = x.To(tensor.Float32) // sums in half precision would lose the statistics
	}
	c := channel[1]
	sums := tensor.Cat([]*tensor.Tensor{wide.Sum(tensor.Dim(dims...)), wide.NewFull([]int{1}, float64(x.Numel()/max(1, c)))})
	if err := f.sum(sums); err != nil {
		return nil, err
	}
	count := sums.Select(0, c)
	n, err := count.Item()
	if err != nil {
		return nil, err
	}
	if n < 2 {
		return nil, refuse.Error("BatchNorm", tensor.ErrArgument, "each channel needs more than 1 element on all ranks together, got shape %v", x.Shape())
	}
	mean := sums.Narrow(0, 0, c).Div(count)
	centered := wide.Sub(mean.View(channel...))
	variance := centered.Square().Sum(tensor.Dim(dims...))
	if err := f.sum(variance); err != nil {
		return nil, err
	}
	variance = variance.Div(count)
	for _, r := range []struct{ running, batch *tensor.Tensor }{{f.runningMean, mean}, {f.runningVar, variance.Mul(n / (n - 1))}} {
		if r.running != nil {
			if err := r.running.Lerp_(r.batch.To(r.running.DType()), f.momentum).Err(); err != nil {
				return nil, err
			}
		}
	}
	scale := variance.Add(f.eps).RSqrt()
	saved := []*tensor.Tensor{x, mean, scale, count}
	y := centered.Mul(scale.View(channel...))
	if f.has[0] {
		saved = append(saved, inputs[1])
		y = y.Mul(inputs[1].View(channel...))
	}
	if f.has[1] {
		bias := inputs[len(inputs)-1]
		f.biasType = bias.DType()
		y = y.Add(bias.View(channel...))
	}
	ctx.SaveForBackward(saved...)
	return []*tensor.Tensor{y.To(x.DType())}, nil
}

func (f *syncNorm) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	if tensor.GradEnabled() {
		return nil, refuse.Error("BatchNorm", tensor.ErrNotImplemented, "a normalization over the batches of all ranks cannot be differentiated twice")
	}
	saved := ctx.Saved()
	x, mean, scale, count, g := saved[0], saved[1], saved[2], saved[3], grads[0]
	dims, channel := layout(x)
	wide, wideGrad := x.To(mean.DType()), g.To(mean.DType())
	normal := wide.Sub(mean.View(channel...)).Mul(scale.View(channel...))
	own := tensor.Stack([]*tensor.Tensor{wideGrad.Sum(tensor.Dim(dims...)), wideGrad.Mul(normal).Sum(tensor.Dim(dims...))})
	all := own.Clone()
	if err := f.sum(all); err != nil {
		return nil, err
	}
	all = all.Div(count)
	gx := wideGrad.Sub(all.Select(0, 0).View(channel...)).Sub(normal.Mul(all.Select(0, 1).View(channel...))).Mul(scale.View(channel...))
	var rest []*tensor.Tensor // the averages over the ranks are DDP's
	if f.has[0] {
		weight := saved[4]
		gx = gx.Mul(weight.View(channel...))
		rest = append(rest, own.Select(0, 1).To(weight.DType()))
	}
	if f.has[1] {
		rest = append(rest, own.Select(0, 0).To(f.biasType))
	}
	return append([]*tensor.Tensor{gx.To(x.DType())}, rest...), nil
}

package nn

import (
	"reflect"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// AveragedModel is a copy of a model whose parameters are averages of the model's over training: the plain average
// (stochastic weight averaging, Izmailov et al. 2018), or a moving one (EMA). Module has the averages, in the state dict
// under "module.". PyTorch: torch.optim.swa_utils.AveragedModel.
//
//	ema := nn.NewAveragedModel(model, nn.MultiAvgFn(nn.EMAMultiAvgFn(0.999)))
//	for … {
//		…
//		if err := opt.Step(); err != nil {
//			return err
//		}
//		if err := ema.UpdateParameters(model); err != nil {
//			return err
//		}
//	}
//	predictions := ema.Module.Forward(x)
type AveragedModel[M any] struct {
	NAveraged *tensor.Tensor `nn:",buffer"` // int64 scalar: the number of updates
	Module    M

	average AvgFn
	buffers bool
	err     error
}

// AvgFn changes averaged, in place, to the average after the n models before it (n of at least 1) and current are
// averaged. It runs in a scope, without recording. The lists have the same lengths, and floating-point tensors or others.
type AvgFn func(averaged, current []*tensor.Tensor, n int) error

// MultiAvgFn sets the function that averages (multi_avg_fn=). The default is the plain average: on CUDA that of
// SWAMultiAvgFn, elsewhere average + (model - average) / (n + 1), which may differ in the last bit.
func MultiAvgFn(f AvgFn) Option {
	return Option{"MultiAvgFn", func(s *settings) { s.average, s.hasAverage = f, true }}
}

// UseBuffers makes an AveragedModel average the buffers, too (use_buffers=True). By default they are copied.
func UseBuffers(on ...bool) Option {
	return Option{"UseBuffers", func(s *settings) { s.buffers = options.On(on) }}
}

// SWAMultiAvgFn returns the function that computes the plain average of all models: it moves the average by 1/(n+1) of
// the way to the model, computed in float64, where PyTorch's AveragedModel rounds it to float32. PyTorch:
// torch.optim.swa_utils.get_swa_multi_avg_fn.
func SWAMultiAvgFn() AvgFn {
	return func(averaged, current []*tensor.Tensor, n int) error {
		if !floats(averaged) {
			return plainAverage(averaged, current, n)
		}
		_, err := tensor.CallUnchecked("aten::_foreach_lerp_.Scalar", averaged, current, 1/float64(n+1))
		return err
	}
}

// plainAverage is the plain average of PyTorch's get_swa_avg_fn.
func plainAverage(averaged, current []*tensor.Tensor, n int) error {
	if !floats(averaged) {
		return each(averaged, current, func(a, c *tensor.Tensor) *tensor.Tensor { return a.Add(c.Sub(a).Div(n + 1)) })
	}
	change, err := foreach("aten::_foreach_sub.List", current, averaged)
	if err != nil {
		return err
	}
	if _, err := tensor.CallUnchecked("aten::_foreach_div_.Scalar", change, float64(n+1)); err != nil {
		return err
	}
	_, err = tensor.CallUnchecked("aten::_foreach_add_.List", averaged, change)
	return err
}

// defaultAverage is the average without MultiAvgFn, which PyTorch chooses by device.
func defaultAverage(averaged, current []*tensor.Tensor, n int) error {
	if averaged[0].Device().Type == tensor.CUDAType {
		return SWAMultiAvgFn()(averaged, current, n)
	}
	return plainAverage(averaged, current, n)
}

// EMAMultiAvgFn returns the function that computes an exponential moving average: decay times the average plus 1-decay
// times the model. decay is in [0, 1]; 0.999 is usual. PyTorch: torch.optim.swa_utils.get_ema_multi_avg_fn.
func EMAMultiAvgFn(decay float64) AvgFn {
	return func(averaged, current []*tensor.Tensor, _ int) error {
		if !(decay >= 0 && decay <= 1) {
			return refuse.Error("EMAMultiAvgFn", tensor.ErrArgument, "decay must be in [0, 1], got %v", decay)
		}
		if !floats(averaged) {
			return each(averaged, current, func(a, c *tensor.Tensor) *tensor.Tensor { return a.Mul(decay).Add(c.Mul(1 - decay)) })
		}
		_, err := tensor.CallUnchecked("aten::_foreach_lerp_.Scalar", averaged, current, 1-decay)
		return err
	}
}

// floats reports whether the tensors are floating-point or complex.
func floats(ts []*tensor.Tensor) bool {
	return len(ts) == 0 || ts[0].DType().IsFloat() || ts[0].DType().IsComplex()
}

func each(averaged, current []*tensor.Tensor, f func(a, c *tensor.Tensor) *tensor.Tensor) error {
	for i, a := range averaged {
		if err := a.Copy_(f(a, current[i])).Err(); err != nil {
			return err
		}
	}
	return nil
}

// NewAveragedModel returns an AveragedModel of a Clone of model. The first UpdateParameters copies the model's values.
// Options: MultiAvgFn, UseBuffers, Device (of the copy). PyTorch: torch.optim.swa_utils.AveragedModel.
func NewAveragedModel[M any](model M, opts ...Option) *AveragedModel[M] {
	const op = "NewAveragedModel"
	given := slices.ContainsFunc(opts, func(o Option) bool { return o.name == "Device" })
	b := build(op, opts, "MultiAvgFn", "UseBuffers", "Device")
	a := &AveragedModel[M]{average: b.average, buffers: b.buffers}
	if a.average == nil {
		if b.hasAverage {
			b.fail("MultiAvgFn is nil")
		}
		a.average = defaultAverage
	}
	b.note(Check(model))
	if b.err == nil {
		a.Module = Clone(model)
		b.note(Check(a.Module))
	}
	if b.err == nil && given {
		b.note(To(a.Module, b.device))
	}
	a.NAveraged = b.tensor([]int{}, tensor.Int64, func(t *tensor.Tensor) *tensor.Tensor { return t.Zero_() })
	if err := b.done(); err != nil {
		Release(a.Module)
		return &AveragedModel[M]{err: err}
	}
	return a
}

// Err returns the error of the constructor that made a, or nil.
func (a *AveragedModel[M]) Err() error {
	if a == nil {
		return nilModule("AveragedModel")
	}
	return a.err
}

// UpdateParameters adds the parameters of model, which must be of the form that a was made of, to the averages. Buffers
// are copied, or averaged too with UseBuffers. PyTorch: AveragedModel.update_parameters.
func (a *AveragedModel[M]) UpdateParameters(model M) error {
	const op = "UpdateParameters"
	if err := a.Err(); err != nil {
		return err
	}
	if a.average == nil {
		return refuse.Error(op, tensor.ErrArgument, "the AveragedModel was not made by NewAveragedModel")
	}
	if err := Check(model); err != nil {
		return err
	}
	averages, params := collect(a.Module, false), collect(model, false)
	copies, buffers := collect(a.Module, true), collect(model, true)
	for _, lists := range [][2][]Named{{averages, params}, {copies, buffers}} {
		if len(lists[0]) != len(lists[1]) {
			return refuse.Error(op, tensor.ErrArgument, "the model has %d parameters and %d buffers, the average %d and %d", len(params), len(buffers), len(averages), len(copies))
		}
		for i, n := range lists[0] {
			if have, want := lists[1][i].Tensor.Shape(), n.Tensor.Shape(); !slices.Equal(have, want) {
				return refuse.Error(op, tensor.ErrArgument, "%s has shape %v, the average %v", n.Name, have, want)
			}
		}
	}
	if a.buffers {
		averages, params = append(averages, copies...), append(params, buffers...)
		copies, buffers = nil, nil
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			n, err := a.NAveraged.Item()
			if err != nil {
				return err
			}
			if n == 0 {
				copies, buffers = append(copies, averages...), append(buffers, params...)
			} else if err := a.update(averages, params, int(n)); err != nil {
				return err
			}
			for i, c := range copies {
				if err := c.Tensor.Copy_(buffers[i].Tensor).Err(); err != nil {
					return err
				}
			}
			return a.NAveraged.Add_(1).Err()
		})
	})
}

// update averages the tensors of each dtype and device together.
func (a *AveragedModel[M]) update(averages, params []Named, n int) error {
	type kind struct {
		dtype  tensor.DType
		device tensor.Device
	}
	var kinds []kind
	lists := map[kind][2][]*tensor.Tensor{}
	for i, p := range averages {
		k := kind{p.Tensor.DType(), p.Tensor.Device()}
		if _, known := lists[k]; !known {
			kinds = append(kinds, k)
		}
		l := lists[k]
		lists[k] = [2][]*tensor.Tensor{append(l[0], p.Tensor.Detach()), append(l[1], params[i].Tensor.Detach().To(k.dtype, k.device))}
	}
	for _, k := range kinds {
		if err := a.average(lists[k][0], lists[k][1], n); err != nil {
			return err
		}
	}
	return nil
}

// UpdateBN sets the running statistics of m's BatchNorm layers to plain averages over the batches on which f runs m, for
// the averaged weights of an AveragedModel. Meanwhile m is in training mode and gradients are not recorded, and only f may
// use m. If m has no BatchNorm, f is not called. PyTorch: torch.optim.swa_utils.update_bn.
//
//	err := nn.UpdateBN(averaged.Module, func() error {
//		for batch, err := range loader.Batches(ctx) {
//			if err != nil {
//				return err
//			}
//			if err := averaged.Module.Forward(batch.Inputs).Err(); err != nil {
//				return err
//			}
//		}
//		return nil
//	})
func UpdateBN(m any, f func() error) error {
	if f == nil {
		return refuse.Nil("UpdateBN", "a function")
	}
	if err := Check(m); err != nil {
		return err
	}
	norms := batchNorms(m)
	if len(norms) == 0 {
		return nil
	}
	type mode interface {
		Training() bool
		SetTraining(on bool)
	}
	evaluating := []mode{}
	w := walker{once: true, module: func(m any) { // those of Train
		if l, ok := m.(mode); ok && !l.Training() {
			evaluating = append(evaluating, l)
		}
	}}
	w.walk(reflect.ValueOf(m), "")
	return autograd.NoGrad(func() error {
		for _, b := range norms {
			if b.RunningMean == nil || b.RunningVar == nil || b.NumBatchesTracked == nil {
				continue
			}
			for t, v := range map[*tensor.Tensor]float64{b.RunningMean: 0, b.RunningVar: 1, b.NumBatchesTracked: 0} {
				if err := t.Fill_(v).Err(); err != nil {
					return err
				}
			}
			if !b.cumulative {
				b.cumulative = true
				defer func() { b.cumulative = false }()
			}
		}
		defer func() {
			for _, l := range evaluating {
				l.SetTraining(false)
			}
		}()
		Train(m)
		return f()
	})
}

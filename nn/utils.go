package nn

import (
	"errors"
	"math"
	"reflect"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/tensor"
)

// GetTotalNorm returns the norm of ts as if they were one vector, as a scalar tensor on the device of the first; 0 for no
// tensors. Gradients are not recorded. For gradients of parameters that package dist divides, it sees only this
// process's parts; see ClipGradNorm_. Options: NormType (2 by default; math.Inf(1) is the largest magnitude),
// ErrorIfNonfinite. PyTorch: torch.nn.utils.get_total_norm.
func GetTotalNorm(ts []*tensor.Tensor, opts ...Option) *tensor.Tensor {
	const op = "GetTotalNorm"
	b := build(op, opts, "NormType", "ErrorIfNonfinite")
	if b.err != nil {
		return tensor.Failed(b.err)
	}
	for _, t := range ts {
		if bad := unusable(op, t); bad != nil {
			return bad
		}
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		var total *tensor.Tensor
		err := autograd.NoGrad(func() (err error) {
			total, err = totalNorm(op, ts, b)
			return err
		})
		if err != nil {
			return tensor.Failed(err)
		}
		return total
	})
}

func totalNorm(op string, ts []*tensor.Tensor, b *builder) (*tensor.Tensor, error) {
	if math.IsNaN(b.normType) {
		return nil, refuse.Error(op, tensor.ErrArgument, "NormType must be a number, got NaN")
	}
	total, err := norm(ts, b.normType)
	if err != nil {
		return nil, err
	}
	return total, checkNorm(op, total, b)
}

// norm returns the norm of ts as if they were one vector, on the device of the first.
func norm(ts []*tensor.Tensor, order float64) (*tensor.Tensor, error) {
	if len(ts) == 0 {
		zero := tensor.ScalarTensor(0.0)
		return zero, zero.Err()
	}
	norms, err := foreach("aten::_foreach_norm.Scalar", ts, order)
	if err != nil {
		return nil, err
	}
	first := ts[0].Device()
	for i, n := range norms {
		if n.Device() != first {
			norms[i] = n.To(first)
		}
	}
	total := tensor.Stack(norms).LinalgVectorNorm(tensor.Ord(order))
	return total, total.Err()
}

// checkNorm returns an error if total must be finite and is not.
func checkNorm(op string, total *tensor.Tensor, b *builder) error {
	if !b.errorIfNonfinite {
		return nil
	}
	v, err := total.Item()
	if err == nil && (math.IsNaN(v) || math.IsInf(v, 0)) {
		err = refuse.Error(op, tensor.ErrArgument, "the total norm of order %v is %v", b.normType, v)
	}
	return err
}

// gradNorm returns the norm of grads, the gradients of params. If package dist divides params, it is the norm of all parts,
// on all processes that have one; all of them must call it.
func gradNorm(op string, params, grads []*tensor.Tensor, b *builder) (*tensor.Tensor, error) {
	if sharding.GroupsOf(params) == nil {
		return totalNorm(op, grads, b)
	}
	order, largest := b.normType, math.IsInf(b.normType, 1)
	if !(order > 0) {
		return nil, refuse.Error(op, tensor.ErrArgument, "NormType must be above 0 for parameters that are divided among processes, got %v", order)
	}
	dtype := tensor.Float32
	var norms []*tensor.Tensor
	for _, part := range sharding.Split(params) {
		own, err := gradients(part.Params)
		if err != nil {
			return nil, err
		}
		if largest {
			for i, g := range own {
				if g.Numel() == 0 {
					own[i] = g.Sum() // 0, which changes no maximum: an empty tensor has none
				}
			}
		}
		n, err := norm(own, order)
		if err != nil {
			return nil, err
		}
		if len(own) != 0 && len(norms) == 0 {
			dtype = n.DType()
		}
		if n = n.To(part.Params[0].Device(), tensor.Float64); largest {
			n = tensor.Stack([]*tensor.Tensor{n, n.IsNaN().To(tensor.Float64)}) // a maximum by gloo may lose a NaN
		} else {
			n = n.Pow(order)
		}
		for _, g := range part.Groups {
			if err := g.AllReduce(n, largest); err != nil {
				return nil, err
			}
		}
		if largest {
			n = n.Select(0, 0).MaskedFill(n.Select(0, 1).Ne(0), math.NaN())
		}
		norms = append(norms, n.To(params[0].Device()))
	}
	total := tensor.Stack(norms)
	if largest {
		total = total.Max()
	} else {
		total = total.Sum().Pow(1 / order)
	}
	total = total.To(dtype)
	return total, errors.Join(total.Err(), checkNorm(op, total, b))
}

// ClipGradsWithNorm_ scales the gradients of params in place by maxNorm/norm, where norm is that of all gradients as
// GetTotalNorm computes it, unless they are small enough already. Parameters without a gradient are ignored. PyTorch:
// torch.nn.utils.clip_grads_with_norm_.
func ClipGradsWithNorm_(params []*tensor.Tensor, maxNorm float64, norm *tensor.Tensor) error {
	const op = "ClipGradsWithNorm_"
	if !(maxNorm >= 0) {
		return refuse.Error(op, tensor.ErrArgument, "maxNorm must be a number of at least 0, got %v", maxNorm)
	}
	if err := refuse.Unusable(op, "norm", norm); err != nil {
		return err
	}
	if norm.Numel() != 1 {
		return refuse.Error(op, tensor.ErrArgument, "norm must have one element, got shape %v", norm.Shape())
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			grads, err := gradients(params)
			if err != nil {
				return err
			}
			return clip(grads, maxNorm, norm)
		})
	})
}

// clip scales grads so that their norm is at most maxNorm.
func clip(grads []*tensor.Tensor, maxNorm float64, norm *tensor.Tensor) error {
	if len(grads) == 0 {
		return nil
	}
	factor := norm.Detach().Reshape().Add(1e-6).Reciprocal().Mul(maxNorm).ClampMax(1.0)
	if err := factor.Err(); err != nil {
		return err
	}
	for len(grads) > 0 {
		// The operator takes tensors of one device.
		device := grads[0].Device()
		n := slices.IndexFunc(grads, func(g *tensor.Tensor) bool { return g.Device() != device })
		if n < 0 {
			n = len(grads)
		}
		if _, err := tensor.CallUnchecked("aten::_foreach_mul_.Tensor", grads[:n], factor.To(device)); err != nil {
			return err
		}
		grads = grads[n:]
	}
	return nil
}

// ClipGradNorm_ scales the gradients of params in place so that their joint norm is at most maxNorm. It returns the
// norm before scaling, as a scalar tensor. Parameters without a gradient are ignored. For parameters that package dist
// divides among processes, all parts count, as in PyTorch: all processes that have one must call it. Options: NormType
// (2 by default; math.Inf(1) is the largest magnitude), ErrorIfNonfinite. PyTorch: torch.nn.utils.clip_grad_norm_.
func ClipGradNorm_(params []*tensor.Tensor, maxNorm float64, opts ...Option) *tensor.Tensor {
	const op = "ClipGradNorm_"
	b := build(op, opts, "NormType", "ErrorIfNonfinite")
	if !(maxNorm >= 0) {
		b.fail("maxNorm must be a number of at least 0, got %v", maxNorm)
	}
	if b.err != nil {
		return tensor.Failed(b.err)
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		var total *tensor.Tensor
		err := autograd.NoGrad(func() error {
			grads, err := gradients(params)
			if err != nil {
				return err
			}
			if total, err = gradNorm(op, params, grads, b); err != nil {
				return err
			}
			return clip(grads, maxNorm, total)
		})
		if err != nil {
			return tensor.Failed(err)
		}
		return total
	})
}

// ClipGradValue_ clamps each element of the gradients of params in place to [-value, value]. Parameters without a
// gradient are ignored. PyTorch: torch.nn.utils.clip_grad_value_.
func ClipGradValue_(params []*tensor.Tensor, value float64) error {
	if !(value >= 0) || math.IsInf(value, 0) {
		return refuse.Error("ClipGradValue_", tensor.ErrArgument, "value must be finite and at least 0, got %v", value)
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			grads, err := gradients(params)
			if err != nil || len(grads) == 0 {
				return err
			}
			if _, err := tensor.CallUnchecked("aten::_foreach_clamp_min_.Scalar", grads, -value); err != nil {
				return err
			}
			_, err = tensor.CallUnchecked("aten::_foreach_clamp_max_.Scalar", grads, value)
			return err
		})
	})
}

// gradients returns the gradients that are not nil.
func gradients(params []*tensor.Tensor) ([]*tensor.Tensor, error) {
	all, err := tensor.Grads(params)
	if err != nil {
		return nil, err
	}
	grads := all[:0]
	for _, g := range all {
		if g != nil {
			grads = append(grads, g)
		}
	}
	return grads, nil
}

func foreach(name string, ts []*tensor.Tensor, args ...any) ([]*tensor.Tensor, error) {
	out, err := tensor.CallUnchecked(name, append([]any{ts}, args...)...)
	if err != nil {
		return nil, err
	}
	if len(out) == 1 {
		if list, ok := out[0].([]*tensor.Tensor); ok {
			return list, nil
		}
	}
	return nil, refuse.Error(name, tensor.ErrArgument, "the operator did not return a list")
}

// ParametersToVector returns the elements of params one after the other, a vector. Gradients flow back to params. PyTorch:
// torch.nn.utils.parameters_to_vector.
func ParametersToVector(params []*tensor.Tensor) *tensor.Tensor {
	const op = "ParametersToVector"
	if len(params) == 0 {
		return refuse.Tensor(op, tensor.ErrArgument, "no parameters")
	}
	if bad := firstUnusable(op, params...); bad != nil {
		return bad
	}
	return tidy(func(*tensor.Scope) *tensor.Tensor {
		flat := make([]*tensor.Tensor, len(params))
		for i, p := range params {
			flat[i] = p.Reshape(-1)
		}
		return tensor.Cat(flat)
	})
}

// VectorToParameters copies the elements of a vector to params, in the order of ParametersToVector. The vector must have as
// many elements as params have together. PyTorch: torch.nn.utils.vector_to_parameters, which makes params views of the
// vector.
func VectorToParameters(vector *tensor.Tensor, params []*tensor.Tensor) error {
	const op = "VectorToParameters"
	if err := refuse.Unusable(op, "vector", vector); err != nil {
		return err
	}
	total := 0
	for _, p := range params {
		if err := refuse.Unusable(op, "a parameter", p); err != nil {
			return err
		}
		total += p.Numel()
	}
	if vector.Dim() != 1 || vector.Numel() != total {
		return refuse.Error(op, tensor.ErrArgument, "the vector must have shape [%d], got %v", total, vector.Shape())
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			at := 0
			for _, p := range params {
				n := p.Numel()
				if err := p.Copy_(vector.Narrow(0, at, n).ViewAs(p)).Err(); err != nil {
					return err
				}
				at += n
			}
			return nil
		})
	})
}

// FuseConvBNWeights returns the weight and bias of a convolution that does the work of another one with convWeight and
// convBias and a batch norm in evaluation with the given mean, variance, eps, weight and bias behind it. convBias, bnWeight
// and bnBias may be nil. With transpose, convWeight is that of a transposed convolution. The results are parameters.
// PyTorch: torch.nn.utils.fuse_conv_bn_weights.
func FuseConvBNWeights(convWeight, convBias, mean, variance *tensor.Tensor, eps float64, bnWeight, bnBias *tensor.Tensor, transpose bool) (weight, bias *tensor.Tensor) {
	return fuseWeights("FuseConvBNWeights", convWeight, convBias, mean, variance, eps, bnWeight, bnBias, transpose, false)
}

// fuseWeights computes with PyTorch's formulas for a convolution, or for a Linear, which round differently.
func fuseWeights(op string, w, b, mean, variance *tensor.Tensor, eps float64, bnWeight, bnBias *tensor.Tensor, transpose, linear bool) (weight, bias *tensor.Tensor) {
	for _, t := range append([]*tensor.Tensor{w, mean, variance}, tensorsOf(b, bnWeight, bnBias)...) {
		if err := refuse.Unusable(op, "", t); err != nil {
			return broken(err)
		}
	}
	out := 0
	if transpose {
		out = 1
	}
	if w.Dim() < 2 || mean.Dim() != 1 || mean.Numel() != 1 && mean.Numel() != w.Size(out) {
		return broken(refuse.Error(op, tensor.ErrArgument, "a weight %v does not fit the mean of a batch norm %v", w.Shape(), mean.Shape()))
	}
	trained, offset := w.RequiresGrad(), b != nil && b.RequiresGrad()
	err := tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			biasType, b := w.DType(), b
			if b == nil {
				b = mean.ZerosLike()
			} else {
				biasType = b.DType()
			}
			shape := make([]int, w.Dim())
			for i := range shape {
				shape[i] = 1
			}
			shape[out] = -1
			scale, shift := variance.Add(eps).RSqrt(), b.Sub(mean)
			if linear {
				if bnWeight != nil {
					scale = bnWeight.Mul(scale)
				}
				shift = shift.Mul(scale)
				scale = scale.To(w.DType())
			} else {
				shift = shift.Mul(scale)
				if bnWeight != nil {
					scale, shift = bnWeight.Mul(scale), shift.Mul(bnWeight)
				}
			}
			if bnBias != nil {
				shift = shift.Add(bnBias)
			}
			weight, bias = NewParameter(w.Mul(scale.Reshape(shape...)).To(w.DType())), NewParameter(shift.To(biasType))
			if err := weight.RequiresGrad_(trained).Err(); err != nil {
				return err
			}
			return bias.RequiresGrad_(offset).Err()
		})
	})
	if err != nil {
		for _, t := range tensorsOf(weight, bias) {
			t.Release()
		}
		return broken(err)
	}
	return weight, bias
}

// FuseLinearBNWeights is FuseConvBNWeights for a Linear; the batch norm has as many features as the Linear has outputs, or
// one. PyTorch: torch.nn.utils.fuse_linear_bn_weights.
func FuseLinearBNWeights(linearWeight, linearBias, mean, variance *tensor.Tensor, eps float64, bnWeight, bnBias *tensor.Tensor) (weight, bias *tensor.Tensor) {
	return fuseWeights("FuseLinearBNWeights", linearWeight, linearBias, mean, variance, eps, bnWeight, bnBias, false, true)
}

// statistics returns the batch norm in bn, which must be in evaluation mode and have running statistics.
func statistics(op string, bn Layer) (*batchNorm, error) {
	var b *batchNorm
	switch bn := bn.(type) {
	case *BatchNorm1d:
		b = (*batchNorm)(bn)
	case *BatchNorm2d:
		b = (*batchNorm)(bn)
	case *BatchNorm3d:
		b = (*batchNorm)(bn)
	default:
		return nil, refuse.Error(op, tensor.ErrArgument, "a BatchNorm1d, 2d or 3d is needed, got a %T", bn)
	}
	if err := b.failure(op); err != nil {
		return nil, err
	}
	if b.Training() {
		return nil, refuse.Error(op, tensor.ErrArgument, "the %T must be in evaluation mode: call nn.Eval", bn)
	}
	if b.RunningMean == nil || b.RunningVar == nil {
		return nil, refuse.Error(op, tensor.ErrArgument, "the %T has no running statistics", bn)
	}
	return b, nil
}

// FuseConvBNEval returns a copy of conv, a convolution or a transposed one, that does its work and that of bn, a BatchNorm1d,
// 2d or 3d in evaluation mode, behind it. PyTorch: torch.nn.utils.fuse_conv_bn_eval.
func FuseConvBNEval[C Layer](conv C, bn Layer) (C, error) {
	const op = "FuseConvBNEval"
	switch any(conv).(type) {
	case *Conv1d, *Conv2d, *Conv3d:
		return fuse(op, conv, bn, false, false)
	case *ConvTranspose1d, *ConvTranspose2d, *ConvTranspose3d:
		return fuse(op, conv, bn, true, false)
	}
	var none C
	return none, refuse.Error(op, tensor.ErrArgument, "a convolution is needed, got a %T", conv)
}

// FuseLinearBNEval returns a copy of linear that does its work and that of bn, a BatchNorm1d, 2d or 3d in evaluation mode,
// behind it. PyTorch: torch.nn.utils.fuse_linear_bn_eval.
func FuseLinearBNEval(linear *Linear, bn Layer) (*Linear, error) {
	return fuse("FuseLinearBNEval", linear, bn, false, true)
}

func fuse[C Layer](op string, layer C, bn Layer, transpose, linear bool) (fused C, err error) {
	b, err := statistics(op, bn)
	if err != nil {
		return fused, err
	}
	w, _, err := parametrizable(op, layer, "weight")
	if err != nil {
		return fused, err
	}
	v := reflect.ValueOf(layer).Elem()
	_, bias, _, _ := find(v, "bias")
	weight, bias := fuseWeights(op, w, bias, b.RunningMean, b.RunningVar, b.Eps, b.Weight, b.Bias, transpose, linear)
	if err := weight.Err(); err != nil {
		return fused, err
	}
	out := reflect.New(v.Type())
	out.Elem().Set(v)
	at, _, _, _ := find(out.Elem(), "weight")
	at.put(out.Elem(), weight)
	at, _, _, _ = find(out.Elem(), "bias")
	at.put(out.Elem(), bias)
	return out.Interface().(C), nil
}

// undivided returns an error if t is this rank's rows of a parameter that dist.Shard has divided.
func undivided(op, name string, t *tensor.Tensor) error {
	if !sharding.Held(t) {
		return nil
	}
	if name == "" {
		name = "a parameter"
	}
	return refuse.Error(op, tensor.ErrArgument, "%s is this rank's rows of a parameter that dist.Shard has divided: call %s before Shard", name, op)
}

// ToEmpty replaces the parameters and buffers of m by uninitialized ones on a device, for example of a model that was made on
// the meta device. Buffers that this package computes are computed again. Gradients are dropped. The tensors that m had
// before, and optimizers made from them, no longer belong to m. A module that dist.Shard has divided is an error.
// PyTorch: Module.to_empty.
func ToEmpty(m any, device tensor.Device) error {
	const op = "ToEmpty"
	if err := Check(m); err != nil {
		return err
	}
	known := map[*tensor.Tensor]*tensor.Tensor{}
	var old, made []*tensor.Tensor
	err := autograd.NoGrad(func() error {
		for _, n := range tensors(m) {
			if known[n.Tensor] != nil {
				continue
			}
			if err := undivided(op, n.Name, n.Tensor); err != nil {
				return err
			}
			t := n.Tensor.EmptyLike(device)
			if err := t.Err(); err != nil {
				return err
			}
			known[n.Tensor] = t.Keep()
			old, made = append(old, n.Tensor), append(made, t)
			if err := t.RequiresGrad_(n.Tensor.RequiresGrad()).Err(); err != nil {
				return err
			}
		}
		return nil
	})
	var set []func()
	if err == nil && !exchange(reflect.ValueOf(m), known, map[unsafePointer]bool{}, &set) {
		err = refuse.Error(op, tensor.ErrArgument, "a %T holds tensors in a struct that cannot be set: pass a pointer", m)
	}
	if err == nil {
		for _, f := range set {
			f()
		}
		track(m)
	} else {
		old = made
	}
	for _, t := range old {
		t.Release()
	}
	if err == nil && device != tensor.Meta {
		err = computeBuffers(m, device, false)
	}
	if err == nil {
		err = flattenWeights(m)
	}
	return err
}

// SkipInit calls make with an option that makes a constructor of this package allocate and initialize nothing, and gives the
// module that make returns uninitialized parameters on device:
//
//	l, err := nn.SkipInit(func(o nn.Option) *nn.Linear { return nn.NewLinear(4096, 4096, o) }, tensor.CPU)
//
// It saves the time of an initialization whose values are loaded over. If a tensor cannot be made, the module's parameters
// stay on the meta device, and the first use fails. PyTorch: torch.nn.utils.skip_init.
func SkipInit[M any](make func(skip Option) M, device tensor.Device) (M, error) {
	var m M
	if make == nil {
		return m, refuse.Nil("SkipInit", "a function")
	}
	m = make(Device(tensor.Meta))
	return m, ToEmpty(m, device)
}

// exchange appends to set the functions that put other tensors in the place of those in known, and reports whether each
// place can be set.
func exchange(v reflect.Value, known map[*tensor.Tensor]*tensor.Tensor, open map[unsafePointer]bool, set *[]func()) bool {
	put := func(t *tensor.Tensor) { *set = append(*set, func() { v.Set(reflect.ValueOf(t)) }) }
	for v.Kind() == reflect.Interface {
		if v.IsNil() {
			return true
		}
		if t, ok := v.Interface().(*tensor.Tensor); ok && v.CanSet() && known[t] != nil {
			put(known[t])
			return true
		}
		v = v.Elem()
	}
	if !v.IsValid() || !factsOf(v.Type()).walked {
		return true
	}
	done := true
	switch v.Kind() {
	case reflect.Pointer:
		key := unsafePointer{v.Pointer(), v.Type()}
		switch {
		case v.IsNil() || open[key]:
		case v.Type() == tensorType:
			if !v.CanInterface() || known[v.Interface().(*tensor.Tensor)] == nil {
				return true
			}
			if !v.CanSet() {
				return false
			}
			put(known[v.Interface().(*tensor.Tensor)])
		default:
			open[key] = true
			return exchange(v.Elem(), known, open, set)
		}
	case reflect.Struct:
		plan := planOf(v.Type())
		for i := range plan.walked {
			done = exchange(v.Field(plan.walked[i].index), known, open, set) && done
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			part := v.Index(i)
			if dict(v.Type()) {
				part = part.Field(1)
			}
			done = exchange(part, known, open, set) && done
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			key, part := it.Key(), reflect.New(v.Type().Elem()).Elem()
			part.Set(it.Value())
			done = exchange(part, known, open, set) && done
			*set = append(*set, func() { v.SetMapIndex(key, part) })
		}
	}
	return done
}

// ConvertConv2dWeightMemoryFormat lays the weights of all Conv2d and ConvTranspose2d in m out with the channels last, or in the
// usual order. The tensors stay the same. PyTorch: torch.nn.utils.convert_conv2d_weight_memory_format.
func ConvertConv2dWeightMemoryFormat(m any, channelsLast bool) error {
	return layOut(m, channelsLast, 2, func(m any) *tensor.Tensor {
		switch m := m.(type) {
		case *Conv2d:
			return m.Weight
		case *ConvTranspose2d:
			return m.Weight
		}
		return nil
	})
}

// ConvertConv3dWeightMemoryFormat is ConvertConv2dWeightMemoryFormat for Conv3d and ConvTranspose3d. PyTorch:
// torch.nn.utils.convert_conv3d_weight_memory_format.
func ConvertConv3dWeightMemoryFormat(m any, channelsLast bool) error {
	return layOut(m, channelsLast, 3, func(m any) *tensor.Tensor {
		switch m := m.(type) {
		case *Conv3d:
			return m.Weight
		case *ConvTranspose3d:
			return m.Weight
		}
		return nil
	})
}

// layOut changes the strides of weights. c10::MemoryFormat numbers contiguous as 0, and channels last as 2 for images and 3
// for volumes.
func layOut(m any, channelsLast bool, format int, weight func(m any) *tensor.Tensor) error {
	if err := Check(m); err != nil {
		return err
	}
	if !channelsLast {
		format = 0
	}
	for _, n := range NamedModules(m) {
		w := weight(n.Module)
		if w == nil || w.Device() == tensor.Meta {
			continue
		}
		err := tensor.WithScope(func() error {
			return autograd.NoGrad(func() error {
				y := one("ConvertConvWeightMemoryFormat", "aten::clone", w.Detach(), format)
				if err := y.Err(); err != nil {
					return err
				}
				return setData(w, y)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// FunctionalCall returns a module like m that uses the tensors of state in place of m's under the same names; m's own stay for
// the names that state does not have. The tensors may be results of operators, so that gradients flow back through them:
//
//	f, err := nn.FunctionalCall(model, map[string]*tensor.Tensor{"head.weight": w.Mul(0.9)})
//	loss := nn.MSELoss(f.Forward(x), target)
//
// The result shares everything else with m by assignment, as Clone's does. A name that m does not have, or another shape, is
// an error. A tensor that m has under several names is replaced under all of them. PyTorch: torch.func.functional_call and
// torch.nn.utils.stateless.functional_call, which call the module too.
func FunctionalCall[M any](m M, state map[string]*tensor.Tensor) (M, error) {
	const op = "FunctionalCall"
	if err := Check(m); err != nil {
		return m, err
	}
	c := cloner{tensors: map[*tensor.Tensor]*tensor.Tensor{}, pointers: map[unsafePointer]reflect.Value{}, shared: true}
	used := map[string]bool{}
	for _, n := range tensors(m) {
		if err := undivided(op, n.Name, n.Tensor); err != nil {
			return m, err
		}
		t, ok := state[n.Name]
		if !ok {
			continue
		}
		used[n.Name] = true
		if err := refuse.Unusable(op, n.Name, t); err != nil {
			return m, err
		}
		if !slices.Equal(t.Shape(), n.Tensor.Shape()) {
			return m, refuse.Error(op, tensor.ErrArgument, "%s must have shape %v, got %v", n.Name, n.Tensor.Shape(), t.Shape())
		}
		if other := c.tensors[n.Tensor]; other != nil && other != t {
			return m, refuse.Error(op, tensor.ErrArgument, "%s is the same tensor under another name, for which state has a different one", n.Name)
		}
		c.tensors[n.Tensor] = t
	}
	for name := range state {
		if !used[name] {
			return m, refuse.Error(op, tensor.ErrArgument, "%T has no tensor %q", m, name)
		}
	}
	return copied(&c, m), nil
}

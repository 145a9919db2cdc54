package autograd

import (
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// Autocast returns f() computed in mixed precision: on devices of the given type, operators that are fast and accurate
// enough in dtype, such as MatMul and convolutions, cast their arguments to it, and operators that need the range or
// precision, such as losses and norms, cast them to float32. Parameters stay as they are, and so do the dtypes of their
// gradients. dtype is tensor.BFloat16, tensor.Float16, or tensor.Float32, which turns autocast off in f.
//
//	loss := autograd.Autocast(tensor.CUDAType, tensor.BFloat16, func() *tensor.Tensor {
//		return nn.CrossEntropy(model.Forward(x), targets)
//	})
//
// Call Backward outside: its operators use the dtypes of the forward pass. With Float16, an optim.GradScaler keeps small
// gradients from rounding to 0.
//
// Regions nest: the innermost one of a device type applies. A region applies to the goroutine that enters it, and not to
// goroutines that f starts. The goroutine is locked to its OS thread meanwhile. Checkpoint computes its function again,
// and a Function computes its gradients, in the regions of the forward pass.
//
// While gradients are recorded, each weight (a float32 leaf that requires gradients) is cast once in a region, and the
// casts are freed when the outermost region ends. A weight is cast again after NoGrad, Inference, a step of an optimizer
// or a cuda.Graph's Replay may have changed it in the region, and where an allocation would fail otherwise. A cast keeps
// the weight alive, so a region around many steps also keeps the steps' own leaves, such as inputs that require
// gradients. If regions of several goroutines cast to different dtypes at the same time, only the first ones reuse casts.
//
// PyTorch: torch.autocast.
func Autocast(device tensor.DeviceType, dtype tensor.DType, f func() *tensor.Tensor) *tensor.Tensor {
	if f == nil {
		return tensor.Failed(refuse.Nil("Autocast", "a function"))
	}
	var out *tensor.Tensor
	if err := withAutocast(device, dtype, func() error {
		out = f()
		return nil
	}); err != nil {
		return tensor.Failed(err)
	}
	return out
}

// WithAutocast is Autocast for a function without a tensor as its result, such as the evaluation of a model. It returns
// f's error.
func WithAutocast(device tensor.DeviceType, dtype tensor.DType, f func() error) error {
	if f == nil {
		return refuse.Nil("WithAutocast", "a function")
	}
	return withAutocast(device, dtype, f)
}

// AutocastDType returns the dtype to which operators of a device type cast on this goroutine: that of the innermost
// Autocast, or tensor.Float32 outside. PyTorch: torch.is_autocast_enabled, torch.get_autocast_dtype.
func AutocastDType(device tensor.DeviceType) tensor.DType { return autocastDType(device) }

// AutocastAvailable reports whether there is an Autocast for a device type. PyTorch: torch.amp.is_autocast_available.
func AutocastAvailable(device tensor.DeviceType) bool {
	return withAutocast(device, tensor.Float32, func() error { return nil }) == nil
}

package tensor

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

// withGrad runs f with the recording of gradients on or off on this goroutine, which is locked to its thread meanwhile.
// It implements autograd.NoGrad and autograd.EnableGrad.
func withGrad(on bool, f func() error) error {
	return withMode("mode", cshim.Mode{Kind: cshim.ModeGrad, On: on}, f)
}

// withInference runs f in inference mode. It implements autograd.Inference.
func withInference(on bool, f func() error) error {
	return withMode("mode", cshim.Mode{Kind: cshim.ModeInference, On: on}, f)
}

// withStream runs f with a stream and its device current on this goroutine. It implements cuda.WithStream.
func withStream(op string, device int32, id int64, f func() error) error {
	return withMode(op, cshim.Mode{Kind: cshim.ModeStream, Device: device, Stream: id}, f)
}

// withAnomaly runs f with the detection of anomalies. It implements autograd.DetectAnomaly.
func withAnomaly(checkNaN bool, f func() error) error {
	sites.AttachEveryCall(true)
	defer sites.AttachEveryCall(false)
	return withMode("DetectAnomaly", cshim.Mode{Kind: cshim.ModeAnomaly, On: checkNaN}, f)
}

// level is held by the goroutine that has libtorch's level of forward-mode differentiation.
var level sync.Mutex

// withForward runs f with the level. It implements autograd.DualLevel.
func withForward(f func() error) error {
	const op = "DualLevel"
	if err := cshim.Load(); err != nil {
		return err
	}
	// In inference mode ModeForward is off even within a level, for which this goroutine would wait.
	if modeOn(cshim.ModeInference) {
		return refused(op, ErrArgument, "in inference mode tensors have no tangents")
	}
	if modeOn(cshim.ModeForward) {
		return refused(op, ErrArgument, "this goroutine is in a level already, and levels do not nest")
	}
	level.Lock()
	defer level.Unlock()
	return withMode(op, cshim.Mode{Kind: cshim.ModeForward}, f)
}

// casting is the number of regions of autocast that goroutines are in, and of callbacks that run in those of the
// forward pass, if there were any.
var casting atomic.Int64

// withAutocast runs f with autocast of a device type to a dtype, which Float32 turns off. It implements
// autograd.Autocast.
func withAutocast(device DeviceType, dtype DType, f func() error) error {
	const op = "Autocast"
	if dtype != BFloat16 && dtype != Float16 && dtype != Float32 {
		return refused(op, ErrArgument, "the dtype is %v: want BFloat16, Float16, or Float32 for none", dtype)
	}
	if device < 0 {
		return refused(op, ErrArgument, "device type %d does not exist", device)
	}
	m := cshim.Mode{Kind: cshim.ModeAutocast, On: dtype != Float32, Device: int32(device), DType: int32(dtype)}
	if m.On {
		casting.Add(1)
		defer casting.Add(-1)
	}
	return withMode(op, m, f)
}

// autocastDType returns the dtype to which this goroutine casts for a device type, and Float32 outside autocast.
func autocastDType(device DeviceType) DType {
	if device < 0 || cshim.Load() != nil {
		return Float32
	}
	if m := cshim.ModeGet(cshim.ModeAutocast, int32(device)); m.On {
		return DType(m.DType)
	}
	return Float32
}

// forgetCasts drops the casts of weights that regions of autocast keep, because weights were changed: if everywhere,
// and otherwise if this goroutine is in a region or a backward pass.
func forgetCasts(everywhere bool) {
	if casting.Load() != 0 {
		cshim.ClearCasts(everywhere)
	}
}

// withMode runs f in a mode on this goroutine, which is locked to its thread meanwhile. An error of the mode itself names op.
func withMode(op string, m cshim.Mode, f func() error) error {
	return withThread(func() error {
		if err := cshim.ModePush(m); err != nil {
			return newError(op, err)
		}
		defer cshim.ModePop()
		return f()
	})
}

// withThread runs f on this goroutine, which is locked to its thread meanwhile: modes belong to threads.
func withThread(f func() error) (err error) {
	if err := cshim.Load(); err != nil {
		return err
	}
	if cshim.ScopeGet() != 0 { // The goroutine is locked already, but f may close the scope.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		return f()
	}
	// The thread gets the marker, so that the limit on locked threads counts it.
	before, err := holdThread(marker)
	if err != nil {
		return err
	}
	defer func() {
		if inside := endInner(marker); err == nil { // of scopes that f opened and did not close
			err = inside
		}
		letThread(before, leave(marker, before))
	}()
	return f()
}

func modeOn(kind cshim.ModeKind) bool { return cshim.ModeGet(kind, 0).On }

// GradEnabled reports whether this goroutine records gradients, as it does outside autograd.NoGrad and
// autograd.Inference. PyTorch: torch.is_grad_enabled.
func GradEnabled() bool { return cshim.Load() == nil && modeOn(cshim.ModeGrad) }

// InferenceEnabled reports whether this goroutine is in inference mode. PyTorch: torch.is_inference_mode_enabled.
func InferenceEnabled() bool { return cshim.Load() == nil && modeOn(cshim.ModeInference) }

// recordStream records that a stream uses t's memory. It implements cuda.RecordStream.
func recordStream(t *Tensor, device int32, id int64) error {
	const op = "RecordStream"
	if !t.pin() {
		return unusable(op, t)
	}
	defer t.unpin()
	return newError(op, cshim.Stream{Device: device, ID: id}.Record(t.h), t)
}

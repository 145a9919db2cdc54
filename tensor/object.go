package tensor

import (
	"runtime"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
)

// ScriptObject is an object of a class that libtorch's C++ registers, for example the packed weights that
// quantized::linear_prepack returns. [Call] takes and returns it. It belongs to no scope: Release frees it, or the Go
// collector after the last use. Any goroutine may use it. PyTorch: torch.ScriptObject.
type ScriptObject struct {
	h        cshim.Object
	released atomic.Bool
	uses     atomic.Int64 // the calls that use it, and one until Release; 0: it is freed
	cleanup  runtime.Cleanup
}

// newScriptObject takes over the object h.
func newScriptObject(h cshim.Object) *ScriptObject {
	o := &ScriptObject{h: h}
	o.uses.Store(1)
	o.cleanup = runtime.AddCleanup(o, cshim.ObjectFree, h)
	return o
}

// acquire keeps the object until drop. It reports whether it could: not if the object is released.
func (o *ScriptObject) acquire() bool {
	for n := o.uses.Load(); n > 0 && !o.released.Load(); n = o.uses.Load() {
		if o.uses.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

func (o *ScriptObject) drop() {
	if o.uses.Add(-1) == 0 {
		o.cleanup.Stop()
		cshim.ObjectFree(o.h)
		runtime.KeepAlive(o)
	}
}

// Release frees the object when the calls that use it have returned. Later uses return ErrReleased. A second Release does
// nothing.
func (o *ScriptObject) Release() {
	if o != nil && !o.released.Swap(true) {
		o.drop()
	}
}

// Class returns the name of the object's class: "__torch__.torch.classes.quantized.LinearPackedParamsBase".
func (o *ScriptObject) Class() (string, error) {
	if o == nil {
		return "", refused("Class", ErrArgument, "the object is nil")
	}
	if !o.acquire() {
		return "", refused("Class", ErrReleased, "the object has been released")
	}
	defer o.drop()
	return cshim.ObjectClass(o.h)
}

package tensor

import "github.com/linstock-ml/linstock/cshim"

// ScriptObject is an object of a class that libtorch's C++ registers, for example the packed weights that
// quantized::linear_prepack returns. [Call] takes and returns it. It belongs to no scope: Release frees it, or the Go
// collector after the last use. Any goroutine may use it. PyTorch: torch.ScriptObject.
type ScriptObject struct{ native[cshim.Object] }

// newScriptObject takes over the object h.
func newScriptObject(h cshim.Object) *ScriptObject {
	o := &ScriptObject{}
	o.own(h, cshim.ObjectFree)
	return o
}

// Release frees the object when the calls that use it have returned. Later uses return ErrReleased. A second Release does
// nothing.
func (o *ScriptObject) Release() {
	if o != nil {
		o.release()
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

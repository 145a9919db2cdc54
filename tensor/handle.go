package tensor

import "github.com/linstock-ml/linstock/internal/handle"

// What the library's upper packages use of this one, and programs do not.
func init() {
	handle.Usable = func(t any) bool {
		x, _ := t.(*Tensor)
		return x != nil && x.h != 0 && x.state.Load()&released == 0
	}
	handle.Failed = func(t any) bool {
		x, _ := t.(*Tensor)
		return x != nil && x.fail != nil
	}
	handle.Decided = func(t any) bool {
		x, _ := t.(*Tensor)
		return x != nil && x.notes.Load()&noteAsked != 0
	}
	handle.Backward = runBackward
	handle.Grad = runGrad
	handle.Checkpoint = runCheckpoint
	handle.TieFunction = tieFunction
	handle.AdamStep = adamStep
	handle.WithGrad = withGrad
	handle.WithInference = withInference
}

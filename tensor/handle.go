package tensor

import (
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
)

// Functions for the library's packages above this one. Programs do not use them.
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
	handle.Same = func(a, b any) bool {
		x, _ := a.(*Tensor)
		y, _ := b.(*Tensor)
		if !x.pin() {
			return false
		}
		defer x.unpin()
		if !y.pin() {
			return false
		}
		defer y.unpin()
		return x.h == y.h
	}
	handle.InScope = func(s any) bool { return s.(*Scope).encloses(cshim.ScopeGet(), 0) }
	handle.Storage = func(t any) (name uint64, bytes int64) {
		if x, _ := t.(*Tensor); x != nil {
			x.look(func(m *cshim.Meta) { name, bytes = m.Data, int64(m.Bytes) })
		}
		return name, bytes
	}
	handle.DataSet = dataSet.Load
	handle.Backward = runBackward
	handle.Grad = runGrad
	handle.Checkpoint = runCheckpoint
	handle.TieFunction = tieFunction
	handle.WithSaved = withSaved
	handle.WithRemade = withRemade
	handle.AtPassEnd = atPassEnd
	handle.EndFailed = endFailed
	handle.KeepInCheckpoint = keepInCheckpoint
	handle.AdamStep = adamStep
	handle.Hold = hold
	handle.WithAnomaly = withAnomaly
	handle.WithAttention = withAttention
	handle.RegisterMulti = registerMulti
	handle.NativeError = func(op string, err error) error { return newError(op, err) }
	handle.RecordStream = recordStream
	handle.WithHandles = withHandles
	handle.RoundStochastic = roundStochastic
	handle.ShapeOf = comparableShape
	handle.LinearActivation = linearActivation
	handle.WithGrad = withGrad
	handle.WithThread = withThread
	handle.LockThread = lockThread
	handle.WithStream = withStream
	handle.WithInference = withInference
	handle.WithForward = withForward
	handle.ForwardEnabled = func() bool { return cshim.Load() == nil && modeOn(cshim.ModeForward) }
	handle.WithAutocast = withAutocast
	handle.AutocastDType = autocastDType
	handle.ForgetCasts = forgetCasts
}

package tensor

import (
	"errors"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/vram"
)

// recomputed is a checkpointed function, stored in natives under a number.
type recomputed func(inputs []*Tensor) error

// runCheckpoint runs f on inputs in a scope, without keeping what its operators would save for the backward pass, which
// runs f again and must get the same results. The outputs of f move one scope outward. It implements
// autograd.Checkpoint.
func runCheckpoint(inputs []*Tensor, f func(inputs []*Tensor) ([]*Tensor, error)) ([]*Tensor, error) {
	if f == nil {
		return nil, refused("Checkpoint", ErrNil, "a function is needed, got nil")
	}
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	return TidyAll(func() (outputs []*Tensor, err error) {
		if !GradEnabled() || InferenceEnabled() {
			return f(inputs)
		}
		end, err := beginCheckpoint(inputs, func(inputs []*Tensor) error {
			_, err := f(inputs)
			return err
		})
		if err != nil {
			return nil, err
		}
		defer func() {
			if e := end(); err == nil {
				err = e
			}
		}()
		return f(inputs)
	})
}

// beginCheckpoint makes the results of operators on this goroutine placeholders in the graph, until end is called.
func beginCheckpoint(inputs []*Tensor, f recomputed) (end func() error, err error) {
	const op = "Checkpoint"
	in, err := pinAll(op, inputs, false)
	if err != nil {
		return nil, err
	}
	defer in.unpin()
	// The shim's stack belongs to the thread. The enclosing scope locks the goroutine to it too, but f could close that
	// scope.
	lockThread()
	id := keepAlive(f)
	depth, ref := cshim.CheckpointPush(id, in.hs)
	if ref != nil {
		runtime.UnlockOSThread()
		forget(id)
		forgetDropped()
		return nil, newError(op, cshim.Take(ref), inputs...)
	}
	return func() error {
		defer runtime.UnlockOSThread()
		return newError(op, asError(cshim.SavedPop(depth)), inputs...)
	}, nil
}

// withSaved runs f with a policy for the tensors that its operators save. It implements autograd.SavedTensors.
func withSaved(p handle.SavedPolicy, f func() error) (err error) {
	const op = "SavedTensors"
	if err := cshim.Load(); err != nil {
		return err
	}
	lockThread()
	defer runtime.UnlockOSThread()
	depth, ref := cshim.SavedPush(cshim.SavedPolicy(p))
	if ref != nil && p.Kind == cshim.SavedFile && vram.Collect() == nil { // the files of unreachable graphs are open
		cshim.Take(ref)
		depth, ref = cshim.SavedPush(cshim.SavedPolicy(p))
	}
	if ref != nil {
		return newError(op, cshim.Take(ref))
	}
	defer func() {
		if e := newError(op, asError(cshim.SavedPop(depth))); err == nil {
			err = e
		}
	}()
	return f()
}

// withRemade runs f. The graph keeps no tensors that share storage with one of sources: for source i a backward pass calls
// again(i), which returns the same contents in a storage of their own.
func withRemade(sources []*Tensor, again func(i int) (*Tensor, error), f func() error) (err error) {
	const op = "Forward"
	if err := cshim.Load(); err != nil {
		return err
	}
	lockThread()
	defer runtime.UnlockOSThread()
	id := keepAlive(nativeFunction(func(_, _ []*Tensor, needs []bool) (out []*Tensor, err error) {
		out = make([]*Tensor, len(needs))
		i := slices.Index(needs, true)
		out[i], err = again(i)
		return out, err
	}))
	var depth uint64
	if err := withHandles(op, sources, func(h []cshim.Handle) error {
		var ref cshim.ErrorRef
		depth, ref = cshim.RemadePush(id, h)
		return newError(op, asError(ref), sources...)
	}); err != nil {
		forget(id)
		forgetDropped()
		return err
	}
	defer func() {
		if e := newError(op, asError(cshim.SavedPop(depth))); err == nil {
			err = e
		}
	}()
	return f()
}

// passEnd is what is called at the end of a backward pass: f, or failed if the pass does not reach it.
type passEnd struct {
	f       func() error
	failed  func()
	reached atomic.Bool
}

// atPassEnd makes the backward pass that the calling hook is part of call f at its end. If the pass fails, Backward and
// Grad call failed before they return.
func atPassEnd(f func() error, failed func()) error {
	id := keepAlive(&passEnd{f: f, failed: failed})
	if ref := cshim.PassEnd(id); ref != nil {
		forget(id)
		forgetDropped()
		return newError("Backward", cshim.Take(ref))
	}
	return nil
}

// keepInCheckpoint returns f(), and in a recomputation the result of the first run. It implements
// autograd.KeepInCheckpoint.
func keepInCheckpoint(f func() *Tensor) (out *Tensor) {
	const op = "KeepInCheckpoint"
	if err := cshim.Load(); err != nil {
		return failed(err)
	}
	stage, depth, ref := cshim.CheckpointKeep()
	switch {
	case ref != nil:
		return failed(newError(op, cshim.Take(ref)))
	case stage == cshim.Recomputation:
		return wrapResult(op, cshim.CheckpointTake())
	case stage == cshim.NoCheckpoint:
		return f()
	}
	// The checkpoint has locked the goroutine to its thread.
	defer func() {
		if err := newError(op, asError(cshim.SavedPop(depth))); err != nil {
			out = failed(err)
		}
	}()
	out = f()
	err := out.use(op, func(h cshim.Handle) error { return newError(op, asError(cshim.CheckpointKept(h)), out) })
	if err != nil {
		return failed(err)
	}
	return out
}

// runRecompute is called by a backward pass that needs what a checkpointed function would have saved.
func runRecompute(id uint64, inputs []cshim.Handle) uint64 {
	return guarded(func() error {
		v, _ := natives.Load(id)
		f, ok := v.(recomputed)
		if !ok {
			return errors.New("the function has been freed")
		}
		casting.Add(1)
		defer casting.Add(-1)
		return WithScope(func() error {
			ts := make([]*Tensor, len(inputs))
			for i, h := range inputs {
				ts[i] = lend(h)
			}
			return f(ts)
		})
	})
}

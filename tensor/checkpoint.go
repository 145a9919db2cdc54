package tensor

import (
	"errors"
	"runtime"

	"github.com/linstock-ml/linstock/cshim"
)

// recomputed is a checkpointed function, under its number in natives.
type recomputed func(inputs []*Tensor) error

// runCheckpoint runs f on inputs in a scope of its own, and its operators keep nothing for their backward: f must be run
// again for that, with the same results. f's outputs move one scope outward. It is autograd.Checkpoint.
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

// beginCheckpoint makes f's results placeholders in the graph, on this goroutine, until end.
func beginCheckpoint(inputs []*Tensor, f recomputed) (end func() error, err error) {
	const op = "Checkpoint"
	in, err := pinAll(op, inputs, false)
	if err != nil {
		return nil, err
	}
	defer in.unpin()
	// The shim's stack belongs to the thread. The scope around holds it too, but f could close that.
	runtime.LockOSThread()
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

// runRecompute is called by a backward pass that needs what a checkpointed function has saved.
func runRecompute(id uint64, inputs []cshim.Handle) uint64 {
	return guarded(func() error {
		v, _ := natives.Load(id)
		f, ok := v.(recomputed)
		if !ok {
			return errors.New("the function is gone")
		}
		return WithScope(func() error {
			ts := make([]*Tensor, len(inputs))
			for i, h := range inputs {
				ts[i] = lend(h)
			}
			return f(ts)
		})
	})
}

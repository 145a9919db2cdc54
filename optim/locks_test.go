package optim

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
	"github.com/linstock-ml/linstock/tensor"
)

// TestLocks tests that each method locks what it reads and writes, by running it beside another under the race
// detector.
func TestLocks(t *testing.T) {
	leak.Check(t)
	b := &Optimizer{}
	touch := func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		kind, groups, sticky, all := b.kind, b.groups, b.sticky, b.all
		b.kind, b.groups, b.sticky, b.all = kind, groups, sticky, all
	}
	for _, f := range []func(){
		func() { _ = b.AddGroup(nil) },
		func() { b.Groups() },
		func() { b.LR() },
		func() { b.SetLR(1) },
		func() { b.ZeroGrad() },
		func() { _ = b.Step() },
		func() { _, _ = b.StepInBackward() },
		func() { _ = b.stepOne(0, 0) },
		func() { b.Release() },
		func() { b.StateDict() },
		func() { _ = b.LoadStateDict(State{}) },
		func() { _, _ = b.minimize(nil) },
		func() { _, _ = b.StepInBackward() },
		func() { _ = b.stepOne(0, 0) },
		func() { _, _ = NewScheduler(b, ConstantLR(0.5, 3)) },
	} {
		unordered.Go(f, touch)
	}

	s := &Scheduler{opt: b, course: &course{opt: b, rate: func(*course, int, *Group) (float64, error) { return 0, nil }}}
	for _, f := range []func(){
		func() { s.Step() },
		func() { s.StateDict() },
		func() {
			_ = s.LoadStateDict(map[string]any{"last_epoch": 1, "_step_count": 1, "base_lrs": []any{}, "_last_lr": []any{}})
		},
	} {
		unordered.Go(f, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			epoch, last := s.course.epoch, s.course.last
			s.course.epoch, s.course.last = epoch, last
		})
	}

	// A step of a schedule changes the optimizer too.
	c, err := NewScheduler(b, ConstantLR(0.5, 3))
	if err != nil {
		t.Fatal(err)
	}
	state := c.StateDict()
	state["_last_lr"] = []any{0.5} // the optimizer has no group, but is asked for it
	unordered.Go(func() { c.Step() }, touch)
	unordered.Go(func() { _ = c.LoadStateDict(state) }, touch)
	unordered.Go(func() { c.LRs() }, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		last := c.course.last
		c.course.last = last
	})
}

func TestLocksOfHooks(t *testing.T) {
	leak.Check(t)
	b := &Optimizer{}
	touch := func() {
		b.hooks.mu.Lock()
		defer b.hooks.mu.Unlock()
		lists, state := b.hooks.lists, b.hooks.state
		b.hooks.lists, b.hooks.state = lists, state
	}
	nothing := func(*Optimizer) error { return nil }
	remove := b.RegisterStepPreHook(nothing)
	unordered.Go(func() { b.RegisterStepPreHook(nothing) }, touch)
	unordered.Go(remove, touch)
	unordered.Go(func() { _ = b.hooks.run(preStep, b) }, touch)
	unordered.Go(func() { _, _ = b.hooks.change(&b.hooks.state, b, State{}) }, touch)
}

func TestLocksOfAScaler(t *testing.T) {
	leak.Check(t)
	s, err := NewGradScaler()
	if err != nil {
		t.Fatal(err)
	}
	state := s.StateDict()
	for _, f := range []func(){
		func() { s.Scale(nil) },
		func() { _ = s.Unscale(&Optimizer{}) },
		func() { _ = s.Step(&Optimizer{}) },
		func() { s.Update() },
		func() { s.GetScale() },
		func() { s.StateDict() },
		func() { _ = s.LoadStateDict(state) },
	} {
		unordered.Go(f, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			scale := s.scale
			s.scale = scale
			delete(s.found, nil)
			delete(s.stepped, nil)
		})
	}
	b := &Optimizer{}
	unordered.Go(func() { _ = s.Unscale(b) }, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		all := b.all
		b.all = all
	})
}

// Steps with a closure do not overlap: one that begins during another is an error.
func TestClosuresDoNotOverlap(t *testing.T) {
	leak.Check(t)
	if err := tensor.WithScope(func() error {
		p := tensor.Ones([]int{2}).RequiresGrad_()
		b, err := NewLBFGS([]*tensor.Tensor{p}, 0.1)
		if err != nil {
			return err
		}
		defer b.Release()
		var inside atomic.Int32
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if _, err := b.StepClosure(func() (*tensor.Tensor, error) {
					if inside.Add(1) != 1 {
						t.Error("two closures run at the same time")
					}
					defer inside.Add(-1)
					time.Sleep(time.Millisecond)
					b.ZeroGrad()
					loss := p.Mul(p).Sum()
					return loss, loss.Backward()
				}); err != nil && !errors.Is(err, tensor.ErrArgument) {
					t.Error(err)
				}
			})
		}
		all.Wait()
		_, err = b.StepClosure(func() (*tensor.Tensor, error) {
			b.ZeroGrad()
			loss := p.Mul(p).Sum()
			return loss, loss.Backward()
		})
		return errors.Join(err, p.SetGrad(nil))
	}); err != nil {
		t.Error(err)
	}
}

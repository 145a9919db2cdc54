package optim

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
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
		func() { b.Release() },
		func() { b.StateDict() },
		func() { _ = b.LoadStateDict(State{}) },
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
			s.mu.Lock()
			defer s.mu.Unlock()
			epoch, last := s.course.epoch, s.course.last
			s.course.epoch, s.course.last = epoch, last
		})
	}
}

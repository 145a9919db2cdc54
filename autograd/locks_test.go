package autograd

import (
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
)

// TestLocksOfAContext tests that each method locks what it reads and writes, by running it beside another under the
// race detector.
func TestLocksOfAContext(t *testing.T) {
	leak.Check(t)
	c := &Context{}
	for _, f := range []func(){
		func() { c.SaveForBackward() },
		func() { c.Saved() },
		func() { c.Set(1, 2) },
		func() { c.Value(1) },
		func() { _ = c.failed() },
		func() { _, _ = tie(nil, c, nil, nil) },
	} {
		unordered.Go(f, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			saved, values, fault := c.saved, c.values, c.fault
			c.saved, c.values, c.fault = saved, values, fault
		})
	}
	// The contexts of concurrent passes share what Forward has set.
	one, other := &Context{forward: c}, &Context{forward: c}
	unordered.Go(func() { one.Set(1, 3) }, func() { other.Set(1, other.Value(1)) })
	if c.Value(1) != 3 || other.Value(1) != 3 {
		t.Errorf("the passes' contexts have %v and %v, want 3", c.Value(1), other.Value(1))
	}
}

func TestNoContext(t *testing.T) {
	leak.Check(t)
	var none *Context
	none.SaveForBackward(nil)
	none.Set(1, 2)
	if none.Saved() != nil || none.Value(1) != nil || none.NeedsInputGrad(0) {
		t.Error("a nil context has a value")
	}
}

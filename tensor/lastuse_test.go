package tensor_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/unordered"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// If two last uses run at the same time, one releases the tensor and is named.
func TestTwoLastUsesAtOnce(t *testing.T) {
	leak.Check(t)
	const n = 3000
	xs := make([]*tensor.Tensor, n)
	for i := range xs {
		xs[i] = tensor.Ones([]int{1})
	}
	lines := [2]string{"left.go:1234", "right.go:4321"}
	unordered.AtOnce(n, func(i, who int) { xs[i].LastUse(lines[who]) })
	for _, x := range xs {
		err := x.Err()
		if !errors.Is(err, tensor.ErrReleased) || strings.Contains(err.Error(), lines[0]) == strings.Contains(err.Error(), lines[1]) {
			t.Errorf("the error does not name one of the two lines: %v", err)
		}
	}
}

// A tensor that two goroutines move out of its scope at the same time is freed once.
func TestTwoKeepsAtOnce(t *testing.T) {
	leak.Check(t)
	const n = 3000
	if err := tensor.WithScope(func() error {
		xs := make([]*tensor.Tensor, n)
		for i := range xs {
			xs[i] = tensor.Ones([]int{1})
		}
		unordered.AtOnce(n, func(i, _ int) { xs[i].Keep() })
		return xs[n-1].Err()
	}); err != nil {
		t.Error(err)
	}
	runtime.GC()
	if err := vram.Collect(); err != nil {
		t.Error(err)
	}
	if err := tensor.Ones([]int{1}).Add(1).Err(); err != nil {
		t.Error(err)
	}
}

// The functions that "linstock go" inserts, called as in its output.
func TestLastUse(t *testing.T) {
	leak.Check(t)
	if err := tensor.WithScope(func() error {
		var none *tensor.Tensor
		none.LastUse("a.go:1")
		x, y := tensor.Ones([]int{2}), tensor.Ones([]int{2})
		x.LastUseUnless("a.go:2", y, x)
		if err := x.Err(); err != nil {
			t.Error("a tensor that lives on was released: ", err)
		}
		x.LastUseUnlessIn("a.go:2", []*tensor.Tensor{y, x})
		x.LastUseUnlessIn("a.go:2", []*tensor.Tensor{y}, x)
		x.LastUseUnlessIn("a.go:2", make([]*tensor.Tensor, 5000))
		x.LastUseUnlessIn("a.go:2", make([]*tensor.Tensor, 1, 5000))
		x.LastUseUnlessIn("a.go:2", []*tensor.Tensor{y, x}[:1]) // a longer slice of the array may hold it
		if err := x.Err(); err != nil {
			t.Error("a tensor that a slice may hold was released: ", err)
		}
		other := x.Add(1)
		other.LastUseUnlessIn("a.go:2", []*tensor.Tensor{y}, x)
		if other.Err() == nil {
			t.Error("a tensor that no slice or variable holds is still alive")
		}
		if discarded := x.Add(1); !discarded.LastUseThen("a.go:2") || discarded.Err() == nil {
			t.Error("LastUseThen returns false, or releases nothing")
		}
		x.LastUseUnless("a.go:3", y, nil)
		x.LastUse("a.go:4")
		err := x.Add(1).Err()
		if !errors.Is(err, tensor.ErrReleased) || !strings.Contains(err.Error(), "after its last use at a.go:3;") || !strings.Contains(err.Error(), "lastuse_test.go:") {
			t.Errorf("a later use gives %v, which does not name both lines", err)
		}
		y.Release()
		y.LastUse("a.go:5")
		if err := y.Err(); !errors.Is(err, tensor.ErrReleased) || strings.Contains(err.Error(), "a.go") {
			t.Errorf("Release, then LastUse: %v", err)
		}
		return nil
	}); err != nil && !errors.Is(err, tensor.ErrReleased) {
		t.Error(err)
	}
	// Outside every scope too.
	z := tensor.Ones([]int{2})
	z.LastUse("a.go:6")
	if err := z.Err(); !errors.Is(err, tensor.ErrReleased) || !strings.Contains(err.Error(), "a.go:6") {
		t.Error(err)
	}
}

// TestLastUseOnManyGoroutines releases tensors at lines that are new to the table, and reads the lines of others meanwhile.
func TestLastUseOnManyGoroutines(t *testing.T) {
	leak.Check(t)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 100 {
				x := tensor.Ones([]int{2})
				at := fmt.Sprintf("many.go:%d", 1000*g+i)
				x.LastUse(at)
				if err := x.Err(); !errors.Is(err, tensor.ErrReleased) || !strings.Contains(err.Error(), at+" ") && !strings.Contains(err.Error(), at+";") {
					t.Errorf("the error of a tensor released at %s: %v", at, err)
				}
			}
		})
	}
	all.Wait()
}

func TestLastUseOfTemporaries(t *testing.T) {
	leak.Check(t)
	if err := tensor.WithScope(func() error {
		var a, b *tensor.Tensor
		x := tensor.Ones([]int{2})
		first := x.Add(1).LastUseHold(&a)
		second := first.Mul(2).LastUseOf("a.go:1", &a).LastUseHold(&b, x)
		if first.Err() == nil || second.Err() != nil || a != nil || b != second {
			t.Error("the temporary lives, or its consumer's result does not")
		}
		// An in-place operator returns the temporary itself.
		third := second.Add_(x).LastUseOf("a.go:2", &b)
		if third != second || third.Err() != nil {
			t.Error("the result that is the temporary was released")
		}
		if x.LastUseHold(&a, x) != x || a != nil {
			t.Error("a variable's tensor was taken for a temporary")
		}
		if x.LastUseHold(&a).LastUseHoldUnless(&b, &a, nil) != x || a != nil || b != nil {
			t.Error("an operand was taken for a temporary")
		}
		_ = x.LastUseHold(&a)
		if y := x.Add(1); y.LastUseHoldUnless(nil, &a) != y || y.LastUseHoldUnless(&b, &a) != y || b != y || a != nil {
			t.Error("the result of an operand is not held")
		}
		a = x.Add(1)
		if fourth := a; tensor.LastUseAfter("result", "a.go:6", &a, nil) != "result" || fourth.Err() == nil || a != nil {
			t.Error("the temporary lives after a call that returns no tensor")
		}
		ts := []*tensor.Tensor{third, x, third}
		_ = tensor.Ones([]int{2}).LastUseElement("a.go:3", ts, 0) // also the last element
		_ = tensor.Ones([]int{2}).LastUseElement("a.go:3", ts, 3) // the assignment panics
		_ = tensor.Ones([]int{2}).LastUseElement("a.go:3", ts[:2], 0)
		if third.Err() != nil {
			t.Error("an element that is in the slice twice was released")
		}
		_ = x.LastUseElement("a.go:4", ts, 1) // unchanged
		if x.Err() != nil {
			t.Error("an element that is assigned to itself was released")
		}
		_ = tensor.Ones([]int{2}).LastUseElement("a.go:5", ts, 1)
		if x.Err() == nil {
			t.Error("the element that is replaced lives")
		}
		return nil
	}); err != nil && !errors.Is(err, tensor.ErrReleased) {
		t.Error(err)
	}
}

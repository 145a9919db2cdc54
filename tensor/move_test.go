package tensor

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/internal/reclaim"
)

// Goroutines may move and release the same tensors at once: each tensor is in one scope at most, and is freed once.
func TestMovesAtOnce(t *testing.T) {
	begin(t)
	for name, other := range map[string]func(x *Tensor, inner *Scope){
		"Release": func(x *Tensor, _ *Scope) { x.Release() },
		"Adopt":   func(x *Tensor, inner *Scope) { _ = inner.Adopt(x) },
		"MoveOut": func(x *Tensor, _ *Scope) { x.MoveOut() },
		"Keep":    func(x *Tensor, _ *Scope) { x.Keep() },
	} {
		t.Run(name, func(t *testing.T) {
			begin(t)
			before := ReadStatistics().TotalCount
			for range 5 {
				err := WithScope(func() error {
					outer := CurrentScope()
					return WithScope(func() error {
						inner := CurrentScope()
						xs := make([]*Tensor, 3000)
						for i := range xs {
							xs[i] = Zeros([]int{4})
						}
						var wg sync.WaitGroup
						wg.Go(func() {
							for _, x := range xs {
								other(x, inner)
							}
						})
						for i, x := range xs {
							if i%2 == 0 {
								_ = outer.Adopt(x)
							} else {
								x.MoveOut()
							}
						}
						wg.Wait()
						kept := 0
						for _, x := range xs {
							owners := 0
							for _, s := range []*Scope{outer, inner} {
								if s.Contains(x) {
									owners++
								}
							}
							if x.Err() != nil && owners != 0 || owners > 1 {
								t.Errorf("%d scopes own a tensor: %v", owners, x.Err())
							}
							if x.Err() == nil && owners == 0 {
								kept++
							}
						}
						if n := outer.Len() + inner.Len() + kept; name != "Release" && n != len(xs) {
							t.Errorf("the scopes and the kept have %d of %d tensors", n, len(xs))
						}
						for _, x := range xs {
							x.Keep()
						}
						if outer.Len() != 0 || inner.Len() != 0 {
							t.Errorf("the scopes own %d and %d kept tensors", outer.Len(), inner.Len())
						}
						if name == "Release" {
							xs = nil
							reclaim.Weaken()
							runtime.GC()
							reclaim.Collect()
							return nil
						}
						for _, x := range xs {
							x.Release()
						}
						return nil
					})
				})
				if err != nil && (name != "Release" || !errors.Is(err, ErrReleased)) {
					t.Fatal(err)
				}
			}
			if after := ReadStatistics().TotalCount; after != before {
				t.Errorf("%d handles, %d before", after, before)
			}
		})
	}
}

// Unread errors reach the enclosing scope from Tidy, TidyAll, and scopes that were not closed.
func TestUnreadErrorsReachTheScope(t *testing.T) {
	begin(t)
	fail := func() { Zeros([]int{3}).Add_(Ones([]int{4})) }
	open := func() {
		if _, err := NewScope(); err != nil { //linstockvet:ignore scopeclose the enclosing scope closes it
			t.Error(err)
		}
	}
	for name, f := range map[string]func() error{
		"Tidy": func() error { return Tidy(func() *Tensor { fail(); return Ones(nil) }).Err() },
		"TidyAll": func() error {
			ts, err := TidyAll(func() ([]*Tensor, error) { fail(); return []*Tensor{Ones(nil)}, nil })
			if err == nil || len(ts) != 1 {
				t.Errorf("TidyAll: %v, %v", ts, err)
			}
			return err
		},
		"an open scope":         func() error { open(); fail(); return nil },
		"an open scope in Tidy": func() error { return Tidy(func() *Tensor { open(); fail(); return Ones(nil) }).Err() },
		"an open scope in a mode": func() error {
			return withGrad(false, func() error { open(); fail(); return nil })
		},
	} {
		if err := WithScope(f); err == nil {
			t.Errorf("%s in a scope: %v", name, err)
		}
	}
	x := Tidy(func() *Tensor { fail(); return Ones(nil) })
	if x.Err() == nil {
		t.Error("Tidy without a scope returns a tensor although an operator failed")
	}
	outside := Ones(nil)
	if y := Tidy(func() *Tensor { fail(); return outside }); y.Err() == nil || outside.Err() != nil {
		t.Errorf("Tidy returns %v, and the tensor that it did not make is %v", y, outside)
	}
	outside.Release()
	// A failed result is the caller's to read.
	err := WithScope(func() error {
		ts, err := TidyAll(func() ([]*Tensor, error) { return []*Tensor{Zeros([]int{3}).Add(Ones([]int{4}))}, nil })
		if err != nil || ts[0].Err() == nil {
			t.Errorf("%v, %v", ts, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A result of Tidy is moved out of a scope that was opened in it and not closed; modes end such scopes, too.
func TestScopesThatWereNotClosed(t *testing.T) {
	begin(t)
	var s *Scope
	var inMode *Tensor
	err := withGrad(false, func() (err error) {
		s, err = NewScope() //linstockvet:ignore scopeclose the mode closes it
		inMode = Ones([]int{3})
		return err
	})
	if err != nil || s.Close() != nil || !errors.Is(inMode.Err(), ErrReleased) {
		t.Errorf("%v, %v", err, inMode.Err())
	}
	err = WithScope(func() error {
		x := Tidy(func() *Tensor {
			if _, err := NewScope(); err != nil { //linstockvet:ignore scopeclose the enclosing scope closes it
				t.Error(err)
			}
			return Ones(nil)
		})
		return x.Err()
	})
	if err != nil {
		t.Error(err)
	}
	var literal Scope
	if err := literal.Close(); !errors.Is(err, ErrScope) {
		t.Errorf("Close of a literal: %v", err)
	}
}

// TestScopeOfManyUnreadErrors tests that the scope returns the last error when the program has read those before.
func TestScopeOfManyUnreadErrors(t *testing.T) {
	begin(t)
	for _, n := range []int{1, rememberedErrors, rememberedErrors + 1, 3 * rememberedErrors} {
		err := WithScope(func() error {
			var failed []*Tensor
			for range n {
				failed = append(failed, Zeros([]int{3}).Add(Ones([]int{4})))
			}
			_ = Zeros([]int{3}).Mul(Ones([]int{4}))
			for _, x := range failed {
				_ = x.Err()
			}
			return nil
		})
		var e *Error
		if !errors.As(err, &e) || e.Op != "Mul" {
			t.Errorf("after %d errors that were read: %v, want the error of Mul", n, err)
		}
	}
}

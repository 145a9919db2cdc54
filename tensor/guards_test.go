package tensor

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// What tests/mutate takes out and no other test notices is noticed here.

func TestNilScopesAndTensors(t *testing.T) {
	begin(t)
	var none *Scope
	var x *Tensor
	equal(t, "String", none.String(), "no scope")
	equal(t, "Contains nil", none.Contains(x), false)
	outside := Ones([]int{2})
	equal(t, "Contains", none.Contains(outside), false)
	outside.Release()
	equal(t, "Statistics", none.Statistics(), Statistics{})
	wantErr(t, "ReleaseExcept", none.ReleaseExcept(), ErrNil)
	wantErr(t, "Join", none.Join(func() error { return nil }), ErrNil)
	wantErr(t, "MoveOut", x.MoveOut().Err(), ErrNil)
	wantErr(t, "Err", x.Err(), ErrNil)
	x.Release()
	s := open(t)
	defer s.Close()
	equal(t, "Contains nil", s.Contains(nil), false)
	wantErr(t, "Join without a function", s.Join(nil), ErrArgument)
	if Tidy(func() *Tensor { return nil }) != nil {
		t.Error("Tidy made a tensor of none")
	}
	if ts, err := TidyAll(func() ([]*Tensor, error) { return []*Tensor{nil, Failed(errors.New("mine"))}, nil }); err != nil || len(ts) != 2 {
		t.Errorf("TidyAll: %v, %v", ts, err)
	}
}

func TestTooManyScopes(t *testing.T) {
	begin(t)
	outer := open(t)
	n := 1
	for ; ; n++ {
		if _, err := NewScope(); err != nil { //linstockvet:ignore scopeclose they end with the outer one
			wantErr(t, "one too many", err, ErrScope)
			break
		}
		if n > 128*128 {
			t.Fatal("more scopes than there are places")
		}
	}
	x := Ones([]int{2})
	if err := outer.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, "after the close", x.Add(1).Err(), ErrReleased)
	if CurrentScope() != nil {
		t.Error("a scope is left")
	}
}

// What a scope has closed behind the back of does not get into it.
func TestAClosedScopeTakesNothing(t *testing.T) {
	begin(t)
	s := open(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	x := Ones([]int{2})
	defer x.Release()
	if s.addNew(x) || s.add(x) {
		t.Error("a closed scope has taken a tensor")
	}
	equal(t, "entries", s.Len(), 0)
	wantErr(t, "Adopt", s.Adopt(x), ErrScope)
	wantErr(t, "ReleaseExcept", s.ReleaseExcept(), ErrScope)
	wantErr(t, "Join", s.Join(func() error { t.Error("joined"); return nil }), ErrScope)
	if s.weaken() {
		t.Error("a closed scope takes part in a sweep")
	}
}

// Between the two halves of a sweep a scope goes on: what is released, moved, emptied and closed then is freed once.
func TestAScopeBetweenTheHalvesOfASweep(t *testing.T) {
	begin(t)
	counted(t)
	for name, f := range map[string]func(s *Scope, old, kept *Tensor){
		"Release": func(s *Scope, old, kept *Tensor) {
			equal(t, "contains", s.Contains(old), true)
			equal(t, "contains", s.Contains(kept), true)
			old.Release()
			old.Release()
			equal(t, "entries", s.Len(), 22) // with those that nobody can reach
			equal(t, "contains", s.Contains(old), false)
			equal(t, "live", s.Statistics().LiveInScopes, 22)
			s.strengthen()
			equal(t, "entries", s.Len(), 2)
		},
		"Keep": func(s *Scope, old, kept *Tensor) {
			old.Keep()
			if s.weaken() {
				t.Error("two sweeps at once")
			}
			s.strengthen()
			if err := old.Add(1).Err(); err != nil {
				t.Error(err)
			}
			old.Release()
		},
		"ReleaseExcept": func(s *Scope, old, kept *Tensor) {
			if err := s.ReleaseExcept(kept); err != nil {
				t.Error(err)
			}
			wantErr(t, "old", old.Add(1).Err(), ErrReleased)
			if err := kept.Add(1).Err(); err != nil {
				t.Error(err)
			}
			s.strengthen()
		},
		"Close": func(s *Scope, old, kept *Tensor) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s.strengthen()
			wantErr(t, "old", old.Add(1).Err(), ErrReleased)
		},
	} {
		s := open(t)
		old := Ones([]int{2})
		makeGarbage(10)
		kept := Ones([]int{2})
		if !s.weaken() {
			t.Fatalf("%s: the scope is not in the sweep", name)
		}
		runtime.GC()
		fresh := Ones([]int{2})
		f(s, old, kept)
		runtime.KeepAlive(old)
		runtime.KeepAlive(kept)
		runtime.KeepAlive(fresh)
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Tensors move from scope to scope, and are released, on many goroutines at once.
func TestMovesRace(t *testing.T) {
	begin(t)
	for range 50 {
		from := open(t)
		var xs [8]*Tensor
		for i := range xs {
			xs[i] = Ones([]int{4})
		}
		var wg sync.WaitGroup
		var others [4]*Scope
		var ready, done sync.WaitGroup
		ready.Add(len(others))
		done.Add(1)
		for g := range others {
			wg.Go(func() {
				own, err := NewScope()
				others[g] = own
				ready.Done()
				if err != nil {
					t.Error(err)
					return
				}
				ready.Wait()
				for k := range 32 {
					x := xs[(g+k)%len(xs)]
					switch k % 4 {
					case 0:
						_ = own.Adopt(x)
					case 1:
						_ = others[(g+1)%len(others)].Adopt(x)
					case 2:
						x.Add(x)
					case 3:
						if k > 20 {
							x.Release()
						}
					}
					_ = from.Close() // refused
				}
				done.Wait()
				if err := own.Close(); err != nil && !errors.Is(err, ErrReleased) {
					t.Error(err)
				}
			})
		}
		ready.Wait()
		if err := from.Close(); err != nil {
			t.Error(err)
		}
		done.Done()
		wg.Wait()
		for _, x := range xs {
			x.Release()
		}
	}
}

// The collector's cleanup and Release may both come: the handle is freed once.
func TestTheNetAndReleaseFreeOnce(t *testing.T) {
	begin(t)
	handles := func() int64 {
		m, err := cshim.MemoryStats(CPU.word())
		if err != nil {
			t.Fatal(err)
		}
		return m.Handles
	}
	before := handles()
	x := Ones([]int{2}) // outside scopes
	box := x.net.Load()
	x.Keep()
	if x.net.Load() != box {
		t.Error("a second net")
	}
	pending.add(box) // as the cleanup does it
	x.Release()
	pending.drain()
	box.drop()
	pending.drain()
	equal(t, "handles", handles(), before)
}

// What a sweep, a close or a release finds in its list but not in its scope, since it has moved meanwhile, it leaves alone.
func TestWhatHasMovedMeanwhileIsLeftAlone(t *testing.T) {
	begin(t)
	usable := func(what string, x *Tensor) {
		t.Helper()
		if err := x.Add(1).Err(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	outer := open(t)
	defer outer.Close()
	s := open(t)
	x, y := Ones([]int{2}), Ones([]int{2})
	// As it is between the two halves of a move: not in the scope, but in its list.
	x.setScope(nil)
	equal(t, "Contains", s.Contains(x), false)
	equal(t, "forget", s.forget(x), false)
	if err := s.ReleaseExcept(y); err != nil {
		t.Error(err)
	}
	usable("after ReleaseExcept", x)
	s.enter(x)
	// With the place of another.
	z := Ones([]int{2})
	at := z.slot
	z.slot = x.slot
	equal(t, "forget at the place of another", s.forget(z), false)
	z.slot = at
	s.weaken()
	z.slot = x.slot
	equal(t, "forget at the place of another, in a sweep", s.forget(z), false)
	z.slot = at
	s.weak[at].gone = true
	equal(t, "forget twice", s.forget(z), false)
	s.weak[at].gone = false
	s.strengthen()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	usable("after Close", x)
	x.Release()

	// What a function returns without having made it stays where it is.
	x = Ones([]int{2})
	if ts, err := TidyAll(func() ([]*Tensor, error) { return []*Tensor{x, x.Add(1)}, nil }); err != nil || !outer.Contains(ts[0]) || !outer.Contains(ts[1]) {
		t.Errorf("TidyAll moved what it had not made: %v", err)
	}
	if Tidy(func() *Tensor { return x }); !outer.Contains(x) {
		t.Error("Tidy moved what it had not made")
	}
}

// A scope word that names no scope, as a mode's does, ends the search for scopes left open.
func TestJoinMeetsAWordWithoutScope(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Join(func() error { cshim.ScopeSet(marker); return nil }); err != nil {
			t.Error(err)
		}
		if cshim.ScopeGet() != 0 {
			t.Error("a scope is left")
		}
	})
	wg.Wait()
}

// Each operand of a typed entry in turn is one that was released; the others are let go.
func TestAnyOperandReleased(t *testing.T) {
	begin(t)
	scoped(t, func() {
		make3 := func() [3]*Tensor { return [3]*Tensor{Ones([]int{2, 3}), Ones([]int{3}), Ones([]int{3})} }
		for i := range 3 {
			ts := make3()
			ts[i].Release()
			wantErr(t, "LayerNorm", ts[0].LayerNorm([]int{3}, ts[1], ts[2]).Err(), ErrReleased)
		}
		ts := make3()
		ts[2].Release()
		wantErr(t, "without a weight", ts[0].LayerNorm([]int{3}, nil, ts[2]).Err(), ErrReleased)
	})
}

// An operator that gives no tensor is an error.
func TestNoResult(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{2})
		for what, y := range map[string]func() *Tensor{
			"wrapResult": func() *Tensor { return wrapResult("Add", cshim.Result{}) },
			"done1":      func() *Tensor { x.pin(); return done1(&opAdd, cshim.Result{}, x) },
			"done2":      func() *Tensor { x.pin(); x.pin(); return done2(&opAdd, cshim.Result{}, x, x) }, //linstockvet:ignore keepalive x is pinned twice
			"done3":      func() *Tensor { x.pin(); return done3(&opAdd, cshim.Result{}, x, nil, nil) },
		} {
			wantErr(t, what, y().Err(), ErrArgument)
		}
	})
}

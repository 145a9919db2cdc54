package tensor

import (
	"errors"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/sites"
)

func handlesNow(t testing.TB) int64 {
	t.Helper()
	m, err := cshim.MemoryStats(CPU.word())
	if err != nil {
		t.Fatal(err)
	}
	return m.Handles
}

func open(t testing.TB) *Scope {
	t.Helper()
	s, err := NewScope()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestScopesNest(t *testing.T) {
	begin(t)
	start := handlesNow(t)
	outer := open(t)
	a := Ones([]int{2})
	inner := open(t)
	if CurrentScope() != inner {
		t.Error("the innermost scope is not the current one")
	}
	b := a.Add(1)
	c := a.Add(2).MoveOut()
	d := a.Add(3).Keep()
	equal(t, "inner", inner.Len(), 1)
	equal(t, "outer", outer.Len(), 2)
	if err := inner.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "b", b.Add(1).Err(), ErrReleased)
	for _, x := range []*Tensor{a, c, d} {
		if err := x.Add(1).Err(); err != nil {
			t.Error(err)
		}
	}
	if err := outer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := outer.Close(); err != nil {
		t.Error("a second Close must do nothing", err)
	}
	wantErr(t, "a", a.Add(1).Err(), ErrReleased)
	wantErr(t, "c", c.Add(1).Err(), ErrReleased)
	if err := d.Add(1).Err(); err != nil {
		t.Error(err)
	}
	d.Release()
	if CurrentScope() != nil {
		t.Error("a scope is left")
	}
	settle(t)
	equal(t, "handles", handlesNow(t), start)
}

// TestUseAfterClose tests that every method of a tensor returns ErrReleased or a zero value after its scope has closed.
func TestUseAfterClose(t *testing.T) {
	begin(t)
	var x *Tensor
	scoped(t, func() { x = Ones([]int{2}) })
	y := Ones([]int{2})
	defer y.Release()
	_, dataErr := Data[float32](x)
	_, itemErr := x.Item()
	_, splitErr := x.Split(1)
	_, gradErr := runGrad([]*Tensor{x}, []*Tensor{y})
	_, gradsErr := Grads([]*Tensor{x})
	_, hookErr := x.RegisterHook(func(*Tensor) (*Tensor, error) { return nil, nil })
	for what, err := range map[string]error{
		"x+y": x.Add(y).Err(), "y+x": y.Add(x).Err(), "x+1": x.Add(1).Err(), "in place": x.Add_(y).Err(), "Data": dataErr, "Item": itemErr, "Split": splitErr,
		"Cat": Cat([]*Tensor{y, x}).Err(), "option": y.Sum().Add(weighted(y, x)).Err(), "Backward": x.Backward(), "Gradient": y.Backward(Gradient(x)),
		"runGrad": gradErr, "Grads": gradsErr, "Hook": hookErr, "Keep": x.Keep().Err(), "MoveOut": x.MoveOut().Err(), "Alias": x.Alias().Err(), "To": x.To(Float64).Err(),
		"Err": x.Err(), "Index": x.Index(0).Err(), "SetIndex": x.SetIndex(0, 1), "value": y.SetIndex(0, x), "SetGrad": x.SetGrad(y), "RetainGrad": x.RetainGrad(), "ZeroGrads": ZeroGrads([]*Tensor{x}, true),
		"RequiresGrad_": x.RequiresGrad_().Err(), "SetRNGState": SetRNGState(x), "View": x.View(2).Err(), "MatMul": y.MatMul(x).Err(),
	} {
		wantErr(t, what, err, ErrReleased)
	}
	if x.Shape() != nil || x.Dim() != 0 || x.DType() != Invalid || x.Numel() != 0 || x.RequiresGrad() || x.Version() != -1 || x.SharesStorage(y) {
		t.Error("a released tensor has metadata")
	}
	x.Release()
}

// TestErr tests Err for every kind of unusable tensor.
func TestErr(t *testing.T) {
	begin(t)
	x := Ones([]int{2})
	if err := x.Err(); err != nil {
		t.Error(err)
	}
	x.site = sites.Here() + 1
	x.Release()
	wantErr(t, "released", x.Err(), ErrReleased)
	if err := x.Err(); err == nil || !strings.Contains(err.Error(), "made at ") || !strings.Contains(err.Error(), "scope_test.go:") {
		t.Errorf("%v does not name the line that made the tensor", err)
	}
	wantErr(t, "nil", (*Tensor)(nil).Err(), ErrNil)
	wantErr(t, "made by no operator", new(Tensor).Err(), ErrNil)
	mine := errors.New("mine")
	wantErr(t, "failed", Failed(mine).Err(), mine)
}

func TestReplace(t *testing.T) {
	begin(t)
	var h *Tensor
	var first *Tensor
	scoped(t, func() {
		first = Ones([]int{2})
		if err := Replace(&h, first); err != nil {
			t.Fatal(err)
		}
	})
	if h != first || h.Err() != nil {
		t.Fatalf("the scope's tensors are not kept: %v", h)
	}
	scoped(t, func() {
		second := h.Add(1)
		if err := Replace(&h, second); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "the old tensor", first.Err(), ErrReleased)
		if err := Replace(&h, h); err != nil || h != second || h.Err() != nil {
			t.Errorf("replaced by itself: %v, %v", h, err)
		}
		// An unusable tensor changes nothing.
		wantErr(t, "released", Replace(&h, first), ErrReleased)
		wantErr(t, "failed", Replace(&h, h.View(7)), ErrArgument)
		wantErr(t, "nil", Replace(&h, nil), ErrNil)
		wantErr(t, "no variable", Replace(nil, second), ErrNil)
		if h != second || h.Err() != nil {
			t.Errorf("a failed replacement changed the variable: %v", h)
		}
		// A tensor in a scope leaves it, even if it does not replace another.
		third := h.Mul(2)
		g := third
		if err := Replace(&g, third); err != nil || CurrentScope().Contains(third) {
			t.Errorf("%v, in a scope: %v", err, CurrentScope().Contains(third))
		}
		third.Release()
	})
	equal(t, "the sum", values(t, h.Sum())[0], 4)
	h.Release()
	wantErr(t, "the variable's tensor after its release", Replace(&h, h), ErrReleased)
}

// TestReplaceWhileUsed tests that a tensor that operators on other goroutines use is freed after they end.
func TestReplaceWhileUsed(t *testing.T) {
	begin(t)
	var h *Tensor
	if err := Replace(&h, Ones([]int{1000})); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	current := func() *Tensor { mu.Lock(); defer mu.Unlock(); return h }
	for range 4 {
		wg.Go(func() {
			for range 300 {
				sum, err := current().Sum().Item()
				if err == nil && sum != 1000 || err != nil && !errors.Is(err, ErrReleased) {
					t.Errorf("got %v, %v", sum, err)
				}
			}
		})
	}
	for range 300 {
		next := Ones([]int{1000})
		mu.Lock()
		if err := Replace(&h, next); err != nil {
			t.Error(err)
		}
		mu.Unlock()
	}
	wg.Wait()
	h.Release()
}

// weighted calls an operator with an option that holds a tensor.
func weighted(x, weight *Tensor) *Tensor {
	return x.Unsqueeze(0).BinaryCrossEntropyWithLogits(x.Unsqueeze(0), Weight(weight))
}

// TestUnreadErrors tests that the error of a tensor counts as read only once the program has it: not after a call without
// an error result, nor after one whose result carries it.
func TestUnreadErrors(t *testing.T) {
	begin(t)
	at, pointers := FromSlice([]int{0, 1}, []int{1, 2}), FromSlice([]int{0, 1, 2}, []int{3})
	defer at.Release()
	defer pointers.Release()
	indices := at.Reshape(2)
	defer indices.Release()
	for name, f := range map[string]func(bad *Tensor){
		"SparseCOOTensor":                   func(bad *Tensor) { _ = SparseCOOTensor(at, bad, []int{3}).ToDense() },
		"SparseCSRTensor of another dtype":  func(bad *Tensor) { _ = SparseCSRTensor(pointers, indices, bad, []int{2, 2}, Float64) },
		"SVDLowRank":                        func(bad *Tensor) { _, _, _ = bad.SVDLowRank(2, 2, nil) },
		"SparseSum":                         func(bad *Tensor) { _ = bad.SparseSum() },
		"PCALowRank":                        func(bad *Tensor) { _, _, _ = bad.PCALowRank(2, true, 2) },
		"Keep":                              func(bad *Tensor) { _ = bad.Keep() },
		"MoveOut":                           func(bad *Tensor) { _ = bad.MoveOut() },
		"Alias":                             func(bad *Tensor) { _ = bad.Alias() },
		"Shape":                             func(bad *Tensor) { _ = bad.Shape() },
		"Stride":                            func(bad *Tensor) { _ = bad.Stride() },
		"Size":                              func(bad *Tensor) { _ = bad.Size(0) },
		"Dim":                               func(bad *Tensor) { _ = bad.Dim() },
		"Numel":                             func(bad *Tensor) { _ = bad.Numel() },
		"DType":                             func(bad *Tensor) { _ = bad.DType() },
		"Device":                            func(bad *Tensor) { _ = bad.Device() },
		"Layout":                            func(bad *Tensor) { _ = bad.Layout() },
		"IsContiguous":                      func(bad *Tensor) { _ = bad.IsContiguous() || bad.IsContiguous(ChannelsLast) },
		"StorageOffset and StorageBytes":    func(bad *Tensor) { _ = bad.StorageOffset() + bad.StorageBytes() },
		"SharesStorage":                     func(bad *Tensor) { _ = at.SharesStorage(bad) || bad.SharesStorage(at) },
		"RequiresGrad, IsLeaf, IsInference": func(bad *Tensor) { _ = bad.RequiresGrad() || bad.IsLeaf() || bad.IsInference() },
		"Version":                           func(bad *Tensor) { _ = bad.Version() },
	} {
		err := WithScope(func() error { f(Ones([]int{2}).Add(Ones([]int{3}))); return nil })
		var e *Error
		if !errors.As(err, &e) || e.Op != "Add" {
			t.Errorf("after %s the scope returns %v", name, err)
		}
	}
}

func TestWithScope(t *testing.T) {
	begin(t)
	mine := errors.New("mine")
	if err := WithScope(func() error { _ = Ones([]int{1}); return mine }); err != mine {
		t.Errorf("got %v", err)
	}
	// WithScope returns an unread error.
	err := WithScope(func() error { _ = Ones([]int{2}).Add(Ones([]int{3})); return nil })
	var e *Error
	if !errors.As(err, &e) || e.Op != "Add" {
		t.Errorf("got %v", err)
	}
	// It does not return an error that was read.
	if err := WithScope(func() error { _ = Ones([]int{2}).Add(Ones([]int{3})).Err(); return nil }); err != nil {
		t.Errorf("got %v", err)
	}
	// It returns the first unread error, even after errors that were read.
	err = WithScope(func() error {
		for range 40 {
			_ = Ones([]int{2}).Add(Ones([]int{3})).Err()
		}
		first := Ones([]int{2}).Sub(Ones([]int{3}))
		_ = Ones([]int{2}).Mul(Ones([]int{3}))
		_ = Ones([]int{2}).Div(Ones([]int{3}))
		_ = first.Err()
		return nil
	})
	if !errors.As(err, &e) || e.Op != "Mul" {
		t.Errorf("got %v", err)
	}
	// A panic propagates, and the scope is closed.
	var x *Tensor
	func() {
		defer func() {
			if p := recover(); p != "mine" {
				t.Errorf("recovered %v", p)
			}
		}()
		//linstockvet:ignore scopeescape the test uses it after its scope
		_ = WithScope(func() error { x = Ones([]int{1}); panic("mine") })
	}()
	wantErr(t, "after the panic", x.Add(1).Err(), ErrReleased)
	if CurrentScope() != nil {
		t.Error("a scope is left")
	}
	// An error belongs to the scope in which it occurred, not to enclosing scopes.
	if err := WithScope(func() error {
		if err := WithScope(func() error { _ = Ones([]int{2}).Add(Ones([]int{3})); return nil }); err == nil {
			t.Error("no error")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestTidy(t *testing.T) {
	begin(t)
	scope := open(t)
	x := Ones([]int{4})
	y := Tidy(func() *Tensor { return x.Add(1).Mul(2).Sub(3) })
	equal(t, "entries", scope.Len(), 2)
	equal(t, "value", values(t, y)[0], 1)
	scope2 := scope.Len()
	if z := Tidy(func() *Tensor { return x }); z != x {
		t.Error("a tensor that was not made inside is returned unchanged")
	}
	equal(t, "entries", scope.Len(), scope2)
	failed := Tidy(func() *Tensor { return x.Add(Ones([]int{3})) })
	if failed.Err() == nil {
		t.Error("no error")
	}
	if Tidy(func() *Tensor { return nil }) != nil {
		t.Error("nil stays nil")
	}
	kept := Tidy(func() *Tensor { return x.Add(1).Keep() })
	ts, err := TidyAll(func() ([]*Tensor, error) { _ = x.Add(7); return []*Tensor{x.Add(1), nil, x, x.Add(2)}, nil })
	if err != nil || len(ts) != 4 || ts[0].Add(1).Err() != nil || ts[3].Add(1).Err() != nil {
		t.Error(ts, err)
	}
	if err := scope.Close(); err != nil {
		t.Error(err)
	}
	wantErr(t, "y", y.Add(1).Err(), ErrReleased)
	if err := kept.Add(1).Err(); err != nil {
		t.Error(err)
	}
	kept.Release()
	// Tidy also works outside all scopes.
	z := Tidy(func() *Tensor { return Ones([]int{1}).Add(1) })
	equal(t, "value", values(t, z)[0], 2)
	z.Release()
}

func TestKeepMoveAdopt(t *testing.T) {
	begin(t)
	outer := open(t)
	inner := open(t)
	x := Ones([]int{1})
	if err := outer.Adopt(x); err != nil {
		t.Fatal(err)
	}
	if err := outer.Adopt(x); err != nil {
		t.Error("adopting a tensor that the scope owns must do nothing", err)
	}
	equal(t, "inner", inner.Len(), 0)
	equal(t, "outer", outer.Len(), 1)
	a := x.Alias()
	x.Release()
	x.Release()
	if err := a.Add(1).Err(); err != nil {
		t.Error("an alias has its own lifetime", err)
	}
	y := Ones([]int{1}).MoveOut().MoveOut()
	equal(t, "kept by moving out twice", outer.Len(), 0)
	released := Ones([]int{1})
	released.Release()
	var e *Error
	if err := released.Keep().Err(); !errors.As(err, &e) || e.Op != "Keep" || !errors.Is(err, ErrReleased) {
		t.Errorf("Keep of a released tensor: %v; the error must name Keep", err)
	}
	nested := open(t)
	closed := Ones([]int{1})
	if err := nested.Close(); err != nil {
		t.Error(err)
	}
	if err := closed.MoveOut().Err(); !errors.As(err, &e) || e.Op != "MoveOut" || !errors.Is(err, ErrReleased) {
		t.Errorf("MoveOut of a tensor of a closed scope: %v; the error must name MoveOut", err)
	}
	wantErr(t, "Adopt", inner.Adopt(y, released), ErrReleased)
	wantErr(t, "Adopt", inner.Adopt(nil), ErrNil)
	wantErr(t, "Adopt", (*Scope)(nil).Adopt(y), ErrNil)
	_ = inner.Close()
	wantErr(t, "y", y.Add(1).Err(), ErrReleased) // inner adopted it before it rejected the other
	z := Ones([]int{1}).Keep().Keep()
	_ = outer.Close()
	wantErr(t, "Adopt", outer.Adopt(z), ErrScope)
	if err := z.Add(1).Err(); err != nil {
		t.Error("a tensor that a closed scope rejected stays usable", err)
	}
	if z.MoveOut() != z {
		t.Error("outside scopes MoveOut does nothing")
	}
	z.Release()
	wantErr(t, "nil", (*Scope)(nil).Close(), ErrNil)
	equal(t, "nil", (*Scope)(nil).Len(), 0)
}

func TestCloseOuterFirst(t *testing.T) {
	begin(t)
	outer, middle, inner := open(t), open(t), open(t)
	x := Ones([]int{1})
	if err := outer.Close(); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "x", x.Add(1).Err(), ErrReleased)
	if CurrentScope() != nil {
		t.Error("a scope is left")
	}
	if err := errors.Join(inner.Close(), middle.Close()); err != nil {
		t.Error("those inside are closed already", err)
	}
	// The goroutine unlocked its thread as often as it locked it; otherwise the thread would end with the goroutine.
	scoped(t, func() { _ = Ones([]int{1}) })
}

func TestCloseElsewhere(t *testing.T) {
	begin(t)
	s := open(t)
	x := Ones([]int{1})
	done := make(chan error)
	go func() { done <- s.Close() }()
	wantErr(t, "Close", <-done, ErrScope)
	go func() {
		own, err := NewScope()
		if err == nil {
			err = s.Close()
			_ = own.Close()
		}
		done <- err
	}()
	wantErr(t, "Close", <-done, ErrScope)
	if err := x.Add(1).Err(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestGoexit tests that the tensors of open scopes are freed when their goroutine, and with it its thread, ends.
func TestGoexit(t *testing.T) {
	begin(t)
	before := held.Load()
	for range 20 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if _, err := NewScope(); err != nil {
				t.Error(err)
			}
			_ = Ones([]int{1000})
			if _, err := NewScope(); err != nil {
				t.Error(err)
			}
			_ = Ones([]int{1000})
			runtime.Goexit()
		}()
		<-done
	}
	settle(t)
	equal(t, "goroutines that hold scopes", held.Load(), before)
}

func TestErrorContents(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{2, 3})
		_, file, line, _ := runtime.Caller(0)
		y := x.MatMul(Ones([]int{2}, Float64))
		var e *Error
		if !errors.As(y.Err(), &e) {
			t.Fatal(y.Err())
		}
		equal(t, "Op", e.Op, "MatMul")
		equal(t, "Operands", strings.Join(e.Operands, " "), "float32(2, 3) float64(2)")
		if !strings.HasPrefix(e.Caller, file+":") || !strings.HasSuffix(e.Caller, ":"+strconv.Itoa(line+1)) {
			t.Errorf("Caller is %s, want %s:%d", e.Caller, file, line+1)
		}
		wantErr(t, "kind", e, ErrArgument)
		// Operators pass the first error on unchanged.
		z := y.Add(1).ReLU().Sum(Dim(5))
		if z.Err() != y.Err() {
			t.Errorf("got %v", z.Err())
		}
		wantErr(t, "index", x.Select(0, 7).Err(), ErrIndex)
		wantErr(t, "index", x.Sum(Dim(7)).Err(), ErrIndex)
		if err := x.ToSparse().Softmax(0).Err(); err == nil || strings.Contains(err.Error(), "registered at") {
			t.Errorf("no kernel: %v lists the kernels of other backends", err)
		}
		wantErr(t, "no kernel", x.To(Float8E5M2).Add(x.To(Float8E5M2)).Err(), ErrNotImplemented)
		wantErr(t, "singular", Zeros([]int{2, 2}).LinalgInv().Err(), ErrLinAlg)
		wantErr(t, "memory", Zeros([]int{1 << 45}).Err(), ErrOutOfMemory)
		wantErr(t, "nil", x.Add((*Tensor)(nil)).Err(), ErrNil)
		wantErr(t, "nil", (*Tensor)(nil).Add(x).Err(), ErrNil)
		wantErr(t, "nil", (&Tensor{}).Add(x).Err(), ErrNil)
		wantErr(t, "option", x.Sum(Step(1)).Err(), ErrArgument)
		wantErr(t, "own", Failed(ErrDevice).Add(x).Err(), ErrDevice)
		if Failed(nil).Err() == nil {
			t.Error("Failed(nil) has no error")
		}
	})
}

// TestAllocations tests that an operator in a scope allocates one Go object.
func TestAllocations(t *testing.T) {
	counted(t)
	begin(t)
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	scoped(t, func() {
		x, y := Ones([]int{4}), Ones([]int{4})
		scope := CurrentScope()
		scope.entries = append(make([]*Tensor, 0, 1<<14), scope.entries...) // growing the list is not counted
		for name, c := range map[string]struct {
			most float64
			f    func()
		}{
			"Add": {1, func() { _ = x.Add(y) }}, "Add_": {0, func() { x.Add_(y) }}, "View": {1, func() { _ = x.View(2, 2) }}, "MatMul": {1, func() { _ = x.MatMul(y) }},
			"ReLU": {1, func() { _ = x.ReLU() }}, "Numel": {0, func() { x.Numel() }}, "Release": {1, func() { x.Add(y).Release() }},
		} {
			if got := testing.AllocsPerRun(200, c.f); got > c.most {
				t.Errorf("%s: %v allocations, at most %v are allowed", name, got, c.most)
			}
		}
	})
}

// TestToAFormat tests that To lays a tensor out, and that IsContiguous says how it is laid out.
func TestToAFormat(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for format, shape := range map[MemoryFormat][]int{ChannelsLast: {2, 3, 4, 5}, ChannelsLast3d: {2, 3, 2, 4, 5}} {
			x := Randn(shape)
			y := x.To(format)
			z := y.To(Float64, format)
			for what, ok := range map[string]bool{
				"contiguous in its format": y.IsContiguous(format) && z.IsContiguous(format) && z.DType() == Float64,
				"row-major":                x.IsContiguous() && x.IsContiguous(ContiguousFormat) && y.To(ContiguousFormat).IsContiguous(),
				"in the other order":       !x.IsContiguous(format) && !y.IsContiguous() && !x.Sum().IsContiguous(format),
				"shared":                   y.To(format).SharesStorage(y) && y.To(PreserveFormat).SharesStorage(y) && !y.To(ContiguousFormat).SharesStorage(y),
			} {
				if !ok {
					t.Errorf("%v: not %s: strides %v, %v, %v", format, what, x.Stride(), y.Stride(), z.Stride())
				}
			}
			if same, err := x.Equal(y); err != nil || !same {
				t.Errorf("%v: the elements differ: %v", format, err)
			}
		}
		// With one channel both orders are the same, but the strides name one of them.
		x := Ones([]int{2, 1, 4, 5})
		if !x.IsContiguous() || !x.IsContiguous(ChannelsLast) {
			t.Error("one channel is not contiguous in both formats")
		}
		y := x.To(ChannelsLast)
		if want := []int{20, 1, 5, 1}; !slices.Equal(y.Stride(), want) || y.SharesStorage(x) || !y.To(ChannelsLast).SharesStorage(y) {
			t.Errorf("one channel: strides %v, want %v in a storage of its own", y.Stride(), want)
		}
		if z, want := y.To(ContiguousFormat), []int{20, 20, 5, 1}; !slices.Equal(z.Stride(), want) || z.SharesStorage(y) {
			t.Errorf("one channel, row-major: strides %v, want %v in a storage of its own", z.Stride(), want)
		}
		for _, f := range []MemoryFormat{-1, 4, 127} {
			if err := x.To(f).Err(); !errors.Is(err, ErrArgument) {
				t.Errorf("To(%v): %v", f, err)
			}
		}
		if Ones([]int{2}).To(ChannelsLast).Err() == nil {
			t.Error("a vector has channels last")
		}
	})
}

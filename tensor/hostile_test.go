package tensor

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/internal/handle"
)

// The hostile test calls every exported function and method of the package with invalid arguments of every kind
// we could think of, from several goroutines at once. Results and errors are allowed; a panic, a crash, a hang
// or a leak is not.
//
// It runs in its own process, since a crash in C++ ends the process. Each goroutine writes its current call to
// a file that both processes map, so that the parent can report the call that crashed.
//
//	LINSTOCK_HOSTILE_CALLS  calls of each goroutine (3000)
//	LINSTOCK_HOSTILE_SEED   another seed (1)
//	LINSTOCK_HOSTILE_ONLY   one operator
//	LINSTOCK_HOSTILE_SKIP   operators to leave out, separated by commas
//	LINSTOCK_HOSTILE_ROUND  calls in one scope (40)
//	LINSTOCK_HOSTILE_TRACE  print each call, in the process that makes them (with LINSTOCK_HOSTILE_FILE)
//	LINSTOCK_HOSTILE_GOROUTINE  only the calls of one goroutine; they are the same as in a full run
const (
	hostileGoroutines = 16
	hostileSlot       = 4096
)

func hostileEnv(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv("LINSTOCK_HOSTILE_" + name)); err == nil {
		return n
	}
	return otherwise
}

func TestHostile(t *testing.T) {
	if path := os.Getenv("LINSTOCK_HOSTILE_FILE"); path != "" {
		hostileChild(t, path)
		return
	}
	begin(t)
	path := filepath.Join(t.TempDir(), "calls")
	if err := os.WriteFile(path, make([]byte, hostileGoroutines*hostileSlot), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHostile$", "-test.v", "-test.timeout=240s")
	cmd.Env = append(os.Environ(), "LINSTOCK_HOSTILE_FILE="+path)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	text := out.String()
	for line := range strings.Lines(text) {
		if strings.Contains(line, ".go:") && !strings.Contains(line, "+0x") {
			t.Log(strings.TrimSpace(line))
		}
	}
	if err == nil {
		return
	}
	at := len(text)
	for _, mark := range []string{"\nSIG", "\nfatal error", "\npanic", "\nunexpected fault", "terminate called", "--- FAIL"} {
		if i := strings.Index(text, mark); i >= 0 {
			at = min(at, i)
		}
	}
	t.Errorf("%v\n%s", err, text[at:min(len(text), at+6000)])
	if slots, err := os.ReadFile(path); err == nil {
		for g := range hostileGoroutines {
			slot := slots[g*hostileSlot : (g+1)*hostileSlot]
			slot = slot[:max(0, bytes.IndexByte(slot, 0))]
			if len(slot) > 0 {
				t.Errorf("goroutine %d was calling %s", g, slot)
			}
		}
	}
}

func hostileChild(t *testing.T, path string) {
	begin(t)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	slots, err := syscall.Mmap(int(f.Fd()), 0, hostileGoroutines*hostileSlot, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	cases := map[string][]goldenCase{}
	for _, c := range goldenCases(t, "../tests/golden/ops.jsonl") {
		cases[c.Op] = append(cases[c.Op], c)
	}
	targets := hostileTargets(t)
	if only := os.Getenv("LINSTOCK_HOSTILE_ONLY"); only != "" {
		targets = slices.DeleteFunc(targets, func(h hostileTarget) bool { return h.name != only })
	}
	if skip := os.Getenv("LINSTOCK_HOSTILE_SKIP"); skip != "" {
		targets = slices.DeleteFunc(targets, func(h hostileTarget) bool { return slices.Contains(strings.Split(skip, ","), h.name) })
	}
	defer restoreSettings()()
	calls, seed := hostileEnv("CALLS", 3000), hostileEnv("SEED", 1)
	var wg sync.WaitGroup
	var failures, refusals atomic.Int64
	called := make([]atomic.Int64, len(targets))
	begun := make([]atomic.Int64, hostileGoroutines)
	done := make(chan struct{})
	go func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Second):
			}
			for g := range begun {
				if at := begun[g].Load(); at != 0 && time.Since(time.Unix(0, at)) > 60*time.Second {
					slot := slots[g*hostileSlot : (g+1)*hostileSlot]
					panic(fmt.Sprintf("a call has taken a minute: %s", slot[:bytes.IndexByte(slot, 0)]))
				}
			}
		}
	}()
	start := time.Now()
	for g := range hostileGoroutines {
		if only := hostileEnv("GOROUTINE", g); only != g {
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			h := &hostile{rng: rand.New(rand.NewPCG(uint64(seed), uint64(g))), slot: slots[g*hostileSlot : (g+1)*hostileSlot], cases: cases}
			for n := 0; n < calls; {
				// A scope around some calls frees the tensors they make; the collector frees those of the others.
				round := func() error {
					h.refill()
					for range hostileEnv("ROUND", 40) {
						n++
						i := h.rng.IntN(len(targets))
						called[i].Add(1)
						begun[g].Store(time.Now().UnixNano())
						if err := h.call(&targets[i]); err != nil {
							refusals.Add(1)
							var e *Error
							if errors.As(err, &e) && (e.Message == "" || e.Kind == nil) {
								t.Errorf("an empty error: %#v", e)
							}
						}
						begun[g].Store(0)
						if h.failed != "" {
							failures.Add(1)
							t.Error(h.failed)
							h.failed = ""
						}
					}
					return nil
				}
				if g%4 == 3 {
					_ = round()
				} else if err := WithScope(round); errors.Is(err, ErrScope) {
					t.Error(err)
				}
				if failures.Load() > 20 {
					return
				}
			}
			h.pool = nil
			clear(h.slot)
		}()
	}
	wg.Wait()
	close(done)
	missed := 0
	for i := range called {
		if called[i].Load() == 0 {
			missed++
		}
	}
	t.Logf("%d targets (%d not reached), %d calls, %d errors, %v", len(targets), missed, calls*hostileGoroutines, refusals.Load(), time.Since(start).Round(time.Millisecond))
}

// restoreSettings saves the process's settings and returns a function that restores them.
func restoreSettings() func() {
	threads, dtype, deterministic, precision, bound := NumThreads(), DefaultDType(), Deterministic(), MatMulPrecision(), SetMaxScopedGoroutines(1000)
	SetMaxScopedGoroutines(bound)
	printing := CurrentPrintOptions()
	return func() {
		_ = SetPrintOptions(printing)
		_ = SetNumThreads(threads)
		_ = SetDefaultDType(dtype)
		_ = SetDeterministic(deterministic)
		_ = SetMatMulPrecision(precision)
		SetMaxScopedGoroutines(bound)
	}
}

type hostileTarget struct {
	name string
	fn   reflect.Value
	op   *op // descriptor of a generated operator
	// Schema of an operator that Call calls; nil for other functions.
	schema []string
}

// hostileSkipped are exported functions that the test does not call, with the reasons.
var hostileSkipped = map[string]string{
	"SetMaxScopedGoroutines": "an error for another goroutine's scope is not a failure",
	"SetNumThreads":          "each thread count starts its threads, on each of the test's; see TestNumThreads",
	"SetDefaultDType":        "see TestSettings: it changes what the others expect",
	"Synchronize":            "see TestSettings",
	"Scope.Close":            "the scopes are the test's own",
	"SetCallbacks":           "",
}

// hostileBytes is the memory for FromMapped; it is never collected.
var hostileBytes = make([]byte, 16)

// hostileTargets are all exported functions and methods. The test fails if one is missing.
func hostileTargets(t *testing.T) []hostileTarget {
	var all []hostileTarget
	have := map[string]bool{}
	add := func(name string, fn any) {
		have[name] = true
		all = append(all, hostileTarget{name: name, fn: reflect.ValueOf(fn)})
	}
	for _, o := range operators {
		fn := reflect.ValueOf(o.fn)
		name := o.name
		if fn.Type().NumIn() > 0 && fn.Type().In(0) == reflect.TypeFor[*Tensor]() {
			if _, ok := reflect.TypeFor[*Tensor]().MethodByName(o.name); ok {
				name = "Tensor." + name
			}
		}
		have[name] = true
		all = append(all, hostileTarget{name: o.name, fn: fn, op: o.op})
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[*Tensor](), reflect.TypeFor[*Scope](), reflect.TypeFor[DType](), reflect.TypeFor[Device](),
		reflect.TypeFor[Reduction](), reflect.TypeFor[Slice](), reflect.TypeFor[*Error](), reflect.TypeFor[*PanicError]()} {
		for i := range typ.NumMethod() {
			m := typ.Method(i)
			short := typ
			if short.Kind() == reflect.Pointer {
				short = short.Elem()
			}
			name := short.Name() + "." + m.Name
			if have[name] || hostileSkipped[name] != "" || short.Name() == "Error" {
				have[name] = true
				continue
			}
			have[name] = true
			all = append(all, hostileTarget{name: name, fn: m.Func})
		}
	}
	for name, f := range optionsByName {
		_ = name
		have[runtimeName(f)] = true
	}
	for name, fns := range map[string][]any{
		"Call": {Call}, "CallUnchecked": {func(x *Tensor) ([]any, error) { return CallUnchecked("aten::_conj", x) }}, "Schema": {Schema}, "OperatorNames": {OperatorNames},
		"NewScope":     {func() error { s, err := NewScope(); _ = s.Len(); return errors.Join(err, s.Close()) }},
		"WithScope":    {func(x *Tensor) error { return WithScope(func() error { return x.Mul(2).Err() }) }},
		"Tidy":         {func(x, y *Tensor) *Tensor { return Tidy(func() *Tensor { return x.Add(y) }) }, func(x *Tensor) *Tensor { return Tidy(func() *Tensor { return x }) }},
		"TidyAll":      {func(xs []*Tensor) ([]*Tensor, error) { return TidyAll(func() ([]*Tensor, error) { return xs, nil }) }},
		"Replace":      {func(x, y *Tensor) error { return Replace(&x, y) }, func(x *Tensor) error { return errors.Join(Replace(&x, x), Replace(nil, x)) }},
		"CurrentScope": {CurrentScope}, "Gradient": {Gradient}, "Inputs": {Inputs}, "RetainGraph": {RetainGraph}, "CreateGraph": {CreateGraph},
		"AllowUnused": {AllowUnused}, "runBackward": {runBackward}, "runGrad": {runGrad}, "Grads": {Grads}, "ZeroGrads": {ZeroGrads},
		"tieFunction": {tieFunction},
		"runCheckpoint": {runCheckpoint, func(x, y *Tensor) error {
			out, err := runCheckpoint([]*Tensor{x, y}, func(in []*Tensor) ([]*Tensor, error) {
				z := in[0].Exp().Mul(in[1]).Tanh()
				return []*Tensor{z}, z.Err()
			})
			if err != nil {
				return err
			}
			return out[0].Sum().Backward()
		}},
		"ScriptObject.Class": {(*ScriptObject).Class, func(x *Tensor) (string, error) {
			o, err := script(x)
			if err != nil {
				return "", err
			}
			defer o.Release()
			return o.Class()
		}},
		"ScriptObject.Release": {(*ScriptObject).Release, func(x *Tensor) (string, error) {
			o, err := script(x)
			o.Release()
			o.Release()
			name, missing := o.Class()
			return name, errors.Join(err, missing)
		}},
		"OptionValue": {func() string { name, _ := OptionValue(nil); return name }, func(d DType) string { name, _ := OptionValue(d); return name }},
		"adamStep": {func(a, b, c, d, e []*Tensor, lr float64, on bool) error {
			return adamStep(handle.Adam{LR: lr, Eps: lr, AMSGrad: on}, a, b, c, d, e)
		}, func(p, q *Tensor, lr float64, on bool) error {
			if p.RequiresGrad() && p.IsLeaf() {
				_ = p.SetGrad(q.Detach())
			}
			return adamStep(handle.Adam{LR: lr, Eps: lr, AMSGrad: on}, []*Tensor{p}, []*Tensor{q}, []*Tensor{q}, []*Tensor{q}, []*Tensor{Zeros(nil)})
		}},

		"ForkRNG":   {func(d []Device, x *Tensor) error { return ForkRNG(func() error { return x.Err() }, d...) }},
		"RNGStates": {RNGStates}, "SetRNGStates": {SetRNGStates},
		"NewGenerator":       {func(d Device) error { g := NewGenerator(d); defer g.Release(); return g.Err() }},
		"Generator.SetState": {func(x *Tensor, d Device) error { g := NewGenerator(d); defer g.Release(); return g.SetState(x) }, (*Generator).SetState},
		"Generator.Err":      {(*Generator).Err}, "Generator.Device": {(*Generator).Device}, "Generator.Seed": {(*Generator).Seed},
		"Generator.InitialSeed": {(*Generator).InitialSeed}, "Generator.State": {(*Generator).State},
		"Generator.Release":    {func(g *Generator) { g.Release(); g.Release() }},
		"Generator.ManualSeed": {func(g *Generator, seed uint64) error { return g.ManualSeed(seed).Err() }},
		"Layout.String":        {Layout.String}, "MemoryFormat.String": {MemoryFormat.String},
		"Generator.Clone": {func(seed uint64) error {
			g := NewGenerator().ManualSeed(seed)
			c := g.Clone()
			g.Release()
			defer c.Release()
			_, err := c.Seed()
			return errors.Join(err, c.State().Err(), g.Clone().Err())
		}},
		"withAnomaly": {func(on bool, x *Tensor) error {
			return withAnomaly(on, func() error { return x.Exp().Sum().Backward() })
		}},
		"withAttention": {func(n []int32, x *Tensor) error {
			return withAttention("withAttention", n, func() error { return ScaledDotProductAttention(x, x, x).Err() })
		}},
		"registerMulti": {func(xs []*Tensor, first bool, f func(*Tensor) error) error {
			if f == nil {
				return nil
			}
			remove, err := registerMulti("registerMulti", xs, first, func(grads []*Tensor) error {
				for _, g := range grads {
					if g != nil {
						return f(g)
					}
				}
				return nil
			})
			defer remove()
			if err == nil && len(xs) > 0 {
				err = xs[0].Mul(2).Sum().Backward()
			}
			return err
		}},
		"withGrad":      {func(on bool, x *Tensor) error { return withGrad(on, func() error { return x.Exp().Err() }) }},
		"withInference": {func(on bool, x *Tensor) error { return withInference(on, func() error { return x.Exp().Err() }) }},
		"GradEnabled":   {GradEnabled}, "InferenceEnabled": {InferenceEnabled},
		"FromSlice":       {FromSlice[float32], FromSlice[float64], FromSlice[bool], FromSlice[int], FromSlice[complex128], FromSlice[Float16Bits]},
		"SparseCOOTensor": {SparseCOOTensor}, "SparseCSRTensor": {SparseCSRTensor}, "SparseCSCTensor": {SparseCSCTensor}, "SparseBSRTensor": {SparseBSRTensor}, "SparseBSCTensor": {SparseBSCTensor},
		"FromScalar": {FromScalar}, "Data": {Data[float32], Data[bool], Data[int64], Data[complex64], Data[Float8E5M2Bits]},
		"AppendData": {AppendData[float32], AppendData[bool]},
		"Item":       {Item[float64], Item[bool], Item[int8], Item[uint64], Item[complex64]}, "FromMapped": {func(d DType, shape []int, n int, drop func()) *Tensor {
			return FromMapped(d, shape, hostileBytes[:max(0, min(n, len(hostileBytes)))], drop)
		}}, "Failed": {Failed},
		"ManualSeed": {ManualSeed}, "RNGState": {RNGState}, "SetRNGState": {SetRNGState}, "NumThreads": {NumThreads},
		"SetDeterministic": {func() error { return SetDeterministic(false) }}, "Deterministic": {Deterministic},
		"SetMatMulPrecision": {SetMatMulPrecision}, "MatMulPrecision": {MatMulPrecision}, "DefaultDType": {DefaultDType},
		"Version": {Version}, "ShimPath": {ShimPath}, "Config": {Config}, "CUDA": {CUDA}, "ParseDevice": {ParseDevice}, "Devices": {Devices},
		"Device.UnmarshalText": {func(text []byte) error { return new(Device).UnmarshalText(text) }},
		"DType.UnmarshalText":  {func(text []byte) error { return new(DType).UnmarshalText(text) }},
		"ParseDType":           {ParseDType}, "DTypeOf": {DTypeOf[int]}, "Flush": {Flush}, "Range": {Range}, "From": {From}, "Until": {Until},
		"CurrentPrintOptions": {CurrentPrintOptions}, "SetPrintOptions": {func(precision, threshold, edge, width int, sci bool) error {
			return SetPrintOptions(PrintOptions{precision, threshold, edge, width, &sci})
		}},
		"LastUseAfter":   {LastUseAfter[*Tensor]},
		"ReadStatistics": {ReadStatistics}, "Track": {func(ts []*Tensor) { Track("hostile", ts...) }},
		"LastUseLayer":          {LastUseLayer[int]},
		"BroadcastShapes":       {func(a, b []int) ([]int, error) { return BroadcastShapes(a, b) }},
		"SignalWindowsBartlett": {SignalWindowsBartlett}, "SignalWindowsBlackman": {SignalWindowsBlackman}, "SignalWindowsCosine": {SignalWindowsCosine},
		"SignalWindowsExponential": {SignalWindowsExponential}, "SignalWindowsGaussian": {SignalWindowsGaussian},
		"SignalWindowsGeneralCosine": {SignalWindowsGeneralCosine}, "SignalWindowsGeneralHamming": {SignalWindowsGeneralHamming},
		"SignalWindowsHamming": {SignalWindowsHamming}, "SignalWindowsHann": {SignalWindowsHann}, "SignalWindowsKaiser": {SignalWindowsKaiser},
		"SignalWindowsNuttall": {SignalWindowsNuttall},
	} {
		for _, f := range fns {
			add(name, f)
		}
	}
	for _, name := range exportedFunctions(t) {
		if !have[name] && hostileSkipped[name] == "" {
			t.Errorf("%s is not called by the hostile test", name)
		}
	}
	all = append(all, schemaTargets(t)...)
	slices.SortStableFunc(all, func(a, b hostileTarget) int { return strings.Compare(a.name, b.name) })
	return all
}

// script returns an object that holds x, if x is quantized and has two dimensions.
func script(x *Tensor) (*ScriptObject, error) {
	out, err := CallUnchecked("quantized::linear_prepack", x, nil)
	if err != nil {
		return nil, err
	}
	o, _ := out[0].(*ScriptObject)
	return o, nil
}

func runtimeName(f any) string {
	name := runtime.FuncForPC(reflect.ValueOf(f).Pointer()).Name()
	return name[strings.LastIndexByte(name, '.')+1:]
}

// exportedFunctions reads the names from the package's sources.
func exportedFunctions(t *testing.T) []string {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !fn.Name.IsExported() {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				typ := fn.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				id, ok := typ.(*ast.Ident)
				if !ok || !id.IsExported() {
					continue
				}
				name = id.Name + "." + name
			}
			names = append(names, name)
		}
	}
	return names
}

// hostile generates one goroutine's arguments.
type hostile struct {
	rng    *rand.Rand
	slot   []byte
	cases  map[string][]goldenCase
	pool   []*Tensor
	text   string // the call under way
	failed string
}

func (h *hostile) say(text string) {
	h.text = text
	if os.Getenv("LINSTOCK_HOSTILE_TRACE") != "" {
		fmt.Fprintln(os.Stderr, text)
	}
	clear(h.slot)
	copy(h.slot[:len(h.slot)-1], text)
}

func (h *hostile) one(n int) bool { return h.rng.IntN(n) == 0 }

func pick[T any](h *hostile, list ...T) T { return list[h.rng.IntN(len(list))] }

// refill makes the goroutine's own tensors. Each goroutine needs its own, because several goroutines must not
// write to one tensor.
func (h *hostile) refill() {
	released := Zeros([]int{2})
	released.Release()
	nan := math.NaN()
	leaf := func(shape ...int) *Tensor { return Randn(shape).RequiresGrad_() }
	h.pool = []*Tensor{
		nil, {}, released, Zeros([]int{-1}), Failed(errors.New("made to fail")),
		Ones([]int{}), Ones([]int{1}), Randn([]int{3}), Zeros([]int{0}), Randn([]int{2, 3}), Randn([]int{3, 3}), Randn([]int{2, 3, 4}),
		Randn([]int{1, 2, 4, 4}), Randn([]int{1, 2, 3, 2, 2}), Zeros([]int{0, 3}), Randn([]int{3, 3}, Float64), Ones([]int{2, 2, 2, 2, 2, 2, 2}),
		Randn([]int{3, 4}).T(), Randn([]int{1, 3}).Expand(4, 3), Randn([]int{5}).Slice(0, Step(2)), leaf(3), leaf(2, 3), leaf(2, 2).Mul(2), leaf(),
		FromSlice([]float64{nan, math.Inf(1), math.Inf(-1), 0, math.Copysign(0, -1), 1e300}, []int{2, 3}), FromSlice([]float32{float32(nan), 1, -1}, nil),
		Arange(0, 6), Arange(0, 6).View(2, 3), FromSlice([]int{-1, 5, 1 << 40}, nil), FromSlice([]int{math.MaxInt, math.MinInt, 1 << 62}, nil),
		FromSlice([]int{0, 1, 1, 0}, nil), Zeros([]int{}, Int64), Zeros([]int{3}, Int32), Ones([]int{2, 3}, Int8), Ones([]int{2}, Uint8), Ones([]int{3}, Uint16),
		FromSlice([]bool{true, false, true}, nil), Ones([]int{2, 3}, Bool), Zeros([]int{}, Bool), Ones([]int{2, 3}, Float16), Ones([]int{3}, BFloat16),
		Ones([]int{3}, Float8E4M3FN), Randn([]int{2, 3}, Complex64), Randn([]int{3, 3}, Complex128).Conj(), Ones([]int{2}, Complex32), Zeros([]int{2, 3}, Meta),
		Zeros([]int{3, 3}), Eye(3).Mul(nan),
	}
	// Only every other pool has layouts other than strided, so that most calls pass the first checks.
	if h.one(2) {
		for range 8 {
			if x := h.odd(h.good()); x != nil {
				h.pool = append(h.pool, x)
			}
		}
	}
}

func (h *hostile) tensor() *Tensor { return pick(h, h.pool...) }

func (h *hostile) good() *Tensor {
	for {
		if x := h.tensor(); x != nil && x.h != 0 && x.fail == nil {
			return x
		}
	}
}

// Sizes in between would be allocated, and fill the machine's memory.
func (h *hostile) int() int {
	if h.one(6) {
		return pick(h, 1<<40, 1<<62, math.MaxInt, math.MinInt, -1<<40, 1<<53+1, math.MaxInt-1, math.MinInt+1)
	}
	return pick(h, 0, 1, 2, 3, 4, 5, 7, -1, -2, -3, -7)
}

func (h *hostile) float() float64 {
	return pick(h, 0, 1, 0.5, -1, 2, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e300, -1e300, 1e-300, math.SmallestNonzeroFloat64, 3, 0.1)
}

func (h *hostile) ints() []int {
	switch h.rng.IntN(8) {
	case 0:
		return nil
	case 1:
		return []int{}
	case 2:
		return slices.Repeat([]int{pick(h, 0, 1, -1, 1<<40, math.MaxInt)}, h.rng.IntN(70)) // not 2: 2^30 elements can be allocated
	}
	list := make([]int, h.rng.IntN(6))
	for i := range list {
		list[i] = h.int()
	}
	return list
}

func (h *hostile) str() string {
	return pick(h, "", "none", "mean", "sum", "trunc", "floor", "reflect", "constant", "linear", "xy", "ij", "\x00", "é\xff", strings.Repeat("x", 5000), "fro", "nuc",
		"amax", "prod", "tanh", "L", "U", "gelsd", "float32", "cuda:1", "highest", "1:2, ...", "[0, 1]", "None", "aten::add.Tensor", "aten::nothing", "aten::sum", "left", "use_mm_for_euclid_dist")
}

func (h *hostile) any() any {
	switch h.rng.IntN(12) {
	case 0, 1, 2:
		return h.tensor()
	case 3, 4:
		return h.int()
	case 5, 6:
		return h.float()
	case 7:
		return pick[any](h, true, complex(1, math.NaN()), float32(1), uint64(math.MaxUint64), int8(-1), uint8(3), complex64(2))
	case 8:
		return pick[any](h, nil, h.str(), struct{}{}, make(chan int), []int{1}, []any{1}, func() {}, (*int)(nil), Default, Ellipsis, All, From(h.int()).By(h.int()))
	case 9:
		return h.ints()
	case 10:
		return pick[any](h, h.dtype(), h.device(), Reduction(h.rng.IntN(5)))
	}
	return []*Tensor{h.tensor(), h.tensor()}
}

func (h *hostile) dtype() DType {
	if h.one(3) {
		return DType(h.rng.IntN(256) - 128)
	}
	return pick(h, Float32, Float64, Int64, Bool, Complex64, Float16, BFloat16, Uint8, Float8E5M2, Invalid, Uint64, Complex32)
}

func (h *hostile) device() Device {
	return pick(h, CPU, CPU, Meta, CUDA(0), CUDA(1000), CUDA(-1), Device{-1, 0}, Device{100, 3}, Device{CPUType, 5}, Device{MPSType, 0}, Device{DeviceType(h.rng.IntN(127)), h.rng.IntN(128)})
}

func (h *hostile) option() Option {
	switch h.rng.IntN(8) {
	case 0:
		return nil
	case 1:
		return h.dtype()
	case 2:
		return h.device()
	case 3:
		return pick[Option](h, Reduction(h.rng.IntN(5)-1), Layout(h.rng.IntN(9)-1), MemoryFormat(h.rng.IntN(6)-1), &Generator{}, (*Generator)(nil))
	}
	return h.named(pick(h, optionNames...))
}

var optionNames = func() []string {
	var names []string
	for n := range optionsByName {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}()

func (h *hostile) named(name string) Option {
	f, ok := optionsByName[name]
	if !ok {
		switch name {
		case "dtype":
			return h.dtype()
		case "device":
			return h.device()
		}
		return Reduction(h.rng.IntN(5) - 1)
	}
	fn := reflect.ValueOf(f)
	arg := h.value(fn.Type().In(0))
	if fn.Type().IsVariadic() {
		return fn.CallSlice([]reflect.Value{arg})[0].Interface().(Option)
	}
	return fn.Call([]reflect.Value{arg})[0].Interface().(Option)
}

// value makes a value of type t.
func (h *hostile) value(t reflect.Type) reflect.Value {
	var v any
	switch t {
	case reflect.TypeFor[*Tensor]():
		v = h.tensor()
	case reflect.TypeFor[DType]():
		v = h.dtype()
	case reflect.TypeFor[Device]():
		v = h.device()
	case reflect.TypeFor[*Generator]():
		v = pick(h, nil, &Generator{})
	case reflect.TypeFor[Option]():
		if o := h.option(); o != nil {
			v = o
		}
	case reflect.TypeFor[BackwardOption]():
		v = pick(h, BackwardOption(nil), RetainGraph(true), AllowUnused(true), Gradient(h.tensor()), Gradient(nil, h.tensor()), Inputs(h.tensor()), Inputs())
	case reflect.TypeFor[Slice]():
		v = pick(h, All, Range(h.int(), h.int()).By(h.int()))
	case reflect.TypeFor[*Scope]():
		v = pick(h, nil, CurrentScope())
	case reflect.TypeFor[error]():
		v = pick(h, nil, errors.New("given"))
	case reflect.TypeFor[func(*Tensor) (*Tensor, error)]():
		v = pick(h, nil, func(g *Tensor) (*Tensor, error) { return g.Mul(2), nil }, func(*Tensor) (*Tensor, error) { return h.tensor(), nil },
			func(*Tensor) (*Tensor, error) { panic("a hook's panic") })
	case reflect.TypeFor[func(*Tensor) error]():
		v = pick(h, nil, func(leaf *Tensor) error { return leaf.Grad().Err() }, func(leaf *Tensor) error { return leaf.SetGrad(h.tensor()) },
			func(*Tensor) error { panic("a hook's panic") })
	case reflect.TypeFor[nativeFunction]():
		other := h.tensor()
		v = pick(h, nativeFunction(nil), func(grads, _ []*Tensor, _ []bool) ([]*Tensor, error) { return grads, nil },
			func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { return []*Tensor{other}, nil },
			func(_, _ []*Tensor, _ []bool) ([]*Tensor, error) { panic("a function's panic") })
	case reflect.TypeFor[func()]():
		v = pick(h, nil, func() {})
	case reflect.TypeFor[[]int]():
		v = h.ints()
	case reflect.TypeFor[any]():
		v = h.any()
	default:
		switch t.Kind() {
		case reflect.Int:
			v = h.int()
		case reflect.Float64:
			v = h.float()
		case reflect.String:
			v = h.str()
		case reflect.Bool:
			v = h.one(2)
		case reflect.Slice:
			list := reflect.MakeSlice(t, 0, 4)
			for range h.rng.IntN(5) {
				list = reflect.Append(list, h.value(t.Elem()))
			}
			return list
		case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			return reflect.ValueOf(h.rng.IntN(256) - 128).Convert(t)
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			return reflect.ValueOf(h.rng.IntN(256)).Convert(t)
		}
	}
	if v == nil {
		return reflect.Zero(t)
	}
	r := reflect.ValueOf(v)
	if r.Type() != t && r.CanConvert(t) {
		r = r.Convert(t)
	}
	return r
}

// arguments makes the arguments of a call, or takes those of a golden case and changes some, which pass the
// first checks.
func (h *hostile) arguments(target *hostileTarget) []reflect.Value {
	if target.schema != nil {
		return h.bySchema(target)
	}
	typ := target.fn.Type()
	var in []reflect.Value
	if own := h.cases[target.name]; target.op != nil && len(own) > 0 && !h.one(3) {
		c := own[h.rng.IntN(len(own))]
		if made, _, err := c.prepare(typ); err == nil {
			in = made
			n := len(in)
			if typ.IsVariadic() && typ.In(n-1) == reflect.TypeFor[[]Option]() {
				n--
				opts := in[n].Interface().([]Option)
				for range h.rng.IntN(3) {
					if h.one(3) {
						opts = append(opts, h.option())
						continue
					}
					spec := pick(h, target.op.args...)
					if spec.key != keyNone {
						opts = append(opts, h.named(spec.name))
					}
				}
				in[n] = reflect.ValueOf(opts)
			}
			for range h.rng.IntN(3) {
				if n == 0 {
					break
				}
				i := h.rng.IntN(n)
				if x, ok := in[i].Interface().(*Tensor); ok && !h.one(3) {
					in[i] = reflect.ValueOf(h.spoil(x))
				} else {
					in[i] = h.value(typ.In(i))
				}
			}
			return in
		}
	}
	for i := range typ.NumIn() {
		v := h.value(typ.In(i))
		if i == 0 && v.Kind() == reflect.Pointer && typ.In(0) == reflect.TypeFor[*Tensor]() && !h.one(4) {
			v = reflect.ValueOf(h.good())
		}
		in = append(in, v)
	}
	return in
}

// spoil changes x's shape, dtype, contents or device.
func (h *hostile) spoil(x *Tensor) *Tensor {
	switch h.rng.IntN(12) {
	case 10, 11:
		if y := h.odd(x); y != nil {
			return y
		}
	case 0:
		return x.To(h.dtype())
	case 1:
		return x.Unsqueeze(0)
	case 2:
		return x.Ravel()
	case 3:
		return x.Narrow(0, 0, h.rng.IntN(3))
	case 4:
		return x.To(Meta)
	case 5:
		y := x.Detach().Clone()
		if y.Numel() > 0 {
			y = y.View(-1)
			_ = y.SetIndex(h.rng.IntN(max(1, y.Numel())), pick[any](h, -1, 1<<40, math.MinInt, math.MaxInt, 100, 3, math.NaN(), math.Inf(1)))
			y = y.ViewAs(x)
		}
		return y
	case 6:
		return x.MT()
	case 7:
		return x.Detach().FullLike(pick[any](h, -1, 0, 1, 5, 1<<40, math.MinInt, -100, math.NaN()))
	case 8:
		return Cat([]*Tensor{x, x})
	}
	return x.Select(0, 0)
}

func (h *hostile) describe(v reflect.Value) string {
	if !v.IsValid() {
		return "nil"
	}
	switch x := v.Interface().(type) {
	case *Tensor:
		s := x.describe()
		if x != nil && x.fail == nil && x.h != 0 && !x.DType().IsFloat() && x.Numel() < 7 {
			s += strings.ReplaceAll(x.String(), "\n", "")
		}
		return s
	case []*Tensor:
		s := "["
		for _, t := range x {
			s += t.describe() + " "
		}
		return s + "]"
	case kwarg:
		return optNames[x.key] + "=" + h.describe(reflect.ValueOf(x.val))
	case []Option:
		s := ""
		for _, o := range x {
			if o == nil {
				s += "nil,"
			} else {
				s += h.describe(reflect.ValueOf(o)) + ","
			}
		}
		return s
	case []any:
		s := "["
		for _, e := range x {
			if e == nil {
				s += "nil "
			} else {
				s += h.describe(reflect.ValueOf(e)) + " "
			}
		}
		return s + "]"
	case nil:
		return "nil"
	}
	s := fmt.Sprintf("%v", v.Interface())
	return s[:min(len(s), 200)]
}

func (h *hostile) call(target *hostileTarget) (err error) {
	in := h.arguments(target)
	// If an operand that depends on x is written into x, as in x.Add_(x.Mul(w)), the graph may hold itself and libtorch
	// never frees it. The same happens if a gradient of x depends on x. Such calls get operands without a graph.
	if target.op != nil && target.op.inPlace || target.name == "Tensor.SetIndex" || target.name == "Tensor.SetGrad" {
		for i := 1; i < len(in); i++ {
			if y, ok := in[i].Interface().(*Tensor); ok && y.RequiresGrad() {
				in[i] = reflect.ValueOf(y.Detach().Clone())
			}
		}
	}
	text := target.name + "("
	for i, v := range in {
		if i > 0 {
			text += "; "
		}
		if v.Kind() == reflect.Interface && v.IsNil() {
			text += "nil"
			continue
		}
		text += h.describe(v)
	}
	text += ")"
	h.say(text)
	defer func() {
		if p := recover(); p != nil {
			h.failed = fmt.Sprintf("%s panics: %v\n%s", text, p, stackOf())
		}
	}()
	var out []reflect.Value
	if target.fn.Type().IsVariadic() {
		out = target.fn.CallSlice(in)
	} else {
		out = target.fn.Call(in)
	}
	for _, r := range out {
		switch x := r.Interface().(type) {
		case error:
			err = x
		case *Tensor:
			err = errors.Join(err, h.look(target, x))
		case []*Tensor:
			for _, t := range x {
				if t != nil {
					err = errors.Join(err, h.look(target, t))
				}
			}
		case []any:
			for _, v := range x {
				if t, ok := v.(*Tensor); ok && t != nil {
					err = errors.Join(err, h.look(target, t))
				}
			}
		}
	}
	return err
}

// look reads the results and sometimes computes gradients through them.
func (h *hostile) look(target *hostileTarget, x *Tensor) error {
	if x == nil {
		if target.op != nil {
			h.failed = target.name + " returned nil"
		}
		return nil
	}
	if err := x.Err(); err != nil {
		return err
	}
	if x.Device() != CPU || x.Numel() > 1<<20 {
		return nil
	}
	if h.one(4) {
		_ = x.String()
	}
	if x.RequiresGrad() && h.one(3) {
		h.say(h.text + ", then Backward")
		return x.Sum().Backward()
	}
	return nil
}

func stackOf() string {
	buf := make([]byte, 4096)
	return string(buf[:runtime.Stack(buf, false)])
}

// An invalid argument must be reported as such, not as a failed assertion in libtorch.
func TestInternalErrors(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{2, 2})
		csr, err := CallUnchecked("aten::to_sparse_csr", x)
		if err != nil {
			t.Fatal(err)
		}
		_, err = Call("aten::sign.out", x, csr[0])
		if !errors.Is(err, ErrInternal) || errors.Is(err, ErrArgument) {
			t.Errorf("an assertion: %v", err)
		}
		_, err = Call("aten::mm", x, Ones([]int{3, 3}))
		if !errors.Is(err, ErrArgument) || errors.Is(err, ErrInternal) {
			t.Errorf("a wrong shape: %v", err)
		}
	})
}

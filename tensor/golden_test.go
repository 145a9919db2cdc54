package tensor

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// tests/golden/golden.py writes the golden cases and describes their format.

type goldenTensor struct {
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
	Data  []any  `json:"data"`
	Grad  bool   `json:"grad"`

	Layout string `json:"layout"` // empty for strided
}

type goldenValue struct {
	T     *goldenTensor
	Ts    *[]*goldenTensor
	I     *int        `json:"i"`
	F     any         `json:"f"`
	B     *bool       `json:"b"`
	C     *[2]float64 `json:"c"`
	IS    *[]int      `json:"is"`
	FS    *[]float64  `json:"fs"`
	S     *string     `json:"s"`
	DType *string     `json:"dtype"`
	Null  bool        `json:"null"`
}

type goldenCase struct {
	Op, Name   string
	Seed       uint64
	Args       []goldenValue
	Opts       map[string]goldenValue
	Out        []goldenValue
	Cot        []any
	Grads      []json.RawMessage
	OptGrads   map[string]goldenTensor `json:"optgrads"`
	After      map[string]goldenTensor
	RTol, ATol float64
	Error      string // on a GPU: why PyTorch refuses the case

	shapesOnly bool // values are not compared
	firstOnly  bool // of several results the first alone must be right
}

func goldenCases(t testing.TB, path string) []goldenCase {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []goldenCase
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		d := json.NewDecoder(strings.NewReader(in.Text()))
		d.UseNumber() // int64 values must not pass through a float64
		var c goldenCase
		if err := d.Decode(&c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func goldenNumber(v any) (float64, error) {
	switch v := v.(type) {
	case json.Number:
		return v.Float64()
	case string:
		return strconv.ParseFloat(v, 64)
	case bool:
		return float64(bit(v)), nil
	case float64:
		return v, nil
	}
	return 0, fmt.Errorf("%T is not a number", v)
}

// goldenFloats flattens pairs that represent complex numbers.
func goldenFloats(data []any) ([]float64, error) {
	var out []float64
	for _, v := range data {
		if pair, ok := v.([]any); ok {
			fs, err := goldenFloats(pair)
			if err != nil {
				return nil, err
			}
			out = append(out, fs...)
			continue
		}
		f, err := goldenNumber(v)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func goldenInts(data []any) ([]int64, error) {
	out := make([]int64, len(data))
	for i, v := range data {
		n, ok := v.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%T is not an integer", v)
		}
		var err error
		if out[i], err = n.Int64(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func shapeOf(s []int) []int { return append([]int{}, s...) } // nil would stand for one dimension

func isInteger(d DType) bool { return !d.IsFloat() && !d.IsComplex() && d != Bool }

// arranged, if set, changes the strides of the arguments of cases.
var arranged func(x *Tensor) *Tensor

// make builds the tensor, as a leaf that requires a gradient if the case says so.
func (g *goldenTensor) make() (*Tensor, error) {
	d, err := ParseDType(g.DType)
	if err != nil {
		return nil, err
	}
	var x *Tensor
	if isInteger(d) {
		ints, err := goldenInts(g.Data)
		if err != nil {
			return nil, err
		}
		x = FromSlice(ints, shapeOf(g.Shape), d)
	} else {
		fs, err := goldenFloats(g.Data)
		if err != nil {
			return nil, err
		}
		if d.IsComplex() {
			cs := make([]complex128, len(fs)/2)
			for i := range cs {
				cs[i] = complex(fs[2*i], fs[2*i+1])
			}
			x = FromSlice(cs, shapeOf(g.Shape), d)
		} else {
			x = FromSlice(fs, shapeOf(g.Shape), d)
		}
	}
	if g.Layout != "" {
		return g.sparse(x)
	}
	if arranged != nil {
		x = arranged(x)
	}
	if g.Grad {
		x = x.RequiresGrad_()
	}
	return x, x.Err()
}

// sparse returns the elements of x in the tensor's layout.
func (g *goldenTensor) sparse(x *Tensor) (*Tensor, error) {
	make, ok := map[string]func(...Option) *Tensor{"sparse_coo": x.ToSparse, "sparse_csr": x.ToSparseCSR, "sparse_csc": x.ToSparseCSC}[g.Layout]
	if !ok {
		return nil, fmt.Errorf("no tensors of layout %s are made", g.Layout)
	}
	y := make()
	return y, y.Err()
}

func (c *goldenCase) compare(what string, got *Tensor, want *goldenTensor) error {
	if got == nil {
		return fmt.Errorf("%s: got no tensor", what)
	}
	if err := got.Err(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if got.DType().String() != want.DType || !slices.Equal(got.Shape(), want.Shape) {
		return fmt.Errorf("%s: got %s%v, want %s%v", what, got.DType(), got.Shape(), want.DType, want.Shape)
	}
	if want.Data == nil || c.shapesOnly { // the contents are undefined
		return nil
	}
	x := got.Detach()
	if l := cmp.Or(want.Layout, "strided"); got.Layout().String() != l {
		return fmt.Errorf("%s: the layout is %v, want %s", what, got.Layout(), l)
	}
	if want.Layout != "" {
		x = x.ToDense()
	}
	if isInteger(x.DType()) {
		ints, err := Data[int64](x.To(Int64))
		if err != nil {
			return err
		}
		wants, err := goldenInts(want.Data)
		if err != nil {
			return err
		}
		if !slices.Equal(ints, wants) {
			return fmt.Errorf("%s: got %v, want %v", what, ints, wants)
		}
		return nil
	}
	if x.DType().IsComplex() {
		x = x.ResolveConj().ViewAsReal()
	}
	fs, err := Data[float64](x.To(Float64))
	if err != nil {
		return err
	}
	wants, err := goldenFloats(want.Data)
	if err != nil {
		return err
	}
	return c.near(what, fs, wants, got.DType())
}

func (c *goldenCase) near(what string, got, want []float64, d DType) error {
	rtol, atol := c.tolerances(d)
	if len(got) != len(want) {
		return fmt.Errorf("%s: got %d elements, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		if g == w || math.IsNaN(g) && math.IsNaN(w) {
			continue
		}
		if !(math.Abs(g-w) <= atol+rtol*math.Abs(w)) || math.IsInf(g, 0) || math.IsInf(w, 0) {
			return fmt.Errorf("%s: element %d is %v, want %v (differs by %.3g; allowed %.3g)", what, i, g, w, g-w, atol+rtol*math.Abs(w))
		}
	}
	return nil
}

// goValue converts v to the type of a Go parameter.
func (v *goldenValue) goValue(want reflect.Type) (reflect.Value, error) {
	if v.Null {
		return reflect.Zero(want), nil
	}
	var out any
	switch {
	case v.T != nil:
		x, err := v.T.make()
		if err != nil {
			return reflect.Value{}, err
		}
		out = x
	case v.Ts != nil:
		list := []*Tensor{}
		for _, g := range *v.Ts {
			if g == nil {
				list = append(list, nil)
				continue
			}
			x, err := g.make()
			if err != nil {
				return reflect.Value{}, err
			}
			list = append(list, x)
		}
		out = list
	case v.I != nil:
		out = *v.I
	case v.F != nil:
		f, err := goldenNumber(v.F)
		if err != nil {
			return reflect.Value{}, err
		}
		out = f
	case v.B != nil:
		out = *v.B
	case v.C != nil:
		out = complex(v.C[0], v.C[1])
	case v.IS != nil:
		out = *v.IS
	case v.FS != nil:
		out = *v.FS
	case v.S != nil:
		out = *v.S
	case v.DType != nil:
		d, err := ParseDType(*v.DType)
		if err != nil {
			return reflect.Value{}, err
		}
		out = d
	default:
		return reflect.Value{}, errors.New("an argument without a value")
	}
	r := reflect.ValueOf(out)
	switch {
	case r.Type().AssignableTo(want):
		return r, nil
	case want.Kind() == reflect.Slice:
		// A list of another type, or one value for a variadic parameter.
		if r.Kind() != reflect.Slice {
			list := reflect.MakeSlice(want, 1, 1)
			if !r.Type().ConvertibleTo(want.Elem()) {
				break
			}
			list.Index(0).Set(r.Convert(want.Elem()))
			return list, nil
		}
		list := reflect.MakeSlice(want, r.Len(), r.Len())
		for i := range r.Len() {
			list.Index(i).Set(r.Index(i).Convert(want.Elem()))
		}
		return list, nil
	case r.CanConvert(want) && want.Kind() != reflect.String:
		return r.Convert(want), nil
	}
	return reflect.Value{}, fmt.Errorf("%v does not go where a %v is wanted", out, want)
}

func goldenOption(name string, v *goldenValue) (Option, any, error) {
	switch name {
	case "dtype":
		r, err := v.goValue(reflect.TypeFor[DType]())
		if err != nil {
			return nil, nil, err
		}
		return r.Interface().(DType), r.Interface(), nil
	case "reduction":
		return Reduction(*v.I), *v.I, nil
	}
	f := reflect.ValueOf(optionsByName[name])
	if !f.IsValid() {
		return nil, nil, fmt.Errorf("unknown option %s", name)
	}
	r, err := v.goValue(f.Type().In(0))
	if err != nil {
		return nil, nil, err
	}
	var o reflect.Value
	if f.Type().IsVariadic() {
		o = f.CallSlice([]reflect.Value{r})[0]
	} else {
		o = f.Call([]reflect.Value{r})[0]
	}
	return o.Interface().(Option), r.Interface(), nil
}

type goldenRun struct {
	leaves []any          // the arguments as made
	args   []any          // as passed: an in-place operator gets a clone
	opts   map[string]any // the values of the options
	outs   []any
}

func (c *goldenCase) prepare(fn reflect.Type) (in []reflect.Value, run goldenRun, err error) {
	run.opts = map[string]any{}
	takesOpts := fn.IsVariadic() && fn.In(fn.NumIn()-1) == reflect.TypeFor[[]Option]()
	n := fn.NumIn()
	if takesOpts {
		n--
	}
	if len(c.Args) != n {
		return nil, run, fmt.Errorf("the case has %d arguments, the function takes %d", len(c.Args), n)
	}
	for i := range c.Args {
		v, err := c.Args[i].goValue(fn.In(i))
		if err != nil {
			return nil, run, fmt.Errorf("argument %d: %w", i, err)
		}
		run.leaves = append(run.leaves, v.Interface())
		if x, ok := v.Interface().(*Tensor); ok && i == 0 && strings.HasSuffix(c.Op, "_") {
			v = reflect.ValueOf(x.Clone())
		}
		run.args = append(run.args, v.Interface())
		in = append(in, v)
	}
	opts := []Option{}
	for name, v := range c.Opts {
		o, val, err := goldenOption(name, &v)
		if err != nil {
			return nil, run, err
		}
		run.opts[name] = val
		opts = append(opts, o)
	}
	if takesOpts {
		in = append(in, reflect.ValueOf(opts))
	} else if len(opts) != 0 {
		return nil, run, errors.New("the function takes no options")
	}
	return in, run, nil
}

// invoke calls fn, whose last argument is a slice if fn is variadic.
func invoke(fn reflect.Value, in []reflect.Value) []reflect.Value {
	if fn.Type().IsVariadic() {
		return fn.CallSlice(in)
	}
	return fn.Call(in)
}

func (c *goldenCase) run(fn reflect.Value) error {
	in, run, err := c.prepare(fn.Type())
	if err != nil {
		return err
	}
	if err := ManualSeed(c.Seed); err != nil {
		return err
	}
	for i, r := range invoke(fn, in) {
		if err, ok := r.Interface().(error); ok {
			return err
		}
		if r.Type() == reflect.TypeFor[error]() && i == fn.Type().NumOut()-1 {
			continue
		}
		run.outs = append(run.outs, r.Interface())
	}
	if strings.HasSuffix(c.Op, "_") && len(run.outs) == 1 && run.outs[0] != run.args[0] {
		if x := run.outs[0].(*Tensor); x.Err() != nil {
			return x.Err()
		}
		return errors.New("an in-place operator must return its receiver")
	}
	return c.check(&run)
}

// runCall runs the case through Call.
func (c *goldenCase) runCall(o *op, fn reflect.Type) error {
	_, run, err := c.prepare(fn)
	if err != nil {
		return err
	}
	name := o.name
	if o.overload != "" {
		name += "." + o.overload
	}
	args, at := []any{}, 0
	for i := range o.args {
		switch spec := &o.args[i]; {
		case spec.kind == kindHidden || spec.name == "pin_memory" || spec.key == keyNone && at == len(run.args):
			args = append(args, Default)
		case spec.key == keyNone:
			v := run.args[at]
			if list, is := v.([]float64); is && list == nil {
				v = nil // None
			}
			args = append(args, v)
			at++
		default:
			v, ok := run.opts[spec.name]
			if !ok {
				v = Default
			}
			if list, is := v.([]any); is && len(list) == 1 && spec.kind != kindFloats {
				v = list[0]
			} else if is {
				fs := make([]float64, len(list))
				for k, e := range list {
					fs[k] = reflect.ValueOf(e).Convert(reflect.TypeFor[float64]()).Float()
				}
				v = fs
			}
			if list, is := v.([]int); is && spec.kind == kindInt {
				v = list[0]
			}
			if list, is := v.([]bool); is && spec.kind == kindBool {
				v = list[0]
			}
			args = append(args, v)
		}
	}
	if err := ManualSeed(c.Seed); err != nil {
		return err
	}
	callIt := Call
	if strings.HasPrefix(name, "aten::_") {
		callIt = CallUnchecked // for Unique, whose operator is internal
	}
	if run.outs, err = callIt(name, args...); err != nil {
		return err
	}
	return c.check(&run)
}

// check compares the results and their gradients with the case.
func (c *goldenCase) check(run *goldenRun) error {
	if len(run.outs) != len(c.Out) {
		return fmt.Errorf("got %d results, want %d", len(run.outs), len(c.Out))
	}
	var roots, cots []*Tensor
	root := func(x *Tensor, cot any) error {
		data, ok := cot.([]any)
		if !ok {
			return nil
		}
		g := goldenTensor{DType: x.DType().String(), Shape: x.Shape(), Data: data}
		ct, err := g.make()
		if err != nil {
			return err
		}
		roots, cots = append(roots, x), append(cots, ct)
		return nil
	}
	for i, want := range c.Out {
		what := fmt.Sprintf("result %d", i)
		var cot any
		if c.Cot != nil {
			cot = c.Cot[i]
		}
		switch {
		case want.T != nil:
			x, ok := run.outs[i].(*Tensor)
			if !ok {
				return fmt.Errorf("%s is a %T", what, run.outs[i])
			}
			if err := c.compare(what, x, want.T); err != nil {
				if i > 0 && c.firstOnly {
					continue
				}
				return err
			}
			if err := root(x, cot); err != nil {
				return err
			}
		case want.Ts != nil:
			xs, ok := run.outs[i].([]*Tensor)
			if !ok || len(xs) != len(*want.Ts) {
				return fmt.Errorf("%s: got %v, want %d tensors", what, run.outs[i], len(*want.Ts))
			}
			for k, w := range *want.Ts {
				if err := c.compare(fmt.Sprintf("%s[%d]", what, k), xs[k], w); err != nil {
					return err
				}
				if list, ok := cot.([]any); ok {
					if err := root(xs[k], list[k]); err != nil {
						return err
					}
				}
			}
		case want.B != nil:
			if run.outs[i] != any(*want.B) && !c.shapesOnly {
				return fmt.Errorf("%s: got %v, want %v", what, run.outs[i], *want.B)
			}
		case want.I != nil:
			if run.outs[i] != any(*want.I) {
				return fmt.Errorf("%s: got %v, want %v", what, run.outs[i], *want.I)
			}
		default:
			w, err := goldenNumber(want.F)
			if err != nil {
				return err
			}
			g, ok := run.outs[i].(float64)
			if !ok {
				return fmt.Errorf("%s is a %T", what, run.outs[i])
			}
			if c.shapesOnly {
				continue
			}
			if err := c.near(what, []float64{g}, []float64{w}, Float64); err != nil {
				return err
			}
		}
	}
	for index, want := range c.After {
		i, err := strconv.Atoi(index)
		if err != nil {
			return err
		}
		if err := c.compare("argument "+index+" after the call", run.args[i].(*Tensor), &want); err != nil {
			return err
		}
	}
	if len(roots) == 0 || cshim.VersionLoaded()[1] < youngGradients[strings.TrimSuffix(c.Op, "_")] {
		return nil
	}
	if err := runBackward(roots, Gradient(cots...)); err != nil {
		return err
	}
	for i, raw := range c.Grads {
		if err := c.checkGrads(fmt.Sprintf("gradient %d", i), run.leaves[i], raw); err != nil {
			return err
		}
	}
	for name, want := range c.OptGrads {
		if err := c.compare("gradient of "+name, run.opts[name].(*Tensor).Grad(), &want); err != nil {
			return err
		}
	}
	return nil
}

// youngGradients lists operators whose gradients older versions of libtorch do not have, with the first version 2.x that has them.
// For ldexp with a negative exponent older ones return 0. Values agree in all versions.
var youngGradients = map[string]int{"SpecialBesselJ0": 15, "SpecialBesselJ1": 15, "SpecialBesselY0": 15, "SpecialBesselY1": 15,
	"SpecialModifiedBesselI0": 15, "SpecialModifiedBesselI1": 15, "SpecialModifiedBesselK0": 15, "SpecialModifiedBesselK1": 15,
	"AMinMax": 12, "Ldexp": 14, "NarrowCopy": 12}

func (c *goldenCase) checkGrads(what string, leaf any, raw json.RawMessage) error {
	one := func(x *Tensor, raw json.RawMessage) error {
		if string(raw) == "null" {
			if x != nil && x.RequiresGrad() && x.Grad() != nil {
				return fmt.Errorf("%s: got one, want none", what)
			}
			return nil
		}
		d := json.NewDecoder(strings.NewReader(string(raw)))
		d.UseNumber()
		var want goldenTensor
		if err := d.Decode(&want); err != nil {
			return err
		}
		return c.compare(what, x.Grad(), &want)
	}
	switch x := leaf.(type) {
	case *Tensor:
		return one(x, raw)
	case []*Tensor:
		if string(raw) == "null" {
			return nil
		}
		var list []json.RawMessage
		if err := json.Unmarshal(raw, &list); err != nil {
			return err
		}
		for k, r := range list {
			if err := one(x[k], r); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestGolden(t *testing.T) {
	begin(t)
	cases := goldenCases(t, "../tests/golden/ops.jsonl")
	device := newGoldenDevice(t, cases)
	byOp := map[string][]goldenCase{}
	for _, c := range cases {
		byOp[c.Op] = append(byOp[c.Op], c)
	}
	ran, called := 0, 0
	for _, o := range operators {
		own := byOp[o.name]
		if len(own) == 0 {
			t.Errorf("operator %s has no golden case", o.name)
		}
		delete(byOp, o.name)
		for i := range own {
			c := &own[i]
			for _, through := range []string{"method", "Call"} {
				if device != nil && through == "Call" {
					continue // whose constructors are on the CPU
				}
				before, _ := cshim.MemoryStats(CPU.word())
				err := WithScope(func() error {
					if through == "method" {
						ran++
						return c.run(reflect.ValueOf(o.fn))
					}
					called++
					return c.runCall(o.op, reflect.TypeOf(o.fn))
				})
				// Call requires arguments that the typed method has as options with a default of the table.
				if err != nil && through == "Call" && strings.Contains(err.Error(), "is missing") {
					called--
					err = nil
				}
				if device != nil {
					err = device.explain(c, err)
				}
				if err != nil {
					t.Errorf("%s %q by %s: %v", c.Op, c.Name, through, err)
				}
				if after, _ := cshim.MemoryStats(CPU.word()); after.Handles != before.Handles {
					t.Errorf("%s %q by %s: leaves %d handles", c.Op, c.Name, through, after.Handles-before.Handles)
				}
			}
		}
	}
	for name := range byOp {
		t.Errorf("golden cases for %s, which is not in the table", name)
	}
	v, err := Version()
	if err != nil {
		t.Error(err)
	}
	t.Logf("libtorch %s: %d operators, %d cases by method, %d of them through Call", v, len(operators), ran, called)
	if device == nil && called < 2000 {
		t.Errorf("%d cases through Call", called)
	}
	if device != nil {
		device.report(len(operators))
	}
}

// TestGoldenWithoutOptions calls the methods on the arguments of cases that have options, without these: many then take a shorter
// way to the shim. It looks at what they leave; what they compute has cases of its own.
func TestGoldenWithoutOptions(t *testing.T) {
	begin(t)
	byOp := map[string][]goldenCase{}
	for _, c := range goldenCases(t, "../tests/golden/ops.jsonl") {
		byOp[c.Op] = append(byOp[c.Op], c)
	}
	results := 0
	for _, o := range operators {
		if fn := reflect.TypeOf(o.fn); !fn.IsVariadic() || fn.In(fn.NumIn()-1) != reflect.TypeFor[[]Option]() {
			continue
		}
		for _, c := range byOp[o.name] {
			if len(c.Opts) == 0 {
				continue
			}
			c.Opts = nil
			before, _ := cshim.MemoryStats(CPU.word())
			err := WithScope(func() error {
				in, _, err := c.prepare(reflect.TypeOf(o.fn))
				if err != nil {
					return err
				}
				for _, r := range reflect.ValueOf(o.fn).CallSlice(in) {
					if x, ok := r.Interface().(*Tensor); ok && x.Err() == nil {
						results++
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("%s %q: %v", c.Op, c.Name, err)
			}
			if after, _ := cshim.MemoryStats(CPU.word()); after.Handles != before.Handles {
				t.Errorf("%s %q without options: leaves %d handles", c.Op, c.Name, after.Handles-before.Handles)
			}
		}
	}
	if results < 200 {
		t.Errorf("%d results", results)
	}
}

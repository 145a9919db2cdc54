package tensor

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/options"
	"github.com/linstock-ml/linstock/internal/reclaim"
	"github.com/linstock-ml/linstock/internal/testdevice"
)

// op describes an operator of the table for the encoder below.
type op struct {
	name, overload string // "aten::add", "Tensor"
	goName         string
	inPlace        bool
	same           int // number of leading tensors that must have the same shape
	args           []argSpec
	internal       bool           // set for an operator found by name: Call must not run it
	setsData       bool           // likewise: it replaces a tensor's data without a new version
	native         atomic.Uintptr // looked up at first use
	numbers        []*op          // by the argument: the overload for a number as this operand; nil: the number becomes a tensor
	tensors        string         // the operator that takes a tensor where this one takes a number
}

type argSpec struct {
	name     string
	kind     argKind
	key      optKey // key of an option; keyNone for a positional argument
	optional bool   // None is allowed
}

type argKind uint8

const (
	kindHidden argKind = iota
	kindTensor
	kindOperand // a tensor or a number
	kindTensors
	kindInt
	kindInts
	kindInts2 // two ints, or one for both, as in Python
	kindInts3 // three ints, or one for all
	kindFloat
	kindFloats
	kindBool
	kindBools
	kindScalar
	kindScalars
	kindString
	kindDType
	kindDevice
	kindGenerator
	kindLayout
	kindMemoryFormat
)

func (o *op) find() (cshim.Op, error) {
	if h := o.native.Load(); h != 0 {
		return cshim.Op(h), nil
	}
	h, err := cshim.FindOp(o.name, o.overload)
	if err != nil {
		return 0, err
	}
	if h == 0 {
		return 0, refused(o.goName, ErrNotImplemented, "this libtorch has no operator %s.%s", o.name, o.overload)
	}
	o.native.Store(uintptr(h))
	return h, nil
}

type optKey uint16

// Option is a keyword argument of an operator: tensor.Dim(1), tensor.KeepDim(true), a DType, a Device, a
// Reduction, a Layout, a MemoryFormat, a *Generator. An operator returns an error for an option that it does not have.
// An option that is not given has the default of the operator's schema, with which the operator's documentation ends.
type Option interface{ option() optKey }

type kwarg struct {
	key optKey
	val any
}

func (k kwarg) option() optKey        { return k.key }
func (d DType) option() optKey        { return keyDType }
func (d Device) option() optKey       { return keyDevice }
func (r Reduction) option() optKey    { return keyReduction }
func (l Layout) option() optKey       { return keyLayout }
func (f MemoryFormat) option() optKey { return keyMemoryFormat }
func (g *Generator) option() optKey   { return keyGenerator }

func optionName(o Option) string {
	if isNilOption(o) {
		return "nil"
	}
	return optNames[o.option()]
}

// isNilOption reports whether o is nil or a nil pointer to an option, which has the methods of the option.
func isNilOption(o Option) bool {
	switch p := o.(type) {
	case nil:
		return true
	case *DType:
		return p == nil
	case *Device:
		return p == nil
	case *Reduction:
		return p == nil
	case *Layout:
		return p == nil
	case *MemoryFormat:
		return p == nil
	}
	return false
}

// OptionValue returns the name of an option, such as "Weight", and its value; the name of nil is "nil". Functions that are
// made of several operators use it to take the options of this package.
func OptionValue(o Option) (name string, value any) {
	if kw, ok := o.(kwarg); ok {
		return optionName(o), kw.val
	}
	return optionName(o), o
}

// none is the value None.
type none struct{}

// call is a boxed call under construction: arguments are encoded into buf, tensors are pinned, and the first
// error stops the encoding. It lives on the caller's stack.
type call struct {
	op      *op
	fail    *Tensor
	n       int
	nin     int
	ins     [6]*Tensor // pinned
	moreIns []*Tensor
	objects []*ScriptObject // pinned
	drawn   *Generator      // pinned
	buf     [24]cshim.Value
	big     []cshim.Value // used instead of buf when that is full
}

func (c *call) begin(o *op) {
	c.op = o
	if err := cshim.Load(); err != nil {
		c.fail = &Tensor{fail: &failure{err: err}}
	}
	if cshim.Due() {
		boundary()
	}
}

func (c *call) refuse(kind error, format string, args ...any) {
	if c.fail == nil {
		c.fail = failed(refused(c.op.goName, kind, format, args...))
	}
}

// options rejects options that the operator does not have.
func (c *call) options(opts []Option) {
next:
	for _, o := range opts {
		switch o.(type) {
		case nil, *DType, *Device, *Reduction, *Layout, *MemoryFormat:
			if isNilOption(o) {
				c.refuse(ErrArgument, "an option is nil")
			} else {
				c.refuse(ErrArgument, "an option is a pointer, of type %T: want its value", o)
			}
			return
		}
		key := o.option()
		for i := range c.op.args {
			if a := &c.op.args[i]; a.key == key && key != keyNone {
				continue next
			}
		}
		var known []string
		for i := range c.op.args {
			if key := c.op.args[i].key; key != keyNone {
				known = append(known, optNames[key])
			}
		}
		c.refuse(ErrArgument, "%s", options.Unknown(c.op.goName, optionName(o), known))
		return
	}
}

func (c *call) put(v cshim.Value) {
	switch {
	case c.big != nil:
		c.big = append(c.big, v)
	case c.n < len(c.buf):
		c.buf[c.n] = v
		c.n++
	default:
		c.big = append(append(make([]cshim.Value, 0, 4*len(c.buf)), c.buf[:]...), v)
	}
}

func (c *call) values() []cshim.Value {
	if c.big != nil {
		return c.big
	}
	return c.buf[:c.n]
}

func (c *call) skip() { c.put(cshim.Value{}) }

// hold pins t and adds its handle. It returns false if t cannot be used.
func (c *call) hold(t *Tensor) bool {
	if c.fail != nil {
		return false
	}
	if !t.pin() {
		c.fail = passOn(c.op.goName, t)
		return false
	}
	if c.nin < len(c.ins) {
		c.ins[c.nin] = t
		c.nin++
	} else {
		c.moreIns = append(c.moreIns, t)
	}
	return true
}

func (c *call) letGo() {
	for _, t := range c.ins[:c.nin] {
		t.unpin()
	}
	for _, t := range c.moreIns {
		t.unpin()
	}
	for _, o := range c.objects {
		o.drop()
	}
	if c.drawn != nil {
		c.drawn.drop()
	}
}

func (c *call) tensor(_ int, t *Tensor) {
	if c.hold(t) {
		c.put(cshim.Value{Tag: cshim.TagTensor, Bits: uint64(t.h)})
	}
}

func (c *call) optTensor(i int, t *Tensor) {
	if t == nil {
		c.put(cshim.Value{Tag: cshim.TagNone})
		return
	}
	c.tensor(i, t)
}

func (c *call) operand(i int, v any) {
	if t, ok := v.(*Tensor); ok {
		if t == nil && c.op.args[i].optional {
			c.put(cshim.Value{Tag: cshim.TagNone})
			return
		}
		c.tensor(i, t)
		return
	}
	if v == nil && c.op.args[i].optional {
		c.put(cshim.Value{Tag: cshim.TagNone})
		return
	}
	if i < len(c.op.numbers) && c.op.numbers[i] != nil {
		c.op = c.op.numbers[i]
	}
	c.number(i, v)
}

func (c *call) tensors(i int, ts []*Tensor) {
	c.list(cshim.TagTensors, len(ts))
	for at := 0; at < len(ts); at += 2 {
		var pair [2]uint64
		for k := 0; k < 2 && at+k < len(ts); k++ {
			t := ts[at+k]
			// Tensor?[]: a nil element is None.
			if t == nil && c.op.args[i].optional {
				continue
			}
			if !c.hold(t) {
				return
			}
			pair[k] = uint64(t.h)
		}
		c.pair(pair)
	}
}

// list adds a list's header; its elements follow, two to a slot.
func (c *call) list(tag cshim.Tag, n int) {
	if n > math.MaxInt32 {
		c.refuse(ErrArgument, "a list has %d elements", n)
		return
	}
	c.put(cshim.Value{Tag: tag, Len: uint32(n)})
}

func (c *call) pair(p [2]uint64) {
	// A payload slot has 16 bytes: two elements.
	c.put(*(*cshim.Value)(unsafe.Pointer(&p)))
}

func (c *call) int(_ int, v int) { c.put(cshim.Value{Tag: cshim.TagInt, Bits: uint64(v)}) }

func (c *call) reduction(_ int, v Reduction) { c.enum("reduction", int(v), 3) }

func (c *call) ints(i int, v []int) {
	if len(v) == 1 && i < len(c.op.args) {
		switch c.op.args[i].kind {
		case kindInts2:
			v = []int{v[0], v[0]}
		case kindInts3:
			v = []int{v[0], v[0], v[0]}
		}
	}
	c.list(cshim.TagInts, len(v))
	for i := 0; i < len(v); i += 2 {
		p := [2]uint64{uint64(v[i])}
		if i+1 < len(v) {
			p[1] = uint64(v[i+1])
		}
		c.pair(p)
	}
}

func (c *call) float(_ int, v float64) {
	c.put(cshim.Value{Tag: cshim.TagFloat, Bits: math.Float64bits(v)})
}

func (c *call) floats(_ int, v []float64) {
	c.list(cshim.TagFloats, len(v))
	for i := 0; i < len(v); i += 2 {
		p := [2]uint64{math.Float64bits(v[i])}
		if i+1 < len(v) {
			p[1] = math.Float64bits(v[i+1])
		}
		c.pair(p)
	}
}

// optFloats is floats of an argument that may be None, which is nil.
func (c *call) optFloats(i int, v []float64) {
	if v == nil {
		c.put(cshim.Value{Tag: cshim.TagNone})
		return
	}
	c.floats(i, v)
}

func (c *call) bools(_ int, v []bool) {
	c.list(cshim.TagBools, len(v))
	for i := 0; i < len(v); i += 2 {
		p := [2]uint64{bit(v[i])}
		if i+1 < len(v) {
			p[1] = bit(v[i+1])
		}
		c.pair(p)
	}
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (c *call) text(_ int, s string) {
	c.list(cshim.TagString, len(s))
	for len(s) > 0 {
		var b [16]byte
		s = s[copy(b[:], s):]
		c.put(*(*cshim.Value)(unsafe.Pointer(&b)))
	}
}

func (c *call) dtype(_ int, d DType) {
	if d.Size() == 0 {
		c.refuse(ErrArgument, "unknown dtype %v", d)
		return
	}
	c.put(cshim.Value{Tag: cshim.TagInt, Bits: uint64(d)})
}

func (c *call) device(_ int, d Device) {
	if c.fail != nil {
		return
	}
	if err := d.check(c.op.goName); err != nil {
		c.fail = failed(err)
		return
	}
	c.put(cshim.Value{Tag: cshim.TagDevice, Bits: uint64(d.word())})
}

// enum encodes a value below n.
func (c *call) enum(what string, v, n int) {
	if v < 0 || v >= n {
		c.refuse(ErrArgument, "%s %d does not exist", what, v)
		return
	}
	c.put(cshim.Value{Tag: cshim.TagInt, Bits: uint64(v)})
}

// enumOf returns the name and the number of values of an option that is an enumeration in libtorch, which does not check
// it.
func enumOf(key optKey) (what string, count int) {
	switch key {
	case keyInterpolationMode:
		return "interpolation mode", 3
	case keyPaddingMode:
		return "padding mode", 3
	}
	return "", 0
}

// generator encodes a generator; nil stands for the device's own.
func (c *call) generator(g *Generator) {
	if g == nil || c.fail != nil {
		c.put(cshim.Value{Tag: cshim.TagNone})
		return
	}
	if err := g.acquire(c.op.goName); err != nil {
		c.fail = failed(err)
		return
	}
	c.drawn = g
	c.put(cshim.Value{Tag: cshim.TagGenerator, Bits: uint64(g.h)})
}

// number encodes a Go number and keeps its kind: in type promotion libtorch distinguishes int, float and
// complex.
func (c *call) number(i int, v any) {
	if v == nil && i < len(c.op.args) && c.op.args[i].optional {
		c.put(cshim.Value{Tag: cshim.TagNone})
		return
	}
	first, second, n := encodeNumber(v)
	switch n {
	case 0:
		name := "?"
		if i < len(c.op.args) {
			name = c.op.args[i].name
		}
		see := ""
		if _, ok := v.(*Tensor); ok && c.op.tensors != "" {
			see = "; see " + c.op.tensors
		}
		c.refuse(ErrArgument, "%s must be a number%s, not %s%s", name, orTensor(c.op, i), typeName(v), see)
	case 1:
		c.put(first)
	case 2:
		c.put(first)
		c.put(second)
	}
}

func orTensor(o *op, i int) string {
	if i < len(o.args) && o.args[i].kind == kindOperand {
		return " or a *Tensor"
	}
	return ""
}

func typeName(v any) string {
	if v == nil {
		return "nil"
	}
	name := fmt.Sprintf("%T", v)
	if strings.HasPrefix(name, "int") {
		return "an " + name
	}
	return "a " + name
}

func encodeNumber(v any) (first, second cshim.Value, n int) {
	integer := func(i int64) (cshim.Value, cshim.Value, int) {
		return cshim.Value{Tag: cshim.TagInt, Bits: uint64(i)}, cshim.Value{}, 1
	}
	float := func(f float64) (cshim.Value, cshim.Value, int) {
		return cshim.Value{Tag: cshim.TagFloat, Bits: math.Float64bits(f)}, cshim.Value{}, 1
	}
	complex := func(z complex128) (cshim.Value, cshim.Value, int) {
		return cshim.Value{Tag: cshim.TagComplex, Bits: math.Float64bits(real(z))},
			cshim.Value{Tag: cshim.TagComplex, Bits: math.Float64bits(imag(z))}, 2
	}
	unsigned := func(u uint64) (cshim.Value, cshim.Value, int) {
		if u > math.MaxInt64 {
			return cshim.Value{Tag: cshim.TagUint, Bits: u}, cshim.Value{}, 1
		}
		return integer(int64(u))
	}
	switch v := v.(type) {
	case int:
		return integer(int64(v))
	case float64:
		return float(v)
	case float32:
		return float(float64(v))
	case int64:
		return integer(v)
	case int32:
		return integer(int64(v))
	case int16:
		return integer(int64(v))
	case int8:
		return integer(int64(v))
	case uint:
		return unsigned(uint64(v))
	case uint64:
		return unsigned(v)
	case uint32:
		return integer(int64(v))
	case uint16:
		return integer(int64(v))
	case uint8:
		return integer(int64(v))
	case bool:
		return cshim.Value{Tag: cshim.TagBool, Bits: bit(v)}, cshim.Value{}, 1
	case complex128:
		return complex(v)
	case complex64:
		return complex(complex128(v))
	}
	return cshim.Value{}, cshim.Value{}, 0
}

// realNumber converts a Go number, not a bool, to a float64.
func realNumber(v any) (float64, bool) {
	first, _, n := encodeNumber(v)
	switch {
	case n == 1 && first.Tag == cshim.TagInt:
		return float64(int64(first.Bits)), true
	case n == 1 && first.Tag == cshim.TagUint:
		return float64(first.Bits), true
	case n == 1 && first.Tag == cshim.TagFloat:
		return math.Float64frombits(first.Bits), true
	}
	return 0, false
}

func (c *call) numbers(i int, vs []any) {
	ints := make([]int, 0, len(vs))
	for _, v := range vs {
		if n, ok := v.(int); ok {
			ints = append(ints, n)
		}
	}
	if len(ints) == len(vs) {
		c.ints(i, ints)
		return
	}
	floats := make([]float64, len(vs))
	for k, v := range vs {
		f, ok := realNumber(v)
		if !ok {
			c.refuse(ErrArgument, "%s: element %d must be a real number, not %s", c.op.args[i].name, k, typeName(v))
			return
		}
		floats[k] = f
	}
	c.floats(i, floats)
}

// option encodes the i-th argument from the options or from the table's default, or else omits it, so that the
// schema's default applies.
func (c *call) option(i int, opts []Option, lit any) {
	if c.fail != nil {
		return
	}
	spec := &c.op.args[i]
	for k := len(opts) - 1; k >= 0; k-- {
		switch o := opts[k].(type) {
		case DType:
			if spec.key == keyDType {
				c.dtype(i, o)
				return
			}
		case Device:
			if spec.key == keyDevice {
				c.device(i, o)
				return
			}
		case Reduction:
			if spec.key == keyReduction {
				c.reduction(i, o)
				return
			}
		case Layout:
			if spec.key == keyLayout {
				c.enum("layout", int(o), len(layoutNames))
				return
			}
		case MemoryFormat:
			if spec.key == keyMemoryFormat {
				c.enum("memory format", int(o), len(memoryFormats))
				return
			}
		case *Generator:
			if spec.key == keyGenerator {
				c.generator(o)
				return
			}
		case kwarg:
			if o.key == spec.key {
				c.keyword(i, o.val)
				return
			}
		}
	}
	if testdevice.On && spec.key == keyDevice && !slices.ContainsFunc(c.op.args, func(a argSpec) bool { return a.kind == kindTensor }) {
		c.device(i, testDevice())
		return
	}
	if lit == nil {
		c.skip()
		return
	}
	c.keyword(i, lit)
}

// keyword encodes an option's value as the argument's type requires.
func (c *call) keyword(i int, v any) {
	spec := &c.op.args[i]
	if _, isNone := v.(none); isNone {
		c.put(cshim.Value{Tag: cshim.TagNone})
		return
	}
	bad := func(want string) {
		c.refuse(ErrArgument, "option %s must be %s, not %s", optNames[spec.key], want, typeName(v))
	}
	// An option whose function takes several values can also be passed for an argument that takes one.
	single := func() any {
		switch list := v.(type) {
		case []int:
			if len(list) == 1 {
				return list[0]
			}
		case []any:
			if len(list) == 1 {
				return list[0]
			}
		}
		return v
	}
	switch spec.kind {
	case kindTensor:
		if t, ok := v.(*Tensor); ok {
			c.optTensor(i, t)
			return
		}
		bad("a *Tensor")
	case kindOperand:
		c.operand(i, single())
	case kindInt:
		one := single()
		if r, ok := one.(Reduction); ok {
			c.reduction(i, r)
			return
		}
		n, _, _ := encodeNumber(one)
		if n.Tag != cshim.TagInt {
			bad("one int")
			return
		}
		if what, count := enumOf(spec.key); count != 0 {
			c.enum(what, int(n.Bits), count)
			return
		}
		c.put(n)
	case kindInts, kindInts2, kindInts3:
		switch n := v.(type) {
		case int:
			c.ints(i, []int{n})
		case []int:
			c.ints(i, n)
		case []any:
			ints := make([]int, 0, len(n))
			for _, e := range n {
				k, ok := e.(int)
				if !ok {
					bad("ints")
					return
				}
				ints = append(ints, k)
			}
			c.ints(i, ints)
		default:
			bad("ints")
		}
	case kindFloat:
		f, ok := realNumber(single())
		if !ok {
			bad("a real number")
			return
		}
		c.float(i, f)
	case kindFloats, kindScalars:
		switch list := v.(type) {
		case []any:
			c.numbers(i, list)
		case []float64:
			c.floats(i, list)
		case []int:
			c.ints(i, list)
		default:
			c.numbers(i, []any{v})
		}
	case kindScalar:
		c.number(i, single())
	case kindBool:
		if b, ok := single().(bool); ok {
			c.put(cshim.Value{Tag: cshim.TagBool, Bits: bit(b)})
			return
		}
		bad("a bool")
	case kindString:
		if s, ok := single().(string); ok {
			c.text(i, s)
			return
		}
		bad("a string")
	default:
		bad("of another kind")
	}
}

// run makes the call. The returned values are valid until free is called.
func (c *call) run(out []cshim.Value, discard bool) (cshim.Results, bool) {
	defer c.letGo()
	if c.fail == nil && c.op.same != 0 {
		c.fail = c.op.sameShape(c.ins[:min(c.op.same, c.nin)])
	}
	if c.fail == nil {
		c.functional()
	}
	if c.fail != nil {
		return cshim.Results{}, false
	}
	native, err := c.op.find()
	if err != nil {
		c.fail = failed(newError(c.op.goName, err))
		return cshim.Results{}, false
	}
	r := cshim.Call(native, c.values(), out, discard)
	if r.Err != nil && again(c.op, r.Err) {
		r = cshim.Call(native, c.values(), out, discard)
	}
	if discard {
		named()
	}
	if r.Err != nil {
		c.fail = failed(newError(c.op.goName, cshim.Take(r.Err), append(c.ins[:c.nin:c.nin], c.moreIns...)...))
		return cshim.Results{}, false
	}
	if r.Scope&cshim.ScopeYield != 0 {
		r.Scope &^= cshim.ScopeYield
		runtime.Gosched()
	}
	return r, true
}

// again reports whether to try again after the device had no memory for the operator, and makes room for that.
// The allocator has already waited for sweeps; outside the operator its cached blocks can be freed too.
// Operators that write to existing tensors or draw random numbers are not repeated. If it returns false, err is
// still valid; otherwise again has freed it.
func again(o *op, ref cshim.ErrorRef) bool {
	device, bytes, ok := cshim.NoDeviceMemory(ref)
	if !ok {
		return false
	}
	native, err := o.find()
	if err != nil || !cshim.OpRepeatable(native) || !reclaim.Relieve(device, bytes) {
		return false
	}
	cshim.Take(ref)
	return true
}

func (c *call) wrapValue(v cshim.Value, scope uint64) *Tensor {
	if v.Tag != cshim.TagTensor || v.Bits == 0 {
		return failed(refused(c.op.goName, ErrArgument, "the operator returned no tensor"))
	}
	return wrap(cshim.Handle(v.Bits), scope)
}

func (c *call) one() *Tensor {
	var out [2]cshim.Value
	r, ok := c.run(out[:], false)
	if !ok {
		return c.fail
	}
	return c.wrapValue(out[0], r.Scope)
}

func (c *call) two() (*Tensor, *Tensor) {
	var out [4]cshim.Value
	r, ok := c.run(out[:], false)
	if !ok {
		return c.fail, &Tensor{fail: c.fail.fail}
	}
	return c.wrapValue(out[0], r.Scope), c.wrapValue(out[1], r.Scope)
}

func (c *call) three() (*Tensor, *Tensor, *Tensor) {
	var out [4]cshim.Value
	r, ok := c.run(out[:], false)
	if !ok {
		return three(c.fail)
	}
	return c.wrapValue(out[0], r.Scope), c.wrapValue(out[1], r.Scope), c.wrapValue(out[2], r.Scope)
}

// three returns three results that carry f's error.
func three(f *Tensor) (a, b, c *Tensor) {
	return f, &Tensor{fail: f.fail}, &Tensor{fail: f.fail}
}

func (c *call) four() (*Tensor, *Tensor, *Tensor, *Tensor) {
	var out [4]cshim.Value
	r, ok := c.run(out[:], false)
	if !ok {
		return c.fail, &Tensor{fail: c.fail.fail}, &Tensor{fail: c.fail.fail}, &Tensor{fail: c.fail.fail}
	}
	return c.wrapValue(out[0], r.Scope), c.wrapValue(out[1], r.Scope), c.wrapValue(out[2], r.Scope), c.wrapValue(out[3], r.Scope)
}

func (c *call) tensorList() ([]*Tensor, error) {
	var out [16]cshim.Value
	r, ok := c.run(out[:], false)
	if !ok {
		return nil, c.fail.fail.take()
	}
	defer r.Free()
	hs := cshim.Payload[cshim.Handle](r.Values(out[:]))
	ts := make([]*Tensor, len(hs))
	for i, h := range hs {
		ts[i] = wrap(h, r.Scope)
	}
	return ts, nil
}

func (c *call) boolean() (bool, error) {
	v, err := c.plain()
	return v.Bits != 0, err
}

func (c *call) integer() (int, error) {
	v, err := c.plain()
	return int(v.Bits), err
}

func (c *call) plain() (cshim.Value, error) {
	var out [2]cshim.Value
	if _, ok := c.run(out[:], false); !ok {
		return cshim.Value{}, c.fail.fail.take()
	}
	return out[0], nil
}

// inPlace drops the result, which is the receiver.
func (c *call) inPlace(t *Tensor) *Tensor {
	if _, ok := c.run(nil, true); !ok {
		return c.fail
	}
	return t
}

package tensor

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
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
	return fmt.Sprintf("a %T", v)
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
		switch n := single().(type) {
		case int:
			if what, count := enumOf(spec.key); count != 0 {
				c.enum(what, n, count)
				return
			}
			c.int(i, n)
		case Reduction:
			c.reduction(i, n)
		default:
			bad("one int")
		}
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

// sameShape returns nil if ts have the same shape, and otherwise the failure to return. docs/decisions/0016 has the
// reasons.
func (o *op) sameShape(ts []*Tensor) *Tensor {
	var first, other cshim.Meta
	for i, t := range ts {
		m := &other
		if i == 0 {
			m = &first
		}
		if err := t.meta(o.goName, m); err != nil {
			return nil // no shape to compare; the operator checks it
		}
		if i > 0 && (other.NDim != first.NDim || int(other.NDim) <= len(other.Sizes) && other.Sizes != first.Sizes) {
			return failed(o.differ(ts[0], t, i))
		}
	}
	return nil
}

// opSmoothL1LossBeta0 is SmoothL1Loss with Beta 0, as in PyTorch: the gradient of the operator is not 0 where x is the target.
var opSmoothL1LossBeta0 = op{name: "aten::l1_loss", goName: "SmoothL1Loss", args: opL1Loss.args}

// functional does what the functions of torch.nn.functional do before they call their operators: mostly checks.
func (c *call) functional() {
	switch c.op {
	case &opAffineGrid:
		c.affineGrid()
	case &opEmbedding:
		c.paddingIdx()
	case &opBatchNorm:
		c.batchNorm()
	case &opInstanceNorm:
		if s := c.ins[0].Shape(); c.number64(5, 0) != 0 && len(s) >= 2 && product(s[2:]) == 1 {
			c.refuse(ErrArgument, "each channel needs more than 1 value to be normalized by itself, got shape %s", tuple(s))
		}
	case &opGroupNorm:
		groups, s := int(c.number64(1, 0)), c.ins[0].Shape()
		if groups > 0 && len(s) >= 2 && s[0]*s[1]/groups*product(s[2:]) == 1 {
			c.refuse(ErrArgument, "each group needs more than 1 value, got shape %s and %d groups", tuple(s), groups)
		}
	case &opHardtanh, &opHardtanh_:
		if low, high := c.number64(1, -1), c.number64(2, 1); low > high {
			c.refuse(ErrArgument, "MinVal must not be greater than MaxVal, got %v and %v", low, high)
		}
	case &opSmoothL1Loss:
		if c.number64(3, 1) == 0 {
			c.op = &opSmoothL1LossBeta0
			c.n-- // Beta
		}
	case &opEmbeddingBag:
		if (c.number64(3, 0) != 0 || c.number64(5, 0) != 0) && c.number64(4, 0) == 2 {
			c.refuse(ErrArgument, "mode 2, the maximum, excludes ScaleGradByFreq and Sparse")
		}
	case &opTripletMarginLoss:
		if margin := c.number64(3, 1); !(margin > 0) {
			c.refuse(ErrArgument, "Margin must be positive, got %v", margin)
		}
	}
}

// number64 returns the number in the i-th slot, otherwise if the slot has the schema's default, and NaN if the number
// is not real.
func (c *call) number64(i int, otherwise float64) float64 {
	switch v := c.values()[i]; v.Tag {
	case cshim.TagDefault:
		return otherwise
	case cshim.TagFloat:
		return math.Float64frombits(v.Bits)
	case cshim.TagInt, cshim.TagBool:
		return float64(int64(v.Bits))
	case cshim.TagUint:
		return float64(v.Bits)
	}
	return math.NaN()
}

func product(sizes []int) int {
	n := 1
	for _, s := range sizes {
		n *= s
	}
	return n
}

// paddingIdx makes a negative padding_idx of embedding count from the end: for the operator it names no row.
func (c *call) paddingIdx() {
	v := &c.values()[2]
	weight := c.ins[0]
	if v.Tag != cshim.TagInt || weight.Dim() < 1 {
		return
	}
	row, rows := int(v.Bits), weight.Size(0)
	if row < -rows || row >= rows {
		c.refuse(ErrArgument, "PaddingIdx must be in [%d, %d) for a weight of %d rows, got %d", -rows, rows, rows, row)
		return
	}
	if row < 0 {
		v.Bits = uint64(row + rows)
	}
}

func (c *call) batchNorm() {
	training, eps := c.number64(5, 0) != 0, c.number64(7, 1e-5)
	s := c.ins[0].Shape()
	switch {
	case training && len(s) >= 2 && s[0]*product(s[2:]) == 1:
		c.refuse(ErrArgument, "each channel needs more than 1 value to be normalized by its batch, got shape %s", tuple(s))
	case training && eps <= 0:
		c.refuse(ErrArgument, "Eps must be positive in training, got %v", eps)
	case eps < 0:
		c.refuse(ErrArgument, "Eps must not be negative, got %v", eps)
	}
}

func (c *call) affineGrid() {
	theta, list := c.ins[0], c.values()[1:]
	size := make([]int, list[0].Len)
	for i := range size {
		size[i] = int((*[2]uint64)(unsafe.Pointer(&list[1+i/2]))[i%2])
	}
	n := len(size) - 2 // the dimensions of the image
	switch {
	case !theta.DType().IsFloat():
		c.refuse(ErrArgument, "theta must have floating-point numbers, got %v", theta.DType())
	case n != 2 && n != 3:
		c.refuse(ErrArgument, "the size must be (N, C, H, W) or (N, C, D, H, W), got %s", tuple(size))
	case slices.Min(size) < 1:
		c.refuse(ErrArgument, "the size must be positive, got %s", tuple(size))
	case !slices.Equal(theta.Shape(), []int{size[0], n, n + 1}):
		c.refuse(ErrArgument, "theta must have shape %s for the size %s, got %s", tuple([]int{size[0], n, n + 1}), tuple(size), tuple(theta.Shape()))
	}
}

// differ says how to change the i-th argument, b, so that it has the shape of the first, a.
func (o *op) differ(a, b *Tensor, i int) error {
	x, name := o.args[0].name, o.args[i].name
	if x == "self" {
		x = "x"
	}
	s, r := a.Shape(), b.Shape()
	both, ok := broadcast(s, r)
	advice := ""
	switch {
	case ok && slices.Equal(both, s):
		advice = fmt.Sprintf("to broadcast, expand: %s.ExpandAs(%s)", name, x)
	case ok && slices.Equal(both, r):
		advice = fmt.Sprintf("to broadcast, expand: %s.ExpandAs(%s)", x, name)
	case ok:
		sizes := strings.Trim(fmt.Sprint(both), "[]")
		sizes = strings.ReplaceAll(sizes, " ", ", ")
		advice = fmt.Sprintf("to broadcast, expand both: %s.Expand(%s), %s.Expand(%s)", x, sizes, name, sizes)
	default:
		advice = "they cannot be broadcast"
	}
	if n, _ := numel(s); n == b.Numel() {
		advice = fmt.Sprintf("%s.ViewAs(%s) gives it the same shape; %s", name, x, advice)
	}
	return refused(o.goName, ErrArgument, "%s has shape %s and %s %s, which must be equal; %s", x, tuple(s), name, tuple(r), advice)
}

// broadcast returns the shape to which two shapes broadcast.
func broadcast(a, b []int) ([]int, bool) {
	out := make([]int, max(len(a), len(b)))
	for i := range out {
		at := func(s []int) int {
			if k := i - (len(out) - len(s)); k >= 0 {
				return s[k]
			}
			return 1
		}
		p, q := at(a), at(b)
		if p != q && p != 1 && q != 1 {
			return nil, false
		}
		out[i] = p
		if p == 1 {
			out[i] = q
		}
	}
	return out, true
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

var (
	byName sync.Map // operator name → *op, for Call
)

// Call runs an operator of libtorch's dispatcher by its full name, "aten::add.Tensor", including those of
// loaded extensions. Arguments are in the schema's order: *Tensor (nil for None), []*Tensor, int, []int,
// float64 and other numbers, []float64, bool, []bool, string, DType, Device, Layout, MemoryFormat, *Generator, *ScriptObject, nil for None, and
// [Default] for an argument's default. Trailing arguments with defaults can be left out. Each result is a *Tensor
// (nil if the operator returned none), []*Tensor, int (uint64 above the range of int64), float64, bool, complex128, string,
// []int, []float64, []bool, Device, *ScriptObject or nil. An operator that writes to an argument returns a second handle to it.
//
// The variants that write their result into a given tensor (out= in Python) have a name of their own, and that tensor is
// their last argument: Call("aten::matmul.out", a, b, out).
//
// Arguments that would end the process are rejected with ErrArgument or ErrNotImplemented. Operators that are
// internal to libtorch are rejected with ErrArgument; see [CallUnchecked].
// docs/decisions/0013-unchecked-operators.md describes what is guaranteed. An operator that changes a tensor's shape or
// memory (resize_, unsqueeze_, set_) can end the process if another goroutine uses the tensor meanwhile.
func Call(name string, args ...any) ([]any, error) { return callByName(name, false, args) }

// CallUnchecked is [Call] without the restriction to public operators: it also runs operators that are internal
// to libtorch. These are names that begin with an underscore or contain "_backward", kernels of one backend
// ("mkldnn_…"), variants that libtorch generates, and libtorch's namespaces other than aten. Libtorch calls
// them with arguments that it has already checked. Only the types of arguments are checked, against the schema:
// invalid arguments may end the process, or read and write memory out of bounds.
func CallUnchecked(name string, args ...any) ([]any, error) { return callByName(name, true, args) }

func callByName(name string, unchecked bool, args []any) ([]any, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	o, err := lookup(name)
	if err != nil {
		return nil, err
	}
	if o.internal && !unchecked {
		return nil, refused(name, ErrArgument, "the operator is internal to libtorch and does not check its arguments: wrong ones may end the process; tensor.CallUnchecked calls it anyway")
	}
	var c call
	c.begin(o)
	for i, a := range args {
		c.any(i, a)
	}
	var out [24]cshim.Value
	r, ok := c.run(out[:], false)
	if !ok {
		return nil, c.fail.fail.take()
	}
	defer r.Free()
	return decode(r.Values(out[:]), r.Scope), nil
}

// callTensor runs an operator with one result, also an internal one.
func callTensor(name string, args ...any) *Tensor {
	out, err := CallUnchecked(name, args...)
	if err != nil {
		return failed(err)
	}
	return out[0].(*Tensor)
}

// Default is passed to [Call] for an argument that is to have its schema's default.
var Default = defaultArg{}

type defaultArg struct{}

func lookup(name string) (*op, error) {
	if o, ok := byName.Load(name); ok {
		return o.(*op), nil
	}
	base, overload, _ := strings.Cut(name, ".")
	if !strings.Contains(base, "::") || strings.ContainsRune(name, 0) {
		return nil, refused("Call", ErrArgument, "invalid operator name %q: want a name such as aten::add.Tensor", name)
	}
	o := &op{name: base, overload: overload, goName: name}
	native, err := o.find()
	if err != nil {
		return nil, err
	}
	o.internal = cshim.OpInternal(native)
	got, _ := byName.LoadOrStore(name, o)
	return got.(*op), nil
}

// any encodes an argument by its Go type; the shim checks it against the schema.
func (c *call) any(i int, v any) {
	switch v := v.(type) {
	case nil:
		c.put(cshim.Value{Tag: cshim.TagNone})
	case defaultArg:
		c.skip()
	case *Tensor:
		if v == nil {
			c.put(cshim.Value{Tag: cshim.TagNone})
			return
		}
		c.tensor(i, v)
	case []*Tensor:
		c.list(cshim.TagTensors, len(v))
		for at := 0; at < len(v); at += 2 {
			var pair [2]uint64
			for k := 0; k < 2 && at+k < len(v); k++ {
				if v[at+k] == nil {
					continue
				}
				if !c.hold(v[at+k]) {
					return
				}
				pair[k] = uint64(v[at+k].h)
			}
			c.pair(pair)
		}
	case *ScriptObject:
		switch {
		case v == nil:
			c.put(cshim.Value{Tag: cshim.TagNone})
		case v.acquire():
			c.objects = append(c.objects, v)
			c.put(cshim.Value{Tag: cshim.TagObject, Bits: uint64(v.h)})
		default:
			c.refuse(ErrReleased, "argument %d: the object has been released", i)
		}
	case []int:
		c.ints(i, v)
	case []float64:
		c.floats(i, v)
	case []bool:
		c.bools(i, v)
	case string:
		c.text(i, v)
	case DType:
		c.dtype(i, v)
	case Reduction:
		c.reduction(i, v)
	case Device:
		c.device(i, v)
	case Layout:
		c.enum("layout", int(v), len(layoutNames))
	case MemoryFormat:
		c.enum("memory format", int(v), len(memoryFormats))
	case *Generator:
		if c.drawn != nil {
			c.refuse(ErrArgument, "argument %d: an operator has one generator", i)
			return
		}
		c.generator(v)
	default:
		first, second, n := encodeNumber(v)
		if n == 0 {
			c.refuse(ErrArgument, "argument %d: an operator has no arguments of type %s", i, typeName(v))
			return
		}
		c.put(first)
		if n == 2 {
			c.put(second)
		}
	}
}

func decode(vs []cshim.Value, scope uint64) []any {
	var out []any
	for len(vs) > 0 {
		v := vs[0]
		switch v.Tag {
		case cshim.TagTensor:
			if v.Bits == 0 {
				out = append(out, (*Tensor)(nil))
			} else {
				out = append(out, wrap(cshim.Handle(v.Bits), scope))
			}
		case cshim.TagInt:
			out = append(out, int(v.Bits))
		case cshim.TagUint:
			out = append(out, v.Bits)
		case cshim.TagFloat:
			out = append(out, math.Float64frombits(v.Bits))
		case cshim.TagBool:
			out = append(out, v.Bits != 0)
		case cshim.TagComplex:
			out = append(out, complex(math.Float64frombits(v.Bits), math.Float64frombits(vs[1].Bits)))
		case cshim.TagString:
			out = append(out, string(cshim.Payload[byte](vs)))
		case cshim.TagInts:
			list := make([]int, 0, v.Len)
			for _, n := range cshim.Payload[int64](vs) {
				list = append(list, int(n))
			}
			out = append(out, list)
		case cshim.TagFloats:
			out = append(out, append([]float64{}, cshim.Payload[float64](vs)...))
		case cshim.TagBools:
			list := make([]bool, 0, v.Len)
			for _, n := range cshim.Payload[int64](vs) {
				list = append(list, n != 0)
			}
			out = append(out, list)
		case cshim.TagTensors:
			list := make([]*Tensor, 0, v.Len)
			for _, h := range cshim.Payload[cshim.Handle](vs) {
				if h == 0 {
					list = append(list, nil)
				} else {
					list = append(list, wrap(h, scope))
				}
			}
			out = append(out, list)
		case cshim.TagDevice:
			out = append(out, Device{DeviceType(v.Bits >> 8), int(v.Bits & 0x7f)})
		case cshim.TagObject:
			out = append(out, newScriptObject(cshim.Object(v.Bits)))
		default:
			out = append(out, nil)
		}
		vs = vs[cshim.Width(v):]
	}
	return out
}

// Schema returns an operator's schema, given its full name, as the dispatcher prints it.
func Schema(name string) (string, error) {
	if err := cshim.Load(); err != nil {
		return "", err
	}
	o, err := lookup(name)
	if err != nil {
		return "", err
	}
	native, err := o.find()
	if err != nil {
		return "", err
	}
	return cshim.OpSchema(native)
}

// OperatorNames returns the full names of all operators of the dispatcher, including those that only
// CallUnchecked runs.
func OperatorNames() ([]string, error) {
	if err := cshim.Load(); err != nil {
		return nil, err
	}
	all, err := cshim.OpNames()
	return strings.Fields(all), err
}

package tensor

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/cshim"
)

var byName sync.Map // operator name → *op, for Call

var dataSet atomic.Int64 // how often an operator with setsData has run

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
	if o.setsData {
		dataSet.Add(1)
	}
	defer r.Free()
	return decode(r.Values(out[:]), r.Scope), nil
}

// callTensor runs an operator with one result, also an internal one, for op. The tensors among args must be usable.
func callTensor(op, name string, args ...any) *Tensor {
	out, err := CallUnchecked(name, args...)
	if err != nil {
		return failed(attribute(op, err))
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
	o.setsData = base == "aten::set_data" || base == "aten::shallow_copy_data_"
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
			// The index is a signed byte; -1 is none, as CPU tensors have it.
			out = append(out, Device{DeviceType(v.Bits >> 8), max(0, int(int8(v.Bits)))})
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

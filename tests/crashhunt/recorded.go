package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/tensor"
)

//go:embed calls.jsonl
var callsFile []byte

// recordedCall is a valid call of an operator, which record.py wrote.
type recordedCall struct {
	Op   string
	Args []any
}

// recordedCalls returns the recorded calls by the name of the operator without overload and without the underscore of
// operators that work in place.
var recordedCalls = sync.OnceValues(func() (map[string][]recordedCall, error) {
	all := map[string][]recordedCall{}
	d := json.NewDecoder(bytes.NewReader(callsFile))
	d.UseNumber()
	for d.More() {
		var c recordedCall
		if err := d.Decode(&c); err != nil {
			return nil, err
		}
		all[family(c.Op)] = append(all[family(c.Op)], c)
	}
	return all, nil
})

func family(op string) string {
	name, _, _ := strings.Cut(op, ".")
	return strings.TrimSuffix(name, "_")
}

// isWritten reports whether the operator writes to the argument.
func (a argument) isWritten() bool { return strings.Contains(a.typ, "!") }

// isResult reports whether the argument only holds a result.
func (a argument) isResult() bool { return a.name != "self" && a.isWritten() }

// inputs returns the arguments without those that only hold results.
func inputs(args []argument) []argument {
	return slices.DeleteFunc(slices.Clone(args), argument.isResult)
}

// findCalls adds to the operator the calls that were recorded of it, or of the same operator with another way to
// return results.
func (o *operator) findCalls() error {
	all, err := recordedCalls()
	if err != nil {
		return err
	}
	in := inputs(o.types)
	for _, c := range all[family(o.name)] {
		if c.Op != o.name {
			schema, err := tensor.Schema(c.Op)
			if err != nil {
				continue // another version of libtorch
			}
			if !slices.EqualFunc(in, inputs(arguments(schema)), func(a, b argument) bool { return a.name == b.name }) {
				continue
			}
		}
		o.calls = append(o.calls, c)
	}
	return nil
}

// recorded returns the arguments of a recorded call of the operator, with at most three changes.
func (v *values) recorded(op *operator) []any {
	n := v.IntN(len(op.calls))
	args := v.given(op, n)
	if len(args) < len(op.types) {
		args = v.withResults(op, op.calls[n].Op, args)
	}
	for range v.IntN(4) {
		i := v.IntN(len(args))
		if v.one(2) { // most faults are in tensors
			for j := range args {
				if _, ok := args[(i+j)%len(args)].(*tensor.Tensor); ok {
					i = (i + j) % len(args)
					break
				}
			}
		}
		args[i] = v.change(op.types[i], i, args)
	}
	return args
}

// given returns the arguments of the operator's recorded call n, without those that hold results.
func (v *values) given(op *operator, n int) []any {
	c := op.calls[n]
	args := make([]any, len(inputs(op.types)))
	for i := range args {
		args[i] = tensor.Default
		if i < len(c.Args) {
			args[i] = v.decode(c.Args[i])
		}
	}
	return args
}

// withResults inserts tensors for the arguments that hold results: those of a call without them, or empty ones.
func (v *values) withResults(op *operator, plain string, given []any) []any {
	var results []*tensor.Tensor
	if plain != op.name && v.one(2) {
		out, err := tensor.Call(plain, given...)
		for _, r := range out {
			if t, ok := r.(*tensor.Tensor); ok && err == nil && t != nil {
				results = append(results, t.Detach().Clone())
			}
		}
	}
	args, n := make([]any, 0, len(op.types)), 0
	for i, a := range op.types {
		if !a.isResult() {
			args = append(args, given[i-n])
			continue
		}
		if n < len(results) {
			args = append(args, results[n])
		} else {
			args = append(args, tensor.Zeros([]int{0}, v.dtype))
		}
		n++
	}
	return args
}

// decode returns the argument that record.py wrote as x.
func (v *values) decode(x any) any {
	switch x := x.(type) {
	case json.Number:
		if i, err := x.Int64(); err == nil {
			return int(i)
		}
		f, _ := x.Float64()
		return f
	case []any:
		return v.decodeList(x)
	case map[string]any:
		if f, ok := x["f"]; ok {
			switch f {
			case "inf":
				return math.Inf(1)
			case "-inf":
				return math.Inf(-1)
			}
			return math.NaN()
		}
		if c, ok := x["c"]; ok {
			parts := numbers(c)
			return complex(parts[0], parts[1])
		}
		if len(x) == 0 {
			return tensor.Default
		}
		return v.decodeTensor(x)
	}
	return x
}

func (v *values) decodeList(x []any) any {
	if len(x) == 0 {
		return []int{}
	}
	switch x[0].(type) {
	case bool:
		bs := make([]bool, len(x))
		for i := range x {
			bs[i] = x[i] == true
		}
		return bs
	case json.Number:
		fs := numbers(x)
		is := make([]int, len(fs))
		for i, f := range fs {
			if is[i] = int(f); float64(is[i]) != f {
				return fs
			}
		}
		return is
	}
	ts := make([]*tensor.Tensor, len(x))
	for i := range x {
		ts[i], _ = v.decode(x[i]).(*tensor.Tensor)
	}
	return ts
}

func numbers(x any) (fs []float64) {
	list, _ := x.([]any)
	for _, n := range list {
		if n, ok := n.(json.Number); ok {
			f, _ := n.Float64()
			fs = append(fs, f)
		}
	}
	return fs
}

func ints(x any) []int {
	fs := numbers(x)
	is := make([]int, len(fs))
	for i, f := range fs {
		is[i] = int(f)
	}
	return is
}

func (v *values) decodeTensor(x map[string]any) *tensor.Tensor {
	number, _ := v.decode(x["d"]).(int)
	dtype, sizes := tensor.DType(number), ints(x["s"])
	var strides []int
	if t, ok := x["t"]; ok {
		strides = ints(t)
	}
	if dtype == tensor.Float32 && (v.dtype == tensor.Float64 || v.dtype == tensor.Float16 || v.dtype == tensor.BFloat16) {
		dtype = v.dtype // of all tensors of the call
	}
	n := 1
	for i, s := range sizes {
		if strides == nil {
			n *= s
		} else {
			n += (s - 1) * strides[i]
		}
	}
	elements, bounds := numbers(x["v"]), numbers(x["r"])
	data := make([]float64, max(n, 0))
	for i := range data {
		switch {
		case elements != nil && i < len(elements):
			data[i] = elements[i]
		case bounds == nil:
			data[i] = v.NormFloat64()
		case dtype.IsFloat():
			data[i] = bounds[0] + v.Float64()*(bounds[1]-bounds[0])
		default:
			data[i] = bounds[0] + math.Floor(v.Float64()*(bounds[1]-bounds[0]+1))
		}
	}
	shape := sizes
	if strides != nil {
		shape = []int{len(data)}
	}
	t := tensor.FromSlice(data, shape).To(dtype)
	if strides != nil {
		t = t.AsStrided(sizes, strides)
	}
	layout, sparse := v.decode(x["l"]).(int)
	if sparse {
		switch layout {
		case 1:
			t = v.made("aten::to_sparse", t)
		case 2:
			t = v.made("aten::to_sparse_csr", t)
		case 3:
			t = v.made("aten::to_sparse_csc", t)
		case 4:
			t = v.made("aten::to_sparse_bsr", t, []int{1, 1})
		case 5:
			t = v.made("aten::to_sparse_bsc", t, []int{1, 1})
		}
	}
	if t == nil || t.Err() != nil {
		return tensor.Ones(sizes)
	}
	if v.grad && (dtype.IsFloat() || dtype.IsComplex()) && !v.one(3) {
		v.leaves = append(v.leaves, t.RequiresGrad_())
		t = t.Mul(1)
	}
	return t
}

// change returns the argument args[i] changed.
func (v *values) change(a argument, i int, args []any) any {
	switch x := args[i].(type) {
	case *tensor.Tensor:
		if x == nil || x.Err() != nil || v.one(12) {
			break
		}
		if y := v.changeTensor(x, args); y != nil && y.Err() == nil {
			return y
		}
		return x
	case []*tensor.Tensor:
		if len(x) == 0 || v.one(6) {
			break
		}
		x = slices.Clone(x)
		j := v.IntN(len(x))
		switch {
		case v.one(6):
			return slices.Delete(x, j, j+1)
		case v.one(6):
			return append(x, x[j])
		case x[j] != nil && x[j].Err() == nil:
			if y := v.changeTensor(x[j], args); y != nil && y.Err() == nil {
				x[j] = y
			}
		}
		return x
	case int:
		if !v.one(3) {
			return pick(v, x-1, x+1, 2*x, -x)
		}
	case []int:
		if len(x) == 0 || v.one(4) {
			break
		}
		x = slices.Clone(x)
		j := v.IntN(len(x))
		switch v.IntN(5) {
		case 0:
			return slices.Delete(x, j, j+1)
		case 1:
			return append(x, x[j])
		case 2:
			x[j] = v.int()
		default:
			x[j] += pick(v, -1, 1, 2)
		}
		return x
	}
	return v.value(a, i)
}

// changeTensor returns x with other strides, sizes, dtype or elements, another argument, or a view of one.
func (v *values) changeTensor(x *tensor.Tensor, args []any) *tensor.Tensor {
	if n, err := numel(x); err != nil || n > 1<<16 {
		return nil
	}
	shape := x.Shape()
	dims := len(shape)
	if slices.Contains(shape, -1) {
		return nil // nested
	}
	if v.one(5) {
		return v.relayout(x)
	}
	if v.one(8) {
		return x.To(pick(v, dtypes...))
	}
	if v.one(8) {
		if t, ok := pick(v, args...).(*tensor.Tensor); ok {
			return t
		}
	}
	if v.one(12) {
		return v.fill(shape, x.DType())
	}
	if dims == 0 {
		return x.Unsqueeze(0)
	}
	d := v.IntN(dims)
	switch v.IntN(12) {
	case 0:
		return transposed(x)
	case 1:
		return stepped(x)
	case 2, 3:
		if shape[d] > 0 {
			return x.Narrow(d, 0, 1).Expand(shape...)
		}
	case 4:
		return x.Narrow(d, 0, max(0, shape[d]-pick(v, 1, 1, 2, 100)))
	case 5:
		return tensor.Cat([]*tensor.Tensor{x, x}, tensor.Dim(d))
	case 6:
		if shape[d] > 0 {
			return x.Narrow(d, 0, 1)
		}
	case 7:
		if shape[d] > 0 {
			return x.Select(d, 0)
		}
	case 8:
		return x.Unsqueeze(v.IntN(dims + 1))
	case 9:
		return x.Transpose(d, v.IntN(dims))
	case 10:
		sizes := slices.Clone(shape)
		sizes[d] = pick(v, 0, 1, 2, 7, 33)
		return v.fill(sizes, x.DType())
	case 11: // a few other elements
		y := x.Detach().Clone().Reshape(-1)
		if n := y.Numel(); n > 0 && y.Err() == nil {
			for range 1 + v.IntN(3) {
				y.Narrow(0, v.IntN(n), 1).Copy_(v.fill([]int{1}, x.DType()))
			}
		}
		return y.Reshape(shape...)
	}
	return nil
}

// transposed returns x with the order of its dimensions in memory reversed.
func transposed(x *tensor.Tensor) *tensor.Tensor {
	reversed := make([]int, x.Dim())
	for i := range reversed {
		reversed[i] = len(reversed) - 1 - i
	}
	return x.Permute(reversed...).Contiguous().Permute(reversed...)
}

// stepped returns x with a gap after each element.
func stepped(x *tensor.Tensor) *tensor.Tensor {
	return tensor.Stack([]*tensor.Tensor{x, x}, tensor.Dim(-1)).Select(-1, 0)
}

package tensor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/testdevice"
)

type indexCase struct {
	Shape []int
	Idx   []json.RawMessage
	Text  string
	Set   json.RawMessage
	View  bool
	Out   struct {
		Shape []int
		Data  []int64
		Error string
	}
}

// indexElement parses an element of tests/golden/index.json.
func indexElement(t *testing.T, raw json.RawMessage) any {
	t.Helper()
	var v struct {
		I *int    `json:"i"`
		S *[3]any `json:"s"`
		T *struct {
			DType string
			Shape []int
			Data  []float64
		} `json:"t"`
	}
	switch s := string(raw); {
	case s == `"..."`:
		return Ellipsis
	case s == `"None"`:
		return NewAxis
	case s == "true" || s == "false":
		return s == "true"
	case strings.HasPrefix(s, "[t") || strings.HasPrefix(s, "[f"):
		var list []bool
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		return list
	case strings.HasPrefix(s, "["):
		list := []int{}
		if err := json.Unmarshal(raw, &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	switch {
	case v.I != nil:
		return *v.I
	case v.S != nil:
		var s Slice
		for i, p := range v.S {
			n, ok := p.(json.Number)
			if !ok {
				continue
			}
			k, err := n.Int64()
			if err != nil {
				t.Fatal(err)
			}
			switch i {
			case 0:
				s.start, s.hasStart = int(k), true
			case 1:
				s.stop, s.hasStop = int(k), true
			case 2:
				s = s.By(int(k))
			}
		}
		return s
	}
	dtype, err := ParseDType(v.T.DType)
	if err != nil {
		t.Fatal(err)
	}
	return FromSlice(v.T.Data, shapeOf(v.T.Shape), dtype)
}

// repeats reports whether an element of an index is a list that has a number twice.
func repeats(element json.RawMessage) bool {
	var list []int
	if json.Unmarshal(element, &list) != nil {
		return false
	}
	slices.Sort(list)
	return len(slices.Compact(list)) < len(list)
}

func TestIndexGolden(t *testing.T) {
	begin(t)
	counted(t)
	text, err := os.ReadFile("../tests/golden/index.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []indexCase
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	runs, onDevice := 0, testdevice.On && testDevice() != CPU
	for n, c := range cases {
		if onDevice && c.Out.Error == "IndexError" && slices.ContainsFunc(c.Idx, func(e json.RawMessage) bool { return bytes.Contains(e, []byte(`"t"`)) }) {
			continue // the kernel's check would make the device unusable
		}
		if onDevice && c.Set != nil && slices.ContainsFunc(c.Idx, repeats) {
			continue // which of the values is written is not determined
		}
		forms := []string{"elements"}
		if c.Text != "" {
			forms = append(forms, "text")
		}
		for _, form := range forms {
			runs++
			scope, err := NewScope()
			if err != nil {
				t.Fatal(err)
			}
			numel := 1
			for _, s := range c.Shape {
				numel *= s
			}
			x := Arange(0, numel).View(c.Shape...)
			var idx []any
			if form == "text" {
				idx = []any{c.Text}
			} else {
				for _, raw := range c.Idx {
					idx = append(idx, indexElement(t, raw))
				}
			}
			got := x
			if c.Set == nil {
				had := scope.Len()
				got = x.Index(idx...)
				if made := scope.Len() - had; got.fail == nil && made != 1 {
					t.Errorf("case %d (%s of %v): Index left %d tensors in the scope", n, c.Text, c.Shape, made)
				}
				err = got.Err()
			} else {
				var value any
				if err := json.Unmarshal(c.Set, &value); err != nil {
					t.Fatal(err)
				}
				if _, number := value.(map[string]any); number {
					value = indexElement(t, c.Set)
				}
				had := scope.Len()
				err = x.SetIndex(idx, value)
				if made := scope.Len() - had; made != 0 {
					t.Errorf("case %d (%s of %v): SetIndex left %d tensors in the scope", n, c.Text, c.Shape, made)
				}
			}
			switch {
			case c.Out.Error != "":
				if err == nil {
					t.Errorf("case %d (%s of %v): got %v%v, want %s", n, c.Idx, c.Shape, got.Shape(), values(t, got), c.Out.Error)
				} else if c.Out.Error == "IndexError" && !errors.Is(err, ErrIndex) {
					t.Errorf("case %d (%s of %v): got %v, want an ErrIndex", n, c.Idx, c.Shape, err)
				}
			case err != nil:
				t.Errorf("case %d (%s of %v, set %s): %v", n, c.Idx, c.Shape, c.Set, err)
			default:
				data, err := Data[int64](got)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got.Shape(), c.Out.Shape) || !slices.Equal(data, c.Out.Data) {
					t.Errorf("case %d (%s of %v, set %s): got %v%v, want %v%v", n, c.Idx, c.Shape, c.Set, got.Shape(), data, c.Out.Shape, c.Out.Data)
				}
				if c.Set == nil && c.View != (len(data) > 0 && got.SharesStorage(x)) {
					t.Errorf("case %d (%s of %v): shares storage: %v, want %v", n, c.Idx, c.Shape, !c.View, c.View)
				}
			}
			if err := scope.Close(); err != nil && c.Out.Error == "" {
				t.Error(err)
			}
		}
	}
	t.Logf("%d cases, %d runs", len(cases), runs)
}

func TestIndexErrors(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Arange(0, 6).View(2, 3)
		for _, c := range []struct {
			idx  []any
			kind error
		}{
			{[]any{2}, ErrIndex}, {[]any{0, 0, 0}, ErrIndex}, {[]any{All.By(0)}, ErrArgument},
			{[]any{"1:2:3:4"}, ErrArgument}, {[]any{""}, ErrArgument}, {[]any{"[1"}, ErrArgument}, {[]any{"[[0,1],[1]],"}, ErrArgument}, {[]any{"1]"}, ErrArgument},
			{[]any{1.5}, ErrArgument}, {[]any{struct{}{}}, ErrArgument}, {[]any{(*Tensor)(nil)}, ErrNil}, {[]any{&Tensor{}}, ErrNil},
			{[]any{[]int{5}}, ErrIndex}, {[]any{[]bool{true}}, ErrIndex}, {[]any{uint64(1) << 63}, ErrArgument},
		} {
			if err := x.Index(c.idx...).Err(); !errors.Is(err, c.kind) {
				t.Errorf("%v: got %v, want %v", c.idx, err, c.kind)
			}
			if err := x.SetIndex(c.idx, 1); !errors.Is(err, c.kind) {
				t.Errorf("setting %v: got %v, want %v", c.idx, err, c.kind)
			}
		}
		err := x.Index(7).Err()
		var e *Error
		if !errors.As(err, &e) || e.Op != "Index" || !strings.Contains(e.Caller, "index_test.go:") {
			t.Errorf("the error does not name the caller: %#v", err)
		}
		if err := x.SetIndex(0, "text"); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	})
}

// TestIndexOfTuple tests that a []any that is the whole index stands for its elements in Index as in SetIndex, and that one
// among other elements is an error.
func TestIndexOfTuple(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Arange(0, 6, Float32).View(2, 3)
		for _, c := range []struct {
			idx  []any
			want []float64
		}{
			{[]any{0, 1}, []float64{1}}, {[]any{All, []int{2, 0}}, []float64{2, 0, 5, 3}}, {[]any{"[0, 1]"}, []float64{0, 1, 2, 3, 4, 5}},
			{[]any{}, []float64{0, 1, 2, 3, 4, 5}}, {nil, []float64{0, 1, 2, 3, 4, 5}},
		} {
			wantValues(t, fmt.Sprint(c.idx), x.Index(c.idx), c.want...)
			y := x.Clone()
			if err := y.SetIndex(c.idx, -1); err != nil {
				t.Errorf("%v: %v", c.idx, err)
			}
			if n := values(t, y.Eq(-1).Sum()); n[0] != float64(len(c.want)) {
				t.Errorf("SetIndex of %v writes %v elements, Index returns %d", c.idx, n, len(c.want))
			}
		}
		list := []any{0, 1}
		for _, idx := range [][]any{{list, 0}, {0, list}} {
			wantErr(t, fmt.Sprint(idx), x.Index(idx...).Err(), ErrArgument)
			wantErr(t, fmt.Sprint(idx), x.SetIndex(idx, 1), ErrArgument)
		}
		wantErr(t, "a tuple in a tuple", x.SetIndex([]any{list}, 1), ErrArgument)
		wantErr(t, "a tuple in a tuple", x.Index([]any{list}).Err(), ErrArgument)
	})
}

// TestSetIndexRefusesLayouts tests that an assignment to a tensor whose parts are copies is an error.
func TestSetIndexRefusesLayouts(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := FromSlice([]float32{1, 0, 2, 3}, []int{2, 2})
		for name, y := range map[string]*Tensor{
			"COO": x.ToSparse(), "CSR": x.ToSparseCSR(), "CSC": x.ToSparseCSC(),
			"BSR": x.ToSparseBSR([]int{1, 1}), "BSC": x.ToSparseBSC([]int{1, 1}), "oneDNN": one(t, "aten::to_mkldnn", x),
		} {
			for _, idx := range []any{0, []any{0, 1}, All, Ellipsis, []int{0}, true, false, FromScalar(0)} {
				for _, value := range []any{7, Ones([]int{1})} {
					if err := y.SetIndex(idx, value); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), "cannot assign to a tensor of layout") {
						t.Errorf("%s[%v] = %v: %v", name, idx, value, err)
					}
				}
			}
		}
		n := nested(t, Float32, []int{2}, []int{3})
		if err := n.SetIndex(0, 7); err != nil {
			t.Errorf("a nested tensor: %v", err)
		}
		wantValues(t, "an element of a nested tensor", n.Select(0, 0), 7, 7)
		if err := n.SetIndex(All, FromScalar(8.0)); err != nil {
			t.Errorf("a tensor of shape () into a nested one: %v", err)
		}
		wantValues(t, "the other element", n.Select(0, 1), 8, 8, 8)
	})
}

// TestIndexNamesItself tests that the errors of operators that read an index tensor name the call of the program.
func TestIndexNamesItself(t *testing.T) {
	begin(t)
	scoped(t, func() {
		onMeta, sparse := FromScalar(1, Meta), FromSlice([]int{0, 1}, nil).ToSparse()
		x, there := Ones([]int{2}), Ones([]int{2}, Meta)
		for op, err := range map[string]error{
			"Index": x.Index(onMeta).Err(), "SetIndex": x.SetIndex(onMeta, 1), "Index ": there.Index(sparse).Err(), "SetIndex ": there.SetIndex(sparse, 1),
		} {
			var e *Error
			if !errors.As(err, &e) || e.Op != strings.TrimSpace(op) {
				t.Errorf("%s: %v", op, err)
			}
		}
	})
}

// TestIndexOfNested tests integers for the dimensions of a nested tensor, also for one in which its elements differ.
func TestIndexOfNested(t *testing.T) {
	begin(t)
	scoped(t, func() {
		n := nested(t, Float32, []int{2, 3}, []int{3, 2})
		for _, c := range []struct {
			idx  []any
			want *Tensor
		}{
			{[]any{1, 2}, n.Select(0, 1).Select(0, 2)}, {[]any{All, 1}, n.Select(1, 1)},
			{[]any{"..., 1"}, n.Select(2, 1)}, {[]any{All, FromScalar(1)}, n.Select(1, 1)},
		} {
			got := n.Index(c.idx...)
			if err := errors.Join(got.Err(), c.want.Err()); err != nil {
				t.Errorf("%v: %v", c.idx, err)
				continue
			}
			for k := range 2 {
				a, b := got, c.want
				if got.Layout() == layoutNested {
					a, b = got.Select(0, k), c.want.Select(0, k)
				}
				wantValues(t, fmt.Sprint(c.idx), a, values(t, b)...)
			}
		}
		for _, idx := range [][]any{{2}, {All, 2}, {All, -3}, {"..., 2"}} {
			wantErr(t, fmt.Sprint(idx), n.Index(idx...).Err(), ErrIndex)
		}
	})
}

// TestSetIndexOfOtherDType tests that the error names the value's dtype only if the dtype is the fault.
func TestSetIndexOfOtherDType(t *testing.T) {
	begin(t)
	scoped(t, func() {
		one := FromScalar(1)
		for name, c := range map[string]struct {
			x     *Tensor
			idx   any
			value *Tensor
			kind  error
			text  string
		}{
			"the dtype":              {Zeros([]int{3}), []int{0, 1}, one, ErrArgument, "the value is int64 and the tensor float32; convert it with To(tensor.Float32) first"},
			"the shape of the mask":  {Zeros([]int{3}), []bool{true, false}, one, ErrIndex, "shape of the mask"},
			"the shape of the value": {Zeros([]int{3}), []int{0, 1}, Arange(0, 3), ErrArgument, "shape mismatch"},
			"a leaf with a gradient": {Zeros([]int{3}).RequiresGrad_(), []int{0}, one, ErrArgument, "leaf"},
		} {
			if err := c.x.SetIndex(c.idx, c.value); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: got %v, want %v: %s", name, err, c.kind, c.text)
			}
		}
	})
}

// TestSetIndexFills tests a number through one mask or one index: the elements that are written, the names in the graph
// and the dimension in an error are PyTorch's.
func TestSetIndexFills(t *testing.T) {
	begin(t)
	scoped(t, func() {
		mask := FromSlice([]bool{true, false, false, true, true, false}, []int{3, 2}).T() // not contiguous
		index := FromSlice([]int{0, 1, -1, 0}, []int{2, 2})
		for _, c := range []struct {
			idx  any
			want []float64
			name string
		}{
			{mask, []float64{5, 2, 5, 2, 5, 2}, "MaskedFillBackward0"},
			{[]bool{false, true}, []float64{2, 2, 2, 5, 5, 5}, "MaskedFillBackward0"},
			{[]any{All, []bool{true, false, true}}, []float64{5, 2, 5, 5, 2, 5}, "MaskedFillBackward0"},
			{[]int{-1, 1}, []float64{2, 2, 2, 5, 5, 5}, "IndexFillBackward0"},
			{[]any{All, index}, []float64{5, 5, 5, 5, 5, 5}, "IndexFillBackward0"},
			{[]any{All, index.T().Index(1)}, []float64{5, 5, 2, 5, 5, 2}, "IndexFillBackward0"},
			{[]int{}, []float64{2, 2, 2, 2, 2, 2}, "IndexFillBackward0"},
			{FromSlice([]int32{1}, nil), []float64{2, 2, 2, 5, 5, 5}, "IndexPutBackward0"},
		} {
			x := Ones([]int{2, 3}).RequiresGrad_()
			y := x.Mul(2)
			if err := y.SetIndex(c.idx, 5); err != nil {
				t.Errorf("%v: %v", c.idx, err)
				continue
			}
			wantValues(t, fmt.Sprint(c.idx), y, c.want...)
			if name := y.GradFn(); name != c.name {
				t.Errorf("%v: the graph has %s, PyTorch's %s", c.idx, name, c.name)
			}
			if err := y.Sum().Backward(); err != nil {
				t.Error(err)
			}
			wantValues(t, fmt.Sprint("gradient through ", c.idx), x.Grad(), values(t, y.Eq(2).Mul(2))...)
		}
		if err := Ones([]int{2, 3}).SetIndex([]any{All, []int{-4}}, 5); !errors.Is(err, ErrIndex) || !strings.Contains(err.Error(), "index -4 is out of bounds for dimension 1 with size 3") {
			t.Errorf("an index out of bounds: %v", err)
		}
		x := Ones([]int{2, 3})
		if err := x.SetIndex(FromSlice([]bool{true}, []int{1, 1}), 5); !errors.Is(err, ErrIndex) {
			t.Errorf("a mask that would broadcast gives %v", err)
		}
		row := Ones([]int{3})
		if err := x.SetIndex(0, row.Mul(7)); err != nil {
			t.Error(err)
		}
		wantValues(t, "a row", x, 7, 7, 7, 1, 1, 1)
	})
}

// TestSetIndexAtTensor assigns a single value at integers of shape (), which stay on the GPU if they are there.
func TestSetIndexAtTensor(t *testing.T) {
	begin(t)
	scoped(t, func() {
		at := func(i int, opts ...Option) *Tensor { return Full(nil, i, append(opts, Int64)...) }
		for name, c := range map[string]struct {
			idx  any
			want []float64
		}{
			"an int64":               {at(1), []float64{2, 2, 2, 5, 5, 5}},
			"an int32":               {at(-2).To(Int32), []float64{5, 5, 5, 2, 2, 2}},
			"after a slice":          {[]any{All, at(1)}, []float64{2, 5, 2, 2, 5, 2}},
			"after a new axis":       {[]any{nil, at(0)}, []float64{5, 5, 5, 2, 2, 2}},
			"two":                    {[]any{at(0), at(-1)}, []float64{2, 2, 5, 2, 2, 2}},
			"before a slice":         {[]any{at(1), From(1)}, []float64{2, 2, 2, 2, 5, 5}},
			"before a list":          {[]any{at(1), []int{0, 2}}, []float64{2, 2, 2, 5, 2, 5}},
			"before a mask":          {[]any{at(1), []bool{true, true, false}}, []float64{2, 2, 2, 5, 5, 2}},
			"on the CPU":             {at(1, CPU), []float64{2, 2, 2, 5, 5, 5}},
			"on the CPU and one not": {[]any{at(1, CPU), at(1)}, []float64{2, 2, 2, 2, 5, 2}},
		} {
			x := Ones([]int{2, 3}).RequiresGrad_()
			v := Full(nil, 5, Float32).RequiresGrad_()
			for _, value := range []any{5, v} {
				y := x.Mul(2)
				if err := y.SetIndex(c.idx, value); err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				wantValues(t, name, y, c.want...)
				if err := errors.Join(x.SetGrad(nil), y.Sum().Backward()); err != nil {
					t.Error(err)
				}
				wantValues(t, "gradient: "+name, x.Grad(), values(t, y.Eq(2).Mul(2))...)
			}
			wantValues(t, "gradient of the value: "+name, v.Grad(), float64(len(slices.DeleteFunc(c.want, func(w float64) bool { return w == 2 }))))
		}
	})
}

// TestIndexGradient compares gradients through an index with PyTorch's.
func TestIndexGradient(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Arange(0, 6, Float32).View(2, 3).RequiresGrad_()
		y := x.Index(Ellipsis, From(1)).Mul(2).Sum().Add(x.Index([]int{0, 0}).Sum())
		if err := y.Backward(); err != nil {
			t.Fatal(err)
		}
		if got, want := values(t, x.Grad()), []float64{2, 4, 4, 0, 2, 2}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if err := x.SetIndex(0, 1); err == nil {
			t.Error("a leaf that requires gradients was written to")
		}
		z := x.Clone()
		if err := z.SetIndex(1, x.Index(0).Mul(3)); err != nil {
			t.Fatal(err)
		}
		if err := z.Sum().Backward(); err != nil {
			t.Fatal(err)
		}
		if got, want := values(t, x.Grad()), []float64{2 + 4, 4 + 4, 4 + 4, 0, 2, 2}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
}

func TestSliceString(t *testing.T) {
	begin(t)
	for want, s := range map[string]Slice{":": All, "1:3": Range(1, 3), "2:": From(2), ":-1": Until(-1), "::2": All.By(2), "0:5:3": Range(0, 5).By(3)} {
		equal(t, "Slice", s.String(), want)
		got, _, err := parseIndex(want)
		if err != nil || len(got) != 1 || got[0] != any(s) {
			t.Errorf("%s: got %v, %v", want, got, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	for _, s := range []string{"1:3, ..., ::2", "None", "[0, 1], True", "-1", "[True,False],", "::", "[", "]", "a", ":::", "[],...", "9223372036854775807:-9223372036854775808:1", "[[0,1],[True,0]], ~0x1", "[..., 0]", "[[", "--~1_0:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		items, tuple, err := parseIndex(s)
		if err != nil {
			return
		}
		for _, e := range items {
			switch e.(type) {
			case int, Slice, special, bool, indexList:
			default:
				t.Errorf("%q: parsed to a %T", s, e)
			}
		}
		// Formatting what was parsed and parsing it again gives the same index.
		var text func(e any) string
		text = func(e any) string {
			switch e := e.(type) {
			case bool:
				return map[bool]string{true: "True", false: "False"}[e]
			case indexList:
				var words []string
				for _, e := range e {
					words = append(words, text(e))
				}
				return "[" + strings.Join(words, ",") + "]"
			default:
				return fmt.Sprint(e)
			}
		}
		var words []string
		for _, e := range items {
			words = append(words, text(e))
		}
		if tuple && len(words) == 1 {
			words = append(words, "")
		}
		again, tupleAgain, err := parseIndex(strings.Join(words, ","))
		if err != nil || !reflect.DeepEqual(again, items) || tuple != tupleAgain {
			t.Errorf("%q: %v, then %v (%v)", s, items, again, err)
		}
		scope, err := NewScope()
		if err != nil {
			t.Fatal(err)
		}
		defer scope.Close()
		x := Arange(0, 24).View(2, 3, 4)
		y := x.Index(s)
		_ = y.Err()
		_ = x.SetIndex(s, 1)
	})
}

type setItem struct {
	Name, Text, DType, Idx, Error string
	Value                         struct {
		I     *int
		F     *float64
		B     *bool
		T     []float64
		DType string
		Shape []int
	}
	Shape []int
	Data  []float64
}

func readSetItem(t *testing.T) (cases struct{ Texts, Sets, Shared []setItem }) {
	t.Helper()
	text, err := os.ReadFile("../tests/golden/setitem.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// compare compares x after the assignment, or err, with the golden case.
func (c *setItem) compare(t *testing.T, what string, x *Tensor, err error) {
	t.Helper()
	switch {
	case c.Error != "" && err == nil:
		t.Errorf("%s: got %v%v, want %s", what, x.Shape(), values(t, x.To(Float32)), c.Error)
	case c.Error == "IndexError" && !errors.Is(err, ErrIndex) && !errors.Is(err, ErrArgument):
		t.Errorf("%s: got %v, want an ErrIndex", what, err)
	case c.Error != "":
	case err != nil:
		t.Errorf("%s: %v, want %v", what, err, c.Data)
	default:
		if x.DType().IsComplex() {
			x = x.Real()
		}
		got := values(t, x.To(Float32))
		if !slices.Equal(got, c.Data) || c.Shape != nil && !slices.Equal(x.Shape(), c.Shape) {
			t.Errorf("%s: got %v%v, want %v%v", what, x.Shape(), got, c.Shape, c.Data)
		}
	}
}

func TestIndexTexts(t *testing.T) {
	begin(t)
	counted(t)
	for _, c := range readSetItem(t).Texts {
		scoped(t, func() {
			y := Arange(0, 24).View(2, 3, 4).Index(c.Text)
			c.compare(t, fmt.Sprintf("x[%s]", c.Text), y, y.Err())
		})
	}
}

// TestSetIndexConverts assigns values of each dtype to tensors of each dtype through each kind of index.
func TestSetIndexConverts(t *testing.T) {
	begin(t)
	counted(t)
	for _, c := range readSetItem(t).Sets {
		scoped(t, func() {
			idx := map[string]any{
				"mask": []bool{true, false, true}, "True": true, "False": false, "None": nil, "True, 0": []any{true, 0}, "False, 0": []any{false, 0},
				"0-dim": FromScalar(1), "0-dim mask": FromScalar(true),
			}
			var value any
			switch v := c.Value; {
			case v.I != nil:
				value = *v.I
			case v.F != nil:
				value = *v.F
			case v.B != nil:
				value = *v.B
			default:
				d, err := ParseDType(v.DType)
				if err != nil {
					t.Fatal(err)
				}
				value = FromSlice(v.T, shapeOf(v.Shape), d)
			}
			d, err := ParseDType(c.DType)
			if err != nil {
				t.Fatal(err)
			}
			x := Zeros([]int{3}, d)
			i, ok := idx[c.Idx]
			if !ok {
				i = c.Idx
			}
			err = x.SetIndex(i, value)
			c.compare(t, fmt.Sprintf("%v[%s] = %v", d, c.Idx, value), x, err)
		})
	}
}

// TestSetIndexOfSharedMemory tests assignments to and from memory that overlaps.
func TestSetIndexOfSharedMemory(t *testing.T) {
	begin(t)
	counted(t)
	for _, c := range readSetItem(t).Shared {
		scoped(t, func() {
			one, wide := Zeros([]int{1}).Expand(3), Zeros([]int{3, 1}).Expand(3, 4)
			six, line := Arange(0, 6, Float32).View(2, 3), Arange(0, 6, Float32)
			square, scalar, mask := Arange(0, 9, Float32).View(3, 3), FromScalar(5.0), []bool{true, false, true}
			set := map[string]struct {
				x          *Tensor
				idx, value any
			}{
				"0-dim into an expanded element":           {one, 0, scalar},
				"number into an expanded element":          {one, 0, 5},
				"0-dim into an expanded row":               {wide, 0, scalar},
				"number into an expanded row":              {wide, 0, 5},
				"number into an expanded tensor":           {wide, Ellipsis, 5},
				"vector into an expanded row":              {wide, 0, Ones([]int{4})},
				"0-dim into an expanded tensor":            {wide, Ellipsis, scalar},
				"0-dim into masked expanded rows":          {wide, mask, scalar},
				"number into masked expanded rows":         {wide, mask, 5},
				"0-dim into listed expanded rows":          {wide, []int{0, 2}, scalar},
				"number into listed expanded rows":         {wide, []int{0, 2}, 5},
				"one element into an expanded row":         {wide, 0, Ones([]int{1})},
				"0-dim into an element of an expanded row": {wide, []any{0, 0}, scalar},
				"a row of itself":                          {six, 0, six.Index(0)},
				"all of itself":                            {six, Ellipsis, six},
				"all rows of itself":                       {six, All, six},
				"overlapping slices":                       {line, From(1), line.Index(Until(-1))},
				"its own transpose":                        {square, All, square.T()},
				"overlap through a list":                   {line, []int{0, 1}, line.Index(Range(1, 3))},
				"its own row broadcast":                    {six, All, six.Index(0)},
				"its own element":                          {six, "0, 0", six.Index(1, 2)},
				"its own element everywhere":               {six, All, six.Index(1, 2)},
				"its own element through a list":           {six, []int{0}, six.Index(1, 2)},
				"its own element through a mask":           {six, []bool{true, false}, six.Index(1, 2)},
				"overlapping steps":                        {line, All.By(2), line.Index(Until(3))},
				"itself through a mask":                    {six, six.OnesLike(Bool), six},
			}
			s, ok := set[c.Name]
			if !ok {
				t.Fatalf("%s is not here", c.Name)
			}
			err := s.x.SetIndex(s.idx, s.value)
			c.compare(t, c.Name, s.x, err)
		})
	}
}

// TestSetIndexNumberRange tests which numbers SetIndex rejects because t's dtype cannot represent them: PyTorch checks
// the range when it fills several elements, a mask or one index, but not when it fills one element or several indices.
func TestSetIndexNumberRange(t *testing.T) {
	begin(t)
	scoped(t, func() {
		mask, index := FromSlice([]bool{true, false}, nil), FromSlice([]int{1}, nil)
		single := []struct {
			name string
			idx  any
			mask bool
		}{
			{"a mask", mask, true}, {"a mask after a slice", []any{All, mask}, true}, {"a mask of bytes", mask.To(Uint8), true},
			{"a mask of two dimensions", Eye(2).To(Bool), true}, {"[]bool", []bool{true, false}, true},
			{"an index", index, false}, {"an index after a number", []any{0, index}, false}, {"[]int", []int{1}, false},
			{"text", "..., [1]", false}, {"a bool", []any{true, All}, false},
		}
		several := map[string]any{"two indices": []any{index, index}, "two masks": []any{mask, mask}, "an int32": index.To(Int32)}
		item64 := func(x *Tensor) float64 {
			v, err := Item[float64](x.To(Float64))
			if err != nil {
				t.Error(err)
			}
			return v
		}
		for _, s := range single {
			for d, numbers := range map[DType][]any{
				Float16: {-1e9, 1e39, 1 << 40}, BFloat16: {1e39}, Float32: {1e39}, Uint8: {256}, Int8: {-129}, Complex32: {1e6, 1e39},
			} {
				for _, v := range numbers {
					x := Zeros([]int{2, 2}, d)
					if err := x.SetIndex(s.idx, v); err == nil || !strings.Contains(err.Error(), "SetIndex: value cannot be converted") {
						t.Errorf("%s: %v as %v gives %v", s.name, v, d, err)
					}
					if sum := item64(x.Ne(0).Sum()); sum != 0 {
						t.Errorf("%s: %v as %v was written", s.name, v, d)
					}
				}
			}
			for _, v := range []any{65504, -1.5, math.Inf(1), true} {
				x := Zeros([]int{2, 2}, Float16)
				if err := x.SetIndex(s.idx, v); err != nil {
					t.Errorf("%s: %v: %v", s.name, v, err)
				}
				if most := item64(x.Abs().Max()); most == 0 {
					t.Errorf("%s: %v was not written", s.name, v)
				}
			}
			// As masked_fill_ and index_fill_.
			if err := Zeros([]int{2, 2}, Bool).SetIndex(s.idx, 1+2i); (err == nil) != s.mask {
				t.Errorf("%s: a complex number as bool gives %v", s.name, err)
			}
		}
		for name, idx := range several {
			x := Zeros([]int{2, 2}, Float16)
			if err := x.SetIndex(idx, -1e9); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if least := item64(x.Min()); !math.IsInf(least, -1) {
				t.Errorf("%s: the least element is %v", name, least)
			}
		}
	})
}

// TestSetIndexOfComplex tests that a tensor that is not complex takes a complex number through every kind of index if its
// imaginary part is 0, and through none otherwise.
func TestSetIndexOfComplex(t *testing.T) {
	begin(t)
	scoped(t, func() {
		index := FromSlice([]int{1}, nil)
		for name, idx := range map[string]any{
			"an int": 1, "a slice": From(1), "two ints": []any{1, 0}, "a mask": []bool{false, true}, "a list": []int{1}, "a tensor": index,
			"an int32": index.To(Int32), "two tensors": []any{index, index}, "a column": []any{All, index}, "a row": []any{index.View(1, 1), All},
		} {
			for d, want := range map[DType]float64{Float32: 3.5, Int64: 3, Bool: 1, BFloat16: 3.5} {
				x := Zeros([]int{2, 2}, d)
				if err := x.SetIndex(idx, 3.5+0i); err != nil || slices.Max(values(t, x)) != want {
					t.Errorf("%s: 3.5 in %v gives %v, %v", name, d, x, err)
				}
				if d != Bool { // which is true for a number whose imaginary part is not 0, too
					wantErr(t, name, x.SetIndex(idx, 3+1i), ErrArgument)
					wantErr(t, name, x.SetIndex(idx, complex(3, math.NaN())), ErrArgument)
				}
			}
		}
	})
}

// TestSetIndexFloat8 assigns numbers beyond the range of float8 through one index, which libtorch has no fill for.
func TestSetIndexFloat8(t *testing.T) {
	begin(t)
	scoped(t, func() {
		none := FromSlice([]int{}, nil)
		for _, c := range []struct {
			shape []int
			idx   any
			want  []float64 // of Float8E5M2
		}{
			{[]int{2}, []int{0}, []float64{math.Inf(1), 0}}, {[]int{2}, []any{nil, []int{1}}, []float64{0, math.Inf(1)}},
			{[]int{2}, "True,", []float64{math.Inf(1), math.Inf(1)}}, {[]int{2}, "False,", []float64{0, 0}}, {[]int{2}, none, []float64{0, 0}},
			{[]int{0}, none, nil}, {[]int{0}, "True,", nil}, {[]int{2, 0}, []int{0}, nil},
		} {
			x := Zeros(c.shape, Float8E5M2)
			if err := x.SetIndex(c.idx, 1e6); err != nil {
				t.Errorf("%v of shape %v: %v", c.idx, c.shape, err)
				continue
			}
			if got := values(t, x.To(Float32)); !slices.Equal(got, c.want) {
				t.Errorf("%v of shape %v: %v, PyTorch's %v", c.idx, c.shape, got, c.want)
			}
		}
		x := Zeros([]int{1}, Float8E4M3FN)
		if err := x.SetIndex([]int{0}, 300.0); err != nil || values(t, x.To(Float32))[0] != 288 {
			t.Errorf("300 as Float8E4M3FN: %v, %v", x, err)
		}
		if err := x.SetIndex([]int{0}, 1i); err == nil {
			t.Error("a complex number is written to Float8E4M3FN")
		}
	})
}

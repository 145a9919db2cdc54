package tensor

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
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

// indexElement reads an element of tests/golden/index.json.
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
	runs := 0
	for n, c := range cases {
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
				err = x.SetIndex(value, idx...)
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
				if !slices.Equal(got.Shape(), c.Out.Shape) && len(c.Out.Shape) != 0 || !slices.Equal(data, c.Out.Data) {
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
			{[]any{2}, ErrIndex}, {[]any{0, 0, 0}, ErrIndex}, {[]any{Ellipsis, Ellipsis}, ErrIndex}, {[]any{All.By(0)}, ErrArgument},
			{[]any{"1:2:3:4"}, ErrArgument}, {[]any{""}, ErrArgument}, {[]any{"[1"}, ErrArgument}, {[]any{"[1,True]"}, ErrArgument},
			{[]any{1.5}, ErrArgument}, {[]any{struct{}{}}, ErrArgument}, {[]any{(*Tensor)(nil)}, ErrNil}, {[]any{&Tensor{}}, ErrNil},
			{[]any{[]int{5}}, ErrIndex}, {[]any{[]bool{true}}, ErrIndex}, {[]any{uint64(1) << 63}, ErrArgument},
		} {
			if err := x.Index(c.idx...).Err(); !errors.Is(err, c.kind) {
				t.Errorf("%v: got %v, want %v", c.idx, err, c.kind)
			}
			if err := x.SetIndex(1, c.idx...); !errors.Is(err, c.kind) {
				t.Errorf("setting %v: got %v, want %v", c.idx, err, c.kind)
			}
		}
		err := x.Index(7).Err()
		var e *Error
		if !errors.As(err, &e) || e.Op != "Index" || !strings.Contains(e.Caller, "index_test.go:") {
			t.Errorf("the error does not tell who called: %#v", err)
		}
		if err := x.SetIndex("text", 0); !errors.Is(err, ErrArgument) {
			t.Error(err)
		}
	})
}

// A gradient flows through an index as through PyTorch's.
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
		if err := x.SetIndex(1, 0); err == nil {
			t.Error("a leaf that requires gradients was written to")
		}
		z := x.Clone()
		if err := z.SetIndex(x.Index(0).Mul(3), 1); err != nil {
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
		got, err := parseIndex(want)
		if err != nil || len(got) != 1 || got[0] != any(s) {
			t.Errorf("%s: got %v, %v", want, got, err)
		}
	}
}

func FuzzIndex(f *testing.F) {
	for _, s := range []string{"1:3, ..., ::2", "None", "[0, 1], True", "-1", "[True,False],", "::", "[", "]", "a", ":::", "[],...", "9223372036854775807:-9223372036854775808:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		items, err := parseIndex(s)
		if err != nil {
			return
		}
		for _, e := range items {
			switch e.(type) {
			case int, Slice, special, bool, []int, []bool:
			default:
				t.Errorf("%q: parsed to a %T", s, e)
			}
		}
		// What was read means the same when it is written out again.
		var words []string
		for _, e := range items {
			switch e := e.(type) {
			case bool:
				words = append(words, map[bool]string{true: "True", false: "False"}[e])
			case []int:
				b, _ := json.Marshal(e)
				words = append(words, string(b))
			case []bool:
				b, _ := json.Marshal(e)
				words = append(words, strings.NewReplacer("true", "True", "false", "False").Replace(string(b)))
			case int:
				b, _ := json.Marshal(e)
				words = append(words, string(b))
			case Slice:
				words = append(words, e.String())
			case special:
				words = append(words, e.String())
			}
		}
		again, err := parseIndex(strings.Join(words, ","))
		if err != nil || !reflect.DeepEqual(again, items) {
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
		_ = x.SetIndex(1, s)
	})
}

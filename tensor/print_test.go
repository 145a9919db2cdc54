package tensor

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestPrintGolden(t *testing.T) {
	begin(t)
	counted(t)
	text, err := os.ReadFile("../tests/golden/print.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		DType, Fn, Want string
		Shape           []int
		Data            []any
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.UseNumber()
	if err := d.Decode(&cases); err != nil {
		t.Fatal(err)
	}
	for i, c := range cases {
		scoped(t, func() {
			dtype, err := ParseDType(c.DType)
			if err != nil {
				t.Fatal(err)
			}
			n, _ := numel(c.Shape)
			x := Arange(0, n).To(dtype).View(c.Shape...)
			if c.Data != nil {
				if dtype == Uint64 {
					us := make([]uint64, len(c.Data))
					for k, v := range c.Data {
						if _, err := fmt.Sscan(string(v.(json.Number)), &us[k]); err != nil {
							t.Fatal(err)
						}
					}
					x = FromSlice(us, shapeOf(c.Shape))
				} else {
					g := goldenTensor{DType: c.DType, Shape: c.Shape, Data: c.Data}
					if dtype == Bool {
						g.DType = "int64"
					}
					if x, err = g.make(); err != nil {
						t.Fatal(err)
					}
					x = x.To(dtype)
				}
			}
			for _, f := range strings.Split(c.Fn, "+") {
				switch f {
				case "grad":
					x = x.RequiresGrad_()
				case "mul":
					x = x.Mul(2)
				case "sum":
					x = x.Sum()
				case "t":
					x = x.T()
				case "conj":
					x = x.Conj()
				case "imag":
					x = x.Conj().Imag()
				case "meta":
					x = x.To(Meta)
				case "view":
					x = x.View(-1)
				case "exp":
					x = x.Exp()
				case "softmax":
					x = x.Softmax(-1)
				case "expand":
					x = x.Expand(append([]int{30}, c.Shape...)...)
				case "index":
					x = x.Index(0)
				}
			}
			if err := x.Err(); err != nil {
				t.Fatal(err)
			}
			scope := CurrentScope()
			had, version := scope.Len(), x.Version()
			got := x.String()
			if got != c.Want {
				t.Errorf("case %d, %s%v %s:\n%s\nwant\n%s", i, c.DType, c.Shape, c.Fn, got, c.Want)
			}
			if scope.Len() != had || x.Version() != version || x.IsLeaf() && x.RequiresGrad() && x.Grad() != nil {
				t.Errorf("case %d: printing changed something", i)
			}
		})
	}
	t.Logf("%d cases", len(cases))
}

func TestPrintUnusable(t *testing.T) {
	begin(t)
	var none *Tensor
	equal(t, "nil", fmt.Sprint(none), "tensor(<nil>)")
	equal(t, "zero", fmt.Sprintf("%v", &Tensor{}), "tensor(<none>)")
	x := Zeros([]int{2})
	x.Release()
	equal(t, "released", x.String(), "tensor(<released>)")
	scope, err := NewScope()
	if err != nil {
		t.Fatal(err)
	}
	failed := Zeros([]int{-1})
	if s := failed.String(); !strings.Contains(s, "print_test.go:") || !strings.HasPrefix(s, "tensor(<linstock: Zeros: ") {
		t.Error(s)
	}
	// Whoever prints has not looked at the error.
	if err := scope.Close(); err == nil {
		t.Error("printing a failed tensor hid its error from the scope")
	}
	scoped(t, func() {
		sparse, err := Call("aten::to_sparse", Ones([]int{2, 2}))
		if err != nil {
			t.Fatal(err)
		}
		equal(t, "sparse", sparse[0].(*Tensor).String(), "tensor(..., size=(2, 2))")
	})
}

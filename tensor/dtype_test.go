package tensor

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/linstock-ml/linstock/cshim"
)

// TestFloat8Conversions tests what the documentation of each dtype of float8 states about numbers beyond its largest.
func TestFloat8Conversions(t *testing.T) {
	begin(t)
	saturated := 448.
	if v := cshim.VersionLoaded(); v[0] == 2 && v[1] < 13 {
		saturated = math.NaN()
	}
	for _, c := range []struct {
		dtype        DType
		most, beyond float64
	}{
		{Float8E5M2, 57344, math.Inf(1)}, {Float8E4M3FN, 448, saturated}, {Float8E5M2FNUZ, 57344, math.NaN()}, {Float8E4M3FNUZ, 240, math.NaN()},
	} {
		for _, from := range []DType{Float32, Float64, BFloat16} {
			for _, n := range []int{1, 40} { // one number, and vector registers
				x := Full([]int{n}, c.most, from)
				for what, want := range map[*Tensor]float64{x: c.most, x.Mul(1.25): c.beyond, x.Mul(-1.25): -c.beyond} {
					got, err := Data[float32](what.To(c.dtype).To(Float32))
					if err != nil {
						t.Fatal(err)
					}
					equal(t, fmt.Sprint(c.dtype, " of ", from, " ", want), fmt.Sprint(got[n-1]), fmt.Sprint(float32(want)))
				}
			}
		}
	}
}

// TestDTypeInAdvice tests that errors name the dtype to convert to as Go does.
func TestDTypeInAdvice(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := Ones([]int{1})
		_, err5 := Data[Float8E5M2Bits](x)
		_, err4 := Data[Float8E4M3FNUZBits](x)
		for name, err := range map[string]error{
			"Float8E5M2": err5, "Float8E4M3FNUZ": err4, "Complex32": Zeros([]int{2}, Complex32).SetIndex([]int{0}, x),
		} {
			if err == nil || !strings.Contains(err.Error(), "To(tensor."+name+")") {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestDataOfTooManyElements tests that Data returns an error for a tensor with more elements than fit into memory.
func TestDataOfTooManyElements(t *testing.T) {
	begin(t)
	scoped(t, func() {
		one := Ones([]int{1}, Float64)
		for _, n := range []int{1 << 40, 1 << 50, 1 << 60, 1<<63 - 1} {
			if _, err := Data[float64](one.Expand(n)); !errors.Is(err, ErrOutOfMemory) {
				t.Errorf("%d elements: %v", n, err)
			}
		}
		if got, err := Data[float64](one.Expand(3)); err != nil || len(got) != 3 {
			t.Error(got, err)
		}
	})
}

// TestAppendData tests that AppendData appends, uses the slice's capacity, and leaves it after an error.
func TestAppendData(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x := FromSlice([]int32{0, 1, 2, 3}, []int{2, 2}).T()
		buf := make([]int32, 1, 8)
		buf[0] = 7
		got, err := AppendData(buf, x)
		if err != nil || !slices.Equal(got, []int32{7, 0, 2, 1, 3}) {
			t.Fatal(got, err)
		}
		if &got[0] != &buf[0] {
			t.Error("not in the slice's memory")
		}
		again, err := AppendData(got[:0], x)
		if err != nil || !slices.Equal(again, []int32{0, 2, 1, 3}) || &again[0] != &buf[0] {
			t.Error(again, err)
		}
		if got, err = AppendData(again[:4:4], x); err != nil || !slices.Equal(got, []int32{0, 2, 1, 3, 0, 2, 1, 3}) {
			t.Error(got, err)
		}
		if got, err = AppendData([]int32(nil), x); err != nil || !slices.Equal(got, []int32{0, 2, 1, 3}) {
			t.Error(got, err)
		}
		none := FromSlice([]int32{}, nil)
		for name, f := range map[string]func() ([]int32, error){
			"Data": func() ([]int32, error) { return Data[int32](none) }, "AppendData": func() ([]int32, error) { return AppendData[int32](nil, none) },
		} {
			if got, err := f(); got == nil || len(got) != 0 || err != nil {
				t.Errorf("%s of an empty tensor: %#v, %v", name, got, err)
			}
		}
		for _, bad := range []*Tensor{nil, x.To(Float32), Failed(errors.New("no")), Ones([]int{1}, Int32).Expand(1 << 60)} {
			if got, err := AppendData(again[:1], bad); err == nil || !slices.Equal(got, again[:1]) {
				t.Errorf("of %v: %v, %v", bad.Shape(), got, err)
			}
		}
		counted(t)
		if n := testing.AllocsPerRun(10, func() { again, err = AppendData(again[:0], x) }); n > 1 || err != nil {
			t.Errorf("%v allocations, %v", n, err)
		}
	})
}

// TestDataOfBytesThatAreNoBools tests that Data returns bools of a tensor with other bytes than 0 and 1.
func TestDataOfBytesThatAreNoBools(t *testing.T) {
	begin(t)
	for _, from := range [][]byte{{0, 1, 2, 255}, {0, 1, 1, 1, 1, 1, 1, 1}, {0, 2, 1, 1, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1, 1, 1, 1, 1, 255, 128, 1, 4, 1, 1, 1, 1, 254}} {
		x := FromMapped(Bool, []int{len(from)}, from, nil)
		defer x.Release()
		got, err := Data[bool](x)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range unsafe.Slice((*byte)(unsafe.Pointer(&got[0])), len(got)) {
			if want := byte(min(i, 1)); b != want {
				t.Errorf("byte %d of %v is %d, want %d", i, from, b, want)
			}
		}
	}
}

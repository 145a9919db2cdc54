package tensor

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/vram"
)

// packed returns weights that are packed by an operator: those of a linear layer with y = (x0 + 2 x1, 3 x0 + 4 x1), or of a
// convolution.
func packed(t *testing.T, conv bool) *ScriptObject {
	t.Helper()
	w := FromSlice([]float32{1, 2, 3, 4}, []int{2, 2})
	name, args := "quantized::linear_prepack", []any{nil}
	if conv {
		w = w.View(2, 2, 1, 1)
		name, args = "quantized::conv2d_prepack", []any{nil, []int{1, 1}, []int{0, 0}, []int{1, 1}, 1}
	}
	q, err := Call("aten::quantize_per_tensor", w, 0.5, 0, 12)
	if err != nil {
		t.Fatal(err)
	}
	out, err := CallUnchecked(name, append([]any{q[0]}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out[0].(*ScriptObject)
}

func TestScriptObject(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	o := packed(t, false)
	name, err := o.Class()
	if err != nil || name != "__torch__.torch.classes.quantized.LinearPackedParamsBase" {
		t.Errorf("its class is %q, %v", name, err)
	}
	x := Ones([]int{1, 2})
	out, err := CallUnchecked("quantized::linear_dynamic", x, o)
	if err != nil {
		t.Fatal(err)
	}
	y, err := Data[float32](out[0].(*Tensor))
	if err != nil || len(y) != 2 || y[0] < 2.9 || y[0] > 3.1 || y[1] < 6.9 || y[1] > 7.1 {
		t.Errorf("the layer computes %v, %v", y, err)
	}
	c := packed(t, true)
	defer c.Release()
	if _, err := CallUnchecked("quantized::linear_dynamic", x, c); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), "Conv2dPackedParamsBase") {
		t.Errorf("an object of another class: %v", err)
	}
	for _, wrong := range []any{nil, (*ScriptObject)(nil), x, 3} {
		if _, err := CallUnchecked("quantized::linear_dynamic", x, wrong); !errors.Is(err, ErrArgument) {
			t.Errorf("%T instead of an object: %v", wrong, err)
		}
	}
	o.Release()
	o.Release()
	if _, err := CallUnchecked("quantized::linear_dynamic", x, o); !errors.Is(err, ErrReleased) {
		t.Errorf("after Release: %v", err)
	}
	if _, err := o.Class(); !errors.Is(err, ErrReleased) {
		t.Errorf("the class after Release: %v", err)
	}
	var none *ScriptObject
	none.Release()
	if _, err := none.Class(); !errors.Is(err, ErrArgument) {
		t.Errorf("the class of nil: %v", err)
	}
}

// The Go collector frees an object that nothing refers to.
func TestScriptObjectIsCollected(t *testing.T) {
	begin(t)
	before := handlesNow(t)
	s := open(t)
	packed(t, false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); handlesNow(t) != before; time.Sleep(time.Millisecond) {
		if err := vram.Collect(); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatal("the object is still there")
		}
	}
}

// A call that uses an object keeps it while another goroutine releases it.
func TestScriptObjectReleasedBesideCalls(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	x := Ones([]int{1, 2})
	for range 20 {
		o := packed(t, false)
		var calls sync.WaitGroup
		for range 4 {
			calls.Go(func() {
				for {
					out, err := CallUnchecked("quantized::linear_dynamic", x, o)
					if err != nil {
						if !errors.Is(err, ErrReleased) {
							t.Error(err)
						}
						return
					}
					out[0].(*Tensor).Release()
				}
			})
		}
		o.Release()
		calls.Wait()
	}
}

// No operator of libtorch returns a device; a program's own may.
func TestDecodedDevices(t *testing.T) {
	begin(t)
	for _, d := range []Device{CPU, Meta, CUDA(0), CUDA(3)} {
		out := decode([]cshim.Value{{Tag: cshim.TagDevice, Bits: uint64(d.word())}}, 0)
		if len(out) != 1 || out[0] != d {
			t.Errorf("%v is decoded as %v", d, out)
		}
	}
	none := uint64(cshim.DeviceWord(int32(CUDAType), -1))
	if out := decode([]cshim.Value{{Tag: cshim.TagDevice, Bits: none}}, 0); out[0] != CUDA(0) {
		t.Errorf("a CUDA device without an index is decoded as %v", out[0])
	}
}

// What package cuda reaches in this package, without a CUDA device.
func TestStreamsOfTheCPU(t *testing.T) {
	begin(t)
	x := Ones([]int{2})
	cpu := int32(CPUType)<<8 | 0xff
	for range 2 {
		if err := recordStream(x, cpu, 0); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), "no streams") {
			t.Errorf("RecordStream: %v", err)
		}
	}
	before, _ := cshim.MemoryStats(CPU.word())
	x.Release()
	if after, _ := cshim.MemoryStats(CPU.word()); after.Handles != before.Handles-1 {
		t.Errorf("%d handles before the release and %d after it: a call still holds one", before.Handles, after.Handles)
	}
	if err := recordStream(x, cpu, 0); !errors.Is(err, ErrReleased) {
		t.Errorf("RecordStream of a released tensor: %v", err)
	}
	if err := recordStream(nil, cpu, 0); !errors.Is(err, ErrNil) {
		t.Errorf("RecordStream of nil: %v", err)
	}
	var e *Error
	err := withStream("WithStream", cpu, 0, func() error { t.Error("it runs"); return nil })
	if !errors.Is(err, ErrArgument) || !errors.As(err, &e) || e.Op != "WithStream" {
		t.Errorf("WithStream: %v", err)
	}
}

// A mode with arguments: autocast of one device type to a dtype.
func TestAutocastMode(t *testing.T) {
	begin(t)
	s := open(t)
	defer s.Close()
	x := Ones([]int{2, 2})
	autocast := func(on bool, dtype DType, f func() error) error {
		return withMode("mode", cshim.Mode{Kind: cshim.ModeAutocast, On: on, Device: int32(CPUType), DType: int32(dtype)}, f)
	}
	dtypes := func(product DType) {
		t.Helper()
		equal(t, "the product", x.MatMul(x).DType(), product)
		equal(t, "exp", x.Exp().DType(), Float32)
	}
	err := autocast(true, BFloat16, func() error {
		dtypes(BFloat16)
		if err := autocast(false, 0, func() error { dtypes(Float32); return nil }); err != nil {
			return err
		}
		if err := autocast(true, Float16, func() error { dtypes(Float16); return nil }); err != nil {
			return err
		}
		dtypes(BFloat16)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	dtypes(Float32)
	if err := autocast(true, Int64, func() error { return nil }); !errors.Is(err, ErrArgument) {
		t.Errorf("autocast to int64: %v", err)
	}
}

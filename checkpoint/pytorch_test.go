package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/internal/testdevice"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
)

// dtypes are those of testdata/pytorch.py.
var dtypes = []tensor.DType{tensor.Bool, tensor.Uint8, tensor.Int8, tensor.Uint16, tensor.Int16, tensor.Uint32, tensor.Int32, tensor.Uint64, tensor.Int64,
	tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Complex128, tensor.Float8E5M2, tensor.Float8E4M3FN,
	tensor.Float8E5M2FNUZ, tensor.Float8E4M3FNUZ}

func rampOf(d tensor.DType) *tensor.Tensor {
	ramp := tensor.FromSlice([]float32{0, 1, 2, 3, 4, 5}, []int{2, 3})
	if d == tensor.Bool {
		ramp = ramp.Remainder(2)
	}
	return ramp.To(d)
}

// matches compares a tensor of a file.
func matches(t *testing.T, name string, got, want *tensor.Tensor) {
	t.Helper()
	if err := errors.Join(got.Err(), want.Err()); err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if got.DType() != want.DType() || !slices.Equal(got.Shape(), want.Shape()) || !slices.Equal(raw(t, got), raw(t, want)) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// Files of torch.save in both formats, mapped and read.
func TestPyTorchFiles(t *testing.T) {
	leak.Check(t)
	for _, path := range []string{"testdata/nested.pt", "testdata/legacy.pt"} {
		for _, mapped := range []bool{true, false} {
			scoped(t, func() {
				f, err := checkpoint.Load(path, checkpoint.Mapped(mapped))
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				for _, d := range dtypes {
					matches(t, d.String(), f.Tensor("ramps."+d.String()), rampOf(d))
				}
				base := tensor.Arange(0, 12, tensor.Float32).View(3, 4)
				for name, want := range map[string]*tensor.Tensor{
					"shared.0": base, "shared.1": base.Select(0, 1), "shared.2": base.Transpose(0, 1), "shared.3": base.Slice(1, tensor.Start(1), tensor.Step(2)),
					"expanded": tensor.Ones([]int{2, 3}), "conj": tensor.FromSlice([]complex64{1 - 2i, 3 + 4i}, nil), "neg": tensor.FromSlice([]float32{-2, 4}, nil),
					"scalar": tensor.FromScalar(2.5), "empty": tensor.Zeros([]int{0, 4}), "parameter": tensor.FromSlice([]float32{1, 2}, nil),
					"channels": tensor.Arange(0, 16, tensor.Float32).View(1, 2, 2, 4), "model.1.num_batches_tracked": tensor.FromScalar(1).To(tensor.Int64),
				} {
					got := f.Tensor(name)
					if name == "conj" {
						got = got.ResolveConj()
					}
					matches(t, name, got, want)
				}
				if s := f.Tensor("channels").Stride(); !slices.Equal(s, []int{16, 1, 8, 2}) {
					t.Errorf("channels last: strides %v", s)
				}
				if s := f.Tensor("shared.2").Stride(); !slices.Equal(s, []int{1, 4}) {
					t.Errorf("transposed: strides %v", s)
				}
				all, err := f.Tensors()
				if err != nil {
					t.Fatal(err)
				}
				if !all["shared.0"].SharesStorage(all["shared.2"]) || all["shared.0"].SharesStorage(all["scalar"]) {
					t.Error("Tensors: the storages are not those of the file")
				}
				if err := all["shared.0"].Mul_(2).Err(); err != nil {
					t.Error(err)
				}
				matches(t, "a view of a tensor that has changed", all["shared.1"], base.Select(0, 1).Mul(2))
				if v, err := f.Tensor("shared.1").Sum().Item(); err != nil || (mapped && path == "testdata/nested.pt") != (v == 44) { // the storages of legacy.pt are not aligned
					t.Errorf("%s, mapped %t: the sum is %v, %v", path, mapped, v, err)
				}
				v, err := f.Value("values")
				want := map[string]any{"int": 3, "big": new(big.Int).Lsh(big.NewInt(1), 70), "minus": -5, "long": -1 << 40, "float": 0.5, "text": "ä", "none": nil, "true": true,
					"bytes": []byte{0, 255}, "list": []any{1, []any{2, "x"}}, "tuple": []any{1, 2}, "size": []any{2, 3}, "dtype": "torch.bfloat16", "device": "cpu",
					"complex": 1 - 2i, "set": []any{7}, "ordered": map[string]any{"b": 1, "a": 2}}
				if err != nil || !reflect.DeepEqual(v, want) {
					t.Errorf("values: %v, %v\nwant %v", v, err, want)
				}
				if v, err := f.Value("values.list.1.1"); err != nil || v != "x" {
					t.Errorf("%v, %v", v, err)
				}
				if _, err := f.Value("values.none.x"); err == nil || !strings.Contains(err.Error(), "no value") {
					t.Error(err)
				}
				if names := f.Names(); len(names) != len(dtypes)+4+7+7+4*3 || !slices.IsSorted(names) || !f.Has("model.0.weight") || f.Has("model") {
					t.Errorf("%d names: %q", len(names), names)
				}
				if err := f.Tensor("model").Err(); err == nil || !strings.Contains(err.Error(), "has no tensor") {
					t.Error(err)
				}
			})
		}
	}
}

// Of objects that were saved to one file of the older format the first is loaded, as torch.load does.
func TestLegacyObjectsInOneFile(t *testing.T) {
	leak.Check(t)
	b, err := os.ReadFile("testdata/legacy.pt")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.pt")
	if err := os.WriteFile(path, append(b, b...), 0o666); err != nil {
		t.Fatal(err)
	}
	scoped(t, func() {
		f := open(t, path)
		matches(t, "shared.0", f.Tensor("shared.0"), tensor.Arange(0, 12, tensor.Float32).View(3, 4))
		if v, err := f.Value("values.text"); err != nil || v != "ä" {
			t.Errorf("%v, %v", v, err)
		}
	})
}

func TestOtherPyTorchFiles(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		matches(t, "a tensor", open(t, "testdata/tensor.pt").Tensor(""), tensor.Arange(0, 3, tensor.Float32))
		f := open(t, "testdata/protocol4.pt")
		if v, err := f.Value("text"); err != nil || v != strings.Repeat("x", 300) {
			t.Errorf("protocol 4: %v, %v", v, err)
		}
		f = open(t, "testdata/refused.pt")
		if v, err := f.Tensor("ok").Item(); err != nil || v != 1 {
			t.Errorf("beside tensors that are refused: %v, %v", v, err)
		}
		for name, want := range map[string]string{"sparse": "sparse", "csr": "sparse", "meta": "meta device", "quantised": "dequantize",
			"e8m0": "float8_e8m0fnu", "nested": "nested", "jagged": "nested"} {
			if err := f.Tensor(name).Err(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"`+name+`"`) {
				t.Errorf("%s: %v", name, err)
			}
			if _, err := f.Value(name); err == nil {
				t.Errorf("%s has a value", name)
			}
		}
		if v, err := f.Value("d."); err != nil || v != 7 {
			t.Errorf("the value under an empty key: %v, %v", v, err)
		}
		if v, err := f.Value("ok."); err == nil {
			t.Errorf("a value under an empty key that is not there: %v", v)
		}
	})
	for path, want := range map[string]string{
		"testdata/module.pt":    "__main__.Net",
		"testdata/script.pt":    "torch.jit.load",
		"testdata/exported.pt2": "torch.export.load",
	} {
		if _, err := checkpoint.Load(path); !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestSkipObjects opens files that contain objects of Python classes.
func TestSkipObjects(t *testing.T) {
	leak.Check(t)
	for _, path := range []string{"testdata/objects.pt", "testdata/objects_legacy.pt"} {
		if _, err := checkpoint.Load(path); !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), `"argparse.Namespace"`) || !strings.Contains(err.Error(), "SkipObjects") {
			t.Errorf("%s: %v", path, err)
		}
		scoped(t, func() {
			f := open(t, path, checkpoint.SkipObjects())
			if names := f.Names(); !slices.Equal(names, []string{"image", "state.b", "w"}) {
				t.Errorf("%s has %q", path, names)
			}
			matches(t, "w", f.Tensor("w"), tensor.Arange(0, 3, tensor.Float32))
			matches(t, "state.b", f.Tensor("state.b"), tensor.Ones([]int{2}))
			if err := f.Tensor("image").Err(); err == nil || !strings.Contains(err.Error(), `"__main__.Image"`) {
				t.Errorf("%s: a subclass of torch.Tensor: %v", path, err)
			}
			for _, name := range []string{"steps", "counts.a"} {
				if v, err := f.Value(name); err != nil || v != map[string]int{"steps": 7, "counts.a": 1}[name] {
					t.Errorf("%s: %s is %v, %v", path, name, v, err)
				}
			}
			for name, class := range map[string]string{"args": "argparse.Namespace", "config": "__main__.Config", "names": "__main__.Names", "score": "numpy._core.multiarray.scalar", "date": "datetime.date"} {
				if v, err := f.Value(name); err != nil || v != (checkpoint.Object{Class: class}) {
					t.Errorf("%s: %s is %v, %v", path, name, v, err)
				}
			}
			if v, err := f.Value("run"); err != nil || !reflect.DeepEqual(v, map[string]any{"epoch": 3, "args": checkpoint.Object{Class: "argparse.Namespace"}}) {
				t.Errorf("%s: a dict with an object is %v, %v", path, v, err)
			}
			if v, err := f.Value("pair"); path == "testdata/objects.pt" && v != (checkpoint.Object{Class: "__main__.Pair"}) { // partial(Pair) in protocol 2
				t.Errorf("%s: an object of arguments by name is %v, %v", path, v, err)
			}
			model := struct{ W *tensor.Tensor }{nn.NewParameter(tensor.Zeros([]int{3}))}
			opt, err := optim.NewSGD(nn.Parameters(&model), 1)
			if err != nil {
				t.Fatal(err)
			}
			state, err := f.OptimizerState("optimizer")
			if err != nil {
				t.Fatal(err)
			}
			if err := opt.LoadStateDict(state); err == nil || !strings.Contains(err.Error(), "lr") || !strings.Contains(err.Error(), "numpy") {
				t.Errorf("%s: the state of an optimizer with an object: %v", path, err)
			}
			if err := f.LoadModel(&model, nn.Strict(false)); err != nil {
				t.Error(err)
			}
			matches(t, "the model's w", model.W, tensor.Arange(0, 3, tensor.Float32))
		})
	}
	if _, err := checkpoint.Load("testdata/module.pt", checkpoint.SkipObjects()); !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), "__main__.Net") || strings.Contains(err.Error(), "SkipObjects") {
		t.Errorf("a file of one object: %v", err)
	}
}

// layers is the model of testdata/pytorch.py.
func layers() (*nn.Sequential, error) {
	m := nn.NewSequential(nn.NewLinear(2, 3), &nn.Tanh{}, nn.NewLinear(3, 1))
	return m, nn.Check(m)
}

func trainLayers(m *nn.Sequential, opt *optim.Optimizer, steps int) ([]float64, error) {
	var losses []float64
	for k := range steps {
		err := tensor.WithScope(func() error {
			loss := m.Forward(tensor.Arange(0, 8, tensor.Float32).View(4, 2).Mul(0.1).Add(0.05 * float64(k))).Square().Mean()
			opt.ZeroGrad()
			if err := loss.Backward(); err != nil {
				return err
			}
			v, err := loss.Item()
			losses = append(losses, v)
			return errors.Join(err, opt.Step())
		})
		if err != nil {
			return nil, err
		}
	}
	return losses, nil
}

func near(got, want []float64) bool {
	tolerance := 1e-6
	if testdevice.On {
		tolerance = 1e-4
	}
	return slices.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) <= tolerance*math.Abs(b) })
}

// A run that Python has begun continues here, with the model and the optimizer of one file.
func TestRunsOfPyTorchContinue(t *testing.T) {
	leak.Check(t)
	model, err := layers()
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(model)
	opt, err := optim.NewAdamW(nn.Parameters(model), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	scoped(t, func() {
		f := open(t, "testdata/run.pt")
		state, err := f.OptimizerState("optimizer")
		if err == nil {
			err = opt.LoadStateDict(state)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := checkpoint.LoadModel("testdata/run.pt", model, nn.Rename(func(name string) string {
			name, ok := strings.CutPrefix(name, "model.")
			if !ok {
				return ""
			}
			return name
		})); err != nil {
			t.Fatal(err)
		}
		v, err := f.Value("next")
		if err != nil {
			t.Fatal(err)
		}
		var want []float64
		for _, x := range v.([]any) {
			want = append(want, x.(float64))
		}
		got, err := trainLayers(model, opt, 3)
		if err != nil || !near(got, want) {
			t.Errorf("losses %v, %v; Python's are %v", got, err, want)
		}
		for _, name := range []string{"model", "first", "optimizer.param_groups", "no"} {
			if _, err := f.OptimizerState(name); err == nil {
				t.Errorf("%s is taken for an optimizer's state", name)
			}
		}
	})
}

// What SavePyTorch writes is read by Load and by torch.load(weights_only=True, mmap=True).
func TestPyTorchRoundTrip(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.pt")
	model, err := layers()
	if err != nil {
		t.Fatal(err)
	}
	defer nn.Release(model)
	opt, err := optim.NewAdamW(nn.Parameters(model), 1e-2)
	if err != nil {
		t.Fatal(err)
	}
	defer opt.Release()
	if _, err := trainLayers(model, opt, 3); err != nil {
		t.Fatal(err)
	}
	long := make([]int, 2500)
	for i := range long {
		long[i] = i
	}
	values := map[string]any{"int": 3, "big": uint64(1 << 63), "huge": new(big.Int).Lsh(big.NewInt(1), 70), "long": -1 << 40, "float": float32(0.5), "text": "ä", "none": nil, "true": true,
		"bytes": []byte{0, 255}, "list": []any{1, []any{2, "x"}}, "ints": map[int]string{-1: "a", 300: "b"}, "complex": 1 - 2i, "long list": long,
		"dtypes": []tensor.DType{tensor.BFloat16, tensor.Complex32}}
	scoped(t, func() {
		ramps := map[string]*tensor.Tensor{}
		for _, d := range dtypes {
			ramps[d.String()] = rampOf(d)
		}
		base := tensor.Arange(0, 12, tensor.Float32).View(3, 4)
		other := tensor.Arange(0, 12, tensor.Float32).View(3, 4)
		part := tensor.Arange(0, 6, tensor.Float32).View(3, 2).Narrow(0, 1, 2)
		object := map[string]any{
			"ramps": ramps, "shared": []*tensor.Tensor{base, base.Select(0, 1), base.Transpose(0, 1)}, "row": other.Select(0, 1),
			"expanded": tensor.Full([]int{1}, 7, tensor.Float32).Expand(100_000), "part": []*tensor.Tensor{part.Expand(100, 2, 2), part},
			"channels": tensor.Arange(0, 16, tensor.Float32).View(1, 2, 4, 2).Permute(0, 3, 1, 2),
			"conj":     tensor.FromSlice([]complex64{1 + 2i, 3 - 4i}, nil).Conj(), "scalar": tensor.FromScalar(2.5), "empty": tensor.Zeros([]int{0, 4}),
			"model": nn.StateDict(model), "optimizer": opt.StateDict(), "values": values,
		}
		var last []byte
		for range 2 {
			if err := checkpoint.SavePyTorch(path, object); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if last != nil && !slices.Equal(got, last) {
				t.Error("the same object gave other bytes")
			}
			last = got
		}
		f := open(t, path)
		for _, d := range dtypes {
			matches(t, d.String(), f.Tensor("ramps."+d.String()), ramps[d.String()])
		}
		all, err := f.Tensors()
		if err != nil {
			t.Fatal(err)
		}
		if !all["shared.0"].SharesStorage(all["shared.2"]) {
			t.Error("a shared storage is not shared")
		}
		matches(t, "transposed", all["shared.2"], base.Transpose(0, 1))
		matches(t, "row", all["row"], other.Select(0, 1))
		if all["row"].StorageBytes() != 16 {
			t.Errorf("a view on its own has a storage of %d bytes", all["row"].StorageBytes())
		}
		if x := all["expanded"]; x.StorageBytes() != 4 || !slices.Equal(x.Stride(), []int{0}) || !all["part.0"].SharesStorage(all["part.1"]) {
			t.Errorf("an expanded tensor has a storage of %d bytes and the strides %v", x.StorageBytes(), x.Stride())
		}
		matches(t, "expanded", all["expanded"], tensor.Full([]int{100_000}, 7, tensor.Float32))
		matches(t, "expanded part", all["part.0"], part.Expand(100, 2, 2))
		want, err := trainLayers(model, opt, 3)
		if err != nil {
			t.Fatal(err)
		}
		if text := python(t, "pytorch.py", "--object", path); text != "" {
			var got []float64
			if err := json.Unmarshal([]byte(text), &got); err != nil || !near(got, want) {
				t.Errorf("Python continued with the losses %s, %v; want %v", text, err, want)
			}
		}
		v, err := f.Value("values.ints")
		if err != nil || !reflect.DeepEqual(v, map[int]any{-1: "a", 300: "b"}) {
			t.Errorf("%v, %v", v, err)
		}
		if v, err := f.Value("values.dtypes"); err != nil || !reflect.DeepEqual(v, []any{"torch.bfloat16", "torch.complex32"}) {
			t.Errorf("%v, %v", v, err)
		}
	})
}

// Empty tensors of a mapped file, which begin where others begin, do not take their storages.
func TestSavePyTorchOfMappedFile(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	from, to := filepath.Join(dir, "x.safetensors"), filepath.Join(dir, "x.pt")
	scoped(t, func() {
		all := map[string]*tensor.Tensor{
			"a": tensor.Zeros([]int{0}), "b": tensor.Arange(0, 4, tensor.Float32), "c": tensor.Zeros([]int{0, 3}), "d": tensor.Arange(4, 9, tensor.Float32), "e": tensor.Zeros([]int{2, 0}),
		}
		if err := checkpoint.Save(from, all, nil); err != nil {
			t.Fatal(err)
		}
		mapped, err := open(t, from).Tensors()
		if err != nil {
			t.Fatal(err)
		}
		mapped["b"] = mapped["b"].Narrow(0, 1, 2)
		all["b"] = all["b"].Narrow(0, 1, 2)
		if err := checkpoint.SavePyTorch(to, mapped); err != nil {
			t.Fatal(err)
		}
		f := open(t, to)
		equal(t, f, all)
		if n := f.Tensor("b").StorageBytes(); n != 8 {
			t.Errorf("a view on its own has a storage of %d bytes", n)
		}
	})
}

// Load reads what SavePyTorch writes, also if it is mostly empty; a pickle that is too large is an error before the old
// file is replaced.
func TestSavePyTorchWritesWhatLoadReads(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.pt")
	maps, lists := make([]map[string]int, 40_000), make([][]int, 1_000_000)
	for name, object := range map[string]any{
		"empty lists": make([][]int, 40_000), "many empty lists": map[string]any{"a long name of a list": lists}, "empty maps": maps,
		"lists of nothing": make([][1]any, 200_000), "nil": make([]any, 300_000), "nested": [][][]int{make([][]int, 40_000)}, "states": make([]nn.State, 40_000),
		"bytes": make([][]byte, 40_000), "strings": make([]string, 300_000),
	} {
		if err := checkpoint.SavePyTorch(path, object); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		f, err := checkpoint.Load(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.SavePyTorch(path, strings.Repeat("x", 257<<20)); err == nil || !strings.Contains(err.Error(), "at most 268435456 are read") {
		t.Errorf("a pickle of 257 MiB: %v", err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the old file has changed: %v", err)
	}
}

// The time of SavePyTorch does not grow with the square of the number of tensors.
func TestSavePyTorchOfManyTensors(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.pt")
	scoped(t, func() {
		scalars := make([]*tensor.Tensor, 12_000)
		for i := range scalars {
			scalars[i] = tensor.FromScalar(float64(i))
		}
		scalars = append(scalars, scalars[:10]...)
		scalars = append(scalars, tensor.Zeros([]int{0}), tensor.Zeros([]int{0}))
		begin := time.Now()
		if err := checkpoint.SavePyTorch(path, scalars); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 40*time.Second {
			t.Errorf("%d tensors took %v", len(scalars), took)
		}
		all, err := open(t, path).Tensors()
		if err != nil || len(all) != len(scalars) {
			t.Fatalf("%d tensors, %v", len(all), err)
		}
		if !all["0"].SharesStorage(all["12000"]) || all["0"].SharesStorage(all["1"]) {
			t.Error("the storages are not those of the tensors")
		}
		if v, err := all["11999"].Item(); err != nil || v != 11999 {
			t.Errorf("%v, %v", v, err)
		}
	})
}

// Keys may be unsigned integers, and are in their order.
func TestPyTorchUnsignedKeys(t *testing.T) {
	leak.Check(t)
	type id uint16
	for _, c := range []struct{ object, same any }{
		{map[uint64]int{0: 1, 9: 2, 10: 3, 1 << 62: 4}, map[int64]int{0: 1, 9: 2, 10: 3, 1 << 62: 4}}, {map[id]string{3: "a", 20: "b", 100: "c"}, map[int]string{3: "a", 20: "b", 100: "c"}},
		{map[uint8]bool{255: true}, map[int]bool{255: true}}, {map[uint]int{}, map[int]int{}},
	} {
		var got [2][]byte
		for i, object := range []any{c.object, c.same} {
			path := filepath.Join(t.TempDir(), "x.pt")
			err := checkpoint.SavePyTorch(path, object)
			if err == nil {
				got[i], err = os.ReadFile(path)
			}
			if err != nil {
				t.Fatalf("%T: %v", object, err)
			}
		}
		if !bytes.Equal(got[0], got[1]) {
			t.Errorf("%v gives other bytes than %v", c.object, c.same)
		}
	}
}

// The keys of a dict are in their order, also the extreme ones.
func TestPyTorchKeysInOrder(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.pt")
	var first []byte
	for range 20 {
		if err := checkpoint.SavePyTorch(path, map[int]int{math.MinInt: 0, -1: 1, 0: 2, 300: 3, math.MaxInt: 4}); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = got
		}
		if !slices.Equal(got, first) {
			t.Fatal("the same object gave other bytes")
		}
	}
}

func TestSavePyTorchRefuses(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.pt")
	scoped(t, func() {
		gone := tensor.Ones([]int{1})
		gone.Release()
		sparse := tensor.Eye(2).ToSparse()
		if err := checkpoint.Save(path, map[string]*tensor.Tensor{"s": sparse}, nil); err == nil || !strings.Contains(err.Error(), `"s": a tensor of layout sparse_coo`) {
			t.Errorf("Save of a sparse tensor: %v", err)
		}
		self := []any{nil}
		self[0] = self
		for name, c := range map[string]struct {
			object any
			want   string
		}{
			"a struct":         {struct{ A int }{1}, "struct"},
			"a channel":        {map[string]any{"c": make(chan int)}, `in "c": a chan int`},
			"a nil tensor":     {(*tensor.Tensor)(nil), "nil"},
			"released":         {map[string]any{"gone": gone}, `"gone"`},
			"meta":             {tensor.Ones([]int{1}, tensor.Meta), "meta"},
			"sparse":           {sparse, "sparse"},
			"itself":           {self, "contains itself"},
			"float keys":       {map[float64]int{1: 1}, "keys"},
			"text":             {"\xff", "UTF-8"},
			"a layout":         {tensor.SparseCOO, "a tensor.Layout cannot be written as an integer"},
			"a memory format":  {[]tensor.MemoryFormat{tensor.ChannelsLast}, "MemoryFormat"},
			"a device type":    {tensor.CUDAType, "DeviceType"},
			"an invalid dtype": {tensor.Invalid, "dtype invalid"},
			"dtypes as keys":   {map[tensor.DType]int{tensor.Bool: 1}, "a tensor.DType cannot"},
			"a released state": {nn.State{{Name: "w", Tensor: gone}}, `"w"`},
		} {
			if err := checkpoint.SavePyTorch(path, c.object); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) != 0 {
		t.Errorf("files left behind: %v", left)
	}
}

func Example_pyTorch() {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "run.pt")
	model := nn.NewLinear(2, 1)
	defer nn.Release(model)
	opt, err := optim.NewSGD(nn.Parameters(model), 0.1)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer opt.Release()

	// In Python: torch.save({"model": model.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}, path)
	err = checkpoint.SavePyTorch(path, map[string]any{"model": nn.StateDict(model), "optimizer": opt.StateDict(), "epoch": 3})
	if err != nil {
		fmt.Println(err)
		return
	}

	// In Python: torch.load(path, mmap=True, weights_only=True)
	file, err := checkpoint.Load(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	epoch, err := file.Value("epoch")
	fmt.Println(file.Names(), epoch, err)

	state, err := file.OptimizerState("optimizer")
	if err == nil {
		err = opt.LoadStateDict(state)
	}
	fmt.Println(state.ParamGroups[0]["lr"], err)

	var report nn.LoadReport
	err = checkpoint.LoadModel(path, model, nn.Report(&report), nn.Rename(func(name string) string {
		return strings.TrimPrefix(name, "model.")
	}))
	fmt.Println(report, err)
	// Output:
	// [model.bias model.weight] 3 <nil>
	// 0.1 <nil>
	// loaded: 2 <nil>
}

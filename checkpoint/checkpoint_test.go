package checkpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

func Example() {
	dir, err := os.MkdirTemp("", "checkpoint")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "model.safetensors")

	weight := tensor.Arange(0, 6, tensor.Float32).View(2, 3)
	err = checkpoint.Save(path, map[string]*tensor.Tensor{"weight": weight}, map[string]string{"made": "by hand"})
	if err != nil {
		fmt.Println(err)
		return
	}
	file, err := checkpoint.Load(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer file.Close()
	sum, err := file.Tensor("weight").Sum().Item()
	fmt.Println(file.Names(), file.Metadata()["made"], sum, err)
	// Output: [weight] by hand 15 <nil>
}

var ramps = []tensor.DType{tensor.Bool, tensor.Uint8, tensor.Int8, tensor.Uint16, tensor.Int16, tensor.Uint32, tensor.Int32, tensor.Uint64, tensor.Int64,
	tensor.Float16, tensor.BFloat16, tensor.Float32, tensor.Float64, tensor.Complex64, tensor.Float8E5M2, tensor.Float8E4M3FN}

// same returns the tensors that testdata/make.py makes.
func same(t *testing.T) map[string]*tensor.Tensor {
	t.Helper()
	all := map[string]*tensor.Tensor{
		"scalar":            tensor.FromScalar(2.5),
		"empty":             tensor.Zeros([]int{0, 4}),
		"näme \"quoted\"\n": tensor.FromSlice([]int8{1, 2, 3}, nil),
	}
	for _, d := range ramps {
		ramp := tensor.FromSlice([]float32{0, 1, 2, 3, 4, 5}, []int{2, 3})
		if d == tensor.Bool {
			ramp = ramp.Remainder(2)
		}
		all["ramp."+d.String()] = ramp.To(d)
	}
	return all
}

var remarks = map[string]string{"made": "by test", "json": `{"step": 3}`}

func raw(t *testing.T, x *tensor.Tensor) []byte {
	t.Helper()
	if x.Numel() == 0 {
		return nil
	}
	b, err := tensor.Data[uint8](x.Contiguous().View(-1).ViewDType(tensor.Uint8))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func equal(t *testing.T, got *checkpoint.File, want map[string]*tensor.Tensor) {
	t.Helper()
	if len(got.Names()) != len(want) {
		t.Errorf("%d tensors, want %d", len(got.Names()), len(want))
	}
	for name, w := range want {
		g := got.Tensor(name)
		if err := g.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if g.DType() != w.DType() || !slices.Equal(g.Shape(), w.Shape()) || !bytes.Equal(raw(t, g), raw(t, w)) {
			t.Errorf("%s: %v%v differs from %v%v", name, g.DType(), g.Shape(), w.DType(), w.Shape())
		}
	}
}

func scoped(t *testing.T, f func()) {
	t.Helper()
	if err := tensor.WithScope(func() error { f(); return nil }); err != nil {
		t.Error(err)
	}
}

func open(t *testing.T, path string, opts ...checkpoint.Option) *checkpoint.File {
	t.Helper()
	f, err := checkpoint.Load(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func TestFilesArePortableToPython(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		f := open(t, "testdata/python.safetensors")
		equal(t, f, same(t))
		if m := f.Metadata(); m["made"] != remarks["made"] || m["json"] != remarks["json"] {
			t.Errorf("metadata %v", m)
		}
		path := filepath.Join(t.TempDir(), "go.safetensors")
		if err := checkpoint.Save(path, same(t), remarks); err != nil {
			t.Fatal(err)
		}
		equal(t, open(t, path), same(t))
		python(t, "make.py", path)
	})
}

func TestSavingIsDeterministicAndReplaces(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
			t.Fatal(err)
		}
		var last []byte
		for range 3 {
			if err := checkpoint.Save(path, same(t), remarks); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if last != nil && !bytes.Equal(got, last) {
				t.Error("the same tensors gave other bytes")
			}
			last = got
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode %v, %v; the old file's was 0640", info.Mode(), err)
		}
		bad := same(t)
		bad["complex128"] = tensor.Zeros([]int{2}, tensor.Complex128)
		if err := checkpoint.Save(path, bad, nil); err == nil || !strings.Contains(err.Error(), "complex128") {
			t.Errorf("complex128 gave %v", err)
		}
		gone := tensor.Zeros([]int{2})
		gone.Release()
		if err := checkpoint.Save(path, map[string]*tensor.Tensor{"a": tensor.Zeros([]int{3}), "gone": gone}, nil); !errors.Is(err, tensor.ErrReleased) {
			t.Errorf("a released tensor gave %v", err)
		}
		for _, bad := range []map[string]*tensor.Tensor{{"nil": nil}, {"__metadata__": tensor.Zeros([]int{1})}, {"\xff": tensor.Zeros([]int{1})}, {"meta": tensor.Zeros([]int{2}, tensor.Meta)}} {
			if err := checkpoint.Save(path, bad, nil); err == nil {
				t.Errorf("%v was saved", bad)
			}
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, last) {
			t.Error("a save that failed changed the file")
		}
		if names, _ := os.ReadDir(filepath.Dir(path)); len(names) != 1 {
			t.Errorf("files left behind: %v", names)
		}
	})
}

func TestViewsAreWrittenRowMajor(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		x := tensor.Arange(0, 12, tensor.Float32).View(3, 4)
		c := tensor.FromSlice([]complex64{1 + 2i, 3 - 4i}, nil)
		leaf := tensor.Ones([]int{2}).RequiresGrad_()
		want := map[string]*tensor.Tensor{"t": x.Transpose(0, 1), "row": x.Select(0, 1), "step": x.Slice(1, tensor.Step(2)),
			"expanded": tensor.Ones([]int{1, 3}).Expand(2, 3), "conj": c.Conj(), "one": x.AsStrided([]int{1}, []int{7}), "leaf": leaf, "graph": leaf.Mul(2)}
		if err := checkpoint.Save(path, want, nil); err != nil {
			t.Fatal(err)
		}
		f := open(t, path)
		for name, w := range want {
			if same, err := f.Tensor(name).Equal(w.Detach().ResolveConj().To(tensor.CPU)); err != nil || !same {
				t.Errorf("%s: equal %t, %v", name, same, err)
			}
		}
	})
}

// A killed process leaves its pending file, which the next Save to the same path removes. Save does not remove
// other files, nor the pending files of running Saves to the same path.
func TestSaveRemovesAbandonedFiles(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	for _, name := range []string{".x1234567890123456789", ".x2", ".x1763740000", ".x0123456789012345678", ".xy1234567890123456789", ".x123456789012345678901234567890"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".x1234567890123456780"), 0o700); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			scoped(t, func() {
				for range 20 {
					if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": tensor.Full([]int{1000}, float64(i))}, nil); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	want := []string{".x0123456789012345678", ".x1234567890123456780", ".x123456789012345678901234567890", ".x1763740000", ".x2", ".xy1234567890123456789", "x"}
	if !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
}

// A tensor larger than one of Save's pieces, so that it is written in several.
func TestLargeTensors(t *testing.T) {
	leak.Check(t)
	scoped(t, func() {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		big := tensor.Arange(0, 3_000_017, tensor.Int64)
		if err := checkpoint.Save(path, map[string]*tensor.Tensor{"big": big}, nil); err != nil {
			t.Fatal(err)
		}
		if same, err := open(t, path).Tensor("big").Equal(big.To(tensor.CPU)); err != nil || !same {
			t.Errorf("equal %t, %v", same, err)
		}
	})
}

func mapped(t *testing.T, path string) bool {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Skip("no /proc")
	}
	return strings.Contains(string(maps), path)
}

func TestWritesStayInThisProcess(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	scoped(t, func() {
		if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": tensor.Ones([]int{1000}), "y": tensor.Ones([]int{10})}, nil); err != nil {
			t.Fatal(err)
		}
	})
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := checkpoint.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	x, y := f.Tensor("x").Keep(), f.Tensor("y").Keep()
	if err := f.Tensor("z").Err(); err == nil || !strings.Contains(err.Error(), "has no tensor") {
		t.Errorf("a tensor that is not there gave %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Tensor("x").Err(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed file gave %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if v, err := x.Mul_(3).Sum().Item(); err != nil || v != 3000 {
		t.Errorf("sum %v, %v", v, err)
	}
	if runtime.GOOS == "linux" && !mapped(t, path) {
		t.Error("the tensors are copies")
	}
	x.Release()
	if v, err := y.Sum().Item(); err != nil || v != 10 {
		t.Errorf("sum %v, %v", v, err)
	}
	y.Release()
	tensor.Flush()
	if runtime.GOOS == "linux" && mapped(t, path) {
		t.Error("the file is mapped still")
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(after, before) {
		t.Error("a write in place reached the file")
	}
}

func TestManyGoroutinesReadOneFile(t *testing.T) {
	leak.Check(t)
	f := open(t, "testdata/python.safetensors")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			scoped(t, func() {
				for range 50 {
					if v, err := f.Tensor("ramp.float32").Add(f.Tensor("ramp.float64")).Sum().Item(); err != nil || v != 30 {
						t.Errorf("sum %v, %v", v, err)
					}
				}
				if i == 0 {
					if err := f.Close(); err != nil {
						t.Error(err)
					}
				}
				if i == 1 {
					tensor.Flush()
				}
			})
		})
		if i == 0 {
			wg.Wait() // the other calls find the file closed
			g := open(t, "testdata/python.safetensors")
			f = g
		}
	}
	wg.Wait()
}

// A nil File and a File literal have no tensors.
func TestFilesThatAreNotOpen(t *testing.T) {
	leak.Check(t)
	for _, f := range []*checkpoint.File{nil, {}} {
		if len(f.Names()) != 0 || len(f.Metadata()) != 0 || f.Has("") || f.Close() != nil {
			t.Error("a file that is not open has contents, or Close fails")
		}
		_, ofValue := f.Value("")
		_, ofState := f.OptimizerState("")
		_, ofAll := f.Tensors()
		for op, err := range map[string]error{"Tensor": f.Tensor("").Err(), "Value": ofValue, "OptimizerState": ofState, "Tensors": ofAll,
			"LoadValues": f.LoadValues()} {
			if !errors.Is(err, tensor.ErrNil) || !strings.Contains(err.Error(), op+": ") {
				t.Errorf("%s: %v", op, err)
			}
		}
	}
}

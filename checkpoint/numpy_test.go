package checkpoint_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

func TestNumPyFiles(t *testing.T) {
	leak.Check(t)
	for _, mapped := range []bool{true, false} {
		load := func(path string) *checkpoint.File {
			f, err := checkpoint.Load(path, checkpoint.Mapped(mapped))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			return f
		}
		scoped(t, func() {
			matches(t, "array", load("testdata/array.npy").Tensor(""), tensor.Arange(0, 6, tensor.Float32).View(2, 3))
			matches(t, "fortran", load("testdata/fortran.npy").Tensor(""), tensor.Arange(0, 6, tensor.Int64).View(2, 3))
			for _, path := range []string{"testdata/arrays.npz", "testdata/compressed.npz"} {
				f := load(path)
				for _, d := range dtypes {
					if !strings.Contains(d.String(), "float8") && d != tensor.BFloat16 {
						matches(t, d.String(), f.Tensor(d.String()), rampOf(d))
					}
				}
				matches(t, "scalar", f.Tensor("scalar"), tensor.FromScalar(2.5).To(tensor.Float64))
				matches(t, "vector", f.Tensor("vector"), tensor.Arange(0, 3, tensor.Int64))
				matches(t, "empty", f.Tensor("empty"), tensor.Zeros([]int{0, 4}, tensor.Float64))
				for name, want := range map[string]string{"big": "big-endian", "text": "<U1"} {
					if err := f.Tensor(name).Err(); err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			if v, err := load("testdata/compressed.npz").Tensor("zeros").Sum().Item(); err != nil || v != 0 {
				t.Errorf("%v, %v", v, err)
			}
			if err := load("testdata/object.npy").Tensor("").Err(); err == nil || !strings.Contains(err.Error(), `"|O"`) {
				t.Errorf("objects: %v", err)
			}
		})
	}
}

func TestNumPyRoundTrip(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	npy, npz := filepath.Join(dir, "x.npy"), filepath.Join(dir, "x.npz")
	scoped(t, func() {
		all := map[string]*tensor.Tensor{"scalar": tensor.FromScalar(2.5), "vector": tensor.Arange(0, 3), "empty": tensor.Zeros([]int{0, 4})}
		for _, d := range dtypes {
			if !strings.Contains(d.String(), "float8") && d != tensor.BFloat16 {
				all[d.String()] = rampOf(d)
			}
		}
		// A tensor with other strides is written in row-major order.
		if err := checkpoint.SaveNPY(npy, tensor.FromSlice([]float32{0, 3, 1, 4, 2, 5}, []int{3, 2}).Transpose(0, 1)); err != nil {
			t.Fatal(err)
		}
		if err := checkpoint.SaveNPZ(npz, all); err != nil {
			t.Fatal(err)
		}
		f := open(t, npz)
		for name, want := range all {
			matches(t, name, f.Tensor(name), want)
		}
		matches(t, "npy", open(t, npy).Tensor(""), tensor.Arange(0, 6, tensor.Float32).View(2, 3))
		python(t, "pytorch.py", "--numpy", npy, npz)
		for name, err := range map[string]error{
			"bfloat16": checkpoint.SaveNPY(npy, tensor.Ones([]int{1}, tensor.BFloat16)),
			"nil":      checkpoint.SaveNPY(npy, nil),
			`"\xff"`:   checkpoint.SaveNPZ(npz, map[string]*tensor.Tensor{"\xff": tensor.Ones([]int{1})}),
			`"/x"`:     checkpoint.SaveNPZ(npz, map[string]*tensor.Tensor{"/x": tensor.Ones([]int{1})}),
			"y":        checkpoint.SaveNPZ(npz, map[string]*tensor.Tensor{"y": nil}),
		} {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	if err := checkpoint.SaveNPZ(npz, nil); err != nil {
		t.Fatal(err)
	}
	if names := open(t, npz).Names(); len(names) != 0 {
		t.Errorf("an empty file has %q", names)
	}
	for name, text := range map[string]string{
		"no header": "\x93NUMPY\x01\x00", "cut": "\x93NUMPY\x01\x00\x40\x00{'descr'", "version": "\x93NUMPY\x09\x00\x00\x00\x00\x00\x00\x00",
		"beyond":  "\x93NUMPY\x01\x00\x40\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }         \n",
		"twice":   "\x93NUMPY\x01\x00\x40\x00{'descr': '<f4', 'descr': '<f4', 'shape': (2,), }               \n",
		"huge":    "\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }",
		"product": "\x93NUMPY\x01\x00\x60\x00{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296), }    \n     ",
	} {
		if err := touchFile(t, text); !errors.Is(err, checkpoint.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Of arrays that were saved to one file the first is loaded, as numpy.load does.
func TestArraysInOneFile(t *testing.T) {
	leak.Check(t)
	first, err := os.ReadFile("testdata/array.npy")
	if err != nil {
		t.Fatal(err)
	}
	second, err := os.ReadFile("testdata/fortran.npy")
	if err != nil {
		t.Fatal(err)
	}
	both := append(first, second...)
	dir := t.TempDir()
	npy, npz := filepath.Join(dir, "x.npy"), filepath.Join(dir, "x.npz")
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	for name, method := range map[string]uint16{"stored.npy": zip.Store, "compressed.npy": zip.Deflate} {
		w, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err == nil {
			_, err = w.Write(both)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(z.Close(), os.WriteFile(npy, both, 0o666), os.WriteFile(npz, archive.Bytes(), 0o666)); err != nil {
		t.Fatal(err)
	}
	scoped(t, func() {
		want := tensor.Arange(0, 6, tensor.Float32).View(2, 3)
		for _, mapped := range []bool{true, false} {
			for path, names := range map[string][]string{npy: {""}, npz: {"stored", "compressed"}} {
				f, err := checkpoint.Load(path, checkpoint.Mapped(mapped))
				if err != nil {
					t.Fatal(err)
				}
				for _, name := range names {
					got := f.Tensor(name)
					matches(t, name, got, want)
					if got.StorageBytes() != 24 {
						t.Errorf("%q, mapped %t: a storage of %d bytes", name, mapped, got.StorageBytes())
					}
				}
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// The names of arrays may be those of folders and members of other archives.
func TestNPZNames(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.npz")
	scoped(t, func() {
		all := map[string]*tensor.Tensor{"code/a": tensor.Ones([]int{2}), "x/code/b": tensor.Zeros([]int{2}), "x/constants": tensor.Ones([]int{1})}
		if err := checkpoint.SaveNPZ(path, all); err != nil {
			t.Fatal(err)
		}
		equal(t, open(t, path), all)
		one := map[string]*tensor.Tensor{"x/a": all["code/a"], "x/code/b": all["x/code/b"]}
		if err := checkpoint.SaveNPZ(path, one); err != nil {
			t.Fatal(err)
		}
		equal(t, open(t, path), one)
	})
}

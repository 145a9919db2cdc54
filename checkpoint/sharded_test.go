package checkpoint_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// touchFile loads a file of this text.
func touchFile(t *testing.T, text string) error {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := checkpoint.Load(path)
	if err == nil {
		err = f.Close()
	}
	return err
}

func TestShardedFiles(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	index := filepath.Join(dir, "model.safetensors.index.json")
	scoped(t, func() {
		all := map[string]*tensor.Tensor{}
		for _, name := range []string{"a", "b", "c"} {
			all[name] = tensor.Full([]int{4}, float64(name[0]))
		}
		if err := checkpoint.SaveSharded(dir, all, map[string]string{"made": "by test"}, 32); err != nil {
			t.Fatal(err)
		}
		python(t, "pytorch.py", "--sharded", index)
		for _, mapped := range []bool{true, false} {
			f, err := checkpoint.Load(index, checkpoint.Mapped(mapped))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, f, all)
			if m := f.Metadata(); m["total_size"] != "48" || m["made"] != "by test" {
				t.Errorf("metadata %v", m)
			}
			got, err := f.Tensors()
			if err != nil || len(got) != 3 {
				t.Errorf("%d tensors, %v", len(got), err)
			}
			if v, err := f.Value("b"); err != nil || v.(*tensor.Tensor).Numel() != 4 {
				t.Errorf("%v, %v", v, err)
			}
			if err := f.Tensor("d").Err(); err == nil || !strings.Contains(err.Error(), "has no tensor") {
				t.Error(err)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if err := f.Tensor("a").Err(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("a closed file: %v", err)
			}
		}
		// The files of an earlier save, and no others, are removed.
		for _, n := range []string{"model-00001-of-00002.old", "other-00001-of-00002.safetensors"} {
			if err := os.WriteFile(filepath.Join(dir, n), nil, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		for n, maxBytes := range map[string]int64{"00001": 48, "00003": 1} {
			if err := checkpoint.SaveSharded(dir, all, nil, maxBytes); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "model-*-of-*.safetensors"))
			for _, f := range files {
				if !strings.HasSuffix(f, "-of-"+n+".safetensors") {
					t.Errorf("%s is left of an earlier save", f)
				}
			}
			others, _ := filepath.Glob(filepath.Join(dir, "*-00001-of-00002.*"))
			if err != nil || len(others) != 2 {
				t.Errorf("of %q, %v", others, err)
			}
			equal(t, open(t, index), all)
		}
		if err := checkpoint.SaveSharded(dir, all, nil, 32); err != nil {
			t.Fatal(err)
		}
		for want, err := range map[string]error{
			"maxBytes": checkpoint.SaveSharded(dir, all, nil, 0),
			`"n"`:      checkpoint.SaveSharded(dir, map[string]*tensor.Tensor{"n": nil}, nil, 1),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", want, err)
			}
		}
	})
	files, err := filepath.Glob(filepath.Join(dir, "model-*-00001-of-00002.safetensors"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	base := filepath.Base(files[0])
	if err := os.WriteFile(index, []byte(`{"metadata":{"total_size":16060522496},"weight_map":{}} `), 0o666); err != nil {
		t.Fatal(err)
	}
	if m := open(t, index).Metadata(); m["total_size"] != "16060522496" {
		t.Errorf("metadata %v", m)
	}
	for want, text := range map[string]string{
		"not in the directory":    `{"weight_map":{"a":"../` + base + `"}}`,
		"has no tensor":           `{"weight_map":{"x":"` + base + `"}}`,
		"weight_map":              `{"metadata":{"total_size":1}}`,
		`the file "none"`:         `{"weight_map":{"a":"none"}}`,
		"the index":               `{"weight_map":{"a":3}}`,
		"unexpected data":         `{"weight_map":{}} {}`,
		"is not in the directory": `{"weight_map":{"a":".."}}`,
	} {
		if err := os.WriteFile(index, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := checkpoint.Load(index); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestConcurrentShardedSaves tests that goroutines that save to one directory, also by links to it, leave one of their
// checkpoints, and that those that save to others do not wait.
func TestConcurrentShardedSaves(t *testing.T) {
	leak.Check(t)
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(link) // and $PWD is link
	paths := []string{dir, link, ".", "../" + filepath.Base(dir)}
	for range 10 {
		errs := make([]error, 4)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() {
				errs[i] = tensor.WithScope(func() error {
					all := map[string]*tensor.Tensor{}
					for n := range 4 {
						all[fmt.Sprint(n)] = tensor.Full([]int{4}, i)
					}
					return checkpoint.SaveSharded(paths[i], all, nil, 16)
				})
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		scoped(t, func() {
			f := open(t, filepath.Join(dir, "model.safetensors.index.json"))
			all, err := f.Tensors()
			if err != nil {
				t.Fatal(err)
			}
			values := map[any]bool{}
			for _, x := range all {
				v, err := x.Max().Item()
				if err != nil {
					t.Fatal(err)
				}
				values[v] = true
			}
			if len(all) != 4 || len(values) != 1 {
				t.Errorf("the checkpoint has %d tensors with the values %v", len(all), values)
			}
		})
	}
}

// TestShardedLongMetadata tests that metadata in front of the names of an index may be long.
func TestShardedLongMetadata(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	long := map[string]string{"a": strings.Repeat("x", 10_000), "z": "last"}
	scoped(t, func() {
		all := map[string]*tensor.Tensor{"w": tensor.Ones([]int{4})}
		if err := checkpoint.SaveSharded(dir, all, long, 32); err != nil {
			t.Fatal(err)
		}
		f := open(t, filepath.Join(dir, "model.safetensors.index.json"))
		equal(t, f, all)
		if m := f.Metadata(); m["a"] != long["a"] || m["z"] != "last" {
			t.Errorf("metadata of %d values", len(m))
		}
	})
	if err := touchFile(t, `{"a": "`+long["a"]+`"}`); !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), "it is JSON text") {
		t.Errorf("other JSON: %v", err)
	}
}

// TestTooManyShards tests that SaveSharded writes nothing if the index would list more files than Load opens.
func TestTooManyShards(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "new")
	scoped(t, func() {
		x := tensor.Ones([]int{4})
		all := map[string]*tensor.Tensor{}
		for i := range 4097 {
			all[fmt.Sprint(i)] = x
		}
		if err := checkpoint.SaveSharded(dir, all, nil, 16); err == nil || !strings.Contains(err.Error(), "4097 files") {
			t.Error(err)
		}
	})
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory was made: %v", err)
	}
}

// TestShardedSaveFails tests that a save of several files that cannot write the last leaves the old files and nothing else.
func TestShardedSaveFails(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	index := filepath.Join(dir, "model.safetensors.index.json")
	scoped(t, func() {
		all := func(v float64, last *tensor.Tensor) map[string]*tensor.Tensor {
			return map[string]*tensor.Tensor{"a": tensor.Full([]int{4}, v), "b": tensor.Full([]int{4}, v), "c": last}
		}
		old := all(1, tensor.Full([]int{4}, 1))
		if err := checkpoint.SaveSharded(dir, old, nil, 16); err != nil {
			t.Fatal(err)
		}
		// The elements of a tensor on the meta device cannot be written.
		for _, most := range []int64{16, 32} {
			if err := checkpoint.SaveSharded(dir, all(2, tensor.Zeros([]int{4}, tensor.Meta)), nil, most); err == nil {
				t.Error("a tensor on the meta device was saved")
			}
			f, err := checkpoint.Load(index)
			if err != nil {
				t.Fatal(err)
			}
			equal(t, f, old)
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if files, err := os.ReadDir(dir); err != nil || len(files) != 4 {
				t.Errorf("after the error: %v, %v", files, err)
			}
		}
	})
}

// An index of Hugging Face's older form lists files of torch.save.
func TestShardedPyTorchFiles(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	index := filepath.Join(dir, "pytorch_model.bin.index.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(index, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	scoped(t, func() {
		all := map[string]*tensor.Tensor{"fc.weight": tensor.Ones([]int{2, 3}), "fc.bias": tensor.Zeros([]int{2}, tensor.BFloat16)}
		for name, base := range map[string]string{"fc.weight": "pytorch_model-00001-of-00002.bin", "fc.bias": "pytorch_model-00002-of-00002.bin"} {
			if err := checkpoint.SavePyTorch(filepath.Join(dir, base), map[string]*tensor.Tensor{name: all[name]}); err != nil {
				t.Fatal(err)
			}
		}
		write(`{"metadata":{"total_size":28},"weight_map":{"fc.weight":"pytorch_model-00001-of-00002.bin","fc.bias":"pytorch_model-00002-of-00002.bin"}}`)
		for _, mapped := range []bool{true, false} {
			f, err := checkpoint.Load(index, checkpoint.Mapped(mapped))
			if err != nil {
				t.Fatal(err)
			}
			equal(t, f, all)
			if err := f.Close(); err != nil {
				t.Error(err)
			}
			if err := f.Tensor("fc.bias").Err(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("a closed file: %v", err)
			}
		}
	})
	for want, text := range map[string]string{
		`no tensor "x"`:   `{"weight_map":{"x":"pytorch_model-00001-of-00002.bin"}}`,
		"it is JSON text": `{"weight_map":{"x":"pytorch_model.bin.index.json"}}`,
	} {
		write(text)
		if _, err := checkpoint.Load(index); !errors.Is(err, checkpoint.ErrFormat) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

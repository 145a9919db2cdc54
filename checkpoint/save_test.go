package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// A file's name may have all bytes that the system allows. Names that begin alike have pending files of their own.
func TestLongFileNames(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	const number = "1234567890123456789"
	long := strings.Repeat("ä", 127)
	x := tensor.Ones([]int{2})
	defer x.Release()
	names := []string{strings.Repeat("x", 235), strings.Repeat("x", 236), long + "a", long + "b"}
	for _, name := range names {
		path := filepath.Join(dir, name)
		for _, path := range []string{path, filepath.Join(dir, "."+pendingBase(path)+number)} {
			if err := os.WriteFile(path, nil, 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, name := range names {
		path := filepath.Join(dir, name)
		if err := Save(path, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
			t.Fatal(err)
		}
		f, err := Load(path)
		if err != nil || !f.Has("x") {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode %v, %v; the old file's was 0640", info.Mode(), err)
		}
		// The file that a killed process has left is removed, and that of no other name.
		left, err := filepath.Glob(filepath.Join(dir, ".*"+number))
		if err != nil || len(left) != len(names)-1-i {
			t.Errorf("after %d saves: %q, %v", i+1, left, err)
		}
	}
	if err := Save(filepath.Join(dir, long+"ab"), map[string]*tensor.Tensor{"x": x}, nil); err == nil {
		t.Error("a name of 256 bytes was saved")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || slices.ContainsFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") }) || len(entries) != len(names) {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// loadSharded returns the value that all tensors of a checkpoint of SaveSharded have.
func loadSharded(t *testing.T, dir string) (value float32) {
	t.Helper()
	f, err := Load(filepath.Join(dir, "model.safetensors.index.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i, name := range f.Names() {
		x := f.Tensor(name)
		got, err := tensor.Data[float32](x)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 && got[0] != value {
			t.Fatalf("the checkpoint is a mixture: %s is %v, and others are %v", name, got[0], value)
		}
		value = got[0]
		x.Release()
	}
	if f.Metadata()["value"] != fmt.Sprint(value) {
		t.Errorf("metadata %v beside values %v", f.Metadata(), value)
	}
	return value
}

func saveSharded(dir string, value float64) error {
	return tensor.WithScope(func() error {
		all := map[string]*tensor.Tensor{}
		for _, name := range []string{"a", "b", "c"} {
			all[name] = tensor.Full([]int{4}, value)
		}
		return SaveSharded(dir, all, map[string]string{"value": fmt.Sprint(value)}, 16)
	})
}

// TestShardedSaveIsCut tests that a crash or an error before and after each rename of SaveSharded leaves the old
// checkpoint or the new one, whole, and that the next save removes what a crash leaves.
func TestShardedSaveIsCut(t *testing.T) {
	leak.Check(t)
	defer func() { rename = os.Rename }()
	for saves := range 3 { // the number of earlier saves, which the names of the files tell
		saves++
		for cut := range 4 {
			dir, before, after := t.TempDir(), t.TempDir(), t.TempDir()
			for range saves {
				if err := saveSharded(dir, 1); err != nil {
					t.Fatal(err)
				}
			}
			step := 0
			rename = func(from, to string) error {
				defer func() { step++ }()
				if step != cut {
					return os.Rename(from, to)
				}
				return errors.Join(os.CopyFS(before, os.DirFS(dir)), os.Rename(from, to), os.CopyFS(after, os.DirFS(dir)))
			}
			err := saveSharded(dir, 2)
			rename = os.Rename
			if err != nil || step != 4 || loadSharded(t, dir) != 2 {
				t.Fatalf("a save of %d renames: %v", step, err)
			}
			want := float32(1)
			if loadSharded(t, before) != want {
				t.Errorf("before rename %d the checkpoint is new", cut)
			}
			if cut == 3 {
				want = 2
			}
			if got := loadSharded(t, after); got != want {
				t.Errorf("after rename %d: %v, want %v", cut, got, want)
			}
			for _, dir := range []string{before, after} {
				if err := saveSharded(dir, 3); err != nil || loadSharded(t, dir) != 3 {
					t.Error(err)
				}
				if left, err := os.ReadDir(dir); err != nil || len(left) != 4 {
					t.Errorf("after a crash and another save: %v, %v", left, err)
				}
			}

			step = 0
			rename = func(from, to string) error {
				defer func() { step++ }()
				if step == cut {
					return syscall.EIO
				}
				return os.Rename(from, to)
			}
			err = saveSharded(dir, 4)
			rename = os.Rename
			if !errors.Is(err, syscall.EIO) || loadSharded(t, dir) != 2 {
				t.Errorf("an error of rename %d: %v", cut, err)
			}
			// If the rename of the index fails, nobody knows whether it lists the new files.
			if left, err := os.ReadDir(dir); err != nil || cut < 3 && len(left) != 4 || len(left) > 7 {
				t.Errorf("after an error of rename %d: %v, %v", cut, left, err)
			}
			if err := saveSharded(dir, 5); err != nil || loadSharded(t, dir) != 5 {
				t.Error(err)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 4 {
				t.Errorf("after an error and another save: %v, %v", left, err)
			}
		}
	}
}

// TestShardedSaveSparesOthers tests that SaveSharded keeps the files that another index lists, and the permissions of
// its own.
func TestShardedSaveSparesOthers(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	if err := saveSharded(dir, 1); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, "model.safetensors.index.json")
	kept := filepath.Join(dir, "kept.index.json")
	if err := os.Link(index, kept); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "model-*"))
	if err != nil || len(files) != 3 || filepath.Base(files[0]) != "model-00001-of-00003.safetensors" {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if err := os.Chmod(f, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// It is not an index, whatever its name is.
	if err := os.WriteFile(filepath.Join(dir, "other.index.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	for v := range 2 {
		if err := saveSharded(dir, float64(v+2)); err != nil {
			t.Fatal(err)
		}
	}
	if got := loadSharded(t, dir); got != 3 {
		t.Errorf("got %v", got)
	}
	newest, err := filepath.Glob(filepath.Join(dir, "model-3-0000?-of-00003.safetensors"))
	if err != nil || len(newest) != 3 {
		t.Fatal(newest, err)
	}
	for _, f := range newest {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	if err := os.Rename(kept, index); err != nil {
		t.Fatal(err)
	}
	if got := loadSharded(t, dir); got != 1 {
		t.Errorf("the checkpoint of the other index is %v", got)
	}
}

// TestShardedSaveWhileLoading tests that Load reads the new index if a save removes the files of the one that it has
// opened, and that files that are missing for another reason are an error.
func TestShardedSaveWhileLoading(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	index := filepath.Join(dir, "model.safetensors.index.json")
	save := func(v float64) {
		t.Helper()
		x := tensor.Full([]int{4}, v)
		defer x.Release()
		if err := SaveSharded(dir, map[string]*tensor.Tensor{"a": x, "b": x}, nil, 16); err != nil {
			t.Fatal(err)
		}
	}
	save(1)
	old, err := openRegular(index)
	if err != nil {
		t.Fatal(err)
	}
	save(2)
	f, err := loadAt(index, old, settings{mapped: true})
	if err != nil {
		t.Fatal(err)
	}
	err = tensor.WithScope(func() error {
		v, err := f.Tensor("b").Sum().Item()
		if v != 8 {
			t.Errorf("the sum is %v, want that of the new tensor, 8", v)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	shards, err := filepath.Glob(filepath.Join(dir, "model-2-*"))
	if err != nil || len(shards) != 2 {
		t.Fatal(shards, err)
	}
	if err := os.Remove(shards[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(index); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
}

package checkpoint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
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

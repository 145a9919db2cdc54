//go:build linux

package checkpoint_test

import (
	"path/filepath"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// Files that a program drops without Close do not exhaust the descriptors.
func TestLoadManyFiles(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "file")
	x := tensor.Ones([]int{8})
	defer x.Release()
	if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
		t.Fatal(err)
	}
	leak.LimitDescriptors(t, 20)
	for i := range 100 {
		if _, err := checkpoint.Load(path); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
}

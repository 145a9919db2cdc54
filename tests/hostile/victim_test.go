package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// A loader that took the bytes of one tensor for those of another is noticed.
func TestSwappedTensors(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "x.safetensors")
	if err := tensor.WithScope(func() error {
		return checkpoint.Save(path, map[string]*tensor.Tensor{"a": tensor.Ones([]int{2}), "b": tensor.Zeros([]int{2})}, map[string]string{"k": "v"})
	}); err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	swapped := strings.NewReplacer(`"a"`, `"b"`, `"b"`, `"a"`).Replace(string(file))
	if swapped == string(file) {
		t.Fatalf("no names in %q", file)
	}
	f, err := checkpoint.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for text, want := range map[string]bool{string(file): true, swapped: false} {
		var v victim
		if err := tensor.WithScope(func() error { return v.read(f, mutant{bytes: []byte(text)}) }); (err == nil) != want {
			t.Errorf("%q: %v", text, err)
		}
	}
}

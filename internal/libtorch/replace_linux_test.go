package libtorch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	process "github.com/linstock-ml/linstock/internal/elsewhere"
)

// TestReplaceDirOfALowerLayer tests that replaceDir replaces a directory of a container's image.
func TestReplaceDirOfALowerLayer(t *testing.T) {
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	merged, here := process.Overlay(t, func(lower string) {
		write(filepath.Join(lower, "cache", "2.15.0", "lib.so"), "old")
		write(filepath.Join(lower, "cache", "2.15.0", "gone.so"), "old")
	})
	if !here {
		return
	}
	cache := filepath.Join(merged, "cache")
	target, temp := filepath.Join(cache, "2.15.0"), filepath.Join(cache, tempPrefix+"1")
	write(filepath.Join(temp, "lib.so"), "new")
	if err := replaceDir(temp, target); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(target, "lib.so")); err != nil || string(data) != "new" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(target, "gone.so")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of the old directory: %v", err)
	}
	if left := leftovers(t, cache); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

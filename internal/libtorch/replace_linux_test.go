package libtorch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// TestFilesThatCannotBeRemoved tests that libraries that cannot be removed, as those of running programs on NFS, stop
// neither the setup that replaces them nor the next ones.
func TestFilesThatCannotBeRemoved(t *testing.T) {
	var said notes
	in := &installer{Progress: &said, cfg: Config{Cache: t.TempDir()}}
	dir := filepath.Join(in.cfg.Cache, "libtorch")
	target := filepath.Join(dir, "2.15.0")
	write := func(content string) (temp string) {
		t.Helper()
		temp = filepath.Join(dir, tempPrefix+content)
		lib := filepath.Join(temp, "lib") // nothing can be removed from it
		if err := errors.Join(os.MkdirAll(lib, 0o755), os.WriteFile(filepath.Join(lib, "lib.so"), []byte(content), 0o644), os.Chmod(lib, 0o555), os.Chmod(temp, 0o777)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(lib, 0o755) })
		return temp
	}
	temps := []string{write("first"), write("second"), write("third")}
	if err := errors.Join(os.Mkdir(in.wheelDir(), 0o755), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, temp := range temps {
		if err := unprivileged(t, in.cfg.Cache, func() error { return replaceDir(temp, target) }); err != nil {
			t.Error(err)
		}
		if data, err := os.ReadFile(filepath.Join(target, "lib", "lib.so")); err != nil || tempPrefix+string(data) != filepath.Base(temp) {
			t.Errorf("%q, %v", data, err)
		}
	}
	if err := unprivileged(t, in.cfg.Cache, in.clean); err != nil || len(said.said) != 2 || !strings.Contains(said.said[0], "remove files of an earlier setup") {
		t.Errorf("%v; it said %q", err, said.said)
	}
	left, err := filesIn(dir, tempPrefix, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if err := os.Chmod(filepath.Join(path, "lib"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.clean(); err != nil || len(leftovers(t, in.cfg.Cache)) > 0 {
		t.Errorf("%v; left behind: %q", err, leftovers(t, in.cfg.Cache))
	}
}

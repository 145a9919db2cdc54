package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/linstock-ml/linstock/tests/internal/scorecard"
)

// TestNamedFiles tests that the files that the sources of mutants name exist, and that one that does not is an error.
func TestNamedFiles(t *testing.T) {
	root, err := scorecard.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{root: root, keys: map[string]int{}}
	if err := c.goSources(); err != nil {
		t.Error(err)
	}
	if err := c.cppSources(); err != nil {
		t.Error(err)
	}
	for _, missing := range guardedFiles {
		dir := t.TempDir()
		for _, name := range guardedFiles {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if name == missing {
				continue
			}
			if err := os.WriteFile(path, []byte("package p\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		c := &collector{root: dir, keys: map[string]int{}}
		if err := c.goSources(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	c = &collector{root: t.TempDir(), keys: map[string]int{}}
	if err := c.cppSources(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without %s: %v", converting, err)
	}
}

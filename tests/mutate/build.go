package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/tests/fakecuda"
)

// testPackages are the packages whose tests may detect a mutant, fast ones first.
var testPackages = []string{"tensor", "autograd", "optim", "nn", "vram", "data", "checkpoint", "cshim", "profiler", "vram/plan"}

// builder compiles everything with all mutants.
type builder struct {
	root, dir string
	c         *collector
	overlay   string
	several   map[string]bool // tests with several goroutines, by package and name
}

func (b *builder) run(dir string, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		text := out.Bytes()
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, text[max(0, len(text)-6000):])
	}
	return nil
}

// writeOverlay writes the rewritten Go sources for go build -overlay.
func (b *builder) writeOverlay() error {
	replace := map[string]string{}
	put := func(name string, data []byte) error {
		to := filepath.Join(b.dir, "_go", name) // hidden from ./...
		replace[filepath.Join(b.root, name)] = to
		return writeChanged(to, data)
	}
	if err := put("internal/mutant/mutant.go", []byte(mutantPackage)); err != nil {
		return err
	}
	if err := put("tensor/mutant_helpers.go", []byte(mutantHelpers)); err != nil {
		return err
	}
	for _, f := range b.c.files {
		if len(f.wraps) == 0 {
			continue
		}
		if err := put(f.name, rewrite(f.source, f.wraps)); err != nil {
			return err
		}
	}
	for _, pkg := range testPackages {
		names, err := filepath.Glob(filepath.Join(b.root, pkg, "*_test.go"))
		if err != nil {
			return err
		}
		for _, name := range names {
			source, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			text, err := b.marked(pkg, name, source)
			if err != nil {
				return err
			}
			if text == nil {
				continue
			}
			if err := put(pkg+"/"+filepath.Base(name), text); err != nil {
				return err
			}
		}
	}
	data, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	b.overlay = filepath.Join(b.dir, "overlay.json")
	return writeChanged(b.overlay, data)
}

// goTest compiles the tests of a package; variant is "", "race" or "gc".
func (b *builder) goTest(pkg, variant string) (string, error) {
	to := filepath.Join(b.dir, "bin", strings.ReplaceAll(pkg, "/", "_")+"_"+variant+".test")
	args := []string{"test", "-c", "-overlay", b.overlay, "-vet=off", "-o", to}
	switch variant {
	case "race":
		args = append(args, "-race")
	case "gc":
		args = append(args, "-tags", "linstock_gc")
	}
	return to, b.run(b.root, "go", append(args, "./"+pkg)...)
}

// cuda compiles the shim's CUDA library and its tests for the fake devices of tests/fakecuda. It returns the
// environment in which to run them.
func (b *builder) cuda() (env []string, err error) {
	fakes, err := fakecuda.Setup()
	if err != nil {
		return nil, err
	}
	const path = "LD_LIBRARY_PATH="
	i := slices.IndexFunc(fakes, func(s string) bool { return strings.HasPrefix(s, path) })
	if i < 0 {
		return nil, fmt.Errorf("setup.sh gives no %s: %q", path, fakes)
	}
	torch, lib := filepath.Join(strings.TrimPrefix(fakes[i], path), "../.."), filepath.Join(b.dir, "cuda")
	env = []string{"LINSTOCK_TEST_FAKECUDA=here", "LINSTOCK_LIB=" + lib, fakes[i]}
	source := filepath.Join(b.dir, "shim")
	if err := b.run(b.root, "cmake", "-S", filepath.Join(source, "cshim"), "-B", lib, "-G", "Ninja", "-DLINSTOCK_TORCH_ROOT="+torch,
		"-DLINSTOCK_CUDA=ON", "-DLINSTOCK_CORE="+filepath.Join(b.dir, "cpp/liblinstock.so"), "-DLINSTOCK_WERROR=OFF",
		"-DCMAKE_CXX_FLAGS=-include "+filepath.Join(source, "mutant.h")); err != nil {
		return nil, err
	}
	if err := b.run(b.root, "ninja", "-C", lib); err != nil {
		return nil, err
	}
	for name, to := range map[string]string{"torch": filepath.Join(torch, "torch"), "liblinstock.so": filepath.Join(b.dir, "cpp/liblinstock.so")} {
		_ = os.Remove(filepath.Join(lib, name))
		if err := os.Symlink(to, filepath.Join(lib, name)); err != nil {
			return nil, err
		}
	}
	return env, b.run(b.root, "go", "test", "-c", "-overlay", b.overlay, "-vet=off", "-o", b.cudaTest(), "./tests/fakecuda")
}

func (b *builder) cudaTest() string { return filepath.Join(b.dir, "bin", "fakecuda.test") }

// shim compiles the shim and its tests, with tsan under ThreadSanitizer.
func (b *builder) shim(torch string, tsan bool) (dir string, err error) {
	source := filepath.Join(b.dir, "shim")
	if err := b.c.writeShim(source); err != nil {
		return "", err
	}
	dir = filepath.Join(b.dir, "cpp")
	flags := "-include " + filepath.Join(source, "mutant.h")
	build := "-DCMAKE_BUILD_TYPE=Release"
	var link []string
	if tsan {
		dir += "-tsan"
		flags += " -fsanitize=thread -g1 -Wno-tsan"
		link = []string{"-DCMAKE_C_FLAGS=-fsanitize=thread", "-DCMAKE_SHARED_LINKER_FLAGS=-fsanitize=thread", "-DCMAKE_EXE_LINKER_FLAGS=-fsanitize=thread"}
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	args := append([]string{"-S", filepath.Join(source, "cshim"), "-B", dir, "-G", "Ninja", build, "-DLINSTOCK_TORCH_ROOT=" + torch,
		"-DLINSTOCK_BUILD_TESTS=ON", "-DLINSTOCK_WERROR=OFF", "-DCMAKE_CXX_FLAGS=" + flags}, link...)
	if err := b.run(b.root, "cmake", args...); err != nil {
		return "", err
	}
	return dir, b.run(b.root, "ninja", "-C", dir)
}

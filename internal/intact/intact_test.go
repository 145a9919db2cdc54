package intact

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// compile makes a shared library that needs others.
func compile(t *testing.T, path string, needs ...string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"-shared", "-fPIC", "-x", "c", os.DevNull, "-x", "none", "-o", path, "-Wl,-soname," + filepath.Base(path),
		"-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN/torch/lib:$ORIGIN"}
	if out, err := exec.Command("cc", append(args, needs...)...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
}

func contents(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
}

func damaged(t *testing.T, err error, path, what string) {
	t.Helper()
	var d *Damage
	if !errors.As(err, &d) || d.Path != path || !strings.Contains(d.What, what) {
		t.Errorf("got %v, want the damage %q of %s", err, what, path)
	}
}

// TestEveryTruncationIsDetected tests that a library of any shorter length is damaged, without a manifest.
func TestEveryTruncationIsDetected(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib.so")
	compile(t, path)
	if err := Library(path); err != nil {
		t.Fatalf("a whole library: %v", err)
	}
	whole := contents(t, path)
	cut := filepath.Join(t.TempDir(), "cut.so")
	for n := len(whole) - 1; n >= 0; n -= 1 + n/200 {
		write(t, cut, whole[:n])
		var d *Damage
		if err := Library(cut); !errors.As(err, &d) {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
	}
}

func TestNotALibrary(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct{ text, want string }{
		"empty":   {"", "it is empty"},
		"text":    {"root:x:0:0:root:/root:/bin/bash\n" + strings.Repeat("x", 100), "is not a shared library"},
		"32 bits": {"\x7fELF\x01\x01\x01" + strings.Repeat("\x00", 100), "another kind of processor"},
		"script":  {"#!/bin/sh\n" + strings.Repeat("x", 100), "is not a shared library"},
	} {
		path := filepath.Join(dir, name)
		write(t, path, []byte(c.text))
		damaged(t, Library(path), path, c.want)
	}
	damaged(t, Library(dir), dir, "is not a file")
	damaged(t, Library(os.DevNull), os.DevNull, "is not a file")
	if err := Library(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestChangedHeaders tests that reading a library with changed bytes in its headers returns.
func TestChangedHeaders(t *testing.T) {
	dir := t.TempDir()
	other, path := filepath.Join(dir, "libother.so"), filepath.Join(dir, "lib.so")
	compile(t, other)
	compile(t, path, other)
	if got := Closure(path); !slices.Equal(got, []string{other}) {
		t.Fatalf("it needs %q", got)
	}
	whole := contents(t, path)
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		data := slices.Clone(whole)
		for range 1 + r.IntN(4) {
			at := r.IntN(64 + 56*12)
			if r.IntN(2) == 0 {
				at = r.IntN(len(data))
			}
			data[at] = byte(r.Uint32())
		}
		write(t, path, data)
		_ = Library(path)
		Closure(path)
	}
}

// install makes a shim with a manifest, and a libtorch with a manifest in another directory.
func install(t *testing.T) (shim, cpu string) {
	t.Helper()
	root, dir := t.TempDir(), t.TempDir()
	cpu, shim = filepath.Join(root, "torch", "lib", "libtorch_cpu.so"), filepath.Join(dir, "liblinstock.so")
	compile(t, cpu)
	compile(t, shim, cpu)
	manifest(t, root, "", "torch/lib/libtorch_cpu.so")
	manifest(t, dir, root, "liblinstock.so")
	return shim, cpu
}

func manifest(t *testing.T, dir, root string, names ...string) {
	t.Helper()
	m := Manifest{Root: root, Files: NewFiles()}
	for _, name := range names {
		path := filepath.Join(dir, filepath.FromSlash(name))
		m.Sizes[name] = int64(len(contents(t, path)))
		var err error
		if m.SHA256[name], err = Hash(context.Background(), path, nil); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, ManifestFile), text)
}

func TestShim(t *testing.T) {
	shim, cpu := install(t)
	if err := Shim(shim); err != nil {
		t.Fatal(err)
	}
	good := contents(t, shim)
	flipped := slices.Clone(good)
	flipped[len(good)/2] ^= 1
	write(t, shim, flipped)
	damaged(t, Shim(shim), shim, "its content has changed since it was installed")
	write(t, shim, good[:len(good)-8])
	damaged(t, Shim(shim), shim, "is damaged: it has")
	write(t, shim, append(slices.Clone(good), 0))
	damaged(t, Shim(shim), shim, "is damaged: it has")
	write(t, shim, good)

	torch := contents(t, cpu)
	write(t, cpu, torch[:len(torch)/2])
	damaged(t, Shim(shim), cpu, "is damaged: it has")
	if err := os.Remove(cpu); err != nil {
		t.Fatal(err)
	}
	damaged(t, Shim(shim), cpu, "is missing")
	write(t, cpu, torch)
	if err := Shim(shim); err != nil {
		t.Errorf("repaired: %v", err)
	}

	path := filepath.Join(filepath.Dir(shim), ManifestFile)
	write(t, path, contents(t, path)[:20])
	damaged(t, Shim(shim), path, "is damaged")
}

// TestShimWithoutManifests tests that the headers are checked if there is no manifest: a libtorch that setup did not
// install, a shim that was built by hand.
func TestShimWithoutManifests(t *testing.T) {
	dir := t.TempDir()
	shim, cpu, c10 := filepath.Join(dir, "liblinstock.so"), filepath.Join(dir, "torch", "lib", "libtorch_cpu.so"), filepath.Join(dir, "torch", "lib", "libc10.so")
	compile(t, c10)
	compile(t, cpu, c10)
	compile(t, shim, cpu)
	if err := Shim(shim); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{shim, cpu, c10} {
		whole := contents(t, path)
		write(t, path, whole[:len(whole)-100])
		damaged(t, Shim(shim), path, "and its header says")
		write(t, path, whole)
	}
	if err := Shim(filepath.Join(dir, "none.so")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing shim: %v", err)
	}
}

func TestHashesCanBeStopped(t *testing.T) {
	shim, _ := install(t)
	var m Manifest
	if err := Read(filepath.Dir(shim), &m); err != nil {
		t.Fatal(err)
	}
	bytes := 0
	if err := m.CheckHashes(t.Context(), filepath.Dir(shim), func(n int) { bytes += n }); err != nil || int64(bytes) != m.Total() {
		t.Errorf("%v; %d of %d bytes", err, bytes, m.Total())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.CheckHashes(ctx, filepath.Dir(shim), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	m.SHA256["liblinstock.so"] = ""
	damaged(t, m.CheckHashes(t.Context(), filepath.Dir(shim), nil), shim, "has no hash")
}

// TestLinkedLibraries tests that the needs of a library are looked for beside the link by which it is opened, as the
// system's loader does: a package manager may make site-packages of links to files of several directories.
func TestLinkedLibraries(t *testing.T) {
	dir := t.TempDir()
	c10, cpu, site := filepath.Join(dir, "1", "libc10.so"), filepath.Join(dir, "2", "libtorch_cpu.so"), filepath.Join(dir, "site")
	compile(t, c10)
	compile(t, cpu, c10)
	err := errors.Join(os.Mkdir(site, 0o755), os.Symlink(c10, filepath.Join(site, "libc10.so")), os.Symlink(cpu, filepath.Join(site, "libtorch_cpu.so")),
		os.Mkdir(filepath.Join(dir, "in"), 0o755), os.Symlink(site, filepath.Join(dir, "in", "link")))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(site, "libc10.so")}
	for _, path := range []string{filepath.Join(site, "libtorch_cpu.so"), filepath.Join(dir, "in", "link", "libtorch_cpu.so")} {
		if got := Closure(path); !slices.Equal(got, want) {
			t.Errorf("%s needs %q, want %q", path, got, want)
		}
	}
	whole := contents(t, c10)
	write(t, c10, whole[:len(whole)-100])
	damaged(t, libraries(filepath.Join(site, "libtorch_cpu.so")), want[0], "and its header says")
}

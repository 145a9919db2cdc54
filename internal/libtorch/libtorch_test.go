package libtorch

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// The fixture: wheels of a few kilobytes with real shared libraries in place of libtorch's, so that a complete setup
// runs in a second.

const testVersion = "2.15.0"

// compile makes a shared library that needs others.
func compile(t *testing.T, dir, name string, needs ...string) []byte {
	t.Helper()
	path := filepath.Join(dir, name)
	args := []string{"-shared", "-fPIC", "-x", "c", os.DevNull, "-x", "none", "-o", path, "-Wl,-soname," + name, "-Wl,--no-as-needed",
		"-Wl,--allow-shlib-undefined", "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib:$ORIGIN"}
	for _, n := range needs {
		args = append(args, filepath.Join(dir, n))
	}
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func makeWheel(t *testing.T, path string, files map[string][]byte) {
	t.Helper()
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(files[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// wheels writes the four fake wheels into a directory and returns it with their lock.
func wheels(t *testing.T) (string, *Lock) {
	t.Helper()
	dir, so := t.TempDir(), t.TempDir()
	gomp, cudart := compile(t, so, "libgomp.so.1"), compile(t, so, "libcudart.so.13")
	cupti, other := compile(t, so, "libcupti.so.13"), compile(t, so, "libnvperf_host.so")
	c10 := compile(t, so, "libc10.so")
	cpu := compile(t, so, "libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13")
	cuda := compile(t, so, "libtorch_cuda.so", "libtorch_cpu.so")
	omp := compile(t, so, locate.OpenMPLib)
	list := []struct {
		pkg, version string
		files        map[string][]byte
	}{
		{"torch", testVersion, map[string][]byte{
			"torch/lib/libtorch_cpu.so": cpu, "torch/lib/libc10.so": c10, "torch/lib/libgomp.so.1": gomp,
			"torch/lib/libtorch_cuda.so": cuda, "torch/lib/libtorch_python.so": other,
			"torch/version.py":                            []byte("__version__ = '2.15.0+cu132'\n"),
			"torch/nn/functional.py":                      []byte("pass\n"),
			"torch/include/torch/headeronly/version.h":    []byte("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 15\n#define TORCH_VERSION_PATCH 0\n"),
			"torch/include/ATen/ATen.h":                   []byte("#pragma once\n"),
			"torch-2.15.0.dist-info/licenses/LICENSE":     []byte("BSD\n"),
			"torch-2.15.0.dist-info/licenses/x/fmt/NOTES": []byte("MIT\n"),
			"torch-2.15.0.dist-info/METADATA":             []byte("Name: torch\n"),
		}},
		{"nvidia-cuda-runtime", "13.2.86", map[string][]byte{
			"nvidia/cu13/lib/libcudart.so.13": cudart, "nvidia/cu13/lib/libcudart_static.a": []byte("x"), "nvidia/cu13/include/cuda_runtime.h": []byte("x"),
			"nvidia_cuda_runtime-13.2.86.dist-info/licenses/License.txt": []byte("NVIDIA\n"),
		}},
		{"nvidia-cuda-cupti", "13.2.86", map[string][]byte{
			"nvidia/cu13/lib/libcupti.so.13": cupti, "nvidia/cu13/lib/libnvperf_host.so": other,
		}},
		{"cmeel-libomp", "21.1.8", map[string][]byte{
			"cmeel.prefix/lib/libomp.so": omp, "cmeel.prefix/lib/libgomp.so.1": omp, "cmeel.prefix/include/omp.h": []byte("x"),
		}},
	}
	lock := &Lock{Releases: map[string]map[string][]Wheel{testVersion: {}}}
	for _, l := range list {
		name := strings.ReplaceAll(l.pkg, "-", "_") + "-" + l.version + "-py3-none-any.whl"
		makeWheel(t, filepath.Join(dir, name), l.files)
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		lock.Releases[testVersion][Platform()] = append(lock.Releases[testVersion][Platform()],
			Wheel{Package: l.pkg, Version: l.version, File: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(data))})
	}
	return dir, lock
}

// sources returns a CMake project in place of the shim.
func sources() fs.FS {
	return fstest.MapFS{
		"CMakeLists.txt": {Data: []byte(`cmake_minimum_required(VERSION 3.18)
project(linstock C)
if(NOT EXISTS ${LINSTOCK_TORCH_ROOT}/torch/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no libtorch in ${LINSTOCK_TORCH_ROOT}")
endif()
add_compile_options("-ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}=${LINSTOCK_SOURCE_PREFIX}")
add_library(linstock SHARED src/shim.c)
`)},
		"src/shim.c": {Data: []byte("const char *where(void) { return __FILE__; }\n")},
	}
}

// config returns a setup of the fake libtorch in a new cache.
func config(t *testing.T) Config {
	t.Helper()
	for _, name := range []string{locate.EnvLib, locate.EnvTorch, locate.EnvLibtorch, locate.EnvUsePyTorch} {
		t.Setenv(name, "")
	}
	dir, lock := wheels(t)
	hash, err := locate.SourceHash(sources())
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Setenv(locate.EnvCache, cache)
	return Config{Cache: cache, Torch: testVersion, Wheels: []string{dir}, Lock: lock, Sources: sources(), Hash: hash}
}

// leftovers lists incomplete files in a cache.
func leftovers(t *testing.T, cache string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(cache, func(path string, d fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), tempPrefix) {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestLockIsComplete(t *testing.T) {
	lock, err := EmbeddedLock()
	if err != nil {
		t.Fatal(err)
	}
	hexSum := regexp.MustCompile(`^[0-9a-f]{64}$`)
	for _, version := range locate.Versions {
		wheels, err := lock.Wheels(version, "linux/amd64", true)
		if err != nil {
			t.Error(err)
			continue
		}
		cpu, err := lock.Wheels(version, "linux/amd64", false)
		if err != nil {
			t.Error(err)
		}
		var names []string
		for _, w := range cpu {
			names = append(names, w.Package)
		}
		if !slices.Equal(names, cpuPackages) {
			t.Errorf("%s: without a GPU it needs %q, want %q", version, names, cpuPackages)
		}
		if len(wheels) < 14 {
			t.Errorf("%s: only %d wheels for a GPU", version, len(wheels))
		}
		for _, w := range wheels {
			file := strings.ReplaceAll(w.Package, "-", "_") + "-" + w.Version + "-"
			if !hexSum.MatchString(w.SHA256) || w.Size <= 0 || !strings.HasPrefix(w.File, file) || !strings.HasSuffix(w.File, "x86_64.whl") {
				t.Errorf("%s: %+v", version, w)
			}
		}
		if wheels[0].Package != "torch" || wheels[0].Version != version {
			t.Errorf("%s: the first wheel is %s %s", version, wheels[0].Package, wheels[0].Version)
		}
	}
	if locate.Versions[len(locate.Versions)-1] != locate.DefaultTorch {
		t.Errorf("the default %s is not the newest of %q", locate.DefaultTorch, locate.Versions)
	}
}

func TestOutsideTheWindow(t *testing.T) {
	cfg := config(t)
	for _, version := range []string{"2.10.0", "2.16.0", "3.0.0", "1.13.1", "", "nonsense"} {
		cfg.Torch = version
		if _, err := Setup(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "2.11.0") {
			t.Errorf("%q: %v; want an error that lists the versions", version, err)
		}
	}
}

func TestSetup(t *testing.T) {
	cfg := config(t)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !result.Changed || result.Source.Version != testVersion || result.Source.CUDA {
		t.Errorf("%+v", result)
	}
	if path, err := locate.Find(cfg.Hash); err != nil || path != result.Shim {
		t.Errorf("locate.Find = %q, %v; setup made %q", path, err, result.Shim)
	}
	root := result.Source.Root
	for _, name := range []string{
		"torch/lib/libtorch_cpu.so", "torch/lib/libc10.so", "torch/lib/libgomp.so.1", "torch/version.py", "torch/include/ATen/ATen.h",
		"nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13", "torch-2.15.0.dist-info/licenses/x/fmt/NOTES",
		"cmeel.prefix/lib/libomp.so",
	} {
		if !isFile(filepath.Join(root, name)) {
			t.Errorf("%s was not unpacked", name)
		}
	}
	for _, name := range []string{
		"torch/lib/libtorch_cuda.so", "torch/lib/libtorch_python.so", "torch/nn/functional.py",
		"nvidia/cu13/lib/libnvperf_host.so", "nvidia/cu13/lib/libcudart_static.a", "nvidia/cu13/include/cuda_runtime.h",
		"cmeel.prefix/lib/libgomp.so.1", "cmeel.prefix/include/omp.h",
	} {
		if isFile(filepath.Join(root, name)) {
			t.Errorf("%s was unpacked, and is not needed", name)
		}
	}
	if path := locate.OpenMP(result.Shim); path == "" || intact.Shim(result.Shim) != nil {
		t.Errorf("the OpenMP runtime beside the shim: %q; %v", path, intact.Shim(result.Shim))
	}
	if data, err := os.ReadFile(result.Shim); err != nil || bytes.Contains(data, []byte(tempPrefix)) {
		t.Errorf("the shim holds the name of the directory it was built in (%v)", err)
	}
	if left := leftovers(t, cfg.Cache); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	// The wheels that the user gave are kept.
	if left, _ := filepath.Glob(filepath.Join(cfg.Wheels[0], "*.whl")); len(left) != 4 {
		t.Errorf("of the user's wheels there are left: %q", left)
	}

	begun := time.Now()
	again, err := Setup(t.Context(), cfg)
	if err != nil || again.Changed || again.Shim != result.Shim {
		t.Errorf("the second setup: %+v, %v", again, err)
	}
	if d := time.Since(begun); d > time.Second {
		t.Errorf("the second setup took %v", d)
	}
	// An invalid setting is an error even if nothing is left to do.
	wrong := cfg
	wrong.Jobs = -5
	if _, err := Setup(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "--jobs -5") {
		t.Errorf("got %v", err)
	}
	wrong = cfg
	wrong.Wheels = []string{filepath.Join(t.TempDir(), "none")}
	if _, err := Setup(t.Context(), wrong); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "--wheel") {
		t.Errorf("got %v", err)
	}
}

func TestSetupCUDA(t *testing.T) {
	cfg := config(t)
	if _, err := Setup(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	cfg.CUDA = true
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"torch/lib/libtorch_cuda.so", "nvidia/cu13/lib/libnvperf_host.so", "nvidia/cu13/include/cuda_runtime.h"} {
		if !isFile(filepath.Join(result.Source.Root, name)) {
			t.Errorf("%s was not unpacked", name)
		}
	}
	if !result.Source.CUDA || !result.Changed {
		t.Errorf("%+v", result)
	}
	// The shim's own library for a GPU is not built where CUDA's headers are not found.
	if err := Bundle(t.Context(), result.Shim, result.Source, t.TempDir(), true, nil); result.CUDA || err == nil || !strings.Contains(err.Error(), "CUDA_HOME") {
		t.Errorf("without the shim's library: %v, bundle --cuda: %v", result.CUDA, err)
	}
	if err := os.WriteFile(cudaShim(result.Shim), compile(t, t.TempDir(), "liblinstock_cuda.so"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg.NoBuild = true
	if none, err := Setup(t.Context(), cfg); err != nil || !none.CUDA {
		t.Errorf("without a shim: %+v, %v", none, err)
	}
	cfg.NoBuild = false
	bundle := t.TempDir()
	if err := Bundle(t.Context(), result.Shim, result.Source, bundle, true, nil); err != nil || !isFile(filepath.Join(bundle, "liblinstock_cuda.so")) {
		t.Errorf("with the shim's library: %v", err)
	}
	// An installation with CUDA also serves a setup without it.
	cfg.CUDA = false
	if again, err := Setup(t.Context(), cfg); err != nil || again.Changed || !again.CUDA {
		t.Errorf("setup without --cuda afterwards: %+v, %v", again, err)
	}
}

func TestHashMismatchIsRefused(t *testing.T) {
	cfg := config(t)
	files, err := filepath.Glob(filepath.Join(cfg.Wheels[0], "torch-*.whl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(func() error { _, err := f.WriteString("x"); return err }(), f.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Setup(t.Context(), cfg)
	if wrong := new(HashError); !errors.As(err, &wrong) || wrong.Path != files[0] {
		t.Fatalf("got %v, want a HashError for %s", err, files[0])
	}
	if isFile(filepath.Join(locate.TorchDir(cfg.Cache, testVersion), intact.ManifestFile)) || len(leftovers(t, cfg.Cache)) > 0 {
		t.Error("something was unpacked all the same")
	}
	cfg.Unpinned = true
	if _, err := Setup(t.Context(), cfg); err != nil {
		t.Errorf("--unpinned: %v", err)
	}
}

// TestFetchIgnoresConstraints tests that pip downloads the wheels of the lock file whatever versions the user's
// settings name.
func TestFetchIgnoresConstraints(t *testing.T) {
	if pip := FindPip(t.Context()); !pip.Found() {
		t.Fatal("there is no pip, which the set-up of the tests needs")
	}
	index := t.TempDir()
	const file = "torch-2.15.0-py3-none-any.whl"
	makeWheel(t, filepath.Join(index, file), map[string][]byte{
		"torch-2.15.0.dist-info/METADATA": []byte("Metadata-Version: 2.1\nName: torch\nVersion: 2.15.0\n"),
		"torch-2.15.0.dist-info/WHEEL":    []byte("Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
		"torch-2.15.0.dist-info/RECORD":   nil,
	})
	sum, err := intact.Hash(t.Context(), filepath.Join(index, file), nil)
	if err != nil {
		t.Fatal(err)
	}
	lock := &Lock{Releases: map[string]map[string][]Wheel{testVersion: {Platform(): {{Package: "torch", Version: testVersion, File: file, SHA256: sum}}}}}
	other, config, dir := filepath.Join(index, "other.txt"), filepath.Join(index, "pip.conf"), t.TempDir()
	if err := errors.Join(os.WriteFile(other, []byte("torch==2.11.0\n"), 0o644),
		os.WriteFile(config, []byte("[global]\nconstraint = "+other+"\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "PIP_CONFIG_FILE": config, "PIP_REQUIREMENT": other} {
		t.Setenv(name, value)
	}
	if _, err := Fetch(t.Context(), Config{Torch: testVersion, Lock: lock}, dir); err != nil || !isFile(filepath.Join(dir, file)) {
		t.Errorf("%v", err)
	}
}

func TestMissingWheelsAreNamed(t *testing.T) {
	cfg := config(t)
	torch, err := filepath.Glob(filepath.Join(cfg.Wheels[0], "torch-*.whl"))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Wheels = torch
	_, err = Setup(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "nvidia_cuda_runtime-13.2.86") || !strings.Contains(err.Error(), "linstock fetch") {
		t.Errorf("got %v, want the missing wheels and how to get them", err)
	}
}

func TestWheelThatLeadsOutIsRefused(t *testing.T) {
	for _, name := range []string{"../evil.so", "torch/lib/../../../evil.so", "/etc/evil.so", `torch\..\..\evil.so`} {
		dir := t.TempDir()
		wheel, out := filepath.Join(dir, "torch.whl"), filepath.Join(dir, "a", "b", "out")
		if err := os.MkdirAll(out, 0o755); err != nil {
			t.Fatal(err)
		}
		makeWheel(t, wheel, map[string][]byte{name: []byte("x")})
		_, err := unpack(t.Context(), out, []string{wheel}, false, silent{})
		if err == nil || !strings.Contains(err.Error(), "leads out") && !errors.Is(err, zip.ErrInsecurePath) {
			t.Errorf("%s: %v", name, err)
		}
		var found []string
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
			if !d.IsDir() && path != wheel {
				found = append(found, path)
			}
			return nil
		})
		if len(found) > 0 {
			t.Errorf("%s: wrote %q", name, found)
		}
	}
}

func TestLinkInAWheelIsRefused(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "torch.whl")
	var buf bytes.Buffer
	z := zip.NewWriter(&buf)
	header := &zip.FileHeader{Name: "torch/lib"}
	header.SetMode(fs.ModeSymlink | 0o777)
	w, err := z.CreateHeader(header)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("/etc")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), os.WriteFile(path, buf.Bytes(), 0o644)); err != nil {
		t.Fatal(err)
	}
	if _, err := unpack(t.Context(), t.TempDir(), []string{path}, false, silent{}); err == nil || !strings.Contains(err.Error(), "plain file") {
		t.Errorf("got %v", err)
	}
}

// cancelAt cancels the context when a task whose name has the given prefix reports progress.
type cancelAt struct {
	silent
	prefix string
	cancel context.CancelCauseFunc
}

var errStopped = errors.New("stopped by the test")

func (c *cancelAt) Start(what string, _ int64, _ Unit) Task {
	if strings.HasPrefix(what, c.prefix) {
		return &cancelTask{cancel: c.cancel}
	}
	return silent{}
}

type cancelTask struct {
	silent
	cancel context.CancelCauseFunc
}

func (c *cancelTask) Set(int64) { c.cancel(errStopped) }

func TestInterrupted(t *testing.T) {
	for _, phase := range []string{"unpack", "build"} {
		t.Run(phase, func(t *testing.T) {
			cfg := config(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			stopped := cfg
			stopped.Progress = &cancelAt{prefix: phase, cancel: cancel}
			if _, err := Setup(ctx, stopped); !errors.Is(err, errStopped) {
				t.Fatalf("got %v, want the reason of the cancellation", err)
			}
			if left := leftovers(t, cfg.Cache); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
			if path, err := locate.Find(cfg.Hash); err == nil {
				t.Errorf("found %s of an interrupted setup", path)
			}
			_, err := Resolve(t.Context(), cfg.Cache, testVersion, false)
			if phase == "unpack" && !errors.Is(err, ErrNotInstalled) || phase == "build" && err != nil {
				t.Errorf("Resolve after it: %v", err)
			}
			if result, err := Setup(t.Context(), cfg); err != nil || !result.Changed {
				t.Errorf("the setup after it: %+v, %v", result, err)
			}
		})
	}
}

// TestInterruptedSearch tests that an interrupt in the search for a tool or for PyTorch does not look like its absence.
func TestInterruptedSearch(t *testing.T) {
	cfg := config(t)
	cfg.Wheels = nil
	begun := filepath.Join(t.TempDir(), "begun")
	bin := t.TempDir()
	for _, name := range []string{"c++", "cmake", "ninja", "python3"} {
		text := "#!/bin/sh\necho 99.1\n"
		if name == "python3" {
			text = "#!/bin/sh\n: >" + begun + "\n/bin/sleep 600\n"
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	for what, search := range map[string]func(context.Context) error{
		"setup": func(ctx context.Context) error { _, err := Setup(ctx, cfg); return err },
		"fetch": func(ctx context.Context) error {
			_, err := Fetch(ctx, Config{Torch: testVersion, Lock: cfg.Lock}, t.TempDir())
			return err
		},
		"PyTorch": func(ctx context.Context) error {
			t.Setenv(locate.EnvUsePyTorch, "1")
			_, err := Resolve(ctx, cfg.Cache, testVersion, false)
			return err
		},
	} {
		_ = os.Remove(begun)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for ctx.Err() == nil {
				if isFile(begun) {
					cancel(errStopped)
				}
				time.Sleep(time.Millisecond)
			}
		}()
		if err := search(ctx); !errors.Is(err, errStopped) {
			t.Errorf("%s: got %v, want the reason of the cancellation", what, err)
		}
		cancel(nil)
		t.Setenv(locate.EnvUsePyTorch, "")
	}
}

// TestInterruptedCopy tests that the copy of a large file ends with its context.
func TestInterruptedCopy(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		f, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		for range 256 {
			if err == nil {
				_, err = f.Write(make([]byte, 1<<20))
			}
			cancel(errStopped)
		}
		written <- errors.Join(err, f.Close())
	}()
	if _, err := copyFile(ctx, pipe, filepath.Join(t.TempDir(), "copy")); !errors.Is(err, errStopped) {
		t.Errorf("got %v, want the reason of the cancellation", err)
	}
	if err := <-written; !errors.Is(err, syscall.EPIPE) {
		t.Errorf("the copy read all: %v", err)
	}
}

// TestKilledSetupLeavesNothingTrusted tests that the next setup cleans up after one that was killed.
func TestKilledSetupLeavesNothingTrusted(t *testing.T) {
	cfg := config(t)
	half := []string{
		filepath.Join(cfg.Cache, "libtorch", tempPrefix+"1", "torch", "lib", "libtorch_cpu.so"),
		filepath.Join(cfg.Cache, "wheels", tempPrefix+"2", "tmp", "torch.whl"),
		filepath.Join(locate.HashDir(cfg.Cache, cfg.Hash), tempPrefix+"3", "build", locate.LibName()),
		// This directory is incomplete: it has no stamp.
		filepath.Join(locate.TorchDir(cfg.Cache, testVersion), "torch", "lib", "libtorch_cpu.so"),
	}
	for _, path := range half {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("half"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, cfg.Cache); len(left) > 0 {
		t.Errorf("still there: %q", left)
	}
	// A library that was truncated later is detected as well.
	lib := filepath.Join(result.Source.Lib, "libtorch_cpu.so")
	if err := os.Truncate(lib, 3); err != nil {
		t.Fatal(err)
	}
	if again, err := Setup(t.Context(), cfg); err != nil || !again.Changed {
		t.Errorf("with a truncated libtorch: %+v, %v", again, err)
	}
	if info, err := os.Stat(lib); err != nil || info.Size() == 3 {
		t.Errorf("it was not replaced: %v", err)
	}
}

// notes collects the notes of a setup.
type notes struct {
	silent
	mu   sync.Mutex
	said []string
}

func (n *notes) Note(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.said = append(n.said, fmt.Sprintf(format, args...))
}

func TestConcurrentSetupsWait(t *testing.T) {
	cfg := config(t)
	first, err := newInstaller(cfg)
	if err != nil {
		t.Fatal(err)
	}
	unlock, err := first.acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const others = 3
	var all notes
	cfg.Progress = &all
	results := make(chan error, others)
	for range others {
		go func() {
			_, err := Setup(t.Context(), cfg)
			results <- err
		}()
	}
	waiting := func() int {
		all.mu.Lock()
		defer all.mu.Unlock()
		return len(slices.DeleteFunc(slices.Clone(all.said), func(s string) bool { return !strings.Contains(s, "waiting") }))
	}
	for deadline := time.Now().Add(20 * time.Second); waiting() < others; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d said that they wait", waiting(), others)
		}
		time.Sleep(5 * time.Millisecond)
	}
	select {
	case err := <-results:
		t.Errorf("one did not wait for the lock: %v", err)
	default:
	}
	// Waiting can be cancelled.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errStopped)
	if _, err := first.acquire(ctx); !errors.Is(err, errStopped) {
		t.Errorf("a cancelled wait: %v", err)
	}
	unlock()
	for range others {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if left := leftovers(t, cfg.Cache); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestInspect(t *testing.T) {
	write := func(root string, files map[string]string) string {
		t.Helper()
		for name, text := range files {
			path := filepath.Join(root, filepath.FromSlash(name))
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
				t.Fatal(err)
			}
		}
		return root
	}
	header := "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 14\n#define TORCH_VERSION_PATCH 1\n"
	for _, c := range []struct {
		name, sub, version string
		cuda               bool
		files              map[string]string
	}{
		{"site-packages", "", "2.13.0", true, map[string]string{"torch/lib/libtorch_cpu.so": "", "torch/lib/libtorch_cuda.so": "",
			"torch/include/ATen/ATen.h": "", "torch/version.py": "from typing import Optional\n__version__ = '2.13.0+cu130'\n"}},
		{"the torch directory", "torch", "2.11.0", false, map[string]string{"torch/lib/libtorch_cpu.so": "",
			"torch/include/ATen/ATen.h": "", "torch/version.py": "__version__ = '2.11.0'\n"}},
		{"an archive, by its header", "", "2.14.1", false, map[string]string{"lib/libtorch_cpu.so": "", "include/ATen/ATen.h": "", "include/torch/headeronly/version.h": header}},
		{"an archive, by build-version", "", "2.12.0", false, map[string]string{"lib/libtorch_cpu.so": "", "include/ATen/ATen.h": "", "build-version": "2.12.0+cpu\n"}},
	} {
		root := write(t.TempDir(), c.files)
		s, err := Inspect(filepath.Join(root, c.sub))
		if err != nil || s.Version != c.version || s.CUDA != c.cuda || s.Root != realPath(root) {
			t.Errorf("%s: %+v, %v; want version %s, CUDA %v, in %s", c.name, s, err, c.version, c.cuda, root)
		}
	}
	for name, files := range map[string]map[string]string{
		"neither torch/lib": {"x": ""},
		"not its headers":   {"lib/libtorch_cpu.so": "", "build-version": "2.12.0"},
		"the version of":    {"lib/libtorch_cpu.so": "", "include/ATen/ATen.h": ""},
	} {
		if s, err := Inspect(write(t.TempDir(), files)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v, %v: want an error with %q", s, err, name)
		}
	}
}

func TestExternalLibtorch(t *testing.T) {
	cfg := config(t)
	cfg.NoBuild = true
	made, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	cfg.NoBuild = false
	elsewhere := filepath.Join(t.TempDir(), "site-packages")
	if err := os.CopyFS(elsewhere, os.DirFS(made.Source.Root)); err != nil {
		t.Fatal(err)
	}

	t.Setenv(locate.EnvLibtorch, elsewhere)
	cfg.Cache, cfg.Wheels = t.TempDir(), nil
	t.Setenv(locate.EnvCache, cfg.Cache)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if result.Source.Root != realPath(elsewhere) || result.Source.Key == testVersion {
		t.Errorf("%+v", result.Source)
	}
	if path, err := locate.Find(cfg.Hash); err != nil || path != result.Shim {
		t.Errorf("locate.Find = %q, %v; setup made %q", path, err, result.Shim)
	}
	if again, err := Setup(t.Context(), cfg); err != nil || again.Changed {
		t.Errorf("the second setup: %+v, %v", again, err)
	}

	// LIBTORCH may name the cache, as `linstock env` prints it.
	t.Setenv(locate.EnvLibtorch, made.Source.Root)
	cache := filepath.Dir(filepath.Dir(made.Source.Root))
	if s, err := Resolve(t.Context(), cache, testVersion, false); err != nil || s.Key != testVersion {
		t.Errorf("LIBTORCH in the cache: %+v, %v", s, err)
	}

	// This version is not supported.
	if err := os.WriteFile(filepath.Join(elsewhere, "torch", "version.py"), []byte("__version__ = '2.10.1'\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLibtorch, elsewhere)
	if _, err := Setup(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "2.10.1") || !strings.Contains(err.Error(), "2.11 to 2.15") {
		t.Errorf("libtorch 2.10.1: %v", err)
	}
}

func TestUsePyTorch(t *testing.T) {
	config(t) // clears the environment
	site := t.TempDir()
	for name, text := range map[string]string{
		"torch/__init__.py": "raise SystemExit('it was imported')\n", "torch/version.py": "__version__ = '2.12.1+cpu'\n",
		"torch/lib/libtorch_cpu.so": "", "torch/include/ATen/ATen.h": "",
	} {
		path := filepath.Join(site, filepath.FromSlash(name))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PYTHONPATH", site)
	t.Setenv(locate.EnvUsePyTorch, "1")
	s, err := Resolve(t.Context(), t.TempDir(), testVersion, false)
	if err != nil || s.Version != "2.12.1" || s.Root != realPath(site) {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestBuildFailureShowsTheError(t *testing.T) {
	cfg := config(t)
	cfg.Sources = fstest.MapFS{
		"CMakeLists.txt": {Data: []byte("cmake_minimum_required(VERSION 3.18)\nproject(linstock C)\nadd_library(linstock SHARED shim.c)\n")},
		"shim.c":         {Data: []byte("this is not C\n")},
	}
	_, err := Setup(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "shim.c:1") {
		t.Fatalf("got %v, want the compiler's message", err)
	}
	log := filepath.Join(cfg.Cache, "shim-build.log")
	if !strings.Contains(err.Error(), log) || !isFile(log) {
		t.Errorf("no log in %s", log)
	}
	if _, err := locate.Find(cfg.Hash); err == nil || len(leftovers(t, cfg.Cache)) > 0 {
		t.Error("a failed build left something")
	}
}

// TestOpenMPRuntime tests that setup adds LLVM's OpenMP runtime to a libtorch that an earlier version of Linstock
// installed, and that a libtorch from elsewhere has it if it lies beside it.
func TestOpenMPRuntime(t *testing.T) {
	cfg := config(t)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	root := result.Source.Root
	elsewhere := filepath.Join(t.TempDir(), "site-packages")
	if err := os.CopyFS(elsewhere, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(root, filepath.FromSlash(openMPFile))
	var stamp torchStamp
	if err := intact.Read(root, &stamp); err != nil {
		t.Fatal(err)
	}
	delete(stamp.Sizes, openMPFile)
	delete(stamp.SHA256, openMPFile)
	if err := errors.Join(writeJSON(filepath.Join(root, intact.ManifestFile), stamp), os.Remove(lib)); err != nil {
		t.Fatal(err)
	}
	if result, err = Setup(t.Context(), cfg); err != nil || !result.Changed || !isFile(lib) || locate.OpenMP(result.Shim) == "" {
		t.Errorf("setup over a libtorch without it: %+v, %v", result, err)
	}

	beside := filepath.Join(elsewhere, filepath.FromSlash(openMPFile))
	if err := errors.Join(os.Remove(filepath.Join(elsewhere, intact.ManifestFile)), os.Rename(beside, beside+".away")); err != nil {
		t.Fatal(err)
	}
	t.Setenv(locate.EnvLibtorch, elsewhere)
	if result, err = Setup(t.Context(), cfg); err != nil || locate.OpenMP(result.Shim) != "" {
		t.Errorf("another libtorch without it: %+v, %v", result, err)
	}
	if err := os.Rename(beside+".away", beside); err != nil {
		t.Fatal(err)
	}
	if result, err = Setup(t.Context(), cfg); err != nil || locate.OpenMP(result.Shim) == "" {
		t.Errorf("another libtorch with it: %+v, %v", result, err)
	}
}

func TestMissingToolsAreNamed(t *testing.T) {
	cfg := config(t)
	bin := t.TempDir()
	for _, name := range []string{"apt-get"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin)
	cfg.Wheels = nil
	_, err := Setup(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "apt-get install -y g++ cmake ninja-build python3-pip") {
		t.Errorf("got %v, want the command that installs all that is missing", err)
	}
}

// TestOldToolsAreNamed tests that setup does not download with a pip, nor build with a CMake, that is too old for it.
func TestOldToolsAreNamed(t *testing.T) {
	cfg := config(t)
	cfg.Wheels = nil
	bin := t.TempDir()
	tool := func(name, version string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\necho '"+version+"'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tool("python3", "pip 9.0.3 from /usr/lib/python3.6/site-packages (python 3.6)")
	tool("cmake", "cmake version 3.10.2")
	tool("c++", "c++ (GCC) 8.5.0")
	tool("ninja", "1.8.2")
	t.Setenv("PATH", bin)
	t.Setenv("CXX", "")
	for _, c := range []struct{ venv, want string }{
		{"", "not found: CMake 3.18 or newer (this one is 3.10.2), pip 20.3 or newer (this one is 9.0.3); fix it with: " +
			"python3 -m pip install --user -U pip && python3 -m pip install --user -U cmake"},
		{"/venv", "python3 -m pip install -U pip && python3 -m pip install -U cmake"},
	} {
		t.Setenv("VIRTUAL_ENV", c.venv)
		if _, err := Setup(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	tool("pip3", "pip 20.3.4 from /opt/lib/python3.9/site-packages (python 3.9)")
	tool("cmake", "cmake version 3.18.0")
	if pip, cmake := FindPip(t.Context()), FindCMake(t.Context()); !slices.Equal(pip.Command, []string{"pip3"}) || !cmake.Found() {
		t.Errorf("newer tools: %+v, %+v", pip, cmake)
	}
	cmake, err := os.ReadFile(filepath.Join("..", "..", "cshim", "CMakeLists.txt"))
	if want := "cmake_minimum_required(VERSION " + FindCMake(t.Context()).Least + ")"; err != nil || !strings.Contains(string(cmake), want) {
		t.Errorf("the shim's CMakeLists.txt lacks %s (%v)", want, err)
	}
}

func TestBundle(t *testing.T) {
	cfg := config(t)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	source, err := SourceOf(cfg.Cache, result.Shim)
	if err != nil || source.Version != testVersion || source.Root != result.Source.Root {
		t.Fatalf("SourceOf: %+v, %v", source, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "program"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"liblinstock.so", "libomp.so", "licenses/linstock/README", "licenses/linstock/llvm-openmp/LICENSE.txt", "licenses/linstock/nvidia_cuda_runtime-13.2.86/License.txt",
		"licenses/linstock/torch-2.15.0/LICENSE", "licenses/linstock/torch-2.15.0/x/fmt/NOTES", "linstock.json",
		"nvidia/cu13/lib/libcudart.so.13", "nvidia/cu13/lib/libcupti.so.13", "program",
		"torch/lib/libc10.so", "torch/lib/libgomp.so.1", "torch/lib/libtorch_cpu.so",
	}
	for range 2 { // the second replaces the first
		if err := Bundle(t.Context(), result.Shim, source, dir, false, nil); err != nil {
			t.Fatal(err)
		}
		var got []string
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				rel, _ := filepath.Rel(dir, path)
				got = append(got, rel)
			}
			return err
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%v\n got %q\nwant %q", err, got, want)
		}
	}
	if err := Bundle(t.Context(), result.Shim, source, dir, true, nil); err == nil || !strings.Contains(err.Error(), "CPU only") {
		t.Errorf("--cuda of a libtorch without: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, dir := range []string{filepath.Join(t.TempDir(), "new"), t.TempDir()} {
		_, before := os.Stat(dir)
		err := Bundle(ended, result.Shim, source, dir, false, nil)
		if _, after := os.Stat(dir); !errors.Is(err, context.Canceled) || errors.Is(before, fs.ErrNotExist) != errors.Is(after, fs.ErrNotExist) {
			t.Errorf("%v; the directory: %v before a bundle that fails, %v after it", err, before, after)
		}
	}
}

// TestBundleWithCUDA tests that the bundle has the libraries that are opened by name, of every layout of libtorch.
func TestBundleWithCUDA(t *testing.T) {
	// libtorch makes a libtorch with CUDA whose lib and include are in dir.
	libtorch := func(dir string) {
		lib := filepath.Join(dir, "lib")
		if err := errors.Join(os.MkdirAll(lib, 0o755), os.MkdirAll(filepath.Join(dir, "include", "ATen"), 0o755),
			os.WriteFile(filepath.Join(dir, "include", "ATen", "ATen.h"), nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		compile(t, lib, "libc10.so")
		compile(t, lib, "libtorch_cpu.so", "libc10.so")
		compile(t, lib, "libtorch_cuda.so", "libtorch_cpu.so")
	}
	site, archive := t.TempDir(), t.TempDir()
	torch, cudnn := filepath.Join(site, "torch"), filepath.Join(site, "nvidia", "cudnn", "lib")
	libtorch(torch)
	libtorch(archive)
	if err := errors.Join(os.MkdirAll(cudnn, 0o755), os.WriteFile(filepath.Join(torch, "version.py"), []byte("__version__ = '2.15.0+cu132'\n"), 0o644),
		os.WriteFile(filepath.Join(archive, "build-version"), []byte("2.15.0+cu132\n"), 0o644),
		os.WriteFile(filepath.Join(archive, "lib", "libcudart_static.a"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	compile(t, cudnn, "libcudnn_ops.so.9")
	lib := filepath.Join(archive, "lib")
	compile(t, lib, "libnvrtc-builtins-6c5639ce.so.13.2")
	compile(t, lib, "libcudnn_ops.so.9")
	compile(t, lib, "libcuda.so.1") // the driver's
	compile(t, lib, "libnvidia-ml.so.1")
	compile(t, lib, "libcaffe2_nvrtc.so", "libcuda.so.1")
	compile(t, lib, "libcurl.so.4")
	if err := errors.Join(os.WriteFile(filepath.Join(lib, "libcurses.so"), []byte("INPUT(-lncurses)\n"), 0o644),
		os.Rename(filepath.Join(lib, "libcudnn_ops.so.9"), filepath.Join(lib, "libcudnn_ops.so.9.26.0")),
		os.Symlink("libcudnn_ops.so.9.26.0", filepath.Join(lib, "libcudnn_ops.so.9")),
		os.Symlink("libcudnn_ops.so.9", filepath.Join(lib, "libcudnn_ops.so"))); err != nil {
		t.Fatal(err)
	}
	own := []string{"torch/lib/libc10.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_cuda.so"}
	for _, c := range []struct {
		dir  string
		want []string
	}{
		{site, []string{"nvidia/cudnn/lib/libcudnn_ops.so.9"}},
		{torch, []string{"nvidia/cudnn/lib/libcudnn_ops.so.9"}},
		{archive, []string{"torch/lib/libcaffe2_nvrtc.so", "torch/lib/libcudnn_ops.so.9", "torch/lib/libnvrtc-builtins-6c5639ce.so.13.2"}},
	} {
		s, err := Inspect(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		libs, err := bundleLibs(s, true)
		var got []string
		for _, path := range libs {
			got = append(got, bundlePath(path))
		}
		slices.Sort(got)
		want := append(slices.Clone(own), c.want...)
		slices.Sort(want)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v\n got %q\nwant %q", c.dir, err, got, want)
		}
	}
}

func TestBundleKeepsOtherFiles(t *testing.T) {
	cfg := config(t)
	result, err := Setup(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	bundle := func(dir string) error { return Bundle(t.Context(), result.Shim, result.Source, dir, false, nil) }
	write := func(path string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("mine"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	mine := []string{"torch/model.go", "licenses/THIRD_PARTY", "nvidia/notes.txt"}
	for _, name := range mine {
		write(filepath.Join(dir, name))
	}
	left := filepath.Join(dir, bundlePrefix+"1")
	write(filepath.Join(left, "liblinstock.so")) // of a bundle that was killed
	for range 2 {
		if err := bundle(dir); err != nil {
			t.Fatal(err)
		}
		for _, name := range mine {
			if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != "mine" {
				t.Errorf("%s: %q, %v", name, data, err)
			}
		}
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed bundle left is there: %v", err)
	}

	for _, name := range []string{"torch/lib/libc10.so", "linstock.json", "liblinstock.so"} {
		dir := t.TempDir()
		write(filepath.Join(dir, name))
		if err := bundle(dir); err == nil || !strings.Contains(err.Error(), "is not part of a bundle") {
			t.Errorf("a %s of the program: %v", name, err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != "mine" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}

func TestTorchOfWheels(t *testing.T) {
	dir, _ := wheels(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{dir}, testVersion},
		{[]string{"/x/torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl", "/x/nvidia_cuda_runtime-13.0.96-py3-none-any.whl"}, "2.11.0"},
		{[]string{"/x/torch-2.12.0+cpu-cp312-cp312-linux_x86_64.whl"}, "2.12.0"},
		{[]string{"/x/torch-2.11.0-a.whl", dir}, ""},
		{nil, ""},
	} {
		if got := TorchOfWheels(c.args); got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
}

func TestSteps(t *testing.T) {
	var got []string
	w := &stepWriter{task: &recordTask{got: &got}}
	for _, part := range []string{"[1/4", "0] Building\nwarning\n[ 12%] Buil", "ding CXX\n"} {
		if _, err := w.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"of 40", "1", "of 100", "12"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

type recordTask struct {
	silent
	got *[]string
}

func (r *recordTask) SetTotal(n int64) { *r.got = append(*r.got, fmt.Sprint("of ", n)) }
func (r *recordTask) Set(n int64)      { *r.got = append(*r.got, fmt.Sprint(n)) }

package libtorch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// A Source is a libtorch that is unpacked on this machine.
type Source struct {
	// Root contains torch/lib and torch/include, as site-packages does, or lib and include, as the libtorch archives
	// do.
	Root    string `json:"root"`
	Lib     string `json:"lib"`     // the directory of libtorch_cpu
	Include string `json:"include"` // the directory of ATen/ and torch/
	Version string `json:"version"` // three numbers, without the part after a +
	CUDA    bool   `json:"cuda"`    // libtorch_cuda exists
	// Key is the name of the shim's directory; see locate.Key.
	Key string `json:"key"`
	// From describes how it was chosen, for messages.
	From string `json:"from"`
}

// ErrNotInstalled is the error for a pinned version that is not in the cache. If the chain contains an intact.Damage,
// the version is installed but a library is damaged.
var ErrNotInstalled = errors.New("not installed")

func libtorchCPU() string {
	name := strings.TrimSuffix(locate.LibName(), filepath.Ext(locate.LibName()))
	return strings.Replace(name, "linstock", "torch_cpu", 1) + filepath.Ext(locate.LibName())
}

func libtorchCUDA() string { return strings.Replace(libtorchCPU(), "torch_cpu", "torch_cuda", 1) }

// Inspect returns the libtorch in a directory: a site-packages directory with torch in it, its torch directory, or an
// unpacked libtorch archive.
func Inspect(dir string) (Source, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return Source{}, err
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	// NVIDIA's libraries, the OpenMP runtime and the licences lie beside the torch directory.
	if filepath.Base(abs) == "torch" && isFile(filepath.Join(abs, "version.py")) {
		abs = filepath.Dir(abs)
	}
	for _, sub := range []string{"torch", "."} {
		s := Source{Root: abs, Lib: filepath.Join(abs, sub, "lib"), Include: filepath.Join(abs, sub, "include")}
		if !isFile(filepath.Join(s.Lib, libtorchCPU())) {
			continue
		}
		if s.Version, err = versionOf(filepath.Join(abs, sub)); err != nil {
			return Source{}, err
		}
		s.CUDA = isFile(filepath.Join(s.Lib, libtorchCUDA()))
		if !isFile(filepath.Join(s.Include, "ATen", "ATen.h")) {
			return Source{}, fmt.Errorf("%s contains libtorch but not its headers (no ATen/ATen.h in %s)", abs, s.Include)
		}
		return s, nil
	}
	return Source{}, fmt.Errorf("no libtorch in %s: neither torch/lib/%s nor lib/%[2]s exists", abs, libtorchCPU())
}

var (
	versionPy = regexp.MustCompile(`(?m)^__version__ = '([0-9]+\.[0-9]+\.[0-9]+)`)
	versionH  = regexp.MustCompile(`(?m)^#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)`)
	version3  = regexp.MustCompile(`^([0-9]+\.[0-9]+\.[0-9]+)`)
)

// versionOf returns the version of the libtorch whose lib and include are in dir. It reads version.py (PyTorch), a
// header, or build-version (the archives).
func versionOf(dir string) (string, error) {
	if data, err := os.ReadFile(filepath.Join(dir, "version.py")); err == nil {
		if m := versionPy.FindSubmatch(data); m != nil {
			return string(m[1]), nil
		}
	}
	for _, h := range []string{"torch/headeronly/version.h", "torch/csrc/api/include/torch/version.h"} {
		data, err := os.ReadFile(filepath.Join(dir, "include", filepath.FromSlash(h)))
		if err != nil {
			continue
		}
		parts := map[string]string{}
		for _, m := range versionH.FindAllSubmatch(data, -1) {
			parts[string(m[1])] = string(m[2])
		}
		if len(parts) == 3 {
			return parts["MAJOR"] + "." + parts["MINOR"] + "." + parts["PATCH"], nil
		}
	}
	if data, err := os.ReadFile(filepath.Join(dir, "build-version")); err == nil {
		if m := version3.Find(data); m != nil {
			return string(m), nil
		}
	}
	return "", fmt.Errorf("cannot determine the version of libtorch in %s: no version.py, include/torch/headeronly/version.h or build-version", dir)
}

// Resolve returns the libtorch to use: $LIBTORCH; otherwise, with LIBTORCH_USE_PYTORCH=1, the PyTorch of python3;
// otherwise the pinned version in the cache. If the last is not installed, it returns ErrNotInstalled and the Source
// that setup would make.
func Resolve(ctx context.Context, cache, version string, cuda bool) (Source, error) {
	if dir := os.Getenv(locate.EnvLibtorch); dir != "" {
		// The output of `linstock env` sets LIBTORCH to the cache itself.
		if version := installedIn(cache, dir); version != "" {
			s, err := installed(cache, version, cuda)
			s.From = "$" + locate.EnvLibtorch
			return s, err
		}
		return elsewhere(dir, "$"+locate.EnvLibtorch)
	}
	if locate.UsesPyTorch() {
		dir, err := pythonTorch(ctx)
		if err != nil {
			return Source{}, err
		}
		return elsewhere(dir, "the PyTorch of python3")
	}
	if err := locate.CheckPinned(version); err != nil {
		return Source{}, err
	}
	return installed(cache, version, cuda)
}

// installedIn returns the version for which setup uses dir, or "" if it is not a directory of the cache.
func installedIn(cache, dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	for _, version := range locate.Versions {
		if realPath(abs) == realPath(locate.TorchDir(cache, version)) {
			return version
		}
	}
	return ""
}

// installed is Resolve for a pinned version.
func installed(cache, version string, cuda bool) (Source, error) {
	s := pinned(cache, version)
	stamp, err := readStamp(s.Root)
	var damage *intact.Damage
	if errors.As(err, &damage) {
		return s, fmt.Errorf("%w: %w", ErrNotInstalled, err)
	}
	if err != nil {
		return s, ErrNotInstalled
	}
	s.CUDA = stamp.CUDA
	if cuda && !stamp.CUDA {
		return s, ErrNotInstalled
	}
	return s, nil
}

// Changed compares the hashes of an installed libtorch's libraries with its manifest. It returns nil if they are equal
// or if there is no manifest.
func Changed(ctx context.Context, s Source) error {
	var stamp torchStamp
	if intact.Read(s.Root, &stamp) != nil || len(stamp.SHA256) == 0 {
		return nil
	}
	return stamp.CheckHashes(ctx, s.Root, nil)
}

// pinned returns the libtorch of this version in the cache, installed or not.
func pinned(cache, version string) Source {
	dir := locate.TorchDir(cache, version)
	return Source{
		Root: dir, Lib: filepath.Join(dir, "torch", "lib"), Include: filepath.Join(dir, "torch", "include"),
		Version: version, Key: version, From: "the pinned wheel",
	}
}

func elsewhere(dir, from string) (Source, error) {
	s, err := Inspect(dir)
	if err != nil {
		return s, fmt.Errorf("%s: %w", from, err)
	}
	if err := checkWindow(s.Version, s.Root); err != nil {
		return s, err
	}
	s.From, s.Key = from, locate.Key(s.Version, s.Root, false)
	return s, nil
}

// pythonTorch asks python3 where torch is installed. It does not import torch, which takes seconds and fails if a GPU
// library is missing.
func pythonTorch(ctx context.Context) (string, error) {
	const ask = `import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")`
	for _, python := range []string{"python3", "python"} {
		if _, err := exec.LookPath(python); err != nil {
			continue
		}
		out, err := Output(ctx, python, "-c", ask)
		if err != nil {
			return "", fmt.Errorf("%s=1: ask %s where torch is: %w", locate.EnvUsePyTorch, python, err)
		}
		dir := strings.TrimSpace(string(out))
		if dir == "" {
			return "", fmt.Errorf("%s=1, but %s has no PyTorch; install it with: %[2]s -m pip install torch", locate.EnvUsePyTorch, python)
		}
		return filepath.Dir(dir), nil
	}
	return "", fmt.Errorf("%s=1, but there is no python3", locate.EnvUsePyTorch)
}

// openMPFile is LLVM's OpenMP runtime in the layout of site-packages: the wheel cmeel-libomp.
const openMPFile = "cmeel.prefix/lib/" + locate.OpenMPLib

// openMP returns the path of LLVM's OpenMP runtime that is installed beside libtorch, or "".
func (s Source) openMP() string {
	if path := filepath.Join(s.Root, filepath.FromSlash(openMPFile)); isFile(path) {
		return path
	}
	return ""
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

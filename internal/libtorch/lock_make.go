package libtorch

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/locate"
)

//go:generate go run ../../cmd/linstock lock --out lock.json

// cpuPackages are the wheels that are installed even without a GPU.
var cpuPackages = []string{"torch", "nvidia-cuda-runtime", "nvidia-cuda-cupti", "cmeel-libomp"}

// openMPRequirement is LLVM's OpenMP runtime. No wheel of torch requires it.
const openMPRequirement = "cmeel-libomp==21.1.8"

// A pipReport holds the parts of the output of pip install --report that are used.
type pipReport struct {
	Install []struct {
		Metadata struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"metadata"`
		DownloadInfo struct {
			URL         string `json:"url"`
			ArchiveInfo struct {
				Hashes map[string]string `json:"hashes"`
			} `json:"archive_info"`
		} `json:"download_info"`
	} `json:"install"`
}

// MakeLock asks pip which wheels it would install with each version of torch, and for their hashes. pip's report has no
// sizes: they are taken from files in the directories have, or by downloading. Versions that are in old are kept as
// they are.
func MakeLock(ctx context.Context, old *Lock, versions, have []string, progress Progress) (*Lock, error) {
	dir, err := os.MkdirTemp("", "linstock-lock-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, err := newInstaller(Config{Progress: progress, Cache: dir, Platform: "linux/amd64"})
	if err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	lock := &Lock{Releases: map[string]map[string][]Wheel{}}
	for _, version := range versions {
		if err := locate.CheckPinned(version); err != nil {
			return nil, err
		}
		if wheels := old.Releases[version]; wheels != nil {
			lock.Releases[version] = wheels
			continue
		}
		wheels, err := in.resolve(ctx, version)
		if err != nil {
			return nil, fmt.Errorf("torch %s: %w", version, err)
		}
		for i, w := range wheels {
			if sizes[w.SHA256] == 0 {
				if sizes[w.SHA256], err = in.sizeOf(ctx, w, have); err != nil {
					return nil, fmt.Errorf("%s: %w", w.File, err)
				}
			}
			wheels[i].Size = sizes[w.SHA256]
		}
		lock.Releases[version] = map[string][]Wheel{in.platform: wheels}
	}
	return lock, nil
}

// resolve lists torch, the NVIDIA wheels that pip would install with it, and the OpenMP runtime.
func (in *installer) resolve(ctx context.Context, version string) (wheels []Wheel, err error) {
	task := in.Start("resolve torch "+version, 0, Steps)
	defer func() { task.End(err) }()
	report := filepath.Join(in.cfg.Cache, version+".json")
	args := append([]string{"install", "--dry-run", "--ignore-installed", "--quiet", "--report", report, "--target", filepath.Join(in.cfg.Cache, "none")}, pipTarget()...)
	// Some packages that are resolved too, and not used, have only these tags.
	args = append(args, "--abi", "abi3", "--abi", "none", "--platform", "any", "torch=="+version, openMPRequirement)
	if err := in.pip(ctx, os.TempDir(), args...); err != nil {
		return nil, err
	}
	var r pipReport
	if err := readJSON(report, &r); err != nil {
		return nil, err
	}
	for _, item := range r.Install {
		name := strings.ToLower(strings.ReplaceAll(item.Metadata.Name, "_", "-"))
		if !slices.Contains(cpuPackages, name) && !strings.HasPrefix(name, "nvidia-") {
			continue
		}
		file := item.DownloadInfo.URL[strings.LastIndexByte(item.DownloadInfo.URL, '/')+1:]
		w := Wheel{Package: name, Version: item.Metadata.Version, File: strings.ReplaceAll(file, "%2B", "+"),
			SHA256: item.DownloadInfo.ArchiveInfo.Hashes["sha256"], CUDA: !slices.Contains(cpuPackages, name)}
		if w.SHA256 == "" {
			return nil, fmt.Errorf("pip's report has no hash of %s: the index does not provide one", file)
		}
		wheels = append(wheels, w)
	}
	rank := func(w Wheel) int {
		if i := slices.Index(cpuPackages, w.Package); i >= 0 {
			return i
		}
		return len(cpuPackages)
	}
	slices.SortFunc(wheels, func(a, b Wheel) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a.Package, b.Package)
	})
	return wheels, nil
}

// sizeOf returns the length of a wheel after checking its hash.
func (in *installer) sizeOf(ctx context.Context, w Wheel, have []string) (int64, error) {
	for _, dir := range have {
		path := filepath.Join(dir, w.File)
		if info, err := os.Stat(path); err == nil {
			return info.Size(), in.verify(ctx, w, path)
		}
	}
	path := filepath.Join(in.cfg.Cache, w.File)
	if err := in.download(ctx, w, path); err != nil {
		return 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Size(), os.Remove(path)
}

// Write writes the lock file to path.
func (l *Lock) Write(path string) error { return writeJSON(path, l) }

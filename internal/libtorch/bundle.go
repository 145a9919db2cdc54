package libtorch

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// Bundle copies the shim and the libraries of libtorch that it needs into dir, so that a program in dir runs on
// a machine without either:
//
//	dir/linstock.json      the manifest: the sizes and hashes of the libraries
//	dir/liblinstock.so
//	dir/libomp.so          LLVM's OpenMP runtime
//	dir/torch/lib/*        libtorch
//	dir/nvidia/*/lib/*     NVIDIA's libraries that libtorch_cpu needs; with cuda, all of them
//	dir/licenses/linstock/ the licences of what is copied
//
// Bundle replaces an earlier bundle in dir and leaves other files alone. If one of these is in the way, it fails.
func Bundle(ctx context.Context, shim string, s Source, dir string, cuda bool, progress Progress) (err error) {
	if progress == nil {
		progress = silent{}
	}
	if cuda && !s.CUDA {
		return fmt.Errorf("--cuda: the libtorch in %s is for the CPU only; run: %s --cuda", s.Root, locate.SetupCommand)
	}
	if cuda && !isFile(cudaShim(shim)) {
		return fmt.Errorf("--cuda: %s does not exist: CUDA's headers were not found when the shim was built; set CUDA_HOME to a toolkit and run: %s --cuda",
			cudaShim(shim), locate.SetupCommand)
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	_, before := os.Lstat(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer func() {
		if err != nil && errors.Is(before, fs.ErrNotExist) {
			_ = os.Remove(dir) // unless something is in it
		}
	}()
	if err := removeUnfinished(dir); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(dir, bundlePrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)

	from, err := bundleFiles(shim, s, cuda)
	if err != nil {
		return err
	}
	_, openMP := from[locate.OpenMPLib]
	licences, err := licencesOf(s)
	if err != nil {
		return err
	}
	earlier, err := earlierBundle(dir, slices.Collect(maps.Keys(from)))
	if err != nil {
		return err
	}
	for to, path := range licences {
		from[filepath.Join(licenceDir, to)] = path
	}

	var total int64
	for _, path := range from {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		total += info.Size()
	}
	in := &installer{Progress: progress}
	if err := in.room(dir, total); err != nil {
		return err
	}
	var built shimStamp
	if err := intact.Read(filepath.Dir(shim), &built); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	stamp := shimStamp{Torch: s.Version, CUDA: cuda, Manifest: intact.Manifest{Root: ".", Sources: built.Sources, Files: intact.NewFiles()}}
	task := progress.Start("bundle into "+dir, total, Bytes)
	defer func() { task.End(err) }()
	if err := copyBundle(ctx, temp, from, installedHashes(shim, s), stamp.Manifest, task); err != nil {
		return in.full(err, dir, total)
	}
	if err := writeJSON(filepath.Join(temp, intact.ManifestFile), stamp); err != nil {
		return err
	}
	texts := map[string]string{"README": licenceNote(s, cuda, openMP)}
	if openMP {
		texts["llvm-openmp/LICENSE.txt"] = openMPLicence
	}
	for name, text := range texts {
		path := filepath.Join(temp, licenceDir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return moveBundle(temp, dir, stamp.Sizes, earlier)
}

// bundleFiles maps the path in the bundle of each library to that of its file.
func bundleFiles(shim string, s Source, cuda bool) (map[string]string, error) {
	libs, err := bundleLibs(s, cuda)
	if err != nil {
		return nil, err
	}
	shims, err := filesIn(filepath.Dir(shim), "liblinstock", "")
	if err != nil {
		return nil, err
	}
	from := map[string]string{locate.LibName(): shim}
	for _, path := range shims {
		if cuda || filepath.Base(path) == filepath.Base(shim) {
			from[filepath.Base(path)] = path
		}
	}
	if openMP := locate.OpenMP(shim); openMP != "" {
		from[locate.OpenMPLib] = openMP
	}
	for _, path := range libs {
		from[bundlePath(path)] = path
	}
	return from, nil
}

// copyBundle copies the files to temp, and notes the sizes and hashes of the libraries in m. known has hashes by path.
func copyBundle(ctx context.Context, temp string, from, known map[string]string, m intact.Manifest, task Task) error {
	var done int64
	for to, path := range from {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := copyFile(ctx, path, filepath.Join(temp, to))
		if err != nil {
			return err
		}
		done += n
		task.Set(done)
		if strings.HasPrefix(to, licenceDir) {
			continue
		}
		name := filepath.ToSlash(to)
		m.Sizes[name], m.SHA256[name] = n, known[realPath(path)]
		if m.SHA256[name] == "" { // a libtorch that setup did not install: hash it as it is now
			if m.SHA256[name], err = intact.Hash(ctx, path, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// moveBundle moves the libraries, the manifest and the licences from temp to dir, and removes the files of the earlier
// bundle there that are not in this one.
func moveBundle(temp, dir string, libs, earlier map[string]int64) error {
	for name := range earlier {
		if _, stays := libs[name]; !stays {
			if err := os.Remove(filepath.Join(dir, filepath.FromSlash(name))); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	// The manifest first: if the rest is interrupted, the next Bundle knows the files that are there.
	for _, name := range append([]string{intact.ManifestFile}, slices.Sorted(maps.Keys(libs))...) {
		to := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(temp, filepath.FromSlash(name)), to); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(licenceDir)), 0o755); err != nil {
		return err
	}
	return replaceDir(filepath.Join(temp, licenceDir), filepath.Join(dir, licenceDir))
}

const bundlePrefix = tempPrefix + "bundle-"

// licenceDir is where a bundle has its licences. A program may have its own next to it.
var licenceDir = filepath.Join("licenses", "linstock")

// removeUnfinished removes what bundles that were killed have left in dir, which would be shipped with the program.
func removeUnfinished(dir string) error {
	left, err := filesIn(dir, bundlePrefix, "")
	for _, path := range left {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// earlierBundle returns the files of the bundle in dir, by slash-separated paths. It fails if another file has the path of
// one that is to be written.
func earlierBundle(dir string, names []string) (files map[string]int64, err error) {
	var old shimStamp
	if err := intact.Read(dir, &old); err == nil && old.Root == "." {
		files = old.Sizes
	} else {
		names = append(names, intact.ManifestFile)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, ours := files[filepath.ToSlash(name)]; ours {
			continue
		}
		switch _, err := os.Lstat(filepath.Join(dir, name)); {
		case err == nil:
			return nil, fmt.Errorf("%s exists and is not part of a bundle: choose another directory", filepath.Join(dir, name))
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	for name := range files {
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, fmt.Errorf("%s is damaged: it lists %q", filepath.Join(dir, intact.ManifestFile), name)
		}
	}
	return files, nil
}

// bundleLibs returns the paths of the libraries that a program needs: libtorch_cpu with its dependencies, and with cuda
// all installed libraries of libtorch and CUDA.
func bundleLibs(s Source, cuda bool) ([]string, error) {
	queue := []string{}
	for _, name := range cpuRoots {
		queue = append(queue, filepath.Join(s.Lib, name))
	}
	if cuda {
		for _, name := range cudaRoots {
			if path := filepath.Join(s.Lib, name); isFile(path) {
				queue = append(queue, path)
			}
		}
		nvidia, err := filepath.Glob(filepath.Join(s.Root, "nvidia", "*", "lib", "*.so*"))
		if err != nil {
			return nil, err
		}
		queue = append(queue, nvidia...)
		// The archives have them in lib. They open one another by name, so that no other library needs some of them.
		beside, err := filesIn(s.Lib, "lib", "")
		if err != nil {
			return nil, err
		}
		for _, path := range beside {
			name := filepath.Base(path)
			if !cudaLib.MatchString(name) {
				continue
			}
			soname, err := intact.SONAME(path)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			if name == soname || !isFile(filepath.Join(s.Lib, soname)) { // otherwise it is another link to that
				queue = append(queue, path)
			}
		}
	}
	var libs []string
	for len(queue) > 0 {
		path := queue[0]
		queue = queue[1:]
		if slices.Contains(libs, path) {
			continue
		}
		libs = append(libs, path)
		needed, err := intact.Needed(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		queue = append(queue, slices.DeleteFunc(needed, ofDriver)...)
	}
	return libs, nil
}

// cudaLib matches the names of CUDA's and cuDNN's libraries. lib may have others: of the driver, libcurl.
var cudaLib = regexp.MustCompile(`^lib(cublas|cudart|cudnn|cudss|cufft|cufile|cupti|curand|cusolver|cusparse|nvJitLink|nvToolsExt|nvperf|nvrtc|nvshmem)[^.]*\.so(\.|$)`)

// ofDriver reports whether a library belongs to the driver, of which each machine has its own.
func ofDriver(path string) bool {
	name := filepath.Base(path)
	return strings.HasPrefix(name, "libcuda.so") || strings.HasPrefix(name, "libnvidia-")
}

// installedHashes returns the hashes in the manifests of the shim and of its libtorch, by path.
func installedHashes(shim string, s Source) map[string]string {
	hashes := map[string]string{}
	for _, dir := range []string{filepath.Dir(shim), s.Root} {
		var m intact.Manifest
		if intact.Read(dir, &m) != nil {
			continue
		}
		for name, hash := range m.SHA256 {
			hashes[realPath(filepath.Join(dir, filepath.FromSlash(name)))] = hash
		}
	}
	return hashes
}

// bundlePath returns a library's path in the bundle: nvidia/X/lib/FILE, where libtorch looks for it, or else
// the directory of libtorch.
func bundlePath(path string) string {
	parts := strings.Split(filepath.ToSlash(path), "/")
	if n := len(parts); n >= 4 && parts[n-4] == "nvidia" && parts[n-2] == "lib" {
		return filepath.Join(parts[n-4:]...)
	}
	return filepath.Join("torch", "lib", filepath.Base(path))
}

// licencesOf maps a name in the bundle to the licence file of what is copied.
func licencesOf(s Source) (map[string]string, error) {
	found := map[string]string{}
	for _, pattern := range []string{"torch-*.dist-info", "nvidia_*.dist-info"} {
		dirs, err := filepath.Glob(filepath.Join(s.Root, pattern))
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
				if err != nil || !d.Type().IsRegular() {
					return err
				}
				rel, err := filepath.Rel(s.Root, path)
				if err == nil && isLicence(filepath.ToSlash(rel)) {
					name := strings.TrimSuffix(filepath.Base(dir), ".dist-info")
					inside, _ := filepath.Rel(dir, path)
					found[filepath.Join(name, strings.TrimPrefix(inside, "licenses"+string(filepath.Separator)))] = path
				}
				return err
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// openMPLicence is the licence of LLVM's OpenMP runtime. The wheel does not contain it.
//
//go:embed llvm-openmp.txt
var openMPLicence string

func licenceNote(s Source, cuda, openMP bool) string {
	what := "libcudart and libcupti, which libtorch_cpu needs"
	if cuda {
		what = "NVIDIA's libraries that libtorch_cuda needs"
	}
	note := fmt.Sprintf(`This directory came with a program that uses libtorch %s through Linstock.
torch/lib holds libtorch under its own licences, and nvidia/ %s,
under NVIDIA's. Their texts lie beside this file, where the installed libtorch
had them; pass them on with the program.
`, s.Version, what)
	if openMP {
		note += "libomp.so is LLVM's OpenMP runtime, under the Apache License 2.0 with LLVM\nexceptions: llvm-openmp/LICENSE.txt.\n"
	}
	return note
}

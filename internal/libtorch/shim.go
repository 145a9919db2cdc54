package libtorch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/linstock-ml/linstock/internal/cgroup"
	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// shimStamp is the manifest of a built shim, and of a bundle.
type shimStamp struct {
	Torch    string `json:"torch"`
	CUDA     bool   `json:"cuda"`
	Compiler string `json:"compiler"`
	intact.Manifest
}

func (in *installer) shimPath(s Source) string {
	return ShimPath(in.cfg.Cache, in.cfg.Hash, s)
}

// ShimPath returns the path of the shim for this libtorch.
func ShimPath(cache, hash string, s Source) string {
	return filepath.Join(locate.ShimDir(cache, hash, s.Key), locate.LibName())
}

// shimBuilt reports whether the shim for this libtorch exists, is unchanged, and was built for the libtorch as it is
// now (with or without CUDA).
func (in *installer) shimBuilt(s Source) bool {
	return ShimBuilt(in.cfg.Cache, in.cfg.Hash, s) && (!in.cfg.CUDA || isFile(cudaShim(in.shimPath(s))))
}

// cudaShim returns the path of the shim's second library, beside the first, which a GPU needs.
func cudaShim(shim string) string {
	ext := filepath.Ext(shim)
	return strings.TrimSuffix(shim, ext) + "_cuda" + ext
}

// ShimBuilt reports whether the cache holds the shim of these sources for this libtorch, unchanged since it was built.
func ShimBuilt(cache, hash string, s Source) bool {
	dir := locate.ShimDir(cache, hash, s.Key)
	var stamp shimStamp
	if err := intact.Read(dir, &stamp); err != nil {
		return false
	}
	if stamp.Torch != s.Version || stamp.Root != s.Root || stamp.CUDA != s.CUDA || stamp.Sizes[locate.LibName()] == 0 {
		return false
	}
	if (stamp.Sizes[locate.OpenMPLib] != 0) != (s.openMP() != "") {
		return false
	}
	return stamp.CheckSizes(dir) == nil && stamp.CheckHashes(context.Background(), dir, nil) == nil
}

func (in *installer) makeDefault(s Source) error {
	return writeFile(filepath.Join(locate.HashDir(in.cfg.Cache, in.cfg.Hash), locate.DefaultFile), []byte(s.Key+"\n"))
}

// build compiles the shim in a temporary directory of the cache and moves the result into place.
func (in *installer) build(ctx context.Context, s Source) error {
	if err := in.room(in.cfg.Cache, buildSpace); err != nil {
		return err
	}
	target := locate.ShimDir(in.cfg.Cache, in.cfg.Hash, s.Key)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(target), tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	out := filepath.Join(temp, "out")
	stamp, err := in.buildIn(ctx, temp, out, s)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return in.full(err, temp, buildSpace)
	}
	if stamp.Sizes[locate.LibName()] == 0 {
		return fmt.Errorf("the build succeeded but left no %s", locate.LibName())
	}
	if s.CUDA && stamp.Sizes[cudaShim(locate.LibName())] == 0 {
		in.Note("this libtorch has CUDA, but CUDA's headers were not found (cuda_runtime_api.h, in pip's nvidia-cuda-runtime or a toolkit in CUDA_HOME): programs will compute on the CPU")
	}
	if err := writeJSON(filepath.Join(out, intact.ManifestFile), stamp); err != nil {
		return err
	}
	return replaceDir(out, target)
}

// buildIn compiles in the directory temp and copies the libraries to out.
func (in *installer) buildIn(ctx context.Context, temp, out string, s Source) (shimStamp, error) {
	stamp := shimStamp{Torch: s.Version, CUDA: s.CUDA, Manifest: intact.Manifest{Root: s.Root, Sources: in.cfg.Hash, Files: intact.NewFiles()}}
	src, bld, tmp := filepath.Join(temp, "src"), filepath.Join(temp, "build"), filepath.Join(temp, "tmp")
	if err := os.CopyFS(src, in.cfg.Sources); err != nil {
		return stamp, fmt.Errorf("write the shim's sources: %w", err)
	}
	if err := errors.Join(os.Mkdir(out, 0o755), os.Mkdir(tmp, 0o755)); err != nil {
		return stamp, err
	}
	if err := in.compile(ctx, src, bld, tmp, s); err != nil {
		return stamp, in.keepLog(err)
	}
	stamp.Compiler = FindCompiler(ctx).Version
	if err := collectLibs(ctx, bld, out, stamp.Files); err != nil {
		return stamp, err
	}
	if openMP := s.openMP(); openMP != "" {
		return stamp, collect(ctx, openMP, out, stamp.Files)
	}
	return stamp, nil
}

// compile runs CMake and then ninja, or make if there is no ninja. The compiler's temporary files go to tmp, so that
// all files of a build are in the cache.
func (in *installer) compile(ctx context.Context, src, bld, tmp string, s Source) error {
	generator := FindNinja(ctx)
	cmake := FindCMake(ctx)
	if err := require(ctx, FindCompiler(ctx), cmake, generator); err != nil {
		return err
	}
	name := "Ninja"
	if strings.Contains(generator.Command[0], "make") {
		name = "Unix Makefiles"
	}
	env := append(os.Environ(), "TMPDIR="+tmp)
	// If CUDA was requested, its library must be built; otherwise it is built if possible.
	cuda := "OFF"
	switch {
	case in.cfg.CUDA:
		cuda = "ON"
	case s.CUDA:
		cuda = "AUTO"
	}
	task := in.Start("configure the shim for libtorch "+s.Version, 0, Steps)
	err := run(ctx, nil, env, "", cmake.Command[0], "-G", name, "-S", src, "-B", bld,
		"-DCMAKE_BUILD_TYPE=Release", "-DLINSTOCK_WERROR=OFF", "-DLINSTOCK_TORCH_ROOT="+s.Root, "-DLINSTOCK_CUDA="+cuda,
		// The name of the temporary directory must not appear in the library.
		"-DLINSTOCK_SOURCE_PREFIX=linstock/cshim")
	task.End(err)
	if err != nil {
		return fmt.Errorf("configure the shim: %w", err)
	}
	task = in.Start("build the shim", 0, Steps)
	err = run(ctx, &stepWriter{task: task}, env, bld, cmake.Command[0], "--build", bld, "--parallel", strconv.Itoa(in.jobs()))
	task.End(err)
	if err != nil {
		return fmt.Errorf("build the shim: %w", err)
	}
	return nil
}

// keepLog saves the complete output of a failed command where the user can read it.
func (in *installer) keepLog(err error) error {
	var failed *RunError
	if !errors.As(err, &failed) {
		return err
	}
	log := filepath.Join(in.cfg.Cache, "shim-build.log")
	if werr := writeFile(log, []byte(failed.Command+"\n"+failed.Output)); werr != nil {
		return err
	}
	return fmt.Errorf("%w\nthe complete output is in %s", err, log)
}

// collectLibs copies only the shim's libraries from the build directory.
func collectLibs(ctx context.Context, from, to string, files intact.Files) error {
	stem := strings.TrimSuffix(locate.LibName(), filepath.Ext(locate.LibName()))
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if !strings.HasPrefix(d.Name(), stem) || filepath.Ext(d.Name()) != filepath.Ext(locate.LibName()) {
			return nil
		}
		return collect(ctx, path, to, files)
	})
}

// collect copies one library.
func collect(ctx context.Context, path, to string, files intact.Files) (err error) {
	name := filepath.Base(path)
	if files.Sizes[name], err = copyFile(ctx, path, filepath.Join(to, name)); err != nil {
		return err
	}
	files.SHA256[name], err = intact.Hash(ctx, path, nil)
	return err
}

// bytesPerJob is about the memory that compiling libtorch's headers takes.
const bytesPerJob = 1500 << 20

// jobs returns the number of parallel compilers.
func (in *installer) jobs() int {
	if in.cfg.Jobs > 0 {
		return in.cfg.Jobs
	}
	n := runtime.GOMAXPROCS(0) // at most a container's quota
	free := availableMemory()
	if limit := cgroup.Limit("/proc/self"); limit > 0 && (free == 0 || limit < free) {
		free = limit
	}
	if free > 0 {
		n = min(n, int(free/bytesPerJob))
	}
	return max(n, 1)
}

// availableMemory returns Linux's estimate in bytes, or 0 on other systems.
func availableMemory() int64 {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				return 0
			}
			return kb << 10
		}
	}
	return 0
}

// stepWriter reads the progress from ninja's [3/40] and make's [ 12%].
type stepWriter struct {
	task Task
	rest []byte
}

var (
	ninjaStep = regexp.MustCompile(`^\[(\d+)/(\d+)\]`)
	makeStep  = regexp.MustCompile(`^\[ *(\d+)%\]`)
)

func (w *stepWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		end := bytes.IndexByte(w.rest, '\n')
		if end < 0 {
			return len(p), nil
		}
		line := string(w.rest[:end])
		w.rest = w.rest[end+1:]
		done, total := "", "100"
		if m := ninjaStep.FindStringSubmatch(line); m != nil {
			done, total = m[1], m[2]
		} else if m := makeStep.FindStringSubmatch(line); m != nil {
			done = m[1]
		} else {
			continue
		}
		n, err1 := strconv.ParseInt(done, 10, 64)
		of, err2 := strconv.ParseInt(total, 10, 64)
		if errors.Join(err1, err2) == nil {
			w.task.SetTotal(of)
			w.task.Set(n)
		}
	}
}

// copyFile copies a file's content, following links, and returns its length.
func copyFile(ctx context.Context, from, to string) (n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return 0, err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm()|0o200)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for {
		if ctx.Err() != nil {
			return n, context.Cause(ctx)
		}
		// ReadFrom lets the kernel share or copy the blocks.
		part, err := out.ReadFrom(io.LimitReader(in, 64<<20))
		if n += part; err != nil {
			return n, err
		}
		if part == 0 {
			return n, out.Sync()
		}
	}
}

// ShimVersionOf reads from the manifest beside a shim for which libtorch it was built.
func ShimVersionOf(shim string) (version, root string, ok bool) {
	var stamp shimStamp
	if err := intact.Read(filepath.Dir(shim), &stamp); err != nil {
		return "", "", false
	}
	if !filepath.IsAbs(stamp.Root) {
		stamp.Root = filepath.Join(filepath.Dir(shim), stamp.Root)
	}
	return stamp.Torch, stamp.Root, true
}

// SourceOf returns the libtorch for which a shim was built.
func SourceOf(cache, shim string) (Source, error) {
	version, root, ok := ShimVersionOf(shim)
	if !ok {
		return Source{}, fmt.Errorf("%s was not made by setup (no %s beside it): cannot determine its libtorch", shim, intact.ManifestFile)
	}
	s, err := Inspect(root)
	if err != nil {
		return s, err
	}
	s.Key = locate.Key(version, root, root == locate.TorchDir(cache, version))
	return s, nil
}

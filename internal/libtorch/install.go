package libtorch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gofrs/flock"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// A Config holds the settings of Setup.
type Config struct {
	Cache    string   // locate.CacheDir
	Torch    string   // version to install if neither LIBTORCH nor a PyTorch is chosen
	CUDA     bool     // include the libraries that a GPU needs
	Wheels   []string // files and directories with the wheels; empty means pip
	Unpinned bool     // accept wheels whose hash is not in the lock file
	Verify   bool     // hash the installed libraries, and install again those that changed
	Force    bool     // set up again what is installed
	NoBuild  bool     // install libtorch only, without the shim
	Jobs     int      // number of parallel compilers; 0 means as many as cores and memory allow

	Sources fs.FS // the shim's sources
	Hash    string

	Progress Progress // nil prints nothing
	Lock     *Lock    // nil means EmbeddedLock
	Platform string   // "" means Platform()

	// Free returns the free space on a directory's file system; nil asks the system.
	Free func(dir string) (bytes int64, known bool)
}

// A Result describes the installation after Setup.
type Result struct {
	Source Source
	Shim   string // path of the shim; "" with NoBuild
	CUDA   bool   // the libraries that a GPU needs are installed, the shim's too unless there is none
	// Changed is false if everything was installed already.
	Changed bool
	// Verified is the number of bytes of libtorch's libraries that Config.Verify compared or that Setup wrote. It is 0
	// for a libtorch that setup did not install.
	Verified int64
}

// tempPrefix begins the names of incomplete files and directories, which the next setup removes.
const tempPrefix = ".tmp-"

type installer struct {
	Progress
	cfg      Config
	lock     *Lock
	platform string
	pipTool  Tool
	verified int64 // number of bytes that Config.Verify has compared
	damage   error // the damage it found
	waited   bool  // for another setup, which may have changed everything
}

func newInstaller(cfg Config) (*installer, error) {
	in := &installer{Progress: cfg.Progress, cfg: cfg, lock: cfg.Lock, platform: cfg.Platform}
	if in.Progress == nil {
		in.Progress = silent{}
	}
	if in.platform == "" {
		in.platform = Platform()
	}
	if in.lock == nil {
		lock, err := EmbeddedLock()
		if err != nil {
			return nil, err
		}
		in.lock = lock
	}
	return in, nil
}

func (in *installer) wheelDir() string { return filepath.Join(in.cfg.Cache, "wheels") }

// Setup finds or installs libtorch and builds the shim for it. If everything is installed, it changes nothing. It
// installs damaged parts again: it always detects a missing library, one of another size, and any change of the shim,
// and with Verify any change of libtorch. Without CUDA, too, it installs again the libraries that a GPU needs if they
// were installed. One process at a time works in a cache; others wait. Incomplete files of an interrupted call are
// never used, and the next call removes them.
func Setup(ctx context.Context, cfg Config) (Result, error) {
	if cfg.Jobs < 0 {
		return Result{}, fmt.Errorf("--jobs %d: want 0 or more", cfg.Jobs)
	}
	for _, arg := range cfg.Wheels { // also if none is needed
		if _, err := os.Stat(arg); err != nil {
			return Result{}, fmt.Errorf("--wheel: %w", err)
		}
	}
	in, err := newInstaller(cfg)
	if err != nil {
		return Result{}, err
	}
	source, err := in.inspect(ctx)
	if err != nil && !errors.Is(err, ErrNotInstalled) {
		return Result{}, err
	}
	if err == nil && source.Version != cfg.Torch {
		in.Note("using libtorch %s of %s, not %s", source.Version, source.From, cfg.Torch)
	}
	if err == nil && !cfg.Force && in.complete(source) {
		return in.result(source, false), nil
	}
	if err := in.checkTools(ctx, err); err != nil {
		return Result{}, err
	}
	if err := in.checkPaths(source); err != nil {
		return Result{}, err
	}

	unlock, err := in.acquire(ctx)
	if err != nil {
		return Result{}, err
	}
	defer unlock()
	if err := in.clean(); err != nil {
		return Result{}, err
	}
	// Another setup may have done the work while this one waited.
	source, err = in.inspect(ctx)
	pinned := source.Key == source.Version
	if pinned {
		in.cfg.Torch = source.Version // LIBTORCH may name another one of the cache
	}
	switch {
	case errors.Is(err, ErrNotInstalled), err == nil && cfg.Force && pinned:
		var damage *intact.Damage
		if errors.As(err, &damage) {
			in.Note("%v: installing libtorch %s again", damage, source.Version)
		}
		if !in.cfg.CUDA && hadCUDA(source) {
			in.Note("libtorch %s was installed with --cuda, and is again", source.Version)
			in.cfg.CUDA = true
		}
		if source, err = in.install(ctx); err != nil {
			return Result{}, err
		}
	case err != nil:
		return Result{}, err
	default:
		in.Note("libtorch %s: %s, in %s", source.Version, source.From, source.Root)
	}
	if cfg.CUDA && !source.CUDA {
		return Result{}, fmt.Errorf("--cuda: the libtorch in %s is for the CPU only", source.Root)
	}
	if cfg.NoBuild {
		return in.result(source, true), nil
	}
	if cfg.Force || !in.shimBuilt(source) {
		if err := intact.Shim(in.shimPath(source)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			in.Note("%v: building the shim again", err)
		}
		if err := in.build(ctx, source); err != nil {
			return Result{}, err
		}
	}
	if err := in.makeDefault(source); err != nil {
		return Result{}, err
	}
	return in.result(source, true), nil
}

// hadCUDA reports whether what is installed of a libtorch, intact or not, has the libraries that a GPU needs.
func hadCUDA(s Source) bool {
	var stamp torchStamp
	if err := intact.Read(s.Root, &stamp); err == nil {
		return stamp.CUDA
	}
	return isFile(filepath.Join(s.Lib, libtorchCUDA()))
}

// inspect is Resolve, and also checks the files of what it finds.
func (in *installer) inspect(ctx context.Context) (Source, error) {
	s, err := Resolve(ctx, in.cfg.Cache, in.cfg.Torch, in.cfg.CUDA)
	if err != nil {
		return s, err
	}
	pinned := s.Key == s.Version
	damaged := func(err error) error {
		if pinned {
			return fmt.Errorf("%w: %w", ErrNotInstalled, err)
		}
		return fmt.Errorf("%w: install %s again; setup does not change it", err, s.From)
	}
	var stamp torchStamp
	if err := intact.Read(s.Root, &stamp); err != nil {
		// Setup did not install this libtorch, so only the files' own headers can be checked.
		for _, name := range cpuRoots {
			lib := filepath.Join(s.Lib, name)
			for _, path := range append(intact.Closure(lib), lib) {
				if err := intact.Library(path); err != nil {
					return s, damaged(err)
				}
			}
		}
		return s, nil
	}
	if !pinned { // one of another cache; Resolve has compared the sizes of this one's
		if err := stamp.CheckSizes(s.Root); err != nil {
			return s, damaged(err)
		}
	} else if stamp.Sizes[openMPFile] == 0 && in.pinsOpenMP(s.Version) {
		// An earlier version of Linstock installed it.
		return s, damaged(&intact.Damage{Path: filepath.Join(s.Root, filepath.FromSlash(openMPFile)), What: "is missing"})
	}
	if !in.cfg.Verify || in.verified > 0 {
		return s, nil
	}
	if in.damage != nil && !in.waited {
		return s, in.damage
	}
	task := in.Start("verify libtorch "+s.Version, stamp.Total(), Bytes)
	var done int64
	err = stamp.CheckHashes(ctx, s.Root, func(n int) { done += int64(n); task.Set(done) })
	task.End(err)
	if ctx.Err() != nil {
		return s, context.Cause(ctx)
	}
	if err != nil {
		in.damage = damaged(err)
		return s, in.damage
	}
	in.verified = done
	return s, nil
}

// pinsOpenMP reports whether this version of libtorch is installed with LLVM's OpenMP runtime.
func (in *installer) pinsOpenMP(version string) bool {
	return slices.ContainsFunc(in.lock.Releases[version][in.platform], func(w Wheel) bool { return strings.HasPrefix(openMPRequirement, w.Package+"==") })
}

func (in *installer) result(s Source, changed bool) Result {
	r := Result{Source: s, CUDA: s.CUDA, Changed: changed, Verified: in.verified}
	if !in.cfg.NoBuild {
		r.Shim = in.shimPath(s)
		r.CUDA = s.CUDA && isFile(cudaShim(r.Shim))
	}
	return r
}

// complete reports whether this libtorch needs no more work.
func (in *installer) complete(s Source) bool {
	if in.cfg.NoBuild {
		return true
	}
	return in.shimBuilt(s) && locate.DefaultKey(in.cfg.Cache, in.cfg.Hash) == s.Key
}

// checkTools returns an error for a missing tool before a long download rather than after it.
func (in *installer) checkTools(ctx context.Context, resolved error) error {
	var tools []Tool
	if !in.cfg.NoBuild {
		tools = append(tools, FindCompiler(ctx), FindCMake(ctx), FindNinja(ctx))
	}
	if errors.Is(resolved, ErrNotInstalled) && len(in.cfg.Wheels) == 0 {
		in.pipTool = FindPip(ctx)
		tools = append(tools, in.pipTool)
	}
	return require(ctx, tools...)
}

// checkPaths returns an error, before a long download, for a path in which the shim could not be compiled: CMake's
// lists, patterns and generated files, or the linker's -rpath, give these characters a meaning that cannot be escaped.
func (in *installer) checkPaths(s Source) error {
	if in.cfg.NoBuild {
		return nil
	}
	for _, p := range [][2]string{{in.cfg.Cache, locate.EnvCache}, {s.Root, locate.EnvLibtorch}} {
		path, other := p[0], p[1]
		at := strings.IndexFunc(path, func(r rune) bool { return strings.ContainsRune(`";\|:,[]*?`, r) || unicode.IsControl(r) && r != '\t' })
		if !utf8.ValidString(path) { // the manifest is JSON
			return fmt.Errorf("the path %q is not UTF-8: choose another directory with %s", path, other)
		}
		if at < 0 {
			at = strings.Index(path, "$(")
		}
		if at >= 0 {
			return fmt.Errorf("the path %q has a character that CMake or the linker cannot handle (%q): choose another directory with %s", path, path[at], other)
		}
	}
	return nil
}

// acquire takes the lock of the cache, and prints a note if it has to wait.
func (in *installer) acquire(ctx context.Context) (func(), error) {
	if err := os.MkdirAll(in.cfg.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("%w: set %s to a writable directory", err, locate.EnvCache)
	}
	// Others may use the cache, too, as far as the user's mask allows it. NFS locks only a file that is open for writing.
	lock := in.lockFile(os.O_RDWR)
	free, err := lock.TryLock()
	if errors.Is(err, fs.ErrPermission) { // another user's file
		lock = in.lockFile(os.O_RDONLY)
		free, err = lock.TryLock()
	}
	if err == nil && !free {
		in.Note("another setup is running in %s; waiting for it", in.cfg.Cache)
		in.waited = true
		_, err = lock.TryLockContext(ctx, 200*time.Millisecond)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("lock %s: %w: set %s to a writable directory on a file system that has locks", lock.Path(), err, locate.EnvCache)
	}
	return func() { _ = lock.Unlock() }, nil
}

func (in *installer) lockFile(access int) *flock.Flock {
	return flock.New(filepath.Join(in.cfg.Cache, "setup.lock"), flock.SetPermissions(0o666), flock.SetFlag(os.O_CREATE|access))
}

// clean removes what an interrupted setup left. The lock is held, so none of it is in use, except for the old libraries
// of running programs, which NFS does not remove.
func (in *installer) clean() error {
	if err := os.MkdirAll(in.wheelDir(), 0o755); err != nil {
		return err
	}
	for _, pattern := range []string{"wheels", "libtorch", filepath.Join("shim", "*")} {
		left, err := filepath.Glob(filepath.Join(in.cfg.Cache, pattern, tempPrefix+"*"))
		if err != nil {
			return err
		}
		for _, path := range left {
			if err := os.RemoveAll(path); err != nil { // nothing uses these names again
				in.Note("remove files of an earlier setup: %v", err)
			}
		}
	}
	return nil
}

// install downloads and unpacks the pinned libtorch.
func (in *installer) install(ctx context.Context) (Source, error) {
	version := in.cfg.Torch
	wheels, err := in.lock.Wheels(version, in.platform, in.cfg.CUDA)
	if err != nil {
		return Source{}, err
	}
	if err := in.room(in.cfg.Cache, in.gatherSpace(wheels)); err != nil {
		return Source{}, err
	}
	paths, err := in.gather(ctx, wheels)
	if err != nil {
		return Source{}, err
	}
	target := locate.TorchDir(in.cfg.Cache, version)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return Source{}, err
	}
	// Use a directory beside the target, so that the rename below stays on one file system.
	temp, err := os.MkdirTemp(filepath.Dir(target), tempPrefix)
	if err != nil {
		return Source{}, err
	}
	defer os.RemoveAll(temp)

	task := in.Start("unpack libtorch "+version, 0, Bytes)
	files, err := unpack(ctx, temp, paths, in.cfg.CUDA, task)
	task.End(err)
	if err != nil {
		return Source{}, in.full(err, in.cfg.Cache, in.gatherSpace(wheels))
	}
	in.verified = files.Total()
	stamp := torchStamp{Version: version, Platform: in.platform, CUDA: in.cfg.CUDA, Verified: !in.cfg.Unpinned, Files: files}
	for _, w := range wheels {
		stamp.Wheels = append(stamp.Wheels, w.File)
	}
	if err := writeJSON(filepath.Join(temp, intact.ManifestFile), stamp); err != nil {
		return Source{}, err
	}
	if err := os.Chmod(temp, 0o755); err != nil { // MkdirTemp uses 0700
		return Source{}, err
	}
	if err := replaceDir(temp, target); err != nil {
		return Source{}, err
	}
	// Remove downloaded wheels; keep those that the user gave.
	for _, w := range wheels {
		if err := os.Remove(filepath.Join(in.wheelDir(), w.File)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			in.Note("%v", err)
		}
	}
	return Resolve(ctx, in.cfg.Cache, version, in.cfg.CUDA)
}

// replaceDir renames temp to target. It first renames an existing target away, so that programs that have its files
// open keep them. On NFS these cannot be removed until the programs end; a later replaceDir removes them.
func replaceDir(temp, target string) error {
	dir, prefix := filepath.Dir(target), tempPrefix+"old-"+filepath.Base(target)+"-"
	defer func() {
		olds, _ := filesIn(dir, prefix, "")
		for _, path := range olds {
			_ = os.RemoveAll(path)
		}
	}()
	if _, err := os.Lstat(target); err == nil {
		old, err := os.MkdirTemp(dir, prefix) // a name that is not in use
		if err != nil {
			return err
		}
		if err := os.Remove(old); err != nil {
			return err
		}
		err = os.Rename(target, old)
		if errors.Is(err, syscall.EXDEV) { // overlayfs does not rename a directory of a lower layer: of a container's image
			err = os.RemoveAll(target)
		}
		if err != nil {
			return err
		}
	}
	return os.Rename(temp, target)
}

// torchStamp is the manifest of an unpacked libtorch.
type torchStamp struct {
	Version  string   `json:"version"`
	Platform string   `json:"platform"`
	CUDA     bool     `json:"cuda"`
	Verified bool     `json:"verified"`
	Wheels   []string `json:"wheels"`
	intact.Files
}

// readStamp accepts a directory only if each library has its full length.
func readStamp(dir string) (torchStamp, error) {
	var stamp torchStamp
	if err := intact.Read(dir, &stamp); err != nil {
		return stamp, err
	}
	if len(stamp.Sizes) == 0 {
		return stamp, ErrNotInstalled
	}
	return stamp, stamp.CheckSizes(dir)
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// writeJSON writes a file atomically.
func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(data, '\n'))
}

func writeFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// TorchOfWheels returns the version in the name of the torch wheel among the arguments of --wheel. It returns "" if
// there is none, or if there are several versions.
func TorchOfWheels(args []string) string {
	found := ""
	for _, arg := range args {
		names := []string{arg}
		if info, err := os.Stat(arg); err == nil && info.IsDir() {
			names, _ = filesIn(arg, "torch-", ".whl")
		}
		for _, name := range names {
			rest, ok := strings.CutPrefix(filepath.Base(name), "torch-")
			version := version3.FindString(rest)
			if !ok || version == "" {
				continue
			}
			if found != "" && found != version {
				return ""
			}
			found = version
		}
	}
	return found
}

// Package locate tells where Linstock keeps libtorch and its compiled shim, in
// which order a program looks for the shim, and which command fixes what is
// missing or damaged. The command that installs them (cmd/linstock) and the
// package that opens them (cshim) share it, so that the two agree. It finds; it
// neither downloads, builds nor opens.
//
// The cache holds, below CacheDir (beside libraries lies their manifest, see
// package intact):
//
//	libtorch/VERSION/                        site-packages layout, linstock.json
//	shim/SOURCEHASH/KEY/liblinstock.so       KEY is VERSION, or VERSION-PATHHASH
//	                                         for a libtorch from elsewhere
//	shim/SOURCEHASH/KEY/libomp.so            LLVM's OpenMP runtime
//	shim/SOURCEHASH/default                  the KEY of the last setup
package locate

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/linstock-ml/linstock/internal/intact"
)

// SetupCommand is the command that fixes a missing, stale or damaged installation. With the module's version, the go
// command runs it also outside of a module that requires Linstock.
var SetupCommand = setupCommand(debug.ReadBuildInfo())

const modulePath = "github.com/linstock-ml/linstock"

func setupCommand(info *debug.BuildInfo, ok bool) string {
	version := ""
	if ok {
		for _, m := range append(info.Deps, &info.Main) {
			// A working tree has no hash, nor has a directory that replaces the module.
			if m.Path == modulePath && m.Replace == nil && m.Sum != "" {
				version = "@" + m.Version
			}
		}
	}
	return "go run " + modulePath + "/cmd/linstock" + version + " setup"
}

// DefaultFile, in the directory of a source hash, holds the key of the shim
// that the last setup made.
const DefaultFile = "default"

//go:embed versions.txt
var versionsText string

// Versions are the releases of libtorch that setup can install, oldest first: the lines of versions.txt, which
// the Makefile and the tests' scripts read too. A libtorch from elsewhere may be any release from the first
// minor version to the last. docs/new-libtorch.md describes how to add one.
var Versions = strings.Fields(versionsText)

// DefaultTorch is the libtorch version that setup installs by default: the last.
var DefaultTorch = Versions[len(Versions)-1]

// CheckPinned returns an error, which lists the versions, for a version that setup cannot install.
func CheckPinned(version string) error {
	if slices.Contains(Versions, version) {
		return nil
	}
	from := ""
	if version == os.Getenv(EnvTorch) && version != "" {
		from = " (" + EnvTorch + ")"
	}
	return fmt.Errorf("libtorch %q%s is not a version that Linstock installs: choose one of %s", version, from, strings.Join(Versions, ", "))
}

// Environment variables that change where files are looked for.
const (
	EnvLib        = "LINSTOCK_LIB"         // the shim or its directory; no other place is searched
	EnvCache      = "LINSTOCK_CACHE"       // replaces the user's cache directory
	EnvTorch      = "LINSTOCK_TORCH"       // the libtorch version to use
	EnvLibtorch   = "LIBTORCH"             // a libtorch from elsewhere, for setup
	EnvUsePyTorch = "LIBTORCH_USE_PYTORCH" // 1: setup uses python3's PyTorch
)

// UsesPyTorch reports whether LIBTORCH_USE_PYTORCH makes setup use python3's PyTorch.
func UsesPyTorch() bool {
	v := os.Getenv(EnvUsePyTorch)
	return v != "" && v != "0"
}

// LibName is the shim's file name on this system.
func LibName() string {
	switch runtime.GOOS {
	case "darwin":
		return "liblinstock.dylib"
	case "windows":
		return "linstock.dll"
	}
	return "liblinstock.so"
}

// OpenMPLib is the file name of LLVM's OpenMP runtime, which lies beside the shim.
const OpenMPLib = "libomp.so"

// OpenMP returns the path of the OpenMP runtime beside a shim, or "" if there is none: libtorch then uses its own.
func OpenMP(shim string) string {
	path := filepath.Join(filepath.Dir(shim), OpenMPLib)
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	return path
}

// CacheDir returns $LINSTOCK_CACHE, or linstock in the user's cache directory. It need not exist.
func CacheDir() (string, error) {
	if dir := os.Getenv(EnvCache); dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("linstock: %s=%s: %w", EnvCache, dir, err)
		}
		return abs, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("linstock: no cache directory (%w): set %s to a directory that keeps files between runs", err, EnvCache)
	}
	return filepath.Join(dir, "linstock"), nil
}

// SourceHash returns the hash that identifies the shim's sources: twelve hexadecimal digits of a SHA-256 over
// the names and contents of all files, in the order of their names.
func SourceHash(sources fs.FS) (string, error) {
	var names []string
	err := fs.WalkDir(sources, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("linstock: read the shim's sources: %w", err)
	}
	slices.Sort(names)
	sum := sha256.New()
	for _, name := range names {
		data, err := fs.ReadFile(sources, name)
		if err != nil {
			return "", fmt.Errorf("linstock: read the shim's sources: %w", err)
		}
		// Lengths separate names and contents.
		fmt.Fprintf(sum, "%d %s %d\n", len(name), name, len(data))
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

// TorchDir returns the directory into which setup unpacks the given version of libtorch.
func TorchDir(cache, version string) string { return filepath.Join(cache, "libtorch", version) }

// HashDir returns the directory of the shims built from the sources with this hash.
func HashDir(cache, hash string) string { return filepath.Join(cache, "shim", hash) }

// ShimDir returns the directory in which setup installs the shim for one libtorch.
func ShimDir(cache, hash, key string) string { return filepath.Join(HashDir(cache, hash), key) }

// Key returns the name of a shim's directory: the version for a libtorch in the cache, otherwise the version
// and eight digits of a hash of the path. A shim contains the path of its libtorch, so two libtorchs of one
// version cannot share a shim.
func Key(version, root string, fromCache bool) string {
	if fromCache {
		return version
	}
	sum := sha256.Sum256([]byte(root))
	return version + "-" + hex.EncodeToString(sum[:])[:8]
}

// ShimCandidates lists the files that may be the shim built from the sources with this hash, the preferred one
// first. They need not exist.
//
// If $LINSTOCK_LIB is set, to a file or to a directory that contains the shim, it is the only candidate.
// Otherwise the candidates are beside the running executable and in its lib directory, and then in the cache:
// the version that $LINSTOCK_TORCH names or, if that is not set, the shim of the last setup, then that of
// DefaultTorch, then all others.
func ShimCandidates(hash string) []string {
	name := LibName()
	if lib := os.Getenv(EnvLib); lib != "" {
		if info, err := os.Stat(lib); err == nil && info.IsDir() {
			lib = filepath.Join(lib, name)
		}
		if abs, err := filepath.Abs(lib); err == nil { // the loader searches a name without a slash elsewhere
			lib = abs
		}
		return []string{lib}
	}
	var found []string
	add := func(path string) {
		if !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	exe, err := os.Executable()
	if err != nil { // there is no /proc
		if exe, err = exec.LookPath(os.Args[0]); err == nil {
			exe, err = filepath.Abs(exe)
		}
	}
	if err == nil {
		// Follow a link to the program, for example in ~/bin, to the bundle that contains it.
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		dir := filepath.Dir(exe)
		add(filepath.Join(dir, name))
		add(filepath.Join(dir, "lib", name))
	}
	cache, err := CacheDir()
	if err != nil {
		return found
	}
	keys := installedKeys(cache, hash)
	if version := os.Getenv(EnvTorch); version != "" {
		add(filepath.Join(ShimDir(cache, hash, version), name))
		for _, key := range keys {
			if strings.HasPrefix(key, version+"-") {
				add(filepath.Join(ShimDir(cache, hash, key), name))
			}
		}
		return found
	}
	if key := DefaultKey(cache, hash); key != "" {
		add(filepath.Join(ShimDir(cache, hash, key), name))
	}
	add(filepath.Join(ShimDir(cache, hash, DefaultTorch), name))
	for _, key := range keys {
		add(filepath.Join(ShimDir(cache, hash, key), name))
	}
	return found
}

// DefaultKey returns the key that the last setup for these sources left, or "".
func DefaultKey(cache, hash string) string {
	data, err := os.ReadFile(filepath.Join(HashDir(cache, hash), DefaultFile))
	if err != nil {
		return ""
	}
	key := strings.TrimSpace(string(data))
	if !filepath.IsLocal(key) || strings.ContainsAny(key, `/\`) {
		return ""
	}
	return key
}

// installedKeys lists the directories beside DefaultFile, by name. Names that begin with a dot belong to a
// running setup or are left from an interrupted one.
func installedKeys(cache, hash string) []string {
	entries, err := os.ReadDir(HashDir(cache, hash))
	if err != nil {
		return nil
	}
	var keys []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			keys = append(keys, e.Name())
		}
	}
	return keys
}

// ErrMissing is wrapped by every error that reports that the shim was not found.
var ErrMissing = errors.New("libtorch is not set up")

// Missing returns the error for a machine on which none of ShimCandidates exists or can be read. Its text is one line
// that says how to fix it. It is ErrMissing only if none exists.
func Missing(hash string) error {
	unreadable := unreadable(hash)
	if lib := os.Getenv(EnvLib); lib != "" {
		if unreadable != nil {
			return fmt.Errorf("linstock: %s=%s cannot be read: %w; %s", EnvLib, lib, unreadable, unsetLib)
		}
		what := "does not exist"
		if info, err := os.Stat(lib); err == nil && info.IsDir() {
			what = "has no " + LibName() + " in it"
		}
		return fmt.Errorf("linstock: %w: %s=%s %s; %s", ErrMissing, EnvLib, lib, what, unsetLib)
	}
	if unreadable != nil {
		return fmt.Errorf("linstock: libtorch cannot be read: %w; let this user read it, or set %s to another directory and run: %s",
			unreadable, EnvCache, SetupCommand)
	}
	cache, err := CacheDir()
	if err != nil {
		return fmt.Errorf("linstock: %w on this machine: there is no home directory to look in; set %s and run: %s", ErrMissing, EnvCache, SetupCommand)
	}
	version := os.Getenv(EnvTorch)
	if version == "" {
		version = DefaultTorch
	} else if err := CheckPinned(version); err != nil {
		return fmt.Errorf("linstock: %w: %w, or unset %s", ErrMissing, err, EnvTorch)
	}
	if root := TorchDir(cache, version); intact.Read(root, &intact.Manifest{}) == nil {
		return fmt.Errorf("linstock: %w for this version of Linstock, whose shim is not built (libtorch is in %s); run: %s", ErrMissing, root, setupOf(version))
	}
	if version != DefaultTorch {
		return fmt.Errorf("linstock: %w in version %s (%s; searched in %s); run: %s", ErrMissing, version, EnvTorch, cache, setupOf(version))
	}
	return fmt.Errorf("linstock: %w on this machine (searched in %s); run: %s", ErrMissing, cache, SetupCommand)
}

// unreadable returns why one of ShimCandidates cannot be read, for example a directory of another user; nil if none exists.
func unreadable(hash string) error {
	for _, path := range ShimCandidates(hash) {
		// Beside a program, lib may be a file.
		if _, err := os.Stat(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
			return err
		}
	}
	return nil
}

const unsetLib = "unset " + EnvLib + ", or set it to a shim that setup made (linstock env prints its path)"

// Remedy returns how to fix a shim of which a library is damaged, the shim itself or another, for the end of an error: a
// command or other instructions.
func Remedy(shim, damaged string) string {
	ownLibrary := filepath.Dir(damaged) == filepath.Dir(shim)
	cache, err := CacheDir()
	if err == nil {
		if version, ok := below(filepath.Join(cache, "libtorch"), damaged); ok && damaged != shim {
			return "run: " + setupOf(version)
		}
		if _, ok := below(filepath.Join(cache, "shim"), shim); ok && !ownLibrary {
			return "install that libtorch again, as it was installed"
		}
	}
	if os.Getenv(EnvLib) != "" {
		return unsetLib
	}
	if err == nil {
		if _, ok := below(filepath.Join(cache, "shim"), shim); ok {
			return "run: " + setupOf(filepath.Base(filepath.Dir(shim)))
		}
	}
	dir := filepath.Dir(shim)
	var m intact.Manifest
	if intact.Read(dir, &m) != nil || m.Root != "." { // linstock bundle does not overwrite files that no manifest lists
		return "make a bundle in another directory, in place of " + dir + ": linstock bundle DIR"
	}
	return "make the bundle in " + dir + " again: linstock bundle DIR"
}

// A Fault is an error of opening the shim, with its remedy: a command after "run: ", or other instructions.
type Fault struct {
	Err    error
	Remedy string
}

func (f *Fault) Error() string { return f.Err.Error() + "; " + f.Remedy }

func (f *Fault) Unwrap() error { return f.Err }

var (
	// ofLibtorch is the beginning of the names of the libraries that come with libtorch or the shim.
	ofLibtorch = regexp.MustCompile(`^lib(torch|c10|shm|linstock|omp|gomp|cu|nv|nccl)`)

	// noLibrary is the loader's message for a file that is damaged or of another kind.
	noLibrary = regexp.MustCompile(`^(/[^:]*): (file too short|cannot read file data|object file has no |only ET_|.*ELF)`)

	// tooOld is the loader's message for a C or C++ run-time library that lacks what another library needs.
	tooOld = regexp.MustCompile("^(/[^:]*): version `[^']*' not found \\(required by (.*)\\)$")
)

// OpenRemedy returns how to fix an undamaged shim that the system's loader cannot open, given the loader's reason.
func OpenRemedy(shim, reason string) string {
	file, missing := strings.CutSuffix(reason, ": cannot open shared object file: No such file or directory")
	path := os.Getenv("LD_LIBRARY_PATH")
	chosen := path != "" // LD_LIBRARY_PATH may have chosen the library at fault
	ofPath := func(file string) bool {
		return slices.ContainsFunc(filepath.SplitList(path), func(dir string) bool { _, ok := below(dir, file); return ok })
	}
	if m := tooOld.FindStringSubmatch(reason); m != nil && !ofPath(m[1]) && !ofLibtorch.MatchString(filepath.Base(m[1])) {
		return newerSystem(shim, filepath.Base(m[1]), m[2])
	}
	damaged := shim
	if m := noLibrary.FindStringSubmatch(reason); m != nil {
		damaged = m[1]
		chosen = ofPath(damaged)
	}
	switch {
	case missing && !ofLibtorch.MatchString(filepath.Base(file)):
		return "install the system's package with " + filepath.Base(file)
	case chosen && !missing:
		return "unset LD_LIBRARY_PATH, which may name another libtorch: " + path
	case !ofLibtorch.MatchString(filepath.Base(damaged)) && damaged != shim:
		return "install the system's package with " + filepath.Base(damaged) + " again"
	case strings.Contains(reason, "failed to map segment"):
		return "move " + filepath.Dir(shim) + " to a file system that is not mounted with noexec (" + EnvCache + ")"
	}
	remedy := Remedy(shim, damaged)
	if strings.HasPrefix(remedy, "run: ") && !missing {
		remedy += " --force" // it finds the shim undamaged
	}
	return remedy
}

// newerSystem returns how to fix a shim of which a library needs a newer run-time library than the system's.
func newerSystem(shim, system, needs string) string {
	older := "this system's " + system + " is older than that of "
	if filepath.Dir(needs) != filepath.Dir(shim) {
		return older + "the systems that this libtorch is for: use a newer system"
	}
	if cache, err := CacheDir(); err == nil {
		if _, ok := below(filepath.Join(cache, "shim"), shim); ok {
			return older + "the compiler that built the shim; with this system's own compiler (unset CXX) run: " +
				setupOf(filepath.Base(filepath.Dir(shim))) + " --force"
		}
	}
	return older + "the system on which the shim was built: set up and make the bundle on a system that is no newer than this one"
}

// below returns the first name of path's that is in dir.
func below(dir, path string) (name string, ok bool) {
	rel, err := filepath.Rel(dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return "", false
	}
	name, _, _ = strings.Cut(filepath.ToSlash(rel), "/")
	return name, true
}

// setupOf returns the command that sets up a version. The key of a libtorch from elsewhere is longer than a version.
func setupOf(key string) string {
	if key != DefaultTorch && slices.Contains(Versions, key) {
		return SetupCommand + " --torch " + key
	}
	return SetupCommand
}

// Find returns the first of ShimCandidates that exists, or Missing.
func Find(hash string) (string, error) {
	for _, path := range ShimCandidates(hash) {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", Missing(hash)
}

package libtorch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/linstock-ml/linstock/internal/intact"
)

// A HashError reports a wheel whose content differs from lock.json.
type HashError struct {
	File, Path, Want, Got string
}

func (e *HashError) Error() string {
	return fmt.Sprintf("%s is not the file that Linstock was tested with: its SHA-256 is %s, lock.json has %s; remove it, or pass --unpinned to use it",
		e.Path, e.Got, e.Want)
}

// gather returns the path of each wheel: those given with --wheel, complete ones that an earlier run left in the cache,
// and the others downloaded by pip.
func (in *installer) gather(ctx context.Context, wheels []Wheel) ([]string, error) {
	if len(in.cfg.Wheels) > 0 {
		return in.given(ctx, wheels)
	}
	return in.fetch(ctx, wheels, in.wheelDir())
}

// Fetch downloads the wheels that Setup needs into dir, for a machine without a network (Config.Wheels). It does not
// download existing files again.
func Fetch(ctx context.Context, cfg Config, dir string) ([]string, error) {
	in, err := newInstaller(cfg)
	if err != nil {
		return nil, err
	}
	wheels, err := in.lock.Wheels(cfg.Torch, in.platform, cfg.CUDA)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	var missing, largest int64
	for _, w := range wheels {
		if !isFile(filepath.Join(dir, w.File)) {
			missing, largest = missing+w.Size, max(largest, w.Size)
		}
	}
	if err := in.room(dir, missing+largest); err != nil { // pip copies each at the end
		return nil, err
	}
	return in.fetch(ctx, wheels, dir)
}

// fetch downloads each wheel into dir and verifies it.
func (in *installer) fetch(ctx context.Context, wheels []Wheel, dir string) ([]string, error) {
	paths := make([]string, len(wheels))
	for i, w := range wheels {
		path := filepath.Join(dir, w.File)
		if isFile(path) && in.verify(ctx, w, path) == nil {
			in.Note("%s: downloaded before", w.File)
			paths[i] = path
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		if err := in.download(ctx, w, path); err != nil {
			return nil, err
		}
		paths[i] = path
	}
	return paths, nil
}

// filesIn returns the paths of a directory's entries with such names. A pattern for filepath.Glob would give characters of
// the directory's path a meaning.
func filesIn(dir, prefix, suffix string) (paths []string, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), suffix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, err
}

// given finds each wheel among the files and directories named by --wheel.
func (in *installer) given(ctx context.Context, wheels []Wheel) ([]string, error) {
	var files []string
	var dirs bool
	for _, arg := range in.cfg.Wheels {
		info, err := os.Stat(arg)
		if err != nil {
			return nil, fmt.Errorf("--wheel: %w", err)
		}
		if !info.IsDir() {
			files = append(files, arg)
			continue
		}
		dirs = true
		inside, err := filesIn(arg, "", ".whl")
		if err != nil {
			return nil, fmt.Errorf("--wheel %s: %w", arg, err)
		}
		files = append(files, inside...)
	}
	used := map[string]bool{}
	paths := make([]string, len(wheels))
	var missing []Wheel
	for i, w := range wheels {
		at := slices.IndexFunc(files, func(f string) bool { return in.isWheel(filepath.Base(f), w) })
		if at < 0 {
			missing = append(missing, w)
			continue
		}
		paths[i], used[files[at]] = files[at], true
	}
	if len(missing) > 0 {
		return nil, in.missingWheels(missing)
	}
	// A file that was named explicitly must be one of the wheels; other files in a directory are ignored.
	for _, f := range files {
		if !used[f] && !dirs {
			return nil, fmt.Errorf("--wheel %s: not a wheel of libtorch %s on %s", f, in.cfg.Torch, in.platform)
		}
	}
	for i, w := range wheels {
		if err := in.verify(ctx, w, paths[i]); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// isWheel compares file names. With --unpinned, package and version suffice.
func (in *installer) isWheel(file string, w Wheel) bool {
	if file == w.File {
		return true
	}
	pkg, rest, _ := strings.Cut(file, "-")
	version, _, _ := strings.Cut(rest, "-")
	version, _, _ = strings.Cut(version, "+")
	return in.cfg.Unpinned && strings.ReplaceAll(pkg, "_", "-") == w.Package && version == w.Version
}

func (in *installer) missingWheels(missing []Wheel) error {
	names := make([]string, len(missing))
	for i, w := range missing {
		names[i] = w.File
	}
	flags := "--torch " + in.cfg.Torch
	if in.cfg.CUDA {
		flags += " --cuda"
	}
	return fmt.Errorf("--wheel: these are missing:\n    %s\nfetch them on a machine with a network and copy the directory here: linstock fetch DIR %s",
		strings.Join(names, "\n    "), flags)
}

// verify compares the file's hash with the lock file.
func (in *installer) verify(ctx context.Context, w Wheel, path string) error {
	if in.cfg.Unpinned {
		return nil
	}
	got, err := intact.Hash(ctx, path, nil)
	if err != nil {
		return err
	}
	if got != w.SHA256 {
		return &HashError{File: w.File, Path: path, Want: w.SHA256, Got: got}
	}
	return nil
}

// ctxReader makes a long copy end when its context does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c *ctxReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

// pipTarget makes pip select files for our platform, whichever Python it runs under. pip does not derive the older
// manylinux tags from the newest.
func pipTarget() []string {
	args := []string{"--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--abi", "cp312"}
	for minor := 28; minor >= 5; minor-- {
		args = append(args, "--platform", fmt.Sprintf("manylinux_2_%d_x86_64", minor))
	}
	return append(args, "--platform", "manylinux2014_x86_64", "--platform", "manylinux2010_x86_64", "--platform", "manylinux1_x86_64")
}

// pip runs pip with temp as its temporary directory, where its progress can be observed.
func (in *installer) pip(ctx context.Context, temp string, args ...string) error {
	if !in.pipTool.Found() {
		in.pipTool = FindPip(ctx)
		if err := require(ctx, in.pipTool); err != nil {
			return err
		}
	}
	env := append(os.Environ(), "TMPDIR="+temp, "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_NO_INPUT=1", "PIP_REQUIRE_VIRTUALENV=0",
		// Versions and hashes are the lock file's, whatever the user's projects need: empty files also replace those that
		// pip.conf names, and pip ignores an empty variable.
		"PIP_CONSTRAINT="+os.DevNull, "PIP_REQUIREMENT="+os.DevNull, "PIP_BUILD_CONSTRAINT=")
	command := in.pipTool.Command
	return run(ctx, nil, env, "", command[0], append(slices.Clone(command[1:]), args...)...)
}

// download downloads one wheel with pip, verifies it and moves it to path.
func (in *installer) download(ctx context.Context, w Wheel, path string) (err error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	temp, dest := filepath.Join(dir, "tmp"), filepath.Join(dir, "dest")
	if err := errors.Join(os.Mkdir(temp, 0o755), os.Mkdir(dest, 0o755)); err != nil {
		return err
	}
	// With a hash, pip accepts only the file with that hash, also from a mirror that has other builds of the same
	// version.
	requirement := w.Package + "==" + w.Version
	if !in.cfg.Unpinned {
		requirement += " --hash=sha256:" + w.SHA256
	}
	list := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(list, []byte(requirement+"\n"), 0o644); err != nil {
		return err
	}

	task := in.Start("download "+w.Package+" "+w.Version, w.Size, Bytes)
	stop := watch(dir, task, w.Size)
	args := append([]string{"download", "--no-deps", "--progress-bar", "off", "--dest", dest}, pipTarget()...)
	err = in.pip(ctx, temp, append(args, "-r", list)...)
	stop()
	task.End(err)
	if err != nil {
		if ctx.Err() == nil {
			err = in.full(err, filepath.Dir(path), 2*w.Size)
			err = fmt.Errorf("download %s: %w\npip's own settings (index, proxy, certificates) apply; without a network see: linstock setup --help, --wheel", w.File, err)
		}
		return err
	}
	got, err := filesIn(dest, "", ".whl")
	if err != nil {
		return err
	}
	if len(got) != 1 {
		return fmt.Errorf("download %s: pip left %d wheels", w.File, len(got))
	}
	if err := in.verify(ctx, w, got[0]); err != nil {
		return err
	}
	return os.Rename(got[0], path)
}

// watch reports the size of a directory until the returned function is called.
func watch(dir string, task Task, limit int64) func() {
	done, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		var most int64
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			// pip copies the file at the end, so for a moment it exists twice.
			n := dirSize(dir)
			if limit > 0 {
				n = min(n, limit)
			}
			if n > most {
				most = n
				task.Set(n)
			}
		}
	}()
	return func() { close(done); <-gone }
}

// dirSize returns the visible size of a directory to which another process writes.
func dirSize(dir string) int64 {
	var total int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	return total
}

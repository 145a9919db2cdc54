package libtorch

import (
	"archive/zip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/linstock-ml/linstock/internal/intact"
	"github.com/linstock-ml/linstock/internal/locate"
)

// cpuRoots are the libraries that the shim links. Libraries of the wheels that they need are unpacked too.
var cpuRoots = []string{"libtorch_cpu.so", "libc10.so"}

// cudaRoots are the additional libraries that a GPU needs. The last two are opened by name at first use, so that no
// other library needs them.
var cudaRoots = []string{"libtorch_cuda.so", "libc10_cuda.so", "libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so"}

// unpacker writes the needed parts of wheels into dir.
type unpacker struct {
	dir  *os.Root
	cuda bool
	task Task

	libs    map[string]*zip.File // shared libraries by base name
	plain   []*zip.File          // headers, licences, version.py
	total   atomic.Int64
	written atomic.Int64
	files   intact.Files // libraries written
}

// unpack writes what Linstock needs of the wheels into dir, in the layout of site-packages, and returns the libraries
// with their sizes and hashes. The wheels are untrusted input: names that lead out of dir are an error.
func unpack(ctx context.Context, dir string, wheels []string, cuda bool, task Task) (files intact.Files, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return files, err
	}
	defer root.Close()
	u := &unpacker{dir: root, cuda: cuda, task: task, libs: map[string]*zip.File{}, files: intact.NewFiles()}
	for _, name := range wheels {
		z, err := zip.OpenReader(name)
		if err != nil {
			return files, fmt.Errorf("%s: %w", name, err)
		}
		defer z.Close()
		if err := u.index(&z.Reader); err != nil {
			return files, fmt.Errorf("%s: %w", name, err)
		}
	}
	roots, err := u.roots()
	if err != nil {
		return files, err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return u.writeLibs(ctx, roots) })
	group.Go(func() error {
		for _, f := range u.plain {
			if err := u.write(ctx, f, io.Discard); err != nil {
				return err
			}
		}
		return nil
	})
	return u.files, group.Wait()
}

// index sorts a wheel's entries into those that are needed.
func (u *unpacker) index(z *zip.Reader) error {
	for _, f := range z.File {
		if f.FileInfo().IsDir() {
			continue
		}
		if !filepath.IsLocal(f.Name) || strings.Contains(f.Name, `\`) {
			return fmt.Errorf("entry %q leads out of the directory", f.Name)
		}
		if f.Mode()&fs.ModeType != 0 {
			return fmt.Errorf("entry %q is not a plain file", f.Name)
		}
		switch {
		case isLibrary(f.Name):
			u.libs[path.Base(f.Name)] = f
		case strings.HasPrefix(f.Name, "torch/include/"), f.Name == "torch/version.py", isLicence(f.Name),
			u.cuda && strings.HasPrefix(f.Name, "nvidia/") && strings.Contains(f.Name, "/include/"):
			u.plain = append(u.plain, f)
			u.grow(f)
		}
	}
	return nil
}

// isLibrary reports whether a name matches torch/lib/*.so* or nvidia/*/lib/*.so*, or is the OpenMP runtime's.
func isLibrary(name string) bool {
	dir, base := path.Split(name)
	return name == openMPFile || strings.Contains(base, ".so") && (dir == "torch/lib/" || strings.HasPrefix(dir, "nvidia/") && strings.HasSuffix(dir, "/lib/"))
}

// isLicence reports whether a file is a licence, which must accompany every copy of the libraries.
func isLicence(name string) bool {
	dir, base, ok := strings.Cut(name, "/")
	if !ok || !strings.HasSuffix(dir, ".dist-info") {
		return false
	}
	upper := strings.ToUpper(base)
	return strings.HasPrefix(upper, "LICENSE") || strings.HasPrefix(upper, "NOTICE")
}

// roots returns the libraries to start with.
func (u *unpacker) roots() ([]string, error) {
	for _, name := range cpuRoots {
		if u.libs[name] == nil {
			return nil, fmt.Errorf("torch/lib/%s is not in the wheels", name)
		}
	}
	roots := slices.Clone(cpuRoots)
	if u.libs[locate.OpenMPLib] != nil {
		roots = append(roots, locate.OpenMPLib)
	}
	if !u.cuda {
		return roots, nil
	}
	for _, name := range cudaRoots {
		if u.libs[name] != nil {
			roots = append(roots, name)
		}
	}
	if !slices.Contains(roots, "libtorch_cuda.so") {
		return nil, errors.New("torch/lib/libtorch_cuda.so is not in the wheels: this PyTorch is for the CPU only")
	}
	// NVIDIA's libraries open one another by name.
	for name, f := range u.libs {
		if strings.HasPrefix(f.Name, "nvidia/") {
			roots = append(roots, name)
		}
	}
	return roots, nil
}

// writeLibs writes the libraries and, recursively, the libraries of the wheels that they need.
func (u *unpacker) writeLibs(ctx context.Context, queue []string) error {
	for len(queue) > 0 {
		name := queue[0]
		queue = queue[1:]
		f := u.libs[name]
		if f == nil { // a library of the system
			continue
		}
		delete(u.libs, name)
		u.grow(f)
		sum := sha256.New()
		if err := u.write(ctx, f, sum); err != nil {
			return err
		}
		u.files.Sizes[f.Name] = int64(f.UncompressedSize64)
		u.files.SHA256[f.Name] = hex.EncodeToString(sum.Sum(nil))
		needed, err := u.needed(f.Name)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		queue = append(queue, needed...)
	}
	return nil
}

func (u *unpacker) needed(name string) ([]string, error) {
	f, err := u.dir.Open(filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lib, err := elf.NewFile(f)
	if err != nil {
		return nil, err
	}
	return lib.ImportedLibraries()
}

func (u *unpacker) grow(f *zip.File) {
	u.task.SetTotal(u.total.Add(int64(f.UncompressedSize64)))
}

// write unpacks one entry and also writes it to sum; archive/zip checks its length and CRC.
func (u *unpacker) write(ctx context.Context, f *zip.File, sum io.Writer) (err error) {
	name := filepath.FromSlash(f.Name)
	if err := u.dir.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	in, err := f.Open()
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	defer in.Close()
	mode := fs.FileMode(0o644)
	if isLibrary(f.Name) {
		mode = 0o755
	}
	out, err := u.dir.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := io.Copy(io.MultiWriter(out, sum), &ctxReader{ctx: ctx, r: io.TeeReader(in, counter{u})}); err != nil {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	if isLibrary(f.Name) {
		// The stamp declares the libraries complete, so they must reach the disk before it.
		return out.Sync()
	}
	return nil
}

type counter struct{ u *unpacker }

func (c counter) Write(p []byte) (int, error) {
	c.u.task.Set(c.u.written.Add(int64(len(p))))
	return len(p), nil
}

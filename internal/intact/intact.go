// Package intact reports whether installed libraries are as they were installed. A program asks it before it opens
// one: the system's loader maps a library without comparing its length with what its header promises, so a library
// that was cut short kills the process with SIGBUS, and one with changed bytes with whatever they bring about.
package intact

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ManifestFile is the name of the manifest in a directory of libraries. It is written last: a directory without it is
// not complete.
const ManifestFile = "linstock.json"

// Files are the libraries that a manifest lists, by their slash-separated paths from its directory.
type Files struct {
	Sizes  map[string]int64  `json:"files"`
	SHA256 map[string]string `json:"sha256"`
}

// NewFiles returns a list without files.
func NewFiles() Files { return Files{Sizes: map[string]int64{}, SHA256: map[string]string{}} }

// A Manifest is what of a manifest is needed to check a shim and its libtorch.
type Manifest struct {
	// Root is the directory of the libtorch that the shim was built for, absolute or from the manifest's directory.
	Root string `json:"root"`
	Files
}

// Damage is the error for a library that is not as it was installed.
type Damage struct {
	Path string
	What string // "is missing", "has 3 bytes, not 448373553"
}

func (d *Damage) Error() string { return d.Path + " " + d.What }

// Read reads the manifest of a directory into a Manifest, or a struct with more of what is in it.
func Read(dir string, manifest any) error {
	path := filepath.Join(dir, ManifestFile)
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, manifest); err != nil {
		return &Damage{path, fmt.Sprintf("is damaged: %v", err)}
	}
	return nil
}

// names are those of the listed files, in order: so that an error does not depend on a map's.
func (f Files) names() []string {
	names := make([]string, 0, len(f.Sizes))
	for name := range f.Sizes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Total is the size of all files.
func (f Files) Total() (bytes int64) {
	for _, size := range f.Sizes {
		bytes += size
	}
	return bytes
}

// CheckSizes compares the size of each file below dir; a difference is a Damage.
func (f Files) CheckSizes(dir string) error {
	for _, name := range f.names() {
		path := filepath.Join(dir, filepath.FromSlash(name))
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return &Damage{path, "is missing"}
		case err != nil:
			return err
		case info.Size() != f.Sizes[name]:
			return &Damage{path, fmt.Sprintf("is damaged: it has %d bytes, and had %d when it was installed", info.Size(), f.Sizes[name])}
		}
	}
	return nil
}

// CheckHashes compares the hash of each file below dir; a difference is a Damage. read is told of the bytes that were
// read; nil is allowed.
func (f Files) CheckHashes(ctx context.Context, dir string, read func(bytes int)) error {
	for _, name := range f.names() {
		path := filepath.Join(dir, filepath.FromSlash(name))
		want := f.SHA256[name]
		if want == "" {
			return &Damage{path, "has no hash in " + ManifestFile + ": an older version of Linstock installed it"}
		}
		got, err := Hash(ctx, path, read)
		if errors.Is(err, fs.ErrNotExist) {
			return &Damage{path, "is missing"}
		}
		if err != nil {
			return err
		}
		if got != want {
			return &Damage{path, "is damaged: its content has changed since it was installed"}
		}
	}
	return nil
}

// Hash returns the SHA-256 of a file as hexadecimal digits.
func Hash(ctx context.Context, path string, read func(bytes int)) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	buf := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := file.Read(buf)
		sum.Write(buf[:n])
		if read != nil {
			read(n)
		}
		if errors.Is(err, io.EOF) {
			return hex.EncodeToString(sum.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// Shim checks the shim at path, and the libraries that it needs and brings with it, as far as that is possible in
// milliseconds: the shim's size and hash, and the sizes of libtorch's libraries. Without a manifest, beside a
// libtorch that setup did not install or a shim that was built by hand, it checks that the files hold all that
// their headers promise.
func Shim(path string) error {
	if err := Library(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	var m Manifest
	err := Read(dir, &m)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(m.Sizes) == 0 {
		return libraries(path)
	}
	if err != nil {
		return err
	}
	if err := m.CheckSizes(dir); err != nil {
		return err
	}
	if err := m.shims().CheckHashes(context.Background(), dir, nil); err != nil {
		return err
	}
	root := m.Root
	if !filepath.IsAbs(root) {
		root = filepath.Join(dir, root)
	}
	if root == dir {
		return nil // a bundle: one manifest for all
	}
	var torch Manifest
	if err := Read(root, &torch); err != nil || len(torch.Sizes) == 0 {
		return libraries(path)
	}
	return torch.CheckSizes(root)
}

// shims are the files in the manifest's own directory.
func (f Files) shims() Files {
	own := NewFiles()
	for name, size := range f.Sizes {
		if !strings.Contains(name, "/") {
			own.Sizes[name], own.SHA256[name] = size, f.SHA256[name]
		}
	}
	return own
}

// libraries checks all that Closure finds.
func libraries(path string) error {
	for _, lib := range Closure(path) {
		if err := Library(lib); err != nil {
			return err
		}
	}
	return nil
}

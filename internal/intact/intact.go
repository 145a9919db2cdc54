// Package intact checks that installed libraries are unchanged since their installation. A program does so before it
// opens one: the system's loader maps a library without comparing its length with its header, so that a truncated
// library kills the process with SIGBUS, and one with changed bytes has undefined behavior.
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
// incomplete.
const ManifestFile = "linstock.json"

// Files are the libraries that a manifest lists, by slash-separated paths relative to its directory.
type Files struct {
	Sizes  map[string]int64  `json:"files"`
	SHA256 map[string]string `json:"sha256"`
}

// NewFiles returns an empty list.
func NewFiles() Files { return Files{Sizes: map[string]int64{}, SHA256: map[string]string{}} }

// A Manifest holds the fields of a manifest that are needed to check a shim and its libtorch.
type Manifest struct {
	// Root is the directory of the libtorch for which the shim was built, absolute or relative to the manifest's
	// directory.
	Root string `json:"root"`
	// Sources is the hash of the shim's sources; empty for a libtorch, and for a shim of an older version of Linstock.
	Sources string `json:"sources,omitempty"`
	Files
}

// Damage is the error for a library that differs from what was installed.
type Damage struct {
	Path string
	What string // "is missing", "has 3 bytes, not 448373553"
}

// DamagedFile returns the path of the damaged library if err is a Damage, and otherwise the path that is given.
func DamagedFile(err error, otherwise string) string {
	var d *Damage
	if errors.As(err, &d) {
		return d.Path
	}
	return otherwise
}

func (d *Damage) Error() string { return d.Path + " " + d.What }

// Read reads the manifest of a directory into a Manifest, or into a struct with more of its fields.
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

// names returns the listed files in order, so that errors do not depend on the order of a map.
func (f Files) names() []string {
	names := make([]string, 0, len(f.Sizes))
	for name := range f.Sizes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Total returns the size of all files in bytes.
func (f Files) Total() (bytes int64) {
	for _, size := range f.Sizes {
		bytes += size
	}
	return bytes
}

// CheckSizes compares the size of each file below dir with the list. A difference is a Damage.
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
			return &Damage{path, fmt.Sprintf("is damaged: it has %d bytes instead of the %d that were installed", info.Size(), f.Sizes[name])}
		}
	}
	return nil
}

// CheckHashes compares the hash of each file below dir with the list. A difference is a Damage. read, if not nil, is
// called with the number of bytes read.
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

// Shim checks the shim at path and the libraries that come with it, as far as milliseconds allow: the shim's size and
// hash, and the sizes of libtorch's libraries. For files without a manifest, a libtorch that setup did not install or a
// shim that was built by hand, it checks that each contains all that its header lists.
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
		return nil // a bundle has one manifest for all
	}
	var torch Manifest
	if err := Read(root, &torch); err != nil || len(torch.Sizes) == 0 {
		return libraries(path)
	}
	return torch.CheckSizes(root)
}

// shims returns the files in the manifest's own directory.
func (f Files) shims() Files {
	own := NewFiles()
	for name, size := range f.Sizes {
		if !strings.Contains(name, "/") {
			own.Sizes[name], own.SHA256[name] = size, f.SHA256[name]
		}
	}
	return own
}

// libraries checks all libraries that Closure finds.
func libraries(path string) error {
	for _, lib := range Closure(path) {
		if err := Library(lib); err != nil {
			return err
		}
	}
	return nil
}

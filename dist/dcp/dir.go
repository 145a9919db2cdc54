package dcp

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/linstock-ml/linstock/internal/syncdir"
)

// located returns the absolute path of dir itself without links, so that what is written beside is on the same disk, and
// one directory has one path before and after it is made.
func located(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return dir
	}
	return resolved(path)
}

// resolved returns an absolute path without the links among the directories that exist.
func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(resolved(parent), filepath.Base(path))
}

// beside returns the path of a hidden directory beside dir.
func beside(dir, suffix string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+suffix)
}

const (
	savingSuffix = ".dcp-saving-" // and a number: a checkpoint that is being written
	oldSuffix    = ".dcp-old"     // a checkpoint that is being replaced
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// recovered returns where the checkpoint is of which dir is the name.
func recovered(dir string) string {
	if old := beside(dir, oldSuffix); !exists(dir) && exists(old) {
		return old
	}
	return dir
}

// nameable returns an error if dir cannot be replaced: it has no name, or the process is in it.
func nameable(dir string) error {
	if dir == "" || filepath.Dir(located(dir)) == located(dir) {
		return fmt.Errorf("%q is not the name of a directory for a checkpoint", dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil // a new one
	}
	current, err := os.Getwd()
	if err != nil {
		return nil
	}
	for d := located(current); ; d = filepath.Dir(d) {
		if in, err := os.Stat(d); err == nil && os.SameFile(info, in) {
			return fmt.Errorf("%q contains the current directory, which a checkpoint would replace", dir)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// prepare makes the directory that is to become dir, and clears up after saves that were killed.
func prepare(dir string) (tmp string, err error) {
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return "", err
	}
	if old := recovered(dir); old != dir {
		if err := os.Rename(old, dir); err != nil {
			return "", err
		}
	}
	if err := replaceable(dir); err != nil {
		return "", err
	}
	around, err := os.ReadDir(parent)
	if err != nil {
		return "", err
	}
	for _, e := range around {
		path := filepath.Join(parent, e.Name())
		if path == beside(dir, oldSuffix) || strings.HasPrefix(path, beside(dir, savingSuffix)) {
			if err := os.RemoveAll(path); err != nil {
				return "", err
			}
		}
	}
	tmp = beside(dir, fmt.Sprintf("%s%016x", savingSuffix, rand.Uint64()))
	return tmp, os.Mkdir(tmp, 0o777)
}

// replaceable returns an error if dir has anything but a checkpoint, which must not be lost.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ".safetensors") && e.Name() != "model.safetensors.index.json" {
			return fmt.Errorf("%s contains %.80q, which is not of a checkpoint", dir, e.Name())
		}
	}
	return err
}

// commit makes tmp the checkpoint dir.
func commit(tmp, dir string) error {
	old := beside(dir, oldSuffix)
	err := os.Rename(dir, old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	replaced := err == nil
	if err := os.Rename(tmp, dir); err != nil {
		if replaced {
			err = errors.Join(err, os.Rename(old, dir))
		}
		return err
	}
	if err := syncdir.Sync(filepath.Dir(dir)); err != nil {
		return err
	}
	_ = os.RemoveAll(old) // else the next Save removes it
	return nil
}

// discard removes what was written, on rank 0.
func (s *saver) discard() error {
	defer s.unreserve()
	if s.rank != 0 || s.tmp == "" {
		return nil
	}
	return os.RemoveAll(s.tmp)
}

// saving has the directories to which this process saves as rank 0.
var saving sync.Map

// reserve returns an error if another save to the directory is in progress, of which prepare would remove the files.
func (s *saver) reserve() error {
	if _, other := saving.LoadOrStore(s.dir, s); other {
		return fmt.Errorf("another save to %s is in progress: wait for it first", s.dir)
	}
	return nil
}

// unreserve ends what reserve has begun; it does nothing for another save.
func (s *saver) unreserve() { saving.CompareAndDelete(s.dir, s) }

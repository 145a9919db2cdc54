package dcp

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/linstock-ml/linstock/internal/syncdir"
)

// located returns the absolute path of dir itself without links, so that what is written next to it is on the same
// disk, and a directory has the same path before and after it is made.
func located(dir string) string {
	if !filepath.IsAbs(dir) {
		current, err := os.Getwd()
		if err != nil {
			return dir
		}
		dir = current + "/" + dir
	}
	links := 40 // as the kernel
	return resolved(dir, &links)
}

// resolved returns an absolute path without links, following at most the given number of dangling ones in all. A
// directory to which a link points does not exist before its first save and between the two renames of another. A ..
// after a link leads out of the directory that the link names, so no path is cleaned before its links are followed.
func resolved(path string, links *int) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	parent, base := filepath.Split(strings.TrimRight(path, "/"))
	if parent == "" {
		return path
	}
	parent = resolved(parent, links)
	path = filepath.Join(parent, base)
	to, err := os.Readlink(path)
	if err != nil || *links == 0 {
		return path
	}
	*links--
	if !filepath.IsAbs(to) {
		to = parent + "/" + to
	}
	return resolved(to, links)
}

// beside returns the path of a hidden directory beside dir.
func beside(dir, suffix string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+suffix)
}

const (
	savingSuffix = ".dcp-saving-"  // and a number: a checkpoint that is being written
	oldSuffix    = ".dcp-old"      // a checkpoint that is being replaced
	newSuffix    = ".dcp-new"      // the checkpoint, while the files of the one that it replaces are removed
	lockSuffix   = ".dcp-lock"     // a file that is locked during a save
	removing     = ".dcp-removing" // a file in a checkpoint whose other files are removed
)

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// isEmpty reports whether path is a directory with nothing in it.
func isEmpty(path string) bool {
	d, err := os.Open(path)
	if err != nil {
		return false
	}
	defer d.Close()
	_, err = d.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// recovered returns where the checkpoint named dir is. After a save that was killed, a program may have made dir before
// it started the next one, or dir may lack files.
func recovered(dir string) string {
	gone := !exists(dir) || isEmpty(dir)
	if now := beside(dir, newSuffix); exists(now) && (gone || exists(filepath.Join(dir, removing))) {
		return now
	}
	if old := beside(dir, oldSuffix); exists(old) && gone {
		return old
	}
	return dir
}

// remove removes a checkpoint, also one that is write-protected, and the file removing last.
func remove(path string) error {
	if !makeWritable(path) {
		return os.RemoveAll(path)
	}
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if e.Name() == removing {
			continue
		}
		if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return os.RemoveAll(path)
}

// makeWritable lets this process change a directory, if it may, and reports whether path is one.
func makeWritable(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	_ = os.Chmod(path, info.Mode()|0o700)
	return true
}

// nameable returns an error if dir cannot be replaced: it has no name, something is mounted there, or the process is in it.
func nameable(dir string) error {
	if dir == "" || filepath.Dir(located(dir)) == located(dir) {
		return fmt.Errorf("%q is not the name of a directory for a checkpoint", dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil // a new one
	}
	if mounted(dir) {
		return fmt.Errorf("%q is a mount point, which cannot be renamed: save to a directory within it", dir)
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

// prepare makes the directory that is to become dir, with the mode of dir, and clears up after saves that were killed. It
// returns the mode of new files, or 0 for that of any new file. only reports whether no other save to dir can be in progress.
func prepare(dir string, only bool) (tmp string, mode fs.FileMode, err error) {
	parent := filepath.Dir(dir)
	if err := settle(dir); err != nil {
		return "", 0, err
	}
	if mode, err = replaceable(dir); err != nil {
		return "", 0, err
	}
	around, err := os.ReadDir(parent)
	if err != nil {
		return "", 0, err
	}
	for _, e := range around {
		path := filepath.Join(parent, e.Name())
		if path == beside(dir, oldSuffix) || path == beside(dir, newSuffix) || only && strings.HasPrefix(path, beside(dir, savingSuffix)) {
			if err := remove(path); err != nil {
				return "", 0, err
			}
		}
	}
	tmp = beside(dir, fmt.Sprintf("%s%016x", savingSuffix, rand.Uint64()))
	info, err := os.Stat(dir)
	if err != nil {
		return tmp, mode, os.Mkdir(tmp, 0o777)
	}
	kept := info.Mode() | 0o700 // the save writes to it
	if err := os.Mkdir(tmp, kept.Perm()); err != nil {
		return tmp, mode, err
	}
	return tmp, mode, os.Chmod(tmp, kept) // also the bits that the umask has removed
}

// settle makes the checkpoint named dir dir itself, if it is beside it.
func settle(dir string) error {
	at := recovered(dir)
	if at == dir {
		return nil
	}
	if _, err := replaceable(dir); err != nil {
		return err
	}
	if err := remove(dir); err != nil {
		return err
	}
	return os.Rename(at, dir)
}

// replaceable returns an error if dir contains anything but a checkpoint, since that must not be lost, and otherwise
// the permissions that all of its files share, or 0 if there are none.
func replaceable(dir string) (mode fs.FileMode, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == removing })
	for i, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), ".safetensors") && e.Name() != "model.safetensors.index.json" {
			return 0, fmt.Errorf("%s contains %.80q, which is not of a checkpoint", dir, e.Name())
		}
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		if i == 0 {
			mode = fs.ModePerm
		}
		mode &= info.Mode()
	}
	return mode, err
}

// create makes an empty file with a mode, which the save of a file to path then keeps; with 0 it does nothing.
func create(path string, mode fs.FileMode) error {
	if mode == 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close())
}

// complete returns an error unless dir has the files: something else may have removed them.
func complete(dir string, files []string) error {
	for _, base := range files {
		if _, err := os.Lstat(filepath.Join(dir, base)); err != nil {
			return err
		}
	}
	return nil
}

// commit makes tmp the checkpoint dir.
func commit(tmp, dir string) error {
	old := beside(dir, oldSuffix)
	err := os.Rename(dir, old)
	if errors.Is(err, syscall.EXDEV) { // overlayfs does not rename a directory of a lower layer: of a container's image
		return commitBeside(tmp, dir)
	}
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
	_ = remove(old) // otherwise the next Save removes it
	return nil
}

// commitBeside makes tmp the checkpoint dir where the one before cannot be renamed.
func commitBeside(tmp, dir string) error {
	parent := filepath.Dir(dir)
	if err := os.Rename(tmp, beside(dir, newSuffix)); err != nil {
		return err
	}
	if err := syncdir.Sync(parent); err != nil {
		return err
	}
	makeWritable(dir)
	if err := create(filepath.Join(dir, removing), 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := syncdir.Sync(dir); err != nil {
		return err
	}
	if err := settle(dir); err != nil {
		return err
	}
	return syncdir.Sync(parent)
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

// reserve returns an error if another save to the directory is in progress, here or in another process.
func (s *saver) reserve() error {
	other := fmt.Errorf("another save to %s is in progress: wait for it first", s.dir)
	if _, here := saving.LoadOrStore(s.dir, s); here {
		return other
	}
	if err := os.MkdirAll(filepath.Dir(s.dir), 0o777); err != nil {
		return err
	}
	var free bool
	var err error
	if s.lock, s.only, free, err = lock(beside(s.dir, lockSuffix)); err == nil && !free {
		return other
	}
	return err
}

// unreserve ends what reserve has begun; it does nothing for another save.
func (s *saver) unreserve() {
	if s.lock != nil {
		_ = os.Remove(s.lock.Name()) // while it is locked, so that it is not another save's
		_ = s.lock.Close()
		s.lock = nil
	}
	saving.CompareAndDelete(s.dir, s)
}

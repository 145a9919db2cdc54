package libtorch

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReplaceDirOfALowerLayer tests that replaceDir replaces a directory of a lower layer of an overlay: what the image
// of a container had before the container began. Only root may mount one, so the test runs again as root of its own
// namespace.
func TestReplaceDirOfALowerLayer(t *testing.T) {
	const inside = "LINSTOCK_TEST_OVERLAY"
	if os.Getenv(inside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		switch exit := new(exec.ExitError); {
		case err != nil && !errors.As(err, &exit), strings.Contains(string(out), "--- SKIP"):
			t.Skipf("this machine mounts no overlay for a user: %v\n%s", err, out)
		case err != nil:
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	write(at("lower", "cache", "2.15.0", "lib.so"), "old")
	write(at("lower", "cache", "2.15.0", "gone.so"), "old")
	if err := errors.Join(os.Mkdir(at("upper"), 0o755), os.Mkdir(at("work"), 0o755), os.Mkdir(at("merged"), 0o755)); err != nil {
		t.Fatal(err)
	}
	options := "userxattr,lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := syscall.Mount("overlay", at("merged"), "overlay", 0, options); err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := syscall.Unmount(at("merged"), 0); err != nil {
			t.Error(err)
		}
	}()
	cache := at("merged", "cache")
	target, temp := filepath.Join(cache, "2.15.0"), filepath.Join(cache, tempPrefix+"1")
	write(filepath.Join(temp, "lib.so"), "new")
	if err := os.Rename(target, target+"x"); !errors.Is(err, syscall.EXDEV) {
		t.Skipf("this overlay renames directories: %v", err)
	}
	if err := replaceDir(temp, target); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(filepath.Join(target, "lib.so")); err != nil || string(data) != "new" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(filepath.Join(target, "gone.so")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of the old directory: %v", err)
	}
	if left := leftovers(t, cache); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

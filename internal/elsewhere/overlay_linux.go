package elsewhere

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const inOverlay = "LINSTOCK_TEST_OVERLAY"

// Overlay returns a directory with what lower makes, as a container sees what its image has: in the lower layer of an
// overlay, whose directories cannot be renamed. Only root may mount one, so the current test runs again in a new
// process, as root of its own namespace. Overlay reports whether this is the new process; otherwise the test must
// return.
func Overlay(t *testing.T, lower func(dir string)) (merged string, here bool) {
	t.Helper()
	if os.Getenv(inOverlay) != t.Name() {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inOverlay+"="+t.Name())
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
		return "", false
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.MkdirAll(at("lower/probe"), 0o755), os.Mkdir(at("upper"), 0o755),
		os.Mkdir(at("work"), 0o755), os.Mkdir(at("merged"), 0o755)); err != nil {
		t.Fatal(err)
	}
	lower(at("lower"))
	options := "userxattr,lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := syscall.Mount("overlay", at("merged"), "overlay", 0, options); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(at("merged"), 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.Rename(at("merged/probe"), at("merged/renamed")); !errors.Is(err, syscall.EXDEV) {
		t.Skipf("this overlay renames directories: %v", err)
	}
	return at("merged"), true
}

//go:build unix

package dcp

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/internal/leak"
)

// TestLockAfterSignal tests that a lock that a signal interrupts is taken in the next attempt.
func TestLockAfterSignal(t *testing.T) {
	leak.Check(t)
	calls := 0
	flock = func(fd, how int) error {
		if calls++; calls <= 2 {
			return unix.EINTR
		}
		return unix.Flock(fd, how)
	}
	defer func() { flock = unix.Flock }()
	path := filepath.Join(t.TempDir(), "lock")
	f, sure, free, err := lock(path)
	if err != nil || !sure || !free || calls != 3 {
		t.Fatalf("sure %v, free %v after %d calls, %v; want a lock in the third", sure, free, calls, err)
	}
	defer func() { _ = f.Close() }()
	if _, _, free, err := lock(path); err != nil || free {
		t.Errorf("free %v, %v; want the file to be locked", free, err)
	}
}

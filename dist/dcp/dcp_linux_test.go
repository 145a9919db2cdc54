package dcp_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/internal/elsewhere"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// asOwner calls f without root's right to write where the permissions forbid it.
func asOwner(f func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		return err
	}
	less := had
	less[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&header, &less[0]); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Capset(&header, &had[0])) }()
	return f()
}

// TestWriteProtected tests that saves replace a checkpoint that is write-protected.
func TestWriteProtected(t *testing.T) {
	leak.Check(t)
	dir := filepath.Join(t.TempDir(), "run")
	save := func() error { return dcp.Save(ctx, nil, dir, dcp.State{Shards: divided(nil, false)}) }
	alone(t, save)
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	for _, path := range files {
		if err := os.Chmod(path, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		alone(t, func() error { return asOwner(save) })
		tidy(t, dir)
	}
	alone(t, func() error { return loads(nil, dir) })
}

// TestMountPoint tests that a save to a mount point says at once that it is one.
func TestMountPoint(t *testing.T) {
	leak.Check(t)
	if err := dcp.Save(ctx, nil, "/proc", dcp.State{}); err == nil || !strings.Contains(err.Error(), "is a mount point") {
		t.Errorf("a save to a mount point: %v", err)
	}
}

// TestLowerLayer tests that saves replace a checkpoint of a container's image.
func TestLowerLayer(t *testing.T) {
	leak.Check(t)
	save := func(dir string, shards ...dcp.Shard) error { return dcp.Save(ctx, nil, dir, dcp.State{Shards: shards}) }
	merged, here := elsewhere.Overlay(t, func(lower string) {
		alone(t, func() error {
			return save(filepath.Join(lower, "runs", "run"), dcp.Shard{Name: "old", Tensor: tensor.Ones([]int{2})})
		})
	})
	if !here {
		return
	}
	dir := filepath.Join(merged, "runs", "run")
	for range 2 {
		alone(t, func() error { return errors.Join(save(dir, divided(nil, false)...), loads(nil, dir)) })
		tidy(t, dir)
	}
}

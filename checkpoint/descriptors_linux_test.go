//go:build linux

package checkpoint_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// Files that a program drops without Close do not exhaust the descriptors.
func TestLoadManyFiles(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "file")
	x := tensor.Ones([]int{8})
	defer x.Release()
	if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": x}, nil); err != nil {
		t.Fatal(err)
	}
	leak.LimitDescriptors(t, 20)
	for i := range 100 {
		if _, err := checkpoint.Load(path); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
}

// The pages of a File that a program drops, without Close or after it, are unmapped when it is unreachable and no
// tensor uses them.
func TestDroppedFilesAreUnmapped(t *testing.T) {
	leak.Check(t)
	path := filepath.Join(t.TempDir(), "file")
	scoped(t, func() {
		if err := checkpoint.Save(path, map[string]*tensor.Tensor{"x": tensor.Ones([]int{8}), "y": tensor.Ones([]int{8})}, nil); err != nil {
			t.Fatal(err)
		}
	})
	mappings := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(maps), path)
	}
	var kept, closed *tensor.Tensor
	for i := range 100 {
		f, err := checkpoint.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		switch i {
		case 50:
			kept = f.Tensor("x")
		case 51:
			closed = f.Tensor("x")
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	open, err := checkpoint.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
	if n := mappings(); n != 3 {
		t.Fatalf("%d mappings, want those of two tensors and that of an open file", n)
	}
	for _, x := range []*tensor.Tensor{kept, closed} {
		sum := x.Sum()
		if v, err := sum.Item(); err != nil || v != 8 {
			t.Errorf("the sum of a tensor of a dropped file: %v, %v", v, err)
		}
		sum.Release()
		x.Release()
	}
	if err := open.Close(); err != nil {
		t.Error(err)
	}
	tensor.Flush()
	if err := vram.Collect(); err != nil {
		t.Fatal(err)
	}
	if n := mappings(); n != 0 {
		t.Errorf("%d mappings are left", n)
	}
}

// Load maps a file when the addresses of the process are used up by files that are unreachable.
func TestLoadWithoutAddresses(t *testing.T) {
	leak.Check(t)
	const size = 1 << 40
	path := filepath.Join(t.TempDir(), "file")
	head := fmt.Sprintf(`{"x":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}`, size, size)
	if err := os.WriteFile(path, append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size+8+int64(len(head))); err != nil {
		t.Skip("no sparse files of 1 TiB: ", err)
	}
	var pages uint64
	text, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(text), &pages)
	}
	var before unix.Rlimit
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_AS, &before)
	}
	if err == nil {
		err = unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: pages*uint64(os.Getpagesize()) + size + size/2, Max: before.Max})
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_AS, &before) }()
	for range 3 {
		if _, err := checkpoint.Load(path); err != nil {
			t.Fatal(err)
		}
	}
	f, err := checkpoint.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := checkpoint.Load(path); err == nil || !strings.Contains(err.Error(), "Mapped(false)") {
		t.Errorf("beside an open file of that size: %v", err)
	}
	runtime.KeepAlive(f)
	if err := vram.Collect(); err != nil { // nothing is released of the file that was not mapped
		t.Error(err)
	}
}

//go:build linux

package autograd_test

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// The graphs that a program drops without a backward pass do not exhaust the descriptors.
func TestSaveOnDiskManyFiles(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	x := tensor.Ones([]int{8}).RequiresGrad_()
	defer x.Release()
	leak.LimitDescriptors(t, 20)
	dir := t.TempDir()
	region := func() {
		t.Helper()
		y := autograd.SavedTensors(autograd.SaveOnDisk(dir, autograd.MinBytes(0)), func() *tensor.Tensor { return x.Exp().Sin() })
		if err := y.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		region()
	}
	// Other files have taken the rest.
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		defer f.Close()
	}
	region()
}

// A process that the program starts does not inherit the file, whose space would stay in use as long as it runs.
func TestSaveOnDiskIsNotInherited(t *testing.T) {
	leak.Check(t)
	x := tensor.Ones([]int{8}).RequiresGrad_()
	defer x.Release()
	y := autograd.SavedTensors(autograd.SaveOnDisk(t.TempDir(), autograd.MinBytes(0)), func() *tensor.Tensor { return x.Exp().Sin() })
	defer y.Release()
	if err := y.Err(); err != nil {
		t.Fatal(err)
	}
	files := func(dir string) string {
		t.Helper()
		out, err := exec.Command("ls", "-l", dir).Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	const name = "linstock-saved-"
	if own := files(fmt.Sprintf("/proc/%d/fd", os.Getpid())); !strings.Contains(own, name) {
		t.Fatalf("the file is not open:\n%s", own)
	}
	if inherited := files("/proc/self/fd"); strings.Contains(inherited, name) {
		t.Errorf("a process that was started has\n%s", inherited)
	}
}

//go:build linux

package autograd_test

import (
	"os"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// The graphs that a program drops without a backward pass do not exhaust the descriptors.
func TestSaveOnDiskManyFiles(t *testing.T) {
	leak.Check(t)
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

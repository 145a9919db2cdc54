//go:build cgo

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/locate"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

func init() { probeRuntime = openAndCompute }

// openAndCompute does what a program does first, and checks the result.
func openAndCompute() (r runtimeReport) {
	fail := func(err error) runtimeReport {
		r.Error = err.Error()
		var fault *locate.Fault
		if errors.As(err, &fault) {
			r.Remedy = fault.Remedy
		}
		return r
	}
	var err error
	if r.Torch, err = tensor.Version(); err != nil {
		return fail(err)
	}
	if r.Shim, err = tensor.ShimPath(); err != nil {
		return fail(err)
	}
	openMP := cshim.OpenMPInUse()
	r.OpenMP, r.LLVM = openMP.Path, openMP.LLVM
	devices, err := tensor.Devices()
	if err != nil {
		return fail(err)
	}
	if r.CUDA, r.NoCUDA, err = cudaReport(); err != nil {
		return fail(err)
	}
	if r.CUDA != "" {
		settings, err := vram.ReadAllocatorSettings()
		if err != nil {
			return fail(err)
		}
		r.Options = settings.String()
	}
	for _, d := range devices {
		r.Devices = append(r.Devices, d.String())
		x := tensor.FromSlice([]float32{1, 2, 3, 4}, []int{2, 2}, d)
		got, err := tensor.Data[float32](x.MatMul(x))
		if err != nil {
			return fail(fmt.Errorf("multiply matrices on %s: %w", d, err))
		}
		if want := []float32{7, 10, 15, 22}; !slices.Equal(got, want) {
			return fail(fmt.Errorf("multiply matrices on %s: got %v, want %v", d, got, want))
		}
	}
	r.Compute = "multiplied matrices on every device, with the right result"
	return r
}

// cudaReport returns the names of the CUDA devices, or the reason that there are none.
func cudaReport() (names, whyNot string, err error) {
	n, whyNot := cshim.CUDA()
	var all []string
	for i := range n {
		name, err := cshim.DeviceName(cshim.DeviceWord(int32(tensor.CUDAType), i))
		if err != nil {
			return "", "", err
		}
		all = append(all, fmt.Sprintf("cuda:%d %s", i, name))
	}
	return strings.Join(all, ", "), whyNot, nil
}

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func init() { programs["float8"] = float8 }

// float8 measures forward and backward passes of a Linear in bfloat16, and with each recipe of float8.
func float8([]string) error {
	rows, in, out := 16384, 4096, 14336
	recipes := []nn.Float8Recipe{nn.NoFloat8, nn.Float8TensorWise, nn.Float8RowWise, nn.Float8RowWiseWithGWHP}
	if dry() {
		rows, in, out, recipes = 32, 64, 64, recipes[:2] // the kernel that replaces CUDA's has no scales for rows
	}
	l := nn.NewLinear(in, out, nn.DType(tensor.BFloat16), nn.Device(gpu))
	defer nn.Release(l)
	return tensor.WithScope(func() error {
		x := tensor.Randn([]int{rows, in}, tensor.BFloat16, gpu).RequiresGrad_()
		if err := errors.Join(l.Err(), x.Err()); err != nil {
			return err
		}
		var exact float64
		for _, r := range recipes {
			l.Float8 = r
			ms, err := medianMS(func() error {
				return errors.Join(x.SetGrad(nil), l.Weight.SetGrad(nil), l.Bias.SetGrad(nil), l.Forward(x).Sum().Backward())
			})
			if err != nil && strings.Contains(err.Error(), "compute capability") {
				row(streamRow{Row: "a Linear, recipe " + r.String(), OK: true, Note: "this device has no kernels of float8"})
				return nil
			} else if err != nil {
				return err
			}
			if r == nn.NoFloat8 {
				exact = ms
			}
			norm, err := x.Grad().To(tensor.Float32).Norm().Item()
			row(streamRow{Row: "a Linear, recipe " + r.String(), MS: ms, OK: err == nil && (norm > 0 || dry()),
				Note: fmt.Sprintf("%.2f of bfloat16; norm of x's gradient %.4g%s", ms/max(exact, 1e-3), norm, text(err))})
		}
		return nil
	})
}

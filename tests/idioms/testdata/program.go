// The program around the snippets of docs/from-pytorch.md. It prints what each assigns to y as JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/distributions"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/profiler"
	"github.com/linstock-ml/linstock/tensor"
)

var ys []any

func report(y any) error {
	switch v := y.(type) {
	case *tensor.Tensor:
		values, err := tensor.Data[float64](v.Detach().To(tensor.Float64).Contiguous())
		if err != nil {
			return err
		}
		y = map[string]any{"dtype": v.DType().String(), "shape": append([]int{}, v.Shape()...), "values": values}
	case tensor.Device:
		y = v.String()
	}
	ys = append(ys, y)
	return nil
}

func main() {
	dir, err := os.MkdirTemp("", "idioms")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)
	n := 0
	run := func(f func(ctx context.Context, x, w, i *tensor.Tensor, device tensor.Device, path string) error) {
		if err := tensor.WithScope(func() error {
			x := tensor.Arange(0, 12, tensor.Float32).Reshape(3, 4).Div(8)
			w := tensor.Arange(0, 8, tensor.Float32).Reshape(4, 2).Div(8).Sub(0.5)
			i := tensor.FromSlice([]int64{0, 1, 1}, nil)
			return f(context.Background(), x, w, i, tensor.CPU, filepath.Join(dir, "model"))
		}); err != nil {
			fmt.Fprintf(os.Stderr, "snippet %d: %v\n", n, err)
			os.Exit(1)
		}
		n++
	}
	_ = strings.TrimPrefix
	// snippets
	if err := json.NewEncoder(os.Stdout).Encode(ys); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

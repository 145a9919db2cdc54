package autograd_test

import (
	"fmt"
	"log"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/tensor"
)

func Example() {
	x := tensor.FromSlice([]float64{1, 2, 3}, nil).RequiresGrad_()
	y := x.Mul(x).Sum()
	grads, err := autograd.Grad([]*tensor.Tensor{y}, []*tensor.Tensor{x})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tensor.Data[float64](grads[0]))
	// Output: [2 4 6] <nil>
}

// Exp is the exponential function. Its gradient needs only its output.
type Exp struct{}

func (Exp) Forward(ctx *autograd.Context, in ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	y := in[0].Exp()
	ctx.SaveForBackward(y)
	return []*tensor.Tensor{y}, nil
}

func (Exp) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	return []*tensor.Tensor{grads[0].Mul(ctx.Saved()[0])}, nil
}

func ExampleApply() {
	x := tensor.FromSlice([]float64{0, 1}, nil).RequiresGrad_()
	exp := func(in ...*tensor.Tensor) *tensor.Tensor {
		out, err := autograd.Apply(Exp{}, in...)
		if err != nil {
			return tensor.Failed(err)
		}
		return out[0]
	}
	fmt.Println(autograd.GradCheck(exp, []*tensor.Tensor{x}))
	if err := exp(x).Sum().Backward(); err != nil {
		log.Fatal(err)
	}
	g, err := tensor.Data[float64](x.Grad())
	fmt.Printf("%.3f %v\n", g, err)
	// Output:
	// <nil>
	// [1.000 2.718] <nil>
}

// Recompute each block during the backward pass: until then only the blocks' inputs are kept.
func ExampleCheckpoint() {
	var blocks [8]*tensor.Tensor
	for i := range blocks {
		blocks[i] = tensor.Eye(4).RequiresGrad_()
	}
	calls := 0
	x := tensor.Ones([]int{2, 4}) // data, which requires no gradient
	for _, w := range blocks {
		x = autograd.Checkpoint(func(in ...*tensor.Tensor) *tensor.Tensor {
			calls++
			return in[0].MatMul(w).ReLU()
		}, x)
	}
	fmt.Println(calls, "calls in the forward pass")
	if err := x.Sum().Backward(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(calls, "calls in all")
	fmt.Println(blocks[0].Grad().Sum().Item())
	// Output:
	// 8 calls in the forward pass
	// 16 calls in all
	// 32 <nil>
}

// Compute the forward pass in mixed precision. The parameter and its gradient stay in float32.
func ExampleAutocast() {
	w := tensor.Eye(4).RequiresGrad_()
	x := tensor.Ones([]int{2, 4})
	y := autograd.Autocast(tensor.CPUType, tensor.BFloat16, func() *tensor.Tensor { return x.MatMul(w) })
	if err := y.Sum().Backward(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(y.DType(), w.DType(), w.Grad().DType())
	// Output: bfloat16 float32 float32
}

func ExampleDualLevel() {
	x := tensor.FromSlice([]float64{1, 2, 3}, nil)
	direction := tensor.FromSlice([]float64{1, 0, 1}, nil)
	err := autograd.DualLevel(func() error {
		dual := autograd.MakeDual(x, direction)
		y, derivative := autograd.UnpackDual(dual.Mul(dual))
		fmt.Println(tensor.Data[float64](y))
		fmt.Println(tensor.Data[float64](derivative))
		return nil
	})
	fmt.Println(err)
	// Output:
	// [1 4 9] <nil>
	// [2 0 6] <nil>
	// <nil>
}

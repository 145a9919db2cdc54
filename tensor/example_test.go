package tensor_test

import (
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/tensor"
)

// Fit a line to five points by gradient descent.
func Example() {
	err := tensor.WithScope(func() error {
		x := tensor.Linspace(-1, 1, 5).View(5, 1)
		y := x.Mul(3).Add(0.5)
		w := tensor.Zeros([]int{1, 1}).RequiresGrad_()
		b := tensor.Zeros([]int{1}).RequiresGrad_()
		parameters := []*tensor.Tensor{w, b}
		for range 200 {
			err := tensor.WithScope(func() error {
				loss := x.MatMul(w).Add(b).MSELoss(y)
				if err := loss.Backward(); err != nil {
					return err
				}
				return autograd.NoGrad(func() error {
					for _, p := range parameters {
						if err := p.Sub_(p.Grad(), tensor.Alpha(0.1)).Err(); err != nil {
							return err
						}
					}
					return tensor.ZeroGrads(parameters, true)
				})
			})
			if err != nil {
				return err
			}
		}
		slope, err := w.Item()
		if err != nil {
			return err
		}
		offset, err := b.Item()
		if err != nil {
			return err
		}
		fmt.Printf("y = %.2f x + %.2f\n", slope, offset)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: y = 3.00 x + 0.50
}

func ExampleTensor() {
	_ = tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{1, 2, 3, 4, 5, 6}, []int{2, 3})
		fmt.Println(x)
		fmt.Println(x.Mul(x).Sum(tensor.Dim(1)))
		fmt.Println(x.MatMul(x.T()).Shape(), x.DType())
		data, err := tensor.Data[float32](x.Add(0.5))
		fmt.Println(data, err)
		return nil
	})
	// Output:
	// tensor([[1., 2., 3.],
	//         [4., 5., 6.]])
	// tensor([14., 77.])
	// [2 2] float32
	// [1.5 2.5 3.5 4.5 5.5 6.5] <nil>
}

func ExampleTensor_Index() {
	_ = tensor.WithScope(func() error {
		x := tensor.Arange(0, 12).View(3, 4)
		fmt.Println(x.Index(-1))
		fmt.Println(x.Index(tensor.All, tensor.Range(1, 3)))
		fmt.Println(x.Index("..., ::2"))
		fmt.Println(x.Index([]int{0, 2}, 1))
		fmt.Println(x.Index(x.Gt(8)))
		if err := x.SetIndex(tensor.From(1), 0); err != nil {
			return err
		}
		fmt.Println(x)
		return nil
	})
	// Output:
	// tensor([ 8,  9, 10, 11])
	// tensor([[ 1,  2],
	//         [ 5,  6],
	//         [ 9, 10]])
	// tensor([[ 0,  2],
	//         [ 4,  6],
	//         [ 8, 10]])
	// tensor([1, 9])
	// tensor([ 9, 10, 11])
	// tensor([[0, 1, 2, 3],
	//         [0, 0, 0, 0],
	//         [0, 0, 0, 0]])
}

func ExampleTensor_Err() {
	x := tensor.Ones([]int{2, 3})
	defer x.Release()
	y := x.MatMul(x).Add(1).ReLU() // the later operators return MatMul's error
	var e *tensor.Error
	if errors.As(y.Err(), &e) {
		fmt.Println(e.Op, e.Operands, strings.HasSuffix(e.Caller[:strings.LastIndex(e.Caller, ":")], "example_test.go"))
	}
	// Output: MatMul [float32(2, 3) float32(2, 3)] true
}

func ExampleScope() {
	var kept, lost *tensor.Tensor
	err := tensor.WithScope(func() error {
		lost = tensor.Ones([]int{2}) //linstockvet:ignore scopeescape the example uses it after its scope
		kept = lost.Add(1).Keep()
		return nil
	})
	fmt.Println(err, kept, errors.Is(lost.Add(1).Err(), tensor.ErrReleased))
	kept.Release()
	// Output: <nil> tensor([2., 2.]) true
}

func ExampleTidy() {
	scope, err := tensor.NewScope()
	if err != nil {
		log.Fatal(err)
	}
	defer scope.Close()
	x := tensor.Arange(0, 5, tensor.Float32)
	norm := tensor.Tidy(func() *tensor.Tensor {
		return x.Mul(x).Sum().Sqrt() // the square and its sum are freed here
	})
	fmt.Println(norm, scope.Contains(x), scope.Len())
	// Output: tensor(5.4772) true 2
}

func ExampleTensor_Backward() {
	_ = tensor.WithScope(func() error {
		x := tensor.FromSlice([]float32{1, 2, 3}, nil).RequiresGrad_()
		y := x.Pow(2).Sum()
		fmt.Println(y)
		if err := y.Backward(); err != nil {
			return err
		}
		fmt.Println(x.Grad())
		return nil
	})
	// Output:
	// tensor(14., grad_fn=<SumBackward1>)
	// tensor([2., 4., 6.])
}

func ExampleCall() {
	_ = tensor.WithScope(func() error {
		out, err := tensor.Call("aten::bucketize.Scalar", 3, tensor.FromSlice([]int{1, 3, 5}, nil))
		if err != nil {
			return err
		}
		fmt.Println(out[0])
		return nil
	})
	// Output: tensor(1)
}

func ExampleItem() {
	x := tensor.FromScalar(7)
	defer x.Release()
	n, err := tensor.Item[int32](x)
	fmt.Println(n, err)
	_, err = tensor.Item[bool](x)
	fmt.Println(errors.Is(err, tensor.ErrArgument))
	// Output:
	// 7 <nil>
	// true
}

// Carry a hidden state from step to step, although each step's tensors are freed at its end.
func ExampleReplace() {
	w, x := tensor.Full([]int{2, 2}, 0.25), tensor.Ones([]int{1, 2})
	var hidden *tensor.Tensor
	if err := tensor.Replace(&hidden, tensor.Zeros([]int{1, 2})); err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		err := tensor.WithScope(func() error {
			next := x.Add(hidden.MatMul(w)).ReLU()
			return tensor.Replace(&hidden, next.Detach())
		})
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(hidden)
	// Output: tensor([[1.7500, 1.7500]])
}

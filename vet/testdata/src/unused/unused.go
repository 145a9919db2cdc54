package unused

import (
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func operators(x, w *tensor.Tensor) *tensor.Tensor {
	x.Mul(2)                 // want `the result of Mul is not used; Mul_ writes into the receiver`
	x.Alias()                // want `the result of Alias is not used$`
	(x.Mul(2))               // want `the result of Mul is not used; Mul_ writes into the receiver`
	x.Mul_(2).Mul(3)         // want `the result of Mul is not used`
	tensor.Zeros(2)          // want `the result of tensor.Zeros is not used`
	nn.Parameters(nil)       // want `the result of nn.Parameters is not used`
	go x.Mul(2)              // want `the result of Mul is not used`
	defer x.Mul(2)           // want `the result of Mul is not used`
	f := func() { w.Mul(x) } // want `the result of Mul is not used`
	f()
	return x
}

func layers(l nn.Layer) *nn.Parametrized {
	nn.WeightNorm(l, "weight") // want `the result of nn.WeightNorm is not used; it takes the place of the layer$`
	nn.NewLinear(2, 2)         // want `the result of nn.NewLinear is not used$`
	_ = nn.WeightNorm(l, "weight")
	return nn.WeightNorm(l, "weight")
}

func fine(x *tensor.Tensor) *tensor.Tensor {
	x.Mul_(2)
	x.Keep()
	x.MoveOut()
	x.Release()
	tensor.Tidy(func() *tensor.Tensor { return x })
	_ = x.Mul(2)
	y := x.Mul(2)
	own(y)
	mul := x.Mul
	mul(2)
	//linstockvet:ignore unusedresult it is what is timed
	x.Mul(3)
	return y.Mul(3)
}

func own(x *tensor.Tensor) *tensor.Tensor { return x }

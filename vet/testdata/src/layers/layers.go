package layers

import "github.com/linstock-ml/linstock/tensor"

type tap struct {
	seen *tensor.Tensor
	all  []*tensor.Tensor
	c    chan *tensor.Tensor
}

func (t *tap) Forward(x *tensor.Tensor) *tensor.Tensor {
	t.seen = x               // want `Forward keeps its argument \(it is stored in a field or package variable\)`
	t.all = append(t.all, x) // want `Forward keeps its argument`
	t.c <- x                 // want `Forward keeps its argument \(it is sent to a channel\)`
	return x
}

type cache struct{ last *tensor.Tensor }

func (c *cache) Forward(x *tensor.Tensor) *tensor.Tensor {
	if c.last != nil {
		return c.last // want `Forward returns the tensor in last, which the layer keeps`
	}
	y := x
	c.last = y // want `Forward keeps its argument`
	return x.Mul(2)
}

type good struct{ last *tensor.Tensor }

func (g *good) Forward(x *tensor.Tensor) *tensor.Tensor {
	g.last = x.Alias().Keep()
	x = x.Mul(2)
	g.last = x
	if g.last == nil {
		return x.Mul(3)
	}
	return x.Alias()
}

// Not a layer: its Forward takes more.
type other struct{ last *tensor.Tensor }

func (o *other) Forward(x, h *tensor.Tensor) *tensor.Tensor {
	o.last = h
	return x
}

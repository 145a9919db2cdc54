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

var zeros []*tensor.Tensor

type table struct {
	rows  []*tensor.Tensor
	inner struct{ named map[string]*tensor.Tensor }
}

func (t *table) Forward(x *tensor.Tensor) *tensor.Tensor {
	switch len(t.rows) {
	case 0:
		return zeros[0] // want `Forward returns the tensor in zeros, which the layer keeps`
	case 1:
		return t.rows[0] // want `Forward returns the tensor in rows, which the layer keeps`
	}
	return (*t).inner.named["x"] // want `Forward returns the tensor in named, which the layer keeps`
}

type state struct {
	h   *tensor.Tensor
	all []*tensor.Tensor
}

type recurrent struct{}

// What a local variable holds may have been made in this call.
func (recurrent) Forward(x *tensor.Tensor) *tensor.Tensor {
	s := state{h: x.Mul(2)}
	for range 3 {
		s = state{h: s.h.Add(x), all: []*tensor.Tensor{s.h}}
	}
	if len(s.all) > 1 {
		return s.all[0]
	}
	return s.h
}

type entry struct{ x *tensor.Tensor }

type memory struct {
	named   map[string]*tensor.Tensor
	pair    [2]*tensor.Tensor
	entries []*entry
}

func (m *memory) Forward(x *tensor.Tensor) *tensor.Tensor {
	m.named = map[string]*tensor.Tensor{"x": x} // want `Forward keeps its argument \(it is stored in a struct, map or array\)`
	(*m).named["x"] = x                         // want `Forward keeps its argument \(it is stored in an element\)`
	m.pair = [2]*tensor.Tensor{1: x}            // want `Forward keeps its argument`
	m.entries = append(m.entries, &entry{x})    // want `Forward keeps its argument`
	m.entries[0].x = x                          // want `Forward keeps its argument`
	return x
}

type rows []*tensor.Tensor

func (r rows) Forward(x *tensor.Tensor) *tensor.Tensor {
	r[0] = x // want `Forward keeps its argument`
	return x
}

type stepper struct{ w *tensor.Tensor }

func (l *stepper) step(s *state) { s.h = s.h.Mul(l.w) }

// What a local variable holds ends with the call.
func (l *stepper) Forward(x *tensor.Tensor) *tensor.Tensor {
	s := &state{h: x}
	s.all = []*tensor.Tensor{x}
	for range 3 {
		l.step(s)
	}
	in := map[string]*tensor.Tensor{"x": x}
	in["y"] = x
	both := [2]*tensor.Tensor{x, s.h}
	both[0] = x
	var entries []*entry
	entries = append(entries, &entry{x}, &entry{in["x"]})
	if len(entries) == 0 {
		return both[0].Mul(in["y"])
	}
	return s.h
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

package escape

import (
	"errors"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/data"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

type model struct {
	lin    *nn.Linear
	hidden *tensor.Tensor
	all    []*tensor.Tensor
	named  map[string]*tensor.Tensor
	cur    atomic.Pointer[tensor.Tensor]
	value  float64
}

func (m *model) forward(x *tensor.Tensor) *tensor.Tensor { return m.lin.Forward(x).Mul(2) }
func (m *model) weight() *tensor.Tensor                  { return m.lin.Weight }
func (m *model) kept(x *tensor.Tensor) *tensor.Tensor    { return x.Mul(2).Keep() }

type layer interface {
	Forward(x *tensor.Tensor) *tensor.Tensor
	State() *tensor.Tensor
}

var global *tensor.Tensor

func fields(m *model, x *tensor.Tensor, out chan *tensor.Tensor) (*tensor.Tensor, error) {
	var last, moved *tensor.Tensor
	err := tensor.WithScope(func() error {
		y := x.Mul(2)
		m.hidden = y                    // want `a tensor of the scope is stored in a field of something from outside`
		m.all = append(m.all, y.Mul(3)) // want `stored in a field of something from outside`
		m.all[0] = y                    // want `stored in a list from outside`
		m.named["y"] = y                // want `put in a map from outside`
		m.cur.Store(y)                  // want `stored in a Pointer from outside`
		out <- y                        // want `sent to a channel`
		global = m.forward(y)           // want `stored in a package variable`
		last = nn.MSELoss(y, x)         // want `stored in a variable from outside`
		moved = y.Mul(3).MoveOut()
		return nil
	})
	moved.Release()
	return last, err
}

func keeps(m *model, l layer, s *tensor.Scope, x *tensor.Tensor, out chan *tensor.Tensor) error {
	var a, b *tensor.Tensor
	err := tensor.WithScope(func() error {
		m.hidden = x.Mul(2).Keep()
		out <- x.Mul(2).Keep()
		global = m.kept(x)
		m.named["w"] = m.weight()
		m.named["s"] = l.State()
		m.all = append(m.all, nn.Parameters(m)...)
		a = x
		b = x.Mul_(3)
		c := x.Mul(4)
		c.Keep()
		m.hidden = c
		d := x.Mul(4)
		if err := s.Adopt(d); err != nil {
			return err
		}
		m.all[0] = d
		parts, err := x.Split(2)
		if err != nil {
			return err
		}
		for _, p := range parts {
			p.Keep()
		}
		m.all = parts
		local := map[string]*tensor.Tensor{}
		local["x"] = x.Mul(2)
		pipe := make(chan *tensor.Tensor, 1)
		pipe <- x.Mul(2)
		own := &model{}
		own.hidden = x.Mul(3)
		m.value, err = own.hidden.Item()
		m.hidden = nil
		return err
	})
	b.Release()
	a.Release()
	return err
}

func dynamic(m *model, l layer, x *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		m.hidden = l.Forward(x) // want `stored in a field`
		return nil
	})
}

type result struct{ loss *tensor.Tensor }

func structs(x *tensor.Tensor) (all []result, err error) {
	err = tensor.WithScope(func() error {
		r := result{loss: x.Mul(2)}
		all = append(all, r) // want `stored in a variable from outside`
		return autograd.NoGrad(func() error {
			all[0].loss = x.Mul(3) // want `stored in a field`
			return nil
		})
	})
	return all, err
}

func loops(m *model, l *data.Loader) (losses []*tensor.Tensor, sum float64, err error) {
	var state *tensor.Tensor
	for batch, err := range l.Batches() {
		if err != nil {
			return nil, 0, err
		}
		loss := m.forward(batch.Inputs)
		losses = append(losses, loss) // want `stored in a variable from outside`
		m.hidden = batch.Targets      // want `stored in a field`
		if state != nil {
			state.Release()
		}
		state = loss.Mul(2).Keep()
		v, err := loss.Item()
		if err != nil {
			return nil, 0, err
		}
		sum += v
	}
	return losses, sum, nil
}

func first(m *model, l *data.Loader) *tensor.Tensor {
	for batch, err := range l.Batches() {
		if err != nil {
			return nil
		}
		return m.forward(batch.Inputs) // want `a tensor of the scope is returned`
	}
	return nil
}

func firstMoved(m *model, l *data.Loader) *tensor.Tensor {
	for batch, err := range l.Batches() {
		if err != nil {
			return nil
		}
		return m.forward(batch.Inputs).MoveOut()
	}
	return nil
}

func returns(x *tensor.Tensor) (*tensor.Tensor, error) {
	before := x.Mul(1)
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	y := x.Mul(2)
	if y.Err() != nil {
		return before, nil
	}
	return y.Mul(3), nil // want `a tensor of the scope is returned`
}

func returnsMoved(x *tensor.Tensor) (*tensor.Tensor, error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	y := x.Mul(2).Mul(3).MoveOut()
	if err := s.Close(); err != nil {
		return nil, err
	}
	return y.Mul(2), nil
}

func (m *model) cached(x *tensor.Tensor) error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer s.Close()
	m.hidden = x.Mul(2) // want `stored in a field`
	return nil
}

func tidy(m *model, x *tensor.Tensor) *tensor.Tensor {
	return tensor.Tidy(func() *tensor.Tensor {
		y := x.Mul(2)
		m.hidden = y // want `stored in a field`
		return y.Mul(3)
	})
}

func hooks(m *model, x *tensor.Tensor) error {
	_, err := x.RegisterHook(func(grad *tensor.Tensor) (*tensor.Tensor, error) {
		m.hidden = grad // want `stored in a field`
		return grad.Mul(2), nil
	})
	return err
}

type square struct{ saved *tensor.Tensor }

func (f *square) Forward(ctx *autograd.Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	f.saved = inputs[0].Mul(2) // want `stored in a field`
	return []*tensor.Tensor{inputs[0].Mul(inputs[0])}, nil
}

// nested: what moves out of the inner scope is in the outer one.
func nested(m *model, x *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		y := tensor.Tidy(func() *tensor.Tensor { return x.Mul(2) })
		m.hidden = y // want `stored in a field`
		return nil
	})
}

// inside: a variable that is written before it is read, and only in the body, is no way out.
func inside(m *model, l *data.Loader) (sum float64, err error) {
	var x, before *tensor.Tensor
	for batch, err := range l.Batches() {
		if err != nil {
			return 0, err
		}
		x = batch.Inputs
		batch.Inputs = batch.Inputs.Mul(2)
		if before != nil {
			x = x.Mul(before)
		}
		before = m.forward(x) // want `stored in a variable from outside`
		v, err := m.forward(batch.Inputs).Item()
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// workers are in no scope of their starter's.
func workers(x *tensor.Tensor, out chan *tensor.Tensor) error {
	results := make([]*tensor.Tensor, 4)
	var wg sync.WaitGroup
	err := tensor.WithScope(func() error {
		go func() { out <- x.Mul(2) }()
		for i := range results {
			wg.Go(func() { results[i] = x.Mul(i) })
		}
		wg.Wait()
		return nil
	})
	for _, t := range results {
		t.Release()
	}
	return err
}

func augmented(x *tensor.Tensor) (*tensor.Tensor, error) {
	_, err := x.Item()
	return x.Mul(2), err
}

// The error that comes with a tensor holds none.
func failure(l *data.Loader) error {
	for batch, err := range l.Batches() {
		if err != nil {
			return err
		}
		x, err := augmented(batch.Inputs)
		if err != nil {
			return err
		}
		if _, err := x.Item(); err != nil {
			return err
		}
	}
	return nil
}

// step replaces the state, which it returns beside a new tensor.
func (m *model) step(x *tensor.Tensor) (state, reward *tensor.Tensor, err error) {
	y := m.hidden.Mul(x)
	reward = y.Mul(2)
	if err := tensor.Replace(&m.hidden, y); err != nil {
		return nil, nil, err
	}
	return m.hidden, reward, nil
}

// replaced returns the tensor that it has moved out of the scope.
func (m *model) replaced(x *tensor.Tensor) (*tensor.Tensor, error) {
	y := x.Mul(2)
	return y, tensor.Replace(&m.hidden, y)
}

// rollout: a tensor that a function keeps outlives the scope; one that it returns beside it does not.
func rollout(m *model, x *tensor.Tensor) (last *tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		state, reward, err := m.step(x)
		if err != nil {
			return err
		}
		last = reward              // want `stored in a variable from outside`
		m.named["reward"] = reward // want `put in a map from outside`
		m.named["state"] = state
		m.named["hidden"], err = m.replaced(x)
		return err
	})
	return last, err
}

func stateOnly(m *model, x *tensor.Tensor) (state *tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		var reward *tensor.Tensor
		state, reward, err = m.step(x)
		if err != nil {
			return err
		}
		m.value, err = reward.Item()
		return err
	})
	return state, err
}

type node struct {
	value    float64
	children []node
}

type tree map[string]tree

// recursive: a type that contains itself.
func recursive(m *model, n node, t tree, x *tensor.Tensor) (sum float64, err error) {
	err = tensor.WithScope(func() error {
		for _, c := range n.children {
			sum += c.value
		}
		for _, c := range t {
			sum += float64(len(c))
		}
		m.hidden = x.Mul(sum) // want `stored in a field`
		return nil
	})
	return sum, err
}

// swapped: neither channel is made in the scope.
func swapped(in, out chan *tensor.Tensor, x *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		a, b := in, out
		a, b = b, a
		go func() { <-a; <-b }()
		a <- x.Mul(2) // want `sent to a channel`
		return nil
	})
}

// bound calls method values.
func bound(m *model, s *tensor.Scope, x *tensor.Tensor) (last *tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		y, z, v := x.Mul(2), x.Mul(3), x.Mul(4)
		keep := y.Keep
		keep()
		m.hidden = y
		later := z.Keep
		defer later()
		m.all[0] = z
		adopt := s.Adopt
		if err := adopt(v); err != nil {
			return err
		}
		m.named["v"] = v
		out := x.Mul(5).MoveOut
		last = out()
		mul := x.Mul
		m.hidden = mul(6) // want `stored in a field`
		state, forward := m.weight, m.lin.Forward
		m.all[1] = state()
		m.all[2] = forward(x) // want `stored in a list`
		store := m.cur.Store
		store(x.Mul(7)) // want `stored in a Pointer from outside`
		return nil
	})
	return last, err
}

// outside: what runs before NewScope or after Close is in no scope.
func outside(m *model, x *tensor.Tensor) (*tensor.Tensor, error) {
	load := func() { m.hidden = x.Mul(2) }
	load()
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	if _, err = x.Item(); err != nil {
		err = errors.Join(err, s.Close())
	} else {
		err = s.Close()
	}
	if err != nil {
		return nil, err
	}
	m.all[0] = x.Mul(3)
	return m.forward(x), nil
}

func afterwards(m *model, x *tensor.Tensor) (func(), error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return func() { m.hidden = x.Mul(2) }, nil
}

func inLiterals(m *model, x *tensor.Tensor) error {
	s, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer s.Close()
	step := func() {
		m.hidden = x.Mul(2) // want `stored in a field`
	}
	step()
	return autograd.NoGrad(func() error {
		m.hidden = x.Mul(3) // want `stored in a field`
		return nil
	})
}

// withoutScope computes in no scope where there can be none.
func withoutScope(m *model, x *tensor.Tensor) (*tensor.Tensor, error) {
	s, err := tensor.NewScope()
	if errors.Is(err, tensor.ErrScope) {
		return m.forward(x), nil
	}
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return m.forward(x), nil // want `a tensor of the scope is returned`
}

// twoScopes: the outer one is open after the inner one is closed.
func twoScopes(m *model, x *tensor.Tensor) error {
	outer, err := tensor.NewScope()
	if err != nil {
		return err
	}
	defer outer.Close()
	inner, err := tensor.NewScope()
	if err != nil {
		return err
	}
	if err := inner.Close(); err != nil {
		return err
	}
	m.hidden = x.Mul(2) // want `stored in a field`
	return nil
}

func (m *model) record() error {
	m.hidden = global.Mul(2) // want `stored in a field`
	return nil
}

func zeros[T any]() error {
	global = tensor.Zeros(2) // want `stored in a package variable`
	return nil
}

type cell[T any] struct{ last *tensor.Tensor }

func (c *cell[T]) hook(grad *tensor.Tensor) (*tensor.Tensor, error) {
	c.last = grad // want `stored in a field`
	return grad.Mul(2), nil
}

type list []*tensor.Tensor

func (l list) first() *tensor.Tensor {
	global = l[0]
	return l[0].Mul(2)
}

func (m *model) compute() *tensor.Tensor {
	s, err := tensor.NewScope()
	if err != nil {
		return nil
	}
	defer s.Close()
	return m.hidden.Mul(2) // want `a tensor of the scope is returned`
}

// named: what a method value has bound is from outside the scope.
func named(m *model, c *cell[float32], l list, x *tensor.Tensor) error {
	if _, err := x.RegisterHook(c.hook); err != nil {
		return err
	}
	global = tensor.Tidy(l.first).Keep()
	global = tensor.Tidy(m.compute).Keep()
	return errors.Join(tensor.WithScope(m.record), tensor.WithScope(zeros[float32]))
}

// ranged returns from the body of a range over a function.
func ranged(seq iter.Seq[int], x *tensor.Tensor) (*tensor.Tensor, error) {
	before := x.Mul(1)
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	for i := range seq {
		switch i {
		case 1:
			return x.Mul(i), nil // want `a tensor of the scope is returned`
		case 2:
			return x.Mul(i).MoveOut(), nil
		case 3:
			return before, nil
		}
	}
	return nil, nil
}

// working computes in its result.
func working(x *tensor.Tensor) (y *tensor.Tensor, err error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	y = x.Mul(2)
	if y.Err() != nil {
		return nil, y.Err()
	}
	return y.Mul(3).MoveOut(), nil
}

func workingLast(x *tensor.Tensor) (y *tensor.Tensor, err error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	y = x.Mul(2)
	y = y.Mul(3) // want `a tensor of the scope is returned`
	return
}

func workingNamed(x *tensor.Tensor, more bool) (y *tensor.Tensor, err error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	y = x.Mul(2)
	if more {
		y = x.Mul(3) // want `a tensor of the scope is returned`
		return y, nil
	}
	y = y.Mul(4).MoveOut()
	return y, nil
}

func workingList(x *tensor.Tensor) (list []*tensor.Tensor, err error) {
	s, err := tensor.NewScope()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	list = make([]*tensor.Tensor, 1)
	list[0] = x.Mul(2)
	return list, nil // want `a tensor of the scope is returned`
}

// lookup computes in its result, and returns what the model keeps.
func (m *model) lookup(x *tensor.Tensor) (y *tensor.Tensor, err error) {
	defer func() { err = errors.Join(err, x.Err()) }()
	y = x.Mul(2)
	if _, err := y.Item(); err != nil {
		return nil, err
	}
	return m.hidden, nil
}

func looksUp(m *model, x *tensor.Tensor) error {
	return tensor.WithScope(func() (err error) {
		m.named["hidden"], err = m.lookup(x)
		return err
	})
}

// intermediate: only the last tensor in the variable outlives the scope.
func intermediate(m *model, x *tensor.Tensor) (y *tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		y = m.lin.Forward(x)
		y = y.Mul(2)
		y = y.Mul(3).MoveOut()
		return nil
	})
	return y, err
}

func intermediateLast(m *model, x *tensor.Tensor, more bool) (y *tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		y = m.lin.Forward(x)
		y = y.Mul(2) // want `stored in a variable from outside`
		if more {
			y = y.Mul(3) // want `stored in a variable from outside`
		}
		return nil
	})
	return y, err
}

// scratch: what the variables hold is read only in the body, after it is written there.
func scratch(l *data.Loader, first bool) (sum float64, err error) {
	var parts, rest []*tensor.Tensor
	var x *tensor.Tensor
	for batch, err := range l.Batches() {
		if err != nil {
			return 0, err
		}
		parts = parts[:0]
		parts = append(parts, batch.Inputs.Mul(2))
		rest = append(rest[:1], batch.Targets.Mul(2)) // want `stored in a variable from outside`
		if first {
			x = parts[0].Mul(3)
		} else {
			x = batch.Targets.Mul(4)
		}
		v, err := x.Item()
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

func pair(x *tensor.Tensor) (a, b *tensor.Tensor) { return x.Mul(2), x.Mul(3) }

func (m *model) pair(x *tensor.Tensor) (a, b *tensor.Tensor) { return x.Mul(2), x.Mul(3) }

// keptLater: Keep is called on what the scope has stored.
func keptLater(m *model, s *tensor.Scope, x *tensor.Tensor) (a, b, c, d, e, f *tensor.Tensor, list, all []*tensor.Tensor, err error) {
	list, all = make([]*tensor.Tensor, 3), make([]*tensor.Tensor, 3)
	err = tensor.WithScope(func() error {
		var y *tensor.Tensor
		y, a = pair(x)
		a.Keep()
		y, b = m.pair(y)
		b.Keep()
		c = y.Mul(2)
		c.Keep()
		global = c.Mul(2)
		global.Keep()
		d = c.Mul(3)
		defer func() { d.Keep() }()
		if err := autograd.NoGrad(func() error {
			e = c.Mul(4)
			f = c.Mul(5)
			f.Keep()
			return nil
		}); err != nil {
			return err
		}
		e.Keep()
		list[0] = c.Mul(6)
		list[0].Keep()
		for i := range list {
			list[i] = c.Mul(i)
			list[i].Keep()
		}
		list = append(list, c.Mul(7))
		for _, t := range list {
			t.Keep()
		}
		all[0] = c.Mul(8)
		if err := s.Adopt(all...); err != nil {
			return err
		}
		m.all[0] = c.Mul(8)
		m.all[0].Keep()
		m.named["c"] = c.Mul(9)
		m.named["c"].Keep()
		m.hidden = c.Mul(10)
		defer func() { m.hidden.Keep() }()
		return nil
	})
	return a, b, c, d, e, f, list, all, err
}

// keptOnce: Keep on a variable keeps no tensor that it holds before or after.
func keptOnce(m *model, x *tensor.Tensor, more bool) (a, b, c *tensor.Tensor, err error) {
	err = tensor.WithScope(func() error {
		a = x.Mul(2) // want `stored in a variable from outside`
		if more {
			a = x.Mul(3)
			a.Keep()
		}
		if more {
			b = x.Mul(2)
		} else {
			b = x.Mul(3)
		}
		b.Keep()
		if more {
			b = x.Mul(4) // want `stored in a variable from outside`
		}
		c = x.Mul(2)
		c.Keep()
		c, _ = pair(c) // want `stored in a variable from outside`
		global = x.Mul(2)
		global.Keep()
		global = x.Mul(3)   // want `stored in a package variable`
		m.all[0] = x.Mul(4) // want `stored in a list from outside`
		m.all[1] = x.Mul(5)
		m.all[1].Keep()
		m.named["a"] = x.Mul(6) // want `put in a map from outside`
		m.named["b"] = x.Mul(7)
		m.named["b"].Keep()
		return nil
	})
	return a, b, c, err
}

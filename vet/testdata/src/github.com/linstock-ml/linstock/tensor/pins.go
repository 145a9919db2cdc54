package tensor

import "github.com/linstock-ml/linstock/cshim"

func pin1(o *op, a *Tensor) *Tensor {
	if !a.pin() {
		return &Tensor{}
	}
	return nil
}

func pin2(o *op, a, b *Tensor) *Tensor {
	if !a.pin() {
		return &Tensor{}
	}
	return nil // want `pin2 succeeds without a pin of b`
}

func pin3(o *op, a, b, c *Tensor, optional uint8) *Tensor {
	if !a.pin() {
		return &Tensor{}
	}
	if (b != nil || optional&2 == 0) && !b.pin() {
		return &Tensor{} // want `a tensor stays pinned \(a\)`
	}
	if (c != nil || optional&4 == 0) && !c.pin() {
		a.unpin()
		if b != nil {
			b.unpin()
		}
		return &Tensor{}
	}
	return nil
}

func done1(o *op, h cshim.Handle, a *Tensor) *Tensor {
	a.unpin()
	return wrap(h)
}

func done2(o *op, h cshim.Handle, a, b *Tensor) *Tensor {
	a.unpin()
	return wrap(h) // want `a tensor stays pinned \(b\)`
}

func (t *Tensor) Neg() *Tensor {
	if f := pin1(nil, t); f != nil {
		return f
	}
	return done1(nil, cshim.Neg(t.handle()), t)
}

func (t *Tensor) Add(o *Tensor) *Tensor {
	if f := pin2(nil, t, o); f != nil {
		return f
	}
	return done2(nil, cshim.Add(t.handle(), o.handle()), t, o)
}

func (t *Tensor) forgotten(o *Tensor) *Tensor {
	if f := pin1(nil, t); f != nil {
		return f
	}
	return done1(nil, cshim.Add(t.handle(), o.handle()), t) // want `the handle of o is used without a pin`
}

func (t *Tensor) late() *Tensor {
	if !t.pin() {
		return nil
	}
	h := t.h
	t.unpin()
	return wrap(cshim.Neg(h)) // want `the handle of t is used without a pin`
}

func (t *Tensor) deferred(f func(h cshim.Handle) error) error {
	if !t.pin() {
		return ErrReleased
	}
	defer t.unpin()
	return f(t.h)
}

func (t *Tensor) lost() bool {
	if !t.pin() {
		return false
	}
	cshim.Neg(t.h)
	return true // want `a tensor stays pinned \(t\)`
}

func (t *Tensor) sometimes(on bool) {
	if on && !t.pin() {
		return
	}
	cshim.Neg(t.h) // want `the handle of t is used without a pin`
	t.unpin()      // want `t is unpinned without a pin`
}

func (t *Tensor) captured() {
	if !t.pin() {
		return
	}
	defer func() { t.unpin() }()
	cshim.Neg(t.h)
}

func (t *Tensor) none() bool { return t.h == 0 }

// pins is a list of pinned tensors.
type pins struct {
	ts, more []*Tensor
	hs       []cshim.Handle
}

func (p *pins) unpin() { // want `unpin does not unpin more`
	for _, t := range p.ts {
		t.unpin()
	}
}

func pinAll(ts []*Tensor) (*pins, error) {
	p := &pins{}
	for _, t := range ts {
		if !t.pin() {
			p.unpin()
			return nil, ErrReleased
		}
		p.ts, p.hs = append(p.ts, t), append(p.hs, t.h)
	}
	return p, nil
}

func pinAllLeaks(ts []*Tensor) (*pins, error) {
	p := &pins{}
	for _, t := range ts {
		if !t.pin() {
			return nil, ErrReleased // want `tensors stay pinned here`
		}
		p.ts, p.hs = append(p.ts, t), append(p.hs, t.h)
	}
	return p, nil
}

func backward(ts []*Tensor) error {
	p, err := pinAll(ts)
	if err != nil {
		return err
	}
	defer p.unpin()
	return cshim.Backward(p.hs)
}

func backwardLeaks(ts []*Tensor) error {
	p, err := pinAll(ts)
	if err != nil {
		return err
	}
	return cshim.Backward(p.hs) // want `the list that pins the arguments of a native call is not unpinned after it` `tensors stay pinned here`
}

func backwardLists(ts, us []*Tensor) error {
	var lists [2]*pins
	defer func() {
		for _, p := range lists {
			if p != nil {
				p.unpin()
			}
		}
	}()
	for i, l := range [2][]*Tensor{ts, us} {
		var err error
		if lists[i], err = pinAll(l); err != nil {
			return err
		}
	}
	return cshim.Backward(lists[0].hs)
}

type call struct {
	ins []*Tensor
	buf []cshim.Value
}

func (c *call) hold(t *Tensor) bool {
	if !t.pin() {
		return false
	}
	c.ins = append(c.ins, t)
	return true
}

func (c *call) letGo() {
	for _, t := range c.ins {
		t.unpin()
	}
}

func (c *call) values() []cshim.Value { return c.buf }

func (c *call) tensor(t *Tensor) {
	if c.hold(t) {
		c.buf = append(c.buf, cshim.Value{Bits: uint64(t.h)})
	}
}

func (c *call) tensors(ts []*Tensor) {
	for at := 0; at < len(ts); at += 2 {
		var pair [2]uint64
		for k := 0; k < 2 && at+k < len(ts); k++ {
			if !c.hold(ts[at+k]) {
				return
			}
			pair[k] = uint64(ts[at+k].h)
		}
	}
}

func (c *call) unheld(t *Tensor) {
	c.buf = append(c.buf, cshim.Value{Bits: uint64(t.h)}) // want `the handle of t is used without a pin`
}

func (c *call) run() {
	defer c.letGo()
	cshim.Call(c.values())
}

func (c *call) runLeaks() {
	cshim.Call(c.values()) // want `the list that pins the arguments of a native call is not unpinned after it`
}

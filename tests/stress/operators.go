package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"

	"github.com/linstock-ml/linstock/tensor"
)

// operators runs many kinds of operators on small tensors and compares every value with Go's arithmetic before its
// tensor is dropped. It drops handles in and outside scopes, so that the collector frees tensors shortly after their
// last use. Built and run strictly (-check strict-gc), it tests what is reachable when.
func operators(r *round) error {
	const each = 1500
	return r.each(func(g int, rng *rand.Rand) error {
		c := &calculator{rng: rng}
		defer c.clear()
		for done := 0; done < each; {
			n := 16 + rng.IntN(64)
			batch := func() error {
				for range n {
					if err := c.step(); err != nil {
						return err
					}
				}
				return nil
			}
			var err error
			if rng.IntN(2) == 0 {
				// The scope owns the values: those that stay are moved out, and the others are dropped.
				if err := c.drop(); err != nil {
					return err
				}
				err = tensor.WithScope(func() error {
					if err := batch(); err != nil {
						return err
					}
					if rng.IntN(2) == 0 {
						c.keep()
						return nil
					}
					return c.drop()
				})
			} else {
				err = batch()
			}
			if err != nil {
				return err
			}
			done += n
		}
		r.work.Add(c.count)
		return c.check()
	})
}

// calculator has a few tensors of shape (2, 3), each with its expected values. They are integers below 2²⁴, which
// float32 represents exactly.
type calculator struct {
	rng   *rand.Rand
	count int64
	slots [5]slot
}

type slot struct {
	t    *tensor.Tensor
	want []float32
}

func (c *calculator) clear() {
	for i := range c.slots {
		c.slots[i] = slot{}
	}
}

// drop checks and drops all values.
func (c *calculator) drop() error {
	defer c.clear()
	return c.check()
}

func (c *calculator) keep() {
	for i := range c.slots {
		if c.slots[i].t != nil {
			c.slots[i].t.Keep()
		}
	}
}

func (c *calculator) check() error {
	for _, s := range c.slots {
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s slot) check() error {
	if s.t == nil {
		return nil
	}
	got, err := tensor.Data[float32](s.t)
	if err == nil && !slices.Equal(got, s.want) {
		err = fmt.Errorf("the values are %v, want %v", got, s.want)
	}
	return err
}

// get returns the tensor of a random slot, and makes one if the slot is empty.
func (c *calculator) get() slot {
	s := &c.slots[c.rng.IntN(len(c.slots))]
	if s.t == nil {
		v := make([]float32, 6)
		for i := range v {
			v[i] = float32(c.rng.IntN(9) - 4)
		}
		*s = slot{tensor.FromSlice(v, []int{2, 3}), v}
		c.count++
	}
	return *s
}

func (c *calculator) unary(x slot, t *tensor.Tensor, f func(v float32) float32) slot {
	want := make([]float32, len(x.want))
	for i, v := range x.want {
		want[i] = f(v)
	}
	return slot{t, want}
}

func (c *calculator) binary(x, y slot, t *tensor.Tensor, f func(a, b float32) float32) slot {
	want := make([]float32, len(x.want))
	for i := range want {
		want[i] = f(x.want[i], y.want[i])
	}
	return slot{t, want}
}

func sum(v []float32) (s float32) {
	for _, x := range v {
		s += x
	}
	return s
}

// scalar checks an operator that returns one number.
func (c *calculator) scalar(t *tensor.Tensor, want float32) error {
	v, err := tensor.Item[float64](t)
	if err == nil && v != float64(want) {
		err = fmt.Errorf("the value is %v, want %v", v, want)
	}
	return err
}

// step runs one operator, or two or three if their combination is tested, and stores a result in a slot. The previous
// tensor of the slot is dropped, released, or lives on as the storage of a view.
func (c *calculator) step() error {
	x := c.get()
	y := c.get()
	c.count++
	var z slot
	switch c.rng.IntN(24) {
	case 0:
		z = c.binary(x, y, x.t.Add(y.t), func(a, b float32) float32 { return a + b })
	case 1:
		z = c.binary(x, y, x.t.Sub(y.t), func(a, b float32) float32 { return a - b })
	case 2:
		z = c.binary(x, y, x.t.Mul(y.t), func(a, b float32) float32 { return a * b })
	case 3:
		z = c.binary(x, y, x.t.Maximum(y.t), func(a, b float32) float32 { return max(a, b) })
	case 4:
		z = c.binary(x, y, x.t.Minimum(y.t), func(a, b float32) float32 { return min(a, b) })
	case 5:
		z = c.unary(x, x.t.Neg(), func(v float32) float32 { return 0 - v })
	case 6:
		z = c.unary(x, x.t.ReLU(), func(v float32) float32 { return max(v, 0) })
	case 7:
		z = c.unary(x, x.t.Abs(), func(v float32) float32 { return float32(math.Abs(float64(v))) })
	case 8:
		z = c.unary(x, x.t.Clone(), func(v float32) float32 { return v })
	case 9:
		c.count++
		z = c.unary(x, x.t.Reshape(3, 2).Reshape(2, 3), func(v float32) float32 { return v })
	case 10:
		c.count += 2
		z = c.unary(x, x.t.T().Contiguous().T(), func(v float32) float32 { return v })
	case 11:
		c.count++
		z = c.unary(x, x.t.Unsqueeze(0).Select(0, 0), func(v float32) float32 { return v })
	case 12:
		z = c.unary(x, x.t.Alias(), func(v float32) float32 { return v })
	case 13:
		z = c.unary(x, x.t.Add(2), func(v float32) float32 { return v + 2 })
	case 14:
		c.count++
		both := tensor.Cat([]*tensor.Tensor{x.t, y.t})
		z = c.unary(y, both.Narrow(0, 2, 2), func(v float32) float32 { return v })
	case 15:
		c.count++
		return c.scalar(x.t.Sum(), sum(x.want))
	case 16: // in place, into a tensor that no other variable refers to
		c.count += 2
		z = c.unary(x, x.t.Clone().Mul_(2).Add_(1), func(v float32) float32 { return 2*v + 1 })
	case 17:
		var dot float32
		for i := range 3 {
			dot += x.want[i] * y.want[i]
		}
		c.count += 3
		return c.scalar(x.t.MatMul(y.t.T()).Select(0, 0).Select(0, 0), dot)
	case 18:
		parts, err := x.t.Split(1)
		if err != nil {
			return err
		}
		c.count++
		return c.scalar(parts[1].Sum(), sum(x.want[3:]))
	case 19: // a gradient: that of Σ x² is 2x
		c.count += 5
		w := x.t.Clone().RequiresGrad_()
		if err := w.Mul(w).Sum().Backward(); err != nil {
			return err
		}
		z = c.unary(x, w.Grad(), func(v float32) float32 { return 2 * v })
	case 20:
		return x.check()
	case 21:
		c.count++
		z = c.unary(x, tensor.Tidy(func() *tensor.Tensor { return x.t.Add(1).Add(1) }), func(v float32) float32 { return v + 2 })
	case 22:
		z = c.unary(x, x.t.Index(tensor.From(0), tensor.From(0)), func(v float32) float32 { return v })
	case 23:
		c.count++
		z = c.binary(x, y, x.t.Eq(y.t).To(tensor.Float32), func(a, b float32) float32 {
			if a == b {
				return 1
			}
			return 0
		})
	}
	if err := z.t.Err(); err != nil {
		return err
	}
	for _, v := range z.want {
		if v > 1<<11 || v < -1<<11 { // products would exceed the integers that float32 represents
			if err := z.check(); err != nil {
				return err
			}
			z = slot{}
			break
		}
	}
	at := &c.slots[c.rng.IntN(len(c.slots))]
	if err := at.check(); err != nil {
		return err
	}
	old := at.t
	*at = z
	switch {
	case c.rng.IntN(6) == 0 && old != nil:
		old.Release()
	case c.rng.IntN(400) == 0:
		runtime.GC()
	}
	return nil
}

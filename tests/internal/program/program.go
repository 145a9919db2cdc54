// Package program generates and runs random programs of tensors, for tests/memory and tests/stress.
package program

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

// A random program has a few variables. It makes tensors, computes new ones from them, takes views, runs
// backward passes and nested scopes, and drops variables. It runs in two ways. With release, each tensor is
// released when its variable is overwritten, as by Python's reference counts: the allocator's peak is then the
// most that the program can reach. Without, the program contains no lifetime code.

type instruction struct {
	kind    kind
	a, b, c int
	size    int // number of elements
}

type kind int

const (
	create kind = iota
	unary
	binary
	view
	drop
	backward
	scoped
)

const variables = 6

// A Program is a random program.
type Program struct {
	Seed uint64
	Unit int // number of elements of the smallest tensor

	steps []instruction
}

func newProgram(seed uint64, length, unit int) *Program {
	r := rand.New(rand.NewPCG(seed, 7))
	p := &Program{Seed: seed, Unit: unit}
	for range length {
		in := instruction{a: r.IntN(variables), b: r.IntN(variables), c: r.IntN(variables), size: unit * (1 + r.IntN(8))}
		switch n := r.IntN(20); {
		case n < 5:
			in.kind = create
		case n < 10:
			in.kind = unary
		case n < 13:
			in.kind = binary
		case n < 15:
			in.kind = view
		case n < 17:
			in.kind = drop
		case n < 19:
			in.kind = backward
		default:
			in.kind = scoped
		}
		p.steps = append(p.steps, in)
	}
	return p
}

// run is one run of a program.
type run struct {
	device  tensor.Device
	release bool
	vars    [variables]*tensor.Tensor
}

func (r *run) set(i int, t *tensor.Tensor) error {
	if err := t.Err(); err != nil {
		return err
	}
	old := r.vars[i]
	r.vars[i] = t
	if r.release && old != nil {
		old.Release()
	}
	return nil
}

func (r *run) step(in instruction) error {
	x := r.vars[in.b]
	if x == nil && in.kind != create && in.kind != drop {
		in.kind = create
	}
	switch in.kind {
	case create:
		return r.set(in.a, tensor.Ones([]int{in.size}, r.device))
	case unary:
		return r.set(in.a, x.Mul(0.5))
	case binary:
		y := r.vars[in.c]
		if y == nil || y.Numel() != x.Numel() {
			y = x
		}
		return r.set(in.a, x.Add(y))
	case view:
		return r.set(in.a, x.View(-1))
	case drop:
		old := r.vars[in.a]
		r.vars[in.a] = nil
		if r.release && old != nil {
			old.Release()
		}
	case backward:
		return r.backward(in, x)
	case scoped:
		return r.scoped(in, x)
	}
	return nil
}

// backward computes a gradient through a chain of three operators and keeps it.
func (r *run) backward(in instruction, x *tensor.Tensor) error {
	w := x.Clone().RequiresGrad_()
	y := w
	for range 3 {
		next := y.Mul(y)
		if r.release && y != w {
			y.Release()
		}
		y = next
	}
	loss := y.Sum()
	if r.release {
		y.Release()
	}
	y = nil
	if err := loss.Backward(); err != nil {
		return r.giveUp(err, w, loss)
	}
	g := w.Grad()
	if r.release {
		w.Release()
		loss.Release()
	}
	return r.set(in.a, g)
}

func (r *run) giveUp(err error, ts ...*tensor.Tensor) error {
	if r.release {
		for _, t := range ts {
			t.Release()
		}
	}
	return err
}

// scoped computes in its own scope and moves the result out.
func (r *run) scoped(in instruction, x *tensor.Tensor) error {
	return tensor.WithScope(func() error {
		y := x.Mul(2)
		for range 4 {
			z := y.Add(1)
			if r.release {
				y.Release()
			}
			y = z
		}
		if err := y.Err(); err != nil {
			return err
		}
		return r.set(in.a, y.Keep())
	})
}

func (r *run) clear() {
	for i, t := range r.vars {
		if r.release && t != nil {
			t.Release()
		}
		r.vars[i] = nil
	}
}

// checksum returns the sum of the variables, to compare runs.
func (r *run) checksum() (sum float64, err error) {
	for _, t := range r.vars {
		if t != nil {
			v, e := tensor.Item[float64](t.Sum().To(tensor.Float64))
			sum, err = sum+v, errors.Join(err, e)
		}
	}
	return sum, err
}

// reachable returns the most bytes that the program can reach in each step, above those live before it.
func (p *Program) reachable(d tensor.Device) (peaks []int64, sum float64, err error) {
	r := &run{device: d, release: true}
	defer r.clear()
	base, err := Live(d)
	if err != nil {
		return nil, 0, err
	}
	for _, in := range p.steps {
		if err := vram.ResetPeak(d); err != nil {
			return nil, 0, err
		}
		if err := r.step(in); err != nil {
			return nil, 0, fmt.Errorf("without a limit: %w", err)
		}
		m, err := vram.Stats(d)
		if err != nil {
			return nil, 0, err
		}
		peaks = append(peaks, m.Peak-base)
	}
	sum, err = r.checksum()
	return peaks, sum, err
}

// Live returns the live bytes of a device.
func Live(d tensor.Device) (int64, error) {
	m, err := vram.Stats(d)
	return m.Allocated, err
}

// Settle sweeps until the live bytes are at want. It returns the final live bytes.
func Settle(d tensor.Device, want int64) (int64, error) {
	var now int64
	for i := range 100 {
		if err := vram.Collect(); err != nil {
			return 0, err
		}
		tensor.Flush()
		var err error
		if now, err = Live(d); err != nil || now == want {
			return now, err
		}
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
	}
	return now, nil
}

// A Group is a set of programs that run concurrently, a goroutine each, in step.
type Group struct {
	Programs []*Program
	Sums     []float64 // the checksums of the reference run
	Reach    int64     // most bytes that all can reach at once

	peaks [][]int64
}

// NewGroup makes programs and runs each alone, with release, to measure what it can reach and compute.
func NewGroup(d tensor.Device, seed uint64, goroutines, length, unit int) (*Group, error) {
	g := &Group{}
	for i := range goroutines {
		p := newProgram(seed*1000+uint64(i), length, unit)
		peaks, sum, err := p.reachable(d)
		if err != nil {
			return nil, err
		}
		g.Programs, g.peaks, g.Sums = append(g.Programs, p), append(g.peaks, peaks), append(g.Sums, sum)
	}
	for s := range length {
		var all int64
		for _, peaks := range g.peaks {
			all += peaks[s]
		}
		g.Reach = max(g.Reach, all)
	}
	return g, nil
}

// Run runs the programs without lifetime code. It returns their checksums, the first error and the duration of
// the operator that failed.
func (g *Group) Run(d tensor.Device) (sums []float64, took time.Duration, err error) {
	n := len(g.Programs)
	sums = make([]float64, n)
	b := newBarrier(n)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, p := range g.Programs {
		wg.Go(func() {
			r := &run{device: d}
			failed := false
			for s := range p.steps {
				b.wait()
				if failed {
					continue
				}
				start := time.Now()
				if e := r.step(p.steps[s]); e != nil {
					mu.Lock()
					if err == nil {
						err, took = e, time.Since(start)
					}
					mu.Unlock()
					failed = true
					r.clear()
				}
			}
			b.wait()
			if !failed {
				sum, e := r.checksum()
				sums[i] = sum
				mu.Lock()
				err = errors.Join(err, e)
				mu.Unlock()
			}
			r.clear()
		})
	}
	wg.Wait()
	return sums, took, err
}

// A barrier makes n goroutines wait for each other.
type barrier struct {
	mu    sync.Mutex
	cond  *sync.Cond
	n     int
	here  int
	round int
}

func newBarrier(n int) *barrier {
	b := &barrier{n: n}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *barrier) wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	round := b.round
	if b.here++; b.here == b.n {
		b.here = 0
		b.round++
		b.cond.Broadcast()
		return
	}
	for round == b.round {
		b.cond.Wait()
	}
}

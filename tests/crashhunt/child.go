package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/tests/internal/proc"
	"github.com/linstock-ml/linstock/vram"
)

// operator is an operator to call, with the types of its arguments and valid calls of it.
type operator struct {
	name  string
	types []argument
	calls []recordedCall
}

type argument struct{ name, typ string }

// operators returns the operators that Call accepts, or with -unchecked the others, sorted by name.
func (o *options) operators() ([]operator, error) {
	names, err := tensor.OperatorNames()
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	var all []operator
	for _, name := range names {
		if internal, err := isInternal(name); err != nil {
			return nil, err
		} else if internal != o.unchecked || !o.only.MatchString(name) {
			continue
		}
		schema, err := tensor.Schema(name)
		if err != nil {
			return nil, err
		}
		op := operator{name: name, types: arguments(schema)}
		if err := op.findCalls(); err != nil {
			return nil, err
		}
		all = append(all, op)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no operator matches %v", o.only)
	}
	return all, nil
}

// isInternal reports whether Call refuses the operator because it is internal. It passes an argument that no operator
// accepts.
func isInternal(name string) (bool, error) {
	_, err := tensor.Call(name, make(chan int))
	if err == nil {
		return false, fmt.Errorf("%s takes a channel", name)
	}
	return strings.Contains(err.Error(), "CallUnchecked"), nil
}

// arguments returns the arguments of a schema: self, k and s for "aten::f(Tensor self, int[2] k=1, *, Scalar? s=None)
// -> Tensor".
func arguments(schema string) []argument {
	var all []argument
	depth, start := 0, strings.IndexByte(schema, '(')+1
	for i := start; i < len(schema); i++ {
		switch c := schema[i]; {
		case depth == 0 && (c == ',' || c == ')'):
			typ, name, _ := strings.Cut(strings.TrimSpace(schema[start:i]), " ")
			name, _, _ = strings.Cut(name, "=")
			if typ != "" && typ != "*" {
				all = append(all, argument{name, typ})
			}
			if c == ')' {
				return all
			}
			start = i + 1
		case c == '(' || c == '[':
			depth++
		case c == ')' || c == ']':
			depth--
		}
	}
	return all
}

// child makes the calls [from, to).
func child(o *options, from, to int64, state string) error {
	operators, err := o.operators()
	if err != nil {
		return err
	}
	if err := limits(); err != nil {
		return err
	}
	var file *os.File
	if state == "" {
		// aten::from_file creates files.
		dir, err := os.MkdirTemp("", "crashhunt")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := os.Chdir(dir); err != nil {
			return err
		}
	} else {
		if file, err = os.OpenFile(state, os.O_WRONLY, 0); err != nil {
			return err
		}
	}
	var t tally
	for i := from; i < to; i++ {
		t.At = i
		if file != nil {
			if err := t.write(file); err != nil {
				return err
			}
		}
		// Each round calls every operator once, in a different order.
		n := int64(len(operators))
		round := rand.New(rand.NewPCG(o.seed, uint64(i/n)))
		op := &operators[round.Perm(int(n))[i%n]]
		if err := guardPages(i / n).Set(); err != nil {
			return err
		}
		call := func(show bool) (*caller, error) {
			v := &caller{values: newValues(rand.New(rand.NewPCG(o.seed^0x9e37, uint64(i)))), options: o}
			if show {
				v.show = func(format string, args ...any) { fmt.Printf(format, args...) }
				if to > from+1 {
					v.say("call %d: ", i)
				}
			}
			if err := tensor.ManualSeed(uint64(i)); err != nil {
				return nil, err
			}
			_ = tensor.WithScope(func() error { return v.call(op) })
			return v, nil
		}
		before, err := native()
		if err != nil {
			return err
		}
		v, err := call(file == nil)
		if err != nil {
			return err
		}
		t.Calls++
		t.Returned += v.returned
		t.Backward += v.backward
		if o.unchecked {
			continue
		}
		if err := leaks(before, func() error { _, err := call(false); return err }); err != nil {
			return err
		}
	}
	t.At = to
	if file != nil {
		return t.write(file)
	}
	return nil
}

// native returns the bytes and handles of the CPU's tensors.
func native() (f [2]int64, err error) {
	tensor.Flush()
	m, err := cshim.MemoryStats(0)
	return [2]int64{m.Allocated, m.Handles}, err
}

// leaks returns an error if native figures grow with each call. libtorch keeps some memory after the first.
func leaks(before [2]int64, call func() error) error {
	for range 3 {
		after, err := native()
		if err != nil || after == before {
			return err
		}
		before = after
		if err := call(); err != nil {
			return err
		}
	}
	after, err := native()
	if err == nil && after != before {
		err = fmt.Errorf("a call leaves %d bytes and %d handles", after[0]-before[0], after[1]-before[1])
	}
	return err
}

// guardPages returns where the tensors of a round have pages that cannot be accessed. More faults are beyond a tensor's
// end than before its start.
func guardPages(round int64) cshim.GuardPages {
	if round%4 == 3 {
		return cshim.GuardPageAtStart
	}
	return cshim.GuardPageAtEnd
}

// limits makes every request for too much memory an error.
func limits() error {
	if err := vram.SetLimit(vram.CPU, vram.Bytes(256<<20)); err != nil {
		return err
	}
	used, err := proc.Status("self", "VmSize")
	if err != nil {
		return err
	}
	most := uint64(used) + 4<<30
	return syscall.Setrlimit(syscall.RLIMIT_AS, &syscall.Rlimit{Cur: most, Max: most})
}

// caller makes one call.
type caller struct {
	*values
	*options
	show               func(format string, args ...any)
	returned, backward int64
}

func (c *caller) say(format string, args ...any) {
	if c.show != nil {
		c.show(format, args...)
	}
}

func (c *caller) call(op *operator) error {
	var args []any
	if len(op.calls) > 0 && !c.one(3) {
		args = c.recorded(op)
	} else {
		for i, a := range op.types {
			args = append(args, c.value(a, i))
		}
	}
	c.say("%s(", op.name)
	for i, a := range op.types {
		if i > 0 {
			c.say(", ")
		}
		if c.show != nil {
			c.show("%s=%s", a.name, c.describe(args[i]))
		}
	}
	c.say(")")
	if c.dry {
		c.say("\n")
		return nil
	}
	run := tensor.Call
	if c.unchecked {
		run = tensor.CallUnchecked
	}
	out, err := run(op.name, args...)
	if err != nil {
		c.say(" -> %.300s\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return nil
	}
	c.returned++
	c.say(" -> %d results", len(out))
	for _, v := range out {
		switch v := v.(type) {
		case *tensor.Tensor:
			c.look(v)
		case []*tensor.Tensor:
			for _, t := range v[:min(len(v), 3)] {
				c.look(t)
			}
		}
	}
	c.say("\n")
	return nil
}

// look reads a result, uses it once more, and computes gradients through it, and sometimes gradients of these.
func (c *caller) look(x *tensor.Tensor) {
	if x == nil || x.Err() != nil {
		return
	}
	if c.show != nil {
		c.show(" %s", c.describe(x))
	}
	if n, err := numel(x); err != nil || n > 1<<16 || x.Device() != tensor.CPU {
		return
	}
	if c.one(3) {
		c.say(" print")
		_ = x.String()
	}
	if c.one(3) {
		c.say(" clone")
		_ = x.Clone().Err()
	}
	if c.one(4) {
		c.say(" sum")
		_ = x.Sum().Err()
	}
	if !x.RequiresGrad() || x.IsLeaf() {
		return
	}
	c.say(" backward")
	c.backward++
	y := x
	if c.one(2) || !x.DType().IsFloat() {
		y = x.Sum()
	}
	if y.DType().IsComplex() {
		out, err := tensor.Call("aten::real", y)
		if err != nil {
			return
		}
		y = out[0].(*tensor.Tensor)
	}
	opts, err := c.gradient(y)
	if err != nil {
		return
	}
	if !c.one(3) || len(c.leaves) == 0 {
		_ = y.Backward(opts...)
		return
	}
	c.say(" twice")
	gradients, err := autograd.Grad([]*tensor.Tensor{y}, c.leaves, append(opts, tensor.CreateGraph(true), tensor.AllowUnused(true))...)
	if err != nil {
		return
	}
	for _, g := range gradients {
		if g == nil || !g.RequiresGrad() || g.IsLeaf() || g.DType().IsComplex() {
			continue
		}
		if opts, err := c.gradient(g); err == nil {
			_, _ = autograd.Grad([]*tensor.Tensor{g}, c.leaves, append(opts, tensor.AllowUnused(true), tensor.RetainGraph(true))...)
		}
	}
}

// gradient returns the option that a backward pass from y needs: none if y has one element.
func (c *caller) gradient(y *tensor.Tensor) ([]tensor.BackwardOption, error) {
	if n, err := numel(y); err != nil || n == 1 {
		return nil, err
	}
	return []tensor.BackwardOption{tensor.Gradient(c.cotangent(y))}, nil
}

// cotangent returns a gradient for y: of its shape, sometimes of another layout.
func (c *caller) cotangent(y *tensor.Tensor) *tensor.Tensor {
	g := y.Detach().OnesLike()
	if c.one(3) {
		if t := c.relayout(g); t != nil && t.Err() == nil {
			if c.show != nil {
				c.show(" with %s", c.describe(t))
			}
			return t
		}
	}
	return g
}

func numel(x *tensor.Tensor) (int, error) {
	if err := x.Err(); err != nil {
		return 0, err
	}
	return x.Numel(), nil
}

package cuda

import (
	"errors"
	"slices"
	"sync"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

// A GraphedCallable is a layer whose forward and backward passes are graphs. It is made by MakeGraphedCallables and freed
// by Close. It can stand in a module in the layer's place. One goroutine at a time computes with it. A copy, such as one of
// nn.Clone or nn.NewAveragedModel, has no graphs: its Forward calls its own Layer, and its Close does nothing.
type GraphedCallable struct {
	// Layer is the layer that was captured, with the parameters.
	Layer nn.Layer `nn:"."`

	*passes `nn:"-"`
}

// passes are the graphs of a GraphedCallable, to which its copies refer, too.
type passes struct {
	owner *GraphedCallable

	mu                sync.Mutex
	params            []*tensor.Tensor
	modes             []capturedMode
	forward, backward *Graph

	// Memory of the graphs: the input and the gradient of the output, which are copied to, and what they compute.
	x, y, gy *tensor.Tensor
	grads    []*tensor.Tensor // of x and the parameters; nil for those that need none
}

// capturedMode is a module's mode when it was captured.
type capturedMode struct {
	module   interface{ Training() bool }
	training bool
}

// MakeGraphedCallables captures the forward and backward passes of layers, each for an input like its sample, and returns
// layers that replay them. Forward copies its input into the graph's memory and returns a tensor in the graph's memory,
// which the next Forward of the same layer overwrites; x.Clone() keeps a copy. The gradients of parameters are copies,
// which can be accumulated. Forward returns tensor.ErrArgument for an input whose shape, dtype or device differs.
//
// The layers are captured as they are now, in training or evaluation mode; while a module of a layer is in the other one,
// Forward calls the layer itself. They run 3 times before, which updates buffers such as batch statistics; Warmup changes
// the number. All graphs share a pool, so the layers must be used in the order given: all forward passes, then the backward
// passes in reverse, as in a model made of them. For a backward pass of x the sample must require a gradient. A layer must
// not use Go values that change, registered hooks, or Item; its parameters must not be replaced, only changed in place. An
// autograd.Checkpoint that draws random numbers is tensor.ErrCapture: the two passes are two captures. The gradients cannot
// be differentiated: a backward pass with CreateGraph is tensor.ErrNotImplemented.
//
// PyTorch: torch.cuda.make_graphed_callables. There the gradients of parameters are the graph's own memory, so that a
// second backward pass without zero_grad adds up wrong values.
func MakeGraphedCallables(layers []nn.Layer, samples []*tensor.Tensor, opts ...CaptureOption) ([]*GraphedCallable, error) {
	const op = "MakeGraphedCallables"
	if len(layers) == 0 || len(layers) != len(samples) {
		return nil, refuse.Error(op, tensor.ErrArgument, "%d layers and %d samples: one sample for each layer is needed", len(layers), len(samples))
	}
	for i, l := range layers {
		if l == nil {
			return nil, refuse.Nil(op, "a layer")
		}
		if err := refuse.Unusable(op, "a sample", samples[i]); err != nil {
			return nil, err
		}
	}
	d := samples[0].Device()
	if err := check(op, d); err != nil {
		return nil, err
	}
	for _, s := range samples {
		if s.Device() != d {
			return nil, refuse.Error(op, tensor.ErrArgument, "samples are on %v and %v", d, s.Device())
		}
	}
	c, err := settings(op, d, capture{warmup: 3}, opts)
	if err != nil {
		return nil, err
	}
	made := make([]*GraphedCallable, len(layers))
	for i, l := range layers {
		made[i] = &GraphedCallable{Layer: l, passes: &passes{}}
		made[i].owner = made[i]
	}
	if err := makeAll(op, d, c, made, samples); err != nil {
		for _, g := range made {
			_ = g.Close()
		}
		return nil, err
	}
	return made, nil
}

func makeAll(op string, d tensor.Device, c *capture, made []*GraphedCallable, samples []*tensor.Tensor) error {
	if err := clean(op); err != nil {
		return err
	}
	for i, g := range made {
		if err := g.start(samples[i]); err != nil {
			return err
		}
		if err := c.prepare(d, g.once); err != nil {
			return err
		}
	}
	for _, g := range made {
		var err error
		g.forward, err = c.record(op, d, func() error {
			g.y = g.Layer.Forward(g.x).Alias().Keep() // its own handle: a layer may return its input
			return g.y.Err()
		})
		if err != nil {
			return err
		}
		c.pool = g.forward
	}
	for _, g := range slices.Backward(made) {
		if !g.y.RequiresGrad() {
			continue
		}
		g.gy = g.y.Detach().OnesLike().Keep()
		if err := g.gy.Err(); err != nil {
			return err
		}
		var err error
		g.backward, err = c.record(op, d, func() error { return g.differentiate(g.y, func(t *tensor.Tensor) { t.Keep() }) })
		if err != nil {
			return err
		}
		if err := tensor.Replace(&g.y, g.y.Detach()); err != nil {
			return err
		}
	}
	return nil
}

// start makes the graph's input.
func (g *GraphedCallable) start(sample *tensor.Tensor) error {
	if _, function := g.Layer.(nn.Func); !function {
		g.params = nn.Parameters(g.Layer)
		for _, n := range nn.NamedModules(g.Layer) {
			if m, ok := n.Module.(interface{ Training() bool }); ok {
				g.modes = append(g.modes, capturedMode{m, m.Training()})
			}
		}
	}
	for _, p := range g.params {
		if err := p.Err(); err != nil {
			return err
		}
	}
	g.x = sample.Detach().Clone().Keep()
	if err := g.x.Err(); err != nil {
		return err
	}
	if sample.RequiresGrad() {
		return g.x.RequiresGrad_().Err()
	}
	return nil
}

// inputs returns the graph's input and the parameters.
func (g *GraphedCallable) inputs() []*tensor.Tensor {
	return append([]*tensor.Tensor{g.x}, g.params...)
}

// once is a forward and a backward pass, for the warm-up.
func (g *GraphedCallable) once() error {
	y := g.Layer.Forward(g.x)
	if err := y.Err(); err != nil || !y.RequiresGrad() {
		return err
	}
	g.gy = y.Detach().OnesLike()
	defer func() { g.gy, g.grads = nil, nil }()
	return g.differentiate(y, func(*tensor.Tensor) {})
}

// differentiate computes the gradients of y for g.gy.
func (g *GraphedCallable) differentiate(y *tensor.Tensor, keep func(*tensor.Tensor)) error {
	all := g.inputs()
	var of []*tensor.Tensor
	for _, t := range all {
		if t.RequiresGrad() {
			of = append(of, t)
		}
	}
	grads, err := autograd.Grad([]*tensor.Tensor{y}, of, tensor.Gradient(g.gy), tensor.AllowUnused(true))
	if err != nil {
		return err
	}
	g.grads = make([]*tensor.Tensor, len(all))
	for i, t := range all {
		if t.RequiresGrad() {
			g.grads[i], grads = grads[0], grads[1:]
		}
		if g.grads[i] != nil {
			keep(g.grads[i])
		}
	}
	return nil
}

// otherMode reports whether a module is no longer in the mode in which it was captured.
func (g *GraphedCallable) otherMode() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.x != nil && slices.ContainsFunc(g.modes, func(m capturedMode) bool { return m.module.Training() != m.training })
}

// Forward copies x to the graph's input, replays the forward pass, and returns its output. While a module of the layer is
// in another mode than at the capture, and in a copy of the GraphedCallable, it returns Layer.Forward(x).
func (g *GraphedCallable) Forward(x *tensor.Tensor) *tensor.Tensor {
	const op = "Forward"
	if g == nil {
		return tensor.Failed(refuse.Nil(op, "a graphed callable"))
	}
	if g.passes == nil {
		return tensor.Failed(refuse.Error(op, tensor.ErrArgument, "the graphed callable was not made by MakeGraphedCallables"))
	}
	if g.owner != g || g.otherMode() {
		return g.Layer.Forward(x)
	}
	out, err := autograd.Apply(graphedFunction{g}, append([]*tensor.Tensor{x}, g.params...)...)
	if err != nil {
		return tensor.Failed(err)
	}
	return out[0]
}

// Close frees the graphs and their memory. The layer and its parameters stay. Later calls of Forward return ErrClosed.
func (g *GraphedCallable) Close() error {
	if g == nil || g.passes == nil || g.owner != g {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	err := errors.Join(g.forward.Close(), g.backward.Close())
	for _, t := range append(g.grads, g.x, g.y, g.gy) {
		t.Release()
	}
	g.x, g.y, g.gy, g.grads = nil, nil, nil, nil
	return err
}

// graphedFunction is the replay of both passes as a function that autograd knows.
type graphedFunction struct{ *GraphedCallable }

func (f graphedFunction) Forward(ctx *autograd.Context, inputs ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	ctx.SetMaterializeGrads(false)
	g, x := f.GraphedCallable, inputs[0]
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.x == nil {
		return nil, refuse.Error("Forward", ErrClosed, "the graphed callable was closed")
	}
	if !slices.Equal(x.Shape(), g.x.Shape()) || x.DType() != g.x.DType() || x.Device() != g.x.Device() {
		return nil, refuse.Error("Forward", tensor.ErrArgument, "the input is %v%v on %v, the graph was captured for %v%v on %v",
			x.DType(), x.Shape(), x.Device(), g.x.DType(), g.x.Shape(), g.x.Device())
	}
	if err := g.x.Copy_(x).Err(); err != nil {
		return nil, err
	}
	if err := g.forward.replay(); err != nil {
		return nil, err
	}
	return []*tensor.Tensor{g.y.Detach()}, nil
}

func (f graphedFunction) Backward(ctx *autograd.Context, grads ...*tensor.Tensor) ([]*tensor.Tensor, error) {
	g := f.GraphedCallable
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.backward == nil || g.gy == nil {
		return nil, refuse.Error("Backward", ErrClosed, "the graphed callable was closed, or has no backward pass")
	}
	if tensor.GradEnabled() {
		return nil, refuse.Error("Backward", tensor.ErrNotImplemented, "a graphed callable has no second derivative, which CreateGraph asks for")
	}
	if grads[0] == nil {
		return make([]*tensor.Tensor, len(g.grads)), nil
	}
	if err := g.gy.Copy_(grads[0]).Err(); err != nil {
		return nil, err
	}
	if err := g.backward.replay(); err != nil {
		return nil, err
	}
	out := make([]*tensor.Tensor, len(g.grads))
	for i, t := range g.grads {
		if t == nil || !ctx.NeedsInputGrad(i) {
			continue
		}
		out[i] = t.Clone()
		if err := out[i].Err(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

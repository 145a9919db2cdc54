package nn

import (
	"fmt"
	"math"
	"slices"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/handle"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/internal/sharding"
	"github.com/linstock-ml/linstock/tensor"
)

// recurrent is the common form of RNN, LSTM and GRU.
type recurrent struct {
	Mode
	Weights                                        ParameterDict `nn:"."`
	InputSize, HiddenSize, ProjSize, Layers        int
	Drop                                           float64 // dropout probability between layers in training
	HasBias, IsBidirectional, IsBatchFirst, IsReLU bool
	err                                            error
}

// rnnKind is what tells the recurrent modules apart.
type rnnKind struct {
	name   string
	gates  int
	mode   int // cuDNN's number
	states int // 2 for LSTM: hidden and cell
	packed string
	padded func(x *tensor.Tensor, states, weights []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor
}

// single adapts an operator with one state.
func single(f func(x, h *tensor.Tensor, weights []*tensor.Tensor, opts ...tensor.Option) (*tensor.Tensor, *tensor.Tensor)) func(*tensor.Tensor, []*tensor.Tensor, []*tensor.Tensor, ...tensor.Option) []*tensor.Tensor {
	return func(x *tensor.Tensor, states, weights []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor {
		y, h := f(x, states[0], weights, opts...)
		return []*tensor.Tensor{y, h}
	}
}

var (
	kindTanh = rnnKind{"RNN", 1, 1, 1, "aten::rnn_tanh.data", single((*tensor.Tensor).RNNTanh)}
	kindReLU = rnnKind{"RNN", 1, 0, 1, "aten::rnn_relu.data", single((*tensor.Tensor).RNNReLU)}
	kindGRU  = rnnKind{"GRU", 3, 3, 1, "aten::gru.data", single((*tensor.Tensor).GRU)}
	kindLSTM = rnnKind{"LSTM", 4, 2, 2, "aten::lstm.data", func(x *tensor.Tensor, states, weights []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor {
		y, h, c := x.LSTM(states, weights, opts...)
		return []*tensor.Tensor{y, h, c}
	}}
)

func newRecurrent(op string, k *rnnKind, in, hidden int, opts []Option, own ...string) *recurrent {
	b := build(op, opts, append(own, "NumLayers", "NoBias", "BatchFirst", "DropoutP", "Bidirectional", "DType", "Device")...)
	b.sizes("in", in, "hidden", hidden, "NumLayers", b.layers)
	b.probability("DropoutP", b.dropout)
	if b.projection < 0 || b.projection != 0 && b.projection >= hidden {
		b.fail("ProjSize must be at least 0 and below the hidden size %d, got %d", hidden, b.projection)
	}
	r := &recurrent{InputSize: in, HiddenSize: hidden, ProjSize: b.projection, Layers: b.layers, Drop: b.dropout, HasBias: !b.noBias,
		IsBidirectional: b.bidirectional, IsBatchFirst: b.batchFirst}
	switch b.activation {
	case "", "tanh":
	case "relu":
		r.IsReLU, k = true, &kindReLU
	default:
		b.fail("Activation must be tanh or relu, got %q", b.activation)
	}
	fill := uniform(1 / math.Sqrt(float64(hidden)))
	out, rows := r.out(), k.gates*hidden
	for layer := 0; layer < b.layers && b.err == nil; layer++ {
		for direction := range r.directions() {
			suffix := fmt.Sprintf("_l%d", layer)
			if direction == 1 {
				suffix += "_reverse"
			}
			width := in
			if layer > 0 {
				width = out * r.directions()
			}
			add := func(name string, shape ...int) {
				r.Weights = append(r.Weights, Named{name + suffix, b.parameter(shape, fill)})
			}
			add("weight_ih", rows, width)
			add("weight_hh", rows, out)
			if r.HasBias {
				add("bias_ih", rows)
				add("bias_hh", rows)
			}
			if r.ProjSize != 0 {
				add("weight_hr", out, hidden)
			}
		}
	}
	if b.err == nil {
		b.note(r.flatten(k))
	}
	if err := b.done(); err != nil {
		return &recurrent{err: err}
	}
	return r
}

// perLayer returns the number of weights of a layer and direction.
func (r *recurrent) perLayer() int {
	n := 2
	if r.HasBias {
		n += 2
	}
	if r.ProjSize != 0 {
		n++
	}
	return n
}

// flatten moves the weights into one buffer in cuDNN's order, if cuDNN uses them: otherwise each pass copies them into
// one. The handles and their gradients stay. PyTorch: RNNBase.flatten_parameters.
func (r *recurrent) flatten(k *rnnKind) error {
	weights := r.weights()
	if len(weights) == 0 || len(weights) != r.Layers*r.directions()*r.perLayer() {
		return nil
	}
	for _, w := range weights {
		if !handle.Usable(w) || w.Device().Type != tensor.CUDAType || sharding.Held(w) || sharding.Groups(w) != nil {
			return nil
		}
	}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			// The operator moves views of the weights, since replacing must not be held while it allocates.
			views := make([]*tensor.Tensor, len(weights))
			for i, w := range weights {
				if views[i] = alias(k.name, w); views[i].Err() != nil {
					return views[i].Err()
				}
			}
			if ok, err := flattens(views); !ok {
				return err
			}
			_, err := tensor.CallUnchecked("aten::_cudnn_rnn_flatten_weight", views, r.perLayer(), r.InputSize, k.mode, r.HiddenSize, r.ProjSize, r.Layers,
				r.IsBatchFirst, r.IsBidirectional)
			for i := 0; i < len(weights) && err == nil; i++ {
				err = replaceData(weights[i], views[i])
			}
			return err
		})
	})
}

// flattens reports whether cuDNN takes the weights, and none shares memory with another.
func flattens(weights []*tensor.Tensor) (bool, error) {
	for i, w := range weights {
		if w.Device() != weights[0].Device() || w.DType() != weights[0].DType() {
			return false, nil
		}
		for _, other := range weights[:i] {
			if w.SharesStorage(other) && w.StorageOffset() == other.StorageOffset() {
				return false, nil
			}
		}
		if out, err := tensor.CallUnchecked("aten::cudnn_is_acceptable", w); err != nil || !out[0].(bool) {
			return false, err
		}
	}
	return true, nil
}

// flattenWeights flattens the weights of the recurrent layers in m.
func flattenWeights(m any) error {
	for _, n := range NamedModules(m) {
		var err error
		switch l := n.Module.(type) {
		case *RNN:
			err = (*recurrent)(l).flatten((*recurrent)(l).rnn())
		case *GRU:
			err = (*recurrent)(l).flatten(&kindGRU)
		case *LSTM:
			err = (*recurrent)(l).flatten(&kindLSTM)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// out returns the width of the hidden state.
func (r *recurrent) out() int {
	if r.ProjSize != 0 {
		return r.ProjSize
	}
	return r.HiddenSize
}

func (r *recurrent) directions() int {
	if r.IsBidirectional {
		return 2
	}
	return 1
}

func (r *recurrent) failure(op string) error {
	if r == nil {
		return nilModule(op)
	}
	return r.err
}

// ready returns an error if r or the given states, which may be nil, cannot be used.
func (r *recurrent) ready(op string, states []*tensor.Tensor) error {
	if err := r.failure(op); err != nil {
		return err
	}
	if len(r.Weights) == 0 || r.Layers < 1 || r.HiddenSize < 1 {
		return refuse.Error(op, tensor.ErrArgument, "the module has no weights: use its constructor")
	}
	for i, s := range states {
		if s == nil {
			continue
		}
		if err := refuse.Unusable(op, fmt.Sprintf("state %d", i), s); err != nil {
			return err
		}
	}
	return nil
}

func (r *recurrent) weights() []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(r.Weights))
	for i, n := range r.Weights {
		out[i] = n.Tensor
	}
	return out
}

// initial replaces states that are nil by zeros.
func (r *recurrent) initial(x *tensor.Tensor, batch int, states []*tensor.Tensor) []*tensor.Tensor {
	out := make([]*tensor.Tensor, len(states))
	for i, s := range states {
		if out[i] = s; s == nil {
			out[i] = tensor.Zeros(r.stateShape(i, batch), x.DType(), x.Device())
		}
	}
	return out
}

// stateShape returns the shape of a state: (layers*directions, batch, width), or without the batch if that is -1.
func (r *recurrent) stateShape(i, batch int) []int {
	width := r.out()
	if i == 1 {
		width = r.HiddenSize
	}
	if batch < 0 {
		return []int{r.Layers * r.directions(), width}
	}
	return []int{r.Layers * r.directions(), batch, width}
}

// fit returns an error if x has another width than the module, or a state another shape than stateShape.
func (r *recurrent) fit(op string, x *tensor.Tensor, batch int, states []*tensor.Tensor) error {
	if n := x.Size(-1); n != r.InputSize {
		return refuse.Error(op, tensor.ErrArgument, "the last dimension of x must be the input size %d, got shape %v", r.InputSize, x.Shape())
	}
	for i, s := range states {
		if s == nil {
			continue
		}
		if want := r.stateShape(i, batch); !slices.Equal(s.Shape(), want) {
			return refuse.Error(op, tensor.ErrArgument, "state %d must have shape %v, got %v", i, want, s.Shape())
		}
	}
	return nil
}

// failures returns the same failed tensor n times, so that reading the error of one reads that of all.
func failures(n int, err error) []*tensor.Tensor {
	return slices.Repeat([]*tensor.Tensor{tensor.Failed(err)}, n)
}

// run returns the output and the final states for padded or unbatched x.
func (r *recurrent) run(k *rnnKind, x *tensor.Tensor, states ...*tensor.Tensor) []*tensor.Tensor {
	err := r.ready(k.name, states)
	if err == nil {
		err = refuse.Unusable(k.name, "", x)
	}
	if err != nil {
		return failures(1+k.states, err)
	}
	dims := x.Dim()
	if dims != 2 && dims != 3 {
		return failures(1+k.states, refuse.Error(k.name, tensor.ErrArgument, "x must have 3 dimensions, or 2 without a batch, got shape %v", x.Shape()))
	}
	batch, size := 1, -1
	if r.IsBatchFirst {
		batch = 0
	}
	if dims == 3 {
		size = x.Size(batch)
	}
	if err := r.fit(k.name, x, size, states); err != nil {
		return failures(1+k.states, err)
	}
	out, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		in, given := x, states
		if dims == 2 {
			in, given = x.Unsqueeze(batch), make([]*tensor.Tensor, len(states))
			for i, s := range states {
				if s != nil {
					given[i] = s.Unsqueeze(1)
				}
			}
		}
		out := k.padded(in, r.initial(in, in.Size(batch), given), r.weights(), tensor.HasBiases(r.HasBias), tensor.NumLayers(r.Layers), tensor.Dropout(r.Drop),
			tensor.Train(r.Training()), tensor.Bidirectional(r.IsBidirectional), tensor.BatchFirst(r.IsBatchFirst))
		for i, t := range out {
			if dims == 2 {
				at := 1
				if i == 0 {
					at = batch
				}
				out[i] = t.SqueezeDim(at)
			}
			if err := out[i].Err(); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
	if err != nil {
		return failures(1+k.states, err)
	}
	return out
}

// runPacked is run for packed sequences; the first result is the data of the output.
func (r *recurrent) runPacked(k *rnnKind, p *PackedSequence, states ...*tensor.Tensor) []*tensor.Tensor {
	err := r.ready(k.name, states)
	if err == nil {
		err = p.check(k.name)
	}
	if err == nil && p.Data.Dim() != 2 {
		err = refuse.Error(k.name, tensor.ErrArgument, "the packed data must have 2 dimensions, got shape %v", p.Data.Shape())
	}
	if err == nil {
		err = r.fit(k.name, p.Data, p.BatchSizes[0], states)
	}
	if err != nil {
		return failures(1+k.states, err)
	}
	out, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		given := make([]*tensor.Tensor, len(states))
		for i, s := range states {
			if s != nil {
				given[i] = reorder(s, 1, p.SortedIndices)
			}
		}
		given = r.initial(p.Data, p.BatchSizes[0], given)
		var state any = given
		if k.states == 1 {
			state = given[0]
		}
		out, err := results(k.name, 1+k.states, k.packed, p.Data, vector(p.BatchSizes), state, r.weights(), r.HasBias, r.Layers, r.Drop, r.Training(), r.IsBidirectional)
		if err != nil {
			return nil, err
		}
		for i := range out[1:] {
			out[i+1] = reorder(out[i+1], 1, p.UnsortedIndices)
		}
		return out, nil
	})
	if err != nil {
		return failures(1+k.states, err)
	}
	return out
}

// output returns the first of a run's results and frees the others.
func output(out []*tensor.Tensor) *tensor.Tensor {
	for _, t := range out[1:] {
		t.Release()
	}
	return out[0]
}

func (r *recurrent) rnn() *rnnKind {
	if r != nil && r.IsReLU {
		return &kindReLU
	}
	return &kindTanh
}

// RNN is a simple recurrent network, h = tanh(W x + b + V h + c), of one or more layers. Its state has
// PyTorch's names, for each layer and direction: weight_ih_l0 (H, in), weight_hh_l0 (H, H), bias_ih_l0 and bias_hh_l0 (H), and
// the same with _reverse. They are in the field Weights; the order must stay. PyTorch: torch.nn.RNN.
type RNN recurrent

// NewRNN returns an RNN of input width in and hidden width H, with weights uniform in ±1/sqrt(H). Options: Activation ("tanh" by default, or "relu"), NumLayers,
// Bidirectional, DropoutP (between layers in training), BatchFirst, NoBias, DType, Device.
func NewRNN(in, hidden int, opts ...Option) *RNN {
	return (*RNN)(newRecurrent("NewRNN", &kindTanh, in, hidden, opts, "Activation"))
}

// Err returns the error of the constructor that made r, or nil.
func (r *RNN) Err() error { return (*recurrent)(r).failure("RNN") }

// Forward returns the output for x, from zero states: it is the first result of ForwardState.
func (r *RNN) Forward(x *tensor.Tensor) *tensor.Tensor {
	return output((*recurrent)(r).run((*recurrent)(r).rnn(), x, nil))
}

// ForwardState runs over x (T, N, in), or (N, T, in) with BatchFirst, or (T, in) without a batch. It returns the output
// y (T, N, D*H), (N, T, D*H) or (T, D*H), where D is 2 if bidirectional and 1 otherwise, and the final states: h (layers*D,
// N, H), without N if x has none. The initial states have the shape of h, or are nil for zeros.
func (r *RNN) ForwardState(x, h0 *tensor.Tensor) (y, h *tensor.Tensor) {
	out := (*recurrent)(r).run((*recurrent)(r).rnn(), x, h0)
	return out[0], out[1]
}

// ForwardPacked is ForwardState for packed sequences. The states are in the order of the sequences before packing.
func (r *RNN) ForwardPacked(p *PackedSequence, h0 *tensor.Tensor) (y *PackedSequence, h *tensor.Tensor) {
	out := (*recurrent)(r).runPacked((*recurrent)(r).rnn(), p, h0)
	return p.with(out[0]), out[1]
}

// GRU is a gated recurrent unit, of one or more layers. Its state has
// PyTorch's names, for each layer and direction: weight_ih_l0 (3H, in), weight_hh_l0 (3H, H), bias_ih_l0 and bias_hh_l0 (3H), and
// the same with _reverse. They are in the field Weights; the order must stay. PyTorch: torch.nn.GRU.
type GRU recurrent

// NewGRU returns a GRU of input width in and hidden width H, with weights uniform in ±1/sqrt(H). Options: NumLayers,
// Bidirectional, DropoutP (between layers in training), BatchFirst, NoBias, DType, Device.
func NewGRU(in, hidden int, opts ...Option) *GRU {
	return (*GRU)(newRecurrent("NewGRU", &kindGRU, in, hidden, opts))
}

// Err returns the error of the constructor that made r, or nil.
func (r *GRU) Err() error { return (*recurrent)(r).failure("GRU") }

// Forward returns the output for x, from zero states: it is the first result of ForwardState.
func (r *GRU) Forward(x *tensor.Tensor) *tensor.Tensor {
	return output((*recurrent)(r).run(&kindGRU, x, nil))
}

// ForwardState runs over x (T, N, in), or (N, T, in) with BatchFirst, or (T, in) without a batch. It returns the output
// y (T, N, D*H), (N, T, D*H) or (T, D*H), where D is 2 if bidirectional and 1 otherwise, and the final states: h (layers*D,
// N, H), without N if x has none. The initial states have the shape of h, or are nil for zeros.
func (r *GRU) ForwardState(x, h0 *tensor.Tensor) (y, h *tensor.Tensor) {
	out := (*recurrent)(r).run(&kindGRU, x, h0)
	return out[0], out[1]
}

// ForwardPacked is ForwardState for packed sequences. The states are in the order of the sequences before packing.
func (r *GRU) ForwardPacked(p *PackedSequence, h0 *tensor.Tensor) (y *PackedSequence, h *tensor.Tensor) {
	out := (*recurrent)(r).runPacked(&kindGRU, p, h0)
	return p.with(out[0]), out[1]
}

// LSTM is a long short-term memory, of one or more layers. Its state has
// PyTorch's names, for each layer and direction: weight_ih_l0 (4H, in), weight_hh_l0 (4H, P), bias_ih_l0 and bias_hh_l0 (4H),
// weight_hr_l0 (P, H) with ProjSize, and the same with _reverse, where P is ProjSize, or H without it. They are in the field
// Weights; the order must stay. PyTorch: torch.nn.LSTM.
type LSTM recurrent

// NewLSTM returns an LSTM of input width in and hidden width H, with weights uniform in ±1/sqrt(H). Options: ProjSize, NumLayers,
// Bidirectional, DropoutP (between layers in training), BatchFirst, NoBias, DType, Device. With ProjSize P, a product with a weight (P, H) reduces the
// output and the hidden state to the width P.
func NewLSTM(in, hidden int, opts ...Option) *LSTM {
	return (*LSTM)(newRecurrent("NewLSTM", &kindLSTM, in, hidden, opts, "ProjSize"))
}

// Err returns the error of the constructor that made r, or nil.
func (r *LSTM) Err() error { return (*recurrent)(r).failure("LSTM") }

// Forward returns the output for x, from zero states: it is the first result of ForwardState.
func (r *LSTM) Forward(x *tensor.Tensor) *tensor.Tensor {
	return output((*recurrent)(r).run(&kindLSTM, x, nil, nil))
}

// ForwardState runs over x (T, N, in), or (N, T, in) with BatchFirst, or (T, in) without a batch. It returns the output
// y (T, N, D*P), (N, T, D*P) or (T, D*P), where D is 2 if bidirectional and 1 otherwise, and P is ProjSize, or H without it;
// and the final states: h (layers*D, N, P) and c (layers*D, N, H), without N if x has none. The initial states have the
// shapes of h and c, or are nil for zeros.
func (r *LSTM) ForwardState(x, h0, c0 *tensor.Tensor) (y, h, c *tensor.Tensor) {
	out := (*recurrent)(r).run(&kindLSTM, x, h0, c0)
	return out[0], out[1], out[2]
}

// ForwardPacked is ForwardState for packed sequences. The states are in the order of the sequences before packing.
func (r *LSTM) ForwardPacked(p *PackedSequence, h0, c0 *tensor.Tensor) (y *PackedSequence, h, c *tensor.Tensor) {
	out := (*recurrent)(r).runPacked(&kindLSTM, p, h0, c0)
	return p.with(out[0]), out[1], out[2]
}

// rnnCell is the common form of RNNCell, LSTMCell and GRUCell.
type rnnCell struct {
	WeightIH, WeightHH, BiasIH, BiasHH *tensor.Tensor
	IsReLU                             bool
	err                                error
}

func newCell(op string, gates, in, hidden int, opts []Option, own ...string) *rnnCell {
	b := build(op, opts, append(own, "NoBias", "DType", "Device")...)
	b.sizes("in", in, "hidden", hidden)
	c := &rnnCell{IsReLU: b.activation == "relu"}
	if b.activation != "" && b.activation != "relu" && b.activation != "tanh" {
		b.fail("Activation must be tanh or relu, got %q", b.activation)
	}
	fill := uniform(1 / math.Sqrt(float64(hidden)))
	c.WeightIH = b.parameter([]int{gates * hidden, in}, fill)
	c.WeightHH = b.parameter([]int{gates * hidden, hidden}, fill)
	if !b.noBias {
		c.BiasIH = b.parameter([]int{gates * hidden}, fill)
		c.BiasHH = b.parameter([]int{gates * hidden}, fill)
	}
	if err := b.done(); err != nil {
		return &rnnCell{err: err}
	}
	return c
}

func (c *rnnCell) failure(op string) error {
	if c == nil {
		return nilModule(op)
	}
	return c.err
}

// step calls f with x and the states with a batch, zeros where a state is nil. f returns n states.
func (c *rnnCell) step(op string, x *tensor.Tensor, states []*tensor.Tensor, f func(x *tensor.Tensor, states []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor) []*tensor.Tensor {
	n := len(states)
	err := c.failure(op)
	if err == nil {
		err = refuse.Unusable(op, "", x)
	}
	if err == nil && (c.WeightIH == nil || c.WeightHH == nil || c.WeightHH.Dim() != 2) {
		err = refuse.Error(op, tensor.ErrArgument, "the module has no weights: use its constructor")
	}
	if err == nil && x.Dim() != 1 && x.Dim() != 2 {
		err = refuse.Error(op, tensor.ErrArgument, "x must be (N, in) or (in), got shape %v", x.Shape())
	}
	if err == nil && c.WeightIH.Dim() == 2 && x.Size(-1) != c.WeightIH.Size(1) {
		err = refuse.Error(op, tensor.ErrArgument, "the last dimension of x must be the input size %d, got shape %v", c.WeightIH.Size(1), x.Shape())
	}
	for i, s := range states {
		if err != nil || s == nil {
			continue
		}
		if err = refuse.Unusable(op, fmt.Sprintf("state %d", i), s); err != nil {
			break
		}
		if want := append(leading(x, 1), c.WeightHH.Size(1)); !slices.Equal(s.Shape(), want) {
			err = refuse.Error(op, tensor.ErrArgument, "state %d must have shape %v, got %v", i, want, s.Shape())
		}
	}
	if err != nil {
		return failures(n, err)
	}
	out, err := tensor.TidyAll(func() ([]*tensor.Tensor, error) {
		in, given := x, make([]*tensor.Tensor, n)
		if x.Dim() == 1 {
			in = x.Unsqueeze(0)
		}
		for i, s := range states {
			switch {
			case s == nil:
				given[i] = tensor.Zeros([]int{in.Size(0), c.WeightHH.Size(1)}, in.DType(), in.Device())
			case x.Dim() == 1:
				given[i] = s.Unsqueeze(0)
			default:
				given[i] = s
			}
		}
		var opts []tensor.Option
		if c.BiasIH != nil {
			opts = append(opts, tensor.BIh(c.BiasIH))
		}
		if c.BiasHH != nil {
			opts = append(opts, tensor.BHh(c.BiasHH))
		}
		out := f(in, given, opts...)
		for i, t := range out {
			if x.Dim() == 1 {
				out[i] = t.SqueezeDim(0)
			}
			if err := out[i].Err(); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
	if err != nil {
		return failures(n, err)
	}
	return out
}

// RNNCell is one step of a simple recurrent network. Its fields are WeightIH (H, in), WeightHH (H, H), BiasIH and BiasHH (H), or nil.
// PyTorch: torch.nn.RNNCell.
type RNNCell rnnCell

// NewRNNCell returns an RNNCell of input width in and hidden width H, with weights uniform in ±1/sqrt(H). Options: Activation ("tanh" by default, or "relu"), NoBias,
// DType, Device.
func NewRNNCell(in, hidden int, opts ...Option) *RNNCell {
	return (*RNNCell)(newCell("NewRNNCell", 1, in, hidden, opts, "Activation"))
}

// Err returns the error of the constructor that made c, or nil.
func (c *RNNCell) Err() error { return (*rnnCell)(c).failure("RNNCell") }

// Forward returns the next state (N, H) for x (N, in), or (H) for (in) without a batch. The state h0 has the same shape, or
// is nil for zeros.
func (c *RNNCell) Forward(x, h0 *tensor.Tensor) *tensor.Tensor {
	return (*rnnCell)(c).step("RNNCell", x, []*tensor.Tensor{h0}, func(x *tensor.Tensor, states []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor {
		if c.IsReLU {
			return []*tensor.Tensor{x.RNNReLUCell(states[0], c.WeightIH, c.WeightHH, opts...)}
		}
		return []*tensor.Tensor{x.RNNTanhCell(states[0], c.WeightIH, c.WeightHH, opts...)}
	})[0]
}

// GRUCell is one step of a gated recurrent unit. Its fields are WeightIH (3H, in), WeightHH (3H, H), BiasIH and BiasHH (3H), or nil.
// PyTorch: torch.nn.GRUCell.
type GRUCell rnnCell

// NewGRUCell returns a GRUCell of input width in and hidden width H, with weights uniform in ±1/sqrt(H). Options: NoBias,
// DType, Device.
func NewGRUCell(in, hidden int, opts ...Option) *GRUCell {
	return (*GRUCell)(newCell("NewGRUCell", 3, in, hidden, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *GRUCell) Err() error { return (*rnnCell)(c).failure("GRUCell") }

// Forward returns the next state (N, H) for x (N, in), or (H) for (in) without a batch. The state h0 has the same shape, or
// is nil for zeros.
func (c *GRUCell) Forward(x, h0 *tensor.Tensor) *tensor.Tensor {
	return (*rnnCell)(c).step("GRUCell", x, []*tensor.Tensor{h0}, func(x *tensor.Tensor, states []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor {
		return []*tensor.Tensor{x.GRUCell(states[0], c.WeightIH, c.WeightHH, opts...)}
	})[0]
}

// LSTMCell is one step of a long short-term memory. Its fields are WeightIH (4H, in), WeightHH (4H, H), BiasIH and BiasHH (4H), or nil.
// PyTorch: torch.nn.LSTMCell.
type LSTMCell rnnCell

// NewLSTMCell returns an LSTMCell of input width in and hidden width H, with weights uniform in ±1/sqrt(H). Options: NoBias,
// DType, Device.
func NewLSTMCell(in, hidden int, opts ...Option) *LSTMCell {
	return (*LSTMCell)(newCell("NewLSTMCell", 4, in, hidden, opts))
}

// Err returns the error of the constructor that made c, or nil.
func (c *LSTMCell) Err() error { return (*rnnCell)(c).failure("LSTMCell") }

// Forward returns the next states for x (N, in), or (in) without a batch: h and c (N, H), or (H). The states h0 and c0 have
// the same shapes, or are nil for zeros.
func (c *LSTMCell) Forward(x, h0, c0 *tensor.Tensor) (h, cell *tensor.Tensor) {
	out := (*rnnCell)(c).step("LSTMCell", x, []*tensor.Tensor{h0, c0}, func(x *tensor.Tensor, states []*tensor.Tensor, opts ...tensor.Option) []*tensor.Tensor {
		h, cell := x.LSTMCell(states, c.WeightIH, c.WeightHH, opts...)
		return []*tensor.Tensor{h, cell}
	})
	return out[0], out[1]
}

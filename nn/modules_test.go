package nn_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/golden"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

func names(named []nn.Named) (out []string) {
	for _, n := range named {
		out = append(out, n.Name)
	}
	return out
}

type inner struct {
	nn.Mode
	B    *tensor.Tensor `nn:",buffer"`
	W    *tensor.Tensor `nn:"weight"`
	Skip *tensor.Tensor `nn:"-"`
	Nil  *tensor.Tensor
	priv *tensor.Tensor `nn:"-"`
}

type outer struct {
	*inner
	Value    inner
	LN1      *nn.LayerNorm `nn:",optional"`
	HTTPHead nn.Layer
	List     []nn.Layer            `nn:",optional"`
	ByName   map[string]*nn.Linear `nn:",optional"`
	Tensors  []*tensor.Tensor
	Own      *tensor.Tensor
	Parent   *outer
	Text     string
	Err      error
	Anything any
	Chan     chan *tensor.Tensor
}

func TestWalk(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		ones := func() *tensor.Tensor { return nn.NewParameter(tensor.Ones([]int{1})) }
		shared := nn.NewLinear(1, 1)
		skipped, private := tensor.Ones([]int{1}), tensor.Ones([]int{1})
		o := &outer{
			inner: &inner{B: tensor.Ones([]int{1}), W: ones(), Skip: skipped, priv: private}, Value: inner{W: ones()},
			HTTPHead: shared, List: []nn.Layer{shared, nil, nn.NewSequential(nn.NewLinear(1, 1, nn.NoBias()))},
			ByName: map[string]*nn.Linear{"b": nn.NewLinear(1, 1), "a": nil}, Tensors: []*tensor.Tensor{ones(), nil, ones()},
			Own: ones(), Err: errors.New("x"), Anything: nn.NewLinear(1, 1, nn.NoBias()),
		}
		o.Parent = o
		if err := nn.Check(o); err != nil {
			t.Error(err)
		}
		want := []string{"own", "weight", "b", "value.weight", "http_head.weight", "http_head.bias", "list.0.weight", "list.0.bias",
			"list.2.0.weight", "by_name.b.weight", "by_name.b.bias", "tensors.0", "tensors.2", "anything.weight"}
		if got := names(nn.StateDict(o)); !reflect.DeepEqual(got, want) {
			t.Errorf("StateDict has %v", got)
		}
		if got := names(nn.NamedParameters(o)); len(got) != len(want)-3 {
			t.Errorf("NamedParameters are %v", got)
		}
		if got := names(nn.NamedBuffers(o)); !reflect.DeepEqual(got, []string{"b"}) {
			t.Errorf("NamedBuffers are %v", got)
		}
		nn.Eval(o)
		if o.Training() || o.Value.Training() {
			t.Error("Eval did not reach all submodules")
		}
		nn.Train(o)
		if !o.Training() || !o.Value.Training() {
			t.Error("Train did not reach all submodules")
		}
		nn.Release(o.List[2])
		nn.Release(o)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWalkNothing tests that values that are not modules give an error, that modules without parts have no parameters,
// and that neither panics.
func TestWalkNothing(t *testing.T) {
	leak.Check(t)
	var nilModule *nn.Linear
	var nilLayer nn.Layer
	empty := []any{[]int{1}, struct{}{}, &struct{ A *int }{}, []any{nil, nil}, &nn.Sequential{}, map[string]*nn.Linear{}, nn.Func(func(x *tensor.Tensor) *tensor.Tensor { return x })}
	for i, m := range append(empty, nil, nilModule, nilLayer, 3, "x", map[int]*nn.Linear{1: nil}, func() {}, make(chan int), (*nn.Sequential)(nil), nn.Func(nil)) {
		want := 0
		if i >= len(empty) {
			want = 1 // the failed tensor
		}
		if a, b, c := len(nn.Parameters(m)), len(nn.StateDict(m)), len(nn.NamedBuffers(m)); a != want || b != want || c != 0 {
			t.Errorf("%T has %d, %d, %d tensors", m, a, b, c)
		}
		nn.Train(m)
		nn.Eval(m)
		nn.Release(m)
		for what, err := range map[string]error{"Check": nn.Check(m), "ZeroGrad": nn.ZeroGrad(m), "To": nn.To(m, tensor.Float64), "RequiresGrad_": nn.RequiresGrad_(m, false), "LoadStateDict": nn.LoadStateDict(m, nil)} {
			if (err != nil) != (i >= len(empty)) {
				t.Errorf("%s of a %T: %v", what, m, err)
			}
		}
	}
}

func TestLoadStateDict(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		a, b := nn.NewLinear(2, 3), nn.NewLinear(2, 3, nn.DType(tensor.Float64))
		defer nn.Release(a)
		defer nn.Release(b)
		if err := nn.LoadStateDict(b, nn.StateDict(a).Map()); err != nil {
			return err
		}
		if same, err := b.Weight.To(tensor.Float32).Equal(a.Weight); err != nil || !same {
			t.Errorf("the weights differ: %v", err)
		}
		if !b.Weight.RequiresGrad() || b.Weight.DType() != tensor.Float64 {
			t.Error("the parameter was replaced")
		}
		bad := map[string]*tensor.Tensor{"weight": tensor.Zeros([]int{3, 3}), "extra": tensor.Zeros([]int{1})}
		err := nn.LoadStateDict(a, bad)
		if err == nil || !errors.Is(err, tensor.ErrArgument) {
			t.Fatalf("LoadStateDict of a state that does not fit returns %v", err)
		}
		for _, part := range []string{"weight has shape [3 3]", "missing bias", "unexpected extra"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
		if err := nn.LoadStateDict(a, map[string]*tensor.Tensor{"bias": tensor.Ones([]int{3}), "extra": nil}, nn.Strict(false)); err != nil {
			t.Error(err)
		}
		for _, src := range []*tensor.Tensor{nil, tensor.Ones([]int{3}).View(9)} {
			if nn.LoadStateDict(a, map[string]*tensor.Tensor{"bias": src}, nn.Strict(false)) == nil {
				t.Error("LoadStateDict accepts an unusable tensor")
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestIDs tests the dtypes of the ids of an embedding.
func TestIDs(t *testing.T) {
	leak.Check(t)
	_ = tensor.WithScope(func() error {
		layers := []nn.Layer{nn.NewEmbedding(5, 3), nn.NewEmbedding(5, 3, nn.MaxNorm(1)), nn.NewEmbeddingBag(5, 3)}
		defer nn.Release(layers)
		for _, l := range layers {
			for _, d := range []tensor.DType{tensor.Int64, tensor.Int32} {
				if err := l.Forward(tensor.Ones([]int{2, 2}, d)).Err(); err != nil {
					t.Errorf("%T: %v", l, err)
				}
			}
			for _, d := range []tensor.DType{tensor.Uint8, tensor.Int16, tensor.Bool, tensor.Float32} {
				err := l.Forward(tensor.Ones([]int{2, 2}, d)).Err()
				if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "ids must be int64 or int32, got "+d.String()) {
					t.Errorf("%T: %v", l, err)
				}
			}
		}
		return nil
	})
}

// TestTied tests tied weights: one parameter with two names.
func TestTied(t *testing.T) {
	leak.Check(t)
	e := nn.NewEmbedding(5, 3)
	m := &struct {
		Tok  *nn.Embedding
		Head *nn.Linear
	}{e, &nn.Linear{Weight: e.Weight}}
	if n := len(nn.Parameters(m)); n != 1 {
		t.Errorf("%d parameters", n)
	}
	if got := names(nn.StateDict(m)); !reflect.DeepEqual(got, []string{"tok.weight", "head.weight"}) {
		t.Errorf("StateDict has %v", got)
	}
	if err := nn.To(m, tensor.Float64); err != nil || m.Head.Weight.DType() != tensor.Float64 || !m.Tok.Weight.RequiresGrad() {
		t.Errorf("To: %v", err)
	}
	nn.Release(m)
}

func TestTo(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		b := nn.NewBatchNorm2d(2)
		defer nn.Release(b)
		if err := b.Forward(tensor.Randn([]int{2, 2, 3, 3})).Sum().Backward(); err != nil {
			return err
		}
		weight := b.Weight
		if err := nn.To(b, tensor.Float64, tensor.CPU); err != nil {
			return err
		}
		if b.Weight != weight || weight.DType() != tensor.Float64 || weight.Grad().DType() != tensor.Float64 || !weight.IsLeaf() {
			t.Error("the converted weight has other values")
		}
		if b.NumBatchesTracked.DType() != tensor.Int64 || b.RunningMean.DType() != tensor.Float64 {
			t.Error("buffers are converted wrongly")
		}
		if err := b.Forward(tensor.Randn([]int{2, 2, 3, 3}, tensor.Float64)).Sum().Backward(); err != nil {
			t.Error(err)
		}
		if err := nn.RequiresGrad_(b, false); err != nil {
			return err
		}
		for _, d := range []tensor.DType{tensor.Int32, tensor.Bool} {
			if err := nn.To(b, d); !errors.Is(err, tensor.ErrArgument) || weight.DType() != tensor.Float64 {
				t.Errorf("To %v: %v, the weight is %v", d, err, weight.DType())
			}
		}
		if nn.To(b, tensor.KeepDim(true)) == nil {
			t.Error("To accepts an unrelated option")
		}
		m := nn.NewSequential(nn.NewConv2d(3, 4, 2), nn.NewConv3d(3, 4, 2), b)
		if err := nn.To(m, tensor.ChannelsLast); err != nil {
			return err
		}
		for _, p := range nn.NamedParameters(m) {
			if channelsLast := p.Tensor.IsContiguous(tensor.ChannelsLast); channelsLast != (p.Tensor.Dim() == 4) || !channelsLast && !p.Tensor.IsContiguous() {
				t.Errorf("%s has strides %v", p.Name, p.Tensor.Stride())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestStickyErrors tests that layers pass an error on unchanged and that the enclosing scope reports it.
func TestStickyErrors(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(3, 2)
	defer nn.Release(l)
	err := tensor.WithScope(func() error {
		bad := nn.Pipe(tensor.Ones([]int{2, 5}), l, &nn.ReLU{})
		for _, layer := range []nn.Layer{l, &nn.Identity{}, &nn.Dropout{}, &nn.Flatten{}, nn.NewSequential(&nn.ReLU{})} {
			if err := layer.Forward(bad).Err(); err == nil || err.Error() != bad.Err().Error() {
				t.Errorf("%T: %v instead of %v", layer, err, bad.Err())
			}
		}
		return nil
	})
	if err != nil {
		t.Error("the scope reports an error that was read")
	}
	err = tensor.WithScope(func() error { _ = nn.Pipe(tensor.Ones([]int{2, 5}), l, &nn.ReLU{}); return nil })
	if err == nil {
		t.Error("the enclosing scope does not report a failure in Pipe")
	}
	// A panic in a user-defined layer propagates and leaves no scope open.
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not propagate")
			}
		}()
		_ = tensor.WithScope(func() error {
			_ = nn.Pipe(tensor.Ones([]int{2, 3}), l, nn.Func(func(*tensor.Tensor) *tensor.Tensor { panic("mine") }))
			return nil
		})
	}()
	if tensor.CurrentScope() != nil {
		t.Error("a scope stayed open")
	}
}

// TestForwardLeavesOnlyItsResult tests that Forward without gradients leaves only its result in memory, and that it
// does not use more memory than PyTorch while it runs.
func TestForwardLeavesOnlyItsResult(t *testing.T) {
	leak.Check(t)
	for name, build := range constructors {
		err := tensor.WithScope(func() error {
			m := build()
			defer nn.Release(m)
			shape := map[string][]int{"attention": {5, 2, 8}, "attention_causal": {2, 5, 8}, "attention_no_bias": {2, 5, 8}, "causal_self_attention": {2, 5, 8}}[name]
			if shape == nil {
				return nil
			}
			return autograd.NoGrad(func() error {
				x := tensor.Ones(shape)
				before := tensor.CurrentScope().Len()
				y := m.Forward(x)
				if err := y.Err(); err != nil {
					return err
				}
				if n := tensor.CurrentScope().Len() - before; n != 1 {
					return fmt.Errorf("%s left %d tensors", name, n)
				}
				runtime.KeepAlive(x)
				runtime.KeepAlive(y)
				return nil
			})
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestPackedWithEmptyIndices tests that empty indices mean the order of the lengths, as nil does.
func TestPackedWithEmptyIndices(t *testing.T) {
	leak.Check(t)
	m := nn.NewGRU(2, 3)
	defer nn.Release(m)
	err := tensor.WithScope(func() error {
		p := nn.PackPaddedSequence(tensor.Ones([]int{4, 2, 2}), []int{4, 2})
		empty := &nn.PackedSequence{Data: p.Data, BatchSizes: p.BatchSizes, SortedIndices: []int{}, UnsortedIndices: []int{}}
		x, _ := nn.PadPackedSequence(p)
		y, lengths := nn.PadPackedSequence(empty)
		if !slices.Equal(lengths, []int{4, 2}) {
			t.Errorf("the lengths are %v", lengths)
		}
		golden.Near(t, "the sequences", y, data(t, x), 0, 0)
		h0 := tensor.Ones([]int{1, 2, 3})
		_, want := m.ForwardPacked(p, h0)
		_, h := m.ForwardPacked(empty, h0)
		golden.Near(t, "the state", h, data(t, want), 0, 0)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWidthsOfRecurrentLayers tests that errors name the width or the state that does not fit.
func TestWidthsOfRecurrentLayers(t *testing.T) {
	leak.Check(t)
	lstm, gru, rnn := nn.NewLSTM(5, 3), nn.NewGRU(2, 3), nn.NewRNN(5, 3, nn.BatchFirst(), nn.Bidirectional())
	projected := nn.NewLSTM(5, 3, nn.ProjSize(2))
	lstmCell, gruCell, rnnCell := nn.NewLSTMCell(5, 3), nn.NewGRUCell(2, 3), nn.NewRNNCell(5, 3)
	all := []any{lstm, gru, rnn, projected, lstmCell, gruCell, rnnCell}
	defer nn.Release(all)
	err := tensor.WithScope(func() error {
		ones := func(shape ...int) *tensor.Tensor { return tensor.Ones(shape) }
		state := func(y, h, c *tensor.Tensor) error { return errors.Join(y.Err(), h.Err(), c.Err()) }
		packed := nn.PackPaddedSequence(ones(4, 2, 5), []int{4, 2})
		h2 := func(_, h *tensor.Tensor) error { return h.Err() }
		p2 := func(p *nn.PackedSequence, h *tensor.Tensor) error { return errors.Join(p.Err(), h.Err()) }
		for want, err := range map[string]error{
			"LSTM: state 0 must have shape [1 3 3], got [1 3 4]":                         state(lstm.ForwardState(ones(4, 3, 5), ones(1, 3, 4), nil)),
			"LSTM: state 1 must have shape [1 3 3], got [1 2 3]":                         state(lstm.ForwardState(ones(4, 3, 5), ones(1, 3, 3), ones(1, 2, 3))),
			"LSTM: state 1 must have shape [1 3], got [1 4]":                             state(lstm.ForwardState(ones(4, 5), nil, ones(1, 4))),
			"LSTM: state 0 must have shape [1 3 2], got [1 3 3]":                         state(projected.ForwardState(ones(4, 3, 5), ones(1, 3, 3), nil)),
			"GRU: the last dimension of x must be the input size 2, got shape [4 3 5]":   gru.Forward(ones(4, 3, 5)).Err(),
			"GRU: the last dimension of x must be the input size 2, got shape [4 5]":     gru.Forward(ones(4, 5)).Err(),
			"GRU: the last dimension of x must be the input size 2, got shape [6 5]":     p2(gru.ForwardPacked(packed, nil)),
			"RNN: state 0 must have shape [2 4 3], got [1 4 3]":                          h2(rnn.ForwardState(ones(4, 3, 5), ones(1, 4, 3))),
			"RNN: state 0 must have shape [2 2 3], got [2 1 3]":                          p2(rnn.ForwardPacked(packed, ones(2, 1, 3))),
			"LSTMCell: state 1 must have shape [4 3], got [4 4]":                         h2(lstmCell.Forward(ones(4, 5), ones(4, 3), ones(4, 4))),
			"GRUCell: the last dimension of x must be the input size 2, got shape [4 5]": gruCell.Forward(ones(4, 5), nil).Err(),
			"RNNCell: state 0 must have shape [4 3], got [2 3]":                          rnnCell.Forward(ones(4, 5), ones(2, 3)).Err(),
			"RNNCell: state 0 must have shape [3], got [4]":                              rnnCell.Forward(ones(5), ones(4)).Err(),
		} {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
		}
		return errors.Join(state(projected.ForwardState(ones(4, 3, 5), ones(1, 3, 2), ones(1, 3, 3))), h2(rnn.ForwardState(ones(4, 3, 5), ones(2, 4, 3))),
			p2(rnn.ForwardPacked(packed, ones(2, 2, 3))), rnnCell.Forward(ones(5), ones(3)).Err())
	})
	if err != nil {
		t.Error(err)
	}
}

// TestWidthsOfAttention tests that widths of keys and values that equal the queries' do not change the parameters.
func TestWidthsOfAttention(t *testing.T) {
	leak.Check(t)
	make := func(opts ...nn.Option) *nn.MultiheadAttention {
		if err := tensor.ManualSeed(3); err != nil {
			t.Fatal(err)
		}
		return nn.NewMultiheadAttention(4, 2, opts...)
	}
	want := make()
	defer nn.Release(want)
	for what, opts := range map[string][]nn.Option{"KDim": {nn.KDim(4)}, "VDim": {nn.VDim(4)}, "both": {nn.KDim(4), nn.VDim(4)}} {
		m := make(opts...)
		if m.InProjWeight == nil || m.QProjWeight != nil {
			t.Errorf("%s: the projections are apart", what)
		} else if same, err := m.InProjWeight.Equal(want.InProjWeight); err != nil || !same {
			t.Errorf("%s: other initial values: %v", what, err)
		}
		nn.Release(m)
	}
	apart := make(nn.KDim(6))
	defer nn.Release(apart)
	if apart.InProjWeight != nil || apart.KProjWeight == nil || apart.VProjWeight == nil {
		t.Error("the projections of another width are not apart")
	}
}

// TestProjectionsOfAttention tests that MultiheadAttention rounds as torch.nn.functional.multi_head_attention_forward
// does: it projects (L, N, E) without transposing it, and keys that are the values with one product.
func TestProjectionsOfAttention(t *testing.T) {
	leak.Check(t)
	const heads, each = 4, 8
	const width = heads * each
	m := nn.NewMultiheadAttention(width, heads, nn.DType(tensor.BFloat16))
	defer nn.Release(m)
	err := tensor.WithScope(func() error {
		if err := errors.Join(tensor.ManualSeed(1), nn.Normal_(m.InProjBias, 0, 1).Err(), nn.Normal_(m.OutProj.Bias, 0, 1).Err()); err != nil {
			return err
		}
		// part is the product with n of the three parts of the parameters.
		part := func(x *tensor.Tensor, from, n int) *tensor.Tensor {
			return x.Linear(m.InProjWeight.Narrow(0, from*width, n*width), m.InProjBias.Narrow(0, from*width, n*width))
		}
		apart := func(x *tensor.Tensor, n int) []*tensor.Tensor {
			parts, err := x.Chunk(n, tensor.Dim(-1))
			if err != nil {
				t.Fatal(err)
			}
			return parts
		}
		want := func(q, k, v *tensor.Tensor) *tensor.Tensor {
			var parts []*tensor.Tensor
			switch {
			case q == k:
				parts = apart(part(q, 0, 3), 3)
			case k == v:
				parts = append([]*tensor.Tensor{part(q, 0, 1)}, apart(part(k, 1, 2), 2)...)
			default:
				parts = []*tensor.Tensor{part(q, 0, 1), part(k, 1, 1), part(v, 2, 1)}
			}
			length, batch := q.Size(0), q.Size(1)
			for i, p := range parts {
				parts[i] = p.Reshape(p.Size(0), batch*heads, each).Transpose(0, 1).View(batch, heads, p.Size(0), each)
			}
			y := tensor.ScaledDotProductAttention(parts[0], parts[1], parts[2]).Permute(2, 0, 1, 3).Reshape(length*batch, width)
			return m.OutProj.Forward(y).View(length, batch, width)
		}
		x, source := tensor.Randn([]int{5, 3, width}, tensor.BFloat16), tensor.Randn([]int{7, 3, width}, tensor.BFloat16)
		weigh, mask := tensor.Randn([]int{5, 3, width}, tensor.BFloat16), tensor.Zeros([]int{5, 7}, tensor.Bool)
		for _, what := range []string{"query, key and value", "key and value", "nothing"} {
			run := func(attend func(q, k, v *tensor.Tensor) *tensor.Tensor) []*tensor.Tensor {
				q, k := x.Clone().RequiresGrad_(), source.Clone().RequiresGrad_()
				v := k
				switch what {
				case "query, key and value":
					k, v = q, q
				case "nothing":
					v = source
				}
				y := attend(q, k, v)
				if err := y.Mul(weigh).Sum().Backward(); err != nil {
					t.Fatal(err)
				}
				return []*tensor.Tensor{y, q.Grad(), k.Grad()}
			}
			expected := run(want)
			for masked, masks := range map[string]nn.Masks{"no mask": {}, "a mask": {Attn: mask}} {
				if what == "query, key and value" && masks.Attn != nil {
					masks.Attn = mask.Narrow(1, 0, 5)
				}
				got := run(func(q, k, v *tensor.Tensor) *tensor.Tensor { return m.Attend(q, k, v, masks) })
				for i, of := range []string{"the result", "the gradient of query", "the gradient of key"} {
					if same, err := got[i].Equal(expected[i]); masks.Attn == nil && (err != nil || !same) {
						t.Errorf("%s equal, %s: %s differs: %v", what, masked, of, err)
					}
				}
				golden.Near(t, what+" equal, "+masked, got[0].To(tensor.Float32), data(t, expected[0].To(tensor.Float32)), 0.02, 0.02)
			}
		}
		// Parameters of other sizes.
		m := &nn.MultiheadAttention{OutProj: m.OutProj, Heads: heads}
		for _, rows := range []int{4, 1, 0} {
			m.InProjWeight, m.InProjBias = tensor.Zeros([]int{rows, width}, tensor.BFloat16), tensor.Zeros([]int{rows}, tensor.BFloat16)
			for _, masks := range []nn.Masks{{}, {Attn: mask}} {
				for what, in := range map[string][3]*tensor.Tensor{"all": {x, x, x}, "key and value": {x, source, source}, "nothing": {x, source, source.Clone()}} {
					err := tensor.WithScope(func() error { return m.Attend(in[0], in[1], in[2], masks).Err() })
					if err == nil {
						t.Errorf("parameters of %d rows are accepted; %s equal", rows, what)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestCausalWithMask tests that attention that is causal and has a mask leaves out what either leaves out, with the weights
// and without.
func TestCausalWithMask(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		inf := math.Inf(1)
		m := nn.NewMultiheadAttention(4, 2, nn.BatchFirst())
		causal := nn.NewMultiheadAttention(4, 2, nn.BatchFirst(), nn.Causal())
		if err := nn.LoadStateDict(causal, nn.StateDict(m).Map()); err != nil {
			return err
		}
		layer := nn.NewTransformerEncoderLayer(4, 2, nn.BatchFirst(), nn.FeedForward(8), nn.DropoutP(0))
		x := tensor.Randn([]int{2, 3, 4})
		triangle := tensor.Ones([]int{3, 3}, tensor.Bool).Triu(tensor.Diagonal(1))
		none := tensor.Zeros([]int{3, 3}, tensor.Bool)
		some := tensor.FromSlice([]bool{false, false, false, false, false, true, true, false, false}, []int{3, 3})
		scores := tensor.FromSlice([]float64{0, 3, inf, 1, 0, 2, -inf, 0.5, 0}, []int{3, 3}).To(tensor.Float32)
		perHead := tensor.Randn([]int{4, 3, 3})
		padding := tensor.FromSlice([]bool{false, false, true, false, false, false}, []int{2, 3})
		for what, c := range map[string]struct{ mask, both *tensor.Tensor }{
			"a mask of nothing":  {none, triangle},
			"bool":               {some, some.LogicalOr(triangle)},
			"floating-point":     {scores, scores.MaskedFill(triangle, -inf)},
			"of each head":       {perHead, perHead.MaskedFill(triangle, -inf)},
			"that is causal too": {triangle, triangle},
		} {
			for _, padded := range []*tensor.Tensor{nil, padding} {
				in, both := nn.Masks{Attn: c.mask, KeyPadding: padded, Causal: true}, nn.Masks{Attn: c.both, KeyPadding: padded}
				want, weights := m.AttendWeights(x, x, x, both, true)
				for name, masks := range map[string]nn.Masks{"Masks.Causal": in, "Causal": {Attn: c.mask, KeyPadding: padded}} {
					a := m
					if !masks.Causal {
						a = causal
					}
					y, w := a.AttendWeights(x, x, x, masks, true)
					golden.Near(t, what+", the weights with "+name, w, data(t, weights), 1e-6, 1e-6)
					golden.Near(t, what+", with the weights, "+name, y, data(t, want), 1e-6, 1e-6)
					golden.Near(t, what+", without the weights, "+name, a.Attend(x, x, x, masks), data(t, want), 1e-6, 1e-6)
				}
				golden.Near(t, what+", an encoder layer", layer.ForwardMasked(x, in), data(t, layer.ForwardMasked(x, both)), 1e-6, 1e-6)
			}
		}
		y, weights := m.AttendWeights(x, x, x, nn.Masks{Attn: none.Narrow(0, 0, 1), Causal: true}, true)
		if y.Err() == nil || weights.Err() == nil {
			t.Error("a mask of another shape is not an error")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUnknownReductions tests that losses of several operators refuse a reduction that does not exist.
func TestUnknownReductions(t *testing.T) {
	leak.Check(t)
	if err := tensor.WithScope(func() error {
		x, classes := tensor.Zeros([]int{4, 3}), tensor.Zeros([]int{4}, tensor.Int64)
		for _, r := range []tensor.Reduction{-1, 3} {
			for name, y := range map[string]*tensor.Tensor{
				"GaussianNLLLoss": nn.GaussianNLLLoss(x, x, x, r), "CrossEntropy": nn.CrossEntropy(x, classes, r),
				"MSELoss": nn.MSELoss(x, x, tensor.Weight(x), r), "LinearCrossEntropy": nn.LinearCrossEntropy(x, x, nil, classes, 0, r), "in rows": nn.LinearCrossEntropy(x, x, nil, classes, 2, r),
			} {
				says := fmt.Sprintf("reduction %d does not exist", r)
				if err := y.Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s: got %v", name, err)
				}
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestWeightsFit tests that the losses of elements refuse weights of another shape, and treat a nil Weight as none.
func TestWeightsFit(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x, y := tensor.Zeros([]int{4, 3}), tensor.Full([]int{4, 3}, 2)
		released := tensor.Ones([]int{4, 3})
		released.Release()
		for op, loss := range map[string]func(x, target *tensor.Tensor, opts ...tensor.Option) *tensor.Tensor{"MSELoss": nn.MSELoss, "L1Loss": nn.L1Loss, "HuberLoss": nn.HuberLoss} {
			for what, bad := range map[string]*tensor.Tensor{
				"another shape": loss(x, y, tensor.Weight(tensor.Ones([]int{3}))), "a target": loss(x, tensor.Ones([]int{3}), tensor.Weight(x)), "no target": loss(x, nil, tensor.Weight(x)),
				"a released weight": loss(x, y, tensor.Weight(released)), "another option": loss(x, y, tensor.Weight(x), tensor.Margin(1)), "a nil option": loss(x, y, tensor.Weight(x), nil),
			} {
				var e *tensor.Error
				if err := bad.Err(); !errors.As(err, &e) || e.Op != op {
					t.Errorf("%s of %s: %v", op, what, err)
				}
			}
			if same, err := loss(x, y, tensor.Weight(nil)).Equal(loss(x, y)); err != nil || !same {
				t.Errorf("%s: a nil Weight: %v", op, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestVarianceFits tests that GaussianNLLLoss refuses a variance that would broadcast the loss.
func TestVarianceFits(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Randn([]int{2, 1})
		for _, shape := range [][]int{{2, 5}, {4, 1}, {1, 5}, {2, 0}} {
			if err := nn.GaussianNLLLoss(x, x, tensor.Ones(shape)).Err(); !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("a variance of shape %v: %v", shape, err)
			}
		}
		for _, shape := range [][]int{{2, 1}, {1, 1}, {2}} {
			if y := nn.GaussianNLLLoss(x, x, tensor.Ones(shape), tensor.ReduceNone); fmt.Sprint(y.Shape()) != "[2 1]" {
				t.Errorf("a variance of shape %v: %v", shape, y)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestConstantPadOfNaN tests that NaN is a value like any other.
func TestConstantPadOfNaN(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{1, 1, 1, 1})
		for what, y := range map[string]*tensor.Tensor{
			"ConstantPad1d": nn.NewConstantPad1d(math.NaN(), 1, 0).Forward(x), "ConstantPad2d": nn.NewConstantPad2d(math.NaN(), 1, 0, 0, 0).Forward(x),
			"ConstantPad3d": nn.NewConstantPad3d(math.NaN(), 1, 0, 0, 0, 0, 0).Forward(x),
		} {
			if got := fmt.Sprint(data(t, y)); got != "[NaN 1]" {
				t.Errorf("%s: %s", what, got)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAdaptiveWithoutFeatures tests that the classes of a cluster whose projection has no features have equal
// probabilities, as in PyTorch.
func TestAdaptiveWithoutFeatures(t *testing.T) {
	leak.Check(t)
	a := nn.NewAdaptiveLogSoftmaxWithLoss(2, 10, []int{2, 6})
	defer nn.Release(a)
	err := tensor.WithScope(func() error {
		x := tensor.Randn([]int{3, 2})
		all := a.LogProb(x)
		clusters := a.Head.Forward(x).LogSoftmax(1).Narrow(1, 2, 2)
		want := clusters.Sub(math.Log(4)).RepeatInterleave(4, tensor.Dim(1))
		golden.Near(t, "the classes of the clusters", all.Narrow(1, 2, 8), data(t, want), 1e-6, 1e-6)
		output, loss := a.Forward(x, tensor.FromSlice([]int{0, 3, 9}, nil))
		golden.Near(t, "the targets", output, data(t, all.Gather(1, tensor.FromSlice([]int{0, 3, 9}, []int{3, 1}))), 1e-6, 1e-6)
		if err := loss.Backward(); err != nil {
			return err
		}
		if g := a.Tail[0].Layers[0].(*nn.Linear).Weight.Grad(); g == nil || fmt.Sprint(g.Shape()) != "[0 2]" {
			t.Errorf("the gradient of the projection is %v", g)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAdaptiveWidths compares the features of the clusters with PyTorch's, where Python's // and a rounded quotient
// differ.
func TestAdaptiveWidths(t *testing.T) {
	leak.Check(t)
	for _, c := range []struct {
		in   int
		div  float64
		want []int
	}{{512, 1.6, []int{319, 199, 124}}, {1100, 1.1, []int{999, 909, 826}}, {130, 1.3, []int{99, 76, 59}}, {512, 0.7, []int{731, 1044, 1492}}, {1024, 4, []int{256, 64, 16}}} {
		a := nn.NewAdaptiveLogSoftmaxWithLoss(c.in, 10, []int{2, 4, 6}, nn.DivValue(c.div))
		if err := a.Err(); err != nil {
			t.Fatal(err)
		}
		var widths []int
		for _, tail := range a.Tail {
			widths = append(widths, tail.Layers[0].(*nn.Linear).Weight.Size(0))
		}
		nn.Release(a)
		if !slices.Equal(widths, c.want) {
			t.Errorf("%d features with DivValue(%v): the clusters have %v, want %v", c.in, c.div, widths, c.want)
		}
	}
}

// TestLinearCrossEntropyOfManyRows tests that the loss of many rows in 16 bits, computed in parts, is that of float64.
func TestLinearCrossEntropyOfManyRows(t *testing.T) {
	leak.Check(t)
	const n = 70_000
	err := tensor.WithScope(func() error {
		x := tensor.Arange(0.0, n, tensor.Float64).Remainder(7).Div(8).Unsqueeze(1)
		targets := tensor.Arange(0.0, n, tensor.Float64).Remainder(5).Gt(0).To(tensor.Int64) // a fifth is of class 0
		for what, opts := range map[string]func(tensor.DType) []tensor.Option{
			"mean":    func(tensor.DType) []tensor.Option { return nil },
			"ignored": func(tensor.DType) []tensor.Option { return []tensor.Option{tensor.IgnoreIndex(0)} },
			"smooth":  func(tensor.DType) []tensor.Option { return []tensor.Option{tensor.LabelSmoothing(0.25)} },
			"weights": func(d tensor.DType) []tensor.Option {
				return []tensor.Option{tensor.Weight(tensor.FromSlice([]float64{2, 1.5}, nil).To(d))}
			},
		} {
			loss := func(dtype tensor.DType, rows int) (loss, grad *tensor.Tensor, err error) {
				weight := tensor.FromSlice([]float64{0.5, -0.25}, []int{2, 1}).To(dtype).RequiresGrad_()
				loss = nn.LinearCrossEntropy(x.To(dtype), weight, nil, targets, rows, opts(dtype)...)
				err = loss.Backward()
				return loss, weight.Grad(), err
			}
			want, wantGrad, err := loss(tensor.Float64, 0)
			if err != nil {
				return err
			}
			for dtype, bound := range map[tensor.DType]float64{tensor.Float32: 1e-5, tensor.Float16: 1e-3, tensor.BFloat16: 8e-3} {
				for _, rows := range []int{10_000, 250} {
					got, grad, err := loss(dtype, rows)
					if err != nil {
						return err
					}
					name := fmt.Sprintf("%s, %v, %d rows at a time", what, dtype, rows)
					if got.DType() != dtype {
						t.Errorf("%s: the loss has dtype %v", name, got.DType())
					}
					golden.Near(t, name, got.To(tensor.Float64), data(t, want), bound, bound)
					if rows == 10_000 { // the gradients of many parts are added in the dtype of the weight
						golden.Near(t, name+": the gradient", grad.To(tensor.Float64), data(t, wantGrad), 2*bound, 2*bound)
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCircularPadOfACrop tests that circular padding continues what the other side's crop leaves, and refuses more, for
// which libtorch returns uninitialized memory.
func TestCircularPadOfACrop(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Arange(0.0, 4.0, tensor.Float32).Reshape(1, 1, 4)
		for what, c := range map[string]struct {
			left, right int
			want        string
		}{
			"a smaller amount": {1, -2, "[1 0 1]"}, "as much as is left": {2, -2, "[0 1 0 1]"}, "on the right": {-1, 2, "[1 2 3 1 2]"}, "two crops": {-1, -1, "[1 2]"},
			"no crop": {4, 0, "[0 1 2 3 0 1 2 3]"},
		} {
			if got := fmt.Sprint(data(t, nn.NewCircularPad1d(c.left, c.right).Forward(x))); got != c.want {
				t.Errorf("%s: %s, want %s", what, got, c.want)
			}
			if got := fmt.Sprint(data(t, nn.NewCircularPad2d(c.left, c.right, 0, 0).Forward(x.Unsqueeze(2)))); got != c.want {
				t.Errorf("%s, in 2 dimensions: %s, want %s", what, got, c.want)
			}
		}
		rows := tensor.Ones([]int{1, 1, 3, 4})
		for what, y := range map[string]*tensor.Tensor{
			"CircularPad1d": nn.NewCircularPad1d(3, -2).Forward(x), "CircularPad1d, left": nn.NewCircularPad1d(-3, 2).Forward(x),
			"CircularPad2d": nn.NewCircularPad2d(3, -2, 0, 0).Forward(rows), "CircularPad2d, rows": nn.NewCircularPad2d(0, 0, -2, 2).Forward(rows),
			"CircularPad3d": nn.NewCircularPad3d(0, 0, 3, -2, 0, 0).Forward(tensor.Ones([]int{1, 1, 2, 4, 2})),
		} {
			if err := y.Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "circular") {
				t.Errorf("%s: %v", what, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMarginLossesOfNothing tests that MultiMarginLoss and MultiLabelMarginLoss refuse to sum an empty batch, for which
// libtorch returns uninitialized memory.
func TestMarginLossesOfNothing(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Zeros([]int{0, 3}).RequiresGrad_()
		classes, labels := tensor.Zeros([]int{0}, tensor.Int64), tensor.Zeros([]int{0, 3}, tensor.Int64)
		for _, r := range []tensor.Reduction{tensor.ReduceMean, tensor.ReduceSum} {
			for what, y := range map[string]*tensor.Tensor{"MultiMarginLoss": nn.MultiMarginLoss(x, classes, r), "MultiLabelMarginLoss": nn.MultiLabelMarginLoss(x, labels, r)} {
				if err := y.Err(); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "empty batch") {
					t.Errorf("%s: %v", what, err)
				}
			}
		}
		for what, y := range map[string]*tensor.Tensor{"MultiMarginLoss": nn.MultiMarginLoss(x, classes, tensor.ReduceNone),
			"MultiLabelMarginLoss": nn.MultiLabelMarginLoss(x, labels, tensor.ReduceNone)} {
			if err := y.Sum().Backward(); err != nil || y.Numel() != 0 {
				t.Errorf("%s of each row: %v: %v", what, y, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestLanczos compares Interpolate by lanczos and its gradient with PyTorch's.
func TestLanczos(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Arange(0.0, 42.0, tensor.Float32).Mul(0.7).Sin().Reshape(1, 1, 6, 7).RequiresGrad_()
		lanczos := nn.Algorithm("lanczos")
		y := nn.Interpolate(x, nn.OutputSize(3, 4), lanczos, nn.AntiAlias())
		if version, err := tensor.Version(); err != nil || version < "2.15" && errors.Is(y.Err(), tensor.ErrNotImplemented) {
			return err
		}
		golden.Near(t, "a size", y, []float64{-0.456135273, 0.387230217, 0.743336916, 0.116206743, 0.0237916466, -0.607256591, -0.440797865, 0.291327626,
			0.411637664, 0.748518407, 0.08108484, -0.661075354}, 1e-5, 1e-5)
		if err := y.Mul(tensor.Linspace(-1, 1, 12).Reshape(1, 1, 3, 4)).Sum().Backward(); err != nil {
			return err
		}
		golden.Near(t, "the gradient", x.Grad(), []float64{-0.227086559, -0.284139067, -0.218956724, -0.175207555, -0.166019231, -0.154146552, -0.105494402,
			-0.266623676, -0.331111848, -0.249827713, -0.19513379, -0.178931251, -0.157019615, -0.103781506, -0.150376946, -0.180151135, -0.121749848,
			-0.0821110904, -0.0586692914, -0.0252515487, -0.00548724458, 0.0054872469, 0.0252515431, 0.058669284, 0.0821110904, 0.121749841, 0.180151165,
			0.150376946, 0.103781506, 0.1570196, 0.178931251, 0.195133805, 0.249827757, 0.331111908, 0.266623646, 0.105494402, 0.154146537, 0.166019216,
			0.17520757, 0.218956754, 0.284139067, 0.227086559}, 1e-5, 1e-5)
		golden.Near(t, "factors", nn.Interpolate(x, nn.ScaleFactor(0.4, 0.6), lanczos, nn.AntiAlias()), []float64{-0.455698878, 0.00682207989, 0.496094823,
			0.324973762, 0.285230219, -0.0549206808, -0.353295177, -0.182372048}, 1e-5, 1e-5)
		golden.Near(t, "recomputed factors", nn.Interpolate(x, nn.ScaleFactor(0.4, 0.6), lanczos, nn.AntiAlias(), nn.RecomputeScale()), []float64{-0.296340168,
			-0.0591581315, 0.270134479, 0.232905746, 0.29138875, 0.185536623, -0.178398356, -0.293535143}, 1e-5, 1e-5)
		for what, y := range map[string]*tensor.Tensor{
			"without AntiAlias": nn.Interpolate(x, nn.OutputSize(3, 4), lanczos),
			"Upsample":          nn.NewUpsample(nn.OutputSize(3, 4), lanczos).Forward(x),
			"AlignCorners":      nn.Interpolate(x, nn.OutputSize(3, 4), lanczos, nn.AntiAlias(), nn.AlignCorners()),
			"of three":          nn.Interpolate(x.SqueezeDim(0), nn.OutputSize(3), lanczos, nn.AntiAlias()),
		} {
			if !errors.Is(y.Err(), tensor.ErrArgument) {
				t.Errorf("%s: %v", what, y.Err())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestInterpolateOfFailedTensors tests that Interpolate and Upsample pass on the error of a failed tensor, whose sizes are 0.
func TestInterpolateOfFailedTensors(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		bad := tensor.Ones([]int{2}).MatMul(tensor.Ones([]int{3}))
		up := &nn.Upsample{Size: []int{bad.Size(-1) * 2}}
		for what, y := range map[string]*tensor.Tensor{"Interpolate": nn.Interpolate(bad, nn.OutputSize(bad.Size(-2)*2, bad.Size(-1)*2)), "Upsample": up.Forward(bad)} {
			if y.Err() == nil || y.Err().Error() != bad.Err().Error() {
				t.Errorf("%s: %v, want %v", what, y.Err(), bad.Err())
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDropoutInPlaceOfALeaf tests that a scope returns the error of a Dropout in place whose result is not used.
func TestDropoutInPlaceOfALeaf(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		_ = (&nn.Dropout{P: 0.5, InPlace: true}).Forward(tensor.Ones([]int{2, 3}).RequiresGrad_())
		return nil
	})
	if !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("the scope returns %v", err)
	}
}

// TestAttentionOfNothing tests an empty batch and an empty sequence in every way of MultiheadAttention.
func TestAttentionOfNothing(t *testing.T) {
	leak.Check(t)
	for what, opts := range map[string][]nn.Option{"plain": nil, "KDim": {nn.KDim(5), nn.VDim(5)}, "AddBiasKV": {nn.AddBiasKV()}} {
		a := nn.NewMultiheadAttention(8, 2, append(opts, nn.BatchFirst())...)
		for _, shape := range [][]int{{0, 3, 8}, {2, 0, 8}} {
			err := tensor.WithScope(func() error {
				x, source := tensor.Zeros(shape), tensor.Zeros([]int{shape[0], 4, 8})
				if what == "KDim" {
					source = tensor.Zeros([]int{shape[0], 4, 5})
				}
				for masked, masks := range map[string]nn.Masks{
					"no mask": {}, "Attn": {Attn: tensor.Zeros([]int{shape[1], 4})}, "KeyPadding": {KeyPadding: tensor.Zeros([]int{shape[0], 4}, tensor.Bool)},
				} {
					if y := a.Attend(x, source, source, masks); y.Err() != nil || fmt.Sprint(y.Shape()) != fmt.Sprint(shape) {
						t.Errorf("%s, %s: %v, %v", what, masked, y.Shape(), y.Err())
					}
					y, weights := a.AttendWeights(x, source, source, masks, false)
					if y.Err() != nil || weights.Err() != nil || fmt.Sprint(y.Shape()) != fmt.Sprint(shape) {
						t.Errorf("%s, %s, with weights: %v, %v", what, masked, y.Shape(), y.Err())
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		nn.Release(a)
	}
}

// TestAttentionOfDifferentBatches tests that attention refuses a query, key and value whose batches or lengths do not
// match, and a Transformer a source and a target whose batches do not, also where one of them is 1.
func TestAttentionOfDifferentBatches(t *testing.T) {
	leak.Check(t)
	apart := []nn.Option{nn.KDim(8), nn.VDim(6)}
	for what, opts := range map[string][]nn.Option{"plain": nil, "batch first": {nn.BatchFirst()}, "VDim": apart, "VDim, batch first": append(apart, nn.BatchFirst())} {
		a := nn.NewMultiheadAttention(8, 2, opts...)
		first, width := strings.Contains(what, "first"), 8
		if strings.Contains(what, "VDim") {
			width = 6
		}
		err := tensor.WithScope(func() error {
			zeros := func(length, batch, width int) *tensor.Tensor {
				if first {
					length, batch = batch, length
				}
				return tensor.Zeros([]int{length, batch, width})
			}
			for _, c := range [][3][2]int{{{4, 3}, {5, 3}, {5, 3}}, {{4, 3}, {5, 1}, {5, 1}}, {{4, 1}, {5, 3}, {5, 3}}, {{4, 3}, {5, 3}, {5, 1}}, {{4, 3}, {1, 3}, {5, 3}}, {{4, 2}, {5, 3}, {5, 3}}} {
				q, k, v := zeros(c[0][0], c[0][1], 8), zeros(c[1][0], c[1][1], 8), zeros(c[2][0], c[2][1], width)
				y := a.Attend(q, k, v, nn.Masks{})
				z, weights := a.AttendWeights(q, k, v, nn.Masks{}, false)
				for _, err := range []error{y.Err(), z.Err(), weights.Err()} {
					if fits := c[1] == c[2] && c[0][1] == c[1][1]; (err == nil) != fits || err != nil && !errors.Is(err, tensor.ErrArgument) {
						t.Errorf("%s, lengths and batches %v: %v", what, c, err)
					}
				}
			}
			if err := a.Attend(tensor.Zeros([]int{4, 8}), tensor.Zeros([]int{5, 8}), tensor.Zeros([]int{1, width}), nn.Masks{}).Err(); !errors.Is(err, tensor.ErrArgument) {
				t.Errorf("%s, without a batch: %v", what, err)
			}
			return a.Attend(tensor.Zeros([]int{4, 8}), tensor.Zeros([]int{5, 8}), tensor.Zeros([]int{5, width}), nn.Masks{}).Err()
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		nn.Release(a)
	}
	m := nn.NewTransformer(8, 2, nn.EncoderLayers(1), nn.DecoderLayers(1), nn.FeedForward(4))
	defer nn.Release(m)
	err := tensor.WithScope(func() error {
		source, target := tensor.Zeros([]int{5, 3, 8}), tensor.Zeros([]int{4, 1, 8})
		for _, y := range tensors(m.Forward(source, target), m.Forward(target, source), m.Decoder.Forward(target, source)) {
			if !errors.Is(y.Err(), tensor.ErrArgument) {
				t.Errorf("a Transformer of other batches: %v", y.Err())
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSpectralNormOfAVector tests the old form on a vector, whose norm it divides by. PyTorch's gives [0.6 0.8], too.
func TestSpectralNormOfAVector(t *testing.T) {
	leak.Check(t)
	l := nn.NewLinear(1, 2)
	l.Bias.Detach().Copy_(tensor.FromSlice([]float32{3, 4}, nil))
	p := nn.SpectralNorm(l, "bias", nn.OldNames())
	defer nn.Release(p)
	err := tensor.WithScope(func() error {
		y := p.Forward(tensor.Zeros([]int{1, 1}))
		golden.Near(t, "the bias", y, []float64{0.6, 0.8}, 1e-6, 1e-6)
		return y.Err()
	})
	if err != nil {
		t.Error(err)
	}
}

// TestAdaptiveLogProbUnderAutocast tests that the result has the dtype of the input.
func TestAdaptiveLogProbUnderAutocast(t *testing.T) {
	leak.Check(t)
	a := nn.NewAdaptiveLogSoftmaxWithLoss(8, 10, []int{2, 6})
	defer nn.Release(a)
	err := tensor.WithScope(func() error {
		return autograd.WithAutocast(tensor.CPUType, tensor.BFloat16, func() error {
			y := a.LogProb(tensor.Zeros([]int{3, 8}))
			if y.DType() != tensor.Float32 {
				t.Errorf("the result has dtype %v", y.DType())
			}
			return y.Err()
		})
	})
	if err != nil {
		t.Error(err)
	}
}

// TestComplexRecurrentLayers tests that recurrent layers take complex weights, as in PyTorch: without imaginary parts the
// results and gradients are those of real weights.
func TestComplexRecurrentLayers(t *testing.T) {
	leak.Check(t)
	type layer interface {
		Forward(x *tensor.Tensor) *tensor.Tensor
	}
	for name, m := range map[string]layer{
		"LSTM": nn.NewLSTM(4, 3, nn.NumLayers(2)), "GRU": nn.NewGRU(4, 3, nn.Bidirectional()),
		"RNN": nn.NewRNN(4, 3), "projected": nn.NewLSTM(4, 3, nn.ProjSize(2)),
	} {
		err := tensor.WithScope(func() error {
			x := tensor.Randn([]int{5, 2, 4})
			run := func(x *tensor.Tensor) (y, grad *tensor.Tensor, err error) {
				x = x.Detach().RequiresGrad_()
				y = m.Forward(x)
				loss := y
				if y.DType().IsComplex() {
					loss = y.Real()
				}
				err = loss.Sum().Backward()
				return y.Detach(), x.Grad(), err
			}
			y, grad, err := run(x)
			if err != nil {
				return err
			}
			if err := nn.To(m, tensor.Complex64); err != nil {
				return err
			}
			yc, gradc, err := run(x.To(tensor.Complex64))
			if err != nil {
				return err
			}
			for what, pair := range map[string][2]*tensor.Tensor{"result": {y, yc}, "gradient": {grad, gradc}} {
				if same, err := pair[0].AllClose(pair[1].Real().Contiguous(), tensor.Atol(1e-6)); err != nil || !same {
					t.Errorf("%s: another %s with complex weights: %v", name, what, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		nn.Release(m)
	}
}

// TestForwardSizeWithoutASize tests that an output size without numbers is an error, as an empty output_size= is in PyTorch.
func TestForwardSizeWithoutASize(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		for dims, c := range []interface {
			ForwardSize(x *tensor.Tensor, size ...int) *tensor.Tensor
		}{nn.NewConvTranspose1d(1, 1, 2), nn.NewConvTranspose2d(1, 1, 2), nn.NewConvTranspose3d(1, 1, 2)} {
			defer nn.Release(c)
			x := tensor.Ones([]int{1, 1, 3, 3, 3}[:3+dims])
			for _, size := range [][]int{nil, {}} {
				if err := c.ForwardSize(x, size...).Err(); !errors.Is(err, tensor.ErrArgument) {
					t.Errorf("%T: %v", c, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestActivationOfATransformer tests that a layer whose activation is changed to an unknown one fails.
func TestActivationOfATransformer(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{3, 1, 4})
		encoder, decoder := nn.NewTransformerEncoderLayer(4, 2, nn.FeedForward(4)), nn.NewTransformerDecoderLayer(4, 2, nn.FeedForward(4))
		defer nn.Release(encoder)
		defer nn.Release(decoder)
		for name, known := range map[string]bool{"": true, "relu": true, "gelu": true, "silu": false} {
			encoder.Activation, decoder.Activation = name, name
			for _, y := range tensors(encoder.Forward(x), decoder.Forward(x, x)) {
				if err := y.Err(); (err == nil) != known || !known && !strings.Contains(err.Error(), "Activation must be relu or gelu, got \"silu\"") {
					t.Errorf("%q: %v", name, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

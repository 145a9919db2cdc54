package nn_test

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

type pair struct {
	A, B *nn.Linear
}

func newPair(opts ...nn.Option) *pair {
	return &pair{nn.NewLinear(2, 3, opts...), nn.NewLinear(3, 1, opts...)}
}

// The report has what PyTorch's load_state_dict returns, with shapes and dtypes.
func TestLoadReport(t *testing.T) {
	leak.Check(t)
	m := newPair()
	defer nn.Release(m)
	if err := tensor.WithScope(func() error {
		state := map[string]*tensor.Tensor{
			"wrapped.a.weight": tensor.Ones([]int{3, 2}, tensor.Float64), "wrapped.a.bias": tensor.Ones([]int{3}), "wrapped.b.weight": tensor.Ones([]int{1, 3}),
			"wrapped.c": tensor.Ones([]int{1}), "step": tensor.Ones([]int{1}),
		}
		rename := nn.Rename(func(name string) string {
			if name == "step" {
				return ""
			}
			return strings.TrimPrefix(name, "wrapped.")
		})
		var r nn.LoadReport
		if err := nn.LoadStateDict(m, state, rename, nn.Report(&r)); !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), "missing b.bias; unexpected c") || len(r.Loaded) != 0 {
			t.Errorf("%v, %v", err, r)
		}
		if err := nn.LoadStateDict(m, state, rename, nn.Report(&r), nn.Strict(false)); err != nil {
			t.Error(err)
		}
		want := nn.LoadReport{Loaded: []string{"a.bias", "a.weight", "b.weight"}, Missing: []string{"b.bias"}, Unexpected: []string{"c"}, Skipped: []string{"step"},
			Converted: []nn.Mismatch{{Name: "a.weight", StateShape: []int{3, 2}, ModuleShape: []int{3, 2}, StateDType: tensor.Float64, ModuleDType: tensor.Float32}}}
		if !reflect.DeepEqual(r, want) {
			t.Errorf("%+v\nwant %+v", r, want)
		}
		text := "loaded: 3\nmissing: b.bias\nunexpected: c\nskipped: step\nconverted: a.weight: float64[3 2] in the state, float32[3 2] in the module"
		if r.String() != text {
			t.Errorf("%s\nwant %s", r, text)
		}
		if v, err := m.A.Weight.Sum().Item(); err != nil || v != 6 {
			t.Errorf("%v, %v", v, err)
		}
		state["wrapped.a.bias"] = tensor.Ones([]int{4})
		err := nn.LoadStateDict(m, state, rename, nn.Report(&r), nn.Strict(false))
		if err == nil || len(r.Mismatched) != 1 || r.Mismatched[0].String() != "a.bias: float32[4] in the state, float32[3] in the module" || len(r.Loaded) != 0 {
			t.Errorf("%v, %v", err, r)
		}
		if err := nn.LoadStateDict(m, state, nn.Rename(func(string) string { return "a.bias" }), nn.Strict(false)); err == nil || !strings.Contains(err.Error(), "are both named a.bias") {
			t.Error(err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestMissingTied tests that an error says so if a missing name is that of a tied tensor that the state has.
func TestMissingTied(t *testing.T) {
	leak.Check(t)
	m := &struct{ Emb, Head, Other *nn.Embedding }{Emb: nn.NewEmbedding(2, 2), Head: &nn.Embedding{}, Other: nn.NewEmbedding(1, 1)}
	m.Head.Weight = m.Emb.Weight
	defer nn.Release(m)
	if err := tensor.WithScope(func() error {
		state := map[string]*tensor.Tensor{"emb.weight": tensor.Ones([]int{2, 2})}
		err := nn.LoadStateDict(m, state)
		if want := "missing head.weight, the same tensor as emb.weight, which the state has; missing other.weight"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		var r nn.LoadReport
		if err := nn.LoadStateDict(m, state, nn.Strict(false), nn.Report(&r)); err != nil || !slices.Equal(r.Missing, []string{"head.weight", "other.weight"}) {
			t.Errorf("%v, %v", err, r)
		}
		if v, err := m.Head.Weight.Sum().Item(); err != nil || v != 4 {
			t.Errorf("the head's weights add up to %v, %v", v, err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

type tied struct {
	Embedding *nn.Embedding
	Head      *tensor.Tensor
}

// A model on the meta device gets the tensors of the state as its weights.
func TestAssign(t *testing.T) {
	leak.Check(t)
	m := newPair(nn.Device(tensor.Meta))
	defer nn.Release(m)
	m.B.Bias.RequiresGrad_(false)
	e := nn.NewEmbedding(2, 2, nn.Device(tensor.Meta))
	both := &tied{e, e.Weight}
	defer nn.Release(both)
	if err := tensor.WithScope(func() error {
		state := map[string]*tensor.Tensor{"a.weight": tensor.Ones([]int{3, 2}), "a.bias": tensor.Ones([]int{3}), "b.weight": tensor.Ones([]int{1, 3}), "b.bias": tensor.Ones([]int{1})}
		if err := nn.LoadStateDict(m, map[string]*tensor.Tensor{}, nn.Assign(true)); err == nil || m.A.Weight.Device() != tensor.Meta {
			t.Errorf("weights are missing: %v", err)
		}
		if err := nn.LoadStateDict(m, state, nn.Assign(true)); err != nil {
			t.Fatal(err)
		}
		if !m.A.Weight.SharesStorage(state["a.weight"]) || !m.A.Weight.RequiresGrad() || m.B.Bias.RequiresGrad() {
			t.Error("the tensors are not those of the state, or require other gradients")
		}
		w := tensor.Ones([]int{2, 2})
		if err := nn.LoadStateDict(both, map[string]*tensor.Tensor{"embedding.weight": w, "head": w}, nn.Assign(true)); err != nil || both.Head != e.Weight {
			t.Errorf("tied weights: %v", err)
		}
		in := map[string]*tensor.Tensor{"x": m.A.Bias}
		if err := nn.LoadStateDict(in, map[string]*tensor.Tensor{"x": tensor.Ones([]int{3})}, nn.Assign(true)); err == nil || !strings.Contains(err.Error(), "in a map") {
			t.Error(err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// The state's scope is closed.
	if err := tensor.WithScope(func() error {
		loss := m.B.Forward(m.A.Forward(tensor.Ones([]int{4, 2}))).Sum()
		if v, err := loss.Item(); err != nil || v != 4*10 {
			t.Errorf("%v, %v", v, err)
		}
		return loss.Backward()
	}); err != nil {
		t.Error(err)
	}
}

// The masks of pruning and the vectors of the deprecated form can be assigned.
func TestAssignParametrized(t *testing.T) {
	leak.Check(t)
	pruned, spectral := nn.PruneIdentity(nn.NewLinear(2, 2), "weight"), nn.SpectralNorm(nn.NewLinear(2, 3), "weight", nn.OldNames())
	m := nn.NewSequential(pruned, spectral)
	defer func() { nn.Release(m) }()
	old := nn.NamedBuffers(m)
	defer func() {
		for _, n := range old {
			n.Tensor.Release()
		}
	}()
	if err := tensor.WithScope(func() error {
		state := map[string]*tensor.Tensor{"0.weight_mask": tensor.Eye(2), "1.weight_u": tensor.Ones([]int{3}), "1.weight_v": tensor.Ones([]int{2})}
		var r nn.LoadReport
		if err := nn.LoadStateDict(m, state, nn.Strict(false), nn.Assign(true), nn.Report(&r)); err != nil || len(r.Loaded) != 3 {
			return fmt.Errorf("loaded %v: %w", r.Loaded, err)
		}
		now := nn.StateDict(m).Map()
		for name, src := range state {
			if !now[name].SharesStorage(src) {
				t.Errorf("%s is not the state's", name)
			}
		}
		state["0.weight_orig"] = tensor.Ones([]int{2, 2})
		if err := nn.LoadStateDict(m, state, nn.Strict(false), nn.Assign(true)); err == nil || nn.StateDict(m).Map()["0.weight_mask"] != now["0.weight_mask"] {
			t.Errorf("an original: %v", err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A batch norm's counter may be missing, as in states from before PyTorch had it; it keeps its value, or is 0.
func TestLoadWithoutCounters(t *testing.T) {
	leak.Check(t)
	for _, device := range []tensor.Device{tensor.CPU, tensor.Meta} {
		bn := nn.NewBatchNorm1d(2, nn.Device(device))
		m := nn.NewSequential(nn.NewLinear(2, 2, nn.Device(device)), bn)
		defer nn.Release(m)
		want := 0.0
		if err := tensor.WithScope(func() error {
			state := map[string]*tensor.Tensor{"0.weight": tensor.Ones([]int{2, 2}), "0.bias": tensor.Ones([]int{2}), "1.weight": tensor.Ones([]int{2}),
				"1.bias": tensor.Ones([]int{2}), "1.running_mean": tensor.Ones([]int{2}), "1.running_var": tensor.Ones([]int{2})}
			if device == tensor.CPU {
				want = 3
				bn.NumBatchesTracked.Fill_(3)
			}
			var r nn.LoadReport
			if err := nn.LoadStateDict(m, state, nn.Report(&r), nn.Assign(device == tensor.Meta)); err != nil || len(r.Missing) != 0 || len(r.Meta) != 0 || len(state) != 6 {
				t.Errorf("%v: %v, %v", device, err, r)
			}
			delete(state, "1.running_mean")
			err := nn.LoadStateDict(m, state, nn.Assign(device == tensor.Meta))
			if err == nil || !strings.Contains(err.Error(), "missing 1.num_batches_tracked; missing 1.running_mean") {
				t.Errorf("%v: a state without the statistics: %v", device, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if n, err := bn.NumBatchesTracked.Item(); err != nil || n != want {
			t.Errorf("%v: the counter is %v, %v, want %v", device, n, err, want)
		}
	}
}

// TestLoadEmptyState loads the state of a module that has none, as code over a list of modules does.
func TestLoadEmptyState(t *testing.T) {
	leak.Check(t)
	state := nn.StateDict(&nn.Tanh{}).Map()
	if err := nn.LoadStateDict(&nn.Tanh{}, state); err != nil {
		t.Errorf("an empty state: %v", err)
	}
	one := tensor.Ones([]int{1})
	defer one.Release()
	if err := nn.LoadStateDict(&nn.Tanh{}, map[string]*tensor.Tensor{"weight": one}); !errors.Is(err, tensor.ErrArgument) {
		t.Errorf("a state with a weight: %v, want ErrArgument", err)
	}
}

// A tensor without dimensions takes the element of one of shape [1], as PyTorch before 0.4 saved it.
func TestLoadElement(t *testing.T) {
	leak.Check(t)
	type scaled struct{ Scale, Bias *tensor.Tensor }
	for _, device := range []tensor.Device{tensor.CPU, tensor.Meta} {
		if err := tensor.WithScope(func() error {
			m := &scaled{nn.NewParameter(tensor.Ones([]int{}, device)), nn.NewParameter(tensor.Ones([]int{1}, device))}
			defer nn.Release(m)
			state := map[string]*tensor.Tensor{"scale": tensor.Full([]int{1}, 3, tensor.Float64), "bias": tensor.Ones([]int{1})}
			if err := nn.LoadStateDict(m, state, nn.Assign(device == tensor.Meta)); err != nil || state["scale"].Dim() != 1 {
				return fmt.Errorf("the state now has shape %v: %w", state["scale"].Shape(), err)
			}
			for name, shape := range map[string][]int{"scale": {2}, "bias": {}} {
				wrong := map[string]*tensor.Tensor{"scale": state["scale"], "bias": state["bias"]}
				wrong[name] = tensor.Ones(shape)
				if err := nn.LoadStateDict(m, wrong, nn.Assign(device == tensor.Meta)); !errors.Is(err, tensor.ErrArgument) {
					t.Errorf("%s of shape %v: %v", name, shape, err)
				}
			}
			if v, err := m.Scale.Item(); err != nil || v != 3 || m.Scale.Dim() != 0 {
				t.Errorf("%v: the scale is %v, %v", device, v, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// A state of which a tensor cannot be copied changes nothing.
func TestLoadCopiesAllOrNothing(t *testing.T) {
	leak.Check(t)
	m, meta := newPair(), newPair(nn.Device(tensor.Meta))
	defer nn.Release(m)
	defer nn.Release(meta)
	if err := tensor.WithScope(func() error {
		before := m.A.Weight.Clone()
		state := func(b *tensor.Tensor) map[string]*tensor.Tensor {
			return map[string]*tensor.Tensor{"a.weight": tensor.Ones([]int{3, 2}), "a.bias": tensor.Ones([]int{3}), "b.weight": b, "b.bias": tensor.Ones([]int{1})}
		}
		for want, err := range map[string]error{
			"b.weight is sparse_coo in the state":                   nn.LoadStateDict(m, state(tensor.Ones([]int{1, 3}).ToSparse())),
			"b.weight is on the meta device in the state":           nn.LoadStateDict(m, state(tensor.Ones([]int{1, 3}, tensor.Meta))),
			"a.weight is on the meta device in the module, and has": nn.LoadStateDict(meta, state(tensor.Ones([]int{1, 3}))),
		} {
			if !errors.Is(err, tensor.ErrArgument) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "b.bias") {
				t.Errorf("%v, want %q", err, want)
			}
		}
		if same, err := m.A.Weight.Equal(before); err != nil || !same {
			t.Errorf("the module is half loaded: %v", err)
		}
		// A plan runs the program on the meta device, where a copy has nothing to do.
		return nn.LoadStateDict(meta, nn.StateDict(meta).Map())
	}); err != nil {
		t.Error(err)
	}
}

// If a copy fails, the others are made, the error names the tensor, and the report has nothing loaded.
func TestLoadGoesOnAfterAnError(t *testing.T) {
	leak.Check(t)
	type three struct {
		A, B, C *tensor.Tensor `nn:",buffer"`
	}
	err := tensor.WithScope(func() error {
		// The elements of B are one in memory, which PyTorch does not copy to.
		m := &three{tensor.Zeros([]int{2}), tensor.Zeros([]int{1}).Expand(2), tensor.Zeros([]int{2})}
		state := map[string]*tensor.Tensor{"a": tensor.Ones([]int{2}), "b": tensor.Ones([]int{2}), "c": tensor.Ones([]int{2})}
		var r nn.LoadReport
		if err := nn.LoadStateDict(m, state, nn.Report(&r)); err == nil || !strings.Contains(err.Error(), "b: ") || len(r.Loaded) != 0 {
			t.Errorf("%v, %v", err, r)
		}
		for name, c := range map[string]*tensor.Tensor{"a": m.A, "c": m.C} {
			if same, err := c.Equal(state[name]); err != nil || !same {
				t.Errorf("%s is not loaded: %v", name, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLayersWithoutData tests that a layer whose parameters are on the meta device, because they were not loaded or because a
// wrapper computes them, has no result with memory: such a result would have values that nothing computed.
func TestLayersWithoutData(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		x, images, volumes := tensor.Randn([]int{4, 8, 16}), tensor.Randn([]int{2, 4, 8, 8}), tensor.Randn([]int{2, 4, 5, 5, 5})
		meta := nn.Device(tensor.Meta)
		for i, c := range []struct {
			layer nn.Layer
			x     *tensor.Tensor
		}{
			{nn.NewLinear(16, 4, meta), x},
			{nn.NewLinear(4, 4, meta, nn.NoBias()), tensor.Ones([]int{4})},
			{nn.NewConv1d(8, 4, 3, meta), x},
			{nn.NewConv1d(8, 8, 3, nn.Groups(8), meta), x},
			{nn.NewConv2d(4, 4, 3, meta), images},
			{nn.NewConv3d(4, 4, 3, meta), volumes},
			{nn.NewConvTranspose2d(4, 4, 3, meta), images},
			{nn.NewLSTM(16, 4, meta), x},
			{nn.NewGRU(16, 4, meta), x},
			{nn.NewEmbedding(16, 4, meta), tensor.Ones([]int{2}, tensor.Int64)},
			{nn.NewEmbeddingBag(16, 4, meta), tensor.Ones([]int{2, 2}, tensor.Int64)},
			{nn.NewLayerNorm(16, meta), x},
			{nn.NewRMSNorm(16, meta), x},
			{nn.NewGroupNorm(2, 8, meta), x},
			{nn.NewBatchNorm1d(8, meta), x},
			{nn.NewInstanceNorm1d(8, nn.Affine(), meta), x},
			{nn.NewMultiheadAttention(16, 2, meta), x},
			{nn.NewTransformerEncoderLayer(16, 2, meta), x},
			{nn.NewPReLU(1, 0.1, meta), x},
			{parametrized(nn.NewConv1d(8, 4, 3), "weight"), x},
			{parametrized(nn.NewLinear(16, 4), "weight"), x},
			{parametrized(nn.NewLSTM(16, 4), "weight_hh_l0"), x},
		} {
			for _, training := range []bool{true, false} {
				nn.Train(c.layer)
				if !training {
					nn.Eval(c.layer)
				}
				if y := c.layer.Forward(c.x); y.Err() == nil && y.Device() != tensor.Meta {
					t.Errorf("%d, a %T: the result is on %v", i, c.layer, y.Device())
				} else if y.Err() != nil && !strings.Contains(y.Err().Error(), "meta") {
					t.Errorf("%d, a %T: %v", i, c.layer, y.Err())
				}
			}
			nn.Release(c.layer)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// parametrized returns a layer that WeightNorm has been applied to, as it is without the wrapper.
func parametrized(l nn.Layer, name string) nn.Layer {
	p := nn.WeightNorm(l, name)
	for _, original := range p.Lists[0].Originals {
		original.Release()
	}
	return l
}

// TestFrozenParametersStay tests that frozen parameters, also of integers, stay parameters where a module gets other tensors.
func TestFrozenParametersStay(t *testing.T) {
	leak.Check(t)
	type frozen struct{ W, Codes *tensor.Tensor }
	err := tensor.WithScope(func() error {
		model := func() *frozen {
			return &frozen{tensor.Ones([]int{2}, tensor.Meta).RequiresGrad_(false), tensor.Ones([]int{2}, tensor.Int8, tensor.Meta).RequiresGrad_(false)}
		}
		state := map[string]*tensor.Tensor{"w": tensor.Ones([]int{2}), "codes": tensor.Ones([]int{2}, tensor.Int8)}
		assigned, emptied := model(), model()
		if err := errors.Join(nn.LoadStateDict(assigned, state, nn.Assign(true)), nn.ToEmpty(emptied, tensor.CPU)); err != nil {
			return err
		}
		for what, m := range map[string]*frozen{"Assign": assigned, "ToEmpty": emptied, "Clone": nn.Clone(model())} {
			if err := nn.Check(m); err != nil || m.W.RequiresGrad() || m.Codes.RequiresGrad() {
				t.Errorf("%s: %v", what, err)
			}
			nn.Release(m)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

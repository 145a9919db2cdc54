//lint:file-ignore U1000 Check looks at fields that nothing here uses.

package nn_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	chargpt "github.com/linstock-ml/linstock/examples/chargpt/gpt"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/optim"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

type twins struct {
	A *nn.Linear `nn:"proj"`
	B *nn.Linear `nn:"proj"`
}

type cased struct{ FC, Fc *nn.Linear }

type base struct{ W *tensor.Tensor }

type embeds struct {
	base
	Other *base `nn:"."`
}

type dots struct {
	Layers []*nn.Linear `nn:"."`
	Byname map[string]*nn.Linear
	First  *nn.Linear `nn:"0"`
}

type dotted struct {
	Head *nn.Linear
	Bias *tensor.Tensor `nn:"head.bias"`
}

type hidden struct {
	w     *tensor.Tensor
	fc    *nn.Linear
	drop  nn.Dropout
	list  []nn.Layer
	any   any
	fine  *tensor.Tensor `nn:"-"`
	count int
	err   error
	f     func(*tensor.Tensor) *tensor.Tensor
	act   nn.Func
	Fine  *nn.Linear
}

type secret struct{ w *tensor.Tensor }

type keepsSecret struct{ Head *secret }

type maps struct {
	Experts map[int]*nn.Linear
	Any     map[bool]any
	Numbers map[int]string
}

type pointers struct {
	A **nn.Linear
	B *[]*nn.Linear
	C *nn.Layer
	D tensor.Tensor
	E *int
}

type tagged struct {
	A *nn.Linear     `nn:"a,bufer"`        //linstockvet:ignore module wrong on purpose
	B *tensor.Tensor `nn:",buffer,frozen"` //linstockvet:ignore module wrong on purpose
	C int            `nn:",opt"`           //linstockvet:ignore module wrong on purpose
}

type plain struct {
	Weight *tensor.Tensor
	Steps  *tensor.Tensor
	Frozen *tensor.Tensor
	Kept   *tensor.Tensor `nn:",buffer"`
	Bias   *tensor.Tensor
}

type nils struct {
	Attn  *nn.CausalSelfAttention
	Layer nn.Layer
	Act   nn.Func
	List  []nn.Layer
	Named map[string]*nn.Linear
	Maybe *nn.Linear `nn:",optional"`
	Some  []nn.Layer `nn:",optional"`
	Ctx   context.Context
	Bias  *tensor.Tensor
}

type failing struct {
	X   int
	err error
}

func (f *failing) Forward(x *tensor.Tensor) *tensor.Tensor { return x }
func (f *failing) Err() error                              { return f.err }

// asFailing has the method Err promoted from the module it embeds.
type asFailing struct{ *failing }

type nested struct{ Blocks []any }

// TestCheck tests that Check finds each kind of fault and names the field, and that functions that use a module return
// the same error.
func TestCheck(t *testing.T) {
	leak.Check(t)
	dir := t.TempDir()
	err := tensor.WithScope(func() error {
		linear := func() *nn.Linear { return nn.NewLinear(1, 1) }
		one := func() *tensor.Tensor { return tensor.Ones([]int{1}) }
		param := func() *tensor.Tensor { return nn.NewParameter(one()) }
		released := param()
		released.Release()
		mine, gone := errors.New("my own error"), tensor.Ones([]int{1})
		gone.Release()
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		ptr, list, layer := linear(), []*nn.Linear{linear()}, nn.Layer(linear())
		for _, c := range []struct {
			m     any
			wants []string
			kind  error
		}{
			{&twins{linear(), linear()}, []string{`m.B has the state name "proj", as does A`}, tensor.ErrArgument},
			{&twins{}, []string{`m.B has the state name "proj"`, "m.A is a nil *nn.Linear", "m.B is a nil *nn.Linear"}, tensor.ErrNil},
			{&cased{linear(), linear()}, []string{`m.Fc has the state name "fc", as does FC`}, tensor.ErrArgument},
			{&nested{[]any{&cased{linear(), linear()}}}, []string{`m.Blocks[0].Fc has the state name "fc"`}, tensor.ErrArgument},
			{&embeds{base{param()}, &base{param()}}, []string{`m.Other.W has the state name "w", as does base.W`}, tensor.ErrArgument},
			{&dots{Layers: []*nn.Linear{linear(), linear()}, First: linear()}, []string{`m.First has a tensor with the state name "0.weight", as does m.Layers[0]`}, tensor.ErrArgument},
			{&dotted{linear(), param()}, []string{`m.Head.Bias has a tensor with the state name "head.bias", as does m.Bias`}, tensor.ErrArgument},
			{map[string]any{"a.b": linear(), "a": map[string]any{"b": linear()}}, []string{`m["a.b"] has a tensor with the state name "a.b.weight", as does m["a"]["b"]`}, tensor.ErrArgument},
			{&hidden{fine: one(), any: linear(), Fine: linear()}, []string{"m.w is unexported and holds a *tensor.Tensor", "m.fc is unexported and holds a *nn.Linear",
				"m.drop is unexported and holds a nn.Dropout", "m.list is unexported and holds a []nn.Layer", "m.any is unexported and holds a *nn.Linear"}, tensor.ErrArgument},
			{&keepsSecret{&secret{}}, []string{"m.Head.w is unexported and holds a *tensor.Tensor"}, tensor.ErrArgument},
			{&maps{Any: map[bool]any{true: linear()}}, []string{"m.Experts is a map[int]*nn.Linear", "m.Any is a map[bool]interface {}"}, tensor.ErrArgument},
			{&pointers{A: &ptr, B: &list, C: &layer}, []string{"m.A is a **nn.Linear", "m.B is a *[]*nn.Linear", "m.C is a *nn.Layer", "m.D is a tensor.Tensor"}, tensor.ErrArgument},
			{&tagged{A: linear()}, []string{`m.A has the tag option "bufer", which does not exist; the options are buffer, nonpersistent, optional`, `m.B has the tag option "frozen"`, `m.C has the tag option "opt"`}, tensor.ErrArgument},
			{&plain{one(), tensor.Zeros([]int{}, tensor.Int64), one().RequiresGrad_(false), one(), nil},
				[]string{"m.Weight is neither a parameter nor a buffer", "m.Steps is int64 and cannot be trained: the tag `nn:\",buffer\"` is missing"}, tensor.ErrArgument},
			{&base{released}, []string{"m.W is unusable: "}, tensor.ErrReleased},
			{&base{gone}, []string{"m.W is unusable"}, tensor.ErrReleased},
			{&base{tensor.Failed(mine)}, []string{"m.W is unusable: my own error"}, mine},
			{&base{nn.NewParameter(tensor.Ones([]int{2}).View(7))}, []string{"m.W is unusable: linstock: View: "}, tensor.ErrArgument},
			{&nils{List: []nn.Layer{nil}, Named: map[string]*nn.Linear{"x": nil}, Some: []nn.Layer{nil}, Ctx: cancelled},
				[]string{"m.Attn is a nil *nn.CausalSelfAttention", "m.Layer is a nil nn.Layer", "m.Act is a nil nn.Func", "m.List[0] is a nil nn.Layer", `m.Named["x"] is a nil *nn.Linear`}, tensor.ErrNil},
			{&nested{[]any{&failing{err: mine}}}, []string{"m.Blocks[0]: my own error"}, mine},
			{&asFailing{&failing{err: mine}}, []string{"m: my own error"}, mine},
			// A module that could not be made lacks parts.
			{&nils{Attn: nn.NewCausalSelfAttention(3, 2), Layer: linear(), Act: nn.Func((*tensor.Tensor).ReLU)},
				[]string{"m.Attn: linstock: NewCausalSelfAttention: "}, tensor.ErrArgument},
			{nn.NewSequential(linear(), nn.NewDropout(7)), []string{"m.Layers[1]: linstock: NewDropout: p must be in [0, 1], got 7"}, tensor.ErrArgument},
		} {
			err := nn.Check(c.m)
			if err == nil {
				t.Errorf("%T: no error, want %q", c.m, c.wants)
				continue
			}
			found := []error{err}
			if joined, ok := err.(interface{ Unwrap() []error }); ok {
				found = joined.Unwrap()
			}
			if len(found) != len(c.wants) || !errors.Is(err, c.kind) {
				t.Errorf("%T: %d findings, want %d of %v:\n%v", c.m, len(found), len(c.wants), c.kind, err)
			}
			for _, w := range c.wants {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%T: %q is not in\n%v", c.m, w, err)
				}
			}
			path := filepath.Join(dir, "x.safetensors")
			_, sgd := optim.NewSGD(nn.Parameters(c.m), 0.1)
			var named error
			for _, n := range nn.NamedParameters(c.m) {
				named = errors.Join(named, n.Tensor.Err())
			}
			for what, err := range map[string]error{"NewSGD": sgd, "NamedParameters": named, "LoadStateDict": nn.LoadStateDict(c.m, nil),
				"Save": checkpoint.Save(path, nn.StateDict(c.m).Map(), nil), "SaveTraining": checkpoint.SaveTraining(path, c.m, nil),
				"To": nn.To(c.m, tensor.CPU), "ZeroGrad": nn.ZeroGrad(c.m)} {
				if err == nil || !strings.Contains(err.Error(), c.wants[0]) {
					t.Errorf("%T: %s returns %v, want %q", c.m, what, err, c.wants[0])
				}
			}
			nn.Release(c.m)
		}
		for _, l := range []*nn.Linear{ptr, list[0], layer.(*nn.Linear)} {
			nn.Release(l)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckPasses tests that Check accepts the modules of the library and the examples: frozen, after To, after loading
// and with tied weights.
func TestCheckPasses(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		models := map[string]any{"gpt": chargpt.New(chargpt.Config{Vocab: 5, Width: 4, Layers: 2, Heads: 2, Context: 3})}
		for name, build := range constructors {
			models[name] = build()
		}
		tied := nn.NewLinear(2, 2)
		models["tied"] = []any{tied, tied, &nn.Linear{Weight: tied.Weight}}
		models["literal"] = &nn.Linear{Weight: nn.NewParameter(tensor.Ones([]int{2, 2}))}
		models["alias"] = &base{tensor.Ones([]int{2}).RequiresGrad_().Mul(2)}
		for name, m := range models {
			if err := errors.Join(nn.Check(m), nn.RequiresGrad_(m, false), nn.Check(m), nn.To(m, tensor.Float64), nn.Check(m)); err != nil && name != "alias" {
				t.Errorf("%s: %v", name, err)
			}
			nn.Release(m)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRequiresGradMakesParameters tests that RequiresGrad_ turns plain tensors into parameters.
func TestRequiresGradMakesParameters(t *testing.T) {
	leak.Check(t)
	err := tensor.WithScope(func() error {
		m := &base{tensor.Ones([]int{2})}
		if nn.Check(m) == nil {
			t.Error("Check accepts a plain tensor")
		}
		return nn.RequiresGrad_(m)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestNewParameter(t *testing.T) {
	leak.Check(t)
	leak.Counted(t)
	var p *tensor.Tensor
	if err := tensor.WithScope(func() error {
		x := tensor.Ones([]int{3}).RequiresGrad_()
		y := x.Mul(2)
		p = nn.NewParameter(y)
		if err := p.Err(); err != nil {
			return err
		}
		if !p.IsLeaf() || !p.RequiresGrad() || y.IsLeaf() {
			t.Error("the parameter is not a leaf that requires a gradient, or y became one")
		}
		if err := autograd.NoGrad(func() error { return y.Fill_(5).Err() }); err != nil {
			return err
		}
		if err := p.Sum().Backward(); err != nil {
			return err
		}
		if x.Grad() != nil {
			t.Error("the parameter is connected to its source's graph")
		}
		for _, bad := range []*tensor.Tensor{nil, tensor.Ones([]int{2}, tensor.Int64), tensor.Ones([]int{2}).View(3)} {
			q := nn.NewParameter(bad)
			if q == nil || q.Err() == nil {
				t.Errorf("NewParameter accepts %v", bad)
			}
			if bad != nil && bad.Err() != nil && q.Err() != bad.Err() {
				t.Errorf("the error is %v, want %v", q.Err(), bad.Err())
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	// The parameter is outside the scope, shares y's storage and counts as a weight.
	if v, err := p.Sum().Item(); v != 15 || err != nil {
		t.Errorf("the sum is %v, %v", v, err)
	}
	if n := explained(t, "weights"); n < 12 {
		t.Errorf("%d bytes of weights", n)
	}
	p.Release()
}

func explained(t *testing.T, part string) int64 {
	t.Helper()
	e, err := vram.Explain(vram.CPU)
	if err != nil {
		t.Fatal(err)
	}
	return e.Part(part).Bytes
}

// TestCategoriesOfCopies tests that vram.Explain counts the tensors that nn makes in place of others by their roles.
func TestCategoriesOfCopies(t *testing.T) {
	leak.Check(t)
	const n = 1 << 12
	m := nn.NewBatchNorm1d(n)
	defer nn.Release(m)
	m.Weight.RequiresGrad_(false) // a frozen parameter is a weight, too
	for what, f := range map[string]func() (*nn.BatchNorm1d, error){
		"Clone": func() (*nn.BatchNorm1d, error) { return nn.Clone(m), nil },
		"LoadStateDict": func() (*nn.BatchNorm1d, error) {
			state := map[string]*tensor.Tensor{}
			for _, x := range nn.StateDict(m) {
				state[x.Name] = x.Tensor.Clone()
			}
			c := nn.NewBatchNorm1d(n, nn.Device(tensor.Meta))
			return c, nn.LoadStateDict(c, state, nn.Assign(true))
		},
		"ToEmpty": func() (*nn.BatchNorm1d, error) {
			c := nn.NewBatchNorm1d(n, nn.Device(tensor.Meta))
			c.Weight.RequiresGrad_(false)
			return c, nn.ToEmpty(c, tensor.CPU)
		},
	} {
		weights, buffers := explained(t, vram.Weights), explained(t, vram.Buffers)
		err := tensor.WithScope(func() error {
			c, err := f()
			defer nn.Release(c)
			if weights, buffers := explained(t, vram.Weights)-weights, explained(t, vram.Buffers)-buffers; weights != 8*n || buffers != 8*n+8 {
				t.Errorf("%s: %d bytes of weights, %d of buffers", what, weights, buffers)
			}
			return err
		})
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

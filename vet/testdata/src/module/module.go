package module

import (
	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/checkpoint"
	"github.com/linstock-ml/linstock/dist/dcp"
	"github.com/linstock-ml/linstock/nn"
	"github.com/linstock-ml/linstock/tensor"
)

type twins struct {
	A  *nn.Linear `nn:"proj"`
	B  *nn.Linear `nn:"proj"` // want `B has the state name "proj", as does A`
	FC *nn.Linear
	Fc *tensor.Tensor // want `Fc has the state name "fc", as does FC`
	// Numbers have no names in the state.
	Width, WIDTH int
}

func (t *twins) Forward(x *tensor.Tensor) *tensor.Tensor { return x }

type base struct{ W, Bias *tensor.Tensor }

type other struct{ W *nn.Linear }

type embeds struct {
	nn.Mode
	base
	*other       // want `other holds W, which has the state name "w", as does base.W`
	Third  *base `nn:"."` // want `Third holds W, which has the state name "w"` `Third holds Bias, which has the state name "bias", as does base.Bias`
	Fine   *base
}

func (*embeds) Forward(x, y *tensor.Tensor) *tensor.Tensor { return x }

type hidden struct {
	w      *tensor.Tensor            // want `w is unexported and holds a \*tensor.Tensor, which nn does not find`
	fc     *nn.Linear                // want `fc is unexported`
	layer  nn.Layer                  // want `layer is unexported`
	list   []map[string][]*nn.Linear // want `list is unexported`
	mode   nn.Mode                   // want `mode is unexported`
	own    *secret                   // want `own is unexported`
	cache  *tensor.Tensor            `nn:"-"`
	act    nn.Func
	f      func(x *tensor.Tensor) *tensor.Tensor
	ch     chan *tensor.Tensor
	err    error
	any    any
	width  int
	Public *secret
}

func (h *hidden) Forward(x *tensor.Tensor) *tensor.Tensor { return x }

type secret struct {
	w *tensor.Tensor // want `w is unexported`
}

// Nothing says that it is a module.
type plain struct {
	last *tensor.Tensor
	list map[int]*nn.Linear
}

type function struct{ scale *tensor.Tensor }

func (f *function) Forward(ctx *autograd.Context, x *tensor.Tensor) *tensor.Tensor { return x }

type given struct {
	w *tensor.Tensor // want `w is unexported`
}

func use(g *given, m any) error {
	local := struct {
		fc *nn.Linear // want `fc is unexported`
	}{}
	nn.Parameters(&local)
	nn.Parameters(m)
	return nn.Check(g)
}

type saved struct {
	w *tensor.Tensor // want `w is unexported`
}

type divided struct {
	w *tensor.Tensor // want `w is unexported`
}

func save(s saved, d *divided) error {
	dcp.Model("model.", d)
	return checkpoint.SaveModel("model.safetensors", s)
}

type maps struct {
	Experts map[int]*nn.Linear  // want `Experts holds a map\[int\]\*nn.Linear, which nn cannot search for parts: its keys must be strings`
	Deep    []map[bool]nn.Layer // want `Deep holds a`
	Names   map[kind]*nn.Linear
	Counts  map[int]int
	Pointer **nn.Linear        // want `Pointer holds a \*\*`
	List    *[]*nn.Linear      // want `List holds a`
	Ignored map[int]*nn.Linear //linstockvet:ignore module they are frozen
}

type kind string

func (m *maps) Forward(x *tensor.Tensor) *tensor.Tensor { return x }

type tags struct {
	A *nn.Linear     `nn:"a,bufer"` // want `A has the tag option "bufer", which does not exist; the options are buffer, nonpersistent, optional`
	B *tensor.Tensor `nn:",buffer,optional"`
	C *nn.Linear     `nn:",optional" json:",omitempty"`
}

type tree map[string]tree

type lists []lists

type knot *knot

type recursive struct {
	Tree  tree
	Lists lists
	Knot  knot
	Parts []recursive
	w     *tensor.Tensor // want `w is unexported`
}

func (r *recursive) Forward(x *tensor.Tensor) *tensor.Tensor { return x }

func useTree(t tree) { nn.Parameters(t) }

package nn

import (
	"fmt"
	"sort"
	"strings"

	"github.com/linstock-ml/linstock/autograd"
	"github.com/linstock-ml/linstock/internal/refuse"
	"github.com/linstock-ml/linstock/tensor"
)

// LoadOption is a keyword argument of LoadStateDict.
type LoadOption func(*loadSettings)

type loadSettings struct{ lax bool }

// Strict(false) allows names that are missing from the state or not in the module (strict=False). Shapes must match all
// the same.
func Strict(on bool) LoadOption { return func(s *loadSettings) { s.lax = !on } }

// LoadStateDict copies state into the parameters and buffers of m, converting dtype and device where they differ. The
// names must be exactly those of StateDict, and the shapes must be equal. Otherwise LoadStateDict copies nothing and
// returns an error that lists all differences. PyTorch: Module.load_state_dict.
func LoadStateDict(m any, state map[string]*tensor.Tensor, opts ...LoadOption) error {
	var s loadSettings
	for _, o := range opts {
		if o != nil {
			o(&s)
		}
	}
	if err := materialize(m, state); err != nil {
		return err
	}
	if err := Check(m); err != nil {
		return err
	}
	own := saved(m)
	state = renamed(m, state)
	if len(own) == 0 {
		return refuse.Error("LoadStateDict", tensor.ErrArgument, "%T has no parameters", m)
	}
	var wrong []string
	left := make(map[string]bool, len(state))
	for name := range state {
		left[name] = true
	}
	for _, n := range own {
		src, ok := state[n.Name]
		delete(left, n.Name)
		if !ok {
			if !s.lax {
				wrong = append(wrong, "missing "+n.Name)
			}
			continue
		}
		if bad := unusable("LoadStateDict", src); bad != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", n.Name, bad.Err()))
			continue
		}
		if have, want := src.Shape(), n.Tensor.Shape(); fmt.Sprint(have) != fmt.Sprint(want) {
			wrong = append(wrong, fmt.Sprintf("%s has shape %v, the module's has %v", n.Name, have, want))
		}
	}
	if !s.lax {
		var extra []string
		for name := range left {
			extra = append(extra, "unexpected "+name)
		}
		sort.Strings(extra)
		wrong = append(wrong, extra...)
	}
	if len(wrong) != 0 {
		return refuse.Error("LoadStateDict", tensor.ErrArgument, "the state does not fit %T: %s", m, strings.Join(wrong, "; "))
	}
	return autograd.NoGrad(func() error {
		for _, n := range own {
			if src, ok := state[n.Name]; ok {
				if err := n.Tensor.Copy_(src).Err(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// To converts the parameters and buffers of m, and their gradients, to a dtype or moves them to a device, or both, in
// place: nn.To(m, tensor.CUDA(0)). It changes the dtype only of floating-point tensors. The *Tensor handles stay the
// same, so an existing optimizer keeps its parameters, but its own state is not converted: make the optimizer after the
// call. PyTorch: Module.to.
func To(m any, opts ...tensor.Option) error {
	if err := Check(m); err != nil {
		return err
	}
	seen := map[*tensor.Tensor]bool{}
	return tensor.WithScope(func() error {
		return autograd.NoGrad(func() error {
			for _, n := range tensors(m) {
				if seen[n.Tensor] {
					continue
				}
				seen[n.Tensor] = true
				if err := move(n.Tensor, opts); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func move(t *tensor.Tensor, opts []tensor.Option) error {
	kept := opts
	if d := t.DType(); !d.IsFloat() && !d.IsComplex() {
		kept = nil
		for _, o := range opts {
			if _, is := o.(tensor.DType); !is {
				kept = append(kept, o)
			}
		}
	}
	now := t.Detach().To(kept...)
	if err := now.Err(); err != nil {
		return err
	}
	grad := t.Grad()
	if grad != nil {
		if err := t.SetGrad(nil); err != nil {
			return err
		}
	}
	if _, err := tensor.Call("aten::set_data", t, now); err != nil {
		return err
	}
	if grad == nil {
		return nil
	}
	return t.SetGrad(grad.To(kept...))
}

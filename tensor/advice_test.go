package tensor

import (
	"errors"
	"strings"
	"testing"
)

// TestAdviceInGo tests that libtorch's errors from operators advise in terms of the Go API.
func TestAdviceInGo(t *testing.T) {
	begin(t)
	python := []string{"retain_graph", "allow_unused", "create_graph", "torch.", ".backward()", "enforce_sorted", "=True", "=False", ".clone()", "clone()", ".reshape", "Python", "`"}
	scoped(t, func() {
		leaf := func() *Tensor { return Arange(1, 4, Float32).RequiresGrad_() }
		for _, c := range []struct {
			what string
			err  func() error
			want string
		}{
			{"two passes", func() error {
				y := leaf().Exp().Sum()
				if err := y.Backward(); err != nil {
					return err
				}
				return y.Backward()
			}, "Give tensor.RetainGraph(true) if"},
			{"an unused input", func() error {
				_, err := runGrad([]*Tensor{leaf().Sum()}, []*Tensor{leaf()})
				return err
			}, "Give tensor.AllowUnused(true) if"},
			{"an unused input's number", func() error {
				_, err := runGrad([]*Tensor{leaf().Sum()}, []*Tensor{leaf()})
				return err
			}, "element 0 of the differentiated Tensors"},
			{"attention's second derivative", func() error {
				q := Linspace(-1, 1, 64).Reshape(1, 2, 4, 8).RequiresGrad_()
				g, err := runGrad([]*Tensor{ScaledDotProductAttention(q, q, q).Sum()}, []*Tensor{q}, CreateGraph(true))
				if err != nil {
					return err
				}
				return g[0].Sum().Backward()
			}, "is not implemented. Hint: attention in nn.SDPAKernel([]nn.SDPBackend{nn.SDPMath}, f) has"},
			{"1 less a mask", func() error { return Ones([]int{2}, Bool).RSub(1).Err() }, "use LogicalNot instead"},
			{"a negative mask", func() error { return Ones([]int{2}, Bool).Neg().Err() }, "use LogicalNot instead"},
			{"a mask less a mask", func() error { return Ones([]int{2}, Bool).Sub(Ones([]int{2}, Bool)).Err() }, "Use LogicalXor instead"},
			{"a write", func() error {
				y := leaf().Exp()
				z := y.Sum()
				y.Add_(1)
				return z.Backward()
			}, "use the operator without _"},
			{"unsorted lengths", func() error {
				_, err := CallUnchecked("aten::_pack_padded_sequence", Ones([]int{3, 2, 1}), FromSlice([]int{1, 3}, nil), false)
				return err
			}, "Sort the sequences by length first"},
			{"a view", func() error { return Ones([]int{2, 3}).T().View(6).Err() }, "Use Reshape(...) instead"},
			{"overlap", func() error { return Zeros([]int{1}).Expand(3).Add_(1).Err() }, "Clone() the tensor first"},
			{"inference", func() error {
				var x *Tensor
				if err := withInference(true, func() error { x = Ones([]int{2}); return nil }); err != nil {
					return err
				}
				return Ones([]int{2}).RequiresGrad_().Mul(x).Err()
			}, "autograd.NoGrad instead of autograd.Inference"},
		} {
			err := c.err()
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%s: got %v", c.what, err)
				continue
			}
			if !strings.Contains(strings.ToLower(e.Message), strings.ToLower(c.want)) {
				t.Errorf("%s: %q does not contain %q", c.what, e.Message, c.want)
			}
			for _, p := range python {
				if strings.Contains(e.Message, p) {
					t.Errorf("%s: %q contains Python advice: %q", c.what, e.Message, p)
				}
			}
		}
	})
}

func TestGoAdvice(t *testing.T) {
	begin(t)
	for in, want := range map[string]string{
		"reduction operations on CSR tensors with keepdim=False is unsupported":               "reduction operations on CSR tensors with tensor.KeepDim(false) is unsupported",
		"Explicit attn_mask should not be set when is_causal=True":                            "Explicit attn_mask should not be set when tensor.IsCausal(true)",
		"gives find_unused_parameters=True":                                                   "gives find_unused_parameters=True",
		"The 'out' tensor must have dtype 'torch.bool'":                                       "The 'out' tensor must have dtype 'tensor.Bool'",
		"please use torch.int64, torch.uint64 or torch.float":                                 "please use tensor.Int64, tensor.Uint64 or tensor.Float32",
		"you set 'torch.use_deterministic_algorithms(True)'. Use the 'warn_only=True' option": "you set tensor.SetDeterministic(true). Use the option tensor.WarnOnly",
		"torch.histc: max must be larger than min":                                            "torch.histc: max must be larger than min",
	} {
		equal(t, "advice", goAdvice(in), want)
	}
}

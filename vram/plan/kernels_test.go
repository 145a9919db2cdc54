package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
)

// The shim's kernels for the meta device return tensors of the CPU's shapes, dtypes and strides.
func TestKernels(t *testing.T) {
	leak.Check(t)
	type args = []any
	f := func(shape ...int) *tensor.Tensor { return tensor.Rand(shape) }
	ids := func(most int, shape ...int) *tensor.Tensor { return tensor.RandInt(0, most, shape) }
	z := func(shape ...int) *tensor.Tensor { return f(shape...).To(tensor.Complex64) }
	yes := []bool{true, true, true}
	for i, c := range []struct {
		op   string
		args func() args
	}{
		{"relu", func() args { return args{f(2, 3)} }},
		{"hardtanh", func() args { return args{f(2, 3)} }},
		{"flip", func() args { return args{f(2, 3), []int{1}} }},
		{"roll", func() args { return args{f(2, 3), []int{1}, []int{0}} }},
		{"dot", func() args { return args{f(3), f(3)} }},
		{"vdot", func() args { return args{z(3), z(3)} }},
		{"trace", func() args { return args{f(3, 4)} }},
		{"trace", func() args { return args{ids(9, 4, 3)} }},
		{"trace", func() args { return args{ids(9, 2, 2).To(tensor.Uint8)} }},
		{"max", func() args { return args{f(2, 3)} }},
		{"max.dim", func() args { return args{f(2, 3), 1, true} }},
		{"min.dim", func() args { return args{f(2, 3), -2} }},
		{"var.correction", func() args { return args{f(2, 3, 4), []int{-1}} }},
		{"var.correction", func() args { return args{f(), []int{0}, 0, true} }},
		{"std.correction", func() args { return args{z(2, 3), []int{0, 1}} }},
		{"var_mean.correction", func() args { return args{z(2, 3), []int{}, nil, true} }},
		{"var_mean.correction", func() args { return args{f(2, 3).To(tensor.BFloat16), []int{0}} }},
		{"median.dim", func() args { return args{f(2, 3), 0} }},
		{"median.dim", func() args { return args{f(), -1, true} }},
		{"std_mean.correction", func() args { return args{f(2, 3, 4)} }},
		{"where.self", func() args { return args{f(2, 1).Gt(0.5), f(1, 3), ids(3, 2, 3)} }},
		{"index_select", func() args { return args{f(4, 3), 0, ids(4, 6)} }},
		{"huber_loss", func() args { return args{f(2, 3), f(2, 3)} }},
		{"binary_cross_entropy", func() args { return args{f(2, 3), f(2, 3), nil, 0} }},
		{"nll_loss2d_forward", func() args { return args{f(2, 3, 4, 5), ids(3, 2, 4, 5), nil, 1, -100} }},
		{"log_sigmoid_forward", func() args { return args{f(2, 3)} }},
		{"glu_backward", func() args { return args{f(2, 3), f(2, 6), 1} }},
		{"mse_loss_backward", func() args { return args{f(), f(2, 3), f(2, 3), 1} }},
		{"convolution", func() args {
			return args{f(2, 4, 9, 8), f(6, 2, 3, 3), f(6), []int{2, 1}, []int{1, 0}, []int{1, 2}, false, []int{0, 0}, 2}
		}},
		{"convolution", func() args {
			return args{f(2, 4, 5, 6), f(4, 3, 3, 2), nil, []int{2, 3}, []int{1, 0}, []int{1, 1}, true, []int{1, 2}, 1}
		}},
		{"convolution", func() args {
			return args{f(2, 4, 9), f(6, 4, 3), f(6), []int{1}, []int{1}, []int{1}, false, []int{0}, 1}
		}},
		{"convolution_backward", func() args {
			return args{f(2, 6, 9, 8), f(2, 4, 9, 8), f(6, 4, 3, 3), []int{6}, []int{1, 1}, []int{1, 1}, []int{1, 1}, false, []int{0, 0}, 1, yes}
		}},
		{"native_batch_norm", func() args { return args{f(2, 3, 4), f(3), f(3), f(3), f(3), true, 0.1, 1e-5} }},
		{"native_batch_norm", func() args { return args{f(2, 3, 4), f(3), f(3), f(3), f(3), false, 0.1, 1e-5} }},
		{"native_batch_norm_backward", func() args {
			return args{f(2, 3, 4), f(2, 3, 4), f(3), f(3), f(3), f(3), f(3), true, 1e-5, yes}
		}},
		{"native_layer_norm", func() args { return args{f(2, 3, 4), []int{4}, f(4), f(4), 1e-5} }},
		{"native_layer_norm_backward", func() args {
			return args{f(2, 3, 4), f(2, 3, 4), []int{4}, f(2, 3, 1), f(2, 3, 1), f(4), f(4), yes}
		}},
		{"native_group_norm", func() args { return args{f(2, 6, 4), f(6), f(6), 2, 6, 4, 3, 1e-5} }},
		{"native_group_norm_backward", func() args {
			return args{f(2, 6, 4), f(2, 6, 4), f(2, 3), f(2, 3), f(6), 2, 6, 4, 3, yes}
		}},
		{"embedding_dense_backward", func() args { return args{f(2, 5, 4), ids(7, 2, 5), 7, -1, false} }},
		{"_scaled_dot_product_flash_attention_for_cpu", func() args { return args{f(2, 4, 5, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)} }},
		{"_scaled_dot_product_flash_attention_for_cpu", func() args {
			return args{f(2, 5, 4, 8).Transpose(1, 2), f(2, 6, 4, 8).Transpose(1, 2), f(2, 6, 4, 8).Transpose(1, 2)}
		}},
		{"_scaled_dot_product_flash_attention_for_cpu_backward", func() args {
			q := func() *tensor.Tensor { return f(2, 5, 4, 8).Transpose(1, 2) }
			return args{q(), q(), q(), q(), q(), f(2, 5, 4).Transpose(1, 2), 0.0, true}
		}},
		{"_adaptive_avg_pool2d", func() args { return args{f(2, 3, 8, 8), []int{2, 4}} }},
		{"_adaptive_avg_pool2d_backward", func() args { return args{f(2, 3, 2, 4), f(2, 3, 8, 8)} }},
		{"max_pool3d_with_indices", func() args {
			return args{f(2, 3, 7, 8, 9), []int{2, 2, 2}, []int{2, 2, 2}, []int{0, 0, 0}, []int{1, 1, 1}, true}
		}},
		{"max_pool3d_with_indices", func() args {
			return args{f(3, 7, 8, 9), []int{3, 2, 4}, []int{}, []int{1}, []int{1, 2, 1}}
		}},
		{"max_pool3d_with_indices", func() args {
			return args{f(2, 7, 8, 9, 3).Permute(0, 4, 1, 2, 3), []int{2}} // channels last
		}},
		{"max_pool3d_with_indices", func() args { return args{f(7, 8, 9, 3).Permute(3, 0, 1, 2), []int{2}} }},
		{"_adaptive_avg_pool3d", func() args { return args{f(2, 7, 8, 9, 3).Permute(0, 4, 1, 2, 3), []int{2, 2, 2}} }},
		{"_prelu_kernel", func() args { return args{f(2, 3), f(1, 3)} }},
		{"_weight_norm_interface", func() args { return args{f(4, 3), f(4, 1)} }},
		{"uniform_", func() args { return args{f(2, 3)} }},
		{"masked_fill_.Scalar", func() args { return args{f(2, 3), f(2, 3).Gt(0.5), 1.0} }},
	} {
		t.Run(fmt.Sprint(i, " ", c.op), func(t *testing.T) {
			if err := tensor.WithScope(func() error {
				a := c.args()
				want, err := tensor.CallUnchecked("aten::"+c.op, a...)
				if err != nil {
					return err
				}
				onMeta := slices.Clone(a)
				for i, x := range a {
					if x, ok := x.(*tensor.Tensor); ok && x != nil {
						onMeta[i] = x.To(tensor.Meta)
						mixed := slices.Clone(a)
						mixed[i] = onMeta[i]
						needNoMemory(t, i, c.op, mixed)
					}
				}
				a = onMeta
				got, err := tensor.CallUnchecked("aten::"+c.op, a...)
				if err != nil {
					return err
				}
				for i := range want {
					w, g := want[i].(*tensor.Tensor), got[i].(*tensor.Tensor)
					if !slices.Equal(g.Shape(), w.Shape()) || g.DType() != w.DType() || !slices.Equal(g.Stride(), w.Stride()) || g.Device() != tensor.Meta {
						t.Errorf("result %d is %v %v %v on %v, on the CPU %v %v %v", i, g.DType(), g.Shape(), g.Stride(), g.Device(), w.DType(), w.Shape(), w.Stride())
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// needNoMemory tests that a call whose argument i alone is on the meta device fails, or has all results there: a result
// with memory would have values that nothing computed.
func needNoMemory(t *testing.T, i int, op string, args []any) {
	t.Helper()
	results, err := tensor.CallUnchecked("aten::"+op, args...)
	if err != nil {
		if !strings.Contains(err.Error(), "meta") {
			t.Errorf("argument %d on the meta device: %v", i, err)
		}
		return
	}
	for at, r := range results {
		if r := r.(*tensor.Tensor); r.Device() != tensor.Meta {
			t.Errorf("argument %d on the meta device: result %d is on %v", i, at, r.Device())
		}
	}
}

// The shim's kernels for the meta device refuse what the CPU's refuse.
func TestKernelsRefuseAsTheCPU(t *testing.T) {
	leak.Check(t)
	type args = []any
	f := func(shape ...int) *tensor.Tensor { return tensor.Rand(shape) }
	z := func(shape ...int) *tensor.Tensor { return f(shape...).To(tensor.Complex64) }
	for i, c := range []struct {
		op   string
		args func() args
	}{
		{"var.correction", func() args { return args{f(2, 3).Gt(0.5)} }},
		{"std_mean.correction", func() args { return args{tensor.Arange(0, 4, tensor.Int64), []int{0}} }},
		{"var.correction", func() args { return args{f(2, 3), []int{0, -2}} }},
		{"var.correction", func() args { return args{f(2, 3), []int{2}} }},
		{"var.correction", func() args { return args{f(), []int{1}} }},
		{"dot", func() args { return args{f(3), f(4)} }},
		{"dot", func() args { return args{f(2, 2), f(4)} }},
		{"dot", func() args { return args{f(3), f(3).To(tensor.Float64)} }},
		{"vdot", func() args { return args{z(3), z(4)} }},
		{"trace", func() args { return args{f(3)} }},
		{"trace", func() args { return args{f(2, 2, 2)} }},
		{"median.dim", func() args { return args{f(2, 3), 2} }},
		{"median.dim", func() args { return args{f(), 1} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 3, 3, 3), []int{4}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{2}, []int{}, []int{2}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{3}, []int{}, []int{2}, []int{2}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{2}, []int{}, []int{-1}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{2}, []int{0}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{2}, []int{-1}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{2}, []int{}, []int{0}, []int{0}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{0}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{2, 2}} }},
		{"max_pool3d_with_indices", func() args { return args{f(1, 8, 8, 8), []int{1 << 40}} }},
		{"max_pool3d_with_indices", func() args { return args{f(8, 8, 8), []int{2}} }},
		{"max_pool3d_with_indices", func() args { return args{f(8, 8), []int{2}} }},
		{"max_pool3d_with_indices", func() args { return args{f(2, 0, 8, 8, 8), []int{2}} }},
		{"_adaptive_avg_pool2d", func() args { return args{f(8, 8), []int{2, 2}} }},
		{"_adaptive_avg_pool2d", func() args { return args{f(3, 8, 8), []int{2}} }},
		{"_adaptive_avg_pool3d", func() args { return args{f(8), []int{2, 2, 2}} }},
	} {
		t.Run(fmt.Sprint(i, " ", c.op), func(t *testing.T) {
			leak.Check(t)
			if err := tensor.WithScope(func() error {
				a := c.args()
				if _, err := tensor.CallUnchecked("aten::"+c.op, a...); err == nil {
					t.Error("the CPU's kernel accepts it")
				}
				a[0] = a[0].(*tensor.Tensor).To(tensor.Meta)
				if got, err := tensor.CallUnchecked("aten::"+c.op, a...); err == nil {
					t.Errorf("a result of %v", got[0].(*tensor.Tensor).Shape())
				} else if strings.Contains(err.Error(), "vector") {
					t.Errorf("it does not say what is wrong: %v", err)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// Attention on the meta device broadcasts batches, heads and masks as the CPU does.
func TestAttentionBroadcasts(t *testing.T) {
	leak.Check(t)
	q, k := []int{2, 8, 5, 16}, []int{2, 8, 6, 16}
	for i, c := range []struct{ q, k, v, mask []int }{
		{q, k, k, nil},
		{[]int{1, 8, 5, 16}, []int{4, 8, 6, 16}, []int{4, 8, 6, 16}, nil},
		{[]int{1, 8, 5, 16}, []int{1, 8, 6, 16}, []int{4, 8, 6, 16}, nil},
		{[]int{2, 1, 5, 16}, []int{2, 1, 6, 16}, []int{2, 8, 6, 16}, nil},
		{q, k, k, []int{5, 6}},
		{q, k, k, []int{1, 6}},
		{q, k, k, []int{2, 1, 5, 6}},
		{q, k, k, []int{8, 5, 6}},
		{q, k, k, []int{6}},
	} {
		if err := tensor.WithScope(func() error {
			on := func(d tensor.Device) *tensor.Tensor {
				var opts []tensor.Option
				if c.mask != nil {
					opts = append(opts, tensor.AttnMask(tensor.Zeros(c.mask, d)))
				}
				return tensor.ScaledDotProductAttention(tensor.Zeros(c.q, d), tensor.Zeros(c.k, d), tensor.Zeros(c.v, d), opts...)
			}
			want, got := on(tensor.CPU), on(tensor.Meta)
			if want.Err() != nil || got.Err() != nil {
				if (want.Err() == nil) != (got.Err() == nil) {
					t.Errorf("case %d: on the meta device %v, on the CPU %v", i, got.Err(), want.Err())
				}
				return nil
			}
			if !slices.Equal(got.Shape(), want.Shape()) || !slices.Equal(got.Stride(), want.Stride()) {
				t.Errorf("case %d: %v %v on the meta device, %v %v on the CPU", i, got.Shape(), got.Stride(), want.Shape(), want.Stride())
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// Shapes that the CPU's kernels refuse, and operators without a kernel for the meta device, are errors that say so.
func TestKernelsRefuse(t *testing.T) {
	leak.Check(t)
	f := func(shape ...int) *tensor.Tensor { return tensor.Empty(shape, tensor.Meta) }
	convolve := func(x, w *tensor.Tensor) []any {
		return []any{x, w, nil, []int{1}, []int{0}, []int{1}, false, []int{0}, 1}
	}
	for _, c := range []struct {
		op, want string
		args     func() []any
	}{
		{"convolution", "input of 3 dimensions and weight of 4", func() []any { return convolve(f(2, 4, 9), f(6, 4, 3, 3)) }},
		{"convolution", "the input has 4 channels, the weight wants 5", func() []any { return convolve(f(2, 4, 9), f(6, 5, 3)) }},
		{"convolution", "the kernel is larger than the input", func() []any { return convolve(f(2, 4, 2), f(6, 4, 3)) }},
		{"lstm.input", "projections have no kernel", func() []any {
			h, c, weights := f(1, 1, 2), f(1, 1, 4), []*tensor.Tensor{f(16, 3), f(16, 2), f(16), f(16), f(2, 4)}
			return []any{f(5, 1, 3), []*tensor.Tensor{h, c}, weights, true, 1, 0.0, false, false, false}
		}},
	} {
		if err := tensor.WithScope(func() error {
			_, err := tensor.Call("aten::"+c.op, c.args()...)
			return err
		}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.op, err, c.want)
		}
	}
	// Steps of parameters that have data with gradients that have none.
	if err := tensor.WithScope(func() error {
		lists := []any{[]*tensor.Tensor{tensor.Ones([]int{2})}, []*tensor.Tensor{f(2)}, []*tensor.Tensor{}}
		_, err := tensor.CallUnchecked("aten::_fused_sgd_", append(lists, 0.0, 0.0, 0.1, 0.0, false, false, true)...)
		return err
	}); err == nil || !strings.Contains(err.Error(), "grads is on the device meta and has no data, self is on the device cpu") {
		t.Errorf("_fused_sgd_ without gradients: %v", err)
	}
}

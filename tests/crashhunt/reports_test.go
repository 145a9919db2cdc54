package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
	"github.com/linstock-ml/linstock/internal/leak"
	"github.com/linstock-ml/linstock/tensor"
	"github.com/linstock-ml/linstock/vram"
)

const reportsEnv = "LINSTOCK_CRASHHUNT_REPORTS"

// TestReports makes the calls with which users of PyTorch reported crashes (its issue 195547 and others), and others of
// their kind, in a process with guard pages: each returns results or an error.
func TestReports(t *testing.T) {
	leak.Check(t)
	for _, at := range []cshim.GuardPages{cshim.GuardPageAtEnd, cshim.GuardPageAtStart} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", reportsEnv, at))
		out, err := cmd.CombinedOutput()
		text := string(out)
		if err != nil || !strings.HasSuffix(text, "\nall\n") {
			t.Errorf("%v\n%s", err, text[max(0, len(text)-3000):])
		}
	}
}

// reports makes the calls and prints the name of each before.
func reports(at string) error {
	guard := cshim.GuardPageAtEnd
	if at != fmt.Sprint(guard) {
		guard = cshim.GuardPageAtStart
	}
	if err := guard.Set(); err != nil {
		return err
	}
	if err := vram.SetLimit(vram.CPU, vram.Bytes(1<<30)); err != nil {
		return err
	}
	err := tensor.WithScope(func() error {
		reported(func(op string, args ...any) {
			fmt.Println(op)
			out, err := tensor.Call(op, args...)
			if err != nil {
				return
			}
			for _, o := range out {
				x, ok := o.(*tensor.Tensor)
				if !ok || x == nil || x.DType().IsComplex() {
					continue
				}
				_, _ = tensor.Data[float64](x.Detach().To(tensor.Float64))
				if x.RequiresGrad() {
					_ = x.Sum().Backward()
				}
			}
		})
		return nil
	})
	fmt.Println("all")
	return err
}

// f returns floating-point numbers, g those of a tensor that requires gradients, i and i32 integers.
func f(shape ...int) *tensor.Tensor  { return tensor.Rand(shape) }
func g(shape ...int) *tensor.Tensor  { return tensor.Rand(shape).RequiresGrad_().Mul(1) }
func i(values ...int) *tensor.Tensor { return tensor.FromSlice(values, nil) }
func i32(values ...int) *tensor.Tensor {
	return i(values...).To(tensor.Int32)
}

func reported(call func(op string, args ...any)) {
	const big = math.MaxInt64
	// recurrent cells
	call("aten::lstm_cell", f(2, 3), []*tensor.Tensor{f(2, 4), f(2, 4)}, f(16, 5), f(16, 4), f(16), f(16))
	call("aten::lstm_cell", f(2, 3), []*tensor.Tensor{f(2, 4), f(1, 2)}, f(16, 3), f(16, 4), f(16), f(16))
	call("aten::lstm_cell", f(2, 3), []*tensor.Tensor{f(2, 4), f(2, 4)}, f(16, 3), f(16, 4), f(3), f(16))
	call("aten::lstm_cell", f(2, 3), []*tensor.Tensor{f(2, 4)}, f(16, 3), f(16, 4), f(16), f(16))
	call("aten::lstm_cell", g(2, 3), []*tensor.Tensor{g(2, 4), g(2, 2)}, g(16, 3), g(16, 4), nil, nil)
	call("aten::gru_cell", f(2, 3), f(2, 4), f(9, 3), f(12, 4), f(12), f(12))
	call("aten::gru_cell", f(2, 3), f(3, 4), f(12, 3), f(12, 4), f(12), f(1))
	call("aten::gru_cell", g(2, 3), g(2, 4), g(12, 3), g(12, 4), g(12), g(1))
	call("aten::rnn_tanh_cell", f(2, 3), f(7, 4), f(4, 3), f(4, 4), f(4), f(4))
	// factorizations
	lu := f(3, 3).Add(tensor.Eye(3))
	call("aten::linalg_lu_solve", lu, i32(100, 2, 3), f(3, 2))
	call("aten::linalg_lu_solve", lu, i32(0, -5, 3), f(3, 2))
	call("aten::linalg_lu_solve", lu, i32(1), f(3, 2))
	call("aten::linalg_lu_solve", f(2, 3, 3), i32(1, 2, 3).Expand(2, 3), f(2, 3, 1))
	call("aten::lu_solve", f(3, 2), lu, i32(100, 2, 3))
	call("aten::lu_solve", f(3, 2), lu, i32(1, 2))
	call("aten::lu_unpack", lu, i32(100, 2, 3))
	call("aten::lu_unpack", lu, i32(0, 0, 0))
	call("aten::ormqr", f(3, 3), f(5), f(3, 3))
	call("aten::ormqr", f(3, 2), f(1), f(3, 3))
	call("aten::ormqr", f(3, 3), f(3), f(2, 3))
	call("aten::orgqr", f(3, 3), f(5))
	call("aten::linalg_householder_product", f(3, 2), f(7))
	call("aten::linalg_householder_product", f(2, 3), f(3))
	call("aten::linalg_householder_product", g(4, 2), g(1))
	call("aten::geqrf", f(0, 3))
	call("aten::geqrf", f(3, 0))
	call("aten::linalg_ldl_solve", f(3, 3), i32(1, 2, 3), f(5, 2))
	call("aten::linalg_ldl_factor_ex", f(3, 3).Expand(4, 3, 3))
	call("aten::cholesky_inverse", f(3, 3).Narrow(0, 0, 1).Expand(3, 3))
	call("aten::cholesky_solve", f(3, 2), f(4, 4))
	call("aten::triangular_solve", f(3, 2), f(4, 4))
	call("aten::linalg_lstsq", f(3, 2), f(5, 2))
	call("aten::linalg_lstsq", f(3, 2), f(3), nil, "gelsd")
	nan := f(3, 3).Mul(math.NaN())
	for _, d := range []string{"gels", "gelsy", "gelsd", "gelss"} {
		call("aten::linalg_lstsq", nan, f(3, 3), nil, d)
		call("aten::linalg_lstsq", f(3, 3).Mul(math.Inf(1)), f(3, 3), nil, d)
	}
	for _, op := range []string{"aten::linalg_svd", "aten::linalg_eigh", "aten::linalg_qr", "aten::linalg_svdvals", "aten::linalg_pinv", "aten::linalg_matrix_exp", "aten::linalg_eigvalsh", "aten::geqrf", "aten::svd", "aten::linalg_inv", "aten::linalg_matrix_rank", "aten::linalg_cond"} {
		switch op {
		case "aten::linalg_pinv":
			call(op, nan, 1e-3)
			continue
		case "aten::linalg_matrix_rank":
			call(op, nan, 1e-3)
			continue
		}
		call(op, nan)
		call(op, f(3, 3).Mul(math.Inf(1)))
		call(op, f(40, 40).Mul(math.NaN()))
		call(op, f(40, 40).Mul(math.Inf(1)))
	}
	// losses
	lp := f(5, 2, 4).Log()
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1).View(2, 2), []int{5, 5}, []int{-1, 2})
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1).View(2, 2), []int{-5, 5}, []int{2, 2})
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1).View(2, 2), []int{7, 5}, []int{2, 2})
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1), []int{5, 5}, []int{2, 9})
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1), []int{5, 5}, []int{-2, 6})
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1), []int{5}, []int{2, 2})
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1).View(2, 2), []int{5, 5}, []int{2, 2}, 9)
	call("aten::ctc_loss.IntList", lp, i(1, 2, 3, 1).View(2, 2), []int{5, 5}, []int{2, 2}, -1)
	call("aten::ctc_loss.IntList", g(5, 2, 4).LogSoftmax(2), i(1, 2, 3, 1).View(2, 2), []int{0, 5}, []int{2, 2})
	call("aten::ctc_loss.IntList", g(5, 2, 4).LogSoftmax(2), i(1, 2, 3, 1).View(2, 2), []int{-3, 5}, []int{2, 2})
	call("aten::ctc_loss.Tensor", lp, i(1, 2, 3, 1).View(2, 2), i(5, 9), i(2, 2))
	call("aten::ctc_loss.Tensor", lp, i(1, 2, 3, 1).View(2, 2), i(5), i(2, 2))
	call("aten::nll_loss", f(3, 4), i(0, 1))
	call("aten::nll_loss", f(3, 4), i(0, 1, 2), f(2))
	call("aten::nll_loss", g(3, 4), i(0, -1, 2))
	call("aten::nll_loss2d", f(2, 3, 2, 2), i(0, 1, 2, 0).View(1, 2, 2))
	call("aten::nll_loss2d", f(2, 3, 2, 2), i(0, 1, 2, 9, 0, 0, 0, 0).View(2, 2, 2))
	call("aten::nll_loss_nd", f(2, 3, 2, 2), i(0, 1, 2, 9, 0, 0, 0, 0).View(2, 2, 2), f(2))
	call("aten::multi_margin_loss", f(3, 4), i(0, 9, 1))
	call("aten::multi_margin_loss", f(3, 4), i(0, -1, 1))
	call("aten::multi_margin_loss", f(3, 4), i(0, 1, 1), 1, 1, f(2))
	call("aten::multi_margin_loss", g(3, 4), i(0, 1))
	call("aten::multilabel_margin_loss", f(2, 3), i(0, 9, -1, 0, 0, 0).View(2, 3))
	call("aten::multilabel_margin_loss", f(2, 3), i(0, -7, -1, 0, 0, 0).View(2, 3))
	call("aten::multilabel_margin_loss", g(2, 3), i(0, 1, 2).View(1, 3))
	// pooling
	call("aten::max_unpool2d", f(1, 1, 2, 2), i(0, 1, 100, 3).View(1, 1, 2, 2), []int{4, 4})
	call("aten::max_unpool2d", f(1, 1, 2, 2), i(0, 1, -1, 3).View(1, 1, 2, 2), []int{4, 4})
	call("aten::max_unpool2d", f(1, 1, 2, 2), i(0, 1).View(1, 1, 1, 2), []int{4, 4})
	call("aten::max_unpool2d", f(1, 1, 2, 2), i(0, 1, 2, 3).View(1, 1, 2, 2), []int{-4, -4})
	call("aten::max_unpool2d", f(1, 1, 2, 2), i(0, 1, 2, 3).View(1, 1, 2, 2), []int{0, 0})
	call("aten::max_unpool2d", f(1, 1, 2, 2), i(0, 1, 2, 3).View(1, 1, 2, 2), []int{1 << 31, 1 << 31})
	call("aten::max_unpool3d", f(1, 1, 2, 2, 2), i(0, 1, 2, 3, 4, 5, 6, 700).View(1, 1, 2, 2, 2), []int{4, 4, 4}, []int{2, 2, 2}, []int{0, 0, 0})
	call("aten::max_unpool3d", f(1, 1, 2, 2, 2), i(0, 1, 2, 3, 4, 5, 6, 7).View(1, 1, 2, 2, 2), []int{4}, []int{2}, []int{0})
	call("aten::fractional_max_pool2d", f(1, 1, 4, 4), []int{2, 2}, []int{2, 2}, f(1, 1, 1))
	call("aten::fractional_max_pool2d", f(2, 3, 4, 4), []int{2, 2}, []int{2, 2}, f(1, 1, 2))
	call("aten::fractional_max_pool2d", f(1, 1, 4, 4), []int{2, 2}, []int{2, 2}, f(1, 1, 2).Mul(100))
	call("aten::fractional_max_pool2d", f(1, 1, 4, 4), []int{2, 2}, []int{2, 2}, f(1, 1, 2).Mul(math.NaN()))
	call("aten::fractional_max_pool2d", f(1, 1, 4, 4), []int{2, 2}, []int{2, 2}, f(1, 1, 2).Mul(-100))
	call("aten::fractional_max_pool2d", f(1, 1, 4, 4), []int{-2, 2}, []int{2, 2}, f(1, 1, 2))
	call("aten::fractional_max_pool2d", f(1, 1, 4, 4), []int{2, 2}, []int{-1, 0}, f(1, 1, 2))
	call("aten::fractional_max_pool3d", f(1, 1, 4, 4, 4), []int{2, 2, 2}, []int{2, 2, 2}, f(1, 1, 1))
	call("aten::fractional_max_pool3d", f(1, 1, 4, 4, 4), []int{2, 2, 2}, []int{2, 2, 2}, f(1, 1, 3).Mul(100))
	call("aten::fractional_max_pool3d", f(1, 1, 4, 4, 4), []int{2, 2, 2}, []int{2, 2, 2}, f(1, 1, 3).Mul(math.NaN()))
	call("aten::fractional_max_pool3d", f(1, 1, 4, 4, 4), []int{2, 2, 2}, []int{-2, 2, 2}, f(1, 1, 3))
	call("aten::fractional_max_pool3d", f(1, 1, 4, 4, 4), []int{-2, 2, 2}, []int{2, 2, 2}, f(1, 1, 3))
	call("aten::fractional_max_pool3d", f(2, 3, 4, 4, 4), []int{2, 2, 2}, []int{2, 2, 2}, f(1, 2, 3))
	call("aten::avg_pool2d", f(1, 1, 4, 4), []int{2}, []int{2}, []int{1}, true, true, 0)
	call("aten::max_pool3d_with_indices", f(1, 1, 2, 2, 2), []int{1, 1, 1}, []int{1, 1, 1}, []int{0, 0, 0}, []int{1 << 30, 1, 1})
	call("aten::max_pool2d", g(5, 1, 5), []int{2}, []int{}, []int{1, 1}, []int{2})
	// convolutions with sizes of their own
	call("aten::thnn_conv2d", f(1, 2, 5, 5), f(3, 2, 3, 3), []int{5, 5})
	call("aten::thnn_conv2d", f(1, 2, 5, 5), f(3, 2, 2, 2), []int{3, 3})
	call("aten::thnn_conv2d", f(1, 2, 5, 5), f(3, 18), []int{2, 2})
	call("aten::slow_conv3d", f(1, 2, 5, 5, 5), f(3, 2, 2, 2, 2), []int{3, 3, 3})
	call("aten::slow_conv_dilated2d", f(1, 2, 5, 5), f(3, 2, 2, 2), []int{3, 3})
	call("aten::slow_conv_dilated3d", f(1, 2, 5, 5, 5), f(3, 2, 2, 2, 2), []int{3, 3, 3})
	call("aten::slow_conv_transpose2d", f(1, 2, 5, 5), f(2, 3, 2, 2), []int{3, 3})
	call("aten::slow_conv_transpose3d", f(1, 2, 5, 5, 5), f(2, 3, 2, 2, 2), []int{3, 3, 3})
	call("aten::conv_tbc", f(4, 2, 3), f(2, 5, 4), f(4))
	call("aten::conv_tbc", f(4, 2, 3), f(2, 3, 4), f(2), 100)
	call("aten::conv_depthwise3d", f(1, 2, 5, 5, 5), f(2, 1, 2, 2, 2), []int{3, 3, 3}, nil, []int{1, 1, 1}, []int{0, 0, 0}, []int{1, 1, 1})
	call("aten::col2im", f(1, 8, 4), []int{4, 4}, []int{2, 2}, []int{1, 1}, []int{0, 0}, []int{2, 2})
	call("aten::col2im", f(1, 8, 9), []int{4, 4}, []int{2, 2}, []int{1, 1}, []int{1, 1}, []int{1, 1})
	call("aten::im2col", f(1, 2, 3, 3), []int{2, 2}, []int{1, 1}, []int{-1, -1}, []int{1, 1})
	// normalization
	call("aten::native_group_norm", f(2, 4, 3), f(4), f(4), 2, 4, 300, 2, 1e-5)
	call("aten::native_group_norm", f(2, 4, 3), f(4), f(4), 200, 4, 3, 2, 1e-5)
	call("aten::native_group_norm", f(2, 4, 3), f(2), f(4), 2, 4, 3, 2, 1e-5)
	call("aten::native_group_norm", f(2, 4, 3), f(4), f(4), 2, 4, 3, 0, 1e-5)
	call("aten::native_layer_norm", f(2, 4), []int{4}, f(2), f(4), 1e-5)
	call("aten::native_layer_norm", f(2, 4), []int{8}, f(8), f(8), 1e-5)
	call("aten::batch_norm", f(2, 4, 3), f(2), f(4), f(4), f(4), false, 0.1, 1e-5, false)
	call("aten::batch_norm", f(2, 4, 3), f(4), f(4), f(1), f(4), true, 0.1, 1e-5, false)
	call("aten::instance_norm", f(2, 4, 3), f(2), f(4), f(4), f(4), true, 0.1, 1e-5, false)
	call("aten::instance_norm", f(2, 4, 3), f(4), f(4), f(1), f(1), false, 0.1, 1e-5, false)
	call("aten::rrelu_with_noise", f(4, 4), f(2), 0.1, 0.3, true)
	call("aten::rrelu_with_noise", f(4, 4), f(2).To(tensor.Float64), 0.1, 0.3, true)
	call("aten::rrelu_with_noise_", f(4, 4), f(2), 0.1, 0.3, true)
	call("aten::rrelu_with_noise", g(4, 4), f(4, 4).T(), 0.1, 0.3, true)
	call("aten::renorm", f(3, 4), 2, 0, math.NaN())
	// indices
	call("aten::repeat_interleave.self_Tensor", f(3), i(1, 2, 3), 0, 2)
	call("aten::repeat_interleave.Tensor", i(1, 2, 3), 2)
	call("aten::repeat_interleave.Tensor", i(1, -2, 3), nil)
	call("aten::repeat_interleave.Tensor", i(1, 2, 3), 100)
	call("aten::repeat_interleave.Tensor", i(big, big, 3), nil)
	call("aten::searchsorted.Tensor", f(5), f(3), false, false, nil, i(0, 1, 2, 3, 100))
	call("aten::searchsorted.Tensor", f(5), f(3), false, false, nil, i(0, 1, 2, 3, -100))
	call("aten::searchsorted.Tensor", f(5), f(3), false, false, nil, i(0, 1))
	call("aten::bincount", i(0, 1, 2), f(2))
	call("aten::bincount", i(0, 1, 1<<40))
	call("aten::bincount", i(0, -1))
	call("aten::take", f(4), i(0, 100))
	call("aten::put", f(4), i(0, -100), f(2))
	call("aten::put_", f(4), i(0, 1, 2), f(2))
	call("aten::index_copy", f(4, 2), 0, i(0, 100), f(2, 2))
	call("aten::index_add", f(4, 2), 0, i(0, -100), f(2, 2))
	call("aten::index_add", f(4, 2), 0, i(0, 1, 2), f(2, 2))
	call("aten::index_reduce", f(4, 2), 0, i(0, 100), f(2, 2), "prod")
	call("aten::index_fill.int_Scalar", f(4, 2), 0, i(0, 100), 1)
	call("aten::index_select", f(4, 2), 0, i(0, 100))
	call("aten::index_select", f(4, 2), 1, i(-1))
	call("aten::scatter.src", f(4, 2), 0, i(0, 100).View(1, 2), f(1, 2))
	call("aten::scatter_add", f(4, 2), 0, i(0, 1, 2, 3).View(2, 2), f(1, 2))
	call("aten::gather", f(4, 2), 0, i(0, 100).View(1, 2))
	call("aten::masked_scatter", f(4), tensor.Ones([]int{4}).To(tensor.Bool), f(2))
	call("aten::masked_scatter_", f(4), tensor.Ones([]int{4}).To(tensor.Bool), f(2))
	call("aten::embedding", f(4, 2), i(0, 100))
	call("aten::embedding", f(4, 2), i(0, -1))
	call("aten::embedding_renorm_", f(4, 2), i(0, 100), 0.1, 2.0)
	call("aten::embedding_renorm_", f(4, 2), i(0, -100), 0.1, 2.0)
	call("aten::one_hot", i(0, 5), 3)
	call("aten::one_hot", i(-1), 3)
	call("aten::kthvalue", f(4), 0)
	call("aten::kthvalue", f(4), 9)
	call("aten::topk", f(4), 9)
	call("aten::topk", f(4), -1)
	call("aten::histc", f(4).Mul(math.NaN()), 4)
	call("aten::histc", f(4), 4, math.NaN(), 1)
	call("aten::histc", f(4), 0)
	call("aten::histogram.bins_tensor", f(4), f(1))
	call("aten::histogram.bins_tensor", f(4), f(0))
	call("aten::histogram.bin_ct", f(4), 3, nil, f(2))
	call("aten::histogram.bins_tensor", f(8), f(3).Mul(math.NaN()))
	call("aten::histogramdd", f(4, 2), []int{3}, nil, nil)
	call("aten::histogramdd", f(4, 2), []int{3, 3}, []float64{0, 1}, nil)
	call("aten::histogramdd", f(4, 2), []int{3, 3}, []float64{0, 1, math.NaN(), 1}, nil)
	call("aten::histogramdd", f(4, 2), []int{3, -3}, nil, nil)
	call("aten::histogramdd.TensorList_bins", f(4, 2), []*tensor.Tensor{f(3), f(0)}, nil, nil)
	call("aten::histogramdd.TensorList_bins", f(4, 2), []*tensor.Tensor{f(3), f(3)}, nil, f(2))
	call("aten::multinomial", f(2, 3), 100, true)
	call("aten::multinomial", f(2, 3).Mul(math.NaN()), 2, true)
	call("aten::multinomial", f(2, 0), 2, true)
	call("aten::poisson", f(4).Mul(math.NaN()))
	call("aten::poisson", f(4).Mul(math.Inf(1)))
	call("aten::poisson", f(4).Mul(-1))
	// vision
	call("aten::affine_grid_generator", f(2, 2, 3), []int{2, 3, 4}, false)
	call("aten::affine_grid_generator", f(2, 2, 3), []int{2, 3}, false)
	call("aten::affine_grid_generator", f(1, 2, 3), []int{9, 3, 4, 4}, false)
	call("aten::affine_grid_generator", f(2, 2, 3), []int{}, false)
	call("aten::grid_sampler_2d", f(2, 1, 3, 3), f(1, 2, 2, 2), 0, 0, false)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 3), 0, 0, false)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 2).To(tensor.Float64), 0, 0, false)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 2), 9, 9, false)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 2).Mul(math.NaN()), 0, 2, false)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 2).Mul(1e38), 0, 2, false)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 2).Mul(1e38), 2, 1, true)
	call("aten::grid_sampler_2d", f(1, 1, 3, 3), f(1, 2, 2, 2).Mul(math.Inf(1)), 2, 0, false)
	call("aten::grid_sampler_2d", g(1, 1, 3, 3), g(1, 2, 2, 2).Mul(math.Inf(1)), 1, 2, false)
	call("aten::grid_sampler_3d", f(1, 1, 3, 3, 3), f(1, 2, 2, 2, 3).Mul(math.NaN()), 0, 2, false)
	call("aten::grid_sampler_3d", f(1, 1, 3, 3, 3), f(2, 2, 2, 2, 3), 0, 2, false)
	call("aten::grid_sampler_3d", f(1, 1, 3, 3, 3), f(1, 2, 2, 2, 2), 0, 0, false)
	call("aten::pixel_shuffle", f(1, 4, 2, 2), -2)
	call("aten::pixel_shuffle", f(1, 4, 2, 2), 0)
	call("aten::pixel_unshuffle", f(1, 4, 2, 2), 0)
	call("aten::upsample_bicubic2d", f(1, 1, 2, 2), []int{2, 2}, false, 1e-5, 1e-5)
	call("aten::upsample_trilinear3d", f(1, 1, 2, 2, 2), []int{3, 3, 3}, false, 1e-5, 1e-5, 1e-5)
	call("aten::upsample_nearest3d", f(1, 1, 2, 2, 2), []int{3, 3, 3}, 1e-5, 1e-5, 1e-5)
	call("aten::upsample_nearest2d", f(1, 4, 2, 2).Contiguous(), []int{3, 3}, 1e-6, 1e-6)
	// sparse and quantized
	call("aten::sparse_coo_tensor.indices_size", i(0, 100).View(1, 2), f(2), []int{3})
	call("aten::sparse_coo_tensor.indices_size", i(0, -1).View(1, 2), f(2), []int{3})
	call("aten::sparse_csr_tensor.crow_col_value_size", i(0, 2, 100), i(0, 1), f(2), []int{2, 2})
	call("aten::sparse_csr_tensor.crow_col_value_size", i(0, 1, 2), i(0, 100), f(2), []int{2, 2})
	call("aten::quantize_per_channel", f(3, 2), f(1), i(0), 0, 12)
	call("aten::quantize_per_channel", f(3, 2), f(3), i(0, 0, 0), 7, 12)
	call("aten::quantize_per_channel", f(3, 2), f(3), f(3).To(tensor.Int32), 0, 12)
	call("aten::fake_quantize_per_channel_affine", f(3, 2), f(1), i32(0), 0, 0, 255)
	call("aten::fake_quantize_per_channel_affine", f(3, 2), f(3), i32(0, 0, 999), 0, 0, 255)
	call("aten::fake_quantize_per_channel_affine", f(3, 2), f(3), i32(0, 0), 0, 0, 255)
	call("aten::fake_quantize_per_channel_affine", f(3, 2), f(3), i32(0, 0, 0), -1, 0, 255)
	// signals, ranges
	call("aten::stft", f(20), 4, 2, 9, f(4), false, nil, true)
	call("aten::stft", f(20), 4, 2, 4, f(9), false, nil, true)
	call("aten::istft", tensor.Complex(f(3, 4), f(3, 4)), 4, 2, 4, f(4), true, false, nil, 1000)
	call("aten::istft", tensor.Complex(f(3, 4), f(3, 4)), 4, 0, 4, f(4))
	call("aten::as_strided_scatter", f(4), f(2, 2), []int{2, 2}, []int{2, 9})
	call("aten::as_strided_scatter", f(4), f(2, 2), []int{2, 2}, []int{2, 1}, -1)
	call("aten::as_strided_scatter", f(4), f(2, 2), []int{2, 2}, []int{0, 0})
	call("aten::unfold", f(4), 0, 9, 1)
	call("aten::unfold", f(4), 0, 2, 0)
	call("aten::unfold_copy", f(4), 0, -2, 1)
	call("aten::tensor_split.indices", f(4), []int{9, -9}, 0)
	call("aten::tensor_split.tensor_indices_or_sections", f(4), i(2, 1), 0)
	call("aten::split_with_sizes", f(4), []int{9, -5}, 0)
	call("aten::cdist", f(3, 0), f(2, 0))
	call("aten::cdist", g(3, 2), g(2, 2), math.NaN())
	call("aten::cdist", g(30, 2), g(30, 2), math.Inf(1))
	call("aten::pdist", g(3, 0))
	call("aten::roll", f(4), []int{big}, []int{0})
	call("aten::diag_embed", f(4), big-1)
	call("aten::diagonal", f(4, 4), big)
	call("aten::diagonal", f(4, 4), math.MinInt64)
	call("aten::tril_indices", 3, 3, big)
	call("aten::tril_indices", 3, 3, math.MinInt64)
	call("aten::triu_indices", 3, 3, math.MinInt64)
	call("aten::triu_indices", 1<<31, 1<<31, 0)
	call("aten::tril", f(3, 3), math.MinInt64)
	call("aten::triu", f(3, 3), big)
	call("aten::linspace", 0, 1, 1)
	call("aten::linspace", 0, 1, 0)
	call("aten::linspace", math.NaN(), 1, 5)
	call("aten::logspace", 0, 1, 1)
	call("aten::cummax", f(0, 3), 0)
	call("aten::cummax", f(), 0)
	call("aten::cummax", f(3, 1).Expand(3, 5), 1)
	call("aten::mode", f(3, 1).Expand(3, 5), 1)
	call("aten::kthvalue", f(3, 1).Expand(3, 5), 2, 1)
	call("aten::sort", f(3, 1).Expand(3, 5), 1)
	call("aten::topk", f(3, 1).Expand(3, 5), 2, 1)
	call("aten::unique_dim", f(3, 1).Expand(3, 5), 1)
	call("aten::unique_consecutive", f(3, 1).Expand(3, 5), true, true, 1)
	call("aten::logcumsumexp", g(3, 1).Expand(3, 5), 1)
	call("aten::cumprod", g(3, 1).Expand(3, 5), 1)
	call("aten::median", f(3, 1).Expand(3, 5))
	call("aten::nanmedian", f(3, 1).Expand(3, 5))
	call("aten::quantile.scalar", f(3, 1).Expand(3, 5), 0.5, 1)
	call("aten::mode", f(5).Expand(3, 5), 0)
	call("aten::segment_reduce", f(3), "sum", i(1, 2))
	call("aten::channel_shuffle", f(1, 4, 2), 2)
	call("aten::native_channel_shuffle", f(1, 4, 2, 2), 2)
	call("aten::glu", f(3, 4), 1)
	call("aten::bilinear", f(2, 3), f(2, 4), f(5, 4, 3), nil)
	call("aten::bilinear", f(2, 3), f(3, 4), f(5, 3, 4), nil)
	call("aten::baddbmm", f(2, 2, 2), f(2, 2, 3), f(3, 3, 2))
	call("aten::addbmm", f(2, 2), f(2, 2, 3), f(3, 3, 2))
	call("aten::addr", f(2, 2), f(3), f(2))
	call("aten::chain_matmul", []*tensor.Tensor{f(2, 3), f(4, 2)})
	call("aten::linalg_multi_dot", []*tensor.Tensor{f(2, 3), f(3), f(3, 2)})
	call("aten::einsum", "ii->", []*tensor.Tensor{f(2, 3)})
	call("aten::meshgrid", []*tensor.Tensor{f(2, 3), f(3)})
	call("aten::lstm.input", f(4, 2, 3), []*tensor.Tensor{f(1, 2, 5), f(1, 2, 5)}, []*tensor.Tensor{f(20, 3), f(20, 5)}, false, 1, 0.0, false, false, false)
	call("aten::scaled_dot_product_attention", f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 6, 4))
	call("aten::scaled_dot_product_attention", f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 7))
	call("aten::scaled_dot_product_attention", f(1, 2, 3, 4), f(1, 2, 5, 3), f(1, 2, 5, 4))
	call("aten::scaled_dot_product_attention", f(1, 2, 3, 4), f(1, 3, 5, 4), f(1, 3, 5, 4))
	call("aten::scaled_dot_product_attention", f(2, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4))
	call("aten::scaled_dot_product_attention", f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), f(7, 9))
	call("aten::scaled_dot_product_attention", f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4), f(1, 1, 1, 5).Expand(1, 2, 3, 5))
	call("aten::scaled_dot_product_attention", g(1, 2, 3, 4), g(1, 2, 5, 4), g(1, 2, 5, 4), f(3, 1).Expand(3, 5))
	call("aten::scaled_dot_product_attention", g(1, 2, 3, 4), g(1, 2, 5, 4), g(1, 2, 5, 4), f(5))
	call("aten::scaled_dot_product_attention", f(1, 4, 3, 4), f(1, 3, 5, 4), f(1, 2, 5, 4), nil, 0.0, false, nil, true)
	call("aten::native_multi_head_attention", f(1, 2, 4), f(1, 2, 4), f(1, 2, 4), 4, 3, f(12, 4), f(12), f(4, 4), f(4))
}

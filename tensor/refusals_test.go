package tensor

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/linstock-ml/linstock/cshim"
)

// Arguments that would crash libtorch are rejected: each rule of cshim/src/guards.cpp, identified by its
// message. Without the rule the process ends or hangs, or the message differs.
func TestRefusals(t *testing.T) {
	begin(t)
	scoped(t, func() {
		ints := func(v ...int64) *Tensor { return FromSlice(v, nil) }
		ones := func(shape ...int) *Tensor { return Ones(shape) }
		grad := func(shape ...int) *Tensor { return Ones(shape).RequiresGrad_() }
		inf := FromSlice([]float32{1, float32(math.Inf(1)), 1, 1}, []int{2, 2})
		least := ints(math.MinInt64)
		bag := "aten::embedding_bag"
		weight := ones(4, 2)
		// A layer of 3 inputs and 2 hidden: x (time, batch, 3), h (1, batch, 2).
		x, h := ones(5, 1, 3), ones(1, 1, 2)
		gru := func() []*Tensor { return []*Tensor{ones(6, 3), ones(6, 2), ones(6), ones(6)} }
		bad := gru()
		bad[1] = ones(6, 7)
		whole := gru()
		for i := range whole {
			whole[i] = whole[i].To(Int64)
		}
		run := func(x *Tensor, h any, params []*Tensor) []any {
			return []any{x, h, params, true, 1, 0.0, false, false, false}
		}
		made := func(name string, args ...any) *Tensor {
			out, err := CallUnchecked(name, args...)
			if err != nil {
				t.Fatal(err)
			}
			return out[0].(*Tensor)
		}
		csr, mkldnn := made("aten::to_sparse_csr", ones(2, 2)), made("aten::to_mkldnn", ones(2, 2))
		empty := made("aten::zeros", []int{0, 2, 2}, int(Float32), 2)
		hybrid := made("aten::to_sparse_csr", ones(3, 3, 3), 1)
		h2 := ones(1, 3, 2)
		packed := func(x, sizes *Tensor, h any, params []*Tensor) []any {
			return []any{x, sizes, h, params, true, 1, 0.0, false, false}
		}
		square := ones(1, 1, 2, 2)
		nested := made("aten::_nested_tensor_from_tensor_list", []*Tensor{ones(4), ones(1)})
		narrow := made("aten::to_mkldnn", ones(2, 8), int(BFloat16))
		quantized := made("aten::quantize_per_tensor", ones(2), 0.1, 0, 12)
		zeros := made("aten::_efficientzerotensor", []int{2}, int(Float32))
		const quant = "aten::fused_moving_avg_obs_fake_quant"
		observe := func(x, scale, zero *Tensor, axis int, rows bool) []any {
			n := 1
			if rows {
				n = x.Shape()[1]
			}
			return []any{x, ints(1), ints(1), ones(n), ones(n), scale, zero, 0.1, 0, 255, axis, rows}
		}
		const segment = "aten::segment_reduce"
		const sdpa = "aten::scaled_dot_product_attention"
		for _, c := range []struct {
			name string
			args []any
			says string
		}{
			{"aten::linalg_eig", []any{inf}, "infinite"},
			{"aten::linalg_eigvals", []any{inf}, "infinite"},
			{"aten::gcd", []any{least, ints(2)}, "the least integer"},
			{"aten::lcm", []any{ints(2), least}, "the least integer"},
			{"aten::div.Tensor_mode", []any{least, ints(-1), "trunc"}, "the least integer"},
			{"aten::div.Scalar_mode", []any{least, -1, "trunc"}, "the least integer"},
			// The other operand narrows these to int32.
			{"aten::div.Tensor_mode", []any{FromScalar(math.MinInt32), ints(-1).To(Int32), "trunc"}, "the least integer"},
			{"aten::div.Tensor_mode", []any{FromScalar(1 << 31), ints(-1).To(Int32), "trunc"}, "the least integer"},
			{"aten::gcd", []any{ints(5).To(Int32), FromScalar(1 << 31)}, "the least integer"},
			{"aten::lcm", []any{FromScalar(math.MinInt32), ints(5).To(Int32)}, "the least integer"},
			{"aten::arange.start_step", []any{0, math.MinInt64, -1}, "the number of elements does not fit"},
			{"aten::arange.start_step", []any{0x1p62, -0x1p62, -1.0, Int64}, "the number of elements does not fit"},
			{"aten::arange.start_step", []any{0, 3, 0.5, Int64}, "a fraction of 1"},
			{"aten::ctc_loss.IntList", []any{ones(3, 1, 2), ones(1, 1), []int{3}, []int{1}}, "targets must be int64"},
			{"aten::ctc_loss.IntList", []any{ones(), ints(1), []int{3}, []int{1}}, "2 or 3 dimensions"},
			{"aten::ctc_loss.IntList", []any{ones(3, 1, 2), ints(1<<40).View(1, 1), []int{3}, []int{1}}, "targets must be in"},
			{"aten::ctc_loss.IntList", []any{ones(3, 2, 2), ints(1, -1, 1, -1).View(2, 2), []int{3, 3}, []int{1, 2}}, "targets must be in"},
			{"aten::ctc_loss.Tensor", []any{ones(3, 2, 2), ints(1, 9, 1, -1).View(2, 2), ints(3, 3), ints(2, 1)}, "targets must be in"},
			{"aten::ctc_loss.IntList", []any{ones(3, 2, 2), ints(1, -1), []int{3, 3}, []int{1, 1}}, "targets must be in"},
			{bag, []any{weight, ones(2), ints(0)}, "indices must be int64"},
			{bag, []any{weight, ints(0, 1), ones(1)}, "offsets must be int64"},
			{bag, []any{weight, ints(0, 1), ints(0), false, 7}, "no mode 7"},
			{bag, []any{ones(4), ints(0, 1), ints(0)}, "weight must have 2"},
			{bag, []any{weight, ints(0, 1).View(1, 2), ints(0)}, "indices must have 1"},
			{bag, []any{weight, ints(0, 1), ints(0).View(1, 1)}, "offsets must have 1"},
			{bag, []any{weight, ints(0, 1), ints()}, "no offsets"},
			{bag, []any{weight, ints(0, 1), ints(0, 1), false, 0, false, nil, true}, "the last offset"},
			{bag, []any{weight, ints(0, 1), ints(1)}, "the first offset"},
			{bag, []any{weight, ints(0, 1<<40), ints(0)}, "indices must be in"},
			{bag, []any{weight, ints(0, 1), ints(0, 1<<40)}, "offsets must be in"},
			{bag, []any{weight, ints(0, 1, 2), ints(0, 2, 1)}, "must not decrease"},
			{"aten::linalg_matrix_power", []any{ones(2, 2), math.MinInt64}, "exponent"},
			{"aten::binomial", []any{FromScalar(math.Inf(1)), FromScalar(0.5)}, "counts must be finite"},
			{"aten::combinations", []any{ones(3), 65}, "the maximum is 64"},
			{"aten::lstm.input", run(x, []*Tensor{h}, gru()), "hx must have 2"},
			{"aten::gru.input", run(ones(5, 3), h, gru()), "the input must have 3"},
			{"aten::gru.input", run(x, ones(1, 7, 2), gru()), "a hidden state is"},
			{"aten::gru.input", run(x, h, gru()[:3]), "do not make"},
			{"aten::gru.input", run(x, h, bad), "weight 1 is"},
			{"aten::gru.input", run(x, h, whole), "floating-point"},
			{"aten::pdist", []any{grad(0, 3)}, "without rows"},
			{sdpa, []any{ones(2, 3, 4), ones(0, 3, 4), ones(2, 3, 4), nil, 0.0, false, nil, true}, "key has no heads"},
			{sdpa, []any{ones(2, 3, 4), ones(2, 3, 4), ones(0, 3, 4), nil, 0.0, false, nil, true}, "value has no heads"},
			{"aten::vander", []any{grad(3)}, "cannot differentiate"},
			{"aten::max_pool1d", []any{ones(1, 1, 8), []int{1 << 40}}, "too large for a window"},
			{"aten::max_pool1d", []any{ones(1, 8), []int{math.MaxInt32}}, "a window of 2147483647 is too large"},
			{"aten::resize_", []any{ones(2, 1, 1, 1).Expand(2, 3, 4, 5), []int{2, 3, 4, 5}, int(ChannelsLast)}, "share memory"},
			{"aten::resize_as_", []any{ones(5, 1).Expand(5, 8), ones(5, 8), int(ContiguousFormat)}, "share memory"},
			{"aten::as_strided", []any{ones(2).To(Uint8), []int{2, 8}, []int{2, 8}, math.MaxInt64 - 1}, "ends far beyond"},
			{"aten::max_pool2d", []any{grad(5, 1, 5), []int{2}, []int{}, []int{1, 1}, []int{2}}, "a window has no element of the 1 along dimension 0"},
			{"aten::max_pool2d", []any{grad(1, 4, 4), []int{2, 2, 2}}, "kernel_size"},
			{"aten::max_pool3d_with_indices", []any{grad(1, 3, 3, 1), []int{2}, []int{}, []int{1}, []int{2}}, "along dimension 2"},
			{"aten::max_pool1d", []any{grad(1, 1), []int{2}, []int{}, []int{1}, []int{2}}, "a window has no element"},
			{"aten::repeat_interleave.self_Tensor", []any{ones(2), ints(1<<60, 1)}, "repeats must be in"},
			{"aten::linalg_matmul.out", []any{csr, ones(1), ones(2)}, "have no product"},
			{"aten::grid_sampler", []any{ones(1, 4, 3, 3).To(Float64), ones(1, 4, 4, 2).To(Float64).Mul(math.NaN()), 0, 1, true}, "not numbers"},
			{"aten::grid_sampler", []any{grad(1, 4, 3, 3), ones(1, 4, 4, 2).Mul(math.Inf(1)), 0, 2, true}, "infinite"},
			{"aten::grid_sampler", []any{grad(1, 1, 8, 8), ones(1, 2, 2, 2).Mul(1e38), 0, 2, false}, "infinite"},
			{"aten::grid_sampler", []any{ones(1, 4, 3, 3), ones(1, 4, 4, 2), 3, 0, true}, "interpolation mode 3"},
			{"aten::grid_sampler_2d", []any{ones(1, 4, 3, 3), ones(1, 4, 4, 2), 0, -1, true}, "padding mode -1"},
			{"aten::grid_sampler_3d", []any{ones(1, 4, 3, 3, 3), ones(1, 4, 4, 4, 3), 0, 3, true}, "padding mode 3"},
			{"aten::from_file", []any{"go.mod", false, 1 << 62, int(Float32)}, "there is no size"},
			{"aten::gru_cell", []any{ones(1, 1), ones(1, 1, 5, 127, 1), ones(3, 1), ones(3, 1)}, "1 or 2 dimensions"},
			{"aten::thnn_conv2d", []any{ones(2, 0, 8, 8), ones(4, 4, 3, 3), []int{3, 3}}, "0 channels, not 4"},
			{"aten::linalg_ldl_solve", []any{ones(2, 2, 2), ints(1, 2).To(Int32).Expand(2, 2).Clone(), ones(2, 2, 2, 1)}, "more batches than LD"},
			{"aten::tensor_split.sections", []any{ones(8), 1 << 31, 0}, "too many"},
			{"aten::set_data", []any{ones(2), ones(3)}, "tensor.CallUnchecked"},
			{"aten::thnn_conv2d", []any{ones(1, 2, 5, 5), ones(3, 2, 2, 2), []int{3, 3}}, "windows are [2, 2], not [3, 3]"},
			{"aten::rrelu_with_noise", []any{ones(4, 4), ones(1).Expand(4, 4), 0.1, 0.3, true}, "argument 'noise' is expanded"},
			{"aten::log_sigmoid_forward.output", []any{ones(4), ones(4), ones(1).Expand(4)}, "argument 'buffer' is expanded"},
			{"aten::as_strided_", []any{quantized, []int{4}, []int{math.MaxInt64 - 1}, 1}, "ends far beyond"},
			{"aten::slow_conv3d", []any{ones(1, 2, 5, 5, 5), ones(3, 2, 2, 2, 2), []int{3, 3, 3}}, "windows are [2, 2, 2], not [3, 3, 3]"},
			{"aten::slow_conv_transpose2d", []any{ones(1, 2, 5, 5), ones(2, 3, 2, 2), []int{3, 3}}, "windows are [2, 2], not [3, 3]"},
			{sdpa, []any{ones(1, 2, 3, 4), ones(1, 2, 5, 4), ones(1, 2, 6, 4)}, "there are 5 keys and 6 values"},
			{"aten::as_strided_", []any{ones(2).To(Uint8), []int{2, 8}, []int{2, 8}, math.MaxInt64 - 1}, "ends far beyond"},
			{"aten::as_strided_scatter", []any{ones(2), ones(1), []int{1}, []int{1}, math.MaxInt64 - 1}, "ends far beyond"},
			{"aten::set_.source_Tensor_storage_offset", []any{ones(2).To(Uint8), ones(2).To(Uint8), math.MaxInt64 - 1, []int{2}}, "ends far beyond"},
			{"aten::set_.source_Tensor", []any{ones(2), zeros}, "source has no memory"},
			{"aten::conv1d", []any{ones(1, 1, 8), ones(1, 1, 2), nil, []int{1 << 40}}, "too large for a window"},
			{"aten::mT", []any{made("aten::to_mkldnn", ones(8, 0))}, "has no elements: [8, 0]"},
			{"aten::to.other", []any{nested, quantized}, "their own kind"},
			{"aten::select.int", []any{nested, -1, 0}, "only be selected along dimension 0"},
			{"aten::zero_", []any{narrow}, "must be float32, not BFloat16"},
			{"aten::adaptive_avg_pool1d", []any{ones(1, 0, 8), []int{1 << 30}}, "too large"},
			{"aten::adaptive_avg_pool3d", []any{ones(1, 1, 2, 2, 2), []int{4}}, "must have 3 numbers, not 1"},
			{"aten::adaptive_avg_pool2d.out", []any{square, []int{4}, ones(1)}, "must have 2 numbers, not 1"},
			{"aten::abs.out", []any{quantized, ones(2)}, "'out' must be quantized"},
			{"aten::abs.out", []any{ones(2), quantized}, "'out' must not be quantized"},
			{"aten::range.out", []any{0, 3, 0.5, ints(0)}, "a fraction of 1"},
			{"aten::range.out", []any{0, math.MinInt64, -1, ints(0)}, "the number of elements does not fit"},
			{"aten::range.out", []any{0, math.MinInt64, complex(-1, 0), ints(0)}, "the number of elements does not fit"},
			{"aten::range.step", []any{0, math.MinInt64, -1.5, int(Int64)}, "the number of elements does not fit"},
			{"aten::range.out", []any{0, 3, complex(0.5, 0), ints(0)}, "a fraction of 1"},
			{"aten::slow_conv3d", []any{ones(1, 1, 2, 2, 2), ones(1, 1, 1, 1, 1), []int{1}, nil, []int{1, 1, 1}, []int{0, 0, 0}}, "3 numbers each"},
			{"aten::reflection_pad1d.out", []any{quantized.View(1, 2), []int{}, quantized}, "padding must have 2"},
			{"aten::replication_pad2d", []any{ones(1, 2, 2), []int{1, 1, 1}}, "padding must have 4"},
			{"aten::reflection_pad3d", []any{ones(1, 2, 2, 2), []int{}}, "padding must have 6"},
			{"aten::native_batch_norm", []any{ones(2), nil, nil, nil, nil, true, 0.1, 1e-5}, "2 dimensions or more"},
			{"aten::native_batch_norm", []any{ones(2, 3), nil, ones(0, 3), nil, nil, false, 0.1, 1e-5}, "must be [3], not [0, 3]"},
			{"aten::native_batch_norm", []any{ones(2, 3), nil, nil, ones(3), nil, false, 0.1, 1e-5}, "needed in evaluation"},
			{"aten::replication_pad3d", []any{ones(3, 3, 3, 3), math.MaxInt64}, "too large for a window"},
			{"aten::pad", []any{ones(3, 3, 3, 3), []int{1 << 40, 0}, "replicate"}, "too large for a window"},
			{"aten::pad", []any{ones(1, 1, 3, 4), []int{3, -2, 0, 0}, "circular"}, "circular padding adds 3 to dimension 3, of which the other side leaves 2"},
			{"aten::pad", []any{ones(1, 1, 3, 4), []int{0, 0, -3, 1}, "circular"}, "adds 1 to dimension 2, of which the other side leaves 0"},
			{"aten::pad", []any{ones(1, 1, 4), []int{3, -2}, "circular"}, "adds 3 to dimension 2"},
			{"aten::multi_margin_loss", []any{ones(0, 3), ints()}, "an empty batch"},
			{"aten::multi_margin_loss.out", []any{ones(0, 3), ints(), 1, 1, nil, 2, ones()}, "an empty batch"},
			{"aten::multilabel_margin_loss", []any{ones(0, 3), ints().View(0, 3)}, "an empty batch"},
			{"aten::multilabel_margin_loss_forward", []any{ones(0, 3), ints().View(0, 3), 2}, "an empty batch"},
			{"aten::batch_norm_update_stats", []any{ones(2, 3), ones(2), nil, 0.1}, "must be [3], not [2]"},
			{"aten::replication_pad2d.out", []any{square, []int{1, 1, 1, 1}, square}, "'out' is also another argument"},
			{"aten::svd.U", []any{ones(2, 2), true, true, square, square, ones(2)}, "'U' is also another argument"},
			{"aten::range.step", []any{0.5, 3, 0.25, int(Int64)}, "a fraction of 1"},
			{"aten::cummax.out", []any{ones(2), 0, ints(0, 0), ints(0, 0)}, "the dtype of self"},
			{"aten::cummin.out", []any{ones(2), 0, ones(2), ones(2)}, "indices must be int64"},
			{"aten::abs.out", []any{ones(2), 0}, "wants Tensor"},
			{"aten::cat", []any{[]*Tensor{}}, "there are no tensors"},
			{"aten::concat.out", []any{[]*Tensor{}, 0, ones(2)}, "there are no tensors"},
			{"aten::abs", []any{made("aten::narrow", made("aten::_nested_tensor_from_tensor_list", []*Tensor{ones(2, 4), ones(1, 4)}), 0, 0, 0)}, "no components"},
			{"aten::zeros_like", []any{made("aten::narrow", made("aten::_nested_tensor_from_tensor_list", []*Tensor{ones(2, 4), ones(1, 4)}), 0, 0, 0)}, "no components"},
			{"aten::gru.data", packed(ones(5, 1, 3), ints(3, 2), h2, gru()), "the data must have 2"},
			{"aten::gru.data", packed(ones(5, 3), ones(2), h2, gru()), "a vector of int64"},
			{"aten::gru.data", packed(ones(5, 3), ints(9, 2), h2, gru()), "batch_sizes must be in"},
			{"aten::gru.data", packed(ones(5, 3), ints(2, 3), h2, gru()), "batch_sizes must not increase"},
			{"aten::gru.data", packed(ones(5, 3), ints(3, 2), h, gru()), "a hidden state is"},
			{"aten::lstm.data", packed(ones(5, 3), ints(3, 2), []*Tensor{h2, h2}, nil), "there are no weights for 1 layers"},
			{"aten::rrelu_with_noise.out", []any{ones(2, 3), ones(2, 3), 0.1, 0.3, true, Default, ones(2)}, "the shape and the dtype of self"},
			{"aten::random_.from", []any{ones(2), math.MaxInt64, nil}, "from is too large"},
			{"aten::channel_shuffle", []any{ones(1, 2, 2, 2), 0}, "at least 1"},
			{"aten::native_channel_shuffle", []any{ones(1, 2, 2, 2), 0}, "at least 1"},
			{"aten::gcd_", []any{least, ints(2)}, "the least integer"},
			{"aten::gcd.out", []any{least, ints(2), ints(0)}, "the least integer"},
			{"aten::div_.Scalar_mode", []any{ints(math.MinInt64), -1, "trunc"}, "the least integer"},
			{"aten::div.out_mode", []any{least, ints(-1), "trunc", ints(0)}, "the least integer"},
			{"aten::matrix_power.out", []any{ones(2, 2), math.MinInt64, ones(2, 2)}, "exponent"},
			{"aten::reflection_pad3d.out", []any{ones(1, 2, 2, 2), []int{}, ones(1)}, "padding must have 6"},
			{"aten::align_tensors", []any{[]*Tensor{}}, "there are no tensors"},
			{"aten::view_copy.dtype", []any{quantized, int(Float32)}, "no view of another dtype"},
			{"aten::index.Tensor", []any{ints(1, 2), []*Tensor{made("aten::_efficientzerotensor", []int{2}, int(Int64))}}, "cannot be integers"},
			{"aten::copy", []any{csr, ones(2, 2)}, "self must be strided"},
			{segment, []any{ones(3, 2), "max", ones(2)}, "lengths must be int64"},
			{segment, []any{ones(3, 2), "max", ints(3).Expand(2, 1)}, "do not fit data of [3, 2]"},
			{segment, []any{ones(3, 2), "max", ints(1 << 40), nil, nil, 0, true}, "lengths must be in"},
			{segment, []any{ones(3, 2), "max", ints(1, 1), nil, nil, 0, true}, "lengths must add up to 3"},
			{segment, []any{ones(3, 2), "max", nil, nil, ints(0, 1<<40)}, "offsets must be in"},
			{segment, []any{ones(3, 2), "max", nil, nil, ints(2, 1)}, "offsets must not decrease"},
			{"aten::upsample_bilinear2d", []any{ones(1, 1, 2, 2), []int{2, 2}, false, 0.5, 5e-324}, "is too small"},
			{"aten::upsample_nearest1d.vec", []any{ones(1, 1, 2), []int{2}, []float64{1e-300}}, "is too small"},
			{"aten::linear", []any{mkldnn, ones(2, 2, 2)}, "does not fit a weight of [2, 2, 2]"},
			{"aten::linear", []any{mkldnn, ones(2, 3)}, "does not fit a weight of [2, 3]"},
			{"aten::linalg_ldl_solve", []any{ones(2, 2), ints(0, 1).To(Int32), ones(2, 2)}, "the pivots are not those"},
			{"aten::linalg_ldl_solve", []any{ones(2, 2), ints(1, -2).To(Int32), ones(2, 2)}, "the pivots are not those"},
			{"aten::linalg_ldl_solve", []any{ones(2, 2), ints(100, 2).To(Int32), ones(2, 2)}, "the pivots are not those"},
			{"aten::lu_unpack", []any{grad(2, 2), ints(1, 2).To(Int32), false}, "LU_data has no derivative"},
			{"aten::lu_unpack", []any{ones(0, 4, 4), ints(2).To(Int32), false}, "LU_pivots is [1], not [0, 4]"},
			{"aten::choose_qparams_optimized", []any{ones(2), 3, 2, 0.5, 8}, "numel is more"},
			{"aten::choose_qparams_optimized", []any{ones(2), 2, 0, 0.5, 8}, "n_bins must be in"},
			{"aten::choose_qparams_optimized", []any{ones(2), 2, 2, math.Inf(1), 8}, "ratio must be in"},
			{"aten::choose_qparams_optimized", []any{ones(2), 2, 2, 0.5, 0}, "bit_width must be in"},
			{quant, observe(ints(2), ones(1), ints(0), 0, false), "self must not be Long"},
			{quant, observe(ones(2, 3), ones(1), ones(1), 0, false), "zero_point must not be Float"},
			{quant, observe(ones(2, 3), ones(0), ints(0), 0, false), "scale has 0 elements, not 1"},
			{quant, observe(ones(2, 3), ones(2), ints(0, 0), 7, true), "ch_axis is 7"},
			{quant, observe(ones(2, 3), ones(3), ints(0, 0), 1, true), "zero_point has 2 elements, not 3"},
			{quant, observe(ones(2, 2), ones(2, 2).Select(1, 0), ints(0, 0), 1, true), "scale must be contiguous"},
			{"aten::select.int", []any{made("aten::quantize_per_tensor", ones(3, 3), 0.1, 0, 16), 0, 1}, "can only be dequantized"},
			{"aten::special_laguerre_polynomial_l.n_scalar", []any{ones(2), 1 << 40}, "degree must be at most"},
			{"aten::special_laguerre_polynomial_l", []any{ones(2), ints(1, 1<<40)}, "degree must be at most"},
			{"aten::mm", []any{mkldnn, ones(2, 2)}, "no kernel for a tensor of oneDNN's layout"},
			{"aten::add.Tensor", []any{mkldnn, csr}, "can only be combined with dense ones"},
			{"aten::to_sparse_csc", []any{empty}, "has an empty batch"},
			{"aten::add.Tensor", []any{ones(3, 3, 3), hybrid}, "with dense dimensions cannot be added"},
			{"aten::mul.Tensor", []any{made("aten::to_sparse.sparse_dim", ones(4, 4), 1), made("aten::to_sparse", ones(4, 4))}, "have 1 and 2 sparse dimensions"},
			{"aten::sub.Tensor", []any{hybrid, ones(3, 3, 3)}, "with dense dimensions cannot be added"},
			{"aten::clone", []any{made("aten::_neg_view", quantized)}, "no negative or conjugate view"},
			{"aten::randn.out", []any{[]int{4, 2}, zeros}, "zeros without memory"},
			{"aten::_conj", []any{ones(2)}, "tensor.CallUnchecked"},
			{"aten::gelu_backward", []any{ones(2), ones(2)}, "tensor.CallUnchecked"},
			{"aten::copy.out", []any{csr, ones(2, 2), ones(2, 2)}, "tensor.CallUnchecked"},
			{"aten::mkldnn_linear", []any{mkldnn, ones(2, 2)}, "tensor.CallUnchecked"},
			{"inductor::_alloc_from_pool", []any{ones(2)}, "tensor.CallUnchecked"},
			{"aten::hsplit.int", []any{ones(2, 0), 1 << 40}, "pieces are too many"},
			{"aten::vsplit.int", []any{ones(0, 2), 1 << 40}, "pieces are too many"},
			{"aten::dsplit.int", []any{ones(2, 2, 0), 1 << 40}, "pieces are too many"},
			{"aten::to.dtype", []any{ones(2), 99}, "there is no 99"},
			{"aten::to.dtype", []any{ones(2), -2}, "there is no -2"},
		} {
			_, err := Call(c.name, c.args...)
			if c.name == "aten::align_tensors" && errors.Is(err, ErrNotImplemented) {
				continue // libtorch 2.15 no longer has it
			}
			wantErr(t, c.name+": "+c.says, err, ErrArgument)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
		}
		// The typed entries have the rules of layouts.
		for what, x := range map[string]*Tensor{
			"MM of oneDNN's":          mkldnn.MM(csr),
			"MatMul of oneDNN's":      mkldnn.MatMul(csr),
			"MM of an empty batch":    empty.MM(ones(2, 2)),
			"AddMM with oneDNN's":     grad(2, 2).AddMM(csr, mkldnn),
			"Linear of oneDNN's":      mkldnn.Linear(ones(2, 3), nil),
			"Linear of an empty bias": ones(2, 2).Linear(ones(2, 2), empty),
			"Add of a hybrid":         ones(3, 3, 3).Add(hybrid),
			"Add_ of a hybrid":        ones(3, 3, 3).Add_(hybrid),
			"Mul of 2 sparse and 1":   made("aten::to_sparse", ones(4, 4)).Mul(made("aten::to_sparse.sparse_dim", ones(4, 4), 1)),
			"Attention":               ScaledDotProductAttention(ones(1, 2, 3, 4), ones(1, 2, 6, 4), ones(1, 2, 5, 4)),
			"Sub from a hybrid":       hybrid.Sub(ones(3, 3, 3)),
		} {
			wantErr(t, what, x.Err(), ErrArgument)
		}
		// Arguments that the rules accept give results.
		for what, x := range map[string]*Tensor{"ReLU": mkldnn.ReLU(), "Add": mkldnn.Add(mkldnn), "MM": csr.MM(ones(2, 2)), "Mul": zeros.Mul(ones(2))} {
			if err := x.Err(); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if _, err := Call("aten::gru.data", packed(ones(5, 3), ints(3, 2), h2, gru())...); err != nil {
			t.Errorf("packed sequences: %v", err)
		}
		draws, err := Call("aten::binomial", ones(3).Mul(2), FromSlice([]float32{1.5, -0.5, float32(math.NaN())}, nil))
		if err != nil {
			t.Fatalf("probabilities beyond [0, 1]: %v", err)
		}
		if got := values(t, draws[0].(*Tensor)); got[0] != 2 || got[1] != 0 || !math.IsNaN(got[2]) {
			t.Errorf("binomial with probabilities beyond [0, 1]: %v, want [2 0 NaN]", got)
		}
		if _, err := Call("aten::add.out", square, square, 1, square); err != nil {
			t.Errorf("what is computed by element can be written to its input: %v", err)
		}
		// Sparse tensors have the indices that they say.
		for what, c := range map[string][]any{
			"coo":            {"aten::sparse_coo_tensor.indices_size", ints(0, 9).View(1, 2), ones(2), []int{3}},
			"coo negative":   {"aten::sparse_coo_tensor.indices_size", ints(0, -1).View(1, 2), ones(2), []int{3}},
			"coo coalesced":  {"aten::sparse_coo_tensor.indices_size", ints(1, 0).View(1, 2), ones(2), []int{3}, nil, nil, nil, nil, true},
			"csr beyond":     {"aten::sparse_csr_tensor.crow_col_value_size", ints(0, 1, 400), ints(0, 1), ones(2), []int{2, 2}},
			"csr decreasing": {"aten::sparse_csr_tensor.crow_col_value_size", ints(0, 3, 2), ints(0, 1), ones(2), []int{2, 2}},
			"csr columns":    {"aten::sparse_csr_tensor.crow_col_value", ints(0, 1, 2), ints(0, -1), ones(2)},
			"csc rows":       {"aten::sparse_csc_tensor.ccol_row_value_size", ints(0, 1, 2), ints(0, 9), ones(2), []int{2, 2}},
			"values":         {"aten::sparse_compressed_tensor.comp_plain_value_size", ints(0, 1, 2), ints(0, 1), ones(1), []int{2, 2}, nil, 2},
		} {
			if _, err := Call(c[0].(string), c[1:]...); err == nil {
				t.Errorf("%s: no error", what)
			}
		}
		got, err := Data[int64](Arange(3, 0, Step(-1)))
		if err != nil || !slices.Equal(got, []int64{3, 2, 1}) {
			t.Errorf("Arange(3, 0, Step(-1)): %v, %v", got, err)
		}
	})
}

// Each of libtorch's operators is internal or in namespace aten, where Call runs it. A namespace that
// is_internal (cshim/src/guards.cpp) does not list would be taken for a user's library.
func TestInternalOperators(t *testing.T) {
	begin(t)
	names, err := OperatorNames()
	if err != nil {
		t.Fatal(err)
	}
	public := 0
	for _, name := range names {
		_, err := Call(name, make(chan int)) // which no operator accepts
		if err == nil {
			t.Fatalf("%s takes a channel", name)
		}
		wantErr(t, name, err, ErrArgument)
		op, isATen := strings.CutPrefix(name, "aten::")
		internal := strings.Contains(err.Error(), "internal to libtorch")
		if want := !isATen || strings.HasPrefix(op, "_") || strings.Contains(op, "_backward"); want && !internal {
			t.Errorf("%s is not internal", name)
		}
		if !internal {
			public++
		}
		if _, err := CallUnchecked(name, make(chan int)); strings.Contains(err.Error(), "internal to libtorch") {
			t.Errorf("CallUnchecked refuses %s", name)
		}
	}
	if public < 1500 {
		t.Errorf("%d of %d operators are public", public, len(names))
	}
	for _, o := range operators {
		if name := o.op.name + "." + o.op.overload; o.op.name != "aten::_unique2" && !strings.HasPrefix(o.op.name, "aten::_sparse_") {
			if _, err := Call(strings.TrimSuffix(name, "."), make(chan int)); strings.Contains(err.Error(), "internal to libtorch") {
				t.Errorf("%s has a method, and is internal", name)
			}
		}
	}
}

// TestUnknownModes tests that GridSampler rejects modes that do not exist, for which libtorch returns uninitialized
// memory.
func TestUnknownModes(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, grid := Ones([]int{1, 1, 3, 3}), Zeros([]int{1, 2, 2, 2})
		for says, o := range map[string]Option{"interpolation mode 3": InterpolationMode(3), "interpolation mode -1": InterpolationMode(-1),
			"padding mode 3": PaddingMode(3), "padding mode -1": PaddingMode(-1)} {
			if err := x.GridSampler(grid, o).Err(); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), says+" does not exist") {
				t.Errorf("%s: got %v", says, err)
			}
		}
		for mode := range 3 {
			if err := x.GridSampler(grid, InterpolationMode(mode), PaddingMode(2-mode)).Err(); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestUnknownReductions tests that losses reject reductions that do not exist, which libtorch treats as others or as
// internal errors.
func TestUnknownReductions(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, classes := Zeros([]int{2, 3}), Zeros([]int{2}, Int64)
		for _, r := range []Reduction{-1, 3, 7} {
			_, called := Call("aten::mse_loss", x, x, r)
			for loss, err := range map[string]error{"CrossEntropy": x.CrossEntropy(classes, r).Err(), "KLDiv": x.KLDiv(x, r).Err(),
				"MSELoss": x.MSELoss(x, r).Err(), "Call": called} {
				if says := fmt.Sprintf("reduction %d does not exist", r); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s, reduction %d: got %v", loss, r, err)
				}
			}
		}
	})
}

// TestAbsentDevices tests that the error for a device of a type that this machine lacks says so. libtorch's says that
// an operator has no kernel for it.
func TestAbsentDevices(t *testing.T) {
	begin(t)
	all, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) > 1 {
		t.Skip("there is a device other than the CPU")
	}
	scoped(t, func() {
		x, state := Ones([]int{2}), RNGState()
		for d, says := range map[Device]string{CUDA(0): "cuda:0 does not exist; no CUDA device can be used: " + cshim.NoCUDA(),
			CUDA(3): "cuda:3 does not exist; no CUDA", {MPSType, 0}: "mps:0 does not exist; this libtorch finds no device of that type",
			{DeviceType(12), 1}: "device(12):1 does not exist; this libtorch", {DeviceType(99), 0}: "device(99):0 does not exist; this libtorch"} {
			_, called := Call("aten::empty.memory_format", []int{2}, Default, Default, d)
			_, states := RNGStates(d)
			for what, err := range map[string]error{"Zeros": Zeros([]int{2}, d).Err(), "To": x.To(d).Err(), "Call": called,
				"NewGenerator": NewGenerator(d).Err(), "RNGState": RNGState(d).Err(), "RNGStates": states,
				"SetRNGState": SetRNGState(state, d), "Synchronize": Synchronize(d)} {
				if !errors.Is(err, ErrArgument) || !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), says) {
					t.Errorf("%s, %v: got %v", what, d, err)
				}
			}
		}
	})
}

// TestGuardsLetThrough tests calls beside those that the guards refuse.
func TestGuardsLetThrough(t *testing.T) {
	begin(t)
	scoped(t, func() {
		least := FromSlice([]int64{math.MinInt64, 7}, []int{2})
		for name, c := range map[string]struct {
			got  *Tensor
			want []float64
		}{
			"floor":        {least.DivMode(-1, RoundingMode("floor")), []float64{math.MinInt64, -7}},
			"without mode": {least.DivMode(-1), []float64{-math.MinInt64, -7}},
			"sparse Copy_": {Zeros([]int{2}).ToSparse().Copy_(FromSlice([]float32{0, 3}, []int{2}).ToSparse()).ToDense(), []float64{0, 3}},
		} {
			got, err := Data[float64](c.got.To(Float64))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s: %v, %v; want %v", name, got, err, c.want)
			}
		}
	})
}

// TestAffineGridRefuses tests that AffineGrid rejects what torch.nn.functional.affine_grid does.
func TestAffineGridRefuses(t *testing.T) {
	begin(t)
	scoped(t, func() {
		theta := Ones([]int{2, 2, 3})
		for says, y := range map[string]*Tensor{
			"floating-point numbers, got int64":                                         theta.To(Int64).AffineGrid([]int{2, 1, 3, 3}),
			"floating-point numbers, got complex64":                                     theta.To(Complex64).AffineGrid([]int{2, 1, 3, 3}),
			"the size must be positive, got (2, 1, 0, 3)":                               theta.AffineGrid([]int{2, 1, 0, 3}),
			"the size must be positive, got (2, 1, 3, -1)":                              theta.AffineGrid([]int{2, 1, 3, -1}),
			"(N, C, H, W) or (N, C, D, H, W), got (2, 1, 3)":                            theta.AffineGrid([]int{2, 1, 3}),
			"(N, C, H, W) or (N, C, D, H, W), got ()":                                   theta.AffineGrid(nil),
			"theta must have shape (2, 2, 3) for the size (2, 1, 3, 3), got (2, 2, 2)":  theta.Narrow(2, 0, 2).AffineGrid([]int{2, 1, 3, 3}),
			"theta must have shape (2, 2, 3) for the size (2, 1, 3, 3), got (2, 3)":     theta.Select(0, 0).AffineGrid([]int{2, 1, 3, 3}),
			"theta must have shape (3, 2, 3) for the size (3, 1, 3, 3), got (2, 2, 3)":  theta.AffineGrid([]int{3, 1, 3, 3}),
			"theta must have shape (2, 3, 4) for the size (2, 1, 3, 3, 3), got (2, 2, ": theta.AffineGrid([]int{2, 1, 3, 3, 3}),
		} {
			if err := y.Err(); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want %s", err, says)
			}
		}
		if err := errors.Join(theta.AffineGrid([]int{2, 5, 1, 3}, AlignCorners(true)).Err(), Ones([]int{2, 3, 4}).AffineGrid([]int{2, 1, 2, 3, 4}).Err()); err != nil {
			t.Error(err)
		}
	})
}

// TestEmbeddingBagRefuses tests that EmbeddingBag rejects what torch.nn.functional.embedding_bag does.
func TestEmbeddingBagRefuses(t *testing.T) {
	begin(t)
	scoped(t, func() {
		rows, ids, offsets := Ones([]int{4, 2}), FromSlice([]int64{0, 1, 3}, []int{3}), FromSlice([]int64{0, 2}, []int{2})
		bags := func(mode int, opts ...Option) error {
			y, _, _, _ := EmbeddingBag(rows, ids, offsets, mode, opts...)
			return y.Err()
		}
		wantErr(t, "frequencies of maxima", bags(2, ScaleGradByFreq()), ErrArgument)
		wantErr(t, "sparse maxima", bags(2, Sparse()), ErrArgument)
		wantErr(t, "a padding beyond", bags(0, PaddingIdx(4)), ErrArgument)
		wantErr(t, "weights of maxima", bags(2, PerSampleWeights(Ones([]int{3}))), ErrArgument)
		wantErr(t, "weights of means", bags(1, PerSampleWeights(Ones([]int{3}))), ErrArgument)
		wantErr(t, "other weights", bags(0, PerSampleWeights(Ones([]int{2}))), ErrArgument)
		wantErr(t, "another mode", bags(3), ErrArgument)
		if err := errors.Join(bags(0, ScaleGradByFreq()), bags(1, ScaleGradByFreq()), bags(2), bags(2, ScaleGradByFreq(false))); err != nil {
			t.Error(err)
		}
	})
}

// TestSparseGradientsOfRows tests that with Sparse the gradients of rows are sparse, with the values that they have without.
func TestSparseGradientsOfRows(t *testing.T) {
	begin(t)
	scoped(t, func() {
		ids, offsets := FromSlice([]int64{0, 1, 3, 1}, []int{4}), FromSlice([]int64{0, 3}, []int{2})
		for name, f := range map[string]func(rows *Tensor, opts ...Option) *Tensor{
			"Embedding": func(rows *Tensor, opts ...Option) *Tensor { return Embedding(rows, ids, opts...) },
			"EmbeddingBag": func(rows *Tensor, opts ...Option) *Tensor {
				y, _, _, _ := EmbeddingBag(rows, ids, offsets, 0, opts...)
				return y
			},
		} {
			var grads []*Tensor
			for _, on := range []bool{false, true} {
				rows := Ones([]int{4, 2}).RequiresGrad_()
				if err := f(rows, PaddingIdx(-4), Sparse(on)).Square().Sum().Backward(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				equal(t, name, rows.Grad().IsSparse(), on)
				grads = append(grads, rows.Grad())
			}
			if same, err := grads[1].ToDense().Equal(grads[0]); err != nil || !same {
				t.Errorf("%s: got %v, want %v, %v", name, grads[1], grads[0], err)
			}
		}
	})
}

// TestNumbersThatADTypeDoesNotHave tests that such a number is an invalid argument, and that the error names the dtype.
func TestNumbersThatADTypeDoesNotHave(t *testing.T) {
	begin(t)
	scoped(t, func() {
		mask := Ones([]int{2}, Bool)
		half, bytes := Ones([]int{2}, Float16), Ones([]int{2}, Uint8)
		for dtype, ys := range map[string][]*Tensor{
			"tensor.Float16":   {half.MaskedFill(mask, -1e9), Full([]int{2}, 1e6, Float16), half.Pad([]int{1, 1}, Value(1e9))},
			"tensor.Uint8":     {bytes.Fill_(300), bytes.IndexFill(0, FromSlice([]int{0}, []int{1}), 300)},
			"tensor.Int8":      {Full([]int{2}, 300, Int8)},
			"tensor.Int16":     {Full([]int{2}, 1e6, Int16)},
			"tensor.Int32":     {Full([]int{2}, 1<<40, Int32)},
			"tensor.Int64":     {Full([]int{2}, 1e30, Int64)},
			"tensor.Uint16":    {Full([]int{2}, 1<<20, Uint16)},
			"tensor.BFloat16":  {Full([]int{2}, 1e39, BFloat16)},
			"tensor.Float32":   {Ones([]int{2}).MaskedFill(mask, complex(0, 1)), Full([]int{2}, 1e39, Float32)},
			"tensor.Float64":   {Full([]int{2}, complex(0, 1), Float64)},
			"tensor.Complex64": {Full([]int{2}, complex(1e39, 1), Complex64)},
		} {
			for i, y := range ys {
				err := y.Err()
				wantErr(t, dtype, err, ErrArgument)
				if err == nil || !strings.Contains(err.Error(), "value cannot be converted to "+dtype+" without overflow") {
					t.Errorf("%s, %d: got %v", dtype, i, err)
				}
			}
		}
	})
}

// TestWritesToRetainedResults tests that a write which would make libtorch read beyond the gradients, or not find its
// hook, is rejected, and that RetainGrad works otherwise.
func TestWritesToRetainedResults(t *testing.T) {
	begin(t)
	scoped(t, func() {
		results := func() (first, second *Tensor) {
			return FromSlice([]float32{1, 2, 3, 6}, []int{2, 2}).RequiresGrad_().VarMean(Dim(0))
		}
		for _, write := range []func(view *Tensor) *Tensor{
			func(view *Tensor) *Tensor { return view.Mul_(FromScalar(2)) },
			func(view *Tensor) *Tensor { return view.CumSum_(0) },
		} {
			_, mean := results()
			if err := mean.RetainGrad(); err != nil {
				t.Fatal(err)
			}
			if err := write(mean.View(2)).Err(); !errors.Is(err, ErrArgument) {
				t.Errorf("a write to a view of the second result: %v", err)
			}
			if err := write(mean).Err(); !errors.Is(err, ErrArgument) {
				t.Errorf("a write to the second result: %v", err)
			}
			wantValues(t, "the second result", mean, 2, 4)
			for _, x := range []*Tensor{mean.View(2), mean} {
				if err := withGrad(false, func() error { return write(x).Err() }); err != nil {
					t.Errorf("without gradients: %v", err)
				}
			}
		}
		for i := range 2 {
			variance, mean := results()
			x := []*Tensor{variance, mean}[i]
			if err := x.RetainGrad(); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				for _, written := range []*Tensor{x.View(2), x, mean} {
					if err := written.Mul_(FromScalar(2)).Err(); err != nil {
						t.Errorf("a write to the first result, to a view of it, or to the second: %v", err)
					}
				}
			}
			if err := variance.Add(mean).Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			if got, err := Data[float32](x.Grad()); err != nil || got[0] != 1 || got[1] != 1 {
				t.Errorf("the gradient of result %d: %v, %v", i, got, err)
			}
		}

		// None of these makes a node.
		_, mean := results()
		if err := mean.RetainGrad(); err != nil {
			t.Fatal(err)
		}
		if _, err := Call("aten::requires_grad_", mean, true); err != nil {
			t.Error(err)
		}
		if _, err := CallUnchecked("aten::set_data", mean, Ones([]int{2})); err != nil {
			t.Error(err)
		}
		if err := mean.Detach_().Err(); err != nil {
			t.Error(err)
		}
		if _, err := Call("aten::detach_", mean); err != nil {
			t.Error(err)
		}
	})
}

// TestWritesToDetachedResults tests that a tensor which retained its gradient may be written to after Detach_, and may
// retain the gradient of its new history.
func TestWritesToDetachedResults(t *testing.T) {
	begin(t)
	scoped(t, func() {
		w := FromSlice([]float32{3, 5}, nil).RequiresGrad_()
		for what, detach := range map[string]func(y *Tensor) error{
			"Detach_": func(y *Tensor) error { return y.Detach_().Err() },
			"Call":    func(y *Tensor) error { _, err := Call("aten::detach_", y); return err },
		} {
			for _, whole := range []bool{true, false} {
				y := w.Mul(2)
				if err := errors.Join(y.RetainGrad(), detach(y), y.Mul_(3).Err()); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				if y.RequiresGrad() {
					t.Errorf("%s: the tensor has a history", what)
				}
				written := y
				if !whole {
					written = y.View(2)
				}
				if err := errors.Join(written.Mul_(w).Err(), y.RetainGrad(), y.Mul(7).Sum().Backward()); err != nil {
					t.Fatalf("%s, the whole %t: %v", what, whole, err)
				}
				wantValues(t, what+": the tensor", y.Detach(), 54, 150)
				wantValues(t, what+": its gradient", y.Grad(), 7, 7)
				wantValues(t, what+": the gradient of w", w.Grad(), 7*18, 7*30)
				if err := ZeroGrads([]*Tensor{w}, true); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestFunctionalRefuses tests that operators reject what the functions of torch.nn.functional do, whose operators accept
// it, and no more.
func TestFunctionalRefuses(t *testing.T) {
	begin(t)
	scoped(t, func() {
		one, two := Ones([]int{1, 3, 1}), Ones([]int{2, 3, 1})
		row := Ones([]int{1, 4})
		wide := Ones([]int{3, 2})
		for says, y := range map[string]*Tensor{
			"BatchNorm: each channel needs more than 1 value to be normalized by its batch, got shape (1, 3, 1)": one.BatchNorm(nil, nil, Training(true)),
			"BatchNorm: each channel needs more than 1 value to be normalized by its batch, got shape (1, 3)":    one.SqueezeDim(2).BatchNorm(nil, nil, Training(true)),
			"BatchNorm: Eps must be positive in training, got 0":                                                 two.BatchNorm(nil, nil, Training(true), Eps(0)),
			"BatchNorm: Eps must not be negative, got -1":                                                        two.BatchNorm(Zeros([]int{3}), Ones([]int{3}), Eps(-1)),
			"InstanceNorm: each channel needs more than 1 value to be normalized by itself, got shape (2, 3, 1)": two.InstanceNorm(),
			"InstanceNorm: each channel needs more than 1 value to be normalized by itself, got shape (2, 3)":    two.SqueezeDim(2).InstanceNorm(),
			"GroupNorm: each group needs more than 1 value, got shape (1, 3, 1) and 3 groups":                    one.GroupNorm(3),
			"Hardtanh: MinVal must not be greater than MaxVal, got 2 and 1":                                      two.Hardtanh(MinVal(2)),
			"Hardtanh: MinVal must not be greater than MaxVal, got 0.5 and -0.5":                                 two.Hardtanh(MinVal(0.5), MaxVal(-0.5)),
			"Hardtanh_: MinVal must not be greater than MaxVal, got -1 and -2":                                   two.Clone().Hardtanh_(MaxVal(-2)),
			"MultiMarginLoss: P must be 1 or 2, got 1.5":                                                         row.MultiMarginLoss(FromSlice([]int{0}, nil), P(1.5)),
			"MultiMarginLoss: P must be 1 or 2, got 2.9":                                                         row.MultiMarginLoss(FromSlice([]int{0}, nil), P(2.9)),
			"TripletMarginLoss: Margin must be positive, got 0":                                                  row.TripletMarginLoss(row, row, Margin(0)),
			"TripletMarginLoss: Margin must be positive, got -1.5":                                               row.TripletMarginLoss(row, row, Margin(-1.5)),
			"TripletMarginLoss: Margin must be positive, got NaN":                                                row.TripletMarginLoss(row, row, Margin(math.NaN())),
			"Embedding: PaddingIdx must be in [-3, 3) for a weight of 3 rows, got 3":                             Embedding(wide, FromSlice([]int{0}, nil), PaddingIdx(3)),
			"Embedding: PaddingIdx must be in [-3, 3) for a weight of 3 rows, got -4":                            Embedding(wide, FromSlice([]int{0}, nil), PaddingIdx(-4)),
			"Embedding: PaddingIdx must be in [-3, 3) for a weight of 3 rows, got -9223372036854775808":          Embedding(wide, FromSlice([]int{0}, nil), PaddingIdx(math.MinInt)),
			"Hardtanh: MinVal must not be greater than MaxVal, got 1 and 0":                                      two.Hardtanh(MinVal(true), MaxVal(false)),
		} {
			if err := y.Err(); !errors.Is(err, ErrArgument) || !strings.Contains(err.Error(), says) {
				t.Errorf("got %v, want %s", err, says)
			}
		}
		for name, y := range map[string]*Tensor{
			"BatchNorm of two values":         two.BatchNorm(nil, nil, Training(true)),
			"BatchNorm in evaluation":         one.BatchNorm(Zeros([]int{3}), Ones([]int{3})),
			"BatchNorm with Eps 0":            one.BatchNorm(Zeros([]int{3}), Ones([]int{3}), Eps(0)),
			"InstanceNorm by statistics":      two.InstanceNorm(UseInputStats(false), RunningMean(Zeros([]int{3})), RunningVar(Ones([]int{3}))),
			"GroupNorm of three values":       one.GroupNorm(1),
			"MultiMarginLoss with P 2.0":      row.MultiMarginLoss(FromSlice([]int{0}, nil), P(2.0)),
			"GroupNorm of two samples":        two.GroupNorm(3),
			"Hardtanh of one number":          two.Hardtanh(MinVal(1)),
			"Hardtanh of a nan":               two.Hardtanh(MinVal(math.NaN())),
			"TripletMarginLoss":               row.TripletMarginLoss(row, row, Margin(1e-9)),
			"Embedding with its last row":     Embedding(wide, FromSlice([]int{0}, nil), PaddingIdx(2)),
			"Embedding with its first row":    Embedding(wide, FromSlice([]int{0}, nil), PaddingIdx(-3)),
			"Embedding without a padding row": Embedding(wide, FromSlice([]int{0}, nil)),
		} {
			if err := y.Err(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestEmbeddingPaddingIdx tests which row of an embedding's weight gets no gradient.
func TestEmbeddingPaddingIdx(t *testing.T) {
	begin(t)
	scoped(t, func() {
		for idx, want := range map[int][]float32{0: {0, 1, 2}, 2: {1, 1, 0}, -1: {1, 1, 0}, -2: {1, 0, 2}, -3: {0, 1, 2}} {
			weight := Ones([]int{3, 1}).RequiresGrad_()
			if err := Embedding(weight, FromSlice([]int{0, 1, 2, 2}, nil), PaddingIdx(idx)).Sum().Backward(); err != nil {
				t.Fatal(err)
			}
			if got, err := Data[float32](weight.Grad()); err != nil || !slices.Equal(got, want) {
				t.Errorf("PaddingIdx(%d): the gradients %v (%v), want %v", idx, got, err, want)
			}
		}
	})
}

// TestNumbersThatDoNotFit tests that Where rejects a number that the dtype cannot represent, and that powers of integers
// reject negative numbers, as PyTorch does.
func TestNumbersThatDoNotFit(t *testing.T) {
	begin(t)
	scoped(t, func() {
		on := FromSlice([]bool{true, false}, nil)
		bytes, ints := Ones([]int{2}, Uint8), Full([]int{2}, 2)
		for name, y := range map[string]*Tensor{
			"Where(c, x, 300)":    Where(on, bytes, 300),
			"Where(c, 300, x)":    Where(on, 300, bytes),
			"Where(c, x, 2^31)":   Where(on, bytes.To(Int32), 1<<31),
			"PowTensor(-1)":       ints.PowTensor(-1),
			"PowTensor_(-1)":      ints.Clone().PowTensor_(-1),
			"Where(c, 1, a text)": Where(on, 1, "1"),
		} {
			if err := y.Err(); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		for _, c := range []struct {
			name  string
			y     *Tensor
			dtype DType
			want  []float64
		}{
			{"Where(c, x, 255)", Where(on, bytes, 255), Uint8, []float64{1, 255}},
			{"Where(c, x, -1)", Where(on, bytes, -1), Uint8, []float64{1, 255}},
			{"Where(c, x, 1.5)", Where(on, bytes, 1.5), Float32, []float64{1, 1.5}},
			{"Where(c, 1.5, x)", Where(on, 1.5, bytes), Float32, []float64{1.5, 1}},
			{"Where(c, 1, 2)", Where(on, 1, 2), Int64, []float64{1, 2}},
			{"Where(c, 1, 2.5)", Where(on, 1, 2.5), Float32, []float64{1, 2.5}},
			{"Where(c, x, y)", Where(on, bytes, ints), Int64, []float64{1, 2}},
			{"PowTensor(3)", ints.PowTensor(3), Int64, []float64{8, 8}},
			{"PowTensor(-1.0)", ints.PowTensor(-1.0), Float32, []float64{0.5, 0.5}},
			{"PowTensor(y)", ints.PowTensor(ints), Int64, []float64{4, 4}},
			{"PowTensor_(3)", ints.Clone().PowTensor_(3), Int64, []float64{8, 8}},
			{"FloatPower(-1)", ints.FloatPower(-1), Float64, []float64{0.5, 0.5}},
			{"FloatPower(y)", ints.FloatPower(ints), Float64, []float64{4, 4}},
		} {
			got, err := Data[float64](c.y.To(Float64))
			if err != nil || c.y.DType() != c.dtype || !slices.Equal(got, c.want) {
				t.Errorf("%s: %v %v (%v), want %v %v", c.name, c.y.DType(), got, err, c.dtype, c.want)
			}
		}
	})
}

// TestIndicesOutOfBounds tests that operators of indices agree on the kind of the error.
func TestIndicesOutOfBounds(t *testing.T) {
	begin(t)
	scoped(t, func() {
		x, row := Arange(0.0, 6.0, Float32).View(2, 3), Ones([]int{1, 3})
		for _, i := range []int{7, -7} {
			wide, one := Full([]int{1, 3}, i, Int64), FromSlice([]int{i}, nil)
			for name, y := range map[string]*Tensor{
				"Gather": x.Gather(0, wide), "Scatter": x.Scatter(0, wide, row), "ScatterAdd": x.ScatterAdd(0, wide, row),
				"ScatterReduce": x.ScatterReduce(0, wide, row, "amax"), "Scatter_": x.Clone().Scatter_(0, wide, row),
				"IndexAdd": x.IndexAdd(0, one, row), "IndexSelect": x.IndexSelect(0, one), "IndexCopy": x.IndexCopy(0, one, row), "Take": x.Take(one),
			} {
				if err := y.Err(); !errors.Is(err, ErrIndex) {
					t.Errorf("%s of index %d: %v, want an ErrIndex", name, i, err)
				}
			}
		}
		if err := x.Gather(0, Zeros([]int{1}, Int64)).Err(); !errors.Is(err, ErrArgument) {
			t.Errorf("Gather of the wrong number of dimensions: %v", err)
		}
	})
}

package tensor

import (
	"math"
	"slices"
	"strings"
	"testing"
)

// What libtorch does not survive is refused: each rule of cshim/src/guards.cpp, by what it says. Without the rule the
// process ends, hangs, or says something else.
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
			{"aten::div.Scalar_mode", []any{least, -1, "floor"}, "the least integer"},
			{"aten::arange.start_step", []any{0, math.MinInt64, -1}, "so many elements"},
			{"aten::arange.start_step", []any{0x1p62, -0x1p62, -1.0, Int64}, "so many elements"},
			{"aten::arange.start_step", []any{0, 3, 0.5, Int64}, "a fraction of 1"},
			{"aten::ctc_loss.IntList", []any{ones(3, 1, 2), ones(1, 1), []int{3}, []int{1}}, "targets must be int64"},
			{"aten::ctc_loss.IntList", []any{ones(), ints(1), []int{3}, []int{1}}, "2 or 3 dimensions"},
			{"aten::ctc_loss.IntList", []any{ones(3, 1, 2), ints(1<<40).View(1, 1), []int{3}, []int{1}}, "targets must be in"},
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
			{bag, []any{weight, ints(0, 1, 2), ints(0, 2, 1)}, "must not fall"},
			{"aten::linalg_matrix_power", []any{ones(2, 2), math.MinInt64}, "exponent"},
			{"aten::binomial", []any{FromScalar(math.Inf(1)), FromScalar(0.5)}, "counts must be finite"},
			{"aten::binomial", []any{FromScalar(2.0), FromScalar(2.0)}, "probabilities"},
			{"aten::combinations", []any{ones(3), 65}, "64 is the most"},
			{"aten::lstm.input", run(x, []*Tensor{h}, gru()), "hx must have 2"},
			{"aten::gru.input", run(ones(5, 3), h, gru()), "the input must have 3"},
			{"aten::gru.input", run(x, ones(1, 7, 2), gru()), "a hidden state is"},
			{"aten::gru.input", run(x, h, gru()[:3]), "do not make"},
			{"aten::gru.input", run(x, h, bad), "weight 1 is"},
			{"aten::gru.input", run(x, h, whole), "floating-point"},
			{"aten::pdist", []any{grad(0, 3)}, "no rows"},
			{sdpa, []any{ones(2, 3, 4), ones(0, 3, 4), ones(2, 3, 4), nil, 0.0, false, nil, true}, "key has no heads"},
			{sdpa, []any{ones(2, 3, 4), ones(2, 3, 4), ones(0, 3, 4), nil, 0.0, false, nil, true}, "value has no heads"},
			{"aten::vander", []any{grad(3)}, "cannot differentiate"},
			{"aten::max_pool1d", []any{ones(1, 1, 8), []int{1 << 40}}, "too large for a window"},
			{"aten::conv1d", []any{ones(1, 1, 8), ones(1, 1, 2), nil, []int{1 << 40}}, "too large for a window"},
			{"aten::adaptive_avg_pool1d", []any{ones(1, 0, 8), []int{1 << 30}}, "too large"},
			{"aten::to.dtype", []any{ones(2), 99}, "there is no 99"},
			{"aten::to.dtype", []any{ones(2), -2}, "there is no -2"},
		} {
			_, err := Call(c.name, c.args...)
			wantErr(t, c.name+": "+c.says, err, ErrArgument)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want %q", c.name, err, c.says)
			}
		}
		got, err := Data[int64](Arange(3, 0, Step(-1)))
		if err != nil || !slices.Equal(got, []int64{3, 2, 1}) {
			t.Errorf("Arange(3, 0, Step(-1)): %v, %v", got, err)
		}
	})
}

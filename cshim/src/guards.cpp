// Checks that libtorch lacks: inputs with which an operator of libtorch 2.11 to 2.15 ends the process (a signal)
// or never returns. Each names the consequence of its absence. The checks of layouts apply to all operators;
// their cost is a test of the tensors' dispatch keys. Those of one operator cost nothing elsewhere. Checks read
// elements of CPU tensors only: a read from a GPU would wait for it.
#include "guards.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "passes.h"
#include "shim.h"

namespace ls {
namespace {

using Args = c10::ArrayRef<c10::IValue>;

[[noreturn]] void refuse(const std::string &text) { throw ArgumentError(text); }

bool readable(const at::Tensor &t) {
  return t.defined() && t.is_cpu() && t.layout() == c10::kStrided && t.numel() != 0 && !t._is_zerotensor();
}

bool is_index(const at::Tensor &t) { return t.scalar_type() == c10::kLong || t.scalar_type() == c10::kInt; }

void need_index(const at::Tensor &t, const char *name) {
  if (!is_index(t)) refuse(std::string(name) + " must be int64 or int32, not " + c10::toString(t.scalar_type()));
}

bool recording(const at::Tensor &t) { return c10::GradMode::is_enabled() && t.requires_grad(); }

bool some(const at::Tensor &t) { return t.any().item<bool>(); }

// The elements of t must be in [low, high).
void need_range(const at::Tensor &t, const char *name, int64_t low, int64_t high) {
  if (!readable(t)) return;
  auto least = t.min().item<int64_t>(), most = t.max().item<int64_t>();
  if (least < low || most >= high)
    refuse(std::string(name) + " must be in [" + std::to_string(low) + ", " + std::to_string(high) + "), got " +
           std::to_string(least < low ? least : most));
}

// LAPACK's geev: SIGSEGV in MKL.
void eig(Args a) {
  auto x = a[0].toTensor().detach();
  if (readable(x) && !x.isfinite().all().item<bool>())
    refuse("the matrix has elements that are infinite or not numbers");
}

bool has_least(const at::Tensor &t) {
  if (!readable(t)) return false;
  if (t.scalar_type() == c10::kLong) return some(t.eq(std::numeric_limits<int64_t>::min()));
  if (t.scalar_type() == c10::kInt) return some(t.eq(std::numeric_limits<int32_t>::min()));
  return false;
}

// The least integer divided by -1 traps: SIGFPE. Kernels compute in the common dtype, in which a number of a
// larger one may be another: in int32 2^31 is the least integer, and 2^32-1 is -1.
void gcd(Args a) {
  const auto &x = a[0].toTensor(), &y = a[1].toTensor();
  if (!readable(x) || !readable(y)) return;
  auto common = at::result_type(x, y);
  if (has_least(x.to(common)) || has_least(y.to(common))) refuse("the least integer has no absolute value");
}
void div_trunc(Args a) {
  if (!a[2].isString() || a[2].toStringRef() != "trunc") return;
  const auto &x = a[0].toTensor();
  if (!c10::isIntegralType(x.scalar_type(), false) || !readable(x)) return;
  const auto y = a[1].isTensor() ? a[1].toTensor() : wrapped_number(a[1].toScalar());
  if (!c10::isIntegralType(y.scalar_type(), true) || !readable(y)) return;
  auto common = at::result_type(x, y);
  if (has_least(x.to(common)) && some(y.to(common).eq(-1))) refuse("the least integer divided by -1 overflows");
}

// The number of int64 elements is a division by the step as an integer, which is 0 for a fraction, or -1 with the
// least integer as dividend. SIGFPE.
__int128 whole(const c10::IValue &v) {
  if (v.isInt()) return v.toInt();
  double real = v.isComplexDouble() ? v.toComplexDouble().real() : v.isDouble() ? v.toDouble() : 0;
  return std::abs(real) < 9.3e18 ? static_cast<__int128>(real) : 0;
}
void check_count(Args a) {
  if (whole(a[2]) == -1 && whole(a[0]) - whole(a[1]) > std::numeric_limits<int64_t>::max())
    refuse("the number of elements does not fit 64 bits");
}
void arange(Args a) {
  bool long_out = (a[3].isInt() && a[3].toInt() == static_cast<int64_t>(c10::kLong)) ||
                  (a[3].isTensor() && a[3].toTensor().defined() && a[3].toTensor().scalar_type() == c10::kLong);
  if (long_out && !a[2].isInt() && !a[2].isBool() && whole(a[2]) == 0)
    refuse("a step of int64 must not be a fraction of 1");
  check_count(a);
}

// The same for each integer result.
void whole_range(Args a, bool integers) {
  if (integers) check_count(a);
  double step = a[2].isComplexDouble() ? a[2].toComplexDouble().real() : a[2].toScalar().toDouble();
  if (integers && step != 0 && std::abs(step) < 1) refuse("a step of integers must not be a fraction of 1");
}
void range_step(Args a) {
  whole_range(a, a[3].isInt() && c10::isIntegralType(static_cast<c10::ScalarType>(a[3].toInt()), true));
}
void range_out(Args a) { whole_range(a, c10::isIntegralType(a.back().toTensor().scalar_type(), true)); }

// The values are written with self's dtype and the indices as int64, whatever the outputs' dtypes: SIGSEGV.
void cumulative_out(Args a) {
  const auto &values = a[2].toTensor(), &indices = a[3].toTensor();
  if (values.scalar_type() != a[0].toTensor().scalar_type()) refuse("values must have the dtype of self");
  if (indices.scalar_type() != c10::kLong) refuse("indices must be int64");
}

// Labels are unchecked indices of the probabilities: SIGSEGV. In a row padding follows the labels, which is not
// read. libtorch refuses a length beyond the row.
void ctc_loss(Args a) {
  const auto &probs = a[0].toTensor(), &targets = a[1].toTensor();
  need_index(targets, "targets");
  if (probs.dim() == 0) refuse("log_probs must have 2 or 3 dimensions");
  at::Tensor labels = targets;
  if (targets.dim() == 2 && readable(targets)) {
    auto lengths = a[3].isTensor() ? a[3].toTensor() : at::tensor(a[3].toIntVector());
    if (readable(lengths) && lengths.numel() == targets.size(0))
      labels = targets.masked_select(at::arange(targets.size(1)).lt(lengths.reshape({-1, 1})));
  }
  need_range(labels, "targets", 0, probs.size(-1));
}

// Indices and offsets are read with another type, or without a check: SIGSEGV.
void embedding_bag(Args a) {
  const auto &weight = a[0].toTensor(), &indices = a[1].toTensor(), &offsets = a[2].toTensor();
  need_index(indices, "indices");
  need_index(offsets, "offsets");
  if (a[4].toInt() < 0 || a[4].toInt() > 2) refuse("there is no mode " + std::to_string(a[4].toInt()));
  if (weight.dim() != 2) refuse("weight must have 2 dimensions, not " + std::to_string(weight.dim()));
  if (indices.dim() != 1) refuse("indices must have 1 dimension, not " + std::to_string(indices.dim()));
  if (offsets.dim() != 1) refuse("offsets must have 1 dimension, not " + std::to_string(offsets.dim()));
  if (indices.size(0) != 0 && offsets.size(0) == 0) refuse("there are indices, but no offsets");
  if (a.size() > 7 && a[7].toBool() && indices.size(0) != 0 && readable(indices) && readable(offsets) &&
      (offsets.size(0) < 2 || offsets[-1].item<int64_t>() != indices.size(0)))
    refuse("the last offset must be the number of indices");
  if (readable(offsets) && offsets[0].item<int64_t>() != 0) refuse("the first offset must be 0");
  need_range(indices, "indices", 0, weight.size(0));
  need_range(offsets, "offsets", 0, indices.size(0) + 1);
  if (readable(offsets) && offsets.size(0) > 1 && some(offsets.slice(0, 1).lt(offsets.slice(0, 0, -1))))
    refuse("offsets must not decrease");
}

// It runs hooks and functions in the caller's language, which ls_op_call must not do: Go would panic.
void backward(Args) { refuse("a backward pass can only be started by Backward or Grad"); }

// libtorch's hook writes the gradient without a lock, and may be added to a node that runs: SIGSEGV.
void retain(Args) { refuse("only RetainGrad makes a tensor keep its gradient"); }

// The magnitude of a bool is undefined: infinite recursion.
void matrix_power(Args a) {
  if (a[1].toInt() == std::numeric_limits<int64_t>::min()) refuse("the exponent is too small");
}

// It makes as many tensors, however few elements there are: for minutes.
void pieces(Args a) {
  if (a[1].toInt() > 1 << 24) refuse(std::to_string(a[1].toInt()) + " pieces are too many");
}

// It draws until it reaches the sum: forever if that is not finite.
void binomial(Args a) {
  auto count = a[0].toTensor().detach();
  if (readable(count) && !count.isfinite().all().item<bool>()) refuse("counts must be finite");
}

// It makes a grid of r dimensions first.
void combinations(Args a) {
  if (a[1].toInt() > 64) refuse("r is " + std::to_string(a[1].toInt()) + "; the maximum is 64");
}

// Shapes and dtypes of states and weights are not checked (Python does so in nn.LSTM): reads and writes beyond
// the ends of blocks.
//
// rest are the arguments behind the input's: hx, params, has_biases, num_layers, dropout, train, bidirectional.
void rnn(Args rest, int64_t features, int64_t batch, int64_t gates, bool lstm) {
  const auto params = rest[1].toTensorVector();
  const auto hx = lstm ? rest[0].toTensorVector() : std::vector<at::Tensor>{rest[0].toTensor()};
  bool biases = rest[2].toBool();
  int64_t layers = rest[3].toInt(), directions = rest[6].toBool() ? 2 : 1;
  // Before a product with it; each layer has at least two weights.
  if (layers < 1 || layers > static_cast<int64_t>(params.size()))
    refuse("there are no weights for " + std::to_string(layers) + " layers");
  if (lstm && hx.size() != 2) refuse("hx must have 2 tensors, not " + std::to_string(hx.size()));
  for (const auto &h : hx) {
    if (h.dim() != 3 || h.size(0) != layers * directions || h.size(1) != batch)
      refuse("a hidden state is " + c10::str(h.sizes()) + ", not [" + std::to_string(layers * directions) + ", " +
             std::to_string(batch) + ", ...]");
  }
  // With projections the hidden state is narrower than the cell state.
  int64_t out = hx.front().size(-1), hidden = hx.back().size(-1);
  bool projected = out != hidden;
  int64_t each = (biases ? 4 : 2) + (projected ? 1 : 0);
  auto n = static_cast<int64_t>(params.size());
  if (n % (each * directions) != 0 || n / (each * directions) != layers)
    refuse(std::to_string(n) + " weights do not make " + std::to_string(layers) + " layers of " +
           std::to_string(each * directions));
  auto need = [&](int64_t i, c10::IntArrayRef sizes) {
    const auto &w = params[static_cast<size_t>(i)];
    if (w.sizes() != sizes || w.scalar_type() != params[0].scalar_type())
      refuse("weight " + std::to_string(i) + " is " + c10::toString(w.scalar_type()) + c10::str(w.sizes()) +
             ", not " + c10::toString(params[0].scalar_type()) + c10::str(sizes));
  };
  if (auto type = params[0].scalar_type(); !c10::isFloatingType(type) && !c10::isComplexType(type))
    refuse("the weights must be floating-point or complex numbers");
  for (int64_t cell = 0; cell < layers * directions; cell++) {
    int64_t in = cell < directions ? features : out * directions, i = cell * each;
    need(i, {gates * hidden, in});
    need(i + 1, {gates * hidden, out});
    if (biases) {
      need(i + 2, {gates * hidden});
      need(i + 3, {gates * hidden});
    }
    if (projected) need(i + each - 1, {out, hidden});
  }
}
void padded_rnn(Args a, int64_t gates, bool lstm) {
  const auto &input = a[0].toTensor();
  if (input.dim() != 3) refuse("the input must have 3 dimensions, not " + std::to_string(input.dim()));
  rnn(a.slice(1), input.size(-1), input.size(a[8].toBool() ? 0 : 1), gates, lstm);
}
void packed_rnn(Args a, int64_t gates, bool lstm) {
  const auto &data = a[0].toTensor(), &sizes = a[1].toTensor();
  if (data.dim() != 2) refuse("the data must have 2 dimensions, not " + std::to_string(data.dim()));
  if (sizes.dim() != 1 || sizes.scalar_type() != c10::kLong || !readable(sizes))
    refuse("batch_sizes must be a vector of int64");
  need_range(sizes, "batch_sizes", 1, data.size(0) + 1);
  if (sizes.sum().item<int64_t>() != data.size(0) || some(sizes.slice(0, 1).gt(sizes.slice(0, 0, -1))))
    refuse("batch_sizes must not increase and must add up to the " + std::to_string(data.size(0)) +
           " rows of the data");
  rnn(a.slice(2), data.size(1), sizes[0].item<int64_t>(), gates, lstm);
}
void lstm(Args a) { padded_rnn(a, 4, true); }
void gru(Args a) { padded_rnn(a, 3, false); }
void simple_rnn(Args a) { padded_rnn(a, 1, false); }
void packed_lstm(Args a) { packed_rnn(a, 4, true); }
void packed_gru(Args a) { packed_rnn(a, 3, false); }
void packed_simple_rnn(Args a) { packed_rnn(a, 1, false); }

// Its derivative with no rows: SIGSEGV.
void pdist(Args a) {
  const auto &x = a[0].toTensor();
  if (x.dim() > 0 && x.size(0) == 0 && recording(x)) refuse("distances without rows cannot be differentiated");
}

// It saves a view of a tensor that it then writes to: the backward pass fails, and the graph owns itself and is
// never freed.
void vander(Args a) {
  if (recording(a[0].toTensor())) refuse("libtorch cannot differentiate it; use Detach() of the input");
}

// The sizes of outputs are computed from windows, strides and paddings without a check of overflow: SIGSEGV.
void windows(Args a) {
  auto check = [](int64_t v) {
    if (v > std::numeric_limits<int32_t>::max() || v < std::numeric_limits<int32_t>::min())
      refuse(std::to_string(v) + " is too large for a window");
  };
  for (const auto &v : a) {
    if (v.isInt()) check(v.toInt());
    if (v.isIntList()) {
      for (int64_t n : v.toIntVector()) check(n);
    }
  }
}

// With a memory format, a tensor that has the size already gets new strides and no more memory: reads and writes
// beyond its end if its elements share memory.
void resize(const at::Tensor &self, c10::IntArrayRef sizes, const c10::IValue &memory_format) {
  if (memory_format.isNone() || self.sizes() != sizes || self.layout() != c10::kStrided || !self.has_storage())
    return;
  auto bytes = static_cast<size_t>(self.storage_offset() + self.numel()) * self.itemsize();
  if (bytes > self.storage().nbytes()) refuse("the elements of self share memory; use Clone() of it");
}
void resize_to(Args a) { resize(a[0].toTensor(), a[1].toIntVector(), a[2]); }
void resize_as(Args a) { resize(a[0].toTensor(), a[1].toTensor().sizes(), a[2]); }

// Windows of elements that are dilation apart: one that begins in the padding may have none of the input's. The
// position of its maximum is beyond the input, and its derivative is written there.
void max_pool(Args a, size_t dims) {
  windows(a);
  const auto &input = a[0].toTensor();
  if (!recording(input) || static_cast<size_t>(input.dim()) < dims) return;
  const auto kernel = a[1].toIntVector(), stride = a[2].toIntVector(), padding = a[3].toIntVector(),
             dilation = a[4].toIntVector();
  for (const auto *list : {&kernel, &stride, &padding, &dilation})
    if (list->size() != 1 && list->size() != dims && (list != &stride || !list->empty()))
      return;  // libtorch says so
  auto of = [](const std::vector<int64_t> &list, size_t i) { return list.size() == 1 ? list[0] : list[i]; };
  for (size_t i = 0; i < dims; i++) {
    int64_t size = input.size(static_cast<int64_t>(i) - static_cast<int64_t>(dims)), apart = of(dilation, i);
    int64_t step = of(stride.empty() ? kernel : stride, i);
    if (apart < 1 || step < 1) return;
    for (int64_t start = -of(padding, i); start < 0; start += step) {
      int64_t first = (start % apart + apart) % apart;
      if (first >= size)
        refuse("a window has no element of the " + std::to_string(size) + " along dimension " + std::to_string(i));
    }
  }
}
void max_pool2d(Args a) { max_pool(a, 2); }
void max_pool3d(Args a) { max_pool(a, 3); }

// Each place of the window is visited, also beyond the input: for minutes.
void max_pool1d(Args a) {
  max_pool(a, 1);
  for (int64_t n : a[1].toIntVector()) {
    if (n > 1 << 28) refuse("a window of " + std::to_string(n) + " is too large");
  }
}

// Positions that are not finite become numbers of elements in the vectorized kernels, unless zeros pad the input:
// of float64, and of all dtypes in the backward pass. Reads and writes beyond the input. With a mode that does not
// exist the result is not written.
void grid_sampler(Args a) {
  for (int i : {2, 3}) {
    if (int64_t mode = a[i].toInt(); mode < 0 || mode > 2)
      refuse((i == 2 ? "the interpolation mode " : "the padding mode ") + std::to_string(mode) +
             " does not exist");
  }
  const auto &input = a[0].toTensor(), &grid = a[1].toTensor();
  if (a[3].toInt() == 0 || !readable(grid)) return;
  if (grid.scalar_type() != c10::kDouble && !recording(input) && !recording(grid)) return;
  // A reflected position must be finite in pixels, too.
  auto sizes = input.sizes();
  int64_t most = a[3].toInt() == 2 && input.dim() > 2 ? *std::max_element(sizes.begin() + 2, sizes.end()) : 0;
  if (!grid.detach().mul(static_cast<double>(most) + 1).isfinite().all().item<bool>())
    refuse("grid has elements that are infinite or not numbers" +
           std::string(most > 0 ? ", or that overflow in pixels" : ""));
}

// The bytes of so many elements overflow: SIGSEGV.
void from_file(Args a) {
  if (a[2].isInt() && (a[2].toInt() < 0 || a[2].toInt() > std::numeric_limits<int64_t>::max() / 16))
    refuse("there is no size " + std::to_string(a[2].toInt()));
}

// The gates are read as rows of matrices, whatever the dimensions (2.11).
void cell(Args a) {
  auto check = [](const at::Tensor &t) {
    if (t.dim() > 2)
      refuse("the input and the states must have 1 or 2 dimensions, not " + std::to_string(t.dim()));
  };
  check(a[0].toTensor());
  if (a[1].isTensor()) return check(a[1].toTensor());
  for (const at::Tensor &t : a[1].toTensorVector()) check(t);
}

// The number of results is a sum that overflows: writes beyond them (2.11).
template <size_t argument>
void repeats(Args a) {
  const auto &counts = a[argument].toTensor();
  if (is_index(counts)) need_range(counts, "repeats", 0, int64_t{1} << 40);
}

// The end of a view is computed from its size, strides and offset without a check of overflow: reads and writes
// far beyond the memory. size, stride and storage_offset are the arguments' numbers.
void view_end(Args a, size_t size, size_t stride, size_t storage_offset) {
  __int128 end = a[storage_offset].isInt() ? a[storage_offset].toInt() : 0;
  const auto sizes = a[size].toIntVector();
  const auto strides =
      a.size() > stride && a[stride].isIntList() ? a[stride].toIntVector() : std::vector<int64_t>{};
  for (size_t i = 0; i < std::min(sizes.size(), strides.size()); i++)
    end += static_cast<__int128>(sizes[i] - 1) * strides[i];
  if (end > std::numeric_limits<int64_t>::max() / 32) refuse("the view ends far beyond the memory");
}
void as_strided(Args a) { view_end(a, 1, 2, 3); }
void as_strided_scatter(Args a) { view_end(a, 2, 3, 4); }
void set_storage(Args a) { view_end(a, 3, 4, 2); }

// It makes self share the memory of source: zeros without memory have none. SIGSEGV.
void set_source(Args a) {
  if (a.size() > 2) set_storage(a);
  if (a[1].toTensor()._is_zerotensor()) refuse("source has no memory; use Clone() of it");
}

// Each element of the output is visited, even if another size is 0: it never returns. The quantized kernel reads
// as many sizes as there are dimensions, however many were given: heap corruption.
template <size_t dims>
void adaptive(Args a) {
  const auto sizes = a[1].toIntVector();
  if (sizes.size() != dims)
    refuse("output_size must have " + std::to_string(dims) + " numbers, not " + std::to_string(sizes.size()));
  for (int64_t n : sizes) {
    if (n > 1 << 24) refuse("an output size of " + std::to_string(n) + " is too large");
  }
}

// The weight is read as if its windows had the size kernel_size: beyond its end.
void window_of_weight(Args a) {
  auto weight = a[1].toTensor().sizes();
  auto window = a[2].toIntVector();
  if (weight.size() == window.size() + 2 && weight.slice(2) != window)
    refuse("the weight's windows are " + c10::str(weight.slice(2)) + ", not " +
           c10::str(c10::IntArrayRef(window)));
}

// It also reads the input as if it had the weight's channels.
void thnn_conv2d(Args a) {
  windows(a);
  const auto &input = a[0].toTensor(), &weight = a[1].toTensor();
  if (weight.dim() == 4 && input.dim() >= 3 && input.size(-3) != weight.size(1))
    refuse("the input has " + std::to_string(input.size(-3)) + " channels, not " + std::to_string(weight.size(1)));
  window_of_weight(a);
}

// The lists' elements are read without a check of their number: SIGSEGV (2.11).
void slow_conv3d(Args a) {
  for (size_t i : {2, 4, 5})
    if (a[i].toIntVector().size() != 3) refuse("kernel_size, stride and padding must have 3 numbers each");
  window_of_weight(a);
}
template <size_t numbers>
void padding(Args a) {
  if (a[1].toIntVector().size() != numbers) refuse("padding must have " + std::to_string(numbers) + " numbers");
  windows(a);
}
// Elements are copied from the other side of the result. Where one side is cropped, more of them than the crop
// leaves are copied before they are written: memory as it was.
void pad(Args a) {
  windows(a);
  if (!a[2].isString() || a[2].toStringRef() != "circular") return;
  const auto amounts = a[1].toIntVector();
  const auto sizes = a[0].toTensor().sizes();
  if (amounts.size() % 2 != 0 || amounts.size() / 2 > sizes.size()) return;  // libtorch says so
  for (size_t i = 0; i < amounts.size() / 2; i++) {
    const int64_t left = amounts[2 * i], right = amounts[2 * i + 1];
    const int64_t kept = sizes[sizes.size() - 1 - i] + std::min(left, int64_t{0}) + std::min(right, int64_t{0});
    const int64_t most = std::max(left, right);
    if (std::min(left, right) < 0 && most > 0 && most > kept)
      refuse("circular padding adds " + std::to_string(most) + " to dimension " +
             std::to_string(sizes.size() - 1 - i) + ", of which the other side leaves " + std::to_string(kept));
  }
}

// Without rows the sum and the mean are not written: memory as it was. reduction is the argument's number.
template <size_t reduction>
void margin_loss(Args a) {
  const auto &input = a[0].toTensor();
  if (input.dim() == 2 && input.size(0) == 0 && a[reduction].toInt() != at::Reduction::None)
    refuse("an empty batch has no sum and no mean of losses; without a reduction the result is empty");
}
// The position in the input is computed in integers, which a tiny scale overflows: SIGSEGV.
void upsample(Args a) {
  auto check = [](double scale) {
    constexpr double kLeast = 1e-6;
    if (scale > 0 && scale < kLeast) refuse("a scale of " + c10::str(scale) + " is too small");
  };
  for (const auto &v : a) {
    if (v.isDouble()) check(v.toDouble());
    if (v.isDoubleList()) {
      for (double scale : v.toDoubleVector()) check(scale);
    }
  }
}
// They use the first tensor: SIGSEGV (align_tensors of 2.11; cat.out with a quantized out).
void not_empty(Args a) {
  if (a[0].toTensorVector().empty()) refuse("there are no tensors");
}

// from + 1 overflows while its bits are counted: it never returns.
void random_from(Args a) {
  if (a[1].toInt() == std::numeric_limits<int64_t>::max()) refuse("from is too large");
}

// One element is read for each channel, however many there are: SIGSEGV.
void per_channel(Args a, size_t first, size_t end) {
  const auto &input = a[0].toTensor();
  if (input.dim() < 2) refuse("the input must have 2 dimensions or more, not " + std::to_string(input.dim()));
  for (size_t i = first; i < end; i++) {
    if (!a[i].isTensor() || !a[i].toTensor().defined()) continue;
    auto sizes = a[i].toTensor().sizes();
    if (sizes.size() != 1 || sizes[0] != input.size(1))
      refuse("weight, bias, running_mean and running_var must be [" + std::to_string(input.size(1)) + "], not " +
             c10::str(sizes));
  }
}
void batch_norm(Args a) {
  per_channel(a, 1, 5);
  auto given = [&](size_t i) { return a[i].isTensor() && a[i].toTensor().defined(); };
  if (!a[5].toBool() && (!given(3) || !given(4))) refuse("running_mean and running_var are needed in evaluation");
}
void batch_norm_statistics(Args a) { per_channel(a, 1, 3); }

// In training it writes as many elements as self has, with its dtype, without a resize: heap corruption.
void rrelu_out(Args a) {
  const auto &self = a[0].toTensor(), &out = a.back().toTensor();
  if (out.sizes() != self.sizes() || out.scalar_type() != self.scalar_type())
    refuse("out must have the shape and the dtype of self");
}

// It divides by groups: SIGFPE.
void channel_shuffle(Args a) {
  if (a[1].toInt() < 1) refuse("groups must be at least 1");
}

// A quantized tensor's quantizer has its dtype, and would be kept with another one: SIGSEGV when it is copied.
void view_dtype(Args a) {
  if (a[0].toTensor().is_quantized())
    refuse("a quantized tensor has no view of another dtype; use int_repr of it");
}

// Grouped queries: the number of heads of the query is divided by that of key and value: SIGFPE.
void grouped_attention(Args a) {
  if (!a[7].toBool()) return;
  for (size_t i : {1, 2}) {
    const auto &t = a[i].toTensor();
    if (t.dim() >= 3 && t.size(-3) == 0)
      refuse(std::string(i == 1 ? "key" : "value") + " has no heads: its dimension -3 is 0");
  }
}

// It makes an empty tensor of self's layout and writes to it as if it were strided: SIGSEGV.
void copy(Args a) {
  auto layout = a[0].toTensor().layout();
  if (layout != c10::kStrided) refuse("self must be strided, not " + c10::str(layout));
}

// Offsets are never checked, lengths not with unsafe, and leading sizes never: reads beyond the data.
void segment_reduce(Args a) {
  const auto &data = a[0].toTensor();
  for (size_t i : {2, 4}) {
    if (!a[i].isTensor() || !a[i].toTensor().defined()) continue;
    const auto &segments = a[i].toTensor();
    const char *name = i == 2 ? "lengths" : "offsets";
    int64_t axis = segments.dim() - 1;
    need_index(segments, name);
    if (axis < 0 || axis >= data.dim() || segments.sizes().slice(0, axis) != data.sizes().slice(0, axis))
      refuse(std::string(name) + " of " + c10::str(segments.sizes()) + " do not fit data of " +
             c10::str(data.sizes()));
    int64_t size = data.size(axis);
    need_range(segments, name, 0, size + 1);
    if (!readable(segments)) continue;
    if (i == 2 && some(segments.sum(-1).ne(size))) refuse("lengths must add up to " + std::to_string(size));
    if (i == 4 && some(segments.slice(-1, 1).lt(segments.slice(-1, 0, -1)))) refuse("offsets must not decrease");
  }
}

// LAPACK's sytrs uses pivots as numbers of rows, and a negative pair as a block: reads and writes beyond the rows
// if they are out of range.
void ldl_solve(Args a) {
  const auto &pivots = a[1].toTensor();
  const auto &factors = a[0].toTensor(), &right = a[2].toTensor();
  // As many matrices are read as B has.
  bool more = right.dim() > factors.dim();
  for (int64_t i = 3; i <= right.dim() && !more; i++)
    more = right.size(-i) != 1 && right.size(-i) != factors.size(-i);
  if (more) refuse("B of " + c10::str(right.sizes()) + " has more batches than LD, " + c10::str(factors.sizes()));
  if (!readable(pivots) || pivots.dim() == 0) return;
  auto p = pivots.to(c10::kLong).contiguous();
  const auto *data = p.const_data_ptr<int64_t>();
  int64_t n = p.size(-1), negative = 0;
  for (int64_t i = 0; i < p.numel(); i++) {
    negative = data[i] < 0 ? negative + 1 : 0;
    bool ends = (i + 1) % n == 0 || data[i + 1] >= 0;
    if (data[i] == 0 || data[i] > n || data[i] < -n || (ends && negative % 2 != 0))
      refuse("the pivots are not those of linalg_ldl_factor");
    if (ends) negative = 0;
  }
}

// Its derivative uses values that were not unpacked: heap corruption. It reads pivots for each matrix, however
// many there are.
void lu_unpack(Args a) {
  auto data = a[0].toTensor().sizes(), pivots = a[1].toTensor().sizes();
  if (a[3].toBool() && data.size() >= 2) {
    auto want = data.slice(0, data.size() - 2).vec();
    want.push_back(std::min(data[data.size() - 2], data[data.size() - 1]));
    if (pivots != want) refuse("LU_pivots is " + c10::str(pivots) + ", not " + c10::str(c10::IntArrayRef(want)));
  }
  if (!a[2].toBool() && recording(a[0].toTensor()))
    refuse("LU_data has no derivative without unpack_data; use Detach() of it");
}

// It searches over bins: beyond the end of the input, or forever if the step is not finite.
void choose_qparams(Args a) {
  int64_t numel = a[1].toInt(), bins = a[2].toInt(), bits = a[4].toInt();
  double ratio = a[3].toDouble();
  if (numel < 0 || numel > a[0].toTensor().numel()) refuse("numel is more than the elements of the input");
  if (bins < 1 || bins > 1 << 20) refuse("n_bins must be in [1, 1048576]");
  if (!(ratio >= 0 && ratio <= 1)) refuse("ratio must be in [0, 1]");
  if (bits < 1 || bits > 16) refuse("bit_width must be in [1, 16]");
}

// It uses scales and zero points by channel without a check of their number, strides and dtype: SIGSEGV.
void fake_quant(Args a) {
  static const char *const names[] = {"self",        "observer_on", "fake_quant_on", "running_min",
                                      "running_max", "scale",       "zero_point"};
  const auto &self = a[0].toTensor();
  int64_t axis = a[10].toInt(), channels = 1;
  bool rows = a[11].toBool(), fresh = rows && a[3].toTensor().numel() == 0;
  if (rows) {
    if (axis < 0 || axis >= self.dim())
      refuse("ch_axis is " + std::to_string(axis) + ", and self has no such dimension");
    channels = self.size(axis);
  }
  for (size_t i : {0, 3, 4, 5, 6}) {
    const auto &t = a[i].toTensor();
    if (i == 6 ? !is_index(t) : !c10::isFloatingType(t.scalar_type()))
      refuse(std::string(names[i]) + " must not be " + c10::toString(t.scalar_type()));
    if (i != 0 && !t.is_contiguous()) refuse(std::string(names[i]) + " must be contiguous");
    if (i != 0 && !fresh && t.numel() != channels)
      refuse(std::string(names[i]) + " has " + std::to_string(t.numel()) + " elements, not " +
             std::to_string(channels));
  }
}

// A recursion of n steps for each element with a 64-bit n: it never returns.
void polynomial(Args a) {
  constexpr int64_t most = 1 << 20;
  double n = 0;
  if (a[1].isTensor()) {
    auto t = a[1].toTensor().detach();
    if (readable(t) && !t.is_complex()) n = t.to(c10::kDouble).nan_to_num(0).max().item<double>();
  } else if (!a[1].toScalar().isComplex()) {
    n = a[1].toScalar().toDouble();
  }
  if (n > most) refuse("a polynomial's degree must be at most " + std::to_string(most));
}

// Internal operators are
//   - those of libtorch's namespaces other than aten (a namespace that libtorch does not have is a user's
//   library);
//   - those whose name begins with an underscore;
//   - derivatives: "_backward" in the name;
//   - kernels of one backend, by the prefix of the name;
//   - those by which a tensor's elements change unnoticed: a backward pass then reads what it has not saved;
//   - variants that libtorch generates and Python does not have (tag "generated": copy.out,
//   _foreach_add.List_out).
bool is_internal(const c10::OperatorHandle &h) {
  static const auto *const spaces = new std::unordered_set<std::string>{"_c10d_functional",
                                                                        "_c10d_functional_autograd",
                                                                        "_dtensor",
                                                                        "_quantized",
                                                                        "_test",
                                                                        "c10d",
                                                                        "fsdp",
                                                                        "inductor",
                                                                        "mkl",
                                                                        "mkldnn",
                                                                        "mkldnn_prepacked",
                                                                        "onednn",
                                                                        "prepacked",
                                                                        "prim",
                                                                        "prims",
                                                                        "profiler",
                                                                        "inductor_prims",
                                                                        "quantized",
                                                                        "rngprims",
                                                                        "quantization",
                                                                        "sparse",
                                                                        "static_runtime",
                                                                        "symm_mem",
                                                                        "xnnpack"};
  static const char *const backends[] = {"cudnn_", "fbgemm_",    "miopen_", "mkldnn_",
                                         "mps_",   "quantized_", "xnnpack_"};
  std::string full = h.operator_name().name;
  size_t colons = full.find("::");
  std::string space = full.substr(0, colons), name = full.substr(colons + 2);
  if (space != "aten") return space[0] == '_' || spaces->count(space) != 0;
  if (name == "data" || name == "set_data" || name == "shallow_copy_data_") return true;
  if (name[0] == '_' || name.find("_backward") != std::string::npos || h.hasTag(at::Tag::generated)) return true;
  return std::any_of(std::begin(backends), std::end(backends),
                     [&](const char *prefix) { return name.rfind(prefix, 0) == 0; });
}

using Guard = void (*)(Args);

const std::unordered_map<std::string, Guard> &guards() {
  static const auto *const all = new std::unordered_map<std::string, Guard>{
      {"aten::linalg_eig", eig},
      {"aten::linalg_eigvals", eig},
      {"aten::gcd", gcd},
      {"aten::lcm", gcd},
      {"aten::div.Tensor_mode", div_trunc},
      {"aten::div.Scalar_mode", div_trunc},
      {"aten::divide.Tensor_mode", div_trunc},
      {"aten::divide.Scalar_mode", div_trunc},
      {"aten::arange.start_step", arange},
      {"aten::arange.start_out", arange},
      {"aten::range.step", range_step},
      {"aten::range.out", range_out},
      {"aten::cummax.out", cumulative_out},
      {"aten::cummin.out", cumulative_out},
      {"aten::cummax.dimname_out", cumulative_out},
      {"aten::cummin.dimname_out", cumulative_out},
      {"aten::chunk", pieces},
      {"aten::unsafe_chunk", pieces},
      {"aten::tensor_split.sections", pieces},
      {"aten::hsplit.int", pieces},
      {"aten::vsplit.int", pieces},
      {"aten::dsplit.int", pieces},
      {"aten::grid_sampler", grid_sampler},
      {"aten::grid_sampler_2d", grid_sampler},
      {"aten::grid_sampler_3d", grid_sampler},
      {"aten::repeat_interleave.Tensor", repeats<0>},
      {"aten::repeat_interleave.self_Tensor", repeats<1>},
      {"aten::as_strided", as_strided},
      {"aten::as_strided_copy", as_strided},
      {"aten::as_strided_scatter", as_strided_scatter},
      {"aten::set_.source_Storage_storage_offset", set_storage},
      {"aten::resize_", resize_to},
      {"aten::resize_as_", resize_as},
      {"aten::set_.source_Tensor", set_source},
      {"aten::set_.source_Tensor_storage_offset", set_source},
      {"aten::copy", copy},
      {"aten::segment_reduce", segment_reduce},
      {"aten::linalg_ldl_solve", ldl_solve},
      {"aten::lu_unpack", lu_unpack},
      {"aten::choose_qparams_optimized", choose_qparams},
      {"aten::fused_moving_avg_obs_fake_quant", fake_quant},
      {"aten::ctc_loss.IntList", ctc_loss},
      {"aten::ctc_loss.Tensor", ctc_loss},
      {"aten::embedding_bag", embedding_bag},
      {"aten::embedding_bag.padding_idx", embedding_bag},
      {"aten::linalg_matrix_power", matrix_power},
      {"aten::matrix_power", matrix_power},
      {"aten::binomial", binomial},
      {"aten::combinations", combinations},
      {"aten::lstm.input", lstm},
      {"aten::gru.input", gru},
      {"aten::rnn_tanh.input", simple_rnn},
      {"aten::rnn_relu.input", simple_rnn},
      {"aten::lstm.data", packed_lstm},
      {"aten::gru.data", packed_gru},
      {"aten::rnn_tanh.data", packed_simple_rnn},
      {"aten::rnn_relu.data", packed_simple_rnn},
      {"aten::pdist", pdist},
      {"aten::adaptive_avg_pool1d", adaptive<1>},
      {"aten::adaptive_avg_pool2d", adaptive<2>},
      {"aten::adaptive_avg_pool3d", adaptive<3>},
      {"aten::adaptive_max_pool1d", adaptive<1>},
      {"aten::adaptive_max_pool2d", adaptive<2>},
      {"aten::adaptive_max_pool3d", adaptive<3>},
      {"aten::max_pool1d", max_pool1d},
      {"aten::max_pool1d_with_indices", max_pool1d},
      {"aten::avg_pool1d", windows},
      {"aten::conv1d", windows},
      {"aten::conv1d.padding", windows},
      {"aten::max_pool2d", max_pool2d},
      {"aten::max_pool2d_with_indices", max_pool2d},
      {"aten::avg_pool2d", windows},
      {"aten::conv2d", windows},
      {"aten::conv2d.padding", windows},
      {"aten::max_pool3d", max_pool3d},
      {"aten::max_pool3d_with_indices", max_pool3d},
      {"aten::avg_pool3d", windows},
      {"aten::conv3d", windows},
      {"aten::conv3d.padding", windows},
      {"aten::conv_transpose1d", windows},
      {"aten::conv_transpose2d.input", windows},
      {"aten::conv_transpose3d.input", windows},
      {"aten::convolution", windows},
      {"aten::im2col", windows},
      {"aten::col2im", windows},
      {"aten::thnn_conv2d", thnn_conv2d},
      {"aten::slow_conv_transpose2d", window_of_weight},
      {"aten::slow_conv_transpose3d", window_of_weight},
      {"aten::from_file", from_file},
      {"aten::lstm_cell", cell},
      {"aten::gru_cell", cell},
      {"aten::rnn_tanh_cell", cell},
      {"aten::rnn_relu_cell", cell},
      {"aten::slow_conv3d", slow_conv3d},
      {"aten::slow_conv3d_forward", slow_conv3d},
      {"aten::pad", pad},
      {"aten::reflection_pad1d", padding<2>},
      {"aten::reflection_pad2d", padding<4>},
      {"aten::reflection_pad3d", padding<6>},
      {"aten::replication_pad1d", padding<2>},
      {"aten::replication_pad2d", padding<4>},
      {"aten::replication_pad3d", padding<6>},
      {"aten::multi_margin_loss", margin_loss<5>},
      {"aten::multilabel_margin_loss", margin_loss<2>},
      {"aten::multilabel_margin_loss_forward", margin_loss<2>},
      {"aten::align_tensors", not_empty},
      {"aten::cat", not_empty},
      {"aten::concat", not_empty},
      {"aten::concatenate", not_empty},
      {"aten::native_batch_norm", batch_norm},
      {"aten::batch_norm_update_stats", batch_norm_statistics},
      {"aten::rrelu_with_noise.out", rrelu_out},
      {"aten::random.from", random_from},
      {"aten::channel_shuffle", channel_shuffle},
      {"aten::native_channel_shuffle", channel_shuffle},
      {"aten::view.dtype", view_dtype},
      {"aten::view_copy.dtype", view_dtype},
      {"aten::scaled_dot_product_attention", grouped_attention},
      {"aten::vander", vander},
      {"aten::_backward", backward},
      {"aten::retain_grad", retain},
  };
  return *all;
}

// Returns the check of an operator, or of the operator that it is a variant of: in place ("gcd_"), or with an out
// argument, which is last ("gcd.out", "div.out_mode").
Guard guard_of(const c10::OperatorName &op) {
  auto find = [](const std::string &name, const std::string &overload) -> Guard {
    auto found = guards().find(overload.empty() ? name : name + "." + overload);
    return found != guards().end() ? found->second : nullptr;
  };
  if (op.name.rfind("aten::special_", 0) == 0 && op.name.find("_polynomial_") != std::string::npos)
    return polynomial;
  if (op.name.rfind("aten::upsample_", 0) == 0) return upsample;
  Guard guard = find(op.name, op.overload_name);
  if (guard == nullptr && op.name.back() == '_' && op.name != "aten::copy_")
    guard = find(op.name.substr(0, op.name.size() - 1), op.overload_name);
  if (guard == nullptr && (op.overload_name == "out" || op.overload_name == "output")) guard = find(op.name, "");
  if (guard == nullptr && op.overload_name == "out_mode") guard = find(op.name, "Tensor_mode");
  return guard;
}

}  // namespace

Operator::Operator(const c10::OperatorHandle &h)
    : handle(h), internal(is_internal(h)), check_(guard_of(h.operator_name())) {
  const auto &name = h.operator_name();
  bool kernel = h.hasKernelForDispatchKey(c10::DispatchKey::MkldnnCPU);
  takes_mkldnn_ = kernel || h.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
                  h.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  // Operators that read the parts of a tensor, and its own copy.
  static const auto *const readers = new std::unordered_set<std::string>{
      "aten::alias",      "aten::ccol_indices", "aten::clone",      "aten::col_indices", "aten::crow_indices",
      "aten::dense_dim",  "aten::detach",       "aten::empty_like", "aten::row_indices", "aten::size",
      "aten::sparse_dim", "aten::to_dense",     "aten::values"};
  // Operators of quantized tensors whose results are not, and the reverse.
  static const auto *const converters = new std::unordered_set<std::string>{"aten::copy",
                                                                            "aten::dequantize",
                                                                            "aten::int_repr",
                                                                            "aten::q_per_channel_scales",
                                                                            "aten::q_per_channel_zero_points",
                                                                            "aten::q_scale",
                                                                            "aten::q_zero_point",
                                                                            "aten::qscheme",
                                                                            "aten::quantize_per_channel",
                                                                            "aten::quantize_per_tensor",
                                                                            "aten::quantize_per_tensor_dynamic"};
  static const auto *const sums = new std::unordered_set<std::string>{
      "aten::add", "aten::add_", "aten::sub", "aten::sub_", "aten::rsub", "aten::subtract", "aten::subtract_"};
  // The elementwise operators for which libtorch checks that all tensors are on one device. Others take a number
  // that is on the CPU.
  static const auto *const on_one_device = new std::unordered_set<std::string>{
      "aten::clamp",      "aten::clamp_", "aten::clamp_max", "aten::clamp_max_", "aten::clamp_min",
      "aten::clamp_min_", "aten::gcd",    "aten::gcd_",      "aten::lcm",        "aten::lcm_",
      "aten::ldexp",      "aten::ldexp_", "aten::logaddexp", "aten::logaddexp2"};
  on_one_device_ = on_one_device->count(name.name) != 0;
  converts_ = converters->count(name.name) != 0;
  adds_ = sums->count(name.name) != 0;
  linear_ = name.name == "aten::linear";
  // The weight, the bias and the statistics; the targets.
  if (name.name == "aten::batch_norm" || name.name == "aten::native_batch_norm")
    contiguous_ = {1, 2, 3, 4}, statistics_ = true;
  if (name.name == "aten::group_norm") contiguous_ = {2, 3};  // zeros without memory (2.11)
  if (name.name == "aten::ctc_loss") contiguous_ = {1};
  if (name.name == "aten::thnn_conv2d") contiguous_ = {0, 1};
  if (name.name == "aten::choose_qparams_optimized") contiguous_ = {0};
  // The gradient of an expanded signal is wrong in libtorch 2.11, on all devices.
  if (name.name == "aten::stft") contiguous_ = {0}, on_all_devices_ = true;
  makes_sparse_ = name.name.rfind("aten::sparse_", 0) == 0 && name.name.find("_tensor") != std::string::npos;
  // Their kernels write beyond out arguments that are not contiguous (triangles of batches), or wrong values.
  static const auto *const apart = new std::unordered_set<std::string>{"aten::adaptive_avg_pool3d",
                                                                       "aten::adaptive_max_pool3d",
                                                                       "aten::avg_pool3d",
                                                                       "aten::col2im",
                                                                       "aten::fractional_max_pool2d",
                                                                       "aten::fractional_max_pool3d",
                                                                       "aten::gelu",
                                                                       "aten::im2col",
                                                                       "aten::lu_unpack",
                                                                       "aten::narrow_copy",
                                                                       "aten::native_batch_norm",
                                                                       "aten::slow_conv_transpose2d",
                                                                       "aten::slow_conv_transpose3d",
                                                                       "aten::tril",
                                                                       "aten::triu",
                                                                       "aten::upsample_bicubic2d",
                                                                       "aten::upsample_bilinear2d"};
  // They write as many losses as out has elements, or nothing along one dimension.
  static const auto *const always =
      new std::unordered_set<std::string>{"aten::binary_cross_entropy", "aten::fft_ihfft2", "aten::fft_ihfftn"};
  always_apart_ = always->count(name.name) != 0;
  if ((name.overload_name == "out" || name.overload_name == "output") &&
      (always_apart_ || apart->count(name.name) != 0))
    apart_ = c10::Dispatcher::singleton().findSchema({name.name, ""});
  // They return self as it is, and its history would be its own: a cycle that is never freed.
  static const auto *const identities = new std::unordered_set<std::string>{
      "aten::lift", "aten::lift_fresh", "aten::dequantize", "aten::quantize_per_tensor_dynamic"};
  masks_ = name.name == "aten::sparse_mask";  // the same, if self is the mask
  returns_self_ = identities->count(name.name) != 0;
  // See copy_if_shared. The derivatives of these depend on no tensor.
  static const auto *const saves_nothing = new std::unordered_set<std::string>{
      "aten::copy_",       "aten::add_",       "aten::sub_",       "aten::subtract_",    "aten::fill_",
      "aten::index_copy_", "aten::index_put_", "aten::index_add_", "aten::masked_fill_", "aten::set_"};
  const bool saves = h.schema().is_mutable() && saves_nothing->count(name.name) == 0;
  static const auto *const index_readers =
      new std::unordered_set<std::string>{"aten::_indices",    "aten::indices",      "aten::crow_indices",
                                          "aten::col_indices", "aten::ccol_indices", "aten::row_indices"};
  reads_indices_ = index_readers->count(name.name) != 0;
  pointwise_ = h.hasTag(at::Tag::pointwise);
  reads_parts_ = readers->count(name.name) != 0;
  sets_data_ = name.name == "aten::set_data";
  makes_node_ = name.name != "aten::detach_" && name.name != "aten::requires_grad_" && !sets_data_;
  const auto &formals = h.schema().arguments();
  for (size_t i = 0; i < formals.size(); i++) {
    const std::string &formal = formals[i].name();
    if (formals[i].real_type()->kind() == c10::TypeKind::BoolType &&
        (formal == "sparse" || formal == "sparse_grad"))
      sparse_gradient_ = i;
    if ((makes_sparse_ && formal.find("indices") != std::string::npos) ||
        ((name.name == "aten::embedding" || name.name == "aten::embedding_bag") &&
         (formal == "indices" || formal == "offsets")) ||
        (name.name == "aten::gather" && formal == "index"))
      kept_.push_back(i);
    if (formals[i].alias_info() != nullptr && formals[i].alias_info()->isWrite()) written_.push_back(i);
    if (formals[i].is_out() && formals[i].real_type()->kind() == c10::TypeKind::TensorType) outs_.push_back(i);
    c10::TypePtr type = formals[i].real_type();
    if (type->kind() == c10::TypeKind::OptionalType) type = type->castRaw<c10::OptionalType>()->getElementType();
    if (type->kind() == c10::TypeKind::TensorType || type->kind() == c10::TypeKind::ListType)
      tensors_.push_back(i);
    if (saves && type->kind() == c10::TypeKind::TensorType && (written_.empty() || written_.back() != i))
      saved_.push_back(i);
    // Their elements are unchecked indices of tables: SIGSEGV.
    if (type->kind() == c10::TypeKind::ScalarTypeType)
      enums_.push_back({i, static_cast<int64_t>(c10::ScalarType::Undefined), false});
    else if (type->kind() == c10::TypeKind::LayoutType)
      // Only a conversion makes tensors of this layout.
      enums_.push_back({i, static_cast<int64_t>(c10::Layout::NumOptions), true});
    else if (type->kind() == c10::TypeKind::MemoryFormatType)
      enums_.push_back({i, static_cast<int64_t>(c10::MemoryFormat::NumOptions), false});
  }
}

// The rules of layouts, for all operators:
//   - A tensor of oneDNN's layout has no memory that an address would name. An operator without a kernel for
//     it, and not composed of others, reads and writes at address 0. SIGSEGV.
//   - Kernels for oneDNN's layout divide by the number of elements. SIGFPE.
//   - A product of oneDNN's layout reads the weight without a check of its shape: beyond its end.
//   - Beside a sparse, nested or quantized tensor, a kernel for one of them takes it for a strided one, or the
//     other way round, in the backward pass too. SIGSEGV, SIGFPE.
//   - A nested tensor that was narrowed to no components has sizes without memory, which are read. SIGSEGV.
//   - The kernels of a negative or conjugate view of a quantized tensor call one another without end. SIGSEGV.
//   - Several elements of quint4x2 and quint2x4 are in one byte; views and copies of parts of such tensors count
//     bytes by elements. Reads and writes beyond their end.
//   - Integer zeros without memory are taken for indices that have some. SIGSEGV.
//   - Conversions and products of compressed sparse tensors divide by the number of matrices in the batch. SIGFPE.
//   - Sums of a strided tensor and a compressed sparse one ignore the dense dimensions of its values. SIGSEGV.
void Operator::check_layouts(c10::ArrayRef<at::Tensor> tensors) const {
  bool mkldnn = false, sparse = false, quantized = false, nested = false, strided = false, hybrid = false;
  for (const auto &t : tensors) {
    if (!t.defined()) continue;
    auto keys = t.key_set();
    auto in = [&](c10::DispatchKeySet any) { return keys.has_any(any); };
    if (t.is_quantized() && (t.is_neg() || t.is_conj()))
      refuse("a quantized tensor has no negative or conjugate view");
    if (t.is_quantized() && !reads_parts_ && !converts_ &&
        (t.scalar_type() == c10::kQUInt4x2 || t.scalar_type() == c10::kQUInt2x4))
      refuse("a tensor of " + std::string(c10::toString(t.scalar_type())) + " can only be dequantized and copied");
    if (!reads_parts_ && t._is_zerotensor() && c10::isIntegralType(t.scalar_type(), true))
      refuse("zeros without memory cannot be integers; use Clone() of them");
    bool is_nested = in(c10::DispatchKeySet(c10::DispatchKey::NestedTensor));
    if (!reads_parts_ && is_nested && t.dim() > 0 && t.size(0) == 0) refuse("a nested tensor has no components");
    bool is_mkldnn = keys.has(c10::DispatchKey::MkldnnCPU);
    if (is_mkldnn && !reads_parts_ && t.numel() == 0)
      refuse("a tensor of oneDNN's layout has no elements: " + c10::str(t.sizes()));
    mkldnn |= is_mkldnn;
    nested |= is_nested;
    sparse |= in(c10::DispatchKeySet({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr}));
    quantized |= in(c10::DispatchKeySet(c10::DispatchKey::Quantized));
    strided |= t.layout() == c10::kStrided;
    bool compressed = in(c10::DispatchKeySet(c10::DispatchKey::SparseCsr));
    hybrid |= compressed && t.dense_dim() > 0;
    if (!reads_parts_ && compressed &&
        c10::multiply_integers(t.sizes().slice(0, static_cast<size_t>(t.dim() - t.dense_dim() - 2))) == 0)
      refuse("a compressed sparse tensor has an empty batch: " + c10::str(t.sizes()) +
             "; aten::to_dense makes a dense one");
  }
  if (adds_ && strided && hybrid)
    refuse(
        "a compressed sparse tensor with dense dimensions cannot be added to a dense tensor; "
        "aten::to_dense makes a dense one");
  if (mkldnn && !takes_mkldnn_) refuse("there is no kernel for a tensor of oneDNN's layout");
  if (mkldnn && linear_ && tensors.size() > 1) {
    auto input = tensors[0].sizes(), weight = tensors[1].sizes();
    if (input.empty() || weight.size() != 2 || weight[1] != input.back())
      refuse("an input of " + c10::str(input) + " does not fit a weight of " + c10::str(weight));
  }
  if (mkldnn && (sparse || quantized || nested))
    refuse("a tensor of oneDNN's layout can only be combined with dense ones");
  if (sparse + quantized + nested > 1)
    refuse("sparse, quantized and nested tensors can only be combined with dense ones and their own kind");
}

namespace {
template <class F>
void each_tensor(const c10::IValue &v, F &&f) {
  if (v.isTensor()) {
    f(v.toTensor());
  } else if (v.isTensorList()) {
    for (const at::Tensor &t : v.toTensorList()) f(t);
  } else if (v.isOptionalTensorList()) {
    for (const std::optional<at::Tensor> &t : v.toOptionalTensorList())
      if (t.has_value()) f(*t);
  }
}
}  // namespace

void Operator::place_numbers(torch::jit::Stack &stack) const {
  if (!on_one_device_) return;
  c10::Device device = c10::kCPU;
  for (size_t i : tensors_)
    each_tensor(stack[i], [&](const at::Tensor &t) {
      if (t.defined() && device.is_cpu() && !t.is_meta()) device = t.device();
    });
  if (device.is_cpu()) return;
  for (size_t i : tensors_) {
    if (!stack[i].isTensor()) continue;
    const at::Tensor &number = stack[i].toTensor();
    if (!number.defined() || !number.is_cpu() || !number.unsafeGetTensorImpl()->is_wrapped_number()) continue;
    // A copy would synchronize the device.
    at::Tensor placed = at::full({}, number.item(), number.options().device(device));
    placed.unsafeGetTensorImpl()->set_wrapped_number(true);
    stack[i] = std::move(placed);
  }
}

void Operator::copy_arguments(torch::jit::Stack &stack) const {
  if (returns_self_ && stack[0].isTensor() && recording(stack[0].toTensor()))
    stack[0] = stack[0].toTensor().alias();
  if (returns_self_ && stack[0].isTensorList()) {
    auto list = stack[0].toTensorVector();
    for (auto &t : list)
      if (t.defined() && recording(t)) t = t.alias();
    stack[0] = std::move(list);
  }
  if (masks_ && stack[0].toTensor().is_same(stack[1].toTensor())) stack[1] = stack[1].toTensor().clone();
  for (size_t i : saved_) {
    if (!stack[i].isTensor()) continue;
    const at::Tensor &t = stack[i].toTensor();
    bool shared = false, records = false;
    for (size_t w : written_) each_tensor(stack[w], [&](const at::Tensor &x) { shared |= shares_memory(t, x); });
    if (!shared) continue;
    for (size_t k : tensors_)
      each_tensor(stack[k], [&](const at::Tensor &x) { records |= x.defined() && recording(x); });
    if (records) stack[i] = t.clone();
  }
  if (!sparse_gradient_ || stack[*sparse_gradient_].toBool())
    for (size_t i : kept_)
      if (stack[i].isTensor() && stack[i].toTensor().defined()) stack[i] = stack[i].toTensor().clone();
  for (size_t i : contiguous_) {
    if (!stack[i].isTensor()) continue;
    if (statistics_ && i > 2 && stack[5].toBool()) continue;  // training changes the statistics
    const at::Tensor &t = stack[i].toTensor();
    if (t.defined() && (t.is_cpu() || on_all_devices_) && t.layout() == c10::kStrided &&
        (!t.is_contiguous() || t._is_zerotensor()))
      stack[i] = t.clone(c10::MemoryFormat::Contiguous);
  }
}

// Reports whether elements of t share memory because t was expanded.
static bool is_expanded(const at::Tensor &t) {
  return t.defined() && t.layout() == c10::kStrided && t.numel() != 0 &&
         at::has_internal_overlap(t) == at::MemOverlap::Yes;
}

void Operator::check(const torch::jit::Stack &stack) const {
  c10::DispatchKeySet keys;
  for (size_t i : tensors_) each_tensor(stack[i], [&](const at::Tensor &t) { keys = keys | t.key_set(); });
  if (!(keys & kOddKeys).empty()) {
    std::vector<at::Tensor> tensors;
    for (size_t i : tensors_) each_tensor(stack[i], [&](const at::Tensor &t) { tensors.push_back(t); });
    check_layouts(tensors);
    // A kernel for quantized tensors assumes a quantized output, and other kernels use a quantized output as
    // plain numbers: heap corruption.
    if (!outs_.empty() && !converts_) {
      bool quantized = false;
      for (size_t i : tensors_)
        if (i < outs_.front())
          each_tensor(stack[i], [&](const at::Tensor &t) { quantized |= t.defined() && t.is_quantized(); });
      for (size_t i : outs_) {
        const at::Tensor &out = stack[i].toTensor();
        if (out.defined() && out.is_quantized() != quantized)
          refuse("argument '" + handle.schema().arguments()[i].name() + "' must " + (quantized ? "" : "not ") +
                 "be quantized");
      }
    }
    for (size_t i : written_)
      each_tensor(stack[i], [](const at::Tensor &t) {
        // It has no memory: SIGSEGV.
        if (t.defined() && t._is_zerotensor())
          refuse("zeros without memory cannot be written to; use Clone() of them");
      });
  }
  for (const auto &e : enums_) {
    const c10::IValue &v = stack[e.argument];
    if (v.isInt() && (v.toInt() < 0 || v.toInt() >= e.end))
      refuse("argument '" + handle.schema().arguments()[e.argument].name() + "': there is no " +
             std::to_string(v.toInt()));
    if (e.layout && v.isInt() && v.toInt() == static_cast<int64_t>(c10::Layout::Mkldnn))
      refuse("tensors of oneDNN's layout can only be made by aten::to_mkldnn");
  }
  for (size_t i : outs_) {
    // An output is resized before the inputs are read, and outputs one after another: heap corruption.
    // Elementwise kernels read each element before they write it.
    const at::Tensor &out = stack[i].toTensor();
    for (size_t k : tensors_) {
      if (k == i || (k < outs_.front() && pointwise_)) continue;
      each_tensor(stack[k], [&](const at::Tensor &t) {
        if (t.defined() && t.is_same(out))
          refuse("argument '" + handle.schema().arguments()[i].name() + "' is also another argument");
      });
    }
  }
  if (makes_node_)
    for (size_t i : written_) each_tensor(stack[i], check_in_place);
  // Results are written as if each element had memory of its own: beyond the end. self may be expanded, because
  // operators in place also change shapes; those that write to it check it.
  for (size_t i : written_)
    if (i > 0)
      each_tensor(stack[i], [&](const at::Tensor &t) {
        if (is_expanded(t))
          refuse("argument '" + handle.schema().arguments()[i].name() + "' is expanded and cannot be written to");
      });
  if (check_ != nullptr) check_(Args(stack.data(), stack.size()));
}

bool Operator::computes_apart(const torch::jit::Stack &stack) const {
  if (!apart_) return false;
  bool strided = false, records = false;
  for (size_t i : tensors_)
    each_tensor(stack[i], [&](const at::Tensor &t) { records |= t.defined() && recording(t); });
  for (size_t i : outs_) {
    const at::Tensor &out = stack[i].toTensor();
    if (!out.is_cpu() || out.layout() != c10::kStrided || out.is_quantized()) return false;
    strided |= !out.is_contiguous();
  }
  return (always_apart_ || strided) && !records;  // libtorch refuses to record out arguments
}

void Operator::call(torch::jit::Stack &stack) const {
  if (computes_apart(stack)) {
    auto outs = stack.begin() + static_cast<std::ptrdiff_t>(outs_.front());
    torch::jit::Stack results(stack.begin(), outs);
    apart_->callBoxed(&results);
    stack.erase(stack.begin(), outs);
    for (size_t i = 0; i < results.size(); i++) {
      const at::Tensor &result = results[i].toTensor(), &out = stack[i].toTensor();
      if (!c10::canCast(result.scalar_type(), out.scalar_type()))
        refuse(std::string("the result is ") + c10::toString(result.scalar_type()) + " and cannot be written to " +
               c10::toString(out.scalar_type()));
      if (out.sizes() != result.sizes()) out.resize_(result.sizes());
      out.copy_(result);
    }
    return;
  }
  if (sets_data_) {
    // A pass reads the data of the leaf meanwhile: SIGSEGV.
    const at::Tensor x = stack[0].toTensor();
    return change_tensor(x, "its data must be set", [&] { handle.callBoxed(&stack); });
  }
  if (reads_indices_) {
    handle.callBoxed(&stack);
    stack.back() = stack.back().toTensor().clone();
    return;
  }
  if (!makes_sparse_ || !stack[0].isTensor() || !stack[0].toTensor().is_cpu()) return handle.callBoxed(&stack);
  // Indices beyond the sizes, or in no order, are otherwise read as they are: SIGSEGV in most operators. The
  // setting is the process's; other threads' constructors only check more while it is on.
  static std::mutex mutex;
  static int calls = 0;
  struct On {
    On() {
      std::lock_guard<std::mutex> lock(mutex);
      if (calls++ == 0) at::globalContext().setCheckSparseTensorInvariants(true);
    }
    ~On() {
      std::lock_guard<std::mutex> lock(mutex);
      if (--calls == 0) at::globalContext().setCheckSparseTensorInvariants(false);
    }
  } on;
  handle.callBoxed(&stack);
}

// The hook by which a tensor retains its gradient has the number of its operator's result. A write to a view of
// the tensor moves the hook to a new node, which has one gradient, and keeps the number: SIGSEGV in a backward
// pass. A write to the tensor itself moves the hook of the first result instead, or fails when it has been made.
void check_in_place(const at::Tensor &t) {
  if (!t.defined() || !at::GradMode::is_enabled()) return;
  const at::TensorBase &owner = t.is_view() ? t._base() : t;
  if (!owner.retains_grad()) return;
  // The tensor has another node now, or none: detach_ and custom functions leave the hook at the old one, and a
  // write that makes a node would not find it.
  const auto &fn = owner.grad_fn();
  if (!fn || fn->retains_grad_hooks().count(owner.output_nr()) == 0)
    torch::autograd::impl::get_autograd_meta(owner)->retains_grad_ = false;
  else if (owner.output_nr() != 0)
    refuse(std::string(t.is_view() ? "a view of " : "") +
           "a second or later result that retains its gradient cannot be written to; use Clone() of it");
}

}  // namespace ls

// Kernels of the meta device that libtorch lacks. libtorch has those of structured operators; PyTorch has the
// others in Python. A kernel makes results of the same shapes, dtypes and strides as the CPU's, and no other
// tensors, except where the CPU's kernel needs large ones while it runs: a plan counts them (plan.h).
#include "meta.h"

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/native/Pool.h>
#include <ATen/native/ReduceOpsUtils.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "shim.h"

namespace ls {
namespace {

using Args = c10::ArrayRef<c10::IValue>;
using Results = std::vector<at::Tensor>;
using Shape = std::vector<int64_t>;

at::Tensor tensor(const c10::IValue &v) { return v.isTensor() ? v.toTensor() : at::Tensor{}; }
at::Tensor empty(c10::IntArrayRef shape, const at::Tensor &like) { return at::empty(shape, like.options()); }
at::Tensor empty(c10::IntArrayRef shape, const at::Tensor &like, c10::ScalarType dtype) {
  return at::empty(shape, like.options().dtype(dtype));
}
// A result that the mask of a backward kernel may leave out.
at::Tensor wanted(const c10::IValue &mask, size_t i, const at::Tensor &like) {
  return mask.toBoolList().get(i) && like.defined() ? at::empty_like(like) : at::Tensor{};
}
at::Tensor wanted(const c10::IValue &mask, size_t i, c10::IntArrayRef shape, const at::Tensor &like) {
  return mask.toBoolList().get(i) ? empty(shape, like) : at::Tensor{};
}

template <size_t kArgument>
Results like(Args a) {
  return {at::empty_like(a[kArgument].toTensor())};
}
Results scalar(Args a) { return {empty({}, a[0].toTensor())}; }
// The arguments of losses: (self, target, …, reduction), with reduction at kReduction.
template <size_t kReduction>
Results loss(Args a) {
  auto x = a[0].toTensor();
  if (a[kReduction].toInt() != at::Reduction::None) return {empty({}, x)};
  return {empty(at::infer_size(x.sizes(), a[1].toTensor().sizes()), x)};
}

Results inner_product(Args a) {
  auto x = a[0].toTensor(), y = a[1].toTensor();
  if (x.dim() != 1 || y.dim() != 1 || x.size(0) != y.size(0) || x.scalar_type() != y.scalar_type())
    throw ArgumentError(c10::str(x.scalar_type(), x.sizes(), " and ", y.scalar_type(), y.sizes()) +
                        " have no dot product");
  return {empty({}, x)};
}

Results trace(Args a) {
  auto x = a[0].toTensor();
  if (x.dim() != 2) throw ArgumentError("trace: a matrix has 2 dimensions, not " + std::to_string(x.dim()));
  return {empty({}, x, at::isIntegralType(x.scalar_type(), true) ? c10::kLong : x.scalar_type())};
}

// (self, vec). libtorch would make the result on vec's device, also where self has no data.
Results matrix_vector(Args a) {
  auto x = a[0].toTensor(), v = a[1].toTensor();
  if (x.dim() != 2 || v.dim() != 1 || x.size(1) != v.size(0))
    throw ArgumentError("a matrix of " + c10::str(x.sizes()) + " and a vector of " + c10::str(v.sizes()) +
                        " have no product");
  return {empty({x.size(0)}, x)};
}

// The strides of a convolution's result follow the input's memory format, or else the weight's.
at::MemoryFormat format_of(const at::Tensor &input, const at::Tensor &weight) {
  auto f = input.suggest_memory_format();
  return f == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : f;
}

int64_t at_dim(const Shape &v, size_t i) { return v.size() == 1 ? v[0] : v.at(i); }

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
Results convolution(Args a) {
  auto x = a[0].toTensor(), w = a[1].toTensor();
  auto stride = a[3].toIntVector(), padding = a[4].toIntVector(), dilation = a[5].toIntVector(),
       extra = a[7].toIntVector();
  bool transposed = a[6].toBool();
  int64_t groups = a[8].toInt();
  if (x.dim() != w.dim() || x.dim() < 3)
    throw ArgumentError("convolution: input of " + std::to_string(x.dim()) + " dimensions and weight of " +
                        std::to_string(w.dim()));
  if (x.size(1) != (transposed ? w.size(0) : w.size(1) * groups))
    throw ArgumentError("convolution: the input has " + std::to_string(x.size(1)) +
                        " channels, the weight wants " +
                        std::to_string(transposed ? w.size(0) : w.size(1) * groups));
  Shape shape{x.size(0), transposed ? w.size(1) * groups : w.size(0)};
  for (int64_t d = 2; d < x.dim(); d++) {
    auto i = static_cast<size_t>(d - 2);
    int64_t kernel = at_dim(dilation, i) * (w.size(d) - 1) + 1;
    int64_t n = transposed
                    ? (x.size(d) - 1) * at_dim(stride, i) - 2 * at_dim(padding, i) + kernel + at_dim(extra, i)
                    : (x.size(d) + 2 * at_dim(padding, i) - kernel) / std::max<int64_t>(1, at_dim(stride, i)) + 1;
    if (n <= 0 || kernel > x.size(d) + 2 * at_dim(padding, i) + (transposed ? kernel : 0))
      throw ArgumentError("convolution: the kernel is larger than the input");
    shape.push_back(n);
  }
  Results out{at::empty(shape, x.options().memory_format(format_of(x, w)))};
  // oneDNN copies what is not in its layout: measured with libtorch 2.15 and (N, 64, 14, 14), to 2 %.
  Results scratch = transposed ? Results{at::empty_like(out[0]), at::empty_like(out[0])}
                               : Results{at::empty_like(x), at::empty_like(w)};
  return out;
}

// (grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups, mask)
Results convolution_backward(Args a) {
  auto x = a[1].toTensor(), w = a[2].toTensor();
  auto grad = a[0].toTensor();
  Results out{wanted(a[10], 0, x), wanted(a[10], 1, w), wanted(a[10], 2, {grad.size(1)}, x)};
  Results scratch{at::empty_like(grad)};
  if (!a[7].toBool()) scratch.push_back(at::empty_like(x));
  return out;
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps)
Results batch_norm(Args a) {
  auto x = a[0].toTensor();
  int64_t kept = a[5].toBool() ? x.size(1) : 0;
  auto type = tensor(a[1]).defined() ? tensor(a[1]).scalar_type() : x.scalar_type();
  return {at::empty_like(x), empty({kept}, x, type), empty({kept}, x, type)};
}
// (grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask)
Results batch_norm_backward(Args a) {
  auto x = a[1].toTensor(), w = tensor(a[2]).defined() ? tensor(a[2]) : x;
  return {wanted(a[9], 0, x), wanted(a[9], 1, {x.size(1)}, w), wanted(a[9], 2, {x.size(1)}, w)};
}

// (input, normalized_shape, weight, bias, eps)
Results layer_norm(Args a) {
  auto x = a[0].toTensor();
  Shape rows(x.sizes().vec());
  size_t n = std::min(rows.size(), a[1].toIntVector().size());
  std::fill(rows.end() - static_cast<std::ptrdiff_t>(n), rows.end(), 1);
  auto type = tensor(a[2]).defined() ? tensor(a[2]).scalar_type() : x.scalar_type();
  return {at::empty_like(x), empty(rows, x, type), empty(rows, x, type)};
}
// (grad, input, normalized_shape, mean, rstd, weight, bias, mask)
Results layer_norm_backward(Args a) {
  return {wanted(a[7], 0, a[1].toTensor()), wanted(a[7], 1, tensor(a[5])), wanted(a[7], 2, tensor(a[6]))};
}

// (input, weight, bias, N, C, HxW, group, eps)
Results group_norm(Args a) {
  auto x = a[0].toTensor();
  auto type = tensor(a[1]).defined() ? tensor(a[1]).scalar_type() : x.scalar_type();
  Shape rows{a[3].toInt(), a[6].toInt()};
  return {at::empty_like(x), empty(rows, x, type), empty(rows, x, type)};
}
// (grad, input, mean, rstd, weight, N, C, HxW, group, mask)
Results group_norm_backward(Args a) {
  auto x = a[1].toTensor(), w = tensor(a[4]).defined() ? tensor(a[4]) : x;
  Shape c{a[6].toInt()};
  return {wanted(a[9], 0, x), wanted(a[9], 1, c, w), wanted(a[9], 2, c, w)};
}

// (grad, indices, num_weights, padding_idx, scale_grad_by_freq)
Results embedding_backward(Args a) {
  auto grad = a[0].toTensor();
  return {empty({a[2].toInt(), grad.size(-1)}, grad)};
}

// (self, dim, index)
Results index_select(Args a) {
  auto x = a[0].toTensor();
  Shape shape(x.sizes().vec());
  if (shape.empty()) return {empty({}, x)};
  shape.at(static_cast<size_t>(c10::maybe_wrap_dim(a[1].toInt(), x.dim()))) = a[2].toTensor().numel();
  return {empty(shape, x)};
}

// (condition, self, other)
Results where(Args a) {
  auto c = a[0].toTensor(), x = a[1].toTensor(), y = a[2].toTensor();
  auto shape = at::infer_size(at::infer_size(c.sizes(), x.sizes()), y.sizes());
  Results both{x, y};
  return {empty(shape, c, at::native::result_type(both))};
}

// (self, target, weight, reduction, ignore_index)
Results nll_loss2d(Args a) {
  auto x = a[0].toTensor(), target = a[1].toTensor();
  bool none = a[3].toInt() == at::Reduction::None;
  return {none ? empty(target.sizes(), x) : empty({}, x), empty({}, x)};
}

// (query, key, value, …): (N, heads, T, C).
Results attention(Args a) {
  auto q = a[0].toTensor();
  auto type = q.scalar_type() == c10::kDouble ? c10::kDouble : c10::kFloat;
  return {at::empty_like(q), empty({q.size(0), q.size(2), q.size(1)}, q, type).transpose(1, 2)};
}
// (grad, query, key, value, …)
Results attention_backward(Args a) {
  return {at::empty_like(a[1].toTensor()), at::empty_like(a[2].toTensor()), at::empty_like(a[3].toTensor())};
}

// (self, output_size)
template <size_t kDims>
Results adaptive_pool(Args a) {
  auto x = a[0].toTensor();
  auto size = a[1].toIntVector();
  Shape shape(x.sizes().vec());
  if (size.size() != kDims || (shape.size() != kDims + 1 && shape.size() != kDims + 2))
    throw ArgumentError("adaptive_avg_pool" + std::to_string(kDims) + "d: input of " + c10::str(shape) +
                        " and output of " + c10::str(size));
  std::copy(size.begin(), size.end(), shape.end() - static_cast<std::ptrdiff_t>(kDims));
  auto format = kDims == 2 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
  return {at::empty(shape, x.options().memory_format(format))};
}

// The argument of a 3-d pooling: one number for all dimensions, or three.
std::array<int, 3> three(const char *name, const Shape &v) {
  if (v.size() != 1 && v.size() != 3)
    throw ArgumentError(std::string("max_pool3d: ") + name + " must be a number or three, got " + c10::str(v));
  std::array<int, 3> out{};
  for (size_t i = 0; i < 3; i++) out[i] = c10::checked_convert<int>(at_dim(v, i), "int");
  return out;
}

// (self, kernel_size, stride, padding, dilation, ceil_mode)
Results max_pool3d(Args a) {
  auto x = a[0].toTensor();
  auto kernel = three("kernel_size", a[1].toIntVector());
  auto stride = a[2].toIntVector().empty() ? kernel : three("stride", a[2].toIntVector());
  auto padding = three("padding", a[3].toIntVector()), dilation = three("dilation", a[4].toIntVector());
  std::array<int64_t, 3> in{}, out{};
  for (size_t i = 0; i < 3; i++) {
    in[i] = x.size(static_cast<int64_t>(i) - 3);
    out[i] = at::native::pooling_output_shape<int64_t>(in[i], kernel[i], padding[i], stride[i], dilation[i],
                                                       a[5].toBool());
  }
  at::native::pool3d_shape_check(x, x.size(-4), kernel[0], kernel[1], kernel[2], stride[0], stride[1], stride[2],
                                 padding[0], padding[1], padding[2], dilation[0], dilation[1], dilation[2], in[0],
                                 in[1], in[2], out[0], out[1], out[2], "max_pool3d");
  auto batch = x.dim() == 4 ? x.unsqueeze(0) : x;
  Shape shape{batch.size(0), batch.size(1), out[0], out[1], out[2]};
  auto format = batch.suggest_memory_format();
  // The strides of an added dimension do not suggest the format.
  if (x.dim() == 4 && !batch.is_contiguous() && batch.is_contiguous(at::MemoryFormat::ChannelsLast3d))
    format = at::MemoryFormat::ChannelsLast3d;
  auto options = x.options().memory_format(format);
  Results results{at::empty(shape, options), at::empty(shape, options.dtype(c10::kLong))};
  if (x.dim() == 4)
    for (auto &t : results) t = t.squeeze(0);
  return results;
}

Results twice(Args a) { return {at::empty_like(a[0].toTensor()), at::empty_like(a[0].toTensor())}; }
Results prelu_backward(Args a) { return {at::empty_like(a[1].toTensor()), at::empty_like(a[1].toTensor())}; }

at::DimVector reduced(const at::Tensor &x, c10::IntArrayRef dims, bool keepdim) {
  return at::native::shape_from_dim_mask(x, at::native::make_dim_mask(dims, x.dim()), keepdim);
}

// (self, dim, correction, keepdim)
Results variance(Args a) {
  auto x = a[0].toTensor();
  auto type = x.scalar_type();
  if (!at::isFloatingType(type) && !at::isComplexType(type))
    throw ArgumentError("std and var are for floating-point and complex tensors, got one of " +
                        std::string(c10::toString(type)));
  auto shape = reduced(x, a[1].isNone() ? Shape{} : a[1].toIntVector(), a[3].toBool());
  return {empty(shape, x, c10::toRealValueType(type))};
}
Results variance_mean(Args a) {
  auto out = variance(a);
  out.push_back(empty(out[0].sizes(), a[0].toTensor()));
  return out;
}

// (self, dim, keepdim)
Results extreme(Args a) {
  auto x = a[0].toTensor();
  auto shape = reduced(x, a[1].toInt(), a[2].toBool());
  return {empty(shape, x), empty(shape, x, c10::kLong)};
}

// (v, g, dim)
Results weight_norm(Args a) {
  auto v = a[0].toTensor(), g = a[1].toTensor();
  return {at::empty_like(v), at::empty_like(g)};
}
Results weight_norm_backward(Args a) { return {at::empty_like(a[1].toTensor()), at::empty_like(a[2].toTensor())}; }

// (input, w_ih, w_hh, b_ih, b_hh, hx, cx, reverse, batch_sizes, mode, hidden_size, …, train): input (T, N, C).
Results rnn_layer(Args a) {
  auto x = a[0].toTensor();
  int64_t steps = x.size(0), n = x.size(1), hidden = a[10].toInt();
  // oneDNN keeps the gates and states of each step, 64 bytes an element, and copies the weights while it runs:
  // measured with libtorch 2.15.
  int64_t workspace = a[15].toBool() ? steps * n * hidden * 64 : 0;
  Results out{empty({steps, n, hidden}, x), at::empty_like(a[5].toTensor()), at::empty_like(a[6].toTensor()),
              empty({workspace}, x, c10::kByte)};
  Results scratch{at::empty_like(a[1].toTensor()), at::empty_like(a[2].toTensor())};
  return out;
}
// (input, w1, w2, w3, w4, hx, cx, output, …)
Results rnn_layer_backward(Args a) {
  Results out{at::empty_like(a[0].toTensor()), at::empty_like(a[1].toTensor()), at::empty_like(a[2].toTensor()),
              at::empty_like(a[3].toTensor()), at::empty_like(a[3].toTensor()), at::empty_like(a[5].toTensor()),
              at::empty_like(a[6].toTensor())};
  // The gradients of the gates, and both weights twice: measured as above.
  Results scratch;
  for (int i = 0; i < 4; i++) scratch.push_back(at::empty_like(a[7].toTensor()));
  for (size_t i : {1, 2, 1, 2}) scratch.push_back(at::empty_like(a[i].toTensor()));
  return out;
}

// A mask that fused attention takes (sdp::check_attn_mask_shape).
bool takes_mask(const at::Tensor &q, const at::Tensor &k, const std::optional<at::Tensor> &mask) {
  if (!mask.has_value() || !mask->defined()) return true;
  if (mask->requires_grad()) return false;
  auto fits = [&](int64_t dim, int64_t n) { return mask->size(dim) == n || mask->size(dim) == 1; };
  if (!fits(-2, q.size(2)) || !fits(-1, k.size(2))) return false;
  return mask->dim() == 2 || (mask->dim() == 4 && fits(0, q.size(0)) && fits(1, q.size(1)));
}

// Attention as the CPU chooses it (sdp::select_sdp_backend_cpp). libtorch would take the meta device's by
// operators that keep the weights.
at::Tensor choose_attention(const at::Tensor &q, const at::Tensor &k, const at::Tensor &v,
                            const std::optional<at::Tensor> &mask, double dropout, bool causal,
                            std::optional<double> scale, bool gqa) {
  bool flash = at::globalContext().userEnabledFlashSDP() && dropout == 0 && q.dim() == 4 && k.dim() == 4 &&
               v.dim() == 4 && at::isFloatingType(q.scalar_type()) && q.size(3) == k.size(3) &&
               q.size(3) == v.size(3) && q.size(0) == k.size(0) && q.size(0) == v.size(0) &&
               q.size(1) == k.size(1) && q.size(1) == v.size(1) && q.size(2) != 0 && k.size(2) != 0 &&
               q.stride(3) == 1 && k.stride(3) == 1 && v.stride(3) == 1 && takes_mask(q, k, mask);
  if (flash)
    return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale));
  return std::get<0>(
      at::_scaled_dot_product_attention_math(q, k, v, mask, dropout, causal, std::nullopt, scale, gqa));
}

using Rule = Results (*)(Args);
// What an operator's results are. nullptr: the arguments that it writes to.
const std::unordered_map<std::string, Rule> &rules() {
  static const auto *table = new std::unordered_map<std::string, Rule>{
      {"relu", like<0>},
      {"hardtanh", like<0>},
      {"hardswish", like<0>},
      {"logit", like<0>},
      {"flip", like<0>},
      {"roll", like<0>},
      {"poisson", like<0>},
      {"_standard_gamma", like<0>},
      {"_logcumsumexp", like<0>},
      {"_prelu_kernel", like<0>},
      {"_masked_softmax", like<0>},
      {"native_dropout_backward", like<0>},
      {"hardtanh_backward", like<1>},
      {"hardswish_backward", like<1>},
      {"log_sigmoid_backward", like<1>},
      {"glu_backward", like<1>},
      {"mse_loss_backward", like<1>},
      {"binary_cross_entropy_backward", like<1>},
      {"nll_loss2d_backward", like<1>},
      {"_adaptive_avg_pool2d_backward", like<1>},
      {"_adaptive_avg_pool3d_backward", like<1>},
      {"max_pool3d_with_indices_backward", like<1>},
      {"reflection_pad2d_backward", like<1>},
      {"replication_pad2d_backward", like<1>},
      {"replication_pad3d_backward", like<1>},
      {"dot", inner_product},
      {"vdot", inner_product},
      {"max", scalar},
      {"min", scalar},
      {"median", scalar},
      {"nanmedian", scalar},
      {"trace", trace},
      {"mv", matrix_vector},
      {"huber_loss", loss<2>},
      {"binary_cross_entropy", loss<3>},
      {"convolution", convolution},
      {"convolution_backward", convolution_backward},
      {"native_batch_norm", batch_norm},
      {"native_batch_norm_backward", batch_norm_backward},
      {"native_layer_norm", layer_norm},
      {"native_layer_norm_backward", layer_norm_backward},
      {"native_group_norm", group_norm},
      {"native_group_norm_backward", group_norm_backward},
      {"embedding_dense_backward", embedding_backward},
      {"index_select", index_select},
      {"where.self", where},
      {"nll_loss2d_forward", nll_loss2d},
      {"_scaled_dot_product_flash_attention_for_cpu", attention},
      {"_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
      {"_adaptive_avg_pool2d", adaptive_pool<2>},
      {"_adaptive_avg_pool3d", adaptive_pool<3>},
      {"max_pool3d_with_indices", max_pool3d},
      {"log_sigmoid_forward", twice},
      {"_prelu_kernel_backward", prelu_backward},
      {"var.correction", variance},
      {"std.correction", variance},
      {"var_mean.correction", variance_mean},
      {"std_mean.correction", variance_mean},
      {"max.dim", extreme},
      {"min.dim", extreme},
      {"median.dim", extreme},
      {"_weight_norm_interface", weight_norm},
      {"_weight_norm_interface_backward", weight_norm_backward},
      {"mkldnn_rnn_layer", rnn_layer},
      {"mkldnn_rnn_layer_backward", rnn_layer_backward},
      {"relu_", nullptr},
      {"hardtanh_", nullptr},
      {"hardswish_", nullptr},
      {"logit_", nullptr},
      {"masked_fill_.Scalar", nullptr},
      {"masked_fill_.Tensor", nullptr},
      {"masked_scatter_", nullptr},
      {"index_fill_.int_Scalar", nullptr},
      {"index_fill_.int_Tensor", nullptr},
      {"where.self_out", nullptr},
      {"fill_.Scalar", nullptr},
      {"fill_.Tensor", nullptr},
      {"zero_", nullptr},
      {"bernoulli_.float", nullptr},
      {"bernoulli_.Tensor", nullptr},
      {"uniform_", nullptr},
      {"normal_", nullptr},
      {"exponential_", nullptr},
      {"cauchy_", nullptr},
      {"geometric_", nullptr},
      {"log_normal_", nullptr},
      {"smooth_l1_loss_backward.grad_input", nullptr},
      {"huber_loss_backward.out", nullptr},
      {"_amp_foreach_non_finite_check_and_unscale_", nullptr},
      {"_fused_adam_", nullptr},
      {"_fused_adam_.tensor_lr", nullptr},
      {"_fused_adamw_", nullptr},
      {"_fused_adamw_.tensor_lr", nullptr},
      {"_fused_sgd_", nullptr},
      {"_fused_sgd_.tensor_lr", nullptr},
      {"_fused_adagrad_", nullptr},
      {"_fused_adagrad_.tensor_lr", nullptr},
  };
  return *table;
}

std::string key_of(const c10::OperatorName &n) {
  return n.name.substr(n.name.find("::") + 2) + (n.overload_name.empty() ? "" : "." + n.overload_name);
}

// Calls f with the name and the tensor of each argument that has some, until f returns true.
template <class F>
void each_tensor(const c10::FunctionSchema &schema, Args args, F &&f) {
  for (size_t i = 0; i < args.size(); i++) {
    const auto &name = schema.arguments()[i].name();
    if (args[i].isTensor()) {
      if (args[i].toTensor().defined() && f(name, args[i].toTensor())) return;
    } else if (args[i].isTensorList()) {
      for (const at::Tensor &t : args[i].toTensorList())
        if (t.defined() && f(name, t)) return;
    }
  }
}

// One argument on the meta device is enough to reach follow_rule. A result that is on another device has memory to
// which nothing was written.
[[noreturn]] void refuse_mixed(const c10::FunctionSchema &schema, Args args, const at::Tensor &result) {
  std::string meta, other;
  each_tensor(schema, args, [&](const std::string &name, const at::Tensor &t) {
    auto &which = t.is_meta() ? meta : other;
    if (which.empty()) which = name;
    return !meta.empty() && !other.empty();
  });
  throw ArgumentError(schema.name() + ": " + meta + " is on the device meta and has no data, " + other +
                      " is on the device " + result.device().str());
}

// The kernel of every operator in rules().
void follow_rule(const c10::OperatorHandle &op, torch::jit::Stack *stack) {
  const auto &schema = op.schema();
  size_t n = schema.arguments().size();
  Rule rule = rules().at(key_of(op.operator_name()));
  auto args = torch::jit::last(*stack, n);
  Results out;
  if (rule != nullptr) {
    out = rule(args);
  } else if (!schema.returns().empty()) {
    for (size_t i = 0; i < n; i++) {
      const auto *alias = schema.arguments()[i].alias_info();
      if (alias != nullptr && alias->isWrite()) out.push_back(args[i].toTensor());
    }
  } else {
    // The tensors of the first argument are those that it writes to.
    for (const at::Tensor &t : args[0].toTensorList())
      if (!t.is_meta()) refuse_mixed(schema, args, t);
  }
  for (const auto &t : out)
    if (t.defined() && !t.is_meta()) refuse_mixed(schema, args, t);
  torch::jit::drop(*stack, n);
  for (auto &t : out) stack->emplace_back(std::move(t));
}

// The CPU computes an LSTM by oneDNN, in a call for each layer and direction. libtorch would compute the meta
// device's by operators for each time step. guards.cpp has checked the numbers and shapes.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm(const at::Tensor &input, at::TensorList hx,
                                                    at::TensorList params, bool has_biases, int64_t num_layers,
                                                    double dropout, bool train, bool bidirectional,
                                                    bool batch_first) {
  constexpr int64_t kMode = 2;
  size_t per = has_biases ? 4 : 2, directions = bidirectional ? 2 : 1;
  size_t layers = static_cast<size_t>(num_layers);
  if (params.size() == layers * directions * (per + 1))
    throw ArgumentError("lstm: projections have no kernel on the meta device");
  auto x = (batch_first ? input.transpose(0, 1) : input).contiguous();
  auto h = hx[0].contiguous(), c = hx[1].contiguous();
  std::vector<at::Tensor> hs, cs;
  for (size_t layer = 0; layer < layers; layer++) {
    std::vector<at::Tensor> both;
    for (size_t d = 0; d < directions; d++) {
      size_t i = layer * directions + d;
      auto w = params.slice(i * per, per);
      auto none = has_biases ? at::Tensor{} : at::zeros({w[0].size(0)}, w[0].options());
      auto out = at::mkldnn_rnn_layer(x, w[0], w[1], has_biases ? w[2] : none, has_biases ? w[3] : none,
                                      h.select(0, static_cast<int64_t>(i)), c.select(0, static_cast<int64_t>(i)),
                                      d > 0, {}, kMode, hx[0].size(2), num_layers, has_biases, bidirectional,
                                      batch_first, train);
      both.push_back(std::get<0>(out));
      hs.push_back(std::get<1>(out));
      cs.push_back(std::get<2>(out));
    }
    x = directions == 1 ? both[0] : at::cat(both, -1);
    if (dropout != 0 && train && layer + 1 < layers) x = at::dropout(x, dropout, true);
  }
  return {batch_first ? x.transpose(0, 1) : x, at::stack(hs, 0), at::stack(cs, 0)};
}
}  // namespace

void add_meta_kernels() {
  // Never destroyed: its destructor would remove the kernels.
  static auto *library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__);
  auto &dispatcher = c10::Dispatcher::singleton();
  for (const auto &[key, rule] : rules()) {
    auto dot = key.find('.');
    auto op = dispatcher.findSchema(
        {"aten::" + key.substr(0, dot), dot == std::string::npos ? "" : key.substr(dot + 1)});
    // Another libtorch may have the kernel or lack the operator.
    if (!op.has_value() || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) continue;
    library->impl(key.c_str(), torch::CppFunction::makeFromBoxedFunction<&follow_rule>());
  }
  static auto *composite =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradMeta, __FILE__, __LINE__);
  composite->impl("lstm.input", lstm);
  composite->impl("scaled_dot_product_attention", choose_attention);
}

}  // namespace ls

// Layers that are several operators in one call.
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "shim.h"

namespace {
// Returns the activation of y, which has no other owner: where autograd does not record it, y itself, overwritten.
at::Tensor activated(at::Tensor y, int32_t activation) {
  bool over = !y.requires_grad() && (y.key_set() & ls::kOddKeys).empty();
  switch (activation) {
    case LS_ACTIVATION_RELU:
      return over ? at::relu_(y) : at::relu(y);
    case LS_ACTIVATION_SIGMOID:
      return over ? at::sigmoid_(y) : at::sigmoid(y);
    case LS_ACTIVATION_TANH:
      return over ? at::tanh_(y) : at::tanh(y);
    case LS_ACTIVATION_SILU:
      return over ? at::silu_(y) : at::silu(y);
    case LS_ACTIVATION_GELU:
      return over ? at::gelu_(y) : at::gelu(y);
    case LS_ACTIVATION_GELU_TANH:
      return over ? at::gelu_(y, "tanh") : at::gelu(y, "tanh");
    default:
      throw ls::ArgumentError("activation " + std::to_string(activation) + " is unknown");
  }
}
}  // namespace

ls_result ls_linear_activation(ls_tensor input, ls_tensor weight, ls_tensor bias, int32_t activation) noexcept {
  return ls::run([&] {
    ls::Borrowed b_input(input), b_weight(weight);
    ls::check_layouts("aten::linear", "", {input, weight, bias});
    at::Tensor y = at::linear(ls::need(b_input, "input"), ls::need(b_weight, "weight"), ls::optional_of(bias));
    ls::check_layouts("aten::relu", "", {reinterpret_cast<ls_tensor>(y.unsafeGetTensorImpl())});
    return activated(std::move(y), activation);
  });
}

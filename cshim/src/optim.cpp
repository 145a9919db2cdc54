// Optimizers' steps: what every training loop does for all its parameters, in one call.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "shim.h"

namespace {
// The kernel walks the memory of all as if it were laid out alike, and checks nothing.
void check_alike(const at::Tensor &param, const at::Tensor &other, uint64_t i, const char *what) {
  if (!other.defined() || !other.sizes().equals(param.sizes()) || !other.strides().equals(param.strides()) ||
      other.scalar_type() != param.scalar_type() || other.device() != param.device())
    throw ls::ArgumentError("Adam: the " + std::string(what) + " of parameter " + std::to_string(i) +
                            " differs from it in shape, strides, dtype or device");
}
}  // namespace

ls_error *ls_adam_step(const ls_adam *how, uint64_t n, const ls_tensor *params, const ls_tensor *avgs,
                       const ls_tensor *sqs, const ls_tensor *maxs, const ls_tensor *steps) noexcept {
  return ls::run_void([&] {
    c10::AutoGradMode off(false);
    std::vector<at::Tensor> p, g, a, s, m, t;
    for (auto *v : {&p, &g, &a, &s, &t}) v->reserve(n);
    for (uint64_t i = 0; i < n; i++) {
      at::Tensor param = ls::copy_of(params[i]);
      if (!param.defined()) throw ls::ArgumentError("Adam: parameter " + std::to_string(i) + " is none");
      at::Tensor grad = param.grad();
      if (!grad.defined()) continue;
      if (!param.is_non_overlapping_and_dense())
        throw ls::ArgumentError("Adam: parameter " + std::to_string(i) + " is not dense in memory");
      if (grad.layout() == c10::kStrided && !grad.strides().equals(param.strides()))
        grad = at::empty_like(param).copy_(grad);
      check_alike(param, grad, i, "gradient");
      a.push_back(ls::copy_of(avgs[i]));
      check_alike(param, a.back(), i, "average");
      s.push_back(ls::copy_of(sqs[i]));
      check_alike(param, s.back(), i, "square");
      if (maxs != nullptr) {
        m.push_back(ls::copy_of(maxs[i]));
        check_alike(param, m.back(), i, "maximum");
      }
      t.push_back(ls::copy_of(steps[i]));
      if (!t.back().defined() || t.back().numel() != 1 || t.back().scalar_type() != c10::kFloat)
        throw ls::ArgumentError("Adam: the step of parameter " + std::to_string(i) + " must be a float32 scalar");
      g.push_back(std::move(grad));
      p.push_back(std::move(param));
    }
    if (p.empty()) return;
    at::_foreach_add_(t, 1);
    auto fused = [&](auto kernel) {
      kernel(p, g, a, s, m, t, how->lr, how->beta1, how->beta2, how->weight_decay, how->eps, how->amsgrad != 0,
             how->maximize != 0);
    };
    if (how->decoupled != 0)
      fused([](auto &&...args) { at::_fused_adamw_(args...); });
    else
      fused([](auto &&...args) { at::_fused_adam_(args...); });
  });
}

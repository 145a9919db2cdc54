// Optimizers' steps: what every training loop does for all its parameters, in one call.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/core/GradMode.h>

#include "shim.h"

ls_error *ls_adam_step(const ls_adam *how, uint64_t n, const ls_tensor *params, const ls_tensor *avgs,
                       const ls_tensor *sqs, const ls_tensor *maxs, const ls_tensor *steps) noexcept {
  return ls::run_void([&] {
    c10::AutoGradMode off(false);
    std::vector<at::Tensor> p, g, a, s, m, t;
    for (auto *v : {&p, &g, &a, &s, &t}) v->reserve(n);
    for (uint64_t i = 0; i < n; i++) {
      at::Tensor param = ls::copy_of(params[i]);
      if (!param.defined()) throw ls::ArgumentError("Adam: parameter " + std::to_string(i) + " is none");
      if (!param.grad().defined()) continue;
      g.push_back(param.grad());
      p.push_back(std::move(param));
      a.push_back(ls::copy_of(avgs[i]));
      s.push_back(ls::copy_of(sqs[i]));
      if (maxs != nullptr) m.push_back(ls::copy_of(maxs[i]));
      t.push_back(ls::copy_of(steps[i]));
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

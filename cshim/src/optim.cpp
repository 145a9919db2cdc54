// Steps of optimizers for all parameters in one call.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <bit>
#include <mutex>

#include "grads.h"
#include "shim.h"

namespace {
// The kernel assumes that all tensors have the same layout, and checks nothing.
void check_alike(const at::Tensor &param, const at::Tensor &other, uint64_t i, const char *what) {
  auto differs = [&](const std::string &how) {
    return ls::ArgumentError("the " + std::string(what) + " of parameter " + std::to_string(i) + how);
  };
  if (!other.defined()) throw differs(" is none");
  if (other.layout() != param.layout()) throw differs(c10::str(" is not dense: its layout is ", other.layout()));
  auto equal = [&](const char *property, const auto &theirs, const auto &its) {
    if (theirs != its) throw differs(c10::str(" has the ", property, " ", theirs, ", it has ", its));
  };
  equal("shape", other.sizes(), param.sizes());
  equal("strides", other.strides(), param.strides());
  equal("dtype", other.scalar_type(), param.scalar_type());
  equal("device", other.device(), param.device());
}

// Handles as the list that a kernel takes, without a change of their reference counts.
class BorrowedList {
 public:
  explicit BorrowedList(uint64_t n) { list_.reserve(n); }
  ~BorrowedList() {
    for (auto &t : list_) (void)t.unsafeReleaseTensorImpl();
  }
  BorrowedList(const BorrowedList &) = delete;
  BorrowedList &operator=(const BorrowedList &) = delete;
  // The list has room: nothing can throw between a handle's borrow and its entry in the list.
  const at::Tensor &add(ls_tensor h) {
    ls::Borrowed b(h);
    using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
    return list_.emplace_back(Pointer::reclaim(b.get().unsafeGetTensorImpl()));
  }
  at::TensorList get() const { return list_; }

 private:
  std::vector<at::Tensor> list_;
};

// Adds one to each. For a few numbers on the CPU an operator costs a hundred times the addition.
void count_steps(at::TensorList steps) {
  for (const auto &t : steps) {
    if (!t.is_cpu() || t.is_inference()) return at::_foreach_add_(steps, 1);
  }
  for (const auto &t : steps) {
    *t.mutable_data_ptr<float>() += 1;
    t.unsafeGetTensorImpl()->bump_version();
  }
}

// The upper half of a float32 is the bfloat16 below it in magnitude. Adding 16 random bits to the lower half
// carries with the probability that the lower half stands for.
c10::BFloat16 rounded(float value, uint32_t noise) {
  auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7f800000U) == 0x7f800000U) return value;
  return {static_cast<uint16_t>((bits + noise) >> 16), c10::BFloat16::from_bits()};
}

// The random bits depend on the seed and the position alone, not on the number of threads.
void round_on_cpu(c10::BFloat16 *to, const float *from, int64_t n) {
  auto *g = at::check_generator<at::CPUGeneratorImpl>(at::globalContext().defaultGenerator(c10::kCPU));
  uint64_t seed;
  {
    std::lock_guard<std::mutex> lock(g->mutex_);
    seed = g->random64();
  }
  constexpr int64_t kBlock = 4096;
  at::parallel_for(0, (n + kBlock - 1) / kBlock, 8, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; block++) {
      at::Philox4_32 engine(seed, static_cast<uint64_t>(block));
      int64_t i = block * kBlock, end = std::min(n, i + kBlock);
      for (; i < end; i += 2) {
        uint32_t noise = engine();
        to[i] = rounded(from[i], noise & 0xffffU);
        if (i + 1 < end) to[i + 1] = rounded(from[i + 1], noise >> 16);
      }
    }
  });
}
}  // namespace

ls_error *ls_round_stochastic(ls_tensor to, ls_tensor from) noexcept {
  return ls::run_void([&] {
    ls::Borrowed borrowed_to(to), borrowed_from(from);
    at::Tensor t = ls::need(borrowed_to, "to"), f = ls::need(borrowed_from, "from");
    if (t.scalar_type() != c10::kBFloat16 || f.scalar_type() != c10::kFloat || !t.sizes().equals(f.sizes()) ||
        t.device() != f.device())
      throw ls::ArgumentError("stochastic rounding: want a float32 and a bfloat16 tensor of one shape and device");
    c10::AutoGradMode off(false);
    if (f.is_neg() || f._is_zerotensor()) f = f.clone();
    if (t.is_cpu() && !t.is_neg() && t.is_non_overlapping_and_dense() && f.strides().equals(t.strides())) {
      round_on_cpu(t.mutable_data_ptr<c10::BFloat16>(), f.const_data_ptr<float>(), t.numel());
      if (!t.is_inference()) t.unsafeGetTensorImpl()->bump_version();
      return;
    }
    f = f.contiguous();
    at::Tensor noise = at::randint(65536, f.sizes(), f.options().dtype(c10::kInt));
    at::Tensor sum = noise.add_(f.view(c10::kInt)).bitwise_and_(-65536).view(c10::kFloat);
    t.copy_(at::where(at::isfinite(f), sum, f));
  });
}

ls_error *ls_adam_step(const ls_adam *how, uint64_t n, const ls_tensor *params, const ls_tensor *avgs,
                       const ls_tensor *sqs, const ls_tensor *maxs, const ls_tensor *steps) noexcept {
  return ls::run_void([&] {
    c10::AutoGradMode off(false);
    BorrowedList p(n), a(n), s(n), m(maxs == nullptr ? 0 : n), t(n);
    std::vector<at::Tensor> g;
    g.reserve(n);
    for (uint64_t i = 0; i < n; i++) {
      ls::Borrowed borrowed(params[i]);
      const at::Tensor &param = borrowed.get();
      if (!param.defined()) throw ls::ArgumentError("parameter " + std::to_string(i) + " is none");
      at::Tensor grad = ls::grad_of(param);
      if (!grad.defined()) continue;
      if (!param.is_non_overlapping_and_dense())
        throw ls::ArgumentError("parameter " + std::to_string(i) + " is not dense in memory");
      if (grad.layout() == c10::kStrided && !grad.strides().equals(param.strides()))
        grad = at::empty_like(param).copy_(grad);
      check_alike(param, grad, i, "gradient");
      check_alike(param, a.add(avgs[i]), i, "average");
      check_alike(param, s.add(sqs[i]), i, "square");
      if (maxs != nullptr) check_alike(param, m.add(maxs[i]), i, "maximum");
      const at::Tensor &step = t.add(steps[i]);
      if (!step.defined() || step.numel() != 1 || step.scalar_type() != c10::kFloat)
        throw ls::ArgumentError("the step of parameter " + std::to_string(i) + " must be a float32 scalar");
      g.push_back(std::move(grad));
      p.add(params[i]);
    }
    if (g.empty()) return;
    count_steps(t.get());
    auto fused = [&](auto kernel) {
      kernel(p.get(), g, a.get(), s.get(), m.get(), t.get(), how->lr, how->beta1, how->beta2, how->weight_decay,
             how->eps, how->amsgrad != 0, how->maximize != 0);
    };
    if (how->decoupled != 0)
      fused([](auto &&...args) { at::_fused_adamw_(args...); });
    else
      fused([](auto &&...args) { at::_fused_adam_(args...); });
  });
}

#include "grads.h"

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "hooks.h"
#include "passes.h"
#include "shim.h"

namespace ls {
namespace {

using torch::autograd::AutogradMeta;
using torch::autograd::Node;

// Gives access to the mutex of a node, which is protected.
struct NodeMutex : Node {
  static std::mutex &of(Node &node) { return node.*(&NodeMutex::mutex_); }
};

AutogradMeta *meta_of(const at::Tensor &x) { return torch::autograd::impl::get_autograd_meta(x); }

// Makes the metadata of x if there is none. libtorch leaves it to the caller that two threads do not do so at
// once.
void make_meta(const at::Tensor &x) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  torch::autograd::impl::materialize_autograd_meta(x);
}

// Returns the gradient of x for a user. Like Tensor::grad, it warns of a tensor that keeps none.
at::Tensor read_grad(const at::Tensor &x) {
  at::Tensor grad = grad_of(x);
  if (!grad.defined() && !x.is_leaf()) (void)x.grad();
  return grad;
}

// Sets the gradient of x, and returns the one before, for the caller to free without the lock.
at::Tensor exchange_grad(const at::Tensor &x, at::Tensor grad) {
  GradLock lock(x);
  if (!lock.owns()) return {};  // no metadata, so no gradient
  return std::exchange(x.mutable_grad(), std::move(grad));
}

// Keeps the gradient of a tensor that is no leaf, as libtorch's own hook does, but under the lock.
class RetainGrad final : public torch::autograd::FunctionPreHook {
 public:
  explicit RetainGrad(const at::Tensor &x) : x_(x.getIntrusivePtr()), output_(x.output_nr()) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list &grads) override {
    auto impl = x_.lock();
    if (!impl) return grads;
    at::Tensor x(std::move(impl));
    const at::Tensor &grad = grads.at(output_);
    if (!grad.defined()) return grads;
    at::Tensor now = grad_of(x);
    if (now.defined())
      now = at::add(now, grad);
    else
      now = grad.is_sparse() ? grad.clone() : grad.clone(at::MemoryFormat::Contiguous);
    exchange_grad(x, std::move(now));
    return grads;
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> x_;
  uint32_t output_;
};

}  // namespace

NodePtr accumulator_of(const at::Tensor &leaf) {
  AutogradMeta *meta = meta_of(leaf);
  if (meta == nullptr) return {};
  std::lock_guard<std::mutex> lock(meta->mutex_);
  return meta->grad_accumulator_.lock();
}

bool is_leaf(const at::Tensor &x) {
  if (!x.is_leaf()) return false;
  auto *view = torch::autograd::impl::get_view_autograd_meta(x);
  if (view == nullptr || !view->has_bw_view()) return true;
  // As in libtorch's grad_fn, without making the node: that may fail.
  std::lock_guard<std::mutex> lock(view->mutex_);
  if (view->grad_fn_) return false;
  return view->get_attr_version() == x._version() || !view->get_backward_view().base_.requires_grad();
}

GradLock::GradLock(const at::Tensor &x, bool wait) {
  auto take = [wait](std::mutex &mutex) {
    std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
    if (wait)
      lock.lock();
    else
      (void)lock.try_lock();
    return lock;
  };
  AutogradMeta *meta = meta_of(x);
  if (meta == nullptr) return;
  lock_ = take(meta->mutex_);
  if (!lock_.owns_lock()) return;
  node_ = meta->grad_accumulator_.lock();
  if (!node_) return;
  meta_ = &meta->mutex_;
  lock_.unlock();
  lock_ = take(NodeMutex::of(*node_));
}

GradLock::~GradLock() {
  if (!node_) return;
  lock_ = {};
  // The next thread may find no node, or another one, and must see what this one wrote.
  std::lock_guard<std::mutex> lock(*meta_);
  node_ = {};
}

void retain_grad(const at::Tensor &x) {
  if (!x.requires_grad() || is_leaf(x) || x.retains_grad()) {
    x.retain_grad();  // nothing to do, or an error
    return;
  }
  const auto &fn = x.grad_fn();
  change_node(*fn, [&] {
    if (x.retains_grad()) return;
    fn->add_retains_grad_hook(std::make_unique<RetainGrad>(x), x.output_nr());
    meta_of(x)->retains_grad_ = true;
  });
}

at::Tensor grad_of(const at::Tensor &x) {
  GradLock lock(x);
  return x.unsafeGetTensorImpl()->grad();
}

}  // namespace ls

using ls::Borrowed;

ls_error *ls_tensor_set_requires_grad(ls_tensor t, int32_t on) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    const at::Tensor &x = ls::need(b, "requires_grad");
    if (on == 0 && !ls::is_leaf(x))
      throw ls::ArgumentError("only a leaf can stop requiring gradients; Detach gives a tensor that does not");
    if (on != 0 && !torch::autograd::isDifferentiableType(x.scalar_type()))
      throw ls::ArgumentError("only floating-point and complex tensors can require gradients");
    if (on != 0) ls::make_meta(x);
    x.set_requires_grad(on != 0);
    if (on != 0 && ls::is_leaf(x)) ls::make_hooks(x);
  });
}

ls_error *ls_tensor_retain_grad(ls_tensor t) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    ls::retain_grad(ls::need(b, "retain_grad"));
  });
}

ls_result ls_tensor_grad(ls_tensor t) noexcept {
  return ls::run([&] {
    Borrowed b(t);
    return ls::read_grad(ls::need(b, "grad"));
  });
}

ls_result ls_tensor_try_grad(ls_tensor t) noexcept {
  return ls::run([&] {
    Borrowed b(t, Borrowed::Metadata{});
    const at::Tensor &x = ls::need(b, "grad");
    ls::GradLock lock(x, std::try_to_lock);
    return lock.owns() ? x.unsafeGetTensorImpl()->grad() : at::Tensor();
  });
}

ls_error *ls_tensor_set_grad(ls_tensor t, ls_tensor grad) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    const at::Tensor &x = ls::need(b, "grad");
    at::Tensor g = ls::copy_of(grad);
    if (g.defined()) {
      if (!g.sizes().equals(x.sizes())) throw ls::ArgumentError("a gradient must have its tensor's shape");
      if (g.scalar_type() != x.scalar_type()) throw ls::ArgumentError("a gradient must have its tensor's dtype");
      if (g.device() != x.device()) throw ls::ArgumentError("a gradient must be on its tensor's device");
      if (g.is_same(x)) throw ls::ArgumentError("a tensor cannot be its own gradient");
      ls::make_meta(x);
    }
    ls::exchange_grad(x, std::move(g));
  });
}

ls_error *ls_tensors_grad(const ls_tensor *t, uint64_t n, ls_tensor *out) noexcept {
  std::fill(out, out + n, 0);
  ls_error *err = ls::run_void([&] {
    for (uint64_t i = 0; i < n; i++) {
      Borrowed b(t[i]);
      out[i] = ls::give(ls::read_grad(ls::need(b, "grad")));
    }
  });
  if (err != nullptr) {
    ls_tensors_free(out, n);
    std::fill(out, out + n, 0);
  }
  return err;
}

ls_error *ls_tensors_zero_grad(const ls_tensor *t, uint64_t n, int32_t zero) noexcept {
  return ls::run_void([&] {
    for (uint64_t i = 0; i < n; i++) {
      Borrowed b(t[i]);
      const at::Tensor &x = ls::need(b, "grad");
      if (zero == 0) {
        ls::exchange_grad(x, {});
        continue;
      }
      at::Tensor g = ls::grad_of(x);
      if (!g.defined()) continue;
      c10::AutoGradMode no_grad(false);
      if (g.grad_fn() != nullptr)
        g.detach_();
      else
        g.set_requires_grad(false);
      g.zero_();
    }
  });
}

#include "hooks.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "debuginfo.h"
#include "grads.h"
#include "shim.h"

namespace ls {
namespace {

class MultiHook;

// What one MultiHook has received in one pass.
struct Received {
  std::vector<at::Tensor> grads;
  size_t count = 0, expected = 0;
};

// Among libtorch's thread-local state, which a pass takes to the engine's threads.
struct PassInfo : c10::DebugInfoBase {
  std::mutex mutex;
  std::map<const MultiHook *, Received> received;  // the pass keeps the hooks alive
  ~PassInfo() override {
    for (auto &[hook, r] : received)
      for (auto &g : r.grads) discard(std::move(g));
  }
};

constexpr std::string_view kPass = "linstock::Pass";
c10::DebugInfoKind pass_kind() { return debug_info_kind<kPass, 0x4d>(); }

// The weak counterpart of a pointer to a node.
template <class Pointer>
struct WeakOf;
template <class T>
struct WeakOf<std::shared_ptr<T>> {
  using type = std::weak_ptr<T>;
};
template <class T, class Null>
struct WeakOf<c10::intrusive_ptr<T, Null>> {
  using type = c10::weak_intrusive_ptr<T, Null>;
};
using WeakNode = WeakOf<NodePtr>::type;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The node of a tensor that has a hook. The hook must not hold it: the node holds the hook.
class Watched {
 public:
  explicit Watched(const at::Tensor &t) : node_(t.grad_fn()), leaf_(t.getIntrusivePtr()), is_leaf_(t.is_leaf()) {}
  // Reports whether the current pass computes the tensor's gradient.
  bool in_pass() const {
    NodePtr node;
    if (!is_leaf_) {
      node = node_.lock();
    } else if (auto impl = leaf_.lock()) {
      node = accumulator_of(at::Tensor(std::move(impl)));
    }
    if (!node) return false;
    auto *nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
    if (nodes == nullptr || nodes->count(node.get()) == 0) return false;
    auto *execute = torch::autograd::get_current_graph_task_exec_info();
    if (execute == nullptr || execute->empty()) return true;
    auto it = execute->find(node.get());
    return it != execute->end() && it->second.should_execute();
  }

 private:
  WeakNode node_;
  WeakTensor leaf_;
  bool is_leaf_;
};

std::atomic<int64_t> live{0};

class MultiHook {
 public:
  MultiHook(uint64_t id, bool any, const std::vector<at::Tensor> &tensors) : ticket_(hold(id)), any_(any) {
    for (const auto &t : tensors) watched_.emplace_back(t);
    live.fetch_add(1);
  }
  ~MultiHook() { live.fetch_sub(1); }
  MultiHook(const MultiHook &) = delete;
  MultiHook &operator=(const MultiHook &) = delete;

  // Called with the gradient of the i-th tensor.
  void receive(size_t i, const at::Tensor &grad) const {
    auto *pass = static_cast<PassInfo *>(c10::ThreadLocalDebugInfo::get(pass_kind()));
    if (pass == nullptr) return;  // registered since the pass began
    std::vector<at::Tensor> all;
    {
      std::lock_guard<std::mutex> lock(pass->mutex);
      auto &r = pass->received[this];
      bool first = r.count++ == 0;
      if (any_) {
        if (!first) return;
      } else {
        if (first) {
          r.grads.resize(watched_.size());
          for (const auto &w : watched_) r.expected += w.in_pass();
        }
        r.grads[i] = grad;
        if (r.count != r.expected) return;
        all = std::exchange(r.grads, std::vector<at::Tensor>(watched_.size()));
      }
    }
    uint64_t failed;
    if (any_) {
      ls_tensor none = 0;
      failed = callbacks.hook(
          ticket_->id, reinterpret_cast<ls_tensor>(grad.defined() ? grad.unsafeGetTensorImpl() : nullptr), &none);
    } else {
      Lent lent(all);
      failed = callbacks.backward(ticket_->id, lent.data(), lent.size(), nullptr, 0, nullptr, nullptr, 0);
    }
    if (failed != 0) throw CallbackError(failed, "a hook of several tensors failed");
  }

 private:
  std::shared_ptr<Ticket> ticket_;
  bool any_;
  std::vector<Watched> watched_;
};

}  // namespace

HooksOfPass::HooksOfPass() {
  if (live.load() != 0) guard_.emplace(pass_kind(), std::make_shared<PassInfo>());
}

}  // namespace ls

ls_error *ls_multi_hook_register(const ls_tensor *tensors, uint64_t n, uint64_t id, int32_t any,
                                 uint32_t *slots) noexcept {
  return ls::run_void([&] {
    auto list = ls::tensors_of(tensors, n);
    for (const auto &t : list) {
      if (!t.defined()) throw ls::ArgumentError("hook: a tensor is needed, got none");
      if (any == 0 && !t.requires_grad()) throw ls::ArgumentError("a hook needs tensors that require gradients");
    }
    auto hook = std::make_shared<ls::MultiHook>(id, any != 0, list);
    uint64_t made = 0;
    try {
      for (; made < n; made++) {
        if (!list[made].requires_grad()) continue;
        slots[made] = list[made].register_hook([hook, i = static_cast<size_t>(made)](const at::Tensor &grad) {
          hook->receive(i, grad);
          return at::Tensor();
        });
      }
    } catch (...) {
      while (made-- > 0)
        if (list[made].requires_grad()) list[made].remove_hook(slots[made]);
      throw;
    }
  });
}

ls_error *ls_pass_end(uint64_t id) noexcept {
  return ls::run_void([&] {
    torch::autograd::Engine::get_default_engine().queue_callback([ticket = ls::hold(id)] {
      ls_tensor none = 0;
      uint64_t failed = ls::callbacks.hook(ticket->id, 0, &none);
      if (failed != 0) throw ls::CallbackError(failed, "a function at the end of a backward pass failed");
    });
  });
}

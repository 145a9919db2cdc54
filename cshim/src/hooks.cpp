#include "hooks.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "debuginfo.h"
#include "grads.h"
#include "shim.h"

namespace ls {
namespace {

using torch::autograd::variable_list;

// The hooks of a leaf, or of the outputs of a node. libtorch's own list of hooks has no lock: a thread that
// changed it would disturb the passes of others.
class TensorHooks final : public torch::autograd::FunctionPreHook {
 public:
  variable_list operator()(const variable_list &grads) override {
    // The engine passes its own list, and takes the result for it: a reference of this function would keep a
    // leaf's gradient from becoming its .grad without a copy.
    variable_list result = std::move(const_cast<variable_list &>(grads));
    if (count_.load(std::memory_order_acquire) == 0) return result;
    std::vector<Entry> now;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      now = hooks_;
    }
    for (const auto &[number, output, hook] : now) {
      at::Tensor &grad = result.at(output);
      at::Tensor replaced = (*hook)(grad);
      if (!replaced.defined()) continue;
      TORCH_CHECK(grad.defined(), "can't replace a empty gradient with a non-empty value");
      torch::autograd::check_variable_result(grad, replaced, std::to_string(number));
      grad = std::move(replaced);
    }
    return result;
  }
  uint32_t add(uint32_t output, TensorHook f) {
    auto hook = std::make_shared<const TensorHook>(std::move(f));
    std::lock_guard<std::mutex> lock(mutex_);
    hooks_.push_back({next_, output, std::move(hook)});
    count_.store(hooks_.size(), std::memory_order_release);
    return next_++;
  }
  void remove(uint32_t number) {
    std::shared_ptr<const TensorHook> last;  // destroyed without the lock
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = hooks_.begin(); it != hooks_.end(); ++it) {
      if (it->number != number) continue;
      last = std::move(it->hook);
      hooks_.erase(it);
      count_.store(hooks_.size(), std::memory_order_release);
      return;
    }
  }

 private:
  struct Entry {
    uint32_t number, output;
    std::shared_ptr<const TensorHook> hook;
  };
  std::mutex mutex_;
  std::vector<Entry> hooks_;
  std::atomic<size_t> count_{0};  // of hooks_
  uint32_t next_ = 0;
};

using PreHooks = std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>;

TensorHooks *find(const PreHooks &hooks) {
  for (const auto &hook : hooks) {
    if (auto *h = dynamic_cast<TensorHooks *>(hook.get())) return h;
  }
  return nullptr;
}

// Guards lists of libtorch in which find looks for hooks.
std::mutex lists;

// Calls f with x's hooks, which are made if make; without hooks it is not called.
template <class F>
void with_hooks(const at::Tensor &x, bool make, F f) {
  NodePtr node = x.grad_fn();  // x may get another one meanwhile
  std::lock_guard<std::mutex> lock(lists);
  auto *hooks = find(node ? node->tensor_pre_hooks() : torch::autograd::impl::hooks(x));
  if (hooks == nullptr && make) {
    auto made = std::make_unique<TensorHooks>();
    hooks = made.get();
    if (node) {
      change_node(*node, [&] { node->add_tensor_pre_hook(std::move(made)); });
    } else if (NodePtr accumulator = accumulator_of(x)) {
      change_node(*accumulator, [&] { torch::autograd::impl::add_hook(x, std::move(made)); });
    } else {
      torch::autograd::impl::add_hook(x, std::move(made));
    }
  }
  if (hooks != nullptr) f(*hooks);
}

// Numbers hooks of several tensors, and passes: one that began before the hook was registered does not call it.
std::atomic<uint64_t> next_number{1};

// What one MultiHook has received in one pass.
struct Received {
  std::vector<at::Tensor> grads;
  size_t count = 0, expected = 0;
};

// Among libtorch's thread-local state, which a pass takes to the engine's threads.
struct PassInfo : c10::DebugInfoBase, std::enable_shared_from_this<PassInfo> {
  const Flight &pass;  // not to be read after the pass, in which a copy of the state may have been made
  const uint64_t number = next_number.fetch_add(1);
  std::mutex mutex;
  std::map<uint64_t, Received> received;  // by the number of the hook
  explicit PassInfo(const Flight &pass) : pass(pass) {}
  ~PassInfo() override {
    for (auto &[hook, r] : received)
      for (auto &g : r.grads) discard(std::move(g));
  }
};

constexpr std::string_view kPass = "linstock::Pass";
c10::DebugInfoKind pass_kind() { return debug_info_kind<kPass, 0x4d>(); }
PassInfo *current_info() noexcept { return static_cast<PassInfo *>(c10::ThreadLocalDebugInfo::get(pass_kind())); }

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The node of a tensor that has a hook. The hook must not hold it, because the node holds the hook. Nor may it
// hold it weakly: a node that is released but not destroyed keeps the accumulators of the leaves that it has saved
// under a policy, and with them the leaves and their hooks.
class Watched {
 public:
  explicit Watched(const at::Tensor &t) : leaf_(t.getIntrusivePtr()), is_leaf_(t.is_leaf()) {
    if (is_leaf_) return;
    NodePtr node = t.grad_fn();
    node_ = node.get();
    sequence_ = node->sequence_nr();
    thread_ = node->thread_id();
  }
  // Reports whether the current pass computes the tensor's gradient.
  bool in_pass() const {
    NodePtr accumulator;
    auto *node = node_;
    if (is_leaf_) {
      if (auto impl = leaf_.lock()) accumulator = accumulator_of(at::Tensor(std::move(impl)));
      node = accumulator.get();
    }
    auto *nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
    if (node == nullptr || nodes == nullptr || nodes->count(node) == 0) return false;
    // Another node may have the address of one that is gone.
    if (!is_leaf_ && (node->sequence_nr() != sequence_ || node->thread_id() != thread_)) return false;
    auto *execute = torch::autograd::get_current_graph_task_exec_info();
    if (execute == nullptr || execute->empty()) return true;
    auto it = execute->find(node);
    return it != execute->end() && it->second.should_execute();
  }

 private:
  torch::autograd::Node *node_ = nullptr;
  uint64_t sequence_ = 0, thread_ = 0;
  WeakTensor leaf_;
  bool is_leaf_;
};

class MultiHook {
 public:
  MultiHook(uint64_t id, bool any, const std::vector<at::Tensor> &tensors) : ticket_(hold(id)), any_(any) {
    for (const auto &t : tensors) watched_.emplace_back(t);
  }
  MultiHook(const MultiHook &) = delete;
  MultiHook &operator=(const MultiHook &) = delete;

  // Called once all tensors have the hook: passes that begin from now on call it.
  void start() { number_.store(next_number.fetch_add(1)); }

  // Called with the gradient of the i-th tensor.
  void receive(size_t i, const at::Tensor &grad) const {
    auto *pass = current_info();
    uint64_t number = number_.load();
    if (pass == nullptr || number > pass->number) return;  // registered since the pass began
    std::vector<at::Tensor> all;
    {
      std::lock_guard<std::mutex> lock(pass->mutex);
      auto &r = pass->received[number];
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
  std::atomic<uint64_t> number_{UINT64_MAX};
};

}  // namespace

HooksOfPass::HooksOfPass(const Flight &pass) : HooksOfPass(std::make_shared<PassInfo>(pass)) {}
HooksOfPass::HooksOfPass(std::shared_ptr<c10::DebugInfoBase> info) : guard_(pass_kind(), std::move(info)) {}

std::shared_ptr<c10::DebugInfoBase> pass_info() noexcept {
  auto *info = current_info();
  return info == nullptr ? nullptr : info->shared_from_this();
}

const Flight *current_pass() noexcept {
  auto *info = current_info();
  return info == nullptr ? nullptr : &info->pass;
}

uint32_t add_hook(const at::Tensor &x, TensorHook f) {
  uint32_t number = 0;
  with_hooks(x, true, [&](TensorHooks &hooks) { number = hooks.add(x.output_nr(), std::move(f)); });
  return number;
}

void remove_hook(const at::Tensor &x, uint32_t number) {
  with_hooks(x, false, [&](TensorHooks &hooks) { hooks.remove(number); });
}

void make_hooks(const at::Tensor &leaf) {
  with_hooks(leaf, true, [](TensorHooks &) {});
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
        slots[made] = ls::add_hook(list[made], [hook, i = static_cast<size_t>(made)](const at::Tensor &grad) {
          hook->receive(i, grad);
          return at::Tensor();
        });
      }
    } catch (...) {
      while (made-- > 0)
        if (list[made].requires_grad()) ls::remove_hook(list[made], slots[made]);
      throw;
    }
    hook->start();
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

// Autograd: backward, gradients, hooks, functions whose backward is a callback.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <type_traits>
#include <unordered_set>

#include "anomaly.h"
#include "autocast.h"
#include "grads.h"
#include "hooks.h"
#include "memory.h"
#include "passes.h"
#include "saved.h"
#include "shim.h"
#include "trace.h"

namespace ls {

ls_callbacks callbacks{nullptr, nullptr, nullptr};

namespace {

std::mutex dropped_mutex;
Ticket *dropped = nullptr;
std::atomic<uint64_t> dropped_count{0};

// Owned by a node of libtorch; its destructor queues the id.
struct TicketHolder : torch::CustomClassHolder {
  std::shared_ptr<Ticket> ticket;
  AutocastState autocast = AutocastState::now();  // in force in the function's forward
  explicit TicketHolder(uint64_t id) : ticket(hold(id)) {}
};

// Arguments of a custom function's apply that libtorch's collector of arguments must not see: it would take their
// tensors for inputs.
struct Outside {
  uint64_t id;
  c10::intrusive_ptr<TicketHolder> ticket;
  const torch::autograd::variable_list *outputs;
  const torch::autograd::variable_list *saved;
  bool materialize;                                             // zeros in place of gradients that are not there
  mutable torch::autograd::AutogradContext *context = nullptr;  // of the node
};

struct CallbackFunction : torch::autograd::Function<CallbackFunction> {
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext *ctx,
                                                const at::TensorList &inputs, const Outside *outside) {
    outside->context = ctx;
    ctx->save_for_backward(*outside->saved);
    ctx->saved_data["ticket"] = c10::IValue::make_capsule(outside->ticket);
    ctx->saved_data["id"] = static_cast<int64_t>(outside->id);
    ctx->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    ctx->saved_data["saved"] = static_cast<int64_t>(outside->saved->size());
    ctx->set_materialize_grads(outside->materialize);
    return *outside->outputs;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext *ctx,
                                                 const torch::autograd::variable_list &grads) {
    auto id = static_cast<uint64_t>(ctx->saved_data["id"].toInt());
    auto n = static_cast<size_t>(ctx->saved_data["inputs"].toInt());
    // A node that saves nothing may run again after a pass that frees the graph.
    torch::autograd::variable_list saved;
    if (ctx->saved_data["saved"].toInt() != 0) saved = ctx->get_saved_variables();
    Lent lent_grads(grads), lent_saved(saved);
    std::vector<uint8_t> needs(n);
    for (size_t i = 0; i < n; i++) needs[i] = ctx->needs_input_grad(i);
    Made out(n);
    auto holder = ctx->saved_data["ticket"].toCapsule();
    AutocastGuard autocast(static_cast<TicketHolder *>(holder.get())->autocast);
    torch::autograd::variable_list result(n + 1);  // one more for the Outside argument
    CalledBack called;
    uint64_t failed = callbacks.backward(id, lent_grads.data(), lent_grads.size(), lent_saved.data(),
                                         lent_saved.size(), needs.data(), out.handles.data(), n);
    for (size_t i = 0; i < n; i++) result[i] = copy_of(out.handles[i]);
    if (failed != 0) throw CallbackError(failed, "a custom function's backward failed");
    return result;
  }
};

}  // namespace
}  // namespace ls

#ifdef LS_NODES_RELEASE_RESOURCES
// libtorch's function makes the node's context again, which allocates: without memory a destructor would throw,
// and end the process.
template <>
void torch::autograd::CppNode<ls::CallbackFunction>::release_resources() {
  Node::release_resources();
  ctx_.grad_fn_.reset();  // to the node itself: it keeps the memory alive
  ctx_.saved_data.clear();
  ctx_.saved_variables_.clear();
  ctx_.to_save_.clear();
}
#endif

namespace ls {
namespace {

// libtorch's engine starts its threads, one for each device, in its first pass. If only some of them could be
// started, the next pass would start all of them again, and wait forever for a count that has been passed.
enum { kNotStarted, kStarted, kCannotStart };
std::atomic<int> engine{kNotStarted};

// A pass that fails leaves its remaining tasks, and everything that this part of the graph has saved, in the
// engine's queue of the calling thread until another pass runs on this thread: that pass frees the tasks of
// graphs that no longer exist first. This is such a pass. Its one function is older than all others, in case
// something still holds the graph.
struct Oldest final : torch::autograd::Node {
  Oldest() : Node(/*sequence_nr=*/0) {}
  torch::autograd::variable_list apply(torch::autograd::variable_list &&) override { return {}; }
};

// The type in which this version of libtorch holds its functions.
template <class Pointer, class N>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<N>();
  } else {
    return c10::make_intrusive<N>();
  }
}

void empty_queue() noexcept {
  try {
    at::Tensor none = at::empty({0});
    torch::autograd::Edge last(make_node<decltype(torch::autograd::Edge::function), Oldest>(), 0);
    last.function->add_input_metadata(none);
    torch::autograd::Engine::get_default_engine().execute({last}, {none}, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  } catch (...) {
    // If there is no memory for it, the tasks stay until a later pass that fails.
  }
}

template <class F>
auto with_engine(const torch::autograd::variable_list &roots, F &&pass) {
  if (engine.load(std::memory_order_relaxed) == kCannotStart)
    throw ArgumentError(
        "the threads of libtorch's engine could not be started: no backward pass is possible until "
        "the process is restarted");
  Pass in_flight(roots);
  pass_starts(in_flight.flight());
  CastCachePause pause;
  HooksOfPass hooks(in_flight.flight());
  try {
    auto result = pass();
    engine.store(kStarted, std::memory_order_relaxed);
    return result;
  } catch (const std::system_error &) {
    int before = kNotStarted;
    engine.compare_exchange_strong(before, kCannotStart);
    throw;
  } catch (...) {
    if (engine.load(std::memory_order_relaxed) == kStarted) empty_queue();
    rethrow_with_node();
  }
}

// After an apply that has failed, the outputs may have the node as their grad_fn, and its context still holds what
// was to be saved: with an output among it, none of them would ever be freed.
void drop_saved(const Outside &outside) {
  for (const auto &y : *outside.outputs) {
    NodePtr fn = y.grad_fn();
    auto *node = dynamic_cast<torch::autograd::CppNode<CallbackFunction> *>(fn.get());
    if (node == nullptr || &node->ctx_ != outside.context) continue;
    node->ctx_.save_for_backward({});
    node->release_variables();
    return;
  }
}

torch::autograd::variable_list list_of(const ls_tensor *h, uint64_t n, const char *what) {
  torch::autograd::variable_list v = tensors_of(h, n);
  for (const auto &t : v) {
    if (!t.defined()) throw ArgumentError(std::string(what) + ": a tensor is needed, got none");
  }
  return v;
}

torch::autograd::variable_list grads_list(const ls_tensor *h, uint64_t n) {
  if (h == nullptr) return {};
  return tensors_of(h, n);
}

}  // namespace

namespace {
std::mutex passes_mutex;
std::list<Flight> &passes = *new std::list<Flight>;  // not freed when the process ends: passes may run
std::vector<std::function<void()>> after;            // of the passes
}  // namespace

Pass::Pass(const std::vector<at::Tensor> &roots) {
  std::list<Flight> own(1);
  own.front().outer = current_pass();
  for (const auto &t : roots) {
    if (t.requires_grad()) own.front().roots.push_back(torch::autograd::impl::gradient_edge(t).function);
  }
  at_ = own.begin();
  std::lock_guard<std::mutex> lock(passes_mutex);
  passes.splice(passes.begin(), own);
}
Pass::~Pass() {
  std::list<Flight> ended;  // destroyed without the lock, like the nodes
  std::vector<std::function<void()>> called;
  std::lock_guard<std::mutex> lock(passes_mutex);
  ended.splice(ended.begin(), passes, at_);
  if (!passes.empty()) return;
  called.swap(after);
  for (auto &f : called) f();
}

template <class Matches>
bool Flight::may_run(uint64_t topological_nr, const Matches &matches) const {
  std::vector<const torch::autograd::Node *> next;
  std::unordered_set<const torch::autograd::Node *> seen;
  auto visit = [&](const NodePtr &n) {
    if (n && n->topological_nr() >= topological_nr && seen.insert(n.get()).second) next.push_back(n.get());
  };
  for (const auto &root : roots) visit(root);
  while (!next.empty()) {
    auto *n = next.back();
    if (matches(*n)) return true;
    next.pop_back();
    // A node comes after those of lower or equal topological numbers.
    if (n->topological_nr() == topological_nr) continue;
    for (const auto &edge : n->next_edges()) visit(edge.function);
  }
  return false;
}

bool Flight::may_reach(const torch::autograd::Node &node) const {
  return may_run(node.topological_nr(), [&](const auto &n) { return &n == &node; });
}

bool Flight::may_add_to(const at::Tensor &leaf) const {
  // Not accumulator_of(leaf): libtorch makes another one once the leaf's data are of another type.
  return may_run(0, [&](const auto &n) {
    auto *accumulator = dynamic_cast<const torch::autograd::AccumulateGrad *>(&n);
    return accumulator != nullptr && accumulator->variable.is_same(leaf);
  });
}

bool Flight::runs_here() const {
  const Flight *f = current_pass();
  while (f != nullptr && f != this) f = f->outer;
  return f == this;
}

void change_node(const torch::autograd::Node &node, const std::function<void()> &change) {
  std::lock_guard<std::mutex> lock(passes_mutex);
  for (const auto &flight : passes) {
    if (!flight.runs_here() && flight.may_reach(node))
      throw ArgumentError(
          "another goroutine runs a backward pass through the tensor's graph: its first hook must come before or "
          "after");
  }
  change();
}

void change_tensor(const at::Tensor &x, const char *what, const std::function<void()> &change) {
  c10::Storage before;  // freed without the lock
  std::lock_guard<std::mutex> lock(passes_mutex);
  for (const auto &flight : passes) {
    if (!flight.runs_here() && flight.may_add_to(x))
      throw ArgumentError(std::string("another goroutine runs a backward pass that reaches the tensor: ") + what +
                          " before or after");
  }
  if (x.has_storage()) before = x.storage();
  change();
}

void after_passes(std::function<void()> f) {
  std::lock_guard<std::mutex> lock(passes_mutex);
  if (passes.empty()) return f();
  after.push_back(std::move(f));
}

void drop(Ticket *t) noexcept {
  std::lock_guard<std::mutex> lock(dropped_mutex);
  t->next = dropped;
  dropped = t;
  dropped_count.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ls

using ls::Borrowed;

void ls_callbacks_set(const ls_callbacks *cb) noexcept {
  ls::run_quiet([&] { ls::callbacks = *cb; });
}

ls_error *ls_autograd_backward(const ls_tensor *roots, uint64_t n, const ls_tensor *grads, const ls_tensor *inputs,
                               uint64_t ninputs, int32_t retain, int32_t create) noexcept {
  return ls::run_void([&] {
    auto from = ls::list_of(roots, n, "backward"), to = ls::list_of(inputs, ninputs, "inputs");
    auto given = ls::grads_list(grads, n);
    for (const auto &t : to) ls::retain_grad(t);  // libtorch would do so without a lock
    ls::with_engine(from, [&] {
      torch::autograd::backward(from, given, retain != 0, create != 0, to);
      return true;
    });
    ls::adopt_samples();
  });
}

ls_error *ls_autograd_grad(const ls_tensor *outputs, uint64_t n, const ls_tensor *grads, const ls_tensor *inputs,
                           uint64_t ninputs, int32_t retain, int32_t create, int32_t allow_unused, ls_tensor *out,
                           uint64_t *scope) noexcept {
  return ls::run_void([&] {
    auto of = ls::list_of(outputs, n, "outputs"), to = ls::list_of(inputs, ninputs, "inputs");
    auto given = ls::grads_list(grads, n);
    auto result = ls::with_engine(
        of, [&] { return torch::autograd::grad(of, to, given, retain != 0, create != 0, allow_unused != 0); });
    for (uint64_t i = 0; i < ninputs; i++) out[i] = ls::give(std::move(result.at(i)));
    ls::adopt_samples();
    *scope = ls::result_scope();
  });
}

ls_results ls_tensor_grad_fn_name(ls_tensor t, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    Borrowed b(t);
    auto fn = ls::need(b, "grad_fn").grad_fn();
    ls::put_string(r, fn ? fn->name() : std::string(), out, out_slots);
  });
}

ls_error *ls_hook_register(ls_tensor t, uint64_t id, uint32_t *slot) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    const at::Tensor &x = ls::need(b, "hook");
    if (!x.requires_grad()) throw ls::ArgumentError("a hook needs a tensor that requires gradients");
    auto ticket = ls::hold(id);
    *slot = ls::add_hook(x, [ticket](const at::Tensor &grad) -> at::Tensor {
      ls::Made out(1);
      auto lent = reinterpret_cast<ls_tensor>(grad.defined() ? grad.unsafeGetTensorImpl() : nullptr);
      ls::CalledBack called;
      uint64_t failed = ls::callbacks.hook(ticket->id, lent, out.handles.data());
      at::Tensor replaced = ls::copy_of(out.handles[0]);
      if (failed != 0) throw ls::CallbackError(failed, "a tensor hook failed");
      return replaced;
    });
  });
}

ls_error *ls_hook_remove(ls_tensor t, uint32_t slot) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    ls::remove_hook(ls::need(b, "hook"), slot);
  });
}

ls_error *ls_function_attach(uint64_t id, const ls_tensor *inputs, uint64_t nin, const ls_tensor *outputs,
                             uint64_t nout, const ls_tensor *saved, uint64_t nsaved, int32_t materialize,
                             ls_tensor *out, uint64_t *scope) noexcept {
  return ls::run_void([&] {
    auto ins = ls::list_of(inputs, nin, "inputs");
    auto outs = ls::list_of(outputs, nout, "outputs");
    auto keep = ls::list_of(saved, nsaved, "saved");
    ls::Outside outside{id, c10::make_intrusive<ls::TicketHolder>(id), &outs, &keep, materialize != 0};
    // A TensorList: libtorch's collector does not take a std::vector for tensors.
    torch::autograd::variable_list result;
    try {
      result = ls::CallbackFunction::apply(at::TensorList(ins), static_cast<const ls::Outside *>(&outside));
    } catch (...) {
      ls::drop_saved(outside);
      throw;
    }
    for (uint64_t i = 0; i < nout; i++) out[i] = ls::give(std::move(result.at(i)));
    *scope = ls::result_scope();
  });
}

namespace ls {
namespace {
// The post-accumulate hooks of a leaf, owned by it.
class AccumulateHooks final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor &leaf) override {
    std::vector<std::pair<uint32_t, std::shared_ptr<Ticket>>> now;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      now = hooks_;
    }
    for (const auto &[slot, ticket] : now) {
      Made out(1);
      CalledBack called;
      uint64_t failed =
          callbacks.hook(ticket->id, reinterpret_cast<ls_tensor>(leaf.unsafeGetTensorImpl()), out.handles.data());
      if (failed != 0) throw CallbackError(failed, "a post-accumulate hook failed");
    }
  }
  uint32_t add(std::shared_ptr<Ticket> ticket) {
    std::lock_guard<std::mutex> lock(mutex_);
    hooks_.emplace_back(next_, std::move(ticket));
    return next_++;
  }
  void remove(uint32_t slot) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(hooks_, [slot](const auto &h) { return h.first == slot; });
  }
  static AccumulateHooks *of(const at::Tensor &leaf) {
    return static_cast<AccumulateHooks *>(torch::autograd::impl::post_acc_grad_hooks(leaf).get());
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<uint32_t, std::shared_ptr<Ticket>>> hooks_;
  uint32_t next_ = 0;
};
}  // namespace
}  // namespace ls

ls_error *ls_accumulate_hook_register(ls_tensor t, uint64_t id, uint32_t *slot) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    const at::Tensor &x = ls::need(b, "hook");
    if (!x.requires_grad() || !ls::is_leaf(x))
      throw ls::ArgumentError("a post-accumulate hook needs a leaf that requires gradients");
    auto ticket = ls::hold(id);
    static std::mutex first;  // two threads may register a leaf's first hooks
    std::lock_guard<std::mutex> lock(first);
    if (ls::AccumulateHooks::of(x) == nullptr) {
      auto hooks = std::make_unique<ls::AccumulateHooks>();
      ls::change_tensor(x, "its first post-accumulate hook must come",
                        [&] { torch::autograd::impl::set_post_acc_grad_hooks(x, std::move(hooks)); });
    }
    *slot = ls::AccumulateHooks::of(x)->add(std::move(ticket));
  });
}

ls_error *ls_accumulate_hook_remove(ls_tensor t, uint32_t slot) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    if (auto *hooks = ls::AccumulateHooks::of(ls::need(b, "hook"))) hooks->remove(slot);
  });
}

uint64_t ls_dropped_take(uint64_t *ids, uint64_t cap) noexcept {
  return ls::run_quiet([&] {
    uint64_t n = 0;
    std::lock_guard<std::mutex> lock(ls::dropped_mutex);
    for (; n < cap && ls::dropped != nullptr; n++) {
      std::unique_ptr<ls::Ticket> t(ls::dropped);
      ls::dropped = t->next;
      ids[n] = t->id;
      ls::dropped_count.fetch_sub(1, std::memory_order_relaxed);
    }
    return n;
  });
}
uint64_t ls_dropped_count(void) noexcept {
  return ls::run_quiet([] { return ls::dropped_count.load(std::memory_order_relaxed); });
}

// Gradient checkpointing without reentrant backward passes (docs/decisions/0011-checkpoint.md).
#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <string_view>
#include <utility>

#include "anomaly.h"
#include "autocast.h"
#include "debuginfo.h"
#include "device.h"
#include "hooks.h"
#include "passes.h"
#include "saved.h"
#include "shim.h"
#include "stream.h"
#include "trace.h"

namespace ls {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::SavedVariableHooks;

// The innermost policy, among libtorch's thread-local state: a backward pass takes it to the engine's threads,
// where the nodes that it records with create_graph save tensors too.
struct PolicyInfo : c10::DebugInfoBase {
  explicit PolicyInfo(std::shared_ptr<SavedPolicy> p) : policy(std::move(p)) {}
  std::shared_ptr<SavedPolicy> policy;
};

constexpr std::string_view kPolicy = "linstock::SavedPolicy";
c10::DebugInfoKind policy_kind() { return debug_info_kind<kPolicy, 0x4c>(); }

// The calling thread's policies, innermost last, and the state before each.
struct Pushed {
  std::shared_ptr<SavedPolicy> policy;
  std::shared_ptr<c10::ThreadLocalDebugInfo> before;
};
thread_local std::vector<Pushed> policies;

// libtorch asks its engine for the policy of saved tensors; Python's engine overrides the same function.
class HookedEngine final : public torch::autograd::Engine {
 public:
  HookedEngine() = default;
  ~HookedEngine() override { stop(); }
  // A pass within an autocast region takes it to the engine's threads, but not the state of its cache.
  void thread_init(int device, const std::shared_ptr<torch::autograd::ReadyQueue> &queue,
                   bool increment) override {
    grad_mode_changed();
    Engine::thread_init(device, queue, increment);
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    auto *info = static_cast<PolicyInfo *>(c10::ThreadLocalDebugInfo::get(policy_kind()));
    return info == nullptr ? nullptr : info->policy->hooks();
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return ls::make_anomaly_metadata();
  }
};

// Leaked on purpose: its threads run until the process ends.
torch::autograd::Engine &hooked_engine() {
  static auto *engine = new HookedEngine;
  return *engine;
}

constexpr uint64_t kAllDevices = ~uint64_t{0};

// Returns the bit of a device, as used_devices() has it; 0 for the CPU, and for one without memory.
uint64_t device_bit(c10::Device d) noexcept {
  int slot = slot_of(d);
  return slot > kCpuSlot ? uint64_t{1} << (slot - 1) : 0;
}

// The states of random number generators: that of the CPU and those of devices.
class RandomState {
 public:
  // Of the CPU and of all devices in use.
  static RandomState now() {
    RandomState s;
    s.set_before_ = random_states_set;
    s.add(c10::Device(c10::kCPU));
    for (uint64_t slots = used_devices(); slots != 0; slots &= slots - 1)
      s.add(device_at(std::countr_zero(slots) + 1));
    return s;
  }
  // Now, of the same generators.
  RandomState again() const {
    RandomState s;
    for (const auto &one : states_) s.add(one.generator.device());
    return s;
  }
  // Only those of the CPU and of some devices.
  void restore(uint64_t devices = kAllDevices) const {
    for (const auto &one : states_) {
      auto d = one.generator.device();
      if (!d.is_cpu() && (device_bit(d) & devices) == 0) continue;
      // In a capture, the state counts the numbers that this graph draws.
      if (one.capture != capture_on(d))
        throw CaptureError("Checkpoint: the function has drawn random numbers on " + d.str() +
                           (one.capture == 0 ? " outside of this capture" : " in another capture") +
                           ", which cannot be repeated here: capture the forward and the backward pass together");
      set_random_state(one.generator, one.state);
    }
  }
  // Keeps only those of generators that may have been used since: the states that have changed. If the thread has
  // set one meanwhile, all may have been used, as by a function that draws and then puts the state back.
  void keep_used() {
    if (random_states_set != set_before_) return;
    std::erase_if(states_, [](const One &one) { return same(one.state, random_state_of(one.generator)); });
  }
  // Keeps only those of the CPU and of some devices.
  void keep_on(uint64_t devices) {
    std::erase_if(states_, [devices](const One &one) {
      auto d = one.generator.device();
      return !d.is_cpu() && (device_bit(d) & devices) == 0;
    });
  }
  bool empty() const { return states_.empty(); }
  // Whose states there are, without the CPU.
  uint64_t devices() const {
    uint64_t bits = 0;
    for (const auto &one : states_) bits |= device_bit(one.generator.device());
    return bits;
  }

 private:
  struct One {
    at::Generator generator;
    at::Tensor state;
    uint64_t capture;  // of capture_on
  };
  static bool same(const at::Tensor &a, const at::Tensor &b) {
    return a.nbytes() == b.nbytes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  }
  void add(c10::Device d) {
    at::Generator g = default_generator(d);
    states_.push_back({g, random_state_of(g), capture_on(d)});
  }
  std::vector<One> states_;
  uint64_t set_before_ = 0;  // random_states_set, of now()
};

// Sets random states, and restores the previous ones in its destructor.
class RandomGuard {
 public:
  explicit RandomGuard(const RandomState &then) : before_(then.again()) {
    try {
      then.restore();
    } catch (...) {
      undo();
      throw;
    }
  }
  ~RandomGuard() { undo(); }
  RandomGuard(const RandomGuard &) = delete;
  RandomGuard &operator=(const RandomGuard &) = delete;

 private:
  void undo() noexcept {
    try {
      before_.restore();
    } catch (...) {
      // A generator refuses its own state only if its device is lost.
    }
  }
  RandomState before_;
};

class PolicyGuard {
 public:
  explicit PolicyGuard(std::shared_ptr<SavedPolicy> policy) : depth_(push_policy(std::move(policy))) {}
  ~PolicyGuard() {
    try {
      pop_policies(depth_);
    } catch (...) {
    }
  }
  PolicyGuard(const PolicyGuard &) = delete;
  PolicyGuard &operator=(const PolicyGuard &) = delete;

 private:
  size_t depth_;
};

// The properties in which the recomputation must agree with the first run.
struct Kind {
  c10::ScalarType dtype;
  c10::Device device;
  bool nested;  // then sizes is empty
  std::vector<int64_t> sizes;

  static Kind of(const at::Tensor &t) {
    bool nested = t.is_nested();
    return {t.scalar_type(), t.device(), nested, nested ? std::vector<int64_t>() : t.sizes().vec()};
  }
  bool operator==(const Kind &) const = default;
  std::string text() const {
    std::string s = std::string(c10::getDtypeNames(dtype).first) + "(";
    for (size_t i = 0; i < sizes.size(); i++) s += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
    if (nested) s += "nested";
    return s + ") on " + device.str();
  }
};

class Checkpoint;

constexpr uint64_t kLevel = 0;  // the one level of forward-mode differentiation

// The tangent of a tensor, without its graph, until the level ends.
class Tangent {
 public:
  explicit Tangent(const at::Tensor &t) : requires_grad_(t.requires_grad()) {
    held_->set_value(data_of(t), kLevel);
  }
  ~Tangent() { held_->clear(); }
  Tangent(const Tangent &) = delete;
  Tangent &operator=(const Tangent &) = delete;
  at::Tensor get() const { return held_->value(kLevel); }  // undefined after the level
  bool requires_grad() const { return requires_grad_; }

 private:
  std::shared_ptr<torch::autograd::ForwardGrad> held_ = std::make_shared<torch::autograd::ForwardGrad>();
  bool requires_grad_;
};

// The result of a part of a checkpointed function that is not recomputed.
struct Kept {
  at::Tensor t;  // shares storage and version with the result
  int64_t version;
  bool requires_grad;
  std::shared_ptr<Tangent> tangent;  // null if it has none
  RandomState after;                 // of the generators that the part has used
};

// Collects the tensors that the function saves in the recomputation, and ends it with the last one.
class Recomputation final : public SavedPolicy, public std::enable_shared_from_this<Recomputation> {
 public:
  Recomputation(std::vector<bool> wanted, std::vector<Kept> kept, uint64_t devices)
      : wanted_(std::move(wanted)), tensors_(wanted_.size()), kept_(std::move(kept)), devices_(devices) {}
  std::unique_ptr<SavedVariableHooks> hooks() override;
  void add(const Unchanged &t) {
    if (complete()) throw StopRecomputation();
    kinds_.push_back(Kind::of(t.get()));
    size_t i = kinds_.size() - 1;
    if (wanted_[i]) tensors_[i] = t;
    if (complete()) throw StopRecomputation();
  }
  bool complete() const { return kinds_.size() == wanted_.size(); }
  const std::vector<Kind> &kinds() const { return kinds_; }
  Unchanged &at(size_t i) { return tensors_[i]; }
  Stage stage() const override { return kRecomputation; }
  at::Tensor kept() override {
    if (next_kept_ == kept_.size())
      throw ArgumentError(
          "Checkpoint: the function has kept more results when it was recomputed than the first time: it "
          "must compute the same each time");
    const Kept &k = kept_[next_kept_++];
    if (k.t._version() != k.version)
      throw ArgumentError(
          "Checkpoint: a result that the function has kept was changed in place, so the function cannot "
          "be recomputed");
    k.after.restore(devices_);
    at::Tensor t = leaf(k.t, k.requires_grad);
    at::Tensor tangent = k.tangent ? k.tangent->get() : at::Tensor();
    if (tangent.defined())
      t._set_fw_grad(leaf(tangent, k.tangent->requires_grad()), kLevel, /*is_inplace_op=*/false);
    return t;
  }
  void pass_starts(const Flight &pass) const override {
    for (const auto &t : taken_) {
      NodePtr node = accumulator_of(t);
      if (node && pass.may_reach(*node))
        throw ArgumentError(
            "Checkpoint: the function starts a backward pass through a result that it has kept, which has no "
            "graph when the function is recomputed: do not keep that part");
    }
  }

 private:
  at::Tensor leaf(const at::Tensor &data, bool requires_grad) {
    at::Tensor t = data.detach();
    if (requires_grad) taken_.push_back(t.set_requires_grad(true));
    return t;
  }

  std::vector<bool> wanted_;
  std::vector<Unchanged> tensors_;
  std::vector<Kept> kept_;
  size_t next_kept_ = 0;
  std::vector<at::Tensor> taken_;  // results and tangents that stand for parts of the graph
  uint64_t devices_;
  std::vector<Kind> kinds_;
};

// In the graph that a recomputation records: the tensor itself, for a backward pass within the function.
class Collected final : public SavedVariableHooks {
 public:
  explicit Collected(std::shared_ptr<Recomputation> to) : to_(std::move(to)) {}
  void call_pack_hook(const at::Tensor &t) override {
    held_ = Unchanged(t);
    to_->add(held_);
  }
  at::Tensor call_unpack_hook() override { return held_.get(); }

 private:
  std::shared_ptr<Recomputation> to_;
  Unchanged held_;
};

std::unique_ptr<SavedVariableHooks> Recomputation::hooks() {
  return std::make_unique<Collected>(shared_from_this());
}

// One call of a checkpointed function, owned by the nodes of the graph that the call recorded.
class Checkpoint final : public SavedPolicy, public std::enable_shared_from_this<Checkpoint> {
 public:
  Checkpoint(uint64_t id, std::vector<at::Tensor> inputs)
      : ticket_(hold(id)),
        forward_inputs_(std::move(inputs)),
        random_(RandomState::now()),
        inputs_(std::make_shared<std::vector<SavedVariable>>()) {
    for (const auto &t : forward_inputs_) {
      // Saved by the enclosing policy: the inputs of an inner checkpoint are recomputed by the outer one.
      inputs_->emplace_back(t, /*is_output=*/false);
      versions_.push_back(t._version());
    }
    modes_.set_grad_mode(true);
  }
  std::unique_ptr<SavedVariableHooks> hooks() override;
  void popped() override;
  Stage stage() const override { return kFirstRun; }
  std::shared_ptr<SavedPolicy> keeping() override;

  void keep(Kept &&k) {
    std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(std::move(k));
  }
  size_t note(const at::Tensor &t);
  void forget(size_t i) noexcept;
  at::Tensor take(size_t i);

 private:
  // The tensors that one backward pass has recomputed and not used yet.
  struct Pass {
    int id;
    struct Slot {
      Unchanged t;
      bool taken = false;
    };
    std::vector<Slot> slots;
    // Threads of the engine that are in a recomputation. Two may need it at the same time in one pass, for
    // tensors on two devices: one waits for the other, unless the first starts a pass itself, which may need the
    // waiting thread.
    int computing = 0;
    bool nested = false;
  };
  // A recomputation for a pass of the calling thread.
  class Computing {
   public:
    Computing(Checkpoint *c, int id) : checkpoint_(c), pass_(id), outer_(innermost) { innermost = this; }
    ~Computing() {
      innermost = outer_;
      std::lock_guard<std::mutex> lock(checkpoint_->mutex_);
      if (Pass *p = checkpoint_->find(pass_)) p->computing--;
      checkpoint_->changed_.notify_all();
    }
    Computing(const Computing &) = delete;
    Computing &operator=(const Computing &) = delete;
    static void starts_pass() noexcept {
      for (auto *c = innermost; c != nullptr; c = c->outer_) {
        std::lock_guard<std::mutex> lock(c->checkpoint_->mutex_);
        if (Pass *p = c->checkpoint_->find(c->pass_)) p->nested = true;
        c->checkpoint_->changed_.notify_all();
      }
    }

   private:
    static thread_local Computing *innermost;
    Checkpoint *checkpoint_;
    int pass_;
    Computing *outer_;
  };
  friend void ls::pass_starts(const Flight &pass);
  // Ends a pass: in its last callback, or when the engine drops a pass that has failed.
  struct PassEnd {
    std::weak_ptr<Checkpoint> of;
    int id;
    PassEnd(std::weak_ptr<Checkpoint> o, int i) : of(std::move(o)), id(i) {}
    ~PassEnd() { end(); }
    PassEnd(const PassEnd &) = delete;
    PassEnd &operator=(const PassEnd &) = delete;
    void end() noexcept {
      if (auto c = of.lock()) c->end_pass(id);
      of.reset();
    }
  };

  Pass *find(int pass) noexcept {
    for (auto &p : passes_)
      if (p.id == pass) return &p;
    return nullptr;
  }
  std::shared_ptr<Recomputation> recompute();
  void begin_pass(int pass);
  at::Tensor deliver(int pass, size_t needed, Recomputation &r);
  void end_pass(int pass) noexcept;

  const std::shared_ptr<Ticket> ticket_;
  // Of the first run. libtorch's state includes whether autocast is on, but not the dtype.
  at::ThreadLocalState modes_;
  AutocastState autocast_ = AutocastState::now();
  // Until the first run is over.
  std::vector<at::Tensor> forward_inputs_;
  std::vector<int64_t> versions_;

  // Guards the members that follow. Never held while a tensor is made or freed: both may wait for a collection,
  // which may free a placeholder of this checkpoint on another thread.
  std::mutex mutex_;
  RandomState random_;    // at the start of the first run
  uint64_t devices_ = 0;  // whose generators a recomputation sets
  std::shared_ptr<std::vector<SavedVariable>> inputs_;
  std::string spoiled_;  // why it cannot be recomputed
  std::vector<Kind> kinds_;
  std::vector<bool> wanted_;  // of those that are still in the graph
  std::vector<Kept> kept_;
  std::vector<Pass> passes_;
  std::condition_variable changed_;
};

thread_local Checkpoint::Computing *Checkpoint::Computing::innermost = nullptr;

// The graph's placeholder for the i-th tensor that the function has saved, which nothing keeps.
class Placeholder final : public SavedVariableHooks {
 public:
  explicit Placeholder(std::shared_ptr<Checkpoint> of) : of_(std::move(of)) {}
  ~Placeholder() override {
    if (noted_) of_->forget(i_);
  }
  void call_pack_hook(const at::Tensor &t) override {
    i_ = of_->note(t);
    noted_ = true;
  }
  at::Tensor call_unpack_hook() override { return of_->take(i_); }

 private:
  std::shared_ptr<Checkpoint> of_;
  size_t i_ = 0;
  bool noted_ = false;
};

std::unique_ptr<SavedVariableHooks> Checkpoint::hooks() {
  return std::make_unique<Placeholder>(shared_from_this());
}

// In a part of the function whose result is kept: what its operators save is kept as the checkpoint's inputs are.
class Keeping final : public SavedPolicy {
 public:
  Keeping(std::shared_ptr<Checkpoint> of, std::shared_ptr<SavedPolicy> enclosing)
      : of_(std::move(of)), enclosing_(std::move(enclosing)), random_(RandomState::now()) {}
  std::unique_ptr<SavedVariableHooks> hooks() override {
    return enclosing_ == nullptr ? nullptr : enclosing_->hooks();
  }
  void keep(const at::Tensor &t) {
    random_.keep_used();
    Kept k{data_of(t), t._version(), t.requires_grad(), nullptr, {}};
    if (const at::Tensor &tangent = t._fw_grad(kLevel); tangent.defined())
      k.tangent = std::make_shared<Tangent>(tangent);
    if (!random_.empty()) k.after = random_.again();
    of_->keep(std::move(k));
  }

 private:
  std::shared_ptr<Checkpoint> of_;
  std::shared_ptr<SavedPolicy> enclosing_;
  RandomState random_;
};

std::shared_ptr<SavedPolicy> Checkpoint::keeping() {
  // The checkpoint's policy is the innermost one.
  std::shared_ptr<SavedPolicy> enclosing;
  if (policies.size() > 1) enclosing = policies[policies.size() - 2].policy;
  return std::make_shared<Keeping>(shared_from_this(), std::move(enclosing));
}

void Checkpoint::popped() {
  auto inputs = std::move(forward_inputs_);
  std::shared_ptr<std::vector<SavedVariable>> saved;  // freed without the lock
  // Where the function computes, as far as its recomputation matters. Other goroutines may draw on other devices.
  uint64_t devices = 0;
  for (const auto &t : inputs) devices |= device_bit(t.device());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto &k : kinds_) devices |= device_bit(k.device);
    // Nothing is recomputed. A checkpoint inside this one keeps it, by the modes, and must not keep the inputs.
    if (kinds_.empty()) {
      saved = std::move(inputs_);
      spoiled_ = "the function had saved nothing when it ended";
    }
    for (size_t i = 0; inputs_ != nullptr && i < inputs.size(); i++) {
      if (inputs[i]._version() == versions_[i]) continue;
      // The graph of an input that the function has changed may own this checkpoint, which would never be freed if
      // it kept the input. So this comes before what may fail.
      saved = std::move(inputs_);
      spoiled_ = "the function has changed its input " + std::to_string(i) +
                 " in place, so it cannot be recomputed from it";
      throw ArgumentError(spoiled_);
    }
  }
  RandomState used = random_;  // written here only
  uint64_t first_used = devices & ~used.devices();
  used.keep_on(devices);
  used.keep_used();
  std::lock_guard<std::mutex> lock(mutex_);
  std::swap(random_, used);
  devices_ = devices;
  if (kinds_.empty() || first_used == 0) return;
  saved = std::move(inputs_);
  spoiled_ = "the function is the first in this process to use " +
             device_at(std::countr_zero(first_used) + 1).str() +
             ", so its random numbers there cannot be repeated: use the device before";
  throw ArgumentError(spoiled_);
}

size_t Checkpoint::note(const at::Tensor &t) {
  Kind kind = Kind::of(t);
  std::lock_guard<std::mutex> lock(mutex_);
  wanted_.reserve(wanted_.size() + 1);
  kinds_.push_back(std::move(kind));
  wanted_.push_back(true);
  return kinds_.size() - 1;
}

void Checkpoint::forget(size_t i) noexcept {
  // Freed without the lock. There is more than one pass only if several run through the graph at the same time.
  for (size_t k = 0;; k++) {
    at::Tensor t;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      wanted_[i] = false;
      if (k >= passes_.size()) return;
      if (i < passes_[k].slots.size()) t = passes_[k].slots[i].t.release();
    }
    discard(std::move(t));
  }
}

void Checkpoint::end_pass(int pass) noexcept {
  std::vector<Pass::Slot> slots;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto p = passes_.begin(); p != passes_.end(); ++p) {
      if (p->id != pass) continue;
      slots = std::move(p->slots);
      passes_.erase(p);
      break;
    }
  }
  for (auto &s : slots) discard(s.t.release());
}

at::Tensor Checkpoint::take(size_t i) {
  int pass = torch::autograd::get_current_graph_task_id();  // below 0 outside of a pass, where begin_pass fails
  {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      Pass *p = find(pass);
      if (p != nullptr && i < p->slots.size() && p->slots[i].t.defined()) {
        p->slots[i].taken = true;
        return p->slots[i].t.take();
      }
      if (p != nullptr && p->computing != 0 && !p->nested) {
        changed_.wait(lock);
        continue;
      }
      if (p == nullptr) {
        lock.unlock();
        begin_pass(pass);
        lock.lock();
        continue;
      }
      if (p->computing != 0 && !random_.empty())
        throw ArgumentError(
            "Checkpoint: two devices need it at once, and its function draws random numbers and starts a backward "
            "pass: use a checkpoint for each device");
      p->computing++;
      break;
    }
  }
  Computing computing(this, pass);
  at::Tensor t = deliver(pass, i, *recompute());
  if (!t.defined())
    throw ArgumentError("Checkpoint: the recomputation has not saved a tensor that backward needs");
  return t;
}

void Checkpoint::begin_pass(int pass) {
  // First the object that ends the pass, while there is memory for it.
  auto end = std::make_shared<PassEnd>(weak_from_this(), pass);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->end(); });
  std::lock_guard<std::mutex> lock(mutex_);
  if (find(pass) == nullptr) passes_.emplace_back().id = pass;
}

std::shared_ptr<Recomputation> Checkpoint::recompute() {
  std::shared_ptr<std::vector<SavedVariable>> saved;
  RandomState then;
  std::shared_ptr<Recomputation> r;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (inputs_ == nullptr) throw ArgumentError("Checkpoint: " + spoiled_);
    saved = inputs_;
    then = random_;
    r = std::make_shared<Recomputation>(wanted_, kept_, devices_);
  }
  std::vector<at::Tensor> inputs;
  inputs.reserve(saved->size());
  for (const auto &s : *saved) inputs.push_back(s.unpack());
  // For the result of the function after StopRecomputation: allocated while there is memory.
  auto answer = std::make_unique<Ticket>(Ticket{0});
  uint64_t failed;
  {
    auto pass = pass_info();
    auto &state = c10::AutogradState::get_tls_state();
    bool forward = state.get_fw_grad_mode();
    at::ThreadLocalStateGuard modes(modes_);
    // The level and the pass are those of now: those in which the first run was, if any, may be over.
    state.set_fw_grad_mode(forward);
    HooksOfPass same(std::move(pass));
    AutocastGuard autocast(autocast_);
    RandomGuard random(then);
    Lent lent(inputs);
    PolicyGuard collect(r);
    CalledBack called;
    failed = callbacks.recompute(ticket_->id, lent.data(), lent.size());
  }
  if (!r->complete()) {
    if (failed != 0) throw CallbackError(failed, "a checkpointed function failed when it was recomputed");
    throw ArgumentError("Checkpoint: the function saved " + std::to_string(r->kinds().size()) +
                        " tensors for backward when it was recomputed, and more the first time: it must compute "
                        "the same each time");
  }
  if (failed != 0) {
    answer->id = failed;
    drop(answer.release());
  }
  return r;
}

// Stores the tensors that the pass has not used yet, and returns the one that is needed now.
at::Tensor Checkpoint::deliver(int pass, size_t needed, Recomputation &r) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < r.kinds().size(); i++) {
    if (!wanted_[i] || r.kinds()[i] == kinds_[i]) continue;
    throw ArgumentError("Checkpoint: when it was recomputed, the function saved " + r.kinds()[i].text() +
                        " as tensor " + std::to_string(i) + ", and " + kinds_[i].text() +
                        " the first time: it must compute the same each time");
  }
  if (needed >= r.kinds().size()) return {};
  if (Pass *p = find(pass)) {
    p->slots.resize(std::max(p->slots.size(), r.kinds().size()));
    for (size_t i = 0; i < r.kinds().size(); i++) {
      auto &slot = p->slots[i];
      if (wanted_[i] && i != needed && !slot.taken && !slot.t.defined()) slot.t = std::move(r.at(i));
    }
    p->slots[needed].taken = true;
  }
  return r.at(needed).take();
}

}  // namespace

void pass_starts(const Flight &pass) {
  for (const auto &pushed : policies) pushed.policy->pass_starts(pass);
  Checkpoint::Computing::starts_pass();
}

size_t push_policy(std::shared_ptr<SavedPolicy> policy) {
  auto info = std::make_shared<PolicyInfo>(policy);
  auto before = c10::ThreadLocalDebugInfo::current();
  policies.reserve(policies.size() + 1);
  c10::ThreadLocalDebugInfo::_push(policy_kind(), std::move(info));
  policies.push_back({std::move(policy), std::move(before)});
  return policies.size() - 1;
}

std::shared_ptr<SavedPolicy> innermost_policy() { return policies.empty() ? nullptr : policies.back().policy; }

void pop_policies(size_t depth) {
  std::exception_ptr first;
  while (policies.size() > depth) {
    Pushed last = std::move(policies.back());
    policies.pop_back();
    c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(last.before);
    try {
      last.policy->popped();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void install_engine() {
  hooked_engine();
  torch::autograd::set_default_engine_stub(hooked_engine);
}

}  // namespace ls

ls_error *ls_checkpoint_push(uint64_t id, const ls_tensor *inputs, uint64_t n, uint64_t *depth) noexcept {
  return ls::run_void([&] {
    std::vector<at::Tensor> list = ls::tensors_of(inputs, n);
    for (const auto &t : list)
      if (!t.defined()) throw ls::ArgumentError("inputs: a tensor is needed, got none");
    *depth = ls::push_policy(std::make_shared<ls::Checkpoint>(id, std::move(list)));
  });
}

ls_error *ls_checkpoint_keep(int32_t *stage, uint64_t *depth) noexcept {
  return ls::run_void([&] {
    *stage = ls::policies.empty() ? ls::SavedPolicy::kOther : ls::policies.back().policy->stage();
    if (*stage == ls::SavedPolicy::kFirstRun) *depth = ls::push_policy(ls::policies.back().policy->keeping());
  });
}

ls_error *ls_checkpoint_kept(ls_tensor result) noexcept {
  return ls::run_void([&] {
    ls::Borrowed b(result);
    auto *keeping = ls::policies.empty() ? nullptr : dynamic_cast<ls::Keeping *>(ls::policies.back().policy.get());
    if (keeping == nullptr) throw ls::ArgumentError("no part of a checkpoint is being computed");
    keeping->keep(ls::need(b, "result"));
  });
}

ls_result ls_checkpoint_take(void) noexcept {
  return ls::run([&] {
    if (ls::policies.empty()) throw ls::ArgumentError("no checkpoint is being recomputed");
    return ls::policies.back().policy->kept();
  });
}

ls_error *ls_saved_pop(uint64_t depth) noexcept {
  bool entered = false;
  ls_error *err = ls::run_void([&] {
    entered = true;
    ls::pop_policies(depth);
  });
  // Also if a fault is injected at the entry: a policy that stayed would apply to other functions.
  if (!entered) ls::run_quiet([&] { ls::pop_policies(depth); });
  return err;
}

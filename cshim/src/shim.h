// What every file of the shim shares: borrowed handles, the guard, values.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "faults.h"
#include "linstock.h"
#include "lost.h"

namespace ls {

// The calling thread's words. Plain data, initial-exec: reading it is one instruction.
struct ThreadWords {
  uint64_t scope;
  uint64_t threads_epoch;
  struct HandleCount *handles;  // NULL before the first
  bool computed;                // since the clock was last looked at: a large block was allocated, say
};
extern thread_local ThreadWords words __attribute__((tls_model("initial-exec")));

// Handles that a thread has given out and taken back. Written by it alone.
struct HandleCount {
  std::atomic<int64_t> made{0}, freed{0};
  // Of the difference, what all threads' sum has in it. Written by whoever reads the sum, too.
  std::atomic<int64_t> pushed{0};
};

// Read and write a random number generator's state, on its own device.
at::Tensor random_state_of(at::Generator g);
void set_random_state(at::Generator g, const at::Tensor &state);

// The scope word as a result carries it.
void look_at_turn() noexcept;
inline uint64_t told_scope() noexcept {
  if (__builtin_expect(words.computed, 0)) look_at_turn();
  return words.scope;
}

// Bumped by ls_threads_set; a thread that lags takes the number over (libtorch's setter reaches only
// the calling thread and those that have not computed yet). With kEntriesArmed every thread lags.
extern std::atomic<uint64_t> threads_epoch;
void adopt_num_threads() noexcept;

// Handles are counted by thread, without a locked instruction: one would cost more than the rest of a guard.
// Every 64th tells the sum, whose peak is kept; whoever asks for the peak tells it for all.
HandleCount *new_handle_count() noexcept;
void push_handles(HandleCount &n) noexcept;
inline void count_handle(std::atomic<int64_t> HandleCount::*which) noexcept {
  auto *n = words.handles;
  if (__builtin_expect(n == nullptr, 0)) n = words.handles = new_handle_count();
  int64_t now = (n->*which).load(std::memory_order_relaxed) + 1;
  (n->*which).store(now, std::memory_order_relaxed);
  if (__builtin_expect(now % 64 == 0, 0)) push_handles(*n);
}

// Throws while a fault is injected.
inline void enter() {
  if (__builtin_expect(words.threads_epoch != threads_epoch.load(std::memory_order_relaxed), 0)) {
    adopt_num_threads();
    fault_entry();
  }
}

// An error thrown by the shim itself, LS_ERR_ARGUMENT.
struct ArgumentError : std::exception {
  std::string text;
  explicit ArgumentError(std::string t) : text(std::move(t)) {}
  const char *what() const noexcept override { return text.c_str(); }
};

// Carries a callback's failure through libtorch's engine, LS_ERR_CALLBACK.
struct CallbackError : c10::Error {
  uint64_t id;
  CallbackError(uint64_t i, const std::string &text)
      : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text), id(i) {}
};

// Turns the exception being handled into an ls_error. Never throws, never returns NULL.
ls_error *current_error() noexcept;

// A handle seen as the tensor it is, without touching the count.
class Borrowed {
 public:
  explicit Borrowed(ls_tensor h) : Borrowed(h, Metadata{}) {
    if (any_lost()) refuse_lost(t_.unsafeGetTensorImpl());
  }
  // For what looks at a tensor and leaves its memory alone: on a lost device too.
  struct Metadata {};
  Borrowed(ls_tensor h, Metadata)
      : t_(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(impl(h))) {}
  ~Borrowed() { (void)t_.unsafeReleaseTensorImpl(); }
  Borrowed(const Borrowed &) = delete;
  Borrowed &operator=(const Borrowed &) = delete;
  operator const at::Tensor &() const { return t_; }
  const at::Tensor &get() const { return t_; }
  const at::Tensor *operator->() const { return &t_; }

 private:
  static c10::TensorImpl *impl(ls_tensor h) {
    return h == 0 ? static_cast<c10::TensorImpl *>(c10::UndefinedTensorImpl::singleton())
                  : reinterpret_cast<c10::TensorImpl *>(h);
  }
  at::Tensor t_;
};

// A counted copy; undefined for 0.
inline at::Tensor copy_of(ls_tensor h) {
  if (h == 0) return {};
  return Borrowed(h).get();
}
inline std::optional<at::Tensor> optional_of(ls_tensor h) {
  if (h == 0) return std::nullopt;
  return Borrowed(h).get();
}
inline const at::Tensor &need(const Borrowed &b, const char *name) {
  if (!b.get().defined()) throw ArgumentError(std::string(name) + ": a tensor is needed, got none");
  return b.get();
}

// The dispatch keys of tensors whose memory is not a strided array: sparse ones, oneDNN's, quantized, nested, and
// zeros without memory.
constexpr c10::DispatchKeySet kOddKeys({c10::DispatchKey::Sparse, c10::DispatchKey::SparseCsr,
                                        c10::DispatchKey::Quantized, c10::DispatchKey::NestedTensor,
                                        c10::DispatchKey::MkldnnCPU, c10::DispatchKey::ZeroTensor});
void check_odd(const char *name, const char *overload, std::initializer_list<ls_tensor> tensors);
// Refuses layouts on which a typed operator would end the process, as Operator::check does. One branch for tensors
// in strided memory.
inline void check_layouts(const char *name, const char *overload, std::initializer_list<ls_tensor> tensors) {
  c10::DispatchKeySet keys;
  for (ls_tensor t : tensors)
    if (t != 0) keys = keys | reinterpret_cast<const c10::TensorImpl *>(t)->key_set();
  if (__builtin_expect(!(keys & kOddKeys).empty(), 0)) check_odd(name, overload, tensors);
}

// Gives a tensor's reference to the caller. An undefined tensor is 0.
inline ls_tensor give(at::Tensor &&t) {
  if (!t.defined()) return 0;
  count_handle(&HandleCount::made);
  return reinterpret_cast<ls_tensor>(t.unsafeReleaseTensorImpl());
}

// The guard: every exported function's body runs inside one of these.
template <class F>
inline ls_result run(F &&f) noexcept {
  try {
    enter();
    return {give(f()), nullptr, told_scope()};
  } catch (...) {
    return {0, current_error(), words.scope};
  }
}
template <class F>
inline ls_error *run_void(F &&f) noexcept {
  try {
    enter();
    f();
    return nullptr;
  } catch (...) {
    return current_error();
  }
}
template <class F>
inline ls_results run_values(F &&f) noexcept {
  ls_results r{0, nullptr, nullptr, words.scope};
  try {
    enter();
    f(r);
  } catch (...) {
    r.err = current_error();
  }
  r.scope = told_scope();
  return r;
}
// The guard of what returns no error. A fault at its entry stops nothing: it frees, counts, sets words.
template <class F>
inline auto run_quiet(F &&f) noexcept -> decltype(f()) {
  if (__builtin_expect((threads_epoch.load(std::memory_order_relaxed) & kEntriesArmed) != 0, 0)) {
    try {
      fault_entry();
    } catch (...) {
    }
  }
  try {
    return f();
  } catch (...) {
    return decltype(f())();
  }
}

// A string result.
void put_string(ls_results &r, const std::string &s, ls_value *out, uint64_t out_slots);

// An int list argument; the pointer may be NULL where n is 0.
inline c10::IntArrayRef ints(const int64_t *p, uint64_t n) { return {p, static_cast<size_t>(n)}; }

// A number that stands where a tensor could, as Python's argument parser wraps it: it takes part in type
// promotion as a number, not as a tensor.
at::Tensor wrapped_number(const c10::Scalar &s);
c10::Scalar scalar_of(const ls_value *v);

// A tensor or a number.
class Operand {
 public:
  explicit Operand(ls_value v) : t_(v.tag == LS_TENSOR ? v.u.t : 0) {
    if (v.tag != LS_TENSOR) number_ = wrapped_number(scalar_of(&v));
  }
  operator const at::Tensor &() const { return number_.defined() ? number_ : t_.get(); }

 private:
  Borrowed t_;
  at::Tensor number_;
};

// An array of handles as counted copies.
std::vector<at::Tensor> tensors_of(const ls_tensor *h, uint64_t n);

inline c10::Device device_of(int64_t v) {
  int64_t type = v >> 8, index = static_cast<int8_t>(v & 0xff);
  // libtorch indexes tables by the type, unchecked.
  if (type < 0 || type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES || index < -1)
    throw ArgumentError("device type " + std::to_string(type) + ", index " + std::to_string(index) +
                        " does not exist");
  c10::Device d{static_cast<c10::DeviceType>(type), static_cast<c10::DeviceIndex>(index)};
  if (!d.is_cpu()) use_device(d);
  return d;
}

// Tensors as the handles that a callback borrows.
class Lent {
 public:
  explicit Lent(const std::vector<at::Tensor> &list) {
    handles_.reserve(list.size());
    for (const auto &t : list)
      handles_.push_back(reinterpret_cast<ls_tensor>(t.defined() ? t.unsafeGetTensorImpl() : nullptr));
  }
  const ls_tensor *data() const { return handles_.data(); }
  uint64_t size() const { return handles_.size(); }

 private:
  std::vector<ls_tensor> handles_;
};

// An id that is the caller's again with ls_dropped_take. It is its own place in the queue: made while there is
// memory, so that it cannot be lost when there is none.
struct Ticket {
  uint64_t id;
  Ticket *next = nullptr;
};
void drop(Ticket *t) noexcept;
// A ticket that is dropped by the last of its holders.
inline std::shared_ptr<Ticket> hold(uint64_t id) { return {new Ticket{id}, drop}; }
extern ls_callbacks callbacks;

}  // namespace ls

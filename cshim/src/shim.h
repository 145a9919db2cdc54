// Declarations that the files of the shim share: borrowed handles, the guard around exported functions, values.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/Scalar.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "faults.h"
#include "linstock.h"
#include "lost.h"

namespace ls {

// The state of the calling thread. Plain data with the initial-exec model: a read is one instruction.
struct ThreadWords {
  uint64_t scope;
  uint64_t threads_epoch;
  struct HandleCount *handles;  // nullptr before the thread's first allocation
  int64_t yielded;              // when yield_due last returned true, in milliseconds
};
extern thread_local ThreadWords words __attribute__((tls_model("initial-exec")));

// Reports whether the caller should yield, which is once in 8 ms on each thread. The coarse clock takes 4 ns to
// read; the kernel advances it every 1 to 10 ms.
inline bool yield_due() noexcept {
#ifdef CLOCK_MONOTONIC_COARSE
  constexpr clockid_t clock = CLOCK_MONOTONIC_COARSE;
#else
  constexpr clockid_t clock = CLOCK_MONOTONIC;
#endif
  timespec t{};
  clock_gettime(clock, &t);
  int64_t now = t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
  if (__builtin_expect(now - words.yielded < 8, 1)) return false;
  words.yielded = now;
  return true;
}

// Whether operators may use several threads.
extern std::atomic<bool> parallel;

// Makes MKL's vector functions choose their kernels now, on one thread.
void choose_vector_kernels() noexcept;
// Registers the kernels that stand in the place of libtorch's (kernels.cpp).
void replace_kernels();

// Returns the scope word of a result.
inline uint64_t result_scope() noexcept {
  return parallel.load(std::memory_order_relaxed) && yield_due() ? words.scope | LS_SCOPE_YIELD : words.scope;
}

// Handles that a thread has made and freed. Only that thread writes it.
struct HandleCount {
  std::atomic<int64_t> made{0}, freed{0};
  // The part of the difference that is in the sum of all threads. The thread that reads the sum writes it, too.
  std::atomic<int64_t> pushed{0};
};

// Returns the default random number generator of a device. The first call for a device makes it.
at::Generator default_generator(c10::Device d);
// Reads and writes the state of a random number generator, on the generator's device.
at::Tensor random_state_of(at::Generator g);
void set_random_state(at::Generator g, const at::Tensor &state);
// How often the calling thread has seeded the generators of devices or set the state of one.
extern thread_local uint64_t random_states_set;
// Returns the generator with a reference of its own.
at::Generator generator_at(ls_generator g);

// Incremented by ls_threads_set and by the first level of forward mode; a thread with an older value sets the
// number of threads again (libtorch's setter reaches only the calling thread and those that have not computed
// yet), and turns tangents off (forward.h). With kEntriesArmed every thread has an older value.
extern std::atomic<uint64_t> threads_epoch;
void adopt_settings() noexcept;

// Handles are counted by thread, without a locked instruction, which would cost more than the rest of a guard.
// Every 64th adds the thread's count to the sum, whose peak is recorded; a read of the peak adds all counts.
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
    adopt_settings();
    fault_entry();
  }
}

// An error of the shim itself, LS_ERR_ARGUMENT.
struct ArgumentError : std::exception {
  std::string text;
  explicit ArgumentError(std::string t) : text(std::move(t)) {}
  const char *what() const noexcept override { return text.c_str(); }
};

// A use of streams or graphs that a capture does not allow, LS_ERR_CAPTURE.
struct CaptureError : ArgumentError {
  using ArgumentError::ArgumentError;
};

// Carries the failure of a callback through libtorch's engine, LS_ERR_CALLBACK.
struct CallbackError : c10::Error {
  uint64_t id;
  CallbackError(uint64_t i, const std::string &text)
      : c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text), id(i) {}
};

// Returns the exception that is being handled as an ls_error. Never throws, never returns nullptr.
ls_error *current_error() noexcept;

// The tensor of a handle, without a change of its reference count.
class Borrowed {
 public:
  explicit Borrowed(ls_tensor h) : Borrowed(h, Metadata{}) {
    if (any_lost()) refuse_lost(t_.unsafeGetTensorImpl());
  }
  // For functions that read a tensor's metadata but not its memory: also on a lost device.
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

// A copy with its own reference; undefined for 0.
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

// Refuses to write to a tensor if libtorch would then not find its hook that retains the gradient.
void check_in_place(const at::Tensor &t);

// Reports whether the tensors have the same memory.
inline bool shares_memory(const at::Tensor &a, const at::Tensor &b) {
  if (!a.defined() || !b.defined()) return false;
  if (!a.has_storage() || !b.has_storage()) return a.is_same(b);
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

// Returns a copy of t if the operator writes to its memory and autograd saves t: a node that saves what it has
// written refers to itself and is never freed. The gradient is then right, too; without a copy, libtorch refuses
// the backward pass.
template <class... Tensors>
std::optional<at::Tensor> copy_if_shared(const at::Tensor &t, const at::Tensor &written,
                                         const Tensors &...others) {
  if (__builtin_expect(!shares_memory(t, written), 1) || !c10::GradMode::is_enabled()) return std::nullopt;
  if (!written.requires_grad() && !(... || others.requires_grad())) return std::nullopt;
  return t.clone();
}

// Moves a tensor's reference to the caller. An undefined tensor is 0.
inline ls_tensor give(at::Tensor &&t) {
  if (!t.defined()) return 0;
  count_handle(&HandleCount::made);
  return reinterpret_cast<ls_tensor>(t.unsafeReleaseTensorImpl());
}

// The guard: the body of every exported function runs inside one of these.
template <class F>
inline ls_result run(F &&f) noexcept {
  try {
    enter();
    return {give(f()), nullptr, result_scope()};
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
  r.scope = result_scope();
  return r;
}
// The guard of functions that return no error. A fault injected at their entry has no effect: they free, count,
// or set words.
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

// An argument that is a list of ints; the pointer may be nullptr if n is 0.
inline c10::IntArrayRef ints(const int64_t *p, uint64_t n) { return {p, static_cast<size_t>(n)}; }

// A number in the place of a tensor, wrapped as Python's argument parser does: in type promotion it counts as a
// number, not as a tensor.
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

// The tensors of an array of handles, with references of their own.
std::vector<at::Tensor> tensors_of(const ls_tensor *h, uint64_t n);

inline c10::Device device_of(int64_t v) {
  int64_t type = v >> 8, index = static_cast<int8_t>(v & 0xff);
  // libtorch uses the type as an index of tables without a check.
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

// Handles that a callback has made, freed in every case.
struct Made {
  std::vector<ls_tensor> handles;
  explicit Made(size_t n) : handles(n, 0) {}
  ~Made() { ls_tensors_free(handles.data(), handles.size()); }
  Made(const Made &) = delete;
  Made &operator=(const Made &) = delete;
};

// An id that ls_dropped_take returns once it is dropped. The entry in the queue is allocated with it, so that a
// drop cannot fail.
struct Ticket {
  uint64_t id;
  Ticket *next = nullptr;
};
void drop(Ticket *t) noexcept;
// A ticket that its last holder drops.
inline std::shared_ptr<Ticket> hold(uint64_t id) { return {new Ticket{id}, drop}; }
extern ls_callbacks callbacks;

}  // namespace ls

// The recorder of operators: libtorch calls it before and after each operator and each node of a backward pass, on
// the thread that runs it (at::RecordFunction). While nothing is recorded, libtorch's list of callbacks is empty
// and an operator costs what it costs without this file (docs/decisions/0033-time-profiles.md).
#include "trace.h"

#include <ATen/record_function.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "memory.h"

namespace ls {

// The events of one thread. `mutex` guards the first group; only the thread uses the second.
struct ThreadTrace {
  std::mutex mutex;
  std::deque<ls_trace_event> events;
  size_t unnamed = 0;  // the events before this one have been attributed to calls
  bool ended = false;  // the thread has; guarded by Trace::mutex

  uint64_t session = 0;
  uint32_t depth = 0;
  bool inside = false;  // a callback within a backward pass runs
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const noexcept { return std::hash<std::string_view>()(s); }
  };
  std::unordered_map<std::string, uint32_t, Hash, std::equal_to<>> texts;
};

constinit thread_local ThreadTrace *trace_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

using Steady = std::chrono::steady_clock;

// Leaked on purpose: threads record until the process ends.
struct Trace {
  std::mutex mutex;
  std::vector<std::unique_ptr<ThreadTrace>> threads;
  std::unordered_map<std::string, uint32_t> numbers;
  std::vector<std::string> texts;
  uint64_t sessions = 0;
  // Callbacks are added once and disabled while unused: libtorch does not allow their removal at any time.
  at::CallbackHandle plain = at::INVALID_CALLBACK_HANDLE, with_shapes = at::INVALID_CALLBACK_HANDLE;
  at::CallbackHandle nvtx = at::INVALID_CALLBACK_HANDLE;
  int nvtx_users = 0;

  static Trace &get() {
    static auto *t = new Trace;
    return *t;
  }
};

std::atomic<uint64_t> session{0};  // 0: nothing is recorded
std::atomic<uint64_t> room{0};     // for so many more events
std::atomic<uint64_t> dropped{0};
std::atomic<int64_t> epoch_offset{0};  // from the steady clock to the time since the epoch

// What the end of an event needs of its beginning.
struct Open : at::ObserverContext {
  ThreadTrace *thread;
  uint64_t session;
  ls_trace_event event;
};

thread_local bool thread_over = false;
struct ThreadTraceEnd {
  ~ThreadTraceEnd() {
    thread_over = true;
    auto *t = std::exchange(trace_of_thread, nullptr);
    if (t == nullptr) return;
    std::lock_guard<std::mutex> lock(Trace::get().mutex);
    t->ended = true;
  }
};

ThreadTrace *thread_trace() {
  if (trace_of_thread != nullptr || thread_over) return trace_of_thread;
  static thread_local ThreadTraceEnd end;
  (void)&end;
  auto made = std::make_unique<ThreadTrace>();
  auto &all = Trace::get();
  std::lock_guard<std::mutex> lock(all.mutex);
  all.threads.push_back(std::move(made));
  return trace_of_thread = all.threads.back().get();
}

uint32_t number_of(ThreadTrace &t, std::string_view text) {
  auto it = t.texts.find(text);
  if (it != t.texts.end()) return it->second;
  std::string key(text);
  uint32_t n;
  {
    auto &all = Trace::get();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto [at, fresh] = all.numbers.try_emplace(key, static_cast<uint32_t>(all.texts.size() + 1));
    if (fresh) all.texts.push_back(key);
    n = at->second;
  }
  t.texts.emplace(std::move(key), n);
  return n;
}

void append_sizes(std::string &text, const c10::IValue &v) {
  text += '[';
  if (v.isTensor()) {
    const at::Tensor &t = v.toTensor();
    // The sizes of a nested tensor, and symbolic ones, are not a list of numbers.
    if (t.defined() && !t.is_nested() && !t.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) {
      const char *comma = "";
      for (int64_t n : t.sizes()) {
        text += comma + std::to_string(n);
        comma = ", ";
      }
    }
  } else if (v.isTensorList() || v.isOptionalTensorList()) {
    const char *comma = "";
    for (const c10::IValue &e : v.toListRef()) {
      text += comma;
      append_sizes(text, e);
      comma = ", ";
    }
  }
  text += ']';
}

int64_t now_ns() {
  return std::chrono::nanoseconds(Steady::now().time_since_epoch()).count() + epoch_offset.load();
}

template <bool shapes>
std::unique_ptr<at::ObserverContext> event_begins(const at::RecordFunction &f) {
  try {
    auto *t = thread_trace();
    if (t == nullptr) return nullptr;
    uint64_t current = session.load(std::memory_order_acquire);
    if (current == 0) return nullptr;
    // Before its name and shapes take memory. There will be no room at its end, either.
    if (room.load(std::memory_order_relaxed) == 0) {
      dropped.fetch_add(1, std::memory_order_relaxed);
      return nullptr;
    }
    if (t->session != current) {
      t->session = current;
      t->depth = 0;
      t->texts.clear();
    }
    auto open = std::make_unique<Open>();
    open->thread = t;
    open->session = current;
    auto &e = open->event;
    e = {};
    e.sequence = f.seqNr();
    e.thread = f.threadId();
    e.forward_thread = f.forwardThreadId();
    e.name = number_of(*t, f.name());
    if (shapes && !f.inputs().empty()) {
      std::string text = "[";
      const char *comma = "";
      for (const c10::IValue &v : f.inputs()) {
        text += comma;
        append_sizes(text, v);
        comma = ", ";
      }
      e.shapes = number_of(*t, text + "]");
    }
    e.site = LS_NO_SITE;
    e.kind = f.scope() == at::RecordScope::BACKWARD_FUNCTION ? LS_TRACE_BACKWARD
             : f.scope() == at::RecordScope::USER_SCOPE      ? LS_TRACE_RANGE
                                                             : LS_TRACE_OPERATOR;
    e.depth = t->depth++;
    e.bytes = requested_by_thread();
    e.device_bytes = device_bytes_by_thread;
    e.start_ns = now_ns();
    return open;
  } catch (...) {
    dropped.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
}

bool take_room() noexcept {
  uint64_t left = room.load(std::memory_order_relaxed);
  while (left != 0 && !room.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
  }
  return left != 0;
}

void event_ends(const at::RecordFunction &, at::ObserverContext *context) {
  int64_t now = now_ns();
  auto *open = static_cast<Open *>(context);
  if (open == nullptr) return;
  auto *t = trace_of_thread;
  if (open->thread != t) return;  // an operator that ends on another thread
  if (open->session == t->session) t->depth--;
  auto &e = open->event;
  e.end_ns = now;
  e.bytes = requested_by_thread() - e.bytes;
  e.device_bytes = device_bytes_by_thread - e.device_bytes;
  try {
    std::lock_guard<std::mutex> lock(t->mutex);
    if (session.load() != open->session) return;
    if (!take_room()) {
      dropped.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    t->events.push_back(e);
  } catch (...) {
    dropped.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  mark_unnamed();
}

// Stops recording. Events that end later are not recorded.
void stop(Trace &all) {
  session.store(0);
  for (auto h : {all.plain, all.with_shapes})
    if (h != at::INVALID_CALLBACK_HANDLE) at::disableCallback(h);
}

// Frees what threads that have ended recorded, if nothing of it is left. The caller holds the mutex.
void forget_ended(Trace &all) {
  std::erase_if(all.threads, [](const auto &t) { return t->ended && t->events.empty(); });
}

const torch::profiler::impl::ProfilerStubs &nvtx() {
  const auto *stubs = torch::profiler::impl::cudaStubs();
  if (stubs == nullptr || !stubs->enabled())
    throw ArgumentError("NVTX needs the CUDA library, which is not loaded");
  return *stubs;
}

// libtorch catches what a callback throws, and prints a warning.
std::unique_ptr<at::ObserverContext> nvtx_begins(const at::RecordFunction &f) {
  // The context tells the end that the range was pushed.
  struct Pushed : at::ObserverContext {};
  auto made = std::make_unique<Pushed>();
  std::string text = f.name();
  if (f.seqNr() >= 0) text += ", seq = " + std::to_string(f.seqNr());
  nvtx().rangePush(text.c_str());
  return made;
}

void nvtx_ends(const at::RecordFunction &, at::ObserverContext *pushed) {
  if (pushed != nullptr) nvtx().rangePop();
}

const std::unordered_set<at::RecordScope> &scopes() {
  static const auto *s = new std::unordered_set<at::RecordScope>{
      at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE};
  return *s;
}

}  // namespace

void name_events_of(ThreadTrace &t, uint32_t site) noexcept {
  run_quiet([&] {
    std::lock_guard<std::mutex> lock(t.mutex);
    for (size_t i = t.unnamed; i < t.events.size(); i++) {
      auto &e = t.events[i];
      if (e.site != LS_NO_SITE) continue;
      e.site = site;
      e.inside = t.inside;
    }
    t.unnamed = t.events.size();
  });
}

void CalledBack::begin(ThreadTrace &t) noexcept {
  run_quiet([&] {
    std::lock_guard<std::mutex> lock(t.mutex);
    unnamed_ = std::exchange(t.unnamed, t.events.size());
    inside_ = std::exchange(t.inside, true);
    thread_ = &t;
  });
}

void CalledBack::end() noexcept {
  run_quiet([&] {
    std::lock_guard<std::mutex> lock(thread_->mutex);
    // Events may have been taken meanwhile.
    thread_->unnamed = std::min(unnamed_, thread_->unnamed);
    thread_->inside = inside_;
  });
}

}  // namespace ls

using ls::Trace;

ls_error *ls_trace_start(uint32_t flags, uint64_t max) noexcept {
  return ls::run_void([&] {
    auto &all = Trace::get();
    std::lock_guard<std::mutex> lock(all.mutex);
    auto callback = [](at::RecordFunctionCallback::StartCallback begins,
                       at::RecordFunctionCallback::EndCallback ends) {
      return at::RecordFunctionCallback(begins, ends).scopes(ls::scopes());
    };
    bool shapes = (flags & LS_TRACE_SHAPES) != 0;
    auto &handle = shapes ? all.with_shapes : all.plain;
    ls::stop(all);
    for (auto &t : all.threads) {
      std::lock_guard<std::mutex> thread(t->mutex);
      t->events.clear();
      t->unnamed = 0;
    }
    ls::forget_ended(all);
    all.numbers.clear();
    all.texts.clear();
    ls::room.store(max);
    ls::dropped.store(0);
    auto since = [](auto clock) { return std::chrono::nanoseconds(clock.time_since_epoch()).count(); };
    ls::epoch_offset.store(since(std::chrono::system_clock::now()) - since(ls::Steady::now()));
    if (handle == at::INVALID_CALLBACK_HANDLE) {
      handle = shapes ? at::addGlobalCallback(callback(ls::event_begins<true>, ls::event_ends).needsInputs(true))
                      : at::addGlobalCallback(callback(ls::event_begins<false>, ls::event_ends));
    } else {
      at::reenableCallback(handle);
    }
    ls::session.store(++all.sessions);
  });
}

void ls_trace_stop(void) noexcept {
  ls::run_quiet([] {
    auto &all = Trace::get();
    std::lock_guard<std::mutex> lock(all.mutex);
    ls::stop(all);
  });
}

uint64_t ls_trace_take(ls_trace_event *out, uint64_t cap) noexcept {
  return ls::run_quiet([&] {
    auto &all = Trace::get();
    std::lock_guard<std::mutex> lock(all.mutex);
    uint64_t n = 0;
    for (auto &t : all.threads) {
      std::lock_guard<std::mutex> thread(t->mutex);
      uint64_t m = std::min<uint64_t>(cap - n, t->events.size());
      auto end = t->events.begin() + static_cast<int64_t>(m);
      std::copy(t->events.begin(), end, out + n);
      t->events.erase(t->events.begin(), end);
      if (t->events.empty()) t->events.shrink_to_fit();
      t->unnamed -= std::min<uint64_t>(m, t->unnamed);
      n += m;
    }
    ls::forget_ended(all);
    return n;
  });
}

ls_results ls_trace_text(uint32_t number, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    std::string text;
    {
      auto &all = Trace::get();
      std::lock_guard<std::mutex> lock(all.mutex);
      if (number == 0 || number > all.texts.size())
        throw ls::ArgumentError("text " + std::to_string(number) + " of a trace does not exist");
      text = all.texts[number - 1];
    }
    ls::put_string(r, text, out, out_slots);
  });
}

uint64_t ls_trace_dropped(void) noexcept {
  return ls::run_quiet([] { return ls::dropped.load(); });
}

ls_error *ls_range_push(const char *name, uintptr_t *range) noexcept {
  return ls::run_void([&] {
    *range = 0;
    auto f = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (!f->isActive()) return;
    f->before(std::string_view(name));
    *range = reinterpret_cast<uintptr_t>(f.release());
  });
}

void ls_range_pop(uintptr_t range) noexcept {
  ls::run_quiet([&] { delete reinterpret_cast<at::RecordFunction *>(range); });
}

ls_error *ls_nvtx_set(int32_t on) noexcept {
  return ls::run_void([&] {
    auto &all = Trace::get();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (on == 0) {
      if (all.nvtx_users != 0 && --all.nvtx_users == 0) at::disableCallback(all.nvtx);
      return;
    }
    (void)ls::nvtx();
    if (all.nvtx == at::INVALID_CALLBACK_HANDLE) {
      all.nvtx =
          at::addGlobalCallback(at::RecordFunctionCallback(ls::nvtx_begins, ls::nvtx_ends).scopes(ls::scopes()));
    } else if (all.nvtx_users == 0) {
      at::reenableCallback(all.nvtx);
    }
    all.nvtx_users++;
  });
}

// The functions of linstock/stream.h. Streams and events go through libtorch's interface for all devices; graphs
// through the device's library.
#include "stream.h"

#include <ATen/record_function.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "autocast.h"
#include "device.h"
#include "shim.h"

namespace ls {

std::atomic<int32_t> captures_underway{0};

namespace {

using c10::impl::VirtualGuardImpl;

struct OwnedGraph {
  int slot;
  uint64_t number;
  std::thread::id thread;  // that captures it
  int64_t stream;          // that is captured
  std::unique_ptr<Graph> graph;
  std::atomic<bool> refused{false};     // a call that cannot be captured, by note_refusal
  std::optional<CastCachePause> casts;  // while it is captured, on the thread that captures
};
std::atomic<uint64_t> graphs{0};

// The graph that the calling thread captures.
thread_local OwnedGraph *capturing = nullptr;

// The deleter of pinned memory, known from the first capture on. To ask libtorch's allocator whether it owns a
// block would call CUDA.
std::atomic<c10::DeleterFnPtr> pinned_deleter{nullptr};

// A stream that is current inside LS_MODE_STREAM.
struct Current {
  c10::Stream stream;
  std::thread::id thread;
};

// The captures, what they exclude, and what waits for their end.
struct Waiting {
  std::mutex mutex;
  OwnedGraph *on[kMaxSlots] = {};       // the capture on each device
  std::vector<Current> current;         // streams but the default ones, once for each mode
  bool empty[kMaxSlots] = {};           // whether its cache is to be emptied
  std::vector<c10::TensorImpl *> kept;  // references, by keep_until_captured
};
Waiting &waiting() {
  static auto *w = new Waiting;
  return *w;
}

// The device of the word, started and not lost.
c10::Device accelerator(int32_t word) {
  auto d = device_of(word);
  if (d.is_cpu() || slot_of(d) < 0) throw ArgumentError(d.str() + " has no streams: a CUDA device is needed");
  need_devices(d.type());
  return d;
}

c10::Stream stream_of(int32_t device, int64_t id) {
  return c10::Stream(c10::Stream::UNSAFE, accelerator(device), id);
}

// Returns the number of the capture that the stream is part of; 0: none.
uint64_t capture_of(const c10::Stream &s) {
  int slot = slot_of(s.device());
  if (captures() == 0 || slot <= kCpuSlot || s.id() == 0) return 0;
  uint64_t number = 0;
  {
    auto &w = waiting();
    std::lock_guard<std::mutex> lock(w.mutex);
    if (const auto *g = w.on[slot]) number = g->number;
  }
  return number != 0 && need_devices(s.device_type()).capturing(s) ? number : 0;
}

// Returns the number of the device's capture that the calling thread takes part in, as the thread that captures or
// as one on which autograd runs its backward pass; 0: none.
uint64_t own_capture(c10::Device d) {
  if (capturing != nullptr) return capturing->slot == slot_of(d) ? capturing->number : 0;
  return capture_on(d);
}

// The same on any device.
bool in_capture() { return capturing != nullptr || (captures() != 0 && ls_cuda_capturing() != 0); }

[[noreturn]] void refuse_captured(const c10::Stream &s) {
  throw CaptureError("another goroutine captures a graph on this stream of " + s.device().str() +
                     "; a capture and all that it records belong to one goroutine");
}

// The same for a stream that is about to be used: not while another thread captures it.
c10::Stream usable(int32_t device, int64_t id) {
  auto s = stream_of(device, id);
  if (captures() == 0 || own_capture(s.device()) != 0) return s;
  if (need_devices(s.device_type()).capturing(s)) refuse_captured(s);
  return s;
}

// Called under the lock before the stream becomes part of a capture of the thread: what another thread gives to
// the stream would be recorded, too.
void refuse_shared(const Waiting &w, const c10::Stream &s, std::thread::id thread) {
  for (const auto &c : w.current)
    if (c.stream == s && c.thread != thread && c.thread != std::this_thread::get_id())
      throw CaptureError("this stream of " + s.device().str() +
                         " is the current one of another goroutine, whose work would be captured");
}

// Notes that the stream is current on the calling thread, unless another thread captures it.
void enter_current(const c10::Stream &s) {
  if (s.id() == 0) return;
  bool own = own_capture(s.device()) != 0;
  auto &w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  const auto *g = w.on[slot_of(s.device())];
  if (g != nullptr && !own && g->stream == s.id()) refuse_captured(s);
  w.current.push_back({s, std::this_thread::get_id()});
}

void leave_current(const c10::Stream &s) noexcept {
  if (s.id() == 0) return;
  auto &w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  auto ours = [&](const Current &c) { return c.stream == s && c.thread == std::this_thread::get_id(); };
  auto it = std::find_if(w.current.begin(), w.current.end(), ours);
  if (it == w.current.end()) return;
  *it = w.current.back();
  w.current.pop_back();
}

void need_same_device(const at::Tensor &t, const c10::Stream &s) {
  if (t.device() != s.device())
    throw ArgumentError("the tensor is on " + t.device().str() + ", the stream is on " + s.device().str());
}

void record_use(const VirtualGuardImpl &guard, const at::Tensor &t, const c10::Stream &s) {
  guard.recordDataPtrOnStream(t.storage().data_ptr(), s);
}

// Records the current stream for an operand. Without this, the allocator would reuse a tensor's memory as soon as
// it is freed, in the order of the stream that it was made on, although another stream may still read it.
void note_operand(const c10::IValue &v) {
  if (v.isTensor()) {
    const at::Tensor &t = v.toTensor();
    if (!t.defined() || t.device().is_cpu() || slot_of(t.device()) < 0 || !t.has_storage()) return;
    VirtualGuardImpl guard(t.device().type());
    record_use(guard, t, guard.getStream(t.device()));
  } else if (v.isList()) {
    for (const c10::IValue &e : v.toListRef()) note_operand(e);
  }
}

std::unique_ptr<at::ObserverContext> note_operator(const at::RecordFunction &f) {
  for (const c10::IValue &v : f.inputs()) note_operand(v);
  return nullptr;
}

void note_operators() {
  static const bool once = [] {
    at::addGlobalCallback(
        at::RecordFunctionCallback(note_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    return true;
  }();
  (void)once;
}

// Ends the calling thread's capture, and does what had to wait for that.
void end_capture(OwnedGraph &g) noexcept {
  g.casts.reset();
  auto &w = waiting();
  bool empty;
  std::vector<c10::TensorImpl *> kept;
  {
    std::lock_guard<std::mutex> lock(w.mutex);
    capturing = nullptr;
    w.on[g.slot] = nullptr;
    empty = std::exchange(w.empty[g.slot], false);
    if (captures_underway.fetch_sub(1) == 1) kept.swap(w.kept);
  }
  for (auto *impl : kept) {
    if (any_lost() && must_leak(impl)) continue;
    run_quiet([&] { c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(impl).reset(); });
  }
  if (empty) run_quiet([&] { devices_at(g.slot).empty_cache(index_of(g.slot)); });
}

struct OwnedEvent {
  c10::Event event;
  int slot;              // of the device that recorded it; -1: none
  uint64_t capture = 0;  // the number of the capture that it was recorded in; 0: none

  c10::Device device() const { return device_at(slot < 0 ? kCpuSlot : slot); }
};

OwnedEvent &event_of(ls_stream_event e) {
  if (e == 0) throw ArgumentError("event: an event is needed, got none");
  auto &owned = *reinterpret_cast<OwnedEvent *>(e);
  if (owned.slot >= 0) refuse_lost_device(owned.slot);
  return owned;
}

[[noreturn]] void refuse_captured_event() {
  throw CaptureError("the event was recorded in a capture: only streams of it can wait for it");
}

// The same for a question about the work before it, which would end the capture.
c10::Event &answering(ls_stream_event e) {
  auto &owned = event_of(e);
  if (owned.capture != 0) refuse_captured_event();
  return owned.event;
}

OwnedGraph &graph_of(ls_graph g) {
  auto *owned = reinterpret_cast<OwnedGraph *>(g);
  if (owned == nullptr || owned->graph == nullptr) throw ArgumentError("graph: a graph is needed, got none");
  return *owned;
}

// Frees libtorch's graph, but not that of a lost device, which would call CUDA.
void free_graph(OwnedGraph &g) noexcept {
  if (is_lost(g.slot)) (void)g.graph.release();
  g.graph.reset();
}

// Ends the calling thread's capture at the end of a block, and frees libtorch's graph unless it is complete: what
// a failed capture keeps of the device must be back before another thread may capture there.
struct Ending {
  OwnedGraph *owned;  // nullptr: the capture goes on
  bool complete = false;
  ~Ending() {
    if (owned == nullptr) return;
    if (!complete) free_graph(*owned);
    end_capture(*owned);
  }
};

}  // namespace

StreamMode StreamMode::enter(int32_t device, int64_t id) {
  auto s = stream_of(device, id);
  // First noted, then checked: a capture that begins meanwhile is refused, or it is seen here.
  enter_current(s);
  try {
    usable(device, id);
    VirtualGuardImpl guard(s.device_type());
    if (s != guard.getDefaultStream(s.device())) note_operators();
    StreamMode before{guard.getStream(s.device()), guard.getDevice(), s};
    if (before.device != s.device()) guard.setDevice(s.device());
    guard.exchangeStream(s);
    return before;
  } catch (...) {
    leave_current(s);
    throw;
  }
}

void StreamMode::undo() const {
  leave_current(entered);
  VirtualGuardImpl guard(stream.device_type());
  guard.exchangeStream(stream);
  // Without a context on a device that has none.
  if (guard.getDevice() != device) guard.uncheckedSetDevice(device);
}

void note_refusal() noexcept {
  try {
    auto &w = waiting();
    for (int slot = kCpuSlot + 1; slot < kMaxSlots; slot++) {
      {
        std::lock_guard<std::mutex> lock(w.mutex);
        if (w.on[slot] == nullptr) continue;
      }
      uint64_t number = own_capture(device_at(slot));
      std::lock_guard<std::mutex> lock(w.mutex);
      if (auto *g = w.on[slot]; g != nullptr && g->number == number) g->refused = true;
    }
  } catch (...) {  // CUDA cannot say whether the thread takes part
  }
}

void refuse_in_capture(const char *what) {
  if (captures() == 0 || ls_cuda_capturing() == 0) return;
  note_refusal();
  throw CaptureError(std::string("a graph is being captured: ") + what + " cannot be captured");
}

uint64_t capture_on(c10::Device d) {
  if (captures() == 0 || slot_of(d) <= kCpuSlot) return 0;
  return capture_of(VirtualGuardImpl(d.type()).getStream(d));
}

bool may_wait_for(int slot) noexcept {
  if (captures() == 0) return true;
  if (in_capture()) return false;
  auto &w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  return w.on[slot] == nullptr;
}

void refuse_while_captured(c10::Device d) {
  if (captures() == 0 || slot_of(d) < 0) return;
  auto &w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (w.on[slot_of(d)] != nullptr)
    throw CaptureError("a graph is being captured on " + d.str() +
                       ": to wait for the device would end the capture");
}

bool keep_until_captured(c10::TensorImpl *impl) noexcept {
  return run_quiet([&] {
    if (!impl->has_storage()) return false;
    bool keep = impl->device().is_cpu() ? impl->storage().data_ptr().get_deleter() == pinned_deleter.load()
                                        : capturing != nullptr && !capturing->graph->valid();
    if (!keep) return false;
    auto &w = waiting();
    std::lock_guard<std::mutex> lock(w.mutex);
    if (captures() == 0) return false;
    w.kept.push_back(impl);
    return true;
  });
}

bool empty_cache_after_capture(int slot) noexcept {
  if (captures() == 0 || slot <= kCpuSlot) return false;
  auto &w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (w.on[slot] == nullptr) return false;
  w.empty[slot] = true;
  return true;
}

}  // namespace ls

ls_error *ls_stream_new(int32_t device, int32_t priority, int64_t *stream) noexcept {
  return ls::run_void([&] {
    auto d = ls::accelerator(device);
    *stream = ls::VirtualGuardImpl(d.type()).getNewStream(d, priority).id();
  });
}

ls_error *ls_stream_current(int32_t device, int64_t *stream) noexcept {
  return ls::run_void([&] {
    auto d = ls::accelerator(device);
    *stream = ls::VirtualGuardImpl(d.type()).getStream(d).id();
  });
}

ls_error *ls_stream_query(int32_t device, int64_t stream, int32_t *done) noexcept {
  return ls::run_void([&] {
    ls::refuse_in_capture("a question to a stream");
    *done = ls::usable(device, stream).query();
  });
}

ls_error *ls_stream_synchronize(int32_t device, int64_t stream) noexcept {
  return ls::run_void([&] {
    ls::refuse_in_capture("a wait for a stream");
    ls::usable(device, stream).synchronize();
  });
}

ls_error *ls_stream_record(ls_tensor t, int32_t device, int64_t stream) noexcept {
  return ls::run_void([&] {
    ls::Borrowed b(t);
    const at::Tensor &x = ls::need(b, "tensor");
    auto s = ls::usable(device, stream);
    ls::need_same_device(x, s);
    if (!x.has_storage()) throw ls::ArgumentError("a tensor with strided memory is needed");
    ls::record_use(ls::VirtualGuardImpl(s.device_type()), x, s);
  });
}

ls_error *ls_stream_copy(ls_tensor to, ls_tensor from, int32_t device, int64_t stream) noexcept {
  return ls::run_void([&] {
    ls::Borrowed target(to);
    ls::Borrowed source(from);
    const at::Tensor &x = ls::need(target, "tensor");
    const at::Tensor &y = ls::need(source, "tensor");
    auto s = ls::usable(device, stream);
    ls::need_same_device(x, s);
    c10::StreamGuard current(s);
    x.copy_(y, true);
  });
}

ls_error *ls_event_new(int32_t device, int32_t timing, ls_stream_event *event) noexcept {
  return ls::run_void([&] {
    auto d = ls::accelerator(device);
    auto flag = timing != 0 ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
    *event = reinterpret_cast<ls_stream_event>(new ls::OwnedEvent{c10::Event(d.type(), flag), -1});
  });
}

void ls_event_free(ls_stream_event event) noexcept {
  ls::run_quiet([&] {
    auto *e = reinterpret_cast<ls::OwnedEvent *>(event);
    if (e == nullptr || ls::is_lost(e->slot)) return;
    ls::OnDevice on(e->device());
    delete e;
  });
}

ls_error *ls_event_record(ls_stream_event event, int32_t device, int64_t stream) noexcept {
  return ls::run_void([&] {
    auto &e = ls::event_of(event);
    auto s = ls::usable(device, stream);
    ls::OnDevice on(s.device());
    e.event.record(s);
    e.slot = ls::slot_of(s.device());
    e.capture = ls::capture_of(s);
  });
}

ls_error *ls_event_wait(ls_stream_event event, int32_t device, int64_t stream) noexcept {
  return ls::run_void([&] {
    auto &e = ls::event_of(event);
    auto s = ls::usable(device, stream);
    if (e.capture != 0 && e.capture != ls::own_capture(ls::device_at(e.slot))) ls::refuse_captured_event();
    ls::OnDevice on(s.device());
    if (e.capture == 0 || e.capture == ls::capture_of(s)) return e.event.block(s);
    // The stream joins the capture.
    auto &w = ls::waiting();
    std::lock_guard<std::mutex> lock(w.mutex);
    if (const auto *g = w.on[e.slot]) ls::refuse_shared(w, s, g->thread);
    e.event.block(s);
  });
}

ls_error *ls_event_query(ls_stream_event event, int32_t *done) noexcept {
  return ls::run_void([&] {
    ls::refuse_in_capture("a question to an event");
    *done = ls::answering(event).query();
  });
}

ls_error *ls_event_synchronize(ls_stream_event event) noexcept {
  return ls::run_void([&] {
    ls::refuse_in_capture("a wait for an event");
    ls::answering(event).synchronize();
  });
}

ls_error *ls_event_elapsed(ls_stream_event from, ls_stream_event to, double *milliseconds) noexcept {
  return ls::run_void([&] {
    auto &begin = ls::answering(from), &end = ls::answering(to);
    ls::OnDevice on(ls::event_of(from).device());
    *milliseconds = begin.elapsedTime(end);
  });
}

ls_error *ls_graph_begin(int32_t device, const ls_pool *pool, ls_graph *graph) noexcept {
  return ls::run_void([&] {
    // Before the device is used: it may be another than the captured one, without a context, or lost.
    if (ls::in_capture()) throw ls::CaptureError("this goroutine is capturing a graph already");
    auto d = ls::accelerator(device);
    auto &devices = ls::need_devices(d.type());
    if (ls::pinned_deleter.load() == nullptr) ls::pinned_deleter = devices.pinned_deleter();
    auto owned = std::make_unique<ls::OwnedGraph>();
    owned->slot = ls::slot_of(d);
    owned->number = ++ls::graphs;
    owned->thread = std::this_thread::get_id();
    auto s = ls::VirtualGuardImpl(d.type()).getStream(d);
    owned->stream = s.id();
    owned->graph = devices.new_graph();
    auto &w = ls::waiting();
    {
      std::lock_guard<std::mutex> lock(w.mutex);
      if (w.on[owned->slot] != nullptr)
        throw ls::CaptureError("another goroutine is capturing a graph on " + d.str());
      ls::refuse_shared(w, s, owned->thread);
      w.on[owned->slot] = owned.get();
      ls::captures_underway.fetch_add(1);
    }
    ls::capturing = owned.get();
    ls::Ending failure{owned.get()};
    owned->casts.emplace();
    owned->graph->begin({pool->first, pool->second});
    failure.owned = nullptr;
    *graph = reinterpret_cast<ls_graph>(owned.release());
  });
}

ls_error *ls_graph_end(ls_graph graph, ls_pool *pool) noexcept {
  return ls::run_void([&] {
    auto &g = ls::graph_of(graph);
    if (&g != ls::capturing) throw ls::CaptureError("this goroutine is not capturing the graph");
    ls::Ending ending{&g};
    auto p = g.graph->end();
    if (g.refused) throw ls::CaptureError("a call in the capture was refused");
    ending.complete = true;
    *pool = {p.first, p.second};
  });
}

void ls_graph_abandon(ls_graph graph) noexcept {
  ls::run_quiet([&] {
    auto *g = reinterpret_cast<ls::OwnedGraph *>(graph);
    if (g == nullptr || g != ls::capturing) return;
    ls::Ending ending{g};
    g->graph->end();
  });
}

ls_error *ls_graph_replay(ls_graph graph) noexcept {
  return ls::run_void([&] {
    auto &g = ls::graph_of(graph);
    if (ls::in_capture()) throw ls::CaptureError("a graph cannot be replayed inside a capture");
    ls::refuse_lost_device(g.slot);
    g.graph->replay();
  });
}

void ls_graph_free(ls_graph graph) noexcept {
  ls::run_quiet([&] {
    auto *g = reinterpret_cast<ls::OwnedGraph *>(graph);
    if (g == nullptr) return;
    ls::free_graph(*g);
    delete g;
  });
}

int32_t ls_graph_capturing(void) noexcept {
  return ls::run_quiet([]() -> int32_t { return ls::in_capture(); });
}

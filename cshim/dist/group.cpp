// The groups and works of linstock/dist.h.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <typeinfo>
#include <utility>

#include "device.h"
#include "dist.h"

namespace ls {
namespace {

using c10::intrusive_ptr;
using std::chrono::milliseconds;

// Returns the timeout with which gloo connects to a rank. It waits five times as long, and cannot be cancelled. A
// rank that has come to the store and then died would never connect.
milliseconds connect_timeout(milliseconds limit) {
  constexpr milliseconds kMost{60'000};
  return std::max(std::min(limit, kMost) / 5, milliseconds(1));
}

// The store in which the ranks of a group meet. A wait ends after limit or when *cancel is no longer 0, whatever
// gloo asks for.
class MeetingStore final : public c10d::PrefixStore {
 public:
  MeetingStore(const std::string &prefix, intrusive_ptr<c10d::Store> base, milliseconds limit, const int32_t *stop)
      : PrefixStore(prefix, std::move(base)), cancel(stop), limit_(limit) {}
  void wait(const std::vector<std::string> &keys) override { wait_for(*store_, joinKeys(keys), limit_, cancel); }
  void wait(const std::vector<std::string> &keys, const milliseconds &) override { wait(keys); }
  std::vector<uint8_t> get(const std::string &key) override {
    wait({key});
    return c10d::PrefixStore::get(key);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string> &keys) override {
    wait(keys);
    return c10d::PrefixStore::multiGet(keys);
  }

  const int32_t *cancel;

 private:
  const milliseconds limit_;
};

// Held while a collective is started. c10d's flight recorder, which all groups of the process share, has no lock
// for the first collective of a group. Recursive, because some collectives start others.
std::recursive_mutex &starting() {
  static auto *mutex = new std::recursive_mutex;
  return *mutex;
}

// A send or receive, of which a wait without a time of its own ends with the group's timeout. gloo's transport
// would take the time in which it connects, and has no function that changes it afterwards.
class Timed final : public c10d::Work {
 public:
  Timed(intrusive_ptr<c10d::Work> work, milliseconds timeout) : work_(std::move(work)), timeout_(timeout) {}
  bool wait(milliseconds timeout) override { return work_->wait(timeout == kNoTimeout ? timeout_ : timeout); }
  void abort() override { work_->abort(); }
  int sourceRank() const override { return work_->sourceRank(); }

 private:
  const intrusive_ptr<c10d::Work> work_;
  const milliseconds timeout_;
};

// The collectives that libtorch's C++ code starts by itself, and the sends and receives, of which c10d's monitored
// barrier consists, too.
class Gloo final : public c10d::ProcessGroupGloo {
 public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor> &tensors, const c10d::BroadcastOptions &o) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return ProcessGroupGloo::broadcast(tensors, o);
  }
  intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor> &tensors, const c10d::AllreduceOptions &o) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return ProcessGroupGloo::allreduce(tensors, o);
  }
  intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>> &out, std::vector<at::Tensor> &in,
                                      const c10d::AllgatherOptions &o) override {
    std::lock_guard<std::recursive_mutex> lock(starting());
    return ProcessGroupGloo::allgather(out, in, o);
  }
  intrusive_ptr<c10d::Work> send(std::vector<at::Tensor> &tensors, int to, int tag) override {
    return single(ProcessGroupGloo::send(tensors, to, tag));
  }
  intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor> &tensors, int from, int tag) override {
    return single(ProcessGroupGloo::recv(tensors, from, tag));
  }
  intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor> &tensors, int tag) override {
    return single(ProcessGroupGloo::recvAnysource(tensors, tag));
  }
  // A checked group compares it among the ranks. gloo counts sends and receives, of which each rank has its own
  // number.
  uint64_t getSequenceNumberForGroup() override {
    return ProcessGroupGloo::getSequenceNumberForGroup() - singles_;
  }

 private:
  intrusive_ptr<c10d::Work> single(intrusive_ptr<c10d::Work> work) {
    ++singles_;
    return c10::make_intrusive<Timed>(std::move(work), getOptions()->timeout);
  }

  uint64_t singles_{0};  // sends and receives that have started
};

// What c10d's class keeps to itself.
struct Inside : c10d::ProcessGroupGloo {
  // The connections.
  static const std::vector<std::shared_ptr<gloo::Context>> &contexts(const c10d::ProcessGroupGloo &g) {
    return g.*(&Inside::contexts_);
  }
  // Reports whether a collective is in flight. Sends and receives, which a wait completes, are not among them.
  static bool busy(c10d::ProcessGroupGloo &g) {
    std::lock_guard<std::mutex> lock(g.*(&Inside::workMutex_));
    const auto &running = g.*(&Inside::workInProgress_);
    return !(g.*(&Inside::workQueue_)).empty() || std::any_of(running.begin(), running.end(), [](const auto &w) {
      return w && !w->getFuture()->completed();  // c10d's thread takes it off the list a moment later
    });
  }
};

// Closes all connections of a context, and makes what waits for them fail. gloo has a function for it that its
// headers do not declare as public; an expired wait calls it.
void close_connections(gloo::Context &context) {
  char byte = 0;
  auto buffer = context.createUnboundBuffer(&byte, 1);
  if (std::strcmp(typeid(*buffer).name(), "N4gloo9transport3tcp13UnboundBufferE") != 0)
    throw ArgumentError("a gloo transport other than TCP cannot be aborted");
  try {
    static_cast<gloo::transport::tcp::UnboundBuffer *>(buffer.get())->waitRecv(nullptr, milliseconds(1));
  } catch (const std::exception &) {
  }
}

void close_connections(const c10d::ProcessGroupGloo &g) {
  for (const auto &context : Inside::contexts(g)) close_connections(*context);
}

// Reports whether libtorch's threads, or a backward pass, still use a group that no call uses.
bool in_use(const Group &g) {
  if (g.group.use_count() > 1) return true;  // by the reducer of a pass: it may start more collectives
  return (g.gloo && Inside::busy(*g.gloo)) ||
         std::any_of(g.comparing.begin(), g.comparing.end(), [](const auto &gloo) { return Inside::busy(*gloo); });
}

void abort(Group &g) {
  if (g.gloo) close_connections(*g.gloo);
  for (const auto &gloo : g.comparing) close_connections(*gloo);
  if (g.device) g.device->abort();
}

// The pauses between questions whether a device is done: twice as long each time, a millisecond at most.
class Pauses {
 public:
  std::chrono::microseconds next() {
    return std::exchange(pause_, std::min(2 * pause_, std::chrono::microseconds(1000)));
  }
  void restart() { pause_ = first_; }

 private:
  static constexpr std::chrono::microseconds first_{10};
  std::chrono::microseconds pause_ = first_;
};

struct Work {
  // Declared first: destroyed last. c10d has references of its own while its threads use a tensor.
  std::vector<at::Tensor> tensors;
  intrusive_ptr<c10d::Work> work;
  // Only the wait completes it: a send or receive, or a reduce-scatter, which gloo computes with all-reduces and
  // copies the result when it is waited for.
  bool by_wait;
  // Of a collective on a device.
  std::shared_ptr<DeviceBackend> device;
  DeviceBackend::Clock::time_point begun;

  // Set by gloo's threads when a collective is complete.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool complete = false, interrupted = false;
  };
  std::shared_ptr<State> state = std::make_shared<State>();
};

Work &work_of(ls_work w) {
  if (w == 0) throw ArgumentError("no work");
  return *reinterpret_cast<Work *>(w);
}

}  // namespace

Group &group_of(ls_group g) {
  if (g == 0) throw ArgumentError("no group");
  return *reinterpret_cast<Group *>(g);
}

void DeviceBackend::keep(const intrusive_ptr<c10d::Work> &w, bool own) {
  std::list<Kept> done;  // destroyed without the lock, with their tensors
  std::lock_guard<std::mutex> lock(mutex_);
  auto at = std::find_if(kept_.rbegin(), kept_.rend(), [&](const Kept &k) { return k.work == w; });
  if (at != kept_.rend()) {
    at->own = own;
    return;
  }
  if (aborted.load() == 0)
    while (!kept_.empty() && kept_.front().work->isCompleted() && !kept_.front().work->exception())
      done.splice(done.end(), kept_, kept_.begin());
  kept_.push_back({w, Clock::now(), own});
}

void DeviceBackend::forget(const intrusive_ptr<c10d::Work> &w) {
  std::list<Kept> done;
  std::lock_guard<std::mutex> lock(mutex_);
  auto at = std::find_if(kept_.begin(), kept_.end(), [&](const Kept &k) { return k.work == w; });
  if (at != kept_.end()) done.splice(done.end(), kept_, at);
}

bool DeviceBackend::complete(c10d::Work &w, Clock::time_point begun) {
  bool done = w.isCompleted();
  // Read afterwards: an abort completes works.
  check();
  if (auto failure = w.exception()) {
    abort();
    std::rethrow_exception(failure);
  }
  if (!done && Clock::now() - begun >= timeout_) {
    abort();
    C10_THROW_ERROR(DistBackendError,
                    "a collective on a device timed out after " + std::to_string(timeout_.count()) + " ms");
  }
  return done;
}

void DeviceBackend::settle() {
  for (Pauses pauses;;) {
    Kept next{};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto at = std::find_if(kept_.begin(), kept_.end(), [](const Kept &k) { return !k.own; });
      if (at != kept_.end()) next = *at;
    }
    if (!next.work) return check();
    if (complete(*next.work, next.begun)) {
      forget(next.work);
      pauses.restart();
    } else {
      std::this_thread::sleep_for(pauses.next());
    }
  }
}

void DeviceBackend::check() const {
  if (aborted.load() != 0) C10_THROW_ERROR(DistBackendError, "the group's connections on the device were aborted");
}

void DeviceBackend::abort() {
  if (aborted.exchange(1) != 0) return;
  backend->abort();
}

void DeviceBackend::close() noexcept {
  std::list<Kept> kept;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    kept.swap(kept_);
  }
  if (aborted.load() != 0) return;
  try {
    bool idle = true;
    for (const auto &k : kept) idle = idle && k.work->isCompleted() && !k.work->exception();
    if (idle) return backend->shutdown();
  } catch (const std::exception &) {
  }
  aborted.store(1);
  try {
    backend->abort();  // by the backend's destructor, an exception would end the process
  } catch (const std::exception &) {
  }
}

c10::intrusive_ptr<c10d::Work> c10d_work_of(ls_work w) { return w == 0 ? nullptr : work_of(w).work; }

void check_rank(int32_t rank, int size) {
  if (rank < 0 || rank >= size)
    throw ArgumentError("rank " + std::to_string(rank) + " is not in a group of " + std::to_string(size));
}

static void check_place(const Group &g, const at::Tensor &t) {
  if (!t.defined()) throw ArgumentError("a tensor is needed, got none");
  if (t.is_cuda() ? g.device == nullptr : !t.device().is_cpu())
    throw ArgumentError("gloo needs tensors on the CPU, got one on " + t.device().str());
  if (t.device().is_cpu() && !g.gloo)
    throw ArgumentError("NCCL needs tensors on a CUDA device, got one on the CPU");
  if (t.layout() != at::kStrided || !(t.key_set() & kOddKeys).empty())
    throw ArgumentError("a dense tensor is needed");
  if (t.is_conj() || t.is_neg())
    throw ArgumentError("the tensor is a lazily conjugated or negated view: resolve it first");
}

// gloo reads and writes numel elements from the first one on, whatever the strides are.
void check_tensor(const Group &g, const at::Tensor &t) {
  check_place(g, t);
  if (!t.is_contiguous())
    throw ArgumentError("a contiguous tensor is needed: its elements must lie in the order of its indices");
}

void check_dense(const Group &g, const at::Tensor &t) {
  check_place(g, t);
  if (!t.is_non_overlapping_and_dense())
    throw ArgumentError("a tensor without gaps is needed, each element of which has memory of its own");
}

namespace {

std::vector<at::Tensor> checked(const Group &g, const ls_tensor *h, uint64_t n) {
  auto list = tensors_of(h, n);
  for (const auto &t : list) check_tensor(g, t);
  return list;
}

// Returns the device of all tensors; the CPU for none.
c10::Device common_device(const std::vector<at::Tensor> &ts) {
  for (const auto &t : ts)
    if (t.device() != ts[0].device())
      throw ArgumentError("tensors on one device are needed, got " + ts[0].device().str() + " and " +
                          t.device().str());
  return ts.empty() ? c10::Device(c10::kCPU) : ts[0].device();
}

// ProcessGroup::barrier keeps a tensor in a static variable. Its backends, which compare the collectives of a
// checked group, need none.
intrusive_ptr<c10d::Work> barrier(Group &g) {
  c10d::BarrierOptions o;
  if (g.gloo) return g.group->getBackend(c10::kCPU)->barrier(o);
  // Without a tensor, c10d would take the device by the rank even if the group has used another one.
  int index = g.device->index.load();
  if (index < 0) index = g.group->getRank() % std::max(need_devices(c10::kCUDA).count(), 1);
  o.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  use_device(*o.device);
  return g.group->getBackend(c10::kCUDA)->barrier(o);
}

// Sends to a rank and receives from it at once.
intrusive_ptr<c10d::Work> exchange(c10d::Backend &b, std::vector<at::Tensor> &out, std::vector<at::Tensor> &in,
                                   const ls_collective &c) {
  b.startCoalescing();
  try {
    b.send(in, c.peer, c.tag);
    b.recv(out, c.peer, c.tag);
  } catch (...) {
    try {
      b.endCoalescing();
    } catch (const std::exception &) {
    }
    throw;
  }
  return b.endCoalescing();
}

// Waits until a work on a device is complete, true, or interrupted.
bool wait_on_device(Work &w) {
  refuse_in_capture("a wait for a collective on a device");
  auto &s = *w.state;
  for (Pauses pauses;;) {
    bool done = w.device->complete(*w.work, w.begun);
    if (done) {
      w.work->synchronize();  // releases the tensors
      w.device->forget(w.work);
      return true;
    }
    std::unique_lock<std::mutex> lock(s.mutex);
    s.changed.wait_for(lock, pauses.next(), [&] { return s.interrupted; });
    if (std::exchange(s.interrupted, false)) return false;
  }
}

void need_count(const char *what, size_t have, size_t want) {
  if (have != want)
    throw ArgumentError(std::string(what) + ": " + std::to_string(want) + " needed, got " + std::to_string(have));
}

// Older versions of libtorch do not have the new names of these functions.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

intrusive_ptr<c10d::Work> start(Group &g, const ls_collective &c, std::vector<at::Tensor> &out,
                                std::vector<at::Tensor> &in, std::vector<int64_t> &out_sizes,
                                std::vector<int64_t> &in_sizes) {
  auto &group = *g.group;
  const int size = group.getSize(), rank = group.getRank();
  const size_t ranks = static_cast<size_t>(size);
  auto one = [&](size_t n_out, size_t n_in) {
    need_count("outputs", out.size(), n_out);
    need_count("inputs", in.size(), n_in);
  };
  auto reduced = [&](auto options) {
    if (c.reduce < 0 || c.reduce > static_cast<int32_t>(c10d::ReduceOp::BXOR))
      throw ArgumentError("there is no reduction " + std::to_string(c.reduce));
    options.reduceOp = c10d::ReduceOp(static_cast<c10d::ReduceOp::RedOpType>(c.reduce));
    return options;
  };
  auto rooted = [&](auto options) {
    check_rank(c.peer, size);
    options.rootRank = c.peer;
    return options;
  };
  auto other = [&] {
    check_rank(c.peer, size);
    if (c.peer == rank) throw ArgumentError("a rank cannot send to or receive from itself");
  };
  switch (c.kind) {
    case LS_BROADCAST:
      one(1, 0);
      return group.broadcast(out, rooted(c10d::BroadcastOptions()));
    case LS_ALL_REDUCE:
      one(1, 0);
      return group.allreduce(out, reduced(c10d::AllreduceOptions()));
    case LS_ALL_REDUCE_COALESCED:
      if (out.empty()) throw ArgumentError("at least one tensor is needed");
      return group.allreduce_coalesced(out, reduced(c10d::AllreduceCoalescedOptions()));
    case LS_REDUCE:
      one(1, 0);
      return group.reduce(out, rooted(reduced(c10d::ReduceOptions())));
    case LS_ALL_GATHER: {
      one(ranks, 1);
      std::vector<std::vector<at::Tensor>> lists{out};
      return group.allgather(lists, in);
    }
    case LS_ALL_GATHER_ONE:
      one(1, 1);
      return group._allgather_base(out[0], in[0]);
    case LS_GATHER: {
      auto options = rooted(c10d::GatherOptions());
      one(rank == c.peer ? ranks : 0, 1);
      std::vector<std::vector<at::Tensor>> lists;
      if (rank == c.peer) lists.push_back(out);
      return group.gather(lists, in, options);
    }
    case LS_SCATTER: {
      auto options = rooted(c10d::ScatterOptions());
      one(1, rank == c.peer ? ranks : 0);
      std::vector<std::vector<at::Tensor>> lists;
      if (rank == c.peer) lists.push_back(in);
      return group.scatter(out, lists, options);
    }
    case LS_REDUCE_SCATTER: {
      one(1, ranks);
      std::vector<std::vector<at::Tensor>> lists{in};
      return group.reduce_scatter(out, lists, reduced(c10d::ReduceScatterOptions()));
    }
    case LS_REDUCE_SCATTER_ONE:
      one(1, 1);
      // gloo reads the size of the first dimension, and as many others of the output as the input has: SIGSEGV.
      if (out[0].is_cpu() && (in[0].dim() == 0 || in[0].dim() != out[0].dim()))
        throw ArgumentError("tensors of one number of dimensions, at least 1, are needed, got " +
                            std::to_string(in[0].dim()) + " and " + std::to_string(out[0].dim()));
      return group._reduce_scatter_base(out[0], in[0], reduced(c10d::ReduceScatterOptions()));
    case LS_ALL_TO_ALL_ONE:
      one(1, 1);
      return group.alltoall_base(out[0], in[0], out_sizes, in_sizes);
    case LS_SEND:
      one(0, 1);
      other();
      return group.send(in, c.peer, c.tag);
    case LS_RECEIVE:
      one(1, 0);
      if (c.peer == -1) return group.recvAnysource(out, c.tag);
      other();
      return group.recv(out, c.peer, c.tag);
    case LS_BARRIER:
      one(0, 0);
      return barrier(g);
    case LS_EXCHANGE:
      one(1, 1);
      other();
      if (out[0].device().is_cpu()) throw ArgumentError("an exchange is for tensors on a device");
      return exchange(*g.device->backend, out, in, c);
    default:
      throw ArgumentError("there is no collective " + std::to_string(c.kind));
  }
}

#pragma GCC diagnostic pop

}  // namespace
}  // namespace ls

ls_error *ls_group_new(ls_store store, int32_t rank, int32_t size, int32_t backends, int64_t milliseconds,
                       int64_t within, const char *checked, const int32_t *cancel, ls_group *out) noexcept {
  return ls::run_void([&] {
    if (size < 1) throw ls::ArgumentError("a group of " + std::to_string(size) + " ranks");
    ls::check_rank(rank, size);
    if (backends <= 0 || (backends & ~(LS_BACKEND_GLOO | LS_BACKEND_NCCL)) != 0)
      throw ls::ArgumentError("there are no backends " + std::to_string(backends));
    auto base = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&ls::store_of(store));
    auto timeout = ls::time_of(milliseconds), limit = ls::time_of(within);
    ls::WithoutSigpipe threads;
    auto gloo = [&](const std::string &prefix) {
      auto meeting = c10::make_intrusive<ls::MeetingStore>(prefix, base, limit, cancel);
      auto made = c10::make_intrusive<ls::Gloo>(
          meeting, rank, size, c10d::ProcessGroupGloo::Options::create_default(ls::connect_timeout(limit)));
      made->setTimeout(timeout);
      meeting->cancel = nullptr;
      return made;
    };
    // The names are those of Python's init_process_group, whose ranks can be in the same group.
    auto g = std::make_unique<ls::Group>();
    g->checked = checked != nullptr;
    g->group = c10::make_intrusive<c10d::ProcessGroup>(base, rank, size);
    auto add = [&](c10::DeviceType type, const std::string &prefix, c10d::ProcessGroup::BackendType kind,
                   c10::intrusive_ptr<c10d::Backend> backend) {
      if (g->checked) {
        g->comparing.push_back(gloo(prefix + "/pg_wrapper:" + std::string(checked)));
        backend = c10::make_intrusive<c10d::ProcessGroupWrapper>(backend, g->comparing.back());
      }
      g->group->setBackend(type, kind, backend);
    };
    g->group->setDefaultBackend((backends & LS_BACKEND_GLOO) != 0 ? c10d::ProcessGroup::GLOO
                                                                  : c10d::ProcessGroup::NCCL);
    if ((backends & LS_BACKEND_GLOO) != 0) {
      g->gloo = gloo("cpu/");
      add(c10::kCPU, "cpu/", c10d::ProcessGroup::GLOO, g->gloo);
    }
    if ((backends & LS_BACKEND_NCCL) != 0) {
      auto *devices = ls::devices_of(c10::kCUDA);
      if (devices == nullptr) throw ls::ArgumentError("NCCL is for CUDA devices, and this process can use none");
      g->device = std::make_shared<ls::DeviceBackend>(timeout);
      // The store outlives neither the backend nor, by it, this object.
      auto meeting = c10::make_intrusive<ls::MeetingStore>("cuda/", base, timeout,
                                                           reinterpret_cast<const int32_t *>(&g->device->aborted));
      g->device->backend = devices->new_backend(meeting, rank, size, timeout,
                                                [d = g->device.get()](const auto &w) { d->keep(w, false); });
      add(c10::kCUDA, "cuda/", c10d::ProcessGroup::NCCL, g->device->backend);
    }
    *out = reinterpret_cast<ls_group>(g.release());
  });
}

ls_error *ls_group_abort(ls_group group) noexcept {
  return ls::run_void([&] { ls::abort(ls::group_of(group)); });
}

void ls_group_free(ls_group group) noexcept {
  ls::run_quiet([&] {
    if (group == 0) return;
    std::unique_ptr<ls::Group> g(&ls::group_of(group));
    ls::run_quiet([&] {
      if (ls::in_use(*g)) ls::abort(*g);
    });
    if (g->device) g->device->close();
  });
}

ls_error *ls_group_settle(ls_group group) noexcept {
  return ls::run_void([&] {
    auto &g = ls::group_of(group);
    if (g.device) g.device->settle();
  });
}

ls_error *ls_group_monitored_barrier(ls_group group, int64_t milliseconds) noexcept {
  return ls::run_void([&] {
    auto &g = ls::group_of(group);
    if (!g.gloo) throw ls::ArgumentError("a monitored barrier needs a group with gloo");
    c10d::BarrierOptions o;
    o.timeout = ls::time_of(milliseconds);
    g.gloo->monitoredBarrier(o, true);
  });
}

ls_error *ls_group_start(ls_group group, const ls_collective *collective, const ls_tensor *out, uint64_t out_n,
                         const ls_tensor *in, uint64_t in_n, const int64_t *out_sizes, uint64_t out_sizes_n,
                         const int64_t *in_sizes, uint64_t in_sizes_n, ls_work *work) noexcept {
  return ls::run_void([&] {
    auto &g = ls::group_of(group);
    auto outputs = ls::checked(g, out, out_n), inputs = ls::checked(g, in, in_n);
    std::vector<int64_t> os(out_sizes, out_sizes + out_sizes_n), is(in_sizes, in_sizes + in_sizes_n);
    auto w = std::make_unique<ls::Work>();
    auto kind = collective->kind;
    w->tensors = outputs;
    w->tensors.insert(w->tensors.end(), inputs.begin(), inputs.end());
    auto device = ls::common_device(w->tensors);
    if (!device.is_cpu() || (kind == LS_BARRIER && !g.gloo)) w->device = g.device;
    w->by_wait = !w->device && (kind == LS_SEND || kind == LS_RECEIVE || kind == LS_REDUCE_SCATTER ||
                                kind == LS_REDUCE_SCATTER_ONE);
    // A checked group waits for the other ranks, which may be threads of this process, and so does the first
    // collective on a device.
    std::unique_lock<std::recursive_mutex> lock(ls::starting(), std::defer_lock);
    if (!g.checked && !w->device) lock.lock();
    std::optional<ls::WithoutSigpipe> threads;
    if (w->device) {
      w->device->check();
      // A collective in a capture would never be complete.
      ls::refuse_in_capture("a collective on a device");
      if (!device.is_cpu()) w->device->index.store(device.index());
      threads.emplace();  // of NCCL, which may connect
    }
    w->work = ls::start(g, *collective, outputs, inputs, os, is);
    if (w->device) {
      w->begun = ls::DeviceBackend::Clock::now();
      w->device->keep(w->work, true);
    } else if (!w->by_wait) {
      w->work->getFuture()->addCallback([state = w->state](c10::ivalue::Future &) {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->complete = true;
        state->changed.notify_all();
      });
    }
    *work = reinterpret_cast<ls_work>(w.release());
  });
}

ls_error *ls_work_wait(ls_work work, int32_t *done) noexcept {
  return ls::run_void([&] {
    auto &w = ls::work_of(work);
    *done = 0;
    if (w.device) {
      *done = ls::wait_on_device(w);
      return;
    }
    if (!w.by_wait) {
      auto &s = *w.state;
      std::unique_lock<std::mutex> lock(s.mutex);
      s.changed.wait(lock, [&] { return s.complete || s.interrupted; });
      s.interrupted = false;
      if (!s.complete) return;
    }
    *done = w.work->wait();
  });
}

void ls_work_interrupt(ls_work work) noexcept {
  ls::run_quiet([&] {
    auto &w = ls::work_of(work);
    if (w.by_wait) {
      w.work->abort();
      return;
    }
    std::lock_guard<std::mutex> lock(w.state->mutex);
    w.state->interrupted = true;
    w.state->changed.notify_all();
  });
}

int32_t ls_work_done(ls_work work) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    auto &w = ls::work_of(work);
    // A failure is the wait's to report.
    if (w.device) return w.device->aborted.load() != 0 || w.work->isCompleted();
    std::lock_guard<std::mutex> lock(w.state->mutex);
    return w.state->complete;
  });
}

int32_t ls_work_source(ls_work work) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    auto &w = ls::work_of(work);
    return w.device ? -1 : w.work->sourceRank();
  });
}

void ls_work_free(ls_work work) noexcept {
  ls::run_quiet([&] {
    if (work != 0) delete &ls::work_of(work);
  });
}

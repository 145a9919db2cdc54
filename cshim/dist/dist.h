// What the files of process groups share.
#pragma once

#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "shim.h"

namespace ls {

c10d::Store &store_of(ls_store s);

// Returns a time for which c10d waits: at least a millisecond, and at most a year, whose end fits into the 64 bits
// of a clock's nanoseconds.
inline std::chrono::milliseconds time_of(int64_t milliseconds) {
  constexpr int64_t kYear = int64_t{365} * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::clamp<int64_t>(milliseconds, 1, kYear));
}

// Waits for keys, until cancel, which another thread may set, is not 0.
void wait_for(c10d::Store &store, const std::vector<std::string> &keys, std::chrono::milliseconds timeout,
              const int32_t *cancel);

// Blocks SIGPIPE in the threads that the calling thread starts. Go's runtime ends a process in which a thread that
// is not Go's writes to a closed connection.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  }
  ~WithoutSigpipe() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSigpipe(const WithoutSigpipe &) = delete;
  WithoutSigpipe &operator=(const WithoutSigpipe &) = delete;

 private:
  sigset_t before_;
};

// A group's backend for tensors on a device. The device completes collectives, and c10d is not told when, so a
// wait asks again and again. After a failure the backend is aborted, since the other collectives would never end.
// Those that are not complete by then have failed, although the device ends them.
class DeviceBackend {
 public:
  using Clock = std::chrono::steady_clock;

  DeviceBackend(std::chrono::milliseconds timeout) : timeout_(timeout) {}

  // Keeps a work, and by it its tensors, until it is complete. own: a caller waits for it.
  void keep(const c10::intrusive_ptr<c10d::Work> &w, bool own);
  void forget(const c10::intrusive_ptr<c10d::Work> &w);
  // Reports whether a work is complete. Throws if it has failed or its time is over.
  bool complete(c10d::Work &w, Clock::time_point begun);
  // Waits for the collectives that libtorch's code has started by itself.
  void settle();
  // Throws if the backend was aborted.
  void check() const;
  void abort();
  // Ends the backend: aborts it if collectives are in flight.
  void close() noexcept;

  // Set once.
  c10::intrusive_ptr<c10d::Backend> backend;
  // Not 0 once the backend was aborted. The store in which its ranks meet reads it.
  std::atomic<int32_t> aborted{0};
  // Where the last collective was; -1: there was none.
  std::atomic<int> index{-1};

 private:
  struct Kept {
    c10::intrusive_ptr<c10d::Work> work;
    Clock::time_point begun;
    bool own;
  };
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::list<Kept> kept_;
};

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  // For tensors on the CPU; may be nullptr.
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  // For those on a CUDA device; may be nullptr.
  std::shared_ptr<DeviceBackend> device;
  bool checked = false;
  // Those over which a checked group compares its collectives before it runs them.
  std::vector<c10::intrusive_ptr<c10d::ProcessGroupGloo>> comparing;
};

Group &group_of(ls_group g);
// The work of a handle; none for 0.
c10::intrusive_ptr<c10d::Work> c10d_work_of(ls_work w);

// Throws unless a group of this size has the rank.
void check_rank(int32_t rank, int size);

// Throws unless the group can send and receive the tensor.
void check_tensor(const Group &g, const at::Tensor &t);
// Throws unless the group can do so with its elements in the order of memory.
void check_dense(const Group &g, const at::Tensor &t);

// Throws if the group was aborted. What libtorch's code has waited for on a device may have been ended by it.
inline void check_open(const Group &g) {
  if (g.device) g.device->check();
}

}  // namespace ls

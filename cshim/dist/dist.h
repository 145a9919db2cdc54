// What the files of process groups share.
#pragma once

#include <signal.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "shim.h"

namespace ls {

c10d::Store &store_of(ls_store s);

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

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  bool checked = false;
  // The collectives in flight, without those that a wait completes.
  std::shared_ptr<std::atomic<int64_t>> in_flight = std::make_shared<std::atomic<int64_t>>(0);
};

Group &group_of(ls_group g);
// The work of a handle; none for 0.
c10::intrusive_ptr<c10d::Work> c10d_work_of(ls_work w);

// Throws unless a group of this size has the rank.
void check_rank(int32_t rank, int size);

// Throws unless gloo can send and receive the tensor.
void check_tensor(const at::Tensor &t);

}  // namespace ls

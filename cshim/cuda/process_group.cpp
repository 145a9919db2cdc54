// libtorch's ProcessGroupNCCL as it can be used without its watchdog, a thread that ends the process.
#include "process_group.h"

#include <c10/util/env.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <utility>
#include <vector>

#include "../src/device.h"

namespace ls {
namespace {

using c10::intrusive_ptr;
using Started = std::function<void(const intrusive_ptr<c10d::Work> &)>;

// Hands on the collectives that c10d's reducer and helpers start, and whose works they drop.
class Nccl final : public c10d::ProcessGroupNCCL {
 public:
  Nccl(intrusive_ptr<c10d::Store> store, int rank, int size, intrusive_ptr<Options> options, Started started)
      : ProcessGroupNCCL(std::move(store), rank, size, std::move(options)), started_(std::move(started)) {}

  intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor> &tensors, const c10d::BroadcastOptions &o) override {
    refuse();
    return started(ProcessGroupNCCL::broadcast(tensors, o));
  }
  intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor> &tensors, const c10d::AllreduceOptions &o) override {
    refuse();
    return started(ProcessGroupNCCL::allreduce(tensors, o));
  }
  intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>> &out, std::vector<at::Tensor> &in,
                                      const c10d::AllgatherOptions &o) override {
    refuse();
    return started(ProcessGroupNCCL::allgather(out, in, o));
  }

 private:
  intrusive_ptr<c10d::Work> started(intrusive_ptr<c10d::Work> w) {
    if (w) started_(w);
    return w;
  }

  static void refuse() { refuse_in_capture("a collective on a device"); }

  const Started started_;
};

}  // namespace

intrusive_ptr<c10d::Backend> new_nccl(const intrusive_ptr<c10d::Store> &store, int rank, int size,
                                      std::chrono::milliseconds timeout, Started started) {
  // ProcessGroupNCCL reads its settings from the environment.
  static bool once = [] {
    // No watchdog and no monitor: waits return errors.
    c10::utils::set_env("TORCH_NCCL_BLOCKING_WAIT", "1");
    // c10d's record of collectives has pointers that only the watchdog clears, and no lock for its first use.
    c10::utils::set_env("TORCH_FR_BUFFER_SIZE", "0");
    return true;
  }();
  (void)once;
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<Nccl>(store, rank, size, std::move(options), std::move(started));
}

}  // namespace ls

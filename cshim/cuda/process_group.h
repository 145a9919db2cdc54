// Process groups over NCCL.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <functional>

namespace ls {

// See Devices::new_backend.
c10::intrusive_ptr<c10d::Backend> new_nccl(const c10::intrusive_ptr<c10d::Store> &store, int rank, int size,
                                           std::chrono::milliseconds timeout,
                                           std::function<void(const c10::intrusive_ptr<c10d::Work> &)> started);

}  // namespace ls

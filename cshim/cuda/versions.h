// What differs between the supported versions of libtorch, 2.11 to 2.15, on the side of CUDA.
#pragma once

#include <torch/csrc/cuda/memory_snapshot.h>
#include <torch/headeronly/version.h>

#define LS_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

namespace ls {

inline void record_memory_history(bool on, size_t max_entries) {
  std::optional<std::string> enabled;
  if (on) enabled = "all";
  // Without contexts: they would be C++ stacks, which say nothing to whoever writes Go.
  std::optional<std::string> context;
  torch::cuda::_record_memory_history(enabled, context, "all", max_entries);
}

}  // namespace ls

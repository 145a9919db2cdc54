// The backward passes in flight.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "grads.h"

namespace ls {

// A backward pass that the calling thread runs, for as long as it exists.
class Pass {
 public:
  explicit Pass(const std::vector<at::Tensor> &roots);
  ~Pass();
  Pass(const Pass &) = delete;
  Pass &operator=(const Pass &) = delete;

  // Reports whether the pass may run the node.
  bool may_reach(const torch::autograd::Node &node) const;
  // Reports whether the calling thread is in this pass, or in one that runs within it.
  bool runs_here() const;

 private:
  std::vector<NodePtr> roots_;
  const Pass *outer_;                       // the pass that this one runs within
  Pass *next_ = nullptr, *prev_ = nullptr;  // of those in flight

  friend void change_node(const torch::autograd::Node &node, const std::function<void()> &change);
};

// Calls change, which changes what libtorch's engine reads of the node without a lock. Throws ArgumentError if a
// pass that is not the caller's may run the node. No pass starts during the call.
void change_node(const torch::autograd::Node &node, const std::function<void()> &change);

// Calls f when no backward pass is in flight: at once, or at the end of the last one. No pass starts during the
// call; f must not throw. For what hooks of libtorch's C++ code use without a reference.
void after_passes(std::function<void()> f);

}  // namespace ls

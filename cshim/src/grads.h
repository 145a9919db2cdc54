// The gradients that backward passes add to tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <mutex>

namespace ls {

// The type in which this version of libtorch holds the nodes of a graph.
using NodePtr = decltype(torch::autograd::Edge::function);

// The node that adds to the gradient of leaf, or null: it exists while a graph with leaf does.
NodePtr accumulator_of(const at::Tensor &leaf);

// Reports whether x is a leaf. libtorch's is_leaf takes a view for one until it is asked for its grad_fn, if only
// a write to its base, or to another view of it, has connected it to the graph.
bool is_leaf(const at::Tensor &x);

// The right to read or write a tensor's .grad. libtorch's AccumulateGrad writes it under the node's mutex, which
// it does not hold when it calls hooks. While the tensor has no such node, GradLock holds the mutex of the
// tensor's metadata, without which libtorch cannot make one. Neither an operator nor a callback may run under a
// GradLock.
class GradLock {
 public:
  explicit GradLock(const at::Tensor &x) : GradLock(x, true) {}
  // Does not wait: owns reports whether the lock is held.
  GradLock(const at::Tensor &x, std::try_to_lock_t) : GradLock(x, false) {}
  bool owns() const { return lock_.owns_lock(); }
  ~GradLock();
  GradLock(const GradLock &) = delete;
  GradLock &operator=(const GradLock &) = delete;

 private:
  GradLock(const at::Tensor &x, bool wait);

  std::mutex *meta_ = nullptr;  // set with node_
  NodePtr node_;
  std::unique_lock<std::mutex> lock_;
};

// Makes a tensor that is no leaf keep its gradient.
void retain_grad(const at::Tensor &x);

// Returns the gradient of x; undefined if there is none.
at::Tensor grad_of(const at::Tensor &x);

}  // namespace ls

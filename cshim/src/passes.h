// The backward passes in flight.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <list>
#include <vector>

#include "grads.h"

namespace ls {

// What is known of a backward pass in flight. It is not on the stack of the thread that runs the pass: that of a
// goroutine which ends within a pass is gone, and the pass is in flight for ever.
struct Flight {
  std::vector<NodePtr> roots;
  const Flight *outer;  // the pass that this one runs within

  // Reports whether the pass may run the node.
  bool may_reach(const torch::autograd::Node &node) const;
  // Reports whether the pass may add to the leaf's gradient.
  bool may_add_to(const at::Tensor &leaf) const;
  // Reports whether the calling thread is in this pass, or in one that runs within it.
  bool runs_here() const;

 private:
  // Reports whether the pass may run a node for which matches returns true, among those of at least the
  // topological number.
  template <class Matches>
  bool may_run(uint64_t topological_nr, const Matches &matches) const;
};

// A backward pass that the calling thread runs, for as long as it exists.
class Pass {
 public:
  explicit Pass(const std::vector<at::Tensor> &roots);
  ~Pass();
  Pass(const Pass &) = delete;
  Pass &operator=(const Pass &) = delete;

  const Flight &flight() const { return *at_; }

 private:
  std::list<Flight>::iterator at_;
};

// Calls change, which changes what libtorch's engine reads of the node without a lock. Throws ArgumentError if a
// pass that is not the caller's may run the node. No pass starts during the call.
void change_node(const torch::autograd::Node &node, const std::function<void()> &change);

// Calls change, which changes what passes that add to the gradient of x use of it without a lock: its data, or
// whether it has hooks. Throws ArgumentError if a pass that is not the caller's may do so; what names the change
// in its message. No pass, and no other such change, starts during the call.
void change_tensor(const at::Tensor &x, const char *what, const std::function<void()> &change);

// Calls f when no backward pass is in flight: at once, or at the end of the last one. No pass starts during the
// call; f must not throw. Then destroys f, which may take locks that come before that of the passes. For what
// hooks of libtorch's C++ code use without a reference.
void after_passes(std::function<void()> f);

}  // namespace ls

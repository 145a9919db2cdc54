// Hooks of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "passes.h"

namespace ls {

// What the hooks of several tensors have received in the calling thread's backward pass, for as long as it runs.
class HooksOfPass {
 public:
  explicit HooksOfPass(const Flight &pass);
  // Those of the pass whose pass_info this is: the thread has another thread-local state now, such as that of a
  // checkpoint, which may have been made in a pass that is over.
  explicit HooksOfPass(std::shared_ptr<c10::DebugInfoBase> info);

 private:
  c10::DebugInfoGuard guard_;
};

// Returns what libtorch's thread-local state has of the calling thread's backward pass, or null.
std::shared_ptr<c10::DebugInfoBase> pass_info() noexcept;
// Returns the backward pass that the calling thread is in, or null.
const Flight *current_pass() noexcept;

// Called with a gradient; returns what replaces it, or an undefined tensor.
using TensorHook = std::function<at::Tensor(const at::Tensor &grad)>;

// Adds a hook to those of x, and returns its number for remove_hook. Other threads may add and remove hooks
// meanwhile, and run passes that call them.
uint32_t add_hook(const at::Tensor &x, TensorHook f);
// Removes a hook, unless x has got another grad_fn since.
void remove_hook(const at::Tensor &x, uint32_t number);
// Makes the list of a leaf's hooks, so that add_hook does not have to while passes read it.
void make_hooks(const at::Tensor &leaf);

}  // namespace ls

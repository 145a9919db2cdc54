// Saved-tensor policies: what the graph keeps in place of the tensors that operators save for their backward.
//
// Each thread has a stack of policies. The innermost one decides for each tensor that an operator on that thread
// saves, and, during a backward pass of that thread, on the engine's threads. With an empty stack the graph keeps
// the tensor. Packing runs inside the operator, on its thread, and never calls back. Unpacking runs inside a
// backward pass, on the engine's thread of the node, and may call back.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

namespace ls {

struct Flight;

class SavedPolicy {
 public:
  virtual ~SavedPolicy() = default;
  // The graph's object for one saved tensor. It owns everything that it needs of the policy.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  // Called when the policy is popped, on its thread. If it throws, the policy is popped nevertheless.
  virtual void popped() {}

  // For parts of a checkpointed function whose results are kept.
  enum Stage { kOther, kFirstRun, kRecomputation };
  virtual Stage stage() const { return kOther; }
  virtual std::shared_ptr<SavedPolicy> keeping() { return nullptr; }  // in kFirstRun: the policy of such a part
  virtual at::Tensor kept() { return {}; }                            // in kRecomputation: the next part's result
  // Called before the thread that has pushed the policy starts a backward pass, which does not start if it throws.
  virtual void pass_starts(const Flight &) const {}
};

// Returns the data of t without its graph: a node that holds its own output would never be freed. Shares t's
// version.
at::Tensor data_of(const at::Tensor &t);

// A saved tensor that is kept as it is. libtorch leaves the check of its version to hooks.
class Unchanged {
 public:
  Unchanged() = default;
  explicit Unchanged(const at::Tensor &t) : held_(data_of(t)), version_(version()) {}
  bool defined() const noexcept { return held_.defined(); }
  // Throws if the tensor was changed in place since.
  const at::Tensor &get() const;
  // The same, and keeps the tensor no longer.
  at::Tensor take();
  // For the caller to free.
  at::Tensor release() noexcept { return std::move(held_); }

 private:
  int64_t version() const { return held_.is_inference() ? 0 : static_cast<int64_t>(held_._version()); }
  at::Tensor held_;
  int64_t version_ = 0;
};

// Pushes a policy on the calling thread's stack and returns the depth before.
size_t push_policy(std::shared_ptr<SavedPolicy> policy);
// The calling thread's innermost policy, or nullptr.
std::shared_ptr<SavedPolicy> innermost_policy();
// Pops policies until `depth` are left. Throws the first exception that a popped() has thrown.
void pop_policies(size_t depth);

// Installs this file's stack in libtorch. Called before the first backward pass and the first saved tensor.
void install_engine();

// Called before the calling thread starts a backward pass and waits for it. Throws if a policy of the thread does
// not allow the pass.
void pass_starts(const Flight &pass);

// Thrown by an operator in the recomputation of a checkpoint once all saved tensors are there:
// LS_ERR_STOP_RECOMPUTATION.
struct StopRecomputation : std::exception {
  const char *what() const noexcept override {
    return "the checkpoint has all that it needs, so the checkpointed function should return";
  }
};

}  // namespace ls

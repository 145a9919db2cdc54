// What the graph keeps in place of the tensors that operators save for their backward.
//
// A policy decides. Each thread has a stack of policies; the innermost one decides for each tensor that an
// operator on that thread saves, and in a backward pass of that thread on the engine's threads too. Where the
// stack is empty the graph keeps the tensor itself. Packing happens
// inside the operator, on its thread, and never calls back. Unpacking happens inside a backward pass, on the
// thread on which the engine runs the node, and may call back.
#pragma once

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstddef>
#include <exception>
#include <memory>

namespace ls {

class SavedPolicy {
 public:
  virtual ~SavedPolicy() = default;
  // What stands in the graph for one saved tensor. It must own what it needs of the policy.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
  // Called when the policy is popped, on its thread. It may throw; the policy is popped nevertheless.
  virtual void popped() {}
};

// Pushes a policy on the calling thread and returns how many were there before.
size_t push_policy(std::shared_ptr<SavedPolicy> policy);
// Pops until so many are left. Throws what the first popped() has thrown.
void pop_policies(size_t depth);

// Makes libtorch ask this file's stack. Before the first backward pass and the first saved tensor.
void install_engine();

// Called before the calling thread starts a backward pass and waits for it.
void pass_starts() noexcept;

// Thrown out of an operator when a checkpoint that computes its function again has all that it needs:
// LS_ERR_STOP_RECOMPUTATION.
struct StopRecomputation : std::exception {
  const char *what() const noexcept override {
    return "the checkpoint has what it needs of this recomputation, and its function should return";
  }
};

}  // namespace ls

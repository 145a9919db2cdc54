// Checks that libtorch lacks: arguments with which an operator would end the process are refused.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

namespace ls {

// An operator: its handle and its checks.
class Operator {
 public:
  explicit Operator(const c10::OperatorHandle &h);
  // Throws ArgumentError for arguments that would end the process.
  void check(const torch::jit::Stack &stack) const;
  // The part of check that depends on the layouts of the tensors alone.
  void check_layouts(c10::ArrayRef<at::Tensor> tensors) const;
  // Moves numbers in the place of tensors to the device of the other tensors, if the operator needs them there.
  void place_numbers(torch::jit::Stack &stack) const;
  // Copies arguments that the kernels read as if they were contiguous, those that become the indices of a sparse
  // tensor, to which nobody else can write then, and those that autograd saves while the operator writes to them.
  void copy_arguments(torch::jit::Stack &stack) const;

  // Calls the operator. Constructors of sparse tensors check the indices, as Python's do on request. Results that
  // the kernels would write as if out arguments were contiguous are computed apart and copied.
  void call(torch::jit::Stack &stack) const;

  const c10::OperatorHandle handle;
  // Reports whether it is internal to libtorch: it does not check its arguments, which its callers have checked.
  const bool internal;

 private:
  struct Enum {
    size_t argument;
    int64_t end;
    bool layout;
  };
  std::vector<Enum> enums_;
  // Arguments that are tensors or lists, those that are written to, and among them out arguments.
  std::vector<size_t> tensors_, written_, outs_, contiguous_, kept_;
  // Tensors that autograd may save while the operator writes to others.
  std::vector<size_t> saved_;
  // The argument by which gradients are sparse: their indices are those in kept_.
  std::optional<size_t> sparse_gradient_;
  bool takes_mkldnn_ = false, reads_parts_ = false, converts_ = false, adds_ = false, linear_ = false,
       makes_sparse_ = false, reads_indices_ = false, returns_self_ = false, masks_ = false, pointwise_ = false,
       on_one_device_ = false, on_all_devices_ = false, statistics_ = false, sets_data_ = false,
       makes_node_ = true;
  // The operator without out arguments, for one whose kernels expect those to be contiguous, or with always_apart_
  // to have the results' shape.
  std::optional<c10::OperatorHandle> apart_;
  bool always_apart_ = false;
  bool computes_apart(const torch::jit::Stack &stack) const;
  void (*check_)(c10::ArrayRef<c10::IValue>);
};

}  // namespace ls

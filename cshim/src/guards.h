// An operator as ls_call has it: its handle, and the checks that libtorch lacks.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <vector>

namespace ls {

class Operator {
 public:
  explicit Operator(const c10::OperatorHandle &h);
  // Throws ArgumentError for arguments that would end the process.
  void check(const torch::jit::Stack &stack) const;

  const c10::OperatorHandle handle;

 private:
  struct Enum {
    size_t argument;
    int64_t end;
    bool layout;
  };
  std::vector<Enum> enums_;
  void (*check_)(c10::ArrayRef<c10::IValue>);
};

}  // namespace ls

// Kernels in the place of libtorch's that read or write beyond a tensor. They hold for every way to reach them:
// typed functions, ls_op_call, operators composed of others, and backward passes.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/median_native.h>
#include <ATen/ops/nanmedian_native.h>
#include <ATen/ops/select_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "shim.h"

namespace ls {
namespace {

// Medians along a dimension of stride 0, of an expanded tensor, are computed as if its stride were 1: they are
// those of other elements, also of memory beyond the tensor.
at::Tensor with_steps(const at::Tensor &x, int64_t dim) {
  return x.dim() > 0 && x.stride(dim) == 0 ? x.contiguous() : x;
}
using Pair = std::tuple<at::Tensor &, at::Tensor &>;
Pair median(const at::Tensor &self, int64_t dim, bool keepdim, at::Tensor &values, at::Tensor &indices) {
  return at::native::median_out_cpu(with_steps(self, dim), dim, keepdim, values, indices);
}
Pair nanmedian(const at::Tensor &self, int64_t dim, bool keepdim, at::Tensor &values, at::Tensor &indices) {
  return at::native::nanmedian_out_cpu(with_steps(self, dim), dim, keepdim, values, indices);
}

// The sizes of a nested tensor's components are copied without dimension dim - 1: with a negative dim one number
// too many is written. Of vectors scalars would remain, whose sizes are read beyond their end (2.11).
at::Tensor select_nested(const at::Tensor &self, int64_t dim, int64_t index) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.dim() == 2 && dim != 0)
    throw ArgumentError("a nested tensor of vectors can only be selected along dimension 0");
  return at::native::select_nested(self, dim, index);
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

torch::Library *kernels_of(c10::DispatchKey key) {
  // Never destroyed: its destructor would remove the kernels.
  return new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
}

}  // namespace

void replace_kernels() {
  Silent silent;  // libtorch warns of each replacement
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static auto *cpu = kernels_of(c10::DispatchKey::CPU);
  cpu->impl("median.dim_values", median);
  cpu->impl("nanmedian.dim_values", nanmedian);
  static auto *nested = kernels_of(c10::DispatchKey::NestedTensorCPU);
  nested->impl("select.int", select_nested);
}

}  // namespace ls

// Kernels in the place of libtorch's that read or write beyond a tensor, or change one without a new version. They
// hold for every way to reach them: typed functions, ls_op_call, operators composed of others, and backward
// passes.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_fused_adagrad_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_fused_sgd_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_native.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/addmv_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/median_native.h>
#include <ATen/ops/mul_native.h>
#include <ATen/ops/nanmedian_native.h>
#include <ATen/ops/native_group_norm_backward_native.h>
#include <ATen/ops/select_native.h>
#include <ATen/ops/zero_native.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "shim.h"

namespace ls {
namespace {

// A dimension of stride 0, of an expanded tensor, is read as if its stride were 1: medians are those of other
// elements, also of memory beyond the tensor.
at::Tensor without_stride_0(const at::Tensor &x, int64_t dim) {
  return x.dim() > 0 && x.stride(dim) == 0 ? x.contiguous() : x;
}
using Pair = std::tuple<at::Tensor &, at::Tensor &>;
Pair median(const at::Tensor &self, int64_t dim, bool keepdim, at::Tensor &values, at::Tensor &indices) {
  return at::native::median_out_cpu(without_stride_0(self, dim), dim, keepdim, values, indices);
}
Pair nanmedian(const at::Tensor &self, int64_t dim, bool keepdim, at::Tensor &values, at::Tensor &indices) {
  return at::native::nanmedian_out_cpu(without_stride_0(self, dim), dim, keepdim, values, indices);
}

// The sizes of a nested tensor's components are copied without dimension dim - 1: with a negative dim one number
// too many is written. Of vectors scalars would remain, whose sizes are read beyond their end (2.11).
at::Tensor select_nested(const at::Tensor &self, int64_t dim, int64_t index) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  if (self.dim() == 2 && dim != 0)
    throw ArgumentError("a nested tensor of vectors can only be selected along dimension 0");
  return at::native::select_nested(self, dim, index);
}

// The last dimension is read as if its stride were 1. The caller checks that, but zeros without memory become
// expanded ones after it.
at::Tensor rows(const at::Tensor &x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// As many values are read as there are keys.
std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor &query, const at::Tensor &key,
                                             const at::Tensor &value, double dropout_p, bool is_causal,
                                             const std::optional<at::Tensor> &attn_mask,
                                             std::optional<double> scale) {
  if (key.size(-2) != value.size(-2))
    throw ArgumentError("there are " + std::to_string(key.size(-2)) + " keys and " +
                        std::to_string(value.size(-2)) + " values");
  return at::native::_scaled_dot_product_flash_attention_cpu(rows(query), rows(key), rows(value), dropout_p,
                                                             is_causal, attn_mask, scale);
}
Gradients attention_backward(const at::Tensor &grad_out, const at::Tensor &query, const at::Tensor &key,
                             const at::Tensor &value, const at::Tensor &out, const at::Tensor &logsumexp,
                             double dropout_p, bool is_causal, const std::optional<at::Tensor> &attn_mask,
                             std::optional<double> scale) {
  return at::native::_scaled_dot_product_flash_attention_cpu_backward(
      rows(grad_out), rows(query), rows(key), rows(value), out, logsumexp, dropout_p, is_causal, attn_mask, scale);
}

// Without the gradient of an input that is channels-last, the kernel ends the process (2.11).
Gradients group_norm_backward(const at::Tensor &grad_out, const at::Tensor &input, const at::Tensor &mean,
                              const at::Tensor &rstd, const std::optional<at::Tensor> &weight, int64_t n,
                              int64_t channels, int64_t pixels, int64_t groups, std::array<bool, 3> needed) {
  bool unneeded = !needed[0] && input.suggest_memory_format() != c10::MemoryFormat::Contiguous;
  needed[0] |= unneeded;
  auto gradients = at::native::native_group_norm_backward(grad_out, input, mean, rstd, weight, n, channels, pixels,
                                                          groups, needed);
  if (unneeded) std::get<0>(gradients) = at::Tensor();
  return gradients;
}

// Zeros of oneDNN's layout are written as float32, whatever the dtype.
at::Tensor &zero_mkldnn(at::Tensor &self) {
  if (self.scalar_type() != c10::kFloat)
    throw ArgumentError(std::string("zeros of oneDNN's layout must be float32, not ") +
                        c10::toString(self.scalar_type()));
  return at::native::mkldnn_zero_(self);
}

// The indices of one factor are read with the number of sparse dimensions of the other. For a factor of 0
// dimensions without an element, memory is read that nothing has written.
at::Tensor &mul_sparse(const at::Tensor &self, const at::Tensor &other, at::Tensor &out) {
  if (self.is_sparse() && other.is_sparse()) {
    if (other.dim() == 0) return at::native::mul_out_sparse_cpu(self, other.to_dense(), out);
    if (self.dim() == 0) return at::native::mul_out_sparse_cpu(self.to_dense(), other, out);
    if (self.sparse_dim() != other.sparse_dim())
      throw ArgumentError("the factors have " + std::to_string(self.sparse_dim()) + " and " +
                          std::to_string(other.sparse_dim()) + " sparse dimensions");
  }
  return at::native::mul_out_sparse_cpu(self, other, out);
}

// MKL reads up to 32 bytes beyond the indices of the columns. It takes them as int32; libtorch converts others.
at::Tensor with_room(const at::Tensor &mat) {
  constexpr uintptr_t kRoom = 32, kPage = 4096;
  at::Tensor csr = mat.layout() == c10::kSparseCsc ? mat.to_sparse_csr() : mat;
  at::Tensor columns = csr.col_indices();
  auto end = reinterpret_cast<uintptr_t>(columns.const_data_ptr()) + columns.nbytes();
  if (columns.scalar_type() == c10::kInt && end % kPage != 0 && end % kPage <= kPage - kRoom) return csr;
  int64_t n = columns.numel();
  at::Tensor copy =
      at::empty({n + static_cast<int64_t>(kRoom / sizeof(int32_t))}, columns.options().dtype(c10::kInt));
  copy = copy.narrow(0, 0, n).copy_(columns);
  return at::_sparse_compressed_tensor_unsafe(csr.crow_indices().to(c10::kInt), copy, csr.values(), csr.sizes(),
                                              csr.options());
}

// The vector is read as if it had an element for each column.
at::Tensor &addmv_compressed(const at::Tensor &self, const at::Tensor &mat, const at::Tensor &vec,
                             const at::Scalar &beta, const at::Scalar &alpha, at::Tensor &out) {
  if (mat.dim() != 2 || vec.dim() != 1 || mat.size(1) != vec.size(0))
    throw ArgumentError("a matrix of " + c10::str(mat.sizes()) + " and a vector of " + c10::str(vec.sizes()) +
                        " have no product");
  bool rows_or_columns = mat.layout() == c10::kSparseCsr || mat.layout() == c10::kSparseCsc;
  return at::native::addmv_out_sparse_compressed(self, rows_or_columns ? with_room(mat) : mat, vec, beta, alpha,
                                                 out);
}

// libtorch's fused steps do not give the parameters a new version, unlike other operators that change tensors: a
// backward pass through a graph of before would compute with the new values, without an error.
template <class Op, class Schema = typename Op::schema>
struct Counted;
template <class Op, class... Args>
struct Counted<Op, void(at::TensorList, Args...)> {
  static void call(c10::DispatchKeySet keys, at::TensorList params, Args... args) {
    Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, params, args...);
    for (const auto &p : params) {
      if (!p.is_inference()) p.unsafeGetTensorImpl()->bump_version();
    }
  }
  static void add_to(torch::Library &library) {
    auto name = std::string(Op::name) + (*Op::overload_name == 0 ? "" : ".") + Op::overload_name;
    library.impl(name.c_str(), &call);
  }
};

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
  cpu->impl("_scaled_dot_product_flash_attention_for_cpu", attention);
  cpu->impl("_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward);
  cpu->impl("native_group_norm_backward", group_norm_backward);
  static auto *sparse = kernels_of(c10::DispatchKey::SparseCPU);
  sparse->impl("mul.out", mul_sparse);
  static auto *compressed = kernels_of(c10::DispatchKey::SparseCsrCPU);
  compressed->impl("addmv.out", addmv_compressed);
  static auto *mkldnn = kernels_of(c10::DispatchKey::MkldnnCPU);
  mkldnn->impl("zero_", zero_mkldnn);
  static auto *nested = kernels_of(c10::DispatchKey::NestedTensorCPU);
  nested->impl("select.int", select_nested);
  static auto *nested_cuda = kernels_of(c10::DispatchKey::NestedTensorCUDA);
  nested_cuda->impl("select.int", select_nested);
  static auto *changes = kernels_of(c10::DispatchKey::ADInplaceOrView);
  Counted<at::_ops::_fused_adam_>::add_to(*changes);
  Counted<at::_ops::_fused_adam__tensor_lr>::add_to(*changes);
  Counted<at::_ops::_fused_adamw_>::add_to(*changes);
  Counted<at::_ops::_fused_adamw__tensor_lr>::add_to(*changes);
  Counted<at::_ops::_fused_sgd_>::add_to(*changes);
  Counted<at::_ops::_fused_sgd__tensor_lr>::add_to(*changes);
  Counted<at::_ops::_fused_adagrad_>::add_to(*changes);
  Counted<at::_ops::_fused_adagrad__tensor_lr>::add_to(*changes);
}

}  // namespace ls

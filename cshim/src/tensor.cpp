// Tensors from the caller's memory and back; metadata.
#include <ATen/NestedTensorImpl.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/contiguous_ops.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/resolve_conj_ops.h>
#include <ATen/ops/resolve_neg_ops.h>
#include <ATen/ops/to_ops.h>
#include <torch/csrc/autograd/function.h>

#include <cstring>

#include "grads.h"
#include "memory.h"
#include "meta.h"
#include "stream.h"

namespace ls {

at::Tensor wrapped_number(const c10::Scalar &s) {
  at::Tensor t = c10::scalar_to_tensor(s);
  t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

c10::Scalar scalar_of(const ls_value *v) {
  switch (v->tag) {
    case LS_INT:
      return v->u.i;
    case LS_UINT:
      return static_cast<uint64_t>(v->u.i);
    case LS_FLOAT:
      return v->u.f;
    case LS_BOOL:
      return v->u.i != 0;
    case LS_COMPLEX:
      return c10::complex<double>(v[0].u.f, v[1].u.f);
    default:
      throw ArgumentError("a number is needed");
  }
}

std::vector<at::Tensor> tensors_of(const ls_tensor *h, uint64_t n) {
  std::vector<at::Tensor> v;
  v.reserve(n);
  for (uint64_t i = 0; i < n; i++) v.push_back(copy_of(h[i]));
  return v;
}

namespace {

c10::ScalarType dtype_of(int32_t d) {
  if (d < 0 || d >= static_cast<int32_t>(c10::ScalarType::NumOptions) ||
      d == static_cast<int32_t>(c10::ScalarType::Undefined))
    throw ArgumentError("dtype " + std::to_string(d) + " is unknown to this libtorch");
  auto dtype = static_cast<c10::ScalarType>(d);
  // Only the operators that make quantized tensors give them a quantizer; without one the first use ends the
  // process.
  if (c10::isQIntType(dtype)) throw ArgumentError("dtype " + std::to_string(d) + " is a quantized one");
  return dtype;
}

// Returns the number of elements. Throws for negative sizes and overflow.
uint64_t bytes_for(c10::ScalarType dtype, const int64_t *sizes, uint64_t ndim) {
  uint64_t n = c10::elementSize(dtype);
  for (uint64_t i = 0; i < ndim; i++) {
    if (sizes[i] < 0)
      throw ArgumentError("shape: dimension " + std::to_string(i) + " is negative (" + std::to_string(sizes[i]) +
                          ")");
    if (__builtin_mul_overflow(n, static_cast<uint64_t>(sizes[i]), &n) || n > INT64_MAX)
      throw ArgumentError("shape: too many elements");
  }
  return n;
}

void check_bytes(c10::ScalarType dtype, const int64_t *sizes, uint64_t ndim, uint64_t nbytes) {
  uint64_t want = bytes_for(dtype, sizes, ndim);
  if (want != nbytes)
    throw ArgumentError("shape needs " + std::to_string(want) + " bytes, data has " + std::to_string(nbytes));
}

}  // namespace
}  // namespace ls

using ls::Borrowed;

void ls_tensor_free(ls_tensor t) noexcept {
  if (t == 0) return ls::run_quiet([] {});
  ls::count_handle(&ls::HandleCount::freed);
  if (ls::any_lost() && ls::must_leak(reinterpret_cast<c10::TensorImpl *>(t))) return;
  if (ls::captures() != 0 && ls::keep_until_captured(reinterpret_cast<c10::TensorImpl *>(t))) return;
  // Destructors of libtorch may throw an exception of a device's allocator. A free has no way to report it.
  ls::run_quiet([&] {
    c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(reinterpret_cast<c10::TensorImpl *>(t))
        .reset();
  });
}

void ls_tensors_free(const ls_tensor *t, uint64_t n) noexcept {
  ls::run_quiet([&] {
    for (uint64_t i = 0; i < n; i++) ls_tensor_free(t[i]);
  });
}

ls_result ls_tensor_from_data(int32_t dtype, const int64_t *sizes, uint64_t ndim, const void *data,
                              uint64_t nbytes) noexcept {
  return ls::run([&] {
    auto d = ls::dtype_of(dtype);
    ls::check_bytes(d, sizes, ndim, nbytes);
    at::Tensor t = at::empty(ls::ints(sizes, ndim), at::TensorOptions(d));
    if (nbytes != 0) std::memcpy(t.mutable_data_ptr(), data, nbytes);
    return t;
  });
}

ls_result ls_tensor_from_blob(int32_t dtype, const int64_t *sizes, uint64_t ndim, const void *data,
                              uint64_t nbytes, void (*drop)(void *), uint64_t arg) noexcept {
  return ls::run([&] {
    auto d = ls::dtype_of(dtype);
    ls::check_bytes(d, sizes, ndim, nbytes);
    std::shared_ptr<ls::Ticket> ticket;
    if (drop == nullptr) ticket = ls::hold(arg);
    return at::from_blob(
        const_cast<void *>(data), ls::ints(sizes, ndim),
        [drop, arg, ticket](void *) {
          if (drop != nullptr) drop(reinterpret_cast<void *>(arg));
        },
        at::TensorOptions(d));
  });
}

ls_error *ls_tensor_copy_out(ls_tensor t, int32_t dtype, void *dst, uint64_t nbytes) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    at::Tensor x = ls::need(b, "data");
    ls::check_layouts("aten::clone", "", {t});
    if (static_cast<int32_t>(x.scalar_type()) != dtype)
      throw ls::ArgumentError(std::string("the tensor's dtype is ") + c10::toString(x.scalar_type()));
    if (x.layout() != c10::kStrided) throw ls::ArgumentError("the tensor is not dense");
    if (!x.is_cpu()) x = x.cpu();
    // A gradient that autograd knows to be zero has no memory until it is used.
    if (x._is_zerotensor()) x = x.clone();
    x = at::_ops::resolve_neg::call(at::_ops::resolve_conj::call(x));
    x = at::_ops::contiguous::call(x, c10::MemoryFormat::Contiguous);
    if (x.nbytes() != nbytes) throw ls::ArgumentError("the tensor has " + std::to_string(x.nbytes()) + " bytes");
    if (nbytes == 0) return;
    if (x.const_data_ptr() == nullptr) throw ls::ArgumentError("the tensor has no memory");
    std::memcpy(dst, x.const_data_ptr(), nbytes);
  });
}

ls_error *ls_tensor_item(ls_tensor t, ls_value out[2]) noexcept {
  return ls::run_void([&] {
    Borrowed b(t);
    const at::Tensor &x = ls::need(b, "item");
    ls::check_layouts("aten::item", "", {t});
    if (x.numel() != 1)
      throw ls::ArgumentError("a tensor with " + std::to_string(x.numel()) + " elements has no single value");
    c10::Scalar s = x.item();
    if (s.isBoolean()) {
      out[0] = {LS_BOOL, 0, {.i = s.toBool()}};
    } else if (s.isIntegral(false)) {
      bool large = s.type() == c10::kUInt64;
      out[0] = {large ? LS_UINT : LS_INT, 0, {.i = large ? static_cast<int64_t>(s.toUInt64()) : s.toLong()}};
    } else if (s.isComplex()) {
      auto c = s.toComplexDouble();
      out[0] = {LS_COMPLEX, 0, {.f = c.real()}};
      out[1] = {LS_COMPLEX, 0, {.f = c.imag()}};
    } else {
      out[0] = {LS_FLOAT, 0, {.f = s.toDouble()}};
    }
  });
}

ls_error *ls_tensor_meta(ls_tensor t, ls_meta *out) noexcept {
  return ls::run_void([&] {
    Borrowed b(t, Borrowed::Metadata{});
    const at::Tensor &x = ls::need(b, "metadata");
    *out = {};
    out->ndim = static_cast<int32_t>(x.dim());
    out->numel = x.numel();
    out->dtype = static_cast<int16_t>(x.scalar_type());
    out->device_type = static_cast<int8_t>(x.device().type());
    out->device_index = x.device().index();
    out->layout = static_cast<uint8_t>(x.layout());
    out->requires_grad = x.requires_grad();
    out->is_leaf = ls::is_leaf(x);
    out->is_inference = x.is_inference();
    out->is_conj = x.is_conj();
    out->is_neg = x.is_neg();
    out->is_view = x.is_view();
    out->version = x.is_inference() ? -1 : static_cast<int64_t>(x._version());
    if (x.is_nested()) {
      const auto *nested = at::native::get_nested_tensor_impl(x);
      // Without components opt_size reads sizes that are not there: SIGSEGV.
      const at::Tensor &components = nested->get_nested_sizes();
      const bool none = components.dim() > 0 && components.size(0) == 0;
      for (int64_t d = 0; d < x.dim() && d < LS_META_DIMS; d++)
        out->sizes[d] = none ? 0 : nested->opt_size(d).value_or(-1);
      out->layout = static_cast<uint8_t>(c10::kJagged);
      if (x.has_storage()) {
        out->data = reinterpret_cast<uint64_t>(x.storage().data());
        out->nbytes = x.storage().nbytes();
        out->counted = ls::counted(x.storage());
      }
      return;
    }
    auto sizes = x.sizes();
    size_t n = sizes.size() < LS_META_DIMS ? sizes.size() : LS_META_DIMS;
    std::memcpy(out->sizes, sizes.data(), n * sizeof(int64_t));
    if (x.layout() == c10::kStrided) {
      out->is_contiguous = x.is_contiguous();
      out->offset = x.storage_offset();
      std::memcpy(out->strides, x.strides().data(), n * sizeof(int64_t));
      if (x.has_storage()) {
        out->data = x.is_meta() ? ls::name_of_meta(x.storage()) : reinterpret_cast<uint64_t>(x.storage().data());
        out->nbytes = x.storage().nbytes();
        out->counted = ls::counted(x.storage());
      }
    }
  });
}

ls_error *ls_tensor_sizes(ls_tensor t, int64_t *sizes, int64_t *strides, uint64_t cap) noexcept {
  return ls::run_void([&] {
    Borrowed b(t, Borrowed::Metadata{});
    const at::Tensor &x = ls::need(b, "sizes");
    auto s = x.sizes();
    size_t n = s.size() < cap ? s.size() : cap;
    std::memcpy(sizes, s.data(), n * sizeof(int64_t));
    if (x.layout() == c10::kStrided) std::memcpy(strides, x.strides().data(), n * sizeof(int64_t));
  });
}

ls_result ls_tensor_alias(ls_tensor t) noexcept {
  return ls::run([&] { return ls::copy_of(t); });
}

ls_result ls_tensor_to(ls_tensor t, int32_t dtype, int32_t device, int32_t format, int32_t copy) noexcept {
  return ls::run([&] {
    Borrowed b(t);
    const at::Tensor &x = ls::need(b, "to");
    ls::check_layouts("aten::to", "device", {t});
    auto d = dtype < 0 ? x.scalar_type() : ls::dtype_of(dtype);
    auto dev = device < 0 ? x.device() : ls::device_of(device);
    if (format < -1 || format >= static_cast<int32_t>(c10::MemoryFormat::NumOptions))
      throw ls::ArgumentError("to: " + std::to_string(format) + " is not a memory format");
    std::optional<c10::MemoryFormat> f;
    if (format >= 0) f = static_cast<c10::MemoryFormat>(format);
    return at::_ops::to_device::call(x, dev, d, /*non_blocking=*/false, copy != 0, f);
  });
}

ls_result ls_tensor_index(ls_tensor t, const ls_tensor *indices, uint64_t n) noexcept {
  return ls::run([&] {
    Borrowed b(t);
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(n);
    for (uint64_t i = 0; i < n; i++) list.push_back(ls::optional_of(indices[i]));
    ls::check_layouts("aten::index", "Tensor", {t});
    for (uint64_t i = 0; i < n; i++) ls::check_layouts("aten::index", "Tensor", {t, indices[i]});
    return at::_ops::index_Tensor::call(ls::need(b, "index"), list);
  });
}

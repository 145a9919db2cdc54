// Kernels for the fake CUDA devices: an operator on a fake device runs the CPU's kernel. Device memory is host
// memory there, so the CPU's kernel receives tensors over the same bytes. Loaded with LD_PRELOAD
// (tests/gpu/dry.sh), this library replaces libtorch_cuda's kernels, which do nothing over the fake runtime.
// Values are then the CPU's, except random numbers. Operators that only CUDA has (cuDNN, fused attention, fused
// RNN cells) are not replaced.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <deque>
#include <mutex>
#include <set>
#include <string>

extern "C" void fakecuda_pending_wait(int device, void *stream);  // src/fake.h

namespace {

using c10::IValue;

// An argument on a device, and the CPU tensor over its memory that the kernel receives instead.
struct Twin {
  at::Tensor device, host;
  bool written;
};

struct Call {
  std::vector<Twin> twins;
  c10::optional<c10::Device> device;

  at::Tensor twin(const at::Tensor &t, bool written) {
    if (!t.defined() || !t.is_cuda()) return t;
    device = t.device();
    for (auto &w : twins)
      if (w.device.is_same(t)) return w.host;
    auto options = t.options().device(at::kCPU).pinned_memory(false);
    at::Tensor host;
    // An output that may be resized needs its own storage.
    if (written && t.numel() == 0)
      host = at::empty(t.sizes(), options);
    else
      host = at::from_blob(const_cast<void *>(t.const_data_ptr()), t.sizes(), t.strides(), options);
    if (t.is_conj()) host._set_conj(true);
    if (t.is_neg()) host._set_neg(true);
    if (t.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
    twins.push_back({t, host, written});
    return host;
  }

  IValue in(const IValue &v, bool written) {
    if (v.isTensor()) return twin(v.toTensor(), written);
    if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor &t : v.toTensorVector()) list.push_back(twin(t, written));
      return list;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto &t : v.toOptionalTensorVector())
        list.push_back(t ? std::optional<at::Tensor>(twin(*t, written)) : std::nullopt);
      return list;
    }
    if (v.isDevice() && v.toDevice().is_cuda()) {
      device = v.toDevice();
      return c10::Device(at::kCPU);
    }
    return v;
  }

  // Random numbers are drawn from the device's own generator, not the CPU's.
  at::Generator generator(const IValue &v) {
    TORCH_CHECK(!v.isGenerator() || !v.toGenerator().defined() || v.toGenerator().device().is_cuda(),
                "Expected a 'cuda' device type for generator but found 'cpu'");
    at::Generator of = v.isGenerator() && v.toGenerator().device().is_cuda()
                           ? v.toGenerator()
                           : at::cuda::detail::getDefaultCUDAGenerator(device ? device->index() : -1);
    std::lock_guard<std::mutex> lock(of.mutex());
    auto *g = at::check_generator<at::CUDAGeneratorImpl>(of);
    uint64_t offset = g->philox_offset_per_thread();
    g->set_philox_offset_per_thread(offset + 4);
    return at::detail::createCPUGenerator(g->current_seed() * 1000003 + offset + 1);
  }

  at::Tensor back(const at::Tensor &t) {
    if (!t.defined() || !t.device().is_cpu() || !device) return t;
    for (auto &w : twins)
      if (w.host.is_same(t)) return w.device;
    return placed(t);
  }

  // Returns a copy on the device with the same strides.
  at::Tensor placed(const at::Tensor &t) {
    auto d = *device;
    if (!d.has_index()) d = c10::Device(at::kCUDA, 0);
    at::Tensor host = t.resolve_conj().resolve_neg();
    at::Tensor out = at::empty_strided(host.sizes(), host.strides(), host.options().device(d));
    if (out.numel() > 0)
      at::from_blob(const_cast<void *>(out.const_data_ptr()), out.sizes(), out.strides(), host.options())
          .copy_(host);
    return out;
  }

  IValue out(const IValue &v) {
    if (v.isTensor()) return back(v.toTensor());
    if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor &t : v.toTensorVector()) list.push_back(back(t));
      return list;
    }
    return v;
  }

  // Resizes outputs that the kernel has resized, and copies the values of outputs that have their own storage.
  void resized() {
    for (auto &w : twins) {
      if (!w.written) continue;
      if (w.host.sizes() != w.device.sizes()) w.device.resize_(w.host.sizes());
      void *to = const_cast<void *>(w.device.const_data_ptr());
      if (w.host.const_data_ptr() != to && w.host.numel() > 0)
        at::from_blob(to, w.device.sizes(), w.device.strides(), w.host.options()).copy_(w.host);
    }
  }
};

void kernel(const c10::OperatorHandle &op, c10::DispatchKeySet, torch::jit::Stack *stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto &arguments = op.schema().arguments();
  Call call;
  size_t first = stack->size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); i++) {
    auto *alias = arguments[i].alias_info();
    (*stack)[first + i] = call.in((*stack)[first + i], alias != nullptr && alias->isWrite());
  }
  for (size_t i = 0; i < arguments.size(); i++) {
    IValue &v = (*stack)[first + i];
    auto *optional = arguments[i].type()->castRaw<c10::OptionalType>();
    bool random = optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
    if (random && (call.device || (v.isGenerator() && v.toGenerator().device().is_cuda()))) v = call.generator(v);
  }
  if (call.device && call.device->has_index())
    fakecuda_pending_wait(call.device->index(), c10::cuda::getCurrentCUDAStream(call.device->index()));
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  call.resized();
  for (size_t i = first; i < stack->size(); i++) (*stack)[i] = call.out((*stack)[i]);
}

// Never replaced: operators that allocate, make views or touch no values.
const std::set<std::string> kept = {
    "aten::empty",
    "aten::empty_strided",
    "aten::as_strided",
    "aten::view",
    "aten::_reshape_alias",
    "aten::set_",
    "aten::resize_",
    "aten::unfold",
    "aten::record_stream",
    "aten::is_pinned",
    "aten::_pin_memory",
    "aten::pin_memory",
    "aten::view_as_real",
    "aten::view_as_complex",
    "aten::_fused_sdp_choice",
    "aten::_local_scalar_dense",
    "aten::is_set_to",
};
// Composite operators on CUDA that choose an implementation by device.
const std::set<std::string> more = {"aten::copy_",          "aten::convolution",   "aten::convolution_backward",
                                    "aten::conj_physical_", "aten::kaiser_window", "aten::kaiser_window.periodic"};

// The CPU's implementation uses the CPU's default generator.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor &x, double p, std::optional<bool> train) {
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  at::Tensor mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {x * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

// Registers without a warning for each replaced kernel.
struct Quiet : c10::WarningHandler {
  void process(const c10::Warning &) override {}
};

std::deque<torch::Library> libraries;

struct Install {
  Install() {
    // The operators that these would call have no kernel here.
    at::globalContext().setUserEnabledCuDNN(false);
    at::globalContext().setSDPUseFlash(false);
    at::globalContext().setSDPUseMemEfficient(false);
    at::globalContext().setSDPUseCuDNN(false);
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    auto &dispatcher = c10::Dispatcher::singleton();
    libraries.emplace_back(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
    auto &library = libraries.back();
    for (const auto &name : dispatcher.getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0 || kept.count(name.name) != 0) continue;
      auto op = dispatcher.findOp(name);
      if (!op || !op->hasSchema()) continue;
      bool chosen = more.count(name.name) != 0;
      if (!chosen && !op->hasKernelForDispatchKey(c10::DispatchKey::CUDA)) continue;
      if (!op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) continue;
      // A view: the result must share the argument's storage.
      bool view = false;
      for (const auto &r : op->schema().returns()) {
        auto *alias = r.alias_info();
        view = view || (alias != nullptr && !alias->isWrite());
      }
      if (view) continue;
      std::string full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
      if (full == "native_dropout") continue;
      library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&kernel>());
    }
    library.impl("native_dropout", torch::CppFunction::makeFromUnboxedFunction(&native_dropout));
  }
};
Install install;

}  // namespace

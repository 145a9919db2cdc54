// Modes and scope word of the calling thread; threads, seeds and settings of the process; versions.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/headeronly/version.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <optional>

#include "anomaly.h"
#include "autocast.h"
#include "device.h"
#include "forward.h"
#include "memory.h"
#include "stream.h"

extern "C" uint64_t aoti_torch_abi_version();
#if defined(__x86_64__) && defined(__linux__)
// Of MKL, in libtorch. Absent from a libtorch without MKL.
extern "C" void vmsSqrt(int n, const float *a, float *r, int64_t mode) __attribute__((weak));
#endif

namespace ls {

thread_local ThreadWords words{0, 0, nullptr, 0};
std::atomic<uint64_t> threads_epoch{0};
std::atomic<bool> parallel{false};

// libtorch computes sqrt, exp, log, tanh, sin and similar functions of contiguous floats with MKL. The first of
// these calls in a process stores the kind of the CPU twice: as it is found, then as an index into a table of
// kernels. A thread whose first call comes between the two takes a kernel of another accuracy, for this one call
// (https://github.com/pytorch/pytorch/issues/188792; mkl_vml_serv_cpu_detect of MKL 2024.2). After one call the
// index stays.
void choose_vector_kernels() noexcept {
#if defined(__x86_64__) && defined(__linux__)
  constexpr int64_t kHighAccuracy = 0x2, kIgnoreErrors = 0x100, kKeepDenormals = 0x140000;  // as libtorch's calls
  float in = 1, out;
  if (vmsSqrt) vmsSqrt(1, &in, &out, kHighAccuracy | kIgnoreErrors | kKeepDenormals);
#endif
}

namespace {

std::atomic<int> num_threads{0};

std::mutex orphans_mutex;
std::vector<uint64_t> &orphans() {
  static auto *v = new std::vector<uint64_t>;
  return *v;
}

bool on_main_thread() noexcept {
#ifdef __linux__
  return gettid() == getpid();
#else
  return false;
#endif
}

uint64_t scope_word() noexcept { return words.scope & ~kSampled; }

uint64_t replace_scope(uint64_t scope) noexcept {
  uint64_t before = scope_word();
  words.scope = (scope & ~kSampled) | (words.scope & kSampled);
  return before;
}

// Records the end of a thread that still had a scope. Made by a thread's first ls_scope_set.
struct ThreadEnd {
  const uint64_t nothing = on_main_thread() ? LS_SCOPE_MAIN : 0;  // what ls_scope_set returns if there was no word
  ~ThreadEnd() {
    uint64_t scope = scope_word();
    if (scope == 0) return;
    try {
      std::lock_guard<std::mutex> lock(orphans_mutex);
      orphans().push_back(scope);
    } catch (...) {
    }
  }
};

// What ls_mode_pop restores.
struct Mode {
  ls_mode before{};
  std::unique_ptr<c10::InferenceMode> inference;
  std::unique_ptr<AutocastRegion> autocast;
  std::optional<StreamMode> stream;
  std::unique_ptr<AnomalyRegion> anomaly;
  std::unique_ptr<ForwardLevel> forward;
};
thread_local std::vector<Mode> modes;

ls_mode mode_in_force(int32_t kind, int32_t device_type) {
  ls_mode m{};
  m.kind = kind;
  m.device = device_type;
  switch (kind) {
    case LS_MODE_GRAD:
      m.on = c10::GradMode::is_enabled();
      break;
    case LS_MODE_INFERENCE:
      m.on = c10::InferenceMode::is_enabled();
      break;
    case LS_MODE_AUTOCAST:
      return autocast_in_force(device_type);
    case LS_MODE_FORWARD:
      m.on = forward_in_force();
      break;
    default:
      throw ArgumentError("mode " + std::to_string(kind) + " is unknown");
  }
  return m;
}

}  // namespace

void adopt_settings() noexcept {
  uint64_t epoch = threads_epoch.load(std::memory_order_acquire) & ~kEntriesArmed;
  if (words.threads_epoch == epoch) return;
  if (adopt_forward_mode()) words.threads_epoch = epoch;
  int n = num_threads.load(std::memory_order_relaxed);
  if (n == 0) return;
  try {
    at::set_num_threads(n);
  } catch (...) {
  }
}

}  // namespace ls

uint64_t ls_torch_version_built(void) noexcept {
  return ls::run_quiet([] {
    return static_cast<uint64_t>(TORCH_VERSION_MAJOR) << 56 | static_cast<uint64_t>(TORCH_VERSION_MINOR) << 48 |
           static_cast<uint64_t>(TORCH_VERSION_PATCH) << 40;
  });
}
uint64_t ls_torch_version_loaded(void) noexcept {
  return ls::run_quiet([] { return aoti_torch_abi_version(); });
}

ls_results ls_torch_config(ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) { ls::put_string(r, at::show_config(), out, out_slots); });
}

ls_mode ls_mode_get(int32_t kind, int32_t device_type) noexcept {
  return ls::run_quiet([&] { return ls::mode_in_force(kind, device_type); });
}

ls_error *ls_mode_push(ls_mode mode) noexcept {
  return ls::run_void([&] {
    // Allocate first: a mode that is set must be recorded, so that it can be undone.
    ls::modes.reserve(ls::modes.size() + 1);
    ls::Mode m;
    m.before.kind = mode.kind;
    if (mode.kind != LS_MODE_STREAM && mode.kind != LS_MODE_ANOMALY)
      m.before = ls::mode_in_force(mode.kind, mode.device);
    switch (mode.kind) {
      case LS_MODE_GRAD:
        c10::GradMode::set_enabled(mode.on != 0);
        break;
      case LS_MODE_INFERENCE:
        m.inference = std::make_unique<c10::InferenceMode>(mode.on != 0);
        ls::inference_mode_changed();
        break;
      case LS_MODE_ANOMALY:
        m.anomaly = std::make_unique<ls::AnomalyRegion>(mode.on != 0);
        break;
      case LS_MODE_FORWARD:
        m.forward = std::make_unique<ls::ForwardLevel>();
        break;
      case LS_MODE_STREAM:
        m.stream = ls::StreamMode::enter(mode.device, mode.stream);
        break;
      default:
        m.autocast = std::make_unique<ls::AutocastRegion>(mode);
    }
    ls::grad_mode_changed();
    ls::modes.push_back(std::move(m));
  });
}

void ls_mode_pop(void) noexcept {
  ls::run_quiet([] {
    if (ls::modes.empty()) return;
    ls::Mode m = std::move(ls::modes.back());
    ls::modes.pop_back();
    if (m.before.kind == LS_MODE_GRAD) c10::GradMode::set_enabled(m.before.on != 0);
    if (m.stream) m.stream->undo();
    m.inference.reset();
    if (m.before.kind == LS_MODE_INFERENCE) ls::inference_mode_changed();
    m.autocast.reset();
    m.anomaly.reset();
    m.forward.reset();
    ls::grad_mode_changed();
  });
}

uint64_t ls_scope_set(uint64_t scope) noexcept {
  return ls::run_quiet([&] {
    static thread_local ls::ThreadEnd end;
    uint64_t before = ls::replace_scope(scope);
    return before == 0 ? end.nothing : before;
  });
}
uint64_t ls_scope_get(void) noexcept { return ls::run_quiet(ls::scope_word); }
uint64_t ls_scope_leave(uint64_t scope, uint64_t parent) noexcept {
  return ls::run_quiet([&] {
    uint64_t now = ls::scope_word();
    if (now != scope) return now;
    ls::replace_scope(parent);
    return parent == 0 && ls::yield_due() ? now | LS_SCOPE_YIELD : now;
  });
}

int32_t ls_yield_due(int32_t at_one_thread) noexcept {
  return ls::run_quiet(
      [&]() -> int32_t { return (at_one_thread != 0 || ls::parallel) && ls::yield_due() ? 1 : 0; });
}

uint64_t ls_scope_orphans(uint64_t *scopes, uint64_t cap) noexcept {
  return ls::run_quiet([&] {
    std::lock_guard<std::mutex> lock(ls::orphans_mutex);
    auto &o = ls::orphans();
    uint64_t n = std::min<uint64_t>(cap, o.size());
    std::copy(o.end() - static_cast<int64_t>(n), o.end(), scopes);
    o.resize(o.size() - n);
    return n;
  });
}

thread_local uint64_t ls::random_states_set = 0;

ls_error *ls_rng_seed(uint64_t seed) noexcept {
  return ls::run_void([&] {
    auto cpu = at::globalContext().defaultGenerator(c10::DeviceType::CPU);
    {
      std::lock_guard<std::mutex> lock(cpu.mutex());
      cpu.set_current_seed(seed);
    }
    ls::random_states_set++;
    ls::seed_devices(seed);
  });
}

namespace ls {
at::Generator default_generator(c10::Device d) {
  OnDevice device(d);
  return at::globalContext().defaultGenerator(d);
}

at::Tensor random_state_of(at::Generator g) {
  OnDevice device(g.device());
  std::lock_guard<std::mutex> lock(g.mutex());
  return g.get_state();
}

void set_random_state(at::Generator g, const at::Tensor &state) {
  OnDevice device(g.device());
  std::lock_guard<std::mutex> lock(g.mutex());
  g.set_state(state);
}
}  // namespace ls

ls_result ls_rng_state(int32_t device) noexcept {
  return ls::run([&] { return ls::random_state_of(ls::default_generator(ls::device_of(device))); });
}

ls_error *ls_rng_set_state(int32_t device, ls_tensor state) noexcept {
  return ls::run_void([&] {
    ls::Borrowed b(state);
    ls::set_random_state(ls::default_generator(ls::device_of(device)), ls::need(b, "state"));
    ls::random_states_set++;
  });
}

at::Generator ls::generator_at(ls_generator g) {
  if (g == 0) throw ArgumentError("a generator is needed, got none");
  return at::Generator(
      c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(reinterpret_cast<c10::GeneratorImpl *>(g)));
}

ls_error *ls_generator_new(int32_t device, ls_generator *out) noexcept {
  return ls::run_void([&] {
    auto d = ls::device_of(device);
    ls::OnDevice on(d);
    at::Generator g = d.is_cpu()
                          ? at::detail::createCPUGenerator()
                          : at::globalContext().getAcceleratorHooksInterface(d.type()).getNewGenerator(d.index());
    ls::count_handle(&ls::HandleCount::made);
    *out = reinterpret_cast<ls_generator>(g.unsafeReleaseGeneratorImpl());
  });
}

void ls_generator_free(ls_generator g) noexcept {
  ls::run_quiet([&] {
    if (g == 0) return;
    ls::count_handle(&ls::HandleCount::freed);
    c10::intrusive_ptr<c10::GeneratorImpl>::reclaim(reinterpret_cast<c10::GeneratorImpl *>(g));
  });
}

ls_error *ls_generator_seed(ls_generator g, uint64_t seed) noexcept {
  return ls::run_void([&] {
    auto generator = ls::generator_at(g);
    ls::OnDevice device(generator.device());
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  });
}

ls_error *ls_generator_seed_random(ls_generator g, uint64_t *seed) noexcept {
  return ls::run_void([&] {
    auto generator = ls::generator_at(g);
    ls::OnDevice device(generator.device());
    std::lock_guard<std::mutex> lock(generator.mutex());
    *seed = generator.seed();
  });
}

ls_error *ls_generator_current_seed(ls_generator g, uint64_t *seed) noexcept {
  return ls::run_void([&] {
    auto generator = ls::generator_at(g);
    ls::OnDevice device(generator.device());
    std::lock_guard<std::mutex> lock(generator.mutex());
    *seed = generator.current_seed();
  });
}

ls_result ls_generator_state(ls_generator g) noexcept {
  return ls::run([&] { return ls::random_state_of(ls::generator_at(g)); });
}

ls_error *ls_generator_set_state(ls_generator g, ls_tensor state) noexcept {
  return ls::run_void([&] {
    ls::Borrowed b(state);
    ls::set_random_state(ls::generator_at(g), ls::need(b, "state"));
  });
}

namespace {
// libtorch sets the order of the backends when it first chooses one for a CUDA device: on some devices cuDNN is
// the first. An order that was set before would be lost then, so libtorch chooses before the order is read. In
// PyTorch, as here while no device is in use, it is lost.
void choose_backend_once() noexcept {
  static std::atomic<bool> chosen{false};
  uint64_t used = ls::used_devices();
  if (chosen || used == 0) return;
  try {
    // Empty, so that no memory is needed.
    auto x = at::empty({0, 1, 1, 8}, at::device(ls::device_at(std::countr_zero(used) + 1)).dtype(at::kHalf));
    (void)at::_fused_sdp_choice(x, x, x);
    chosen = true;
  } catch (...) {
    // The error of the device is that of the next call that uses it.
  }
}
}  // namespace

uint64_t ls_sdpa_get(int32_t *backends, uint64_t cap) noexcept {
  return ls::run_quiet([&] {
    choose_backend_once();
    auto &context = at::globalContext();
    uint64_t n = 0;
    for (auto b : context.sDPPriorityOrder()) {
      bool allowed = false;
      switch (b) {
        case at::SDPBackend::math:
          allowed = context.userEnabledMathSDP();
          break;
        case at::SDPBackend::flash_attention:
          allowed = context.userEnabledFlashSDP();
          break;
        case at::SDPBackend::efficient_attention:
          allowed = context.userEnabledMemEfficientSDP();
          break;
        case at::SDPBackend::cudnn_attention:
          allowed = context.userEnabledCuDNNSDP();
          break;
        case at::SDPBackend::overrideable:
          allowed = context.userEnabledOverrideableSDP();
          break;
        default:
          break;
      }
      if (allowed && n < cap) backends[n++] = static_cast<int32_t>(b);
    }
    return n;
  });
}

ls_error *ls_sdpa_set(const int32_t *backends, uint64_t n) noexcept {
  return ls::run_void([&] {
    auto &context = at::globalContext();
    std::vector<int64_t> order;
    auto has = [&](int64_t b) { return std::find(order.begin(), order.end(), b) != order.end(); };
    for (uint64_t i = 0; i < n; i++) {
      int64_t b = backends[i];
      if (b < 0 || b >= at::num_sdp_backends)
        throw ls::ArgumentError("attention backend " + std::to_string(b) + " does not exist");
      if (!has(b)) order.push_back(b);
    }
    context.setSDPUseMath(has(static_cast<int64_t>(at::SDPBackend::math)));
    context.setSDPUseFlash(has(static_cast<int64_t>(at::SDPBackend::flash_attention)));
    context.setSDPUseMemEfficient(has(static_cast<int64_t>(at::SDPBackend::efficient_attention)));
    context.setSDPUseCuDNN(has(static_cast<int64_t>(at::SDPBackend::cudnn_attention)));
    context.setSDPUseOverrideable(has(static_cast<int64_t>(at::SDPBackend::overrideable)));
    for (auto b : context.sDPPriorityOrder())
      if (!has(static_cast<int64_t>(b))) order.push_back(static_cast<int64_t>(b));
    context.setSDPPriorityOrder(order);
  });
}

ls_error *ls_threads_set(int32_t n) noexcept {
  return ls::run_void([&] {
    if (n < 1) throw ls::ArgumentError("threads: at least 1 is needed, got " + std::to_string(n));
    ls::num_threads.store(n, std::memory_order_relaxed);
    ls::parallel = n > 1;
    ls::threads_epoch.fetch_add(1, std::memory_order_release);
    ls::adopt_settings();
  });
}
int32_t ls_threads_get(void) noexcept {
  return ls::run_quiet([] {
    ls::adopt_settings();
    return at::get_num_threads();
  });
}

ls_error *ls_deterministic_set(int32_t on, int32_t warn_only) noexcept {
  return ls::run_void([&] { at::globalContext().setDeterministicAlgorithms(on != 0, warn_only != 0); });
}
int32_t ls_deterministic_get(void) noexcept {
  return ls::run_quiet([]() -> int32_t { return at::globalContext().deterministicAlgorithms(); });
}

ls_error *ls_matmul_precision_set(int32_t precision) noexcept {
  return ls::run_void([&] {
    static const char *const names[] = {"highest", "high", "medium"};
    if (precision < 0 || precision > 2) throw ls::ArgumentError("matmul precision: 0, 1 or 2 is needed");
    at::globalContext().setFloat32MatmulPrecision(names[precision]);
  });
}
int32_t ls_matmul_precision_get(void) noexcept {
  return ls::run_quiet([] { return static_cast<int32_t>(at::globalContext().float32MatmulPrecision()); });
}

ls_error *ls_default_dtype_set(int32_t dtype) noexcept {
  return ls::run_void([&] {
    auto d = static_cast<c10::ScalarType>(dtype);
    if (d != c10::kFloat && d != c10::kDouble && d != c10::kHalf && d != c10::kBFloat16)
      throw ls::ArgumentError("the default dtype must be a floating-point dtype");
    c10::set_default_dtype(c10::scalarTypeToTypeMeta(d));
  });
}
int32_t ls_default_dtype_get(void) noexcept {
  return ls::run_quiet([] { return static_cast<int32_t>(c10::get_default_dtype_as_scalartype()); });
}

int32_t ls_device_count(int32_t device_type) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    auto type = static_cast<c10::DeviceType>(device_type);
    if (type == c10::DeviceType::CPU) return 1;
    auto accelerator = at::accelerator::getAccelerator(/*checked=*/false);
    if (!accelerator.has_value() || *accelerator != type) return 0;
    return at::accelerator::deviceCount();
  });
}

ls_error *ls_device_synchronize(int32_t device) noexcept {
  return ls::run_void([&] {
    auto d = ls::device_of(device);
    if (d.is_cpu()) return;
    ls::refuse_in_capture("a wait for a device");
    ls::refuse_while_captured(d);
    ls::OnDevice on(d);
    at::accelerator::synchronizeDevice(d.index());
  });
}

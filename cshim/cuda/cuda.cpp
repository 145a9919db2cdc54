// The CUDA devices for the shim's core, over libtorch's caching allocator.
#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/cuda/memory_snapshot.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "../src/device.h"
#include "allocator.h"
#include "linstock_cuda.h"
#include "process_group.h"

namespace ls {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

class CudaDevices final : public Devices {
 public:
  int32_t count() override { return c10::cuda::device_count(); }

  std::string name(int32_t index) override {
    cudaDeviceProp p;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&p, checked(index)));
    return p.name;
  }

  DeviceMemory memory(int32_t index) override {
    DeviceMemory m{};
    m.largest_free = -1;
    if (!ready()) return m;
    size_t largest = 1;  // 0 would query the free memory of the device
    allocator::cacheInfo(checked(index), &largest);
    m.largest_free = largest > 1 ? static_cast<int64_t>(largest) : 0;
    auto s = allocator::getDeviceStats(checked(index));
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    m.allocated = s.allocated_bytes[all].current;
    m.allocated_peak = s.allocated_bytes[all].peak;
    m.requested = s.requested_bytes[all].current;
    m.reserved = s.reserved_bytes[all].current;
    m.active = s.active_bytes[all].current;
    m.allocations = s.allocation[all].allocated;
    m.frees = s.allocation[all].freed;
    return m;
  }

  void reset_peak(int32_t index) override {
    if (ready()) allocator::resetPeakStats(checked(index));
  }

  void empty_cache(int32_t index) override {
    refuse_lost_device(slot(index));
    // A device that was not used yet is left alone: it has no cache, and a guard would make a context there.
    if (!ready() || !in_use_[checked(index)]) return;
    c10::cuda::CUDAGuard guard(checked(index));
    limit_reserved(index);
    // emptyCache visits all devices. It stops at a lost one. On one where a graph is being captured it ends the
    // capture: before it unmaps an expandable segment, it waits for the stream that the segment belongs to.
    if (any_capture()) {
      // What the calling thread frees would end its capture on another device.
      c10::cuda::CUDAStreamCaptureModeGuard unsafe_too{cudaStreamCaptureModeRelaxed};
      release_cache_of_current_device();
      return;
    }
    if (any_device_lost()) {
      release_cache_of_current_device();
      return;
    }
    allocator::emptyCache();
  }

  void capacity(int32_t index, int64_t *free, int64_t *total) override {
    if (free == nullptr) {
      // Without a context on the device, which would use some of its memory.
      cudaDeviceProp p;
      C10_CUDA_CHECK(cudaGetDeviceProperties(&p, checked(index)));
      *total = static_cast<int64_t>(p.totalGlobalMem);
      return;
    }
    refuse_lost_device(slot(index));
    c10::cuda::CUDAGuard guard(checked(index));
    size_t f = 0, t = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&f, &t));
    *free = static_cast<int64_t>(f);
    if (total != nullptr) *total = static_cast<int64_t>(t);
  }

  double memory_fraction() override { return allocator::CUDAAllocatorConfig::per_process_memory_fraction(); }

  void empty_pinned_cache() override {
    if (!ready()) return;
    // As libtorch's allocator of pinned memory does: without a context on a device that has none.
    c10::cuda::OptionalCUDAGuard guard;
    if (auto index = c10::cuda::getDeviceIndexWithPrimaryContext()) guard.set_index(*index);
    at::getHostAllocator(at::kCUDA)->empty_cache();
  }

  bool settle(int32_t index, bool wait) override { return ready() && settle_frees(checked(index), wait); }

  // A device that was not used yet is left alone: to set its limit would make a context there.
  void limit_changed(int32_t index) override {
    if (in_use_[checked(index)]) limit_reserved(index);
  }

  void synchronize(int32_t index) override {
    refuse_lost_device(slot(index));
    c10::cuda::CUDAGuard guard(checked(index));
    c10::cuda::device_synchronize();
  }

  bool capturing() override {
    if (!ready()) return false;
    for (int32_t i = 0; i < count(); i++) {
      if (!in_use_[i]) continue;
      cudaStream_t stream = c10::cuda::getCurrentCUDAStream(checked(i));
      // A default stream belongs to CUDA's device: it is queried once, without a context on other devices.
      int device = 0;
      if (stream == nullptr && (cudaGetDevice(&device) != cudaSuccess || i != device)) continue;
      cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
      cudaError_t e = cudaStreamIsCapturing(stream, &status);
      // The default stream returns this error while a blocking stream captures.
      if (e == cudaErrorStreamCaptureImplicit) status = cudaStreamCaptureStatusActive;
      if (e != cudaSuccess) (void)cudaGetLastError();
      if (status != cudaStreamCaptureStatusNone) return true;
    }
    return false;
  }

  bool capturing(const c10::Stream &stream) override {
    if (!ready()) return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaError_t e = cudaStreamIsCapturing(c10::cuda::CUDAStream(stream), &status);
    if (e == cudaErrorStreamCaptureImplicit) return true;
    C10_CUDA_CHECK(e);
    return status != cudaStreamCaptureStatusNone;
  }

  std::unique_ptr<Graph> new_graph() override { return new_cuda_graph(); }

  c10::DeleterFnPtr pinned_deleter() override {
    return at::getHostAllocator(at::kCUDA)->allocate(1).get_deleter();
  }

  std::string snapshot() override {
    if (!ready()) return {};
    snapshot_begins();
    return torch::cuda::_memory_snapshot_pickled();
  }

  c10::intrusive_ptr<c10d::Backend> new_backend(
      const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout,
      std::function<void(const c10::intrusive_ptr<c10d::Work> &)> started) override {
    return new_nccl(store, rank, size, timeout, std::move(started));
  }

  void start() override {
    auto name = allocator::get()->name();
    TORCH_CHECK(name == "native", "the allocator backend:", name, " of PYTORCH_CUDA_ALLOC_CONF is not supported; ",
                "remove the option, or set backend:native");
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    stand_before_allocator();
    ready_ = true;
  }

  void use(int32_t index) override {
    in_use_[checked(index)] = true;
    limit_reserved(index);
  }

  void seed(int32_t index, uint64_t seed) override {
    // A generator asks the current device whether a graph is being captured there.
    c10::cuda::CUDAGuard guard(checked(index));
    at::Generator g = at::globalContext().defaultGenerator(guard.current_device());
    std::lock_guard<std::mutex> lock(g.mutex());
    g.set_current_seed(seed);
  }

  // libtorch's, which leaves CUDA's device as it is while the one to return to has no context.
  int32_t current() noexcept override {
    c10::DeviceIndex index = 0;
    return c10::cuda::GetDevice(&index) == cudaSuccess ? index : 0;
  }

  int32_t alive(int32_t index) noexcept override {
    int32_t before = current();
    cudaError_t e = cudaSetDevice(index);
    size_t free = 0, total = 0;
    if (e == cudaSuccess) e = cudaMemGetInfo(&free, &total);
    // Clear the error, so that no later call reads it.
    if (e != cudaSuccess) (void)cudaGetLastError();
    try {
      (void)c10::cuda::MaybeSetDevice(static_cast<c10::DeviceIndex>(before));
    } catch (const c10::Error &) {
      (void)cudaSetDevice(before);
    }
    bool transient = e == cudaErrorMemoryAllocation || e == cudaErrorNotReady || e == cudaErrorNotPermitted ||
                     (e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureWrongThread);
    return transient ? 0 : static_cast<int32_t>(e);
  }

 private:
  std::atomic<bool> in_use_[kMaxSlots - 1] = {};

  c10::DeviceIndex checked(int32_t index) {
    TORCH_CHECK_INDEX(index >= 0 && index < std::min(count(), kMaxSlots - 1), "cuda:", index,
                      " is not one of the ", count(), " CUDA devices");
    return static_cast<c10::DeviceIndex>(index);
  }

  // Before libtorch's CUDA has started, and if its start has failed, its allocator must not be called: it
  // considers itself initialized as soon as the start has begun.
  std::atomic<bool> ready_{false};
  bool ready() const { return ready_; }
};

// Returns why libtorch can use none of the driver's devices; empty: it can.
std::string unusable() {
  try {
    (void)c10::cuda::device_count_ensure_non_zero();
    return {};
  } catch (const c10::Error &e) {
    return e.what_without_backtrace();
  }
}

}  // namespace
}  // namespace ls

extern "C" const char *ls_cuda_open(uint32_t abi) {
  if (abi != LS_CUDA_ABI) return "the CUDA library was built from other sources than the shim";
  static const std::string why = ls::unusable();
  if (!why.empty()) return why.c_str();
  static bool once = [] {
    // PyTorch: torch.backends.cudnn.enabled = False, to see whether cuDNN is at fault.
    const char *cudnn = std::getenv("LINSTOCK_CUDNN");
    if (cudnn != nullptr && std::strcmp(cudnn, "0") == 0) at::globalContext().setUserEnabledCuDNN(false);
    // Leaked on purpose: memory is freed until the process ends.
    ls::add_devices(c10::kCUDA, new ls::CudaDevices);
    return true;
  }();
  (void)once;
  return nullptr;
}

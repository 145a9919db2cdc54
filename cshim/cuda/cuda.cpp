// The CUDA devices for the shim's core, over libtorch's caching allocator.
#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "../src/device.h"
#include "linstock_cuda.h"
#include "versions.h"

namespace ls {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

// Set while this thread itself provokes a failed allocation.
thread_local bool provoking = false;

class Pressure final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    if (provoking) return false;
    c10::DeviceIndex index = -1;
    if (c10::cuda::GetDevice(&index) != cudaSuccess) return false;
    return device_pressure(index);
  }
};

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
    auto s = allocator::getDeviceStats(checked(index));
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    m.allocated = s.allocated_bytes[all].current;
    m.allocated_peak = s.allocated_bytes[all].peak;
    m.requested = s.requested_bytes[all].current;
    m.reserved = s.reserved_bytes[all].current;
    m.reserved_peak = s.reserved_bytes[all].peak;
    m.active = s.active_bytes[all].current;
    m.allocations = s.allocation[all].allocated;
    m.frees = s.allocation[all].freed;
    m.ooms = s.num_ooms;
    m.retries = s.num_alloc_retries;
    return m;
  }

  void reset_peak(int32_t index) override {
    if (ready()) allocator::resetPeakStats(checked(index));
  }

  void empty_cache(int32_t index) override {
    refuse_lost_device(index);
    if (!ready()) return;
    c10::cuda::CUDAGuard guard(checked(index));
    if (any_device_lost()) {
      // emptyCache goes over all devices and stops at the lost one. An allocation that cannot be given empties the
      // cache of its own device alone.
      struct Provoking {
        Provoking() { provoking = true; }
        ~Provoking() { provoking = false; }
      } on;
      try {
        allocator::raw_delete(allocator::raw_alloc(size_t{1} << 50));
      } catch (const c10::OutOfMemoryError &) {
      } catch (const c10::AcceleratorError &e) {
        if (e.get_error_code() != cudaErrorMemoryAllocation) throw;  // without a cache, it is this one
      }
      return;
    }
    allocator::emptyCache();
  }

  void capacity(int32_t index, int64_t *free, int64_t *total) override {
    if (free == nullptr) {
      // Without a context on the device, which would take some of its memory.
      cudaDeviceProp p;
      C10_CUDA_CHECK(cudaGetDeviceProperties(&p, checked(index)));
      *total = static_cast<int64_t>(p.totalGlobalMem);
      return;
    }
    refuse_lost_device(index);
    c10::cuda::CUDAGuard guard(checked(index));
    size_t f = 0, t = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&f, &t));
    *free = static_cast<int64_t>(f);
    if (total != nullptr) *total = static_cast<int64_t>(t);
  }

  // A device that nobody has used yet is left alone: to set its limit would make a context there.
  void set_limit(int32_t index, int64_t bytes) override {
    checked(index);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      limits_[index] = bytes;
      if (static_cast<size_t>(index) >= in_use_.size() || !in_use_[index]) return;
    }
    apply_limit(index, bytes);
  }

  void synchronize(int32_t index) override {
    refuse_lost_device(index);
    c10::cuda::CUDAGuard guard(checked(index));
    c10::cuda::device_synchronize();
  }

  bool capturing(int32_t index) override {
    if (!ready()) return false;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(checked(index)), &status) != cudaSuccess)
      return false;
    return status != cudaStreamCaptureStatusNone;
  }

  std::string snapshot() override {
    if (!ready()) return {};
    return torch::cuda::_memory_snapshot_pickled();
  }

  // Asked for before the first use of CUDA, it begins with that.
  void record_history(bool on, int64_t max_entries) override {
    std::lock_guard<std::mutex> lock(mutex_);
    history_ = on ? (max_entries <= 0 ? SIZE_MAX : static_cast<size_t>(max_entries)) : 0;
    if (ready()) record_memory_history(on, history_);
  }

  void start() override {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    // Each block, so that the core knows what is live without asking under the device's lock.
    allocator::attachAllocatorTraceTracker([](const auto &e) {
      using Entry = std::decay_t<decltype(e)>;
      auto *p = reinterpret_cast<void *>(e.addr_);
      if (e.action_ == Entry::ALLOC) {
        count_on_device(e.device_, p, static_cast<int64_t>(e.size_));
      } else if (e.action_ == Entry::FREE_COMPLETED) {
        count_on_device(e.device_, p, -static_cast<int64_t>(e.size_));
      } else if (e.action_ == Entry::SEGMENT_ALLOC || e.action_ == Entry::SEGMENT_MAP) {
        reserved_on_device(e.device_, static_cast<int64_t>(e.size_));
      } else if (e.action_ == Entry::SEGMENT_FREE || e.action_ == Entry::SEGMENT_UNMAP) {
        reserved_on_device(e.device_, -static_cast<int64_t>(e.size_));
      } else if (e.action_ == Entry::OOM && !provoking) {
        failed_on_device(e.device_, static_cast<int64_t>(e.size_));
      }
    });
    std::lock_guard<std::mutex> lock(mutex_);
    if (history_ != 0) record_memory_history(true, history_);
    ready_.store(true, std::memory_order_release);
  }

  void use(int32_t index) override {
    checked(index);
    int64_t limit = kNoLimit;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (in_use_.size() <= static_cast<size_t>(index)) in_use_.resize(index + 1);
      in_use_[index] = true;
      auto at = limits_.find(index);
      if (at != limits_.end()) limit = at->second;
    }
    if (limit != kNoLimit) apply_limit(index, limit);
  }

  int32_t current() noexcept override {
    int index = 0;
    return cudaGetDevice(&index) == cudaSuccess ? index : 0;
  }

  int32_t alive(int32_t index) noexcept override {
    int before = 0;
    (void)cudaGetDevice(&before);
    cudaError_t e = cudaSetDevice(index);
    size_t free = 0, total = 0;
    if (e == cudaSuccess) e = cudaMemGetInfo(&free, &total);
    // What it answered is not to be found by whoever looks next.
    if (e != cudaSuccess) (void)cudaGetLastError();
    (void)cudaSetDevice(before);
    bool transient = e == cudaErrorMemoryAllocation || e == cudaErrorNotReady || e == cudaErrorNotPermitted ||
                     (e >= cudaErrorStreamCaptureUnsupported && e <= cudaErrorStreamCaptureWrongThread);
    return transient ? 0 : static_cast<int32_t>(e);
  }

 private:
  static constexpr int64_t kNoLimit = -1;
  std::mutex mutex_;
  size_t history_ = 0;  // how many entries to keep, 0: none
  std::vector<bool> in_use_;
  std::unordered_map<int32_t, int64_t> limits_;

  void apply_limit(int32_t index, int64_t bytes) {
    int64_t free = 0, total = 0;
    capacity(index, &free, &total);
    double fraction = 1;
    // Half a byte more, so that the allocator's own rounding gives these bytes back.
    if (bytes > 0 && bytes < total) fraction = (static_cast<double>(bytes) + 0.5) / static_cast<double>(total);
    allocator::setMemoryFraction(fraction, checked(index));
  }

  c10::DeviceIndex checked(int32_t index) {
    TORCH_CHECK_INDEX(index >= 0 && index < count(), "cuda:", index, " is not one of the ", count(),
                      " CUDA devices");
    return static_cast<c10::DeviceIndex>(index);
  }

  // Before libtorch's CUDA has started, and where it failed to, its allocator must not be asked anything: it takes
  // itself to be complete as soon as it has begun.
  std::atomic<bool> ready_{false};
  bool ready() const { return ready_.load(std::memory_order_acquire); }
};

}  // namespace
}  // namespace ls

extern "C" const char *ls_cuda_open(uint32_t abi) {
  if (abi != LS_CUDA_ABI) return "the CUDA library was built from other sources than the shim";
  static bool once = [] {
    // By hand, not by libtorch's macro: that registers while the library is being opened, when nobody listens yet.
    c10::FreeCudaMemoryCallbacksRegistry()->Register(
        "linstock", [] { return std::unique_ptr<c10::FreeMemoryCallback>(new ls::Pressure); });
    // What users of PyTorch do by torch.backends.cudnn.enabled = False, to see whether cuDNN is at fault.
    const char *cudnn = std::getenv("LINSTOCK_CUDNN");
    if (cudnn != nullptr && std::strcmp(cudnn, "0") == 0) at::globalContext().setUserEnabledCuDNN(false);
    // Leaked on purpose: memory is freed until the process ends.
    ls::set_cuda_devices(new ls::CudaDevices);
    return true;
  }();
  (void)once;
  return nullptr;
}

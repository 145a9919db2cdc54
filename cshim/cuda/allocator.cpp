#include "allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "../src/device.h"
#include "linstock.h"
#include "versions.h"

namespace ls {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

// The bytes that were admitted for this thread and that no block has been counted for.
thread_local int64_t admitted = 0;

// How many devices' segments this thread has read in the current snapshot. libtorch reads them in order, and
// reports each as device 0.
thread_local int32_t snapshots_read = 0;

class Admission {
 public:
  Admission(DeviceIndex index, size_t n) : index_(index) {
    auto bytes = static_cast<int64_t>(std::min<size_t>(n, INT64_MAX / 2));
    admit_on_device(slot(index), bytes);
    admitted = bytes;
  }
  // Without its cache libtorch counts no blocks; nothing is counted here either.
  ~Admission() { dismiss_from_device(slot(index_), std::exchange(admitted, 0)); }
  Admission(const Admission &) = delete;
  Admission &operator=(const Admission &) = delete;

 private:
  DeviceIndex index_;
};

class Admitting final : public caching::CUDAAllocator {
 public:
  explicit Admitting(caching::CUDAAllocator *inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t n) override {
    return admit(n, [&] { return inner_->allocate(n); });
  }
  void *raw_alloc(size_t n) override {
    return admit(n, [&] { return inner_->raw_alloc(n); });
  }
  void *raw_alloc_with_stream(size_t n, cudaStream_t stream) override {
    return admit(n, [&] { return inner_->raw_alloc_with_stream(n, stream); });
  }

  // Sets what the caching allocator may hold: the limit, or what it held when the limit was too little for what
  // had been admitted; the whole device during such an attempt.
  void apply_limit(DeviceIndex index) {
    auto may_hold = [&]() -> int64_t {
      if (trying_[index].load() != 0) return 0;
      int64_t limit = limit_on_device(slot(index));
      return limit == 0 ? 0 : std::max(limit, held_[index].load());
    };
    cudaDeviceProp p;
    C10_CUDA_CHECK(cudaGetDeviceProperties(&p, index));
    auto total = static_cast<int64_t>(p.totalGlobalMem);
    for (;;) {
      int64_t bytes = may_hold();
      double fraction = 1;
      // Half a byte more, so that the allocator's rounding results in these bytes.
      if (bytes > 0 && bytes < total) fraction = (static_cast<double>(bytes) + 0.5) / static_cast<double>(total);
      inner_->setMemoryFraction(fraction, index);
      // A thread that has set an older value finds out, and sets it again.
      if (may_hold() == bytes) return;
    }
  }

  void limit_anew(DeviceIndex index) {
    held_[index] = 0;
    apply_limit(index);
  }

  // An allocation that fails empties the cache of its own device only.
  void fail() {
    try {
      inner_->raw_delete(tried([&] { return inner_->raw_alloc(size_t{1} << 50); }));
    } catch (const c10::OutOfMemoryError &) {
    }
  }

  // libtorch asks for the end of streams' work, for which freed blocks wait, only when it is asked for memory.
  bool settle(DeviceIndex index, bool wait) {
    if (freeing_[index].load() <= 0) return false;
    c10::cuda::CUDAGuard guard(index);
    auto ask = [&] {
      try {
        inner_->raw_delete(inner_->raw_alloc(1));
      } catch (const c10::OutOfMemoryError &) {  // it has asked nevertheless
      }
    };
    ask();
    if (wait) {
      c10::cuda::device_synchronize();
      ask();
    }
    return true;
  }
  // Counts a block of which the free was requested (n > 0) or is complete (n < 0).
  void count_freeing(DeviceIndex index, int64_t n) noexcept {
    if (index < kMaxSlots) freeing_[index].fetch_add(n, std::memory_order_relaxed);
  }

  // Everything else is forwarded to libtorch's.
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void *to, const void *from, size_t n) const override { inner_->copy_data(to, from, n); }
  bool initialized() override { return inner_->initialized(); }
  void emptyCache(MempoolId_t id) override { inner_->emptyCache(id); }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex d) override {
    return inner_->getDeviceStats(d);
  }
  void resetAccumulatedStats(DeviceIndex d) override { inner_->resetAccumulatedStats(d); }
  void resetPeakStats(DeviceIndex d) override { inner_->resetPeakStats(d); }
  void raw_delete(void *p) override { inner_->raw_delete(p); }
  void init(int n) override { inner_->init(n); }
  double getMemoryFraction(DeviceIndex d) override { return inner_->getMemoryFraction(d); }
  void setMemoryFraction(double fraction, DeviceIndex d) override { inner_->setMemoryFraction(fraction, d); }
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex d) override {
    return inner_->getExpandableSegmentSizes(d);
  }
  void enable(bool on) override { inner_->enable(on); }
  bool isEnabled() const override { return inner_->isEnabled(); }
  void cacheInfo(DeviceIndex d, size_t *largest) override { inner_->cacheInfo(d, largest); }
  void *getBaseAllocation(void *p, size_t *size) override { return inner_->getBaseAllocation(p, size); }
  void recordStream(const c10::DataPtr &p, c10::cuda::CUDAStream s) override { inner_->recordStream(p, s); }
  caching::SnapshotInfo snapshot(MempoolId_t id, bool traces) override { return inner_->snapshot(id, traces); }
  void beginAllocateToPool(DeviceIndex d, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override {
    inner_->beginAllocateToPool(d, id, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex d, MempoolId_t id) override { inner_->endAllocateToPool(d, id); }
  void releasePool(DeviceIndex d, MempoolId_t id) override { inner_->releasePool(d, id); }
  int getPoolUseCount(DeviceIndex d, MempoolId_t id) override { return inner_->getPoolUseCount(d, id); }
  void createOrIncrefPool(DeviceIndex d, MempoolId_t id, std::shared_ptr<CUDAAllocator> a) override {
    inner_->createOrIncrefPool(d, id, std::move(a));
  }
  void setUseOnOOM(DeviceIndex d, MempoolId_t id, bool use) override { inner_->setUseOnOOM(d, id, use); }
  void setNoSplit(DeviceIndex d, MempoolId_t id) override { inner_->setNoSplit(d, id); }
  bool checkPoolLiveAllocations(DeviceIndex d, MempoolId_t id, const std::unordered_set<void *> &live) override {
    return inner_->checkPoolLiveAllocations(d, id, live);
  }
  caching::ShareableHandle shareIpcHandle(void *p) override { return inner_->shareIpcHandle(p); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return inner_->getIpcDevPtr(std::move(handle));
  }
  bool isHistoryEnabled() override { return inner_->isHistoryEnabled(); }
  void recordHistory(bool on, caching::CreateContextFn context, size_t most, caching::RecordContext when,
                     bool clear, const std::vector<std::string> &skip) override {
    inner_->recordHistory(on, context, most, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &md) override {
    inner_->recordAnnotation(md);
  }
  void pushCompileContext(std::string &md) override { inner_->pushCompileContext(md); }
  void popCompileContext() override { inner_->popCompileContext(); }
  void setUserMetadata(const std::string &metadata) override { inner_->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return inner_->getUserMetadata(); }
  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver o) override { inner_->attachOutOfMemoryObserver(o); }
  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker t) override {
    inner_->attachAllocatorTraceTracker(t);
  }
  void enablePeerAccess(DeviceIndex from, DeviceIndex to) override { inner_->enablePeerAccess(from, to); }
  cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                          cudaStream_t stream, bool p2p) override {
    return inner_->memcpyAsync(to, to_device, from, from_device, n, stream, p2p);
  }
  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex d, MempoolId_t id) override {
    return inner_->getCheckpointState(d, id);
  }
  caching::CheckpointDelta setCheckpointPoolState(DeviceIndex d,
                                                  std::shared_ptr<caching::AllocatorState> s) override {
    return inner_->setCheckpointPoolState(d, std::move(s));
  }
  std::string name() override { return inner_->name(); }
#if LS_TORCH_AT_LEAST(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *p) override {
    return inner_->getContextForPointer(p);
  }
  void attachOomRejectionObserver(caching::OomRejectionObserver o) override {
    inner_->attachOomRejectionObserver(o);
  }
#endif
#if LS_TORCH_AT_LEAST(13)
  void markCaptureBegin(DeviceIndex d) override { inner_->markCaptureBegin(d); }
  void markCaptureEnd(DeviceIndex d) override { inner_->markCaptureEnd(d); }
  c10::DataPtr allocateWithAddress(size_t n, void *p) override { return inner_->allocateWithAddress(n, p); }
#endif
#if LS_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() override { return inner_->supportsUserMetadata(); }
  void annotateMemory(const void *p, const std::string &metadata) override { inner_->annotateMemory(p, metadata); }
#endif

 private:
  caching::CUDAAllocator *inner_;
  std::atomic<int> trying_[kMaxSlots] = {};
  std::atomic<int64_t> held_[kMaxSlots] = {};
  std::atomic<int64_t> freeing_[kMaxSlots] = {};  // bytes of freed blocks that wait for the work of streams

  // Calls allocate. Where CUDA has no memory, libtorch throws another error without its cache.
  template <class F>
  static auto tried(F allocate) -> decltype(allocate()) {
    try {
      return allocate();
    } catch (const c10::AcceleratorError &e) {
      if (e.get_error_code() != cudaErrorMemoryAllocation) throw;
      C10_THROW_ERROR(OutOfMemoryError, e.what_without_backtrace());
    }
  }

  template <class F>
  auto admit(size_t n, F allocate) -> decltype(allocate()) {
    DeviceIndex index = 0;
    if (n == 0 || c10::cuda::GetDevice(&index) != cudaSuccess || index >= kMaxSlots) return allocate();
    Admission admission(index, n);
    auto bytes = static_cast<int64_t>(n);
    std::exception_ptr failure;
    Rounds rounds;
    do {
      try {
        return tried(allocate);
      } catch (const c10::OutOfMemoryError &) {
        failure = std::current_exception();
      }
    } while (sweep_for_device(slot(index), bytes, rounds));
    if (limit_on_device(slot(index)) != 0) {
      More more(*this, index);
      apply_limit(index);
      try {
        return tried(allocate);
      } catch (const c10::OutOfMemoryError &) {
      }
    }
    failed_on_device(slot(index), bytes);
    std::rethrow_exception(failure);
  }

  // While it exists, apply_limit lets the caching allocator hold all of the device's memory. Its end restores the
  // limit, also after an error of that apply_limit.
  struct More {
    Admitting &a;
    DeviceIndex index;
    More(Admitting &a, DeviceIndex index) : a(a), index(index) { a.trying_[index].fetch_add(1); }
    ~More() {
      a.trying_[index].fetch_sub(1);
      try {
        constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
        a.held_[index] = a.inner_->getDeviceStats(index).reserved_bytes[all].current;
        a.apply_limit(index);
      } catch (const c10::Error &) {
        // The device was lost meanwhile: the next call that uses it reports that.
      }
    }
  };
};

// Leaked on purpose: libtorch uses it until the process ends.
Admitting *admitting = nullptr;

}  // namespace

void stand_before_allocator() {
  auto *inner = caching::get();
  admitting = new Admitting(inner);
  // Counts each block, so that the core knows the live bytes without the device's lock.
  inner->attachAllocatorTraceTracker([](const auto &e) {
    using Entry = std::decay_t<decltype(e)>;
    auto *p = reinterpret_cast<void *>(e.addr_);
    auto size = static_cast<int64_t>(e.size_);
    auto note = [&](int32_t kind) { note_on_device(slot(e.device_), kind, e.addr_, size, e.stream_); };
    switch (e.action_) {
      case Entry::ALLOC:
        return count_on_device(slot(e.device_), p, size, std::exchange(admitted, 0), e.stream_);
      case Entry::FREE_REQUESTED:
        admitting->count_freeing(e.device_, size);
        return note(LS_EVENT_FREE_REQUESTED);
      case Entry::FREE_COMPLETED:
        admitting->count_freeing(e.device_, -size);
        return count_on_device(slot(e.device_), p, -size, 0, e.stream_);
      case Entry::SEGMENT_ALLOC:
        note(LS_EVENT_SEGMENT_ALLOCATED);
        return reserved_on_device(slot(e.device_), size);
      case Entry::SEGMENT_FREE:
        note(LS_EVENT_SEGMENT_FREED);
        return reserved_on_device(slot(e.device_), -size);
      case Entry::SEGMENT_MAP:
        note(LS_EVENT_SEGMENT_MAPPED);
        return reserved_on_device(slot(e.device_), size);
      case Entry::SEGMENT_UNMAP:
        note(LS_EVENT_SEGMENT_UNMAPPED);
        return reserved_on_device(slot(e.device_), -size);
      case Entry::SNAPSHOT:
        return note_on_device(slot(snapshots_read++), LS_EVENT_SNAPSHOT, 0, size, nullptr);
      default:  // OOM: another attempt may succeed; the final failure is recorded where it is reported
        return;
    }
  });
  caching::allocator.store(admitting);
}

void snapshot_begins() { snapshots_read = 0; }

void limit_reserved(int32_t index) { admitting->limit_anew(static_cast<DeviceIndex>(index)); }

bool settle_frees(int32_t index, bool wait) { return admitting->settle(static_cast<DeviceIndex>(index), wait); }

void release_cache_of_current_device() { admitting->fail(); }

}  // namespace ls

// The CPU allocator that counts. It has libtorch's own alignment and zero-size behaviour, since it asks
// libtorch's own functions for the memory; what it adds is the count, and a typed out-of-memory error.
#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include "shim.h"

namespace ls {

std::atomic<int64_t> live_handles{0};

namespace {

std::atomic<int64_t> allocated{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> allocations{0};
std::atomic<int64_t> frees{0};

void count_in(void *p) noexcept {
  int64_t now = static_cast<int64_t>(malloc_usable_size(p));
  now += allocated.fetch_add(now, std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
  int64_t high = peak.load(std::memory_order_relaxed);
  while (now > high && !peak.compare_exchange_weak(high, now, std::memory_order_relaxed)) {
  }
}

void free_counted(void *p) noexcept {
  if (p == nullptr) return;
  allocated.fetch_sub(static_cast<int64_t>(malloc_usable_size(p)), std::memory_order_relaxed);
  frees.fetch_add(1, std::memory_order_relaxed);
  c10::free_cpu(p);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    void *p = nullptr;
    if (n != 0) {
      try {
        p = c10::alloc_cpu(n);
      } catch (const c10::Error &e) {
        // alloc_cpu throws a plain Error, and nothing but a failed allocation makes it throw.
        C10_THROW_ERROR(OutOfMemoryError, e.what_without_backtrace());
      }
      count_in(p);
    }
    return {p, p, &free_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void *dest, const void *src, size_t n) const override { default_copy_data(dest, src, n); }
};

}  // namespace
}  // namespace ls

uint32_t ls_abi(void) noexcept { return LS_ABI; }

ls_error *ls_init(void) noexcept {
  return ls::run_void([] {
    // Leaked on purpose: memory is freed through it until the process ends.
    static bool once = [] {
      c10::SetCPUAllocator(new ls::CountingAllocator, /*priority=*/1);
      return true;
    }();
    (void)once;
  });
}

ls_error *ls_memory_stats(int32_t device, ls_memory *out) noexcept {
  return ls::run_void([&] {
    if (!ls::device_of(device).is_cpu()) throw ls::ArgumentError("memory: only the CPU is counted");
    *out = {ls::allocated.load(), ls::peak.load(), ls::allocations.load(), ls::frees.load(), ls::live_handles.load()};
  });
}

ls_error *ls_memory_reset_peak(int32_t device) noexcept {
  return ls::run_void([&] {
    if (!ls::device_of(device).is_cpu()) throw ls::ArgumentError("memory: only the CPU is counted");
    ls::peak.store(ls::allocated.load());
  });
}

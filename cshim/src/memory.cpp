// The CPU allocator that counts, and keeps large blocks. It has libtorch's own alignment and zero-size behaviour,
// since it asks libtorch's own functions for the memory; what it adds is the count, a typed out-of-memory error,
// and a cache: a block of 64 KiB and more that is freed stays for the next one of its size, on any thread. Without
// it large blocks go back to the kernel and come again as fresh pages at every step, which makes evaluation of a
// GPT 1.1 to 1.4 times slower by the luck of the heap's layout alone (docs/decisions/0002-block-cache.md).
#include <ATen/Context.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "shim.h"

namespace ls {

namespace {

// A counter for each thread; that of a thread that ended goes to the next one that starts, as it stands.
struct HandleCounts {
  struct alignas(64) Line {
    std::atomic<int64_t> n{0};
  };
  std::mutex mutex;
  std::vector<Line *> all, free;

  static HandleCounts &get() {
    static auto *c = new HandleCounts;
    return *c;
  }
  int64_t sum() {
    std::lock_guard<std::mutex> lock(mutex);
    int64_t total = 0;
    for (auto *line : all) total += line->n.load(std::memory_order_relaxed);
    return total;
  }
};

struct HandleCountOfThread {
  HandleCounts::Line *line = nullptr;
  ~HandleCountOfThread() {
    // What this thread frees from here on (destructors of other thread locals) goes to a new line.
    words.handles = nullptr;
    auto &c = HandleCounts::get();
    std::lock_guard<std::mutex> lock(c.mutex);
    c.free.push_back(line);
  }
};

std::atomic<int64_t> allocated{0};
std::atomic<int64_t> peak{0};
std::atomic<int64_t> allocations{0};
std::atomic<int64_t> frees{0};

void count_in(int64_t n) noexcept {
  int64_t now = n + allocated.fetch_add(n, std::memory_order_relaxed);
  allocations.fetch_add(1, std::memory_order_relaxed);
  int64_t high = peak.load(std::memory_order_relaxed);
  while (now > high && !peak.compare_exchange_weak(high, now, std::memory_order_relaxed)) {
  }
}

void count_out(int64_t n) noexcept {
  allocated.fetch_sub(n, std::memory_order_relaxed);
  frees.fetch_add(1, std::memory_order_relaxed);
}

// Free blocks by size class: each power of two from 64 KiB is cut in eight, so at most an eighth is wasted.
class BlockCache {
 public:
  static constexpr size_t kSmallest = size_t{1} << 16;

  // The bytes of the class that holds n, or n itself beyond the last class.
  static size_t rounded(size_t n) {
    size_t step = step_of(n);
    return (n + step - 1) / step * step;
  }

  void *take(size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto &list = lists_[index(size)];
    if (list.empty()) return nullptr;
    void *p = list.back();
    list.pop_back();
    cached_ -= size;
    return p;
  }

  bool put(void *p, size_t size) noexcept {
    try {
      std::lock_guard<std::mutex> lock(mutex_);
      lists_[index(size)].push_back(p);
      cached_ += size;
      return true;
    } catch (...) {
      return false;
    }
  }

  // Frees cached blocks, the largest first, until no more than `keep` bytes are left.
  void shrink(size_t keep) noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = kClasses; i-- > 0 && cached_ > keep;) {
      auto &list = lists_[i];
      while (!list.empty() && cached_ > keep) {
        cached_ -= size_of(i);
        c10::free_cpu(list.back());
        list.pop_back();
      }
    }
  }

  size_t cached() noexcept {
    std::lock_guard<std::mutex> lock(mutex_);
    return cached_;
  }

  // The class of a block by what malloc gave for it. What malloc adds is less than the distance of two classes.
  static size_t from_usable(size_t usable) { return usable / step_of(usable) * step_of(usable); }

  static bool caches(size_t size) { return size >= kSmallest && size < (kSmallest << kDoublings); }

 private:
  static constexpr size_t kDoublings = 24;  // to 1 TiB
  static constexpr size_t kClasses = 8 * kDoublings;

  static size_t log2(size_t n) { return 63 - static_cast<size_t>(__builtin_clzll(n)); }
  static size_t step_of(size_t n) { return size_t{1} << (log2(n) - 3); }
  static size_t index(size_t size) { return (log2(size) - 16) * 8 + (size / step_of(size) - 8); }
  static size_t size_of(size_t i) { return (8 + i % 8) << (i / 8 + 13); }

  std::mutex mutex_;
  std::vector<void *> lists_[kClasses];
  size_t cached_ = 0;
};

// Leaked on purpose: memory is freed through it until the process ends.
BlockCache &cache() {
  static auto *c = new BlockCache;
  return *c;
}

// Live and cached bytes together stay within 1.25 of the peak of the live ones.
void make_room(size_t size) noexcept {
  auto live = static_cast<size_t>(allocated.load(std::memory_order_relaxed)) + size;
  auto high = std::max(live, static_cast<size_t>(peak.load(std::memory_order_relaxed)));
  size_t limit = high + high / 4;
  cache().shrink(limit > live ? limit - live : 0);
}

void *allocate_or_throw(size_t n) {
  try {
    return c10::alloc_cpu(n);
  } catch (const c10::Error &) {
    // alloc_cpu throws a plain Error, and nothing but a failed allocation makes it throw.
  }
  cache().shrink(0);
  try {
    return c10::alloc_cpu(n);
  } catch (const c10::Error &e) {
    C10_THROW_ERROR(OutOfMemoryError, e.what_without_backtrace());
  }
}

// Sizes are whole grains, and what malloc adds by the luck of its free lists is less than one: equal tensors count
// equally.
constexpr size_t kGrain = 64;
size_t counted(void *p) noexcept { return malloc_usable_size(p) / kGrain * kGrain; }

void free_counted(void *p) noexcept {
  if (p == nullptr) return;
  size_t n = counted(p);
  if (BlockCache::caches(n)) {
    n = BlockCache::from_usable(n);
    count_out(static_cast<int64_t>(n));
    if (cache().put(p, n)) return;
  } else {
    count_out(static_cast<int64_t>(n));
  }
  c10::free_cpu(p);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    void *p = nullptr;
    if (BlockCache::caches(n)) {
      n = BlockCache::rounded(n);
      p = BlockCache::caches(n) ? cache().take(n) : nullptr;
      if (p == nullptr) {
        make_room(n);
        p = allocate_or_throw(n);
      }
      count_in(static_cast<int64_t>(n));
    } else if (n != 0) {
      p = allocate_or_throw((n + kGrain - 1) / kGrain * kGrain);
      count_in(static_cast<int64_t>(counted(p)));
    }
    return {p, p, &free_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void *dest, const void *src, size_t n) const override { default_copy_data(dest, src, n); }
};

}  // namespace

std::atomic<int64_t> *new_handle_count() noexcept {
  auto &c = HandleCounts::get();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (c.free.empty()) {
    c.all.push_back(new HandleCounts::Line);
    c.free.reserve(c.all.size());
    c.free.push_back(c.all.back());
  }
  static thread_local HandleCountOfThread mine;
  if (mine.line == nullptr) {
    mine.line = c.free.back();
    c.free.pop_back();
    return &mine.line->n;
  }
  // The thread is ending, and its own line may be another's already: this one is nobody's.
  static HandleCounts::Line ends;
  static bool listed = (c.all.push_back(&ends), true);
  (void)listed;
  return &ends.n;
}

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
    *out = {ls::allocated.load(),   ls::peak.load(),  static_cast<int64_t>(ls::cache().cached()),
            ls::allocations.load(), ls::frees.load(), ls::HandleCounts::get().sum()};
  });
}

ls_error *ls_memory_reset_peak(int32_t device) noexcept {
  return ls::run_void([&] {
    if (!ls::device_of(device).is_cpu()) throw ls::ArgumentError("memory: only the CPU is counted");
    ls::peak.store(ls::allocated.load());
  });
}

ls_error *ls_memory_empty_cache(int32_t device) noexcept {
  return ls::run_void([&] {
    if (!ls::device_of(device).is_cpu()) throw ls::ArgumentError("memory: only the CPU has a cache of ours");
    ls::cache().shrink(0);
  });
}

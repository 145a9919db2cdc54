// The caching, counting CPU allocator. Alignment and zero-size behaviour are libtorch's. It adds byte counts,
// limits, a typed out-of-memory error, and two caches:
//
// - Blocks of 64 KiB and more are cut from mapped ranges and merged with them again (ranges.h). malloc would
//   return them to the kernel and map fresh pages at every step: a GPT's evaluation is then 1.1 to 1.4 times
//   slower, a CNN's training step twice as slow (docs/decisions/0002-block-cache.md). malloc's arenas also grow
//   where sizes vary.
// - Smaller blocks stay in a free list of the thread that frees them, without a lock: malloc's aligned allocation
//   is slow.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Logging.h>
#include <malloc.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#ifdef __linux__
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "classes.h"
#include "device.h"
#include "memory.h"
#include "meta.h"
#include "ranges.h"
#include "saved.h"
#include "stream.h"

namespace ls {

namespace {

#if defined(__SANITIZE_ADDRESS__)
// AddressSanitizer misses uses after free of cached blocks, and writes beside blocks that are not malloc's.
constexpr bool kKeepSmall = false, kUseRanges = false;
#else
constexpr bool kKeepSmall = true, kUseRanges = true;
#endif

// Block sizes are multiples of kQuantum. The last 8 bytes of malloc's block, its footer, hold the requested size.
// These 8 bytes cost nothing: malloc's own header already pushes the block into the next size.
constexpr size_t kQuantum = 64;
constexpr size_t kFooter = 8;
constexpr uint64_t kSampledBlock = uint64_t{1} << 63;

// Blocks of this size and more are ranges. Their sizes are those of size classes, eight to each power of two, so
// that at most an eighth is wasted.
constexpr size_t kSmallestLarge = Ranges::kSmallest;
constexpr size_t kLargestMiddle = size_t{1} << 20;  // blocks below and above it come from separate ranges

// The bytes of the class that holds n.
size_t class_rounded(size_t n) noexcept {
  size_t step = step_of(n);
  return (n + step - 1) / step * step;
}

// Reports whether a block of this rounded size is a range, not malloc's.
constexpr bool in_range(size_t size) { return kUseRanges && size >= Ranges::kSmallest && size < Ranges::kLargest; }

uint64_t &footer_of(void *p, size_t usable) noexcept {
  return *reinterpret_cast<uint64_t *>(static_cast<char *>(p) + usable / 8 * 8 - kFooter);
}

// Small blocks: a class for each multiple of kQuantum up to 1 KiB, then eight to each power of two up to 64 KiB.
constexpr size_t kSmallClasses = 16 + 6 * 8;
constexpr size_t kLargestSmall = 60 << 10;  // more than that is rounded to a large block
size_t small_rounded(size_t n) noexcept {
  return n <= 1024 ? (n + kQuantum - 1) / kQuantum * kQuantum : class_rounded(n);
}
size_t small_index(size_t size) noexcept {
  return size <= 1024 ? size / kQuantum - 1 : 15 + class_of(size) - class_of(1024);
}

// While set, threads have no credit: memory is scarce (set_credit_disabled), or the peak is to be exact
// (exact_peaks calls of ls_memory_exact_peak). Written under Heaps::mutex.
std::atomic<bool> credit_disabled{false};
bool credit_scarce = false;
int64_t exact_peaks = 0;

// A thread sets `busy`, then reads `credit_disabled`; update_credit writes that, then reads `busy`. Both need a
// fence between the two. update_credit has the kernel execute both fences (membarrier), so that allocations, which
// are frequent, execute none.
#ifdef __linux__
bool kernel_fences = false;
void register_fences() noexcept {
  kernel_fences = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
}
bool fence_all_threads() noexcept {
  return !kernel_fences || syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
}
#else
constexpr bool kernel_fences = false;
void register_fences() noexcept {}
bool fence_all_threads() noexcept { return true; }
#endif

// A thread's counters and free lists. Only the thread writes them, except for update_credit; any thread may
// read the counters. When a thread ends, the next one that starts takes its ThreadHeap over unchanged.
struct alignas(64) ThreadHeap {
  static constexpr int64_t kCredit = 32 << 10;  // bytes reserved in the account at once
  static constexpr int64_t kKeep = 256 << 10;   // most bytes of small free blocks in the lists

  HandleCount handles;
  std::atomic<int64_t> credit{0};  // bytes reserved in the account and not allocated
  std::atomic<bool> busy{false};   // the thread is using credit: no other thread writes it
  // Bytes that this thread has allocated less those that it has freed, in whole blocks and as requested. The
  // account cannot give these: between its update and that of `credit` it counts bytes that are not in use.
  std::atomic<int64_t> given{0}, requested{0};
  std::atomic<int64_t> allocations{0}, frees{0};
  std::atomic<int64_t> kept{0};
  int64_t to_sample = 0;
  uint64_t epoch = 0;
  void *lists[kSmallClasses] = {};
  ThreadHeap *next = nullptr, *next_free = nullptr;  // guarded by Heaps::mutex

  static void add(std::atomic<int64_t> &c, int64_t n) noexcept {
    c.store(c.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  // Calls use(credit), which returns the new credit, unless credit is disabled.
  template <class Use>
  void use_credit(Use use) noexcept {
    if (__builtin_expect(kernel_fences, 1)) {
      busy.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);
    } else {
      busy.store(true);
    }
    if (__builtin_expect(!credit_disabled.load(), 1))
      credit.store(use(credit.load(std::memory_order_relaxed)), std::memory_order_relaxed);
    busy.store(false, std::memory_order_release);
  }
  // Takes n bytes from the credit. Returns false where there are fewer.
  bool take(int64_t n) noexcept {
    bool taken = false;
    use_credit([&](int64_t left) {
      taken = left >= n;
      return taken ? left - n : left;
    });
    return taken;
  }
  // Adds n bytes to the credit; the excess, or all where credit is disabled, goes back to the account.
  void put(int64_t n) noexcept {
    int64_t back = n;
    use_credit([&](int64_t left) {
      left += n;
      back = left > 2 * kCredit ? left - kCredit : 0;
      return left - back;
    });
    if (__builtin_expect(back != 0, 0)) release(kCpuSlot, back);
  }
  void drop_kept() noexcept {
    for (auto *&list : lists) {
      while (list != nullptr) {
        void *next = *static_cast<void **>(list);
        c10::free_cpu(list);
        list = next;
      }
    }
    kept.store(0, std::memory_order_relaxed);
  }
};

std::atomic<uint64_t> heaps_epoch{1};

// Publishes a thread's count of handles and returns the change since the last call.
int64_t unpublished(HandleCount &n) noexcept {
  int64_t net = n.made.load(std::memory_order_relaxed) - n.freed.load(std::memory_order_relaxed);
  return net - n.pushed.exchange(net);
}

struct Heaps {
  std::mutex mutex;
  ThreadHeap *all = nullptr, *free = nullptr;
  // For threads that start when there is no memory for a ThreadHeap: without one a thread cannot even free. They
  // are reused through `free`.
  static constexpr int kReserve = 64;
  ThreadHeap reserve[kReserve];
  int reserve_used = 0;

  static Heaps &get() { return instance; }
  static Heaps instance;
  struct Sum {
    int64_t made = 0, freed = 0, credit = 0, given = 0, requested = 0, allocations = 0, frees = 0, kept = 0,
            unpublished = 0;
  };
  // publish: also publishes the counts of handles.
  Sum sum(bool publish = false) {
    std::lock_guard<std::mutex> lock(mutex);
    Sum s;
    for (auto *h = all; h != nullptr; h = h->next) {
      if (publish) s.unpublished += unpublished(h->handles);
      s.made += h->handles.made.load(std::memory_order_relaxed);
      s.freed += h->handles.freed.load(std::memory_order_relaxed);
      s.credit += h->credit.load(std::memory_order_relaxed);
      s.given += h->given.load(std::memory_order_relaxed);
      s.requested += h->requested.load(std::memory_order_relaxed);
      s.allocations += h->allocations.load(std::memory_order_relaxed);
      s.frees += h->frees.load(std::memory_order_relaxed);
      s.kept += h->kept.load(std::memory_order_relaxed);
    }
    return s;
  }
  ThreadHeap *take() {
    std::lock_guard<std::mutex> lock(mutex);
    if (auto *h = free; h != nullptr) {
      free = h->next_free;
      return h;
    }
    auto *h = new (std::nothrow) ThreadHeap;
    if (h == nullptr) {
      if (reserve_used == kReserve) std::abort();
      h = &reserve[reserve_used++];
    }
    h->next = all;
    all = h;
    return h;
  }
  void put(ThreadHeap *h) {
    std::lock_guard<std::mutex> lock(mutex);
    h->next_free = free;
    free = h;
  }
};

constinit Heaps Heaps::instance;

// A plain pointer: it can be read while the thread's destructors run.
thread_local ThreadHeap *heap_of_thread __attribute__((tls_model("initial-exec"))) = nullptr;

struct HeapOfThread {
  ~HeapOfThread() {
    // If a destructor of another thread-local allocates after this, it takes a ThreadHeap that is never returned.
    // That is rare, and the heap is only empty.
    auto *h = heap_of_thread;
    heap_of_thread = nullptr;
    words.handles = nullptr;
    if (h == nullptr) return;
    push_handles(h->handles);
    Heaps::get().put(h);
  }
};

ThreadHeap &new_heap() noexcept {
  static thread_local HeapOfThread end;
  (void)end;
  heap_of_thread = Heaps::get().take();
  words.handles = &heap_of_thread->handles;
  return *heap_of_thread;
}

inline ThreadHeap &heap() noexcept {
  auto *h = heap_of_thread;
  return __builtin_expect(h != nullptr, 1) ? *h : new_heap();
}

// Never destroyed: memory is freed through it until the process ends.
struct Large {
  Ranges middle{kLargestMiddle};
  Ranges large{0};

  Ranges &of(size_t size) noexcept { return size < kLargestMiddle ? middle : large; }
  static Large &get() {
    static auto *l = new Large;
    return *l;
  }
};

size_t cached_large() noexcept {
  auto &l = Large::get();
  return l.middle.free_bytes() + l.large.free_bytes();
}

size_t shrink_large(size_t keep) noexcept {
  auto &l = Large::get();
  size_t middle = l.middle.free_bytes();
  size_t freed = l.large.shrink(keep > middle ? keep - middle : 0);
  return freed + l.middle.shrink(keep);
}

// Shrinks the cache so that live and cached bytes together stay below the limit and below 1.25 times the peak of
// the live bytes, or the peak + 16 MiB where that is more.
void make_room() noexcept {
  auto &a = accounts[kCpuSlot];
  auto live = static_cast<size_t>(a.live.load(std::memory_order_relaxed));
  auto high = std::max(live, static_cast<size_t>(a.peak.load(std::memory_order_relaxed)));
  constexpr size_t kAlways = 16 << 20;
  size_t most =
      std::min(high + std::max(high / 4, kAlways), static_cast<size_t>(a.limit.load(std::memory_order_relaxed)));
  auto kept = static_cast<size_t>(Heaps::get().sum().kept);
  shrink_large(most > live + kept ? most - live - kept : 0);
}

void *alloc_or_null(size_t n) noexcept {
  if (fault(LS_FAULT_SYSTEM)) return nullptr;
  try {
    return c10::alloc_cpu(n);
  } catch (...) {
    // alloc_cpu throws a plain Error, and only for a failed allocation.
    return nullptr;
  }
}

// Returns get(), which allocates n admitted bytes. While the system refuses memory it first empties the caches,
// then waits for rounds of the pacer.
template <class Get>
auto get_or_throw(size_t n, size_t asked, Get get) {
  auto p = get();
  if (__builtin_expect(p != nullptr, 1)) return p;
  Rounds rounds;
  do {
    shrink_large(0);
    heap().drop_kept();
    if ((p = get()) != nullptr) return p;
  } while (wait_for_system(kCpuSlot, static_cast<int64_t>(n), rounds));
  out_of_memory(kCpuSlot, static_cast<int64_t>(asked),
                ("out of memory: the system has no " + std::to_string(asked) + " bytes").c_str(),
                static_cast<int64_t>(n));
}

// Returns malloc's block of n bytes and the footer.
void *allocate_or_throw(size_t n, size_t asked) {
  return get_or_throw(n, asked, [n] { return alloc_or_null(n + kFooter); });
}

// Counts an allocation. The footer stores the requested size and whether the block is a sample.
inline void note_allocated(ThreadHeap &h, void *p, uint64_t &footer, size_t asked, int64_t n) noexcept {
  ThreadHeap::add(h.given, n);
  ThreadHeap::add(h.requested, static_cast<int64_t>(asked));
  ThreadHeap::add(h.allocations, 1);
  footer = asked;
  if (__builtin_expect((h.to_sample -= n) < 0, 0)) {
    if (sample_rate.load(std::memory_order_relaxed) != 0) {
      footer |= kSampledBlock;
      sample_allocated(p, n, static_cast<int64_t>(asked), kCpuSlot);
    }
    h.to_sample = next_sample();
  }
}

// Applies the requests of all_threads_catch_up: an empty cache, a new sampling rate.
inline void catch_up(ThreadHeap &h) noexcept {
  uint64_t epoch = heaps_epoch.load(std::memory_order_relaxed);
  if (__builtin_expect(h.epoch != epoch, 0)) {
    h.drop_kept();
    h.to_sample = next_sample();
    h.epoch = epoch;
  }
}

void *allocate_small(size_t asked) {
  auto &h = heap();
  catch_up(h);
  size_t size = small_rounded(asked);
  auto n = static_cast<int64_t>(size);
  if (__builtin_expect(!h.take(n), 0)) {
    int64_t live = 0;
    if (!credit_disabled.load() && try_admit(kCpuSlot, n + ThreadHeap::kCredit, live)) {
      count_admitted(kCpuSlot, n + ThreadHeap::kCredit, live - ThreadHeap::kCredit);
      h.put(ThreadHeap::kCredit);
    } else {
      live = enter(kCpuSlot, n, static_cast<int64_t>(asked));
      count_admitted(kCpuSlot, n, live);
    }
  }
  void *p;
  auto *&list = h.lists[small_index(size)];
  if (list != nullptr) {
    p = list;
    list = *static_cast<void **>(p);
    ThreadHeap::add(h.kept, -n);
  } else {
    try {
      p = allocate_or_throw(size, asked);
    } catch (...) {
      h.put(n);
      throw;
    }
  }
  note_allocated(h, p, footer_of(p, malloc_usable_size(p)), asked, n);
  return p;
}

void *allocate_large(size_t asked) {
  if (asked > static_cast<size_t>(kLargestAdmitted))
    out_of_memory(kCpuSlot, static_cast<int64_t>(std::min<size_t>(asked, INT64_MAX)),
                  "out of memory: the size exceeds the address space");
  size_t size = class_rounded(asked);
  auto n = static_cast<int64_t>(size);
  int64_t live = enter(kCpuSlot, n, static_cast<int64_t>(asked));
  void *p;
  uint64_t *footer;
  try {
    if (in_range(size)) {
      auto &ranges = Large::get().of(size);
      Ranges::Range *r = ranges.take(size);
      if (r == nullptr) {
        make_room();
        r = get_or_throw(size, asked, [&] { return fault(LS_FAULT_SYSTEM) ? nullptr : ranges.map(size); });
      }
      p = r->start;
      footer = &r->note;
    } else {
      make_room();
      p = allocate_or_throw(size, asked);
      footer = &footer_of(p, malloc_usable_size(p));
    }
  } catch (...) {
    withdraw(kCpuSlot, n);
    throw;
  }
  count_admitted(kCpuSlot, n, live);
  auto &h = heap();
  catch_up(h);
  note_allocated(h, p, *footer, asked, n);
  return p;
}

inline void note_freed(ThreadHeap &h, void *p, uint64_t footer, int64_t n) noexcept {
  if (__builtin_expect((footer & kSampledBlock) != 0, 0)) sample_freed(p, n, kCpuSlot);
  ThreadHeap::add(h.given, -n);
  ThreadHeap::add(h.requested, -static_cast<int64_t>(footer & ~kSampledBlock));
  ThreadHeap::add(h.frees, 1);
}

void free_counted(void *p) noexcept {
  if (p == nullptr) return;
  auto &h = heap();
  // The block enters the cache before the account is reduced: an allocation that is admitted then finds it.
  if (Ranges::Range *r = Ranges::find(p); r != nullptr) {
    auto n = static_cast<int64_t>(r->size);
    note_freed(h, p, r->note, n);
    r->owner->put(r);
    release(kCpuSlot, n);
    return;
  }
  // The size follows from the footer: how much more than that malloc's block has depends on the malloc.
  uint64_t footer = footer_of(p, malloc_usable_size(p));
  int64_t n = cpu_rounded(footer & ~kSampledBlock);
  auto size = static_cast<size_t>(n);
  note_freed(h, p, footer, n);
  if (size >= kSmallestLarge) {
    c10::free_cpu(p);
    release(kCpuSlot, n);
    return;
  }
  h.put(n);
  if (kKeepSmall && h.kept.load(std::memory_order_relaxed) + n <= ThreadHeap::kKeep) {
    auto *&list = h.lists[small_index(size)];
    *static_cast<void **>(p) = list;
    list = p;
    ThreadHeap::add(h.kept, n);
    return;
  }
  c10::free_cpu(p);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    if (n != 0 && fault(LS_FAULT_CPU))
      out_of_memory(kCpuSlot, static_cast<int64_t>(n), "out of memory: a fault was injected");
    void *p = n == 0 ? nullptr : n <= kLargestSmall ? allocate_small(n) : allocate_large(n);
    return {p, p, &free_counted, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_counted; }
  void copy_data(void *dest, const void *src, size_t n) const override { default_copy_data(dest, src, n); }
};

}  // namespace

bool counted(const c10::Storage &s) noexcept {
  if (s.device_type() != c10::DeviceType::CPU) return true;
  auto deleter = s.data_ptr().get_deleter();
  // With guard pages the allocator is another, which counts through this one.
  return deleter == &free_counted || deleter == c10::GetCPUAllocator()->raw_deleter();
}

int64_t cpu_rounded(size_t n) noexcept {
  return static_cast<int64_t>(n <= kLargestSmall ? small_rounded(n) : class_rounded(n));
}

HandleCount *new_handle_count() noexcept { return &heap().handles; }

namespace {
std::atomic<int64_t> handles_live{0}, handles_most{0};
}  // namespace

void push_handles(HandleCount &n) noexcept {
  int64_t delta = unpublished(n);
  raise(handles_most, handles_live.fetch_add(delta, std::memory_order_relaxed) + delta);
}

int64_t shrink_cpu_cache(int64_t keep) noexcept {
  if (keep == 0) {
    heaps_epoch.fetch_add(1);
    heap().drop_kept();
  }
  return static_cast<int64_t>(shrink_large(static_cast<size_t>(std::max<int64_t>(0, keep))));
}

int64_t requested_by_thread() noexcept { return heap().requested.load(std::memory_order_relaxed); }

void maybe_sample(void *p, int64_t n, int slot, uint64_t stream) noexcept {
  bool off = sample_rate.load(std::memory_order_relaxed) == 0;
  if (off && (n >= 0 || samples_on_devices.load(std::memory_order_relaxed) == 0)) return;
  if (n < 0) return sample_freed(p, -n, slot, stream);
  auto &h = heap();
  catch_up(h);
  if ((h.to_sample -= n) >= 0) return;
  sample_allocated(p, n, n, slot, stream);
  h.to_sample = next_sample();
}

// Threads allocate while they are summed; the account is never less than the bytes in use.
static int64_t in_use(const Heaps::Sum &sum) noexcept {
  return std::min(sum.given, accounts[kCpuSlot].live.load());
}

int64_t kept_small() noexcept { return Heaps::get().sum().kept; }

int64_t thread_credit() noexcept { return Heaps::get().sum().credit; }

// Called under Heaps::mutex.
static void update_credit(Heaps &heaps) noexcept {
  bool off = credit_scarce || exact_peaks > 0;
  if (credit_disabled.exchange(off) || !off) return;
  if (!fence_all_threads()) return;  // threads keep their credit until they use it again
  for (auto *h = heaps.all; h != nullptr; h = h->next) {
    while (h->busy.load()) std::this_thread::sleep_for(std::chrono::microseconds(10));
    if (int64_t credit = h->credit.exchange(0); credit != 0) release(kCpuSlot, credit);
  }
}

void set_credit_disabled(bool on) noexcept {
  auto &heaps = Heaps::get();
  std::lock_guard<std::mutex> lock(heaps.mutex);
  credit_scarce = on;
  update_credit(heaps);
}

void all_threads_catch_up() noexcept { heaps_epoch.fetch_add(1); }

int64_t cpu_cached() noexcept { return static_cast<int64_t>(cached_large()) + Heaps::get().sum().kept; }

void trim_malloc() noexcept {
#ifdef __GLIBC__
#if __GLIBC_PREREQ(2, 33)
  // All threads share oneDNN's cache of primitives. An entry that one thread made and another evicts is freed in
  // the first thread's arena, which does not shrink by itself.
  constexpr size_t kWorth = 16 << 20;
  auto m = mallinfo2();
  if (m.fordblks > std::max(kWorth, m.uordblks / 4)) malloc_trim(0);
#endif
#endif
}

void empty_all() noexcept {
  shrink_cpu_cache(0);
  empty_objects();
  // Neither during a capture, which the question whether a block is in use would end, nor after a loss.
  if (captures() == 0 && !any_lost())
    for (const auto &row : device_types)
      if (auto *devices = devices_of(row.type)) run_quiet([&] { devices->empty_pinned_cache(); });
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace ls

uint32_t ls_abi(void) noexcept {
  return ls::run_quiet([]() -> uint32_t { return LS_ABI; });
}

ls_error *ls_init(void) noexcept {
  return ls::run_void([] {
    // Never destroyed: memory is freed through it until the process ends.
    static bool once = [] {
      // Made here: the first use is often where nothing may throw.
      ls::register_fences();
      ls::Large::get();
      ls::make_pressure();
      ls::make_samples();
      c10::SetCPUAllocator(new ls::CountingAllocator, /*priority=*/1);
      ls::install_engine();
      ls::make_meta_allocator();
      ls::parallel = at::get_num_threads() > 1;
      ls::add_meta_kernels();
      ls::replace_kernels();
      ls::choose_vector_kernels();
      c10::initLogging();  // reads TORCH_CPP_LOG_LEVEL, as Python does
      // Only c10d prints the frames of an error, in its warnings: dozens of lines, none of a Go program.
      c10::SetStackTraceFetcher([] { return std::string(); });
      return true;
    }();
    (void)once;
  });
}

ls_error *ls_memory_stats(int32_t device, ls_memory *out) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    auto sum = ls::Heaps::get().sum(/*publish=*/true);
    ls::handles_live += sum.unpublished;
    *out = {};
    out->handles = sum.made - sum.freed;
    out->created = sum.made;
    ls::raise(ls::handles_most, out->handles);
    out->most_handles = ls::handles_most.load();
    auto &a = ls::accounts[slot];
    if (slot == ls::kCpuSlot) {
      out->allocated = ls::in_use(sum);
      out->peak = std::max(a.peak.load(), out->allocated);
      out->requested = sum.requested;
      out->cached = static_cast<int64_t>(ls::cached_large()) + sum.kept;
      out->reserved = out->allocated + out->cached;
      out->active = out->allocated;
      out->largest_free = -1;
      out->allocations = sum.allocations;
      out->frees = sum.frees;
      out->total = a.total.load();
    } else {
      auto d = ls::devices_at(slot).memory(ls::index_of(slot));
      out->allocated = d.allocated;
      out->peak = d.allocated_peak;
      out->requested = d.requested;
      out->reserved = d.reserved;
      out->cached = d.reserved - d.active;
      out->active = d.active;
      out->largest_free = d.largest_free;
      out->allocations = d.allocations;
      out->frees = d.frees;
      out->total = a.total.load();
    }
    int64_t limit = a.limit.load();
    out->limit = limit == INT64_MAX ? 0 : limit;
  });
}

ls_error *ls_memory_pace(int32_t device, ls_pace *out) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    auto &a = ls::accounts[slot];
    int64_t live = a.live.load(), limit = a.limit.load();
    out->total = a.total.load();
    out->freed = a.freed.load();
    out->low = a.low.load();
    out->live = live;
    out->reserved = slot == ls::kCpuSlot ? live + static_cast<int64_t>(ls::cached_large()) : a.reserved.load();
    out->limit = limit == INT64_MAX ? 0 : limit;
  });
}

ls_error *ls_memory_reset_peak(int32_t device) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    if (slot != ls::kCpuSlot) return ls::devices_at(slot).reset_peak(ls::index_of(slot));
    ls::accounts[slot].peak.store(ls::in_use(ls::Heaps::get().sum()));
  });
}

void ls_memory_exact_peak(int32_t on) noexcept {
  ls::run_quiet([&] {
    auto &heaps = ls::Heaps::get();
    std::lock_guard<std::mutex> lock(heaps.mutex);
    ls::exact_peaks = std::max<int64_t>(0, ls::exact_peaks + (on != 0 ? 1 : -1));
    ls::update_credit(heaps);
  });
}

ls_error *ls_memory_empty_cache(int32_t device) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    if (ls::empty_cache_after_capture(slot)) return;
    if (slot != ls::kCpuSlot) return ls::devices_at(slot).empty_cache(ls::index_of(slot));
    ls::empty_all();
  });
}

ls_error *ls_memory_trim(int32_t device, int64_t keep, int64_t *freed) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    *freed = 0;
    if (slot == ls::kCpuSlot) *freed = ls::shrink_cpu_cache(std::max<int64_t>(keep, 1));
  });
}

ls_error *ls_memory_capacity(int32_t device, int64_t *free, int64_t *total) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    if (slot == ls::kCpuSlot)
      throw ls::ArgumentError("capacity: want a device other than the CPU; ask the system for the CPU's memory");
    ls::devices_at(slot).capacity(ls::index_of(slot), free, total);
  });
}

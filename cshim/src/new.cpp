// A cache in front of malloc for the small objects that libtorch makes with new: tensors, storages, nodes of the
// autograd graph, lists. The shim is the first library in which the loader looks for the symbols of libtorch and
// libstdc++, so their operator new and delete are these.
//
// glibc keeps seven free chunks of a size for each thread; beyond them a thread takes the lock of its arena, and
// the free of a large block coalesces the small ones. Here each thread keeps a list of free chunks for each size.
// A thread that frees more than it allocates, such as one that sweeps, hands batches over through a store.
//
// Invariants:
//   1. Every chunk is malloc's. free takes what operator new has returned, and operator delete what malloc has.
//   2. A list has fewer than limits[size] chunks, the store at most kBatches batches for each size.
//   3. A thread that ends frees its lists.
//
// docs/decisions/0047-small-objects.md
#include <cstddef>
#include <cstdint>

#include "memory.h"
#include "shim.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define LS_OBJECTS 1
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <new>

// malloc without the faults of src/faults.cpp, which are for the shim's own allocations.
extern "C" void *__real_malloc(size_t n);
#else
#define LS_OBJECTS 0
#endif

namespace ls {

#if LS_OBJECTS
namespace {

// A chunk has 8 bytes of malloc's and at least 16 of the caller's. Sizes are multiples of 16, numbered from 2.
constexpr size_t kUnit = 16, kHeader = sizeof(size_t), kSizes = 65;
constexpr size_t kListBytes = 16 << 10, kBatches = 8;

struct Chunk {
  Chunk *next;
  Chunk *next_batch;  // of the first chunk of a batch in the store
};

struct List {
  Chunk *first;
  size_t length;
};

struct Lists {
  List of[kSizes];
};

constexpr size_t size_for(size_t bytes) noexcept {
  return (std::max(bytes, sizeof(Chunk)) + kHeader + kUnit - 1) / kUnit;
}
constexpr auto limits = [] {
  std::array<size_t, kSizes> a{};
  for (size_t size = 1; size < kSizes; size++) a[size] = std::clamp<size_t>(kListBytes / (size * kUnit), 16, 128);
  return a;
}();

struct Store {
  std::mutex mutex;
  Chunk *first = nullptr;
  size_t batches = 0;

  Chunk *take() noexcept {
    std::lock_guard<std::mutex> lock(mutex);
    Chunk *batch = first;
    if (batch != nullptr) {
      first = batch->next_batch;
      batches--;
    }
    return batch;
  }
  bool put(Chunk *batch) noexcept {
    std::lock_guard<std::mutex> lock(mutex);
    if (batches == kBatches) return false;
    batch->next_batch = first;
    first = batch;
    batches++;
    return true;
  }
};

constinit Store stores[kSizes];
constinit std::atomic<bool> caching{false};

constinit Lists ended{};  // the lists of a thread that has ended: they stay empty
constinit thread_local Lists *lists __attribute__((tls_model("initial-exec"))) = nullptr;

void free_all(Chunk *c) noexcept {
  while (c != nullptr) free(std::exchange(c, c->next));
}

void free_lists(Lists &l) noexcept {
  for (auto &list : l.of) free_all(std::exchange(list, {}).first);
}

struct EndOfThread {
  ~EndOfThread() {
    auto *l = std::exchange(lists, &ended);
    free_lists(*l);
    free(l);
  }
};

// Returns the lists of the calling thread; nullptr if there is no cache, no memory for them, or the thread has
// ended.
Lists *own_lists() noexcept {
  if (lists == &ended || !caching.load(std::memory_order_relaxed)) return nullptr;
  if (lists == nullptr) {
    lists = static_cast<Lists *>(calloc(1, sizeof(Lists)));
    if (lists == nullptr) return nullptr;
    static thread_local EndOfThread end;
    (void)end;
  }
  return lists;
}

// Takes a batch from the store, or else a chunk from malloc. The thread's list of the size is empty.
void *refill(size_t bytes, size_t size) {
  if (auto *l = size < kSizes ? own_lists() : nullptr; l != nullptr) {
    if (Chunk *batch = stores[size].take(); batch != nullptr) {
      l->of[size] = {batch->next, limits[size] / 2 - 1};
      return batch;
    }
  }
  for (;;) {
    if (void *p = __real_malloc(std::max<size_t>(bytes, 1)); p != nullptr) return p;
    auto handler = std::get_new_handler();
    if (handler == nullptr) return nullptr;
    handler();
  }
}

inline void *new_object(size_t bytes) {
  size_t size = size_for(bytes);
  if (auto *l = lists; __builtin_expect(l != nullptr && size < kSizes, 1)) {
    auto &list = l->of[size];
    if (Chunk *c = list.first; __builtin_expect(c != nullptr, 1)) {
      list.first = c->next;
      list.length--;
      return c;
    }
  }
  return refill(bytes, size);
}

// Moves half of a full list to the store.
void hand_over(List &list, size_t size) noexcept {
  size_t n = limits[size] / 2;
  Chunk *batch = list.first, *last = batch;
  for (size_t k = 1; k < n; k++) last = last->next;
  list = {last->next, list.length - n};
  last->next = nullptr;
  if (!stores[size].put(batch)) free_all(batch);
}

inline void delete_object(void *p) noexcept {
  Lists *l = lists;
  if (__builtin_expect(l == nullptr || l == &ended, 0)) l = own_lists();
  if (p == nullptr || l == nullptr) return free(p);
  size_t size = (malloc_usable_size(p) + kHeader) / kUnit;
  if (size >= kSizes || size < size_for(0)) return free(p);
  auto &list = l->of[size];
  auto *c = static_cast<Chunk *>(p);
  c->next = list.first;
  list.first = c;
  if (__builtin_expect(++list.length == limits[size], 0)) hand_over(list, size);
}

}  // namespace

void empty_objects() noexcept {
  for (auto &store : stores)
    while (Chunk *batch = store.take()) free_all(batch);
  if (lists != nullptr && lists != &ended) free_lists(*lists);
}
#else
void empty_objects() noexcept {}
#endif

}  // namespace ls

int32_t ls_memory_cache_objects(int32_t on) noexcept {
  return ls::run_quiet([&]() -> int32_t {
#if LS_OBJECTS
    ls::caching.store(on != 0);
    if (on == 0) ls::empty_objects();
    return 1;
#else
    (void)on;
    return 0;
#endif
  });
}

#if LS_OBJECTS
void *operator new(size_t n) {
  if (void *p = ls::new_object(n); __builtin_expect(p != nullptr, 1)) return p;
  throw std::bad_alloc();
}
void *operator new[](size_t n) { return operator new(n); }
void *operator new(size_t n, const std::nothrow_t &) noexcept {
  try {
    return ls::new_object(n);
  } catch (...) {  // the new handler
    return nullptr;
  }
}
void *operator new[](size_t n, const std::nothrow_t &t) noexcept { return operator new(n, t); }
void operator delete(void *p) noexcept { ls::delete_object(p); }
void operator delete[](void *p) noexcept { ls::delete_object(p); }
void operator delete(void *p, size_t) noexcept { ls::delete_object(p); }
void operator delete[](void *p, size_t) noexcept { ls::delete_object(p); }
void operator delete(void *p, const std::nothrow_t &) noexcept { ls::delete_object(p); }
void operator delete[](void *p, const std::nothrow_t &) noexcept { ls::delete_object(p); }
#endif

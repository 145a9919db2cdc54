#include "ranges.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "classes.h"

namespace ls {

namespace {

constexpr size_t kHuge = size_t{1} << 21;
constexpr size_t kAlignment = size_t{1} << 17;  // of memory from the system

// Ranges by the number of a unit: the first and the last unit of a range point to it, all others are nullptr. Two
// levels, for addresses of 48 bits.
constexpr size_t kLeafBits = 19, kRootBits = 16;
using Entry = std::atomic<Ranges::Range *>;
std::atomic<Entry *> root[size_t{1} << kRootBits];

Entry *entry(uintptr_t unit) noexcept {
  if (unit >> kLeafBits >> kRootBits != 0) return nullptr;
  Entry *leaf = root[unit >> kLeafBits].load(std::memory_order_acquire);
  return leaf == nullptr ? nullptr : leaf + (unit & ((size_t{1} << kLeafBits) - 1));
}

// Allocates the parts of the table that these units need. Returns false without memory, or if the units lie
// beyond the table.
bool cover(uintptr_t first, uintptr_t last) noexcept {
  if (last >> kLeafBits >> kRootBits != 0) return false;
  for (uintptr_t i = first >> kLeafBits; i <= last >> kLeafBits; i++) {
    if (root[i].load(std::memory_order_relaxed) != nullptr) continue;
    void *leaf =
        mmap(nullptr, sizeof(Entry) << kLeafBits, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (leaf == MAP_FAILED) return false;
    root[i].store(static_cast<Entry *>(leaf), std::memory_order_release);
  }
  return true;
}

uintptr_t unit_of(const char *p) noexcept { return reinterpret_cast<uintptr_t>(p) / Ranges::kUnit; }

Ranges::Range *at(const char *p) noexcept {
  Entry *e = entry(unit_of(p));
  return e == nullptr ? nullptr : e->load(std::memory_order_relaxed);
}

void set(const char *p, Ranges::Range *r) noexcept { entry(unit_of(p))->store(r, std::memory_order_relaxed); }

char *aligned(char *p, size_t to) noexcept {
  return reinterpret_cast<char *>((reinterpret_cast<uintptr_t>(p) + to - 1) / to * to);
}

char *map_pages(size_t size, size_t alignment) noexcept {
  auto get = [](size_t n) {
    void *p = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? nullptr : static_cast<char *>(p);
  };
  // The system maps one below another, so that this is usually enough.
  char *p = get(size);
  if (p == nullptr || aligned(p, alignment) == p) return p;
  munmap(p, size);
  p = get(size + alignment);
  if (p == nullptr) return nullptr;
  char *start = aligned(p, alignment), *end = p + size + alignment;
  if (start != p) munmap(p, static_cast<size_t>(start - p));
  if (start + size != end) munmap(start + size, static_cast<size_t>(end - start - size));
  return start;
}

}  // namespace

std::mutex Ranges::mutex_;

Ranges::Range *Ranges::find(const void *p) noexcept {
  if (reinterpret_cast<uintptr_t>(p) % kUnit != 0) return nullptr;
  return at(static_cast<const char *>(p));
}

size_t Ranges::bin_of(size_t size) noexcept { return std::min(class_of(size) - class_of(kUnit), kBins - 1); }

void Ranges::link(Range *r) noexcept {
  size_t bin = bin_of(r->size);
  r->free = true;
  r->prev = nullptr;
  r->next = bins_[bin];
  if (r->next != nullptr) r->next->prev = r;
  bins_[bin] = r;
  filled_[bin / 64] |= uint64_t{1} << bin % 64;
  free_ += r->size;
}

void Ranges::unlink(Range *r) noexcept {
  size_t bin = bin_of(r->size);
  (r->prev != nullptr ? r->prev->next : bins_[bin]) = r->next;
  if (r->next != nullptr) r->next->prev = r->prev;
  if (bins_[bin] == nullptr) filled_[bin / 64] &= ~(uint64_t{1} << bin % 64);
  r->free = false;
  free_ -= r->size;
}

Ranges::Range *Ranges::record(char *start, size_t size) noexcept {
  Range *r = spare_;
  if (r != nullptr) {
    spare_ = r->next;
  } else if ((r = static_cast<Range *>(std::malloc(sizeof(Range)))) == nullptr) {
    return nullptr;
  }
  *r = {start, size, this};
  set(start, r);
  set(start + size - kUnit, r);
  return r;
}

void Ranges::forget(Range *r) noexcept {
  r->next = spare_;
  spare_ = r;
}

Ranges::Range *Ranges::take(size_t size) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  // The sizes that are requested are the smallest of their bins, so that every range in the bin is large enough.
  size_t bin = bin_of(size), word = bin / 64;
  uint64_t bits = filled_[word] & ~uint64_t{0} << bin % 64;
  while (bits == 0) {
    if (++word == kBins / 64) return nullptr;
    bits = filled_[word];
  }
  Range *r = bins_[word * 64 + static_cast<size_t>(__builtin_ctzll(bits))];
  while (r != nullptr && r->size < size) r = r->next;  // in the last bin alone
  return r == nullptr ? nullptr : cut(r, size);
}

// Takes size bytes from the beginning of a free range.
Ranges::Range *Ranges::cut(Range *r, size_t size) noexcept {
  if (r->size == size) {
    unlink(r);
    return r;
  }
  Range *taken = record(r->start, size);
  if (taken == nullptr) return nullptr;
  unlink(r);
  r->start += size;
  r->size -= size;
  set(r->start, r);
  set(r->start + r->size - kUnit, r);
  link(r);
  return taken;
}

Ranges::Range *Ranges::map(size_t size) noexcept {
  size_t mapped = std::max(size, chunk_);
  char *p = map_pages(mapped, kAlignment);
  if (p == nullptr) return nullptr;
#ifdef MADV_HUGEPAGE
  if (mapped >= 2 * kHuge) madvise(p, mapped, MADV_HUGEPAGE);  // at least one lies in it whole
#endif
  std::lock_guard<std::mutex> lock(mutex_);
  Range *r = cover(unit_of(p), unit_of(p + mapped - kUnit)) ? record(p, mapped) : nullptr;
  if (r == nullptr) {
    munmap(p, mapped);
    return nullptr;
  }
  link(r);
  return cut(r, size);
}

void Ranges::put(Range *r) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  if (Range *left = at(r->start - kUnit); left != nullptr && left->free && left->owner == this) {
    unlink(left);
    set(left->start + left->size - kUnit, nullptr);
    set(r->start, nullptr);
    left->size += r->size;
    forget(r);
    r = left;
  }
  if (Range *right = at(r->start + r->size); right != nullptr && right->free && right->owner == this) {
    unlink(right);
    set(r->start + r->size - kUnit, nullptr);
    set(right->start, nullptr);
    r->size += right->size;
    forget(right);
  }
  // Last, because a unit may be both the first and the last of its range.
  set(r->start, r);
  set(r->start + r->size - kUnit, r);
  link(r);
}

size_t Ranges::shrink(size_t keep) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  size_t before = free_;
  for (size_t bin = kBins; bin-- > 0 && free_ > keep;) {
    while (bins_[bin] != nullptr && free_ > keep) {
      Range *r = bins_[bin];
      // Whole huge pages, from the end.
      size_t most = free_ - keep, left = 0;
      if (most < r->size) {
        left = static_cast<size_t>(aligned(r->start + (r->size - most) - (kHuge - 1), kHuge) - r->start);
        if (left > r->size) left = 0;
      }
      // Remove it from the table first: another thread may map these addresses next.
      unlink(r);
      char *end = r->start + r->size;
      set(end - kUnit, nullptr);
      set(r->start, left != 0 ? r : nullptr);
      bool gone = munmap(r->start + left, r->size - left) == 0;
      if (gone) r->size = left;
      if (r->size == 0) {
        forget(r);
        continue;
      }
      set(r->start, r);
      set(r->start + r->size - kUnit, r);
      link(r);
      if (!gone) return before - free_;
    }
  }
  return before - free_;
}

size_t Ranges::free_bytes() noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_;
}

}  // namespace ls

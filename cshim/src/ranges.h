// Ranges: large blocks in memory of our own, that are split and joined.
//
// A block of 64 KiB and more is a part of a range that mmap gave. Freed, it joins its free neighbours; taken, it
// is cut from the free range that fits best. So what one layer leaves serves the next, whatever its size, and the
// same few pages, that the caches know, go round. Sizes are whole units. What is known of a range stands beside
// it, never in it, in a table by address that needs no lock to be read for a block that one holds. Huge pages are
// asked for. Nothing here throws, or knows libtorch.
//
// Several Ranges share the table and a lock. A range joins those of its own Ranges only: blocks that live long and
// are small beside others would cut the memory of these into pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

namespace ls {

class Ranges {
 public:
  static constexpr size_t kUnit = size_t{1} << 13;  // an eighth of the smallest block
  static constexpr size_t kSmallest = size_t{1} << 16;
  static constexpr size_t kLargest = size_t{1} << 40;

  struct Range {
    char *start;
    size_t size;
    Ranges *owner;
    uint64_t note = 0;  // of whoever holds it
    bool free = false;
    Range *prev = nullptr, *next = nullptr;  // in the list of its bin
  };

  // Gets at least so many bytes from the system at once.
  explicit Ranges(size_t chunk) : chunk_(chunk) {}

  // A range of size bytes cut from a free one, or nullptr.
  Range *take(size_t size) noexcept;
  // A fresh one, or nullptr where the system has no memory.
  Range *map(size_t size) noexcept;
  void put(Range *r) noexcept;
  // Gives back to the system what is free, the largest ranges first, until no more than keep bytes are left;
  // returns the bytes given back.
  size_t shrink(size_t keep) noexcept;
  size_t free_bytes() noexcept;

  // The range that starts at p, where p is a block that the caller holds; nullptr for a block from elsewhere.
  static Range *find(const void *p) noexcept;

 private:
  static constexpr size_t kBins = 8 * 32;

  static size_t bin_of(size_t size) noexcept;
  Range *record(char *start, size_t size) noexcept;
  Range *cut(Range *r, size_t size) noexcept;
  void forget(Range *r) noexcept;
  void link(Range *r) noexcept;
  void unlink(Range *r) noexcept;

  static std::mutex mutex_;
  const size_t chunk_;
  Range *bins_[kBins] = {};
  uint64_t filled_[kBins / 64] = {};  // a bit for each bin that is not empty
  Range *spare_ = nullptr;
  size_t free_ = 0;
};

}  // namespace ls

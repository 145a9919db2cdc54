// Ranges: an allocator of large blocks, which splits and joins ranges of addresses from mmap.
//
// A block of 64 KiB or more is part of a range. A freed block is joined with its free neighbours; a new block is
// cut from the smallest free range that is large enough. The memory of one layer thus serves the next, whatever
// its size, and the pages in use stay few and in the caches. Sizes are multiples of a unit. The description of a
// range is kept outside of it, in a table by address; a block's holder reads it without a lock. The memory is
// advised to use huge pages. Nothing here throws or depends on libtorch.
//
// Several Ranges share the table and a lock. A range is joined only with ranges of the same Ranges: small blocks
// with long lives among others would fragment their memory.
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
    uint64_t note = 0;  // for the block's holder
    bool free = false;
    Range *prev = nullptr, *next = nullptr;  // in the list of its bin
  };

  // Takes at least so many bytes from the system at once.
  explicit Ranges(size_t chunk) : chunk_(chunk) {}

  // Returns a range of size bytes cut from a free one, or nullptr.
  Range *take(size_t size) noexcept;
  // Returns a new range, or nullptr if the system has no memory.
  Range *map(size_t size) noexcept;
  void put(Range *r) noexcept;
  // Returns free ranges to the system, the largest first, until no more than keep bytes are left. Returns the
  // bytes that were returned.
  size_t shrink(size_t keep) noexcept;
  size_t free_bytes() noexcept;

  // Returns the range that starts at p, a block that the caller holds; nullptr for a block from elsewhere.
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

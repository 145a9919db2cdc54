// Autocast regions and the cache of casts (docs/decisions/0029-casts.md).
//
// The cache (casts.cpp) maps a weight to its cast. It belongs to the process and ignores the dtype of the cast,
// whether the cast was recorded, and writes to the weight. So a region uses it only
//   - while gradients are recorded, outside backward passes and captures,
//   - if all regions of the process that use it for the same device type cast to the same dtype,
//   - if the regions of other device types in force on its thread use it too, because it is on or off for all, and
//   - if no graph was being captured when it began: a graph casts by itself, because a cast that it has captured
//     has no value before a replay, and one that was made before would not be made again by a replay;
// and it is cleared when a thread enters its outermost such region, when it leaves it, and by ls_casts_clear.
#pragma once

#include <memory>
#include <vector>

#include "linstock.h"

namespace ls {

// Autocast of a device type, as LS_MODE_AUTOCAST, that is in force on the calling thread.
ls_mode autocast_in_force(int32_t device_type);

// Autocast of one device type, on or off, on the calling thread until the destructor.
class AutocastRegion {
 public:
  explicit AutocastRegion(ls_mode mode);
  ~AutocastRegion();
  AutocastRegion(const AutocastRegion &) = delete;
  AutocastRegion &operator=(const AutocastRegion &) = delete;

 private:
  ls_mode before_;
  bool claimed_before_;  // the region of the device type that was in force
  bool may_cache_before_;
  bool claimed_ = false;
};

// Autocast of all device types.
class AutocastState {
 public:
  static AutocastState now();

 private:
  friend class AutocastGuard;
  std::vector<ls_mode> on_;
};

// Sets a state, and restores the one before in its destructor.
class AutocastGuard {
 public:
  explicit AutocastGuard(const AutocastState &state);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard &) = delete;
  AutocastGuard &operator=(const AutocastGuard &) = delete;

 private:
  std::vector<std::unique_ptr<AutocastRegion>> regions_;
};

// Keeps the calling thread from using the cache, for a backward pass, whose operators are not recorded, and for a
// capture.
class CastCachePause {
 public:
  CastCachePause();
  ~CastCachePause();
  CastCachePause(const CastCachePause &) = delete;
  CastCachePause &operator=(const CastCachePause &) = delete;

 private:
  bool may_cache_before_;
};

// Called after the recording of gradients was turned on or off on the calling thread.
void grad_mode_changed() noexcept;

}  // namespace ls

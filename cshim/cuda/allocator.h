// An allocator that stands before libtorch's caching allocator, which takes its device's lock and only then finds
// that nothing is left: whoever waits there holds up every free on the device. Here an allocation is admitted
// against the device's limit first, by the code that admits the CPU's, and waits for sweeps without any lock.
// Libtorch finds it through the one pointer from which it takes its allocator; blocks are freed as before.
//
// The limit is one of the bytes that live tensors have asked for. What the caching allocator holds beside them,
// free blocks and the rests of its segments, is kept below the limit too, until an allocation that was admitted
// would fail for it: then it may hold so much more.
#pragma once

#include <cstdint>

#include "../src/device.h"

namespace ls {

inline int slot(int32_t index) noexcept { return slot_of(c10::kCUDA, index); }

// Takes its place; once, when libtorch's CUDA has started.
void stand_before_allocator();
// Called before this thread has libtorch make a snapshot: the history notes when each device's segments are read.
void snapshot_begins();
// Has the caching allocator hold no more of a device than its limit, from now on. The device is in use.
void limit_reserved(int32_t index);
// Gives back what the caching allocator holds and nobody uses of the calling thread's device, and of no other.
void release_cache_of_current_device();

}  // namespace ls

// An allocator in front of libtorch's caching allocator. That one takes its device's lock before it finds that no
// memory is left: a wait there would block every free on the device. This one first admits an allocation against
// the device's limit, by the code that admits the CPU's, and waits for collections without a lock. libtorch finds
// it through the one pointer to its allocator; blocks are freed as before.
//
// The limit is for the bytes that live tensors have requested. The free blocks and remainders of segments that
// the caching allocator holds are kept below the limit as well, unless an admitted allocation would fail: then it
// may hold as much as that needs.
#pragma once

#include <cstdint>
#include <memory>

#include "../src/device.h"

namespace ls {

inline int slot(int32_t index) noexcept { return slot_of(c10::kCUDA, index); }

// Replaces libtorch's allocator. Called once, when libtorch's CUDA has started.
void stand_before_allocator();
// Called before this thread has libtorch make a snapshot: the history records when each device's segments are
// read.
void snapshot_begins();
// Limits the memory of the caching allocator to the limit of a device that is in use.
void limit_reserved(int32_t index);
// Implements Devices::settle.
bool settle_frees(int32_t index, bool wait);
// Returns the caching allocator's unused memory of the calling thread's device to the device.
void release_cache_of_current_device();

// Returns a graph to be captured (graph.cpp).
std::unique_ptr<Graph> new_cuda_graph();

}  // namespace ls

// Fault points: where tests make the shim fail. They are always compiled in and armed by ls_fault_set alone. The
// entries' is a bit in a word that each entry compares anyway; an allocation's is one load of a word that nobody
// writes.
#pragma once

#include <atomic>
#include <cstdint>

namespace ls {

extern std::atomic<uint32_t> faults_armed;  // a bit for each point
bool fault_due(int32_t point) noexcept;
// Whether this event of a point is to fail.
inline bool fault(int32_t point) noexcept {
  return __builtin_expect((faults_armed.load(std::memory_order_relaxed) >> point & 1) != 0, 0) && fault_due(point);
}

// In threads_epoch (shim.h) while entries are to fail: no thread's own word has it.
constexpr uint64_t kEntriesArmed = uint64_t{1} << 63;
// Throws where this entry is to fail.
void fault_entry();

}  // namespace ls

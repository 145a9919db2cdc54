// Fault points, at which tests make the shim fail. They are always compiled in; ls_fault_set arms them. That of
// entries is a bit in a word that each entry reads anyway; that of allocations is one load of a word that is
// rarely written.
#pragma once

#include <atomic>
#include <cstdint>

namespace ls {

extern std::atomic<uint32_t> faults_armed;  // a bit for each point
bool fault_due(int32_t point) noexcept;
// Reports whether this event of a point must fail.
inline bool fault(int32_t point) noexcept {
  return __builtin_expect((faults_armed.load(std::memory_order_relaxed) >> point & 1) != 0, 0) && fault_due(point);
}

// The value of threads_epoch (shim.h) while entries must fail: no thread's own word equals it.
constexpr uint64_t kEntriesArmed = uint64_t{1} << 63;
// Throws if this entry must fail.
void fault_entry();

}  // namespace ls

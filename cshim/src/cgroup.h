// The memory cgroups of this process, and how much of their limits is left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ls {

// What cgroups leave for this process's tensors; INT64_MAX, both: all that the machine has.
struct Room {
  int64_t tensors;  // the most bytes of tensors; may be negative
  int64_t limit;    // the lowest
};

// One cgroup that limits memory: the process's own, or one above it.
struct CGroup {
  int version;                      // 1 or 2
  std::string dir;                  // the directory of its files
  Room room{INT64_MAX, INT64_MAX};  // as last read
};

// Measures the groups. tensors is how many bytes of their usage are this process's tensors.
//
//   room = tensors + limit - reserve - (usage - reclaimable)
//   reclaimable = inactive_file + active_file - mapped file pages, at least 0
//
// Usage is that of the whole group: this process and all others in it. The kernel drops page cache before it
// kills; file pages that are mapped (libraries, checkpoints) are in use and count. A group whose files cannot be
// read, for want of descriptors or because the process has left it, leaves the room that it left before.
Room cgroup_room(std::vector<CGroup> &groups, int64_t tensors) noexcept;

// Returns the bytes that stay free below a limit: an eighth of it, or 32 MiB and a 32nd if that is less. It is
// for what grows between two measurements: Go's heap, libtorch's and oneDNN's own memory, thread stacks.
int64_t reserve_below(int64_t limit) noexcept;

// Returns the resident bytes of anonymous memory of this process; 0 if unknown.
int64_t resident_anonymous() noexcept;

}  // namespace ls

// The memory cgroups of this process: how much of their limits is left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ls {

// One cgroup that limits memory: the process's own, or one above it.
struct CGroup {
  int version;      // 1 or 2
  std::string dir;  // where its files are
};

// The bytes that may still be used below the limits of all the groups. Negative: more is used than should be.
// INT64_MAX: no group has a limit, or its files cannot be read. Each group keeps a reserve, see reserve_below.
//
//   room = limit - reserve - (usage - reclaimable)
//   reclaimable = inactive_file + active_file - mapped file pages, at least 0
//
// Usage is that of the whole group: of this process and all others in it. The kernel drops page cache before it
// kills; file pages that are mapped (libraries, checkpoints) are in use and count.
int64_t cgroup_room(const std::vector<CGroup> &groups) noexcept;

// What is left free below a limit: an eighth of it, or 32 MiB and a 32nd where that is less. It is for what grows
// between two looks: Go's heap, libtorch's and oneDNN's own memory, the stacks of threads.
int64_t reserve_below(int64_t limit) noexcept;

// The bytes of anonymous memory of this process that are resident; 0 where that is not known.
int64_t resident_anonymous() noexcept;

}  // namespace ls

#include "cgroup.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace ls {

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Reads a small file into buf and ends it with a 0. Returns false if it cannot be read.
bool read_file(const char *dir, const char *name, char *buf, size_t size) noexcept {
  char path[4096];
  size_t n = std::strlen(dir), m = std::strlen(name);
  if (n + 1 + m + 1 > sizeof path) return false;
  std::memcpy(path, dir, n);
  path[n] = '/';
  std::memcpy(path + n + 1, name, m + 1);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t at = 0;
  while (at < size - 1) {
    ssize_t got = read(fd, buf + at, size - 1 - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    at += static_cast<size_t>(got);
  }
  close(fd);
  buf[at] = 0;
  return at > 0;
}

// Parses a number of bytes; INT64_MAX for "max" and for version 1's number near the largest; -1 if there is none.
int64_t read_bytes(const char *dir, const char *name) noexcept {
  char buf[64];
  if (!read_file(dir, name, buf, sizeof buf)) return -1;
  if (std::strncmp(buf, "max", 3) == 0) return INT64_MAX;
  char *end = buf;
  errno = 0;
  long long n = std::strtoll(buf, &end, 10);
  if (end == buf || n < 0) return -1;
  return errno == ERANGE || n >= int64_t{1} << 60 ? INT64_MAX : n;
}

// Returns the number after a name at the beginning of a line; 0 if there is none.
int64_t line_of(const char *text, const char *name) noexcept {
  size_t n = std::strlen(name);
  for (const char *p = text; p != nullptr && *p != 0;) {
    if (std::strncmp(p, name, n) == 0 && p[n] == ' ') return std::strtoll(p + n + 1, nullptr, 10);
    p = std::strchr(p, '\n');
    if (p != nullptr) p++;
  }
  return 0;
}

// Returns the limit; INT64_MAX: none; -1: it cannot be read.
int64_t limit_of(const CGroup &g) noexcept {
  const char *dir = g.dir.c_str();
  if (g.version == 1) return read_bytes(dir, "memory.limit_in_bytes");
  int64_t limit = read_bytes(dir, "memory.max");
  // Above memory.high the kernel slows the processes until they hardly run.
  errno = 0;
  int64_t high = read_bytes(dir, "memory.high");
  if (high < 0 && errno == ENOENT) high = INT64_MAX;
  return std::min(limit, high);
}

void measure(CGroup &g, int64_t tensors) noexcept {
  int64_t limit = limit_of(g);
  if (limit < 0) return;
  g.room.limit = limit;
  if (limit == INT64_MAX) {
    g.room.tensors = INT64_MAX;
    return;
  }
  const char *dir = g.dir.c_str();
  int64_t usage = read_bytes(dir, g.version == 1 ? "memory.usage_in_bytes" : "memory.current");
  if (usage < 0 || usage == INT64_MAX) return;
  char stat[16384];
  if (read_file(dir, "memory.stat", stat, sizeof stat)) {
    // Version 1 has figures of the group alone and sums with those below it; version 2 has the sums.
    int64_t files = g.version == 1 ? line_of(stat, "total_inactive_file") + line_of(stat, "total_active_file")
                                   : line_of(stat, "inactive_file") + line_of(stat, "active_file");
    int64_t mapped = line_of(stat, g.version == 1 ? "total_mapped_file" : "file_mapped");
    usage -= std::clamp<int64_t>(files - mapped, 0, usage);
  }
  g.room.tensors = tensors + limit - reserve_below(limit) - usage;
}

}  // namespace

int64_t reserve_below(int64_t limit) noexcept { return std::min(limit / 8, 32 * kMiB + limit / 32); }

Room cgroup_room(std::vector<CGroup> &groups, int64_t tensors) noexcept {
  Room least{INT64_MAX, INT64_MAX};
  for (CGroup &g : groups) {
    measure(g, tensors);
    least.tensors = std::min(least.tensors, g.room.tensors);
    least.limit = std::min(least.limit, g.room.limit);
  }
  return least;
}

int64_t resident_anonymous() noexcept {
  char buf[256];
  if (!read_file("/proc/self", "statm", buf, sizeof buf)) return 0;
  char *p = buf;
  std::strtoll(p, &p, 10);
  int64_t resident = std::strtoll(p, &p, 10), shared = std::strtoll(p, &p, 10);
  return std::max<int64_t>(0, resident - shared) * sysconf(_SC_PAGESIZE);
}

}  // namespace ls

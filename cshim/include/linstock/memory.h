/* Counters and limits of native memory. */
#ifndef LINSTOCK_LINSTOCK_MEMORY_H_
#define LINSTOCK_LINSTOCK_MEMORY_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory ----
 * A device is named as in LS_DEVICE; the CPU is 0xff. Bytes are those of storages: a view adds nothing. */
typedef struct ls_memory {
  int64_t allocated;    /* bytes not freed, as the allocator rounds them */
  int64_t peak;         /* highest allocated since the last reset; see ls_memory_exact_peak */
  int64_t requested;    /* those of active, as they were asked for */
  int64_t reserved;     /* active and cached */
  int64_t cached;       /* bytes of free blocks that the allocator keeps */
  int64_t active;       /* allocated, and freed but still used by a stream */
  int64_t largest_free; /* the largest cached block; -1 if unknown */
  int64_t allocations;  /* since the start */
  int64_t frees;
  int64_t total;        /* bytes allocated since the start, about: threads reserve credit for small blocks */
  int64_t limit;        /* 0: none */
  int64_t handles;      /* ls_tensor handles not yet freed, of all devices */
  int64_t created;      /* handles made since the start */
  int64_t most_handles; /* the peak of handles; 64 for each thread may be missing */
} ls_memory;
LS_API ls_error *ls_memory_stats(int32_t device, ls_memory *out) LS_NOEXCEPT;
/* The counters that a pacer reads, without a lock. live includes the credit of threads for small blocks. */
typedef struct ls_pace {
  int64_t live, reserved, limit;
  int64_t total; /* bytes allocated since the start */
  int64_t freed; /* bytes freed since the start */
  int64_t low;   /* the fewest live bytes since the last round began in which an allocation waited on the device */
} ls_pace;
LS_API ls_error *ls_memory_pace(int32_t device, ls_pace *out) LS_NOEXCEPT;
LS_API ls_error *ls_memory_reset_peak(int32_t device) LS_NOEXCEPT;
/* Between a call with 1 and one with 0 the CPU's peak is exact, and small allocations take longer. At other times
 * small blocks do not raise it while they fit into the credit of their thread, 64 KiB at most. Calls nest. */
LS_API void ls_memory_exact_peak(int32_t on) LS_NOEXCEPT;
/* Returns cached blocks to the system; for the CPU also malloc's free pages. */
LS_API ls_error *ls_memory_empty_cache(int32_t device) LS_NOEXCEPT;
/* Sets whether operator new and delete cache small objects, for libtorch and the shim. They do not at first.
   Returns 0 where they cannot: without glibc, and in a sanitizer's build. */
LS_API int32_t ls_memory_cache_objects(int32_t on) LS_NOEXCEPT;
/* Returns cached blocks to the system until keep bytes are left at most; for the CPU only. */
LS_API ls_error *ls_memory_trim(int32_t device, int64_t keep, int64_t *freed) LS_NOEXCEPT;
LS_API ls_error *ls_memory_capacity(int32_t device, int64_t *free, int64_t *total) LS_NOEXCEPT;
/* Sets the hard limit: an allocation that would pass it waits, then fails with LS_ERR_OUT_OF_MEMORY. 0: none. */
LS_API ls_error *ls_memory_set_limit(int32_t device, int64_t bytes) LS_NOEXCEPT;
/* A memory cgroup: the directory of its files, and its version, 1 or 2. */
typedef struct ls_cgroup {
  const char *dir;
  int32_t version, unused;
} ls_cgroup;
/* Makes the CPU's limit follow n memory cgroups. The limit is the bytes of tensors and caches, and the room that
 * the groups have besides, less a reserve (src/cgroup.h); at most `most`, and `share` of the lowest limit of a
 * group. It is measured again as memory is allocated, when an allocation does not fit, and when ls_pressure_wait
 * times out. `caller` is how many bytes of the process the caller uses and may return later. ls_memory_set_limit
 * ends this. */
LS_API ls_error *ls_memory_follow_cgroups(const ls_cgroup *groups, uint64_t n, int64_t most, double share,
                                          int64_t caller) LS_NOEXCEPT;
/* Called on the thread whose allocation does not fit, with no lock of the shim held. Returns non-zero if it freed
 * something: the allocation is tried again. Allocations that it makes do not call it. NULL: no callback. */
typedef int32_t (*ls_oom_callback)(void *arg, int32_t device, int64_t bytes);
LS_API ls_error *ls_memory_set_oom_callback(ls_oom_callback fn, void *arg) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_MEMORY_H_ */

/* Profiles of live memory and the history of allocations. */
#ifndef LINSTOCK_LINSTOCK_PROFILE_H_
#define LINSTOCK_LINSTOCK_PROFILE_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- samples: which call allocated the live memory ----
 * About one block every rate bytes is sampled; the thread's scope word then has LS_SCOPE_SAMPLED until
 * ls_samples_attach has named the site of what this thread has sampled. Sites are the caller's numbers. */
#define LS_SCOPE_SAMPLED (UINT64_C(1) << 62)
/* 0: none; 1: every block, for a history. */
LS_API void ls_samples_set_rate(int64_t bytes) LS_NOEXCEPT;
/* result may be 0. Its block gets the site even if another thread allocated it. */
LS_API void ls_samples_attach(uint32_t site, ls_tensor result) LS_NOEXCEPT;
/* Returns the number of sampled blocks, to be read atomically, for calls whose result has no scope word.
 */
LS_API uint64_t *ls_samples_seen(void) LS_NOEXCEPT;
/* The site of blocks that were not attributed. */
#define LS_NO_SITE UINT32_MAX
typedef struct ls_site {
  uint32_t site;
  int32_t device;
  int64_t live_bytes, live_count, total_bytes, total_count; /* estimates: samples weighted by their chance */
} ls_site;
/* Returns the number of sites; writes at most cap. */
LS_API uint64_t ls_samples_sites(ls_site *out, uint64_t cap) LS_NOEXCEPT;
/* Kinds 2 to 7 are events of a device's own allocator. */
enum ls_event_kind {
  LS_EVENT_ALLOCATED = 0,
  LS_EVENT_FREED = 1,
  LS_EVENT_FREE_REQUESTED = 2, /* freed once the streams that use the block are done with it */
  LS_EVENT_SEGMENT_ALLOCATED = 3,
  LS_EVENT_SEGMENT_FREED = 4,
  LS_EVENT_SEGMENT_MAPPED = 5,
  LS_EVENT_SEGMENT_UNMAPPED = 6,
  LS_EVENT_SNAPSHOT = 7,      /* ls_cuda_snapshot read the segments here */
  LS_EVENT_OUT_OF_MEMORY = 8, /* address: how many bytes were free */
};
typedef struct ls_event {
  int64_t time_ns; /* since the epoch */
  uint64_t address;
  int64_t bytes;     /* as the allocator rounds them */
  int64_t requested; /* as requested; 0 for frees */
  uint64_t stream;   /* a device's; 0 is the default stream */
  uint32_t site;
  int32_t device;
  int32_t kind; /* ls_event_kind */
  uint32_t thread;
} ls_event;
/* Keeps the last max events of each device; 0 stops recording and drops the events. */
LS_API ls_error *ls_history_set(uint64_t max) LS_NOEXCEPT;
/* Writes the events, device by device, each device's oldest first. Returns their number;
 * writes at most cap. */
LS_API uint64_t ls_history_events(ls_event *out, uint64_t cap) LS_NOEXCEPT;
/* Writes the live sampled blocks as events of kind 0. */
LS_API uint64_t ls_history_live(ls_event *out, uint64_t cap) LS_NOEXCEPT;
/* Adds an event of kind LS_EVENT_OUT_OF_MEMORY if a history is kept. */
LS_API ls_error *ls_history_out_of_memory(int32_t device, int64_t bytes, int64_t free, uint32_t site) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_PROFILE_H_ */

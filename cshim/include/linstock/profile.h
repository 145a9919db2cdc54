/* Profiles of live memory and the history of allocations. */
#ifndef LINSTOCK_LINSTOCK_PROFILE_H_
#define LINSTOCK_LINSTOCK_PROFILE_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- samples: which call made the memory that is live ----
 * About every rate bytes a block is sampled; the thread's scope word then has LS_SCOPE_SAMPLED until
 * ls_samples_attach has named the site of what this thread has sampled. Sites are the caller's numbers. */
#define LS_SCOPE_SAMPLED (UINT64_C(1) << 62)
/* 0: none; 1: every block, for a history. */
LS_API void ls_samples_set_rate(int64_t bytes) LS_NOEXCEPT;
/* result may be 0; its block is named also when another thread made it. */
LS_API void ls_samples_attach(uint32_t site, ls_tensor result) LS_NOEXCEPT;
/* How many blocks have been sampled, to be read atomically: what has no scope word in its result is named by it.
 */
LS_API uint64_t *ls_samples_seen(void) LS_NOEXCEPT;
/* The site of blocks that nobody has named. */
#define LS_NO_SITE UINT32_MAX
typedef struct ls_site {
  uint32_t site;
  int32_t device;
  int64_t live_bytes, live_count, total_bytes, total_count; /* estimates: samples weighted by their chance */
} ls_site;
/* Returns how many there are; writes at most cap. */
LS_API uint64_t ls_samples_sites(ls_site *out, uint64_t cap) LS_NOEXCEPT;
/* What a device's own allocator does besides: kinds 2 to 7. */
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
  int64_t requested; /* as they were asked for; 0 where freed */
  uint64_t stream;   /* a device's; 0 is the default stream */
  uint32_t site;
  int32_t device;
  int32_t kind; /* ls_event_kind */
  uint32_t thread;
} ls_event;
/* Keeps the last max events of each device; 0 stops and forgets. */
LS_API ls_error *ls_history_set(uint64_t max) LS_NOEXCEPT;
/* The events, those of one device after those of another, each device's oldest first. Returns how many there are;
 * writes at most cap. */
LS_API uint64_t ls_history_events(ls_event *out, uint64_t cap) LS_NOEXCEPT;
/* The sampled blocks that are live, as events of kind 0. */
LS_API uint64_t ls_history_live(ls_event *out, uint64_t cap) LS_NOEXCEPT;
/* Adds an event of kind LS_EVENT_OUT_OF_MEMORY; nothing where no history is kept. */
LS_API ls_error *ls_history_out_of_memory(int32_t device, int64_t bytes, int64_t free, uint32_t site) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_PROFILE_H_ */

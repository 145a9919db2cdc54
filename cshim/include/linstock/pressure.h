/* Allocations that wait for the caller to free memory. */
#ifndef LINSTOCK_LINSTOCK_PRESSURE_H_
#define LINSTOCK_LINSTOCK_PRESSURE_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- pressure: a pacer of the caller's ----
 * An allocation that does not fit waits for a round of the pacer, without a lock of the shim and for a bounded
 * time. A round serves all allocations that wait when it begins, on every device. */
typedef struct ls_board {
  uint32_t due; /* set when a device passes a trigger, and when an allocation begins to wait; atomic; the caller
                   clears it */
} ls_board;
LS_API ls_board *ls_memory_board(void) LS_NOEXCEPT;
/* due is set when more than `live` bytes are live, or more than `total` bytes were allocated since the start. An
 * allocation that would take the live bytes past `wait` waits (LS_WAIT_TARGET). INT64_MAX: never. */
LS_API ls_error *ls_memory_set_triggers(int32_t device, int64_t live, int64_t total, int64_t wait) LS_NOEXCEPT;
/* The longest wait for memory below the hard limit. */
#define LS_WAIT_TARGET_MS 250
/* Why an allocation waits. */
enum ls_wait_reason {
  LS_WAIT_TARGET = 1, /* it would pass the wait trigger; it proceeds after LS_WAIT_TARGET_MS at the latest */
  LS_WAIT_LIMIT = 2, /* it would pass the hard limit; it fails after exhausted rounds in which there was no room */
  LS_WAIT_SYSTEM = 3 /* the system or the device has refused the memory; it fails as for LS_WAIT_LIMIT */
};
/* The result of a round for a device; bits. Without a bit the allocations try again, and may request another
 * round. */
enum ls_verdict {
  LS_VERDICT_ADMIT = 1,    /* for LS_WAIT_TARGET: the allocations may pass the wait trigger */
  LS_VERDICT_EXHAUSTED = 2 /* for the others: everything that was unreachable when the round began is freed */
};
/* The allocations that wait on one device. */
typedef struct ls_waiters {
  int64_t bytes;   /* their sum */
  int64_t largest; /* the largest of them */
  int32_t device;
  int32_t reason;  /* the highest ls_wait_reason among them */
  int32_t verdict; /* set by the caller, for ls_pressure_done */
  int32_t exhaust; /* 1: one of them has waited for rounds that were not exhausted; this one should be */
} ls_waiters;
#define LS_PRESSURE_DEVICES 65
typedef struct ls_pressure {
  uint64_t round;
  int32_t count, unused; /* devices in waiters; 0: no allocation waits */
  ls_waiters waiters[LS_PRESSURE_DEVICES];
} ls_pressure;
/* Allocations wait from ls_pressure_attach (0: a pacer is attached already) to ls_pressure_stop. ls_pressure_wait
 * blocks the calling thread until a round is requested (1), the time is over (0) or ls_pressure_stop was called
 * (-1); it also does ls_sweeping_set(1) for the thread. When the time is over, it returns unused memory to the
 * system; with a timeout of 0 or less also while a round is requested, which the next call begins.
 * ls_pressure_done ends the round with the verdicts in it, after the caller's frees; NULL ends no round. */
LS_API int32_t ls_pressure_attach(void) LS_NOEXCEPT;
LS_API void ls_pressure_stop(void) LS_NOEXCEPT;
LS_API int32_t ls_pressure_wait(ls_pressure *out, int64_t timeout_ms) LS_NOEXCEPT;
LS_API void ls_pressure_done(const ls_pressure *round) LS_NOEXCEPT;
/* Requests a round and returns at once; 0: no pacer is attached. */
LS_API int32_t ls_pressure_ask(void) LS_NOEXCEPT;
/* While on, allocations of this thread never wait. Returns the value before; a negative value changes nothing. */
LS_API int32_t ls_sweeping_set(int32_t on) LS_NOEXCEPT;
#define LS_WAIT_BUCKETS 96
typedef struct ls_pressure_counts {
  int64_t waits, wait_ns, timeouts, retries, ooms;
  int64_t histogram[LS_WAIT_BUCKETS]; /* waits by length: bucket i holds those below 2^(i/4) microseconds */
} ls_pressure_counts;
LS_API void ls_pressure_stats(ls_pressure_counts *out) LS_NOEXCEPT;
/* Counts a wait for memory of the caller's own. */
LS_API void ls_pressure_waited(int64_t ns, int32_t timed_out) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_PRESSURE_H_ */

/* The events of operators, for profiles of time; ranges of the caller; NVTX. */
#ifndef LINSTOCK_LINSTOCK_TRACE_H_
#define LINSTOCK_LINSTOCK_TRACE_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ls_trace_kind {
  LS_TRACE_OPERATOR = 0,
  LS_TRACE_BACKWARD = 1, /* a node of a backward pass */
  LS_TRACE_RANGE = 2     /* ls_range_push */
};
typedef struct ls_trace_event {
  int64_t start_ns, end_ns; /* since the epoch, by a clock that never goes back while events are recorded */
  int64_t bytes;            /* of the CPU: requested less freed, by this thread within the event */
  int64_t device_bytes;     /* the same of all other devices */
  int64_t sequence;         /* autograd's number, which the operator and the node that it makes share; -1: none */
  uint64_t thread;
  uint64_t forward_thread; /* of a node: the thread of the forward operator; else 0 */
  uint32_t name, shapes;   /* numbers for ls_trace_text; shapes: 0 for none */
  uint32_t site;           /* LS_NO_SITE if it was not attributed */
  int32_t kind;
  uint32_t depth; /* how many events of the thread it lies within */
  int32_t inside; /* the site is that of a call from a callback within a backward pass */
} ls_trace_event;
enum ls_trace_flags { LS_TRACE_SHAPES = 1 /* record the sizes of the operands */ };
/* Records the events of all threads that begin from now on, max at most, until ls_trace_stop. What was recorded
 * before is dropped. While events are recorded the scope words of their threads have LS_SCOPE_SAMPLED, and
 * ls_samples_attach names the site of the calling thread's new events. */
LS_API ls_error *ls_trace_start(uint32_t flags, uint64_t max) LS_NOEXCEPT;
LS_API void ls_trace_stop(void) LS_NOEXCEPT;
/* Moves recorded events, cap at most, to out, each thread's in the order of their ends. Returns their number; 0:
 * there are no more. For use after ls_trace_stop. */
LS_API uint64_t ls_trace_take(ls_trace_event *out, uint64_t cap) LS_NOEXCEPT;
/* Returns a text of the last ls_trace_start's events: a name, or sizes as "[[8, 4], []]". */
LS_API ls_results ls_trace_text(uint32_t number, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* Returns how many events were not recorded since ls_trace_start, for lack of room. */
LS_API uint64_t ls_trace_dropped(void) LS_NOEXCEPT;

/* Begins a range with a name, which is an event if events are recorded. ls_range_pop ends it, on the same thread,
 * innermost first. */
LS_API ls_error *ls_range_push(const char *name, uintptr_t *range) LS_NOEXCEPT;
LS_API void ls_range_pop(uintptr_t range) LS_NOEXCEPT;

/* Makes an NVTX range of each event of all threads, until it was turned off as often as on. Needs the CUDA
 * library. */
LS_API ls_error *ls_nvtx_set(int32_t on) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_TRACE_H_ */

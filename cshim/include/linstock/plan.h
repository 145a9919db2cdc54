/* Plans of memory: what a program would allocate, recorded on the meta device, which has shapes and no memory. */
#ifndef LINSTOCK_LINSTOCK_PLAN_H_
#define LINSTOCK_LINSTOCK_PLAN_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A storage on the meta device, in the order of allocation. Positions count the recording's allocations and frees.
 */
typedef struct ls_plan_block {
  uint64_t storage; /* ls_meta.data of its tensors */
  int64_t bytes;    /* as requested */
  int64_t rounded;  /* as the CPU's allocator would round them */
  int64_t born;     /* position */
  int64_t died;     /* position; -1: still live */
  int32_t dtype;    /* of the first tensor that an operator returned in it; -1: unknown */
  uint32_t op;      /* what allocated it, for ls_plan_op */
  int32_t backward; /* non-zero: in a backward pass */
  int32_t unused;
} ls_plan_block;
/* Bytes are as the CPU's allocator rounds them. */
typedef struct ls_plan_totals {
  int64_t live, peak, total;
  int64_t position; /* of the next event */
} ls_plan_totals;
/* Begins to record the storages on the meta device that the calling thread allocates, and their frees by any
 * thread. Fails if the thread records already. */
LS_API ls_error *ls_plan_begin(void) LS_NOEXCEPT;
/* Ends the recording of the calling thread and drops it. */
LS_API void ls_plan_end(void) LS_NOEXCEPT;
/* What follows reads the calling thread's recording; 0 without one. */
LS_API ls_plan_totals ls_plan_read(void) LS_NOEXCEPT;
/* Writes the blocks; returns their number; writes at most cap. */
LS_API uint64_t ls_plan_blocks(ls_plan_block *out, uint64_t cap) LS_NOEXCEPT;
/* Returns the name of an operator, such as "aten::add", as a string. */
LS_API ls_results ls_plan_op(uint32_t op, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* Returns the bytes that the CPU's allocator takes for n bytes. */
LS_API int64_t ls_plan_rounded(int64_t n) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_PLAN_H_ */

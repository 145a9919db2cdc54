/* The caching allocator and graph capture of CUDA devices. */
#ifndef LINSTOCK_LINSTOCK_CUDA_H_
#define LINSTOCK_LINSTOCK_CUDA_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The caching allocator's segments and settings as the pickle that PyTorch's memory viewer reads, a string,
 * without stacks and events: those are in the history. Empty if no device has been used. */
LS_API ls_results ls_cuda_snapshot(ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* The options of PyTorch's caching allocator, which the environment's PYTORCH_CUDA_ALLOC_CONF or
 * PYTORCH_ALLOC_CONF sets first. */
typedef struct ls_allocator_settings {
  int64_t max_split_size; /* bytes; 0: any block is split */
  double garbage_collection_threshold;
  int32_t expandable_segments, unused;
  double memory_fraction; /* per_process_memory_fraction of the environment; 1: none */
} ls_allocator_settings;
/* Returns the text that set them as a string; empty: none did. */
LS_API ls_results ls_cuda_allocator_settings(ls_allocator_settings *settings, ls_value *out,
                                             uint64_t out_slots) LS_NOEXCEPT;
/* Sets them from a text as in the environment. Options that it does not name get their defaults, except
 * expandable_segments. After an error the options are unchanged. */
LS_API ls_error *ls_cuda_set_allocator_settings(const char *text) LS_NOEXCEPT;
/* Reports whether one of the calling thread's streams captures a graph. Frees that can wait should wait then. */
LS_API int32_t ls_cuda_capturing(void) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_CUDA_H_ */

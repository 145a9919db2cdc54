// Shared by state.c and cudart.c.
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "fake.h"

extern __thread cudaError_t fake_last_error;
int fake_set_device(int device);
int fake_lost(int device);
int fake_alloc(int device, void **out, size_t n);  // device -1: pinned host memory
int fake_free(void *p, int host);
int fake_range(const void *p, int *device, void **base, int64_t *size);
int fake_copy(void *to, const void *from, size_t n, int to_device, int from_device);
int fake_set(void *to, int value, size_t n);

// streams.c
int fake_stream_device(cudaStream_t s);
int fake_unsafe(void);
// Stands in functions that a capture does not allow.
#define UNSAFE()            \
  do {                      \
    int e_ = fake_unsafe(); \
    if (e_ != 0) return e_; \
  } while (0)
int fake_give_kernel(cudaStream_t s);
int fake_give_copy(cudaStream_t s, void *to, const void *from, size_t n, int to_device, int from_device);
int fake_give_set(cudaStream_t s, void *to, int value, size_t n);

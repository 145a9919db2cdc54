// The driver API: what probes query, and virtual memory for the allocator's expandable segments.
#define _GNU_SOURCE
#include <cuda.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fake.h"

#define API __attribute__((visibility("default")))

API CUresult cuInit(unsigned flags) {
  (void)flags;
  int e = fakecuda_start_error("cuInit");
  if (e != 0) return (CUresult)e;
  return fakecuda_get()->devices > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
API CUresult cuDriverGetVersion(int *v) {
  *v = CUDA_VERSION;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGetCount(int *n) {
  *n = (int)fakecuda_get()->devices;
  return CUDA_SUCCESS;
}
API CUresult cuDeviceGet(CUdevice *d, int ordinal) {
  *d = ordinal;
  return ordinal < fakecuda_get()->devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
API CUresult cuDeviceGetAttribute(int *v, CUdevice_attribute a, CUdevice d) {
  (void)d;
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *v = 8;
      break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      *v = 1;
      break;
    default:
      *v = 0;
  }
  return CUDA_SUCCESS;
}
API CUresult cuDevicePrimaryCtxGetState(CUdevice d, unsigned *flags, int *active) {
  *flags = 0;
  *active = fakecuda_has_context(d);
  return CUDA_SUCCESS;
}
// A context is its device's number plus 1.
API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice d) {
  *c = (CUcontext)(uintptr_t)(d + 1);
  return CUDA_SUCCESS;
}
API CUresult cuCtxGetCurrent(CUcontext *c) {
  *c = (CUcontext)(uintptr_t)(fakecuda_current_device() + 1);
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorString(CUresult e, const char **s) {
  *s = e == CUDA_SUCCESS ? "no error" : "a fake CUDA driver error";
  return CUDA_SUCCESS;
}
API CUresult cuGetErrorName(CUresult e, const char **s) {
  *s = e == CUDA_SUCCESS ? "CUDA_SUCCESS" : "CUDA_ERROR_FAKE";
  return CUDA_SUCCESS;
}
static CUresult zero(void *p, size_t n) {
  memset(p, 0, n);
  return CUDA_SUCCESS;
}
API CUresult cuModuleLoad(CUmodule *m, const char *f) {
  (void)f;
  return zero(m, sizeof *m);
}
API CUresult cuModuleLoadData(CUmodule *m, const void *image) {
  (void)image;
  return zero(m, sizeof *m);
}
API CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) {
  (void)m, (void)name;
  return zero(f, sizeof *f);
}
API CUresult cuFuncGetAttribute(int *v, CUfunction_attribute a, CUfunction f) {
  (void)a, (void)f;
  return zero(v, sizeof *v);
}
API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block, size_t shared) {
  (void)f, (void)block, (void)shared;
  *n = 2;
  return CUDA_SUCCESS;
}

// ---- virtual memory ----

struct chunk {
  int device;
  int references;  // the handle, and each mapping
  size_t size;
};
enum { kGranularity = 2 << 20 };

API CUresult cuMemGetAllocationGranularity(size_t *n, const CUmemAllocationProp *p,
                                           CUmemAllocationGranularity_flags f) {
  (void)p, (void)f;
  *n = kGranularity;
  return CUDA_SUCCESS;
}
API CUresult cuMemCreate(CUmemGenericAllocationHandle *h, size_t n, const CUmemAllocationProp *p,
                         unsigned long long flags) {
  (void)flags;
  ENTER(ALLOC, p->location.id);
  if (fakecuda_take(p->location.id, (int64_t)n) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  struct chunk *c = malloc(sizeof *c);
  *c = (struct chunk){p->location.id, 1, n};
  *h = (CUmemGenericAllocationHandle)(uintptr_t)c;
  return CUDA_SUCCESS;
}
static void drop(struct chunk *c) {
  if (__atomic_sub_fetch(&c->references, 1, __ATOMIC_SEQ_CST) != 0) return;
  fakecuda_give(c->device, (int64_t)c->size);
  free(c);
}
API CUresult cuMemRelease(CUmemGenericAllocationHandle h) {
  struct chunk *c = (struct chunk *)(uintptr_t)h;
  ENTER(FREE, c->device);
  drop(c);
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressReserve(CUdeviceptr *p, size_t n, size_t align, CUdeviceptr at,
                                 unsigned long long flags) {
  (void)align, (void)at, (void)flags;
  ENTER(ANY, fakecuda_current_device());
  // Room to align to the granularity, which the kernel does not guarantee.
  char *m = mmap(NULL, n + kGranularity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (m == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  char *first = (char *)(((uintptr_t)m + kGranularity - 1) / kGranularity * kGranularity);
  if (first != m) munmap(m, (size_t)(first - m));
  if (first + n != m + n + kGranularity) munmap(first + n, (size_t)(m + kGranularity - first));
  *p = (CUdeviceptr)(uintptr_t)first;
  return CUDA_SUCCESS;
}
API CUresult cuMemAddressFree(CUdeviceptr p, size_t n) {
  munmap((void *)(uintptr_t)p, n);
  return CUDA_SUCCESS;
}
// Where each chunk is mapped. There are few, so this is a list.
static struct mapping {
  CUdeviceptr p;
  struct chunk *c;
  struct mapping *next;
} *mappings;
static int lock;
static void acquire(void) {
  while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE) != 0) {
  }
}
static void release(void) { __atomic_store_n(&lock, 0, __ATOMIC_RELEASE); }

API CUresult cuMemMap(CUdeviceptr p, size_t n, size_t offset, CUmemGenericAllocationHandle h,
                      unsigned long long flags) {
  (void)offset, (void)flags;
  struct chunk *c = (struct chunk *)(uintptr_t)h;
  ENTER(ANY, c->device);
  void *m = mmap((void *)(uintptr_t)p, n, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  if (m == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  struct mapping *map = malloc(sizeof *map);
  __atomic_add_fetch(&c->references, 1, __ATOMIC_SEQ_CST);
  acquire();
  *map = (struct mapping){p, c, mappings};
  mappings = map;
  release();
  fakecuda_note_range(m, (int64_t)n, c->device);
  return CUDA_SUCCESS;
}
API CUresult cuMemUnmap(CUdeviceptr p, size_t n) {
  ENTER(FREE, fakecuda_current_device());
  // libtorch unmaps one handle at a time or several together.
  acquire();
  for (struct mapping **at = &mappings; *at != NULL;) {
    struct mapping *m = *at;
    if (m->p < p || m->p >= p + n) {
      at = &m->next;
      continue;
    }
    *at = m->next;
    fakecuda_note_range((void *)(uintptr_t)m->p, 0, 0);
    drop(m->c);
    free(m);
  }
  release();
  mmap((void *)(uintptr_t)p, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return CUDA_SUCCESS;
}
API CUresult cuMemSetAccess(CUdeviceptr p, size_t n, const CUmemAccessDesc *d, size_t count) {
  (void)p, (void)n, (void)d, (void)count;
  return CUDA_SUCCESS;
}

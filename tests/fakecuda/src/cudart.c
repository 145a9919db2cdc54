// The functions of the CUDA runtime that must do more than return 0. The others are generated.
#define _GNU_SOURCE
#include "cudart.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

// ---- errors and devices ----

API const char *cudaGetErrorName(cudaError_t e) {
  switch ((int)e) {
    case 0:
      return "cudaSuccess";
    case 2:
      return "cudaErrorMemoryAllocation";
    case 46:
      return "cudaErrorDevicesUnavailable";
    case 700:
      return "cudaErrorIllegalAddress";
    case 719:
      return "cudaErrorLaunchFailure";
    case 900:
      return "cudaErrorStreamCaptureUnsupported";
    case 901:
      return "cudaErrorStreamCaptureInvalidated";
    case 904:
      return "cudaErrorStreamCaptureUnjoined";
    case 905:
      return "cudaErrorStreamCaptureIsolation";
    case 907:
      return "cudaErrorCapturedEvent";
    case 999:
      return "cudaErrorUnknown";
  }
  return "cudaErrorOther";
}
API const char *cudaGetErrorString(cudaError_t e) {
  switch ((int)e) {
    case 0:
      return "no error";
    case 2:
      return "out of memory";
    case 46:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case 700:
      return "an illegal memory access was encountered";
    case 719:
      return "unspecified launch failure";
    case 900:
      return "operation not permitted when stream is capturing";
    case 901:
      return "operation failed due to a previous error during capture";
    case 904:
      return "capturing stream has unjoined work";
    case 905:
      return "dependency created on uncaptured work in another stream";
    case 907:
      return "operation not permitted on an event last recorded in a capturing stream";
    case 999:
      return "unknown error";
  }
  return "a fake CUDA error";
}
// Reading a sticky error does not clear it: the device returns it from every call. Only the thread's last error
// is cleared, so that the thread can use other devices.
API cudaError_t cudaPeekAtLastError(void) {
  ASK(fakecuda_current_device());
  return fake_last_error;
}
API cudaError_t cudaGetLastError(void) {
  static int64_t id;
  int injected = fakecuda_ask(&id, __func__, FAKECUDA_ANY, fakecuda_current_device());
  cudaError_t e = injected != 0 ? (cudaError_t)injected : fake_last_error;
  fake_last_error = cudaSuccess;
  return e;
}

static cudaError_t no_device(void) { return fake_last_error = cudaErrorNoDevice; }
API cudaError_t cudaGetDeviceCount(int *n) {
  int e = fakecuda_start_error("cudaGetDeviceCount");
  *n = e != 0 ? 0 : (int)fakecuda_get()->devices;
  if (e != 0) return fake_last_error = (cudaError_t)e;
  return *n > 0 ? cudaSuccess : no_device();
}
API cudaError_t cudaGetDevice(int *d) {
  *d = fakecuda_current_device();
  return fakecuda_get()->devices > 0 ? cudaSuccess : no_device();
}
API cudaError_t cudaSetDevice(int d) { return fake_set_device(d); }
API cudaError_t cudaDriverGetVersion(int *v) {
  *v = fakecuda_start_error("cudaGetDeviceCount") == cudaErrorInsufficientDriver ? 11000 : CUDART_VERSION;
  return cudaSuccess;
}
API cudaError_t cudaRuntimeGetVersion(int *v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}
// Roughly an A100, unless FAKECUDA_MAJOR is set: the wheels contain code for it for every kernel.
static int capability(void) {
  const char *m = getenv("FAKECUDA_MAJOR");
  return m != NULL ? atoi(m) : 8;
}
API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  ASK(device);
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "Fake CUDA device");
  p->uuid.bytes[0] = 'f';
  p->uuid.bytes[15] = (char)device;
  p->major = capability();
  p->totalGlobalMem = (size_t)fakecuda_get()->device[device].capacity;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 163 << 10;
  p->sharedMemPerMultiprocessor = 164 << 10;
  p->reservedSharedMemPerBlock = 1 << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 64 << 10;
  p->textureAlignment = 512;
  p->texturePitchAlignment = 32;
  p->multiProcessorCount = 108;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->l2CacheSize = 40 << 20;
  p->memoryBusWidth = 5120;
  p->unifiedAddressing = p->managedMemory = p->canMapHostMemory = p->concurrentKernels = 1;
  p->streamPrioritiesSupported = p->cooperativeLaunch = p->computePreemptionSupported = 1;
  p->asyncEngineCount = 3;
  p->pciBusID = device + 1;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int device) {
  ASK(device);
  switch (a) {
    case cudaDevAttrComputeCapabilityMajor:
      *v = capability();
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *v = 1024;
      break;
    case cudaDevAttrMaxGridDimX:
      *v = 2147483647;
      break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      *v = 65535;
      break;
    case cudaDevAttrMultiProcessorCount:
      *v = 108;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *v = 2048;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
    case cudaDevAttrWarpSize:
      *v = 32;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *v = 48 << 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *v = 163 << 10;
      break;
    case cudaDevAttrL2CacheSize:
      *v = 40 << 20;
      break;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrUnifiedAddressing:
      *v = 1;
      break;
    default:
      *v = 0;
  }
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int device) {
  snprintf(s, (size_t)n, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  ENTER(ANY, fakecuda_current_device());
  if (least != NULL) *least = 0;
  if (greatest != NULL) *greatest = -5;
  return cudaSuccess;
}
API cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

// A driver function requested by name. Functions without an implementation do nothing and succeed.
static int nothing(void) { return 0; }
API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **f, unsigned version,
                                                 unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *how) {
  (void)version, (void)flags;
  static void *driver;
  if (driver == NULL) driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  char v2[128];
  snprintf(v2, sizeof v2, "%s_v2", symbol);
  *f = driver != NULL ? dlsym(driver, symbol) : NULL;
  if (*f == NULL && driver != NULL) *f = dlsym(driver, v2);
  if (*f == NULL) *f = (void *)nothing;
  if (how != NULL) *how = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// ---- memory ----

API cudaError_t cudaMalloc(void **p, size_t n) {
  ENTER(ALLOC, fakecuda_current_device());
  UNSAFE();
  return fake_alloc(fakecuda_current_device(), p, n);
}
API cudaError_t cudaMallocManaged(void **p, size_t n, unsigned flags) {
  (void)flags;
  return cudaMalloc(p, n);
}
API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t s) {
  ENTER(ALLOC, fake_stream_device(s));
  return fake_alloc(fake_stream_device(s), p, n);
}
API cudaError_t cudaFree(void *p) {
  int device = fakecuda_current_device();
  fake_range(p, &device, NULL, NULL);
  ENTER(FREE, device < 0 ? 0 : device);
  UNSAFE();
  return fake_free(p, 0);
}
API cudaError_t cudaFreeAsync(void *p, cudaStream_t s) {
  ENTER(FREE, fake_stream_device(s));
  return fake_free(p, 0);
}
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) {
  (void)flags;
  ENTER(ANY, fakecuda_current_device());
  UNSAFE();
  return fake_alloc(-1, p, n);
}
API cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
API cudaError_t cudaFreeHost(void *p) {
  ENTER(ANY, fakecuda_current_device());
  UNSAFE();
  return fake_free(p, 1);
}
API cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  int device = fakecuda_current_device();
  ENTER(ANY, device);
  fakecuda_device *d = &fakecuda_get()->device[device];
  *total = (size_t)d->capacity;
  *free = d->capacity > d->live ? (size_t)(d->capacity - d->live) : 0;
  return cudaSuccess;
}
API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  int device;
  memset(a, 0, sizeof *a);
  if (!fake_range(p, &device, NULL, NULL)) {
    a->device = -2;
    a->hostPointer = (void *)p;
    return cudaSuccess;
  }
  a->type = device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  a->device = device < 0 ? 0 : device;
  a->devicePointer = (void *)p;
  a->hostPointer = device < 0 ? (void *)p : NULL;
  return cudaSuccess;
}
static int copy(cudaStream_t s, void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  return fake_give_copy(s, to, from, n, kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
                        kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice);
}
API cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  ENTER(SYNC, fakecuda_current_device());
  UNSAFE();
  return copy(NULL, to, from, n, kind);
}
API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
  ENTER(COPY, fake_stream_device(s));
  return copy(s, to, from, n, kind);
}
API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t n,
                                    cudaStream_t s) {
  ENTER(COPY, to_device);
  ENTER(COPY, from_device);
  return fake_give_copy(s, to, from, n, 1, 1);
}
API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                                  size_t height, enum cudaMemcpyKind kind, cudaStream_t s) {
  ENTER(COPY, fake_stream_device(s));
  for (size_t i = 0; i < height; i++) {
    int e = copy(s, (char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind);
    if (e != 0) return e;
  }
  return cudaSuccess;
}
API cudaError_t cudaMemset(void *p, int v, size_t n) {
  ENTER(COPY, fakecuda_current_device());
  return fake_set(p, v, n);
}
API cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) {
  ENTER(COPY, fake_stream_device(s));
  return fake_give_set(s, p, v, n);
}
static cudaError_t unsupported(void) { return fake_last_error = cudaErrorNotSupported; }
API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p) {
  (void)h, (void)p;
  return unsupported();
}
API cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *h, cudaEvent_t e) {
  (void)h, (void)e;
  return unsupported();
}
API cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned flags) {
  (void)p, (void)h, (void)flags;
  return unsupported();
}
API cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *e, cudaIpcEventHandle_t h) {
  (void)e, (void)h;
  return unsupported();
}
API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *p, int device) {
  *p = (cudaMemPool_t)(uintptr_t)(16 * (device + 1));
  return cudaSuccess;
}
API cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t p, enum cudaMemPoolAttr a, void *v) {
  (void)p, (void)a;
  *(uint64_t *)v = 0;
  return cudaSuccess;
}
API cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType a, void *v) {
  (void)device, (void)a;
  *(uint64_t *)v = 0;
  return cudaSuccess;
}

// ---- kernels ----

static __thread struct {
  dim3 grid, block;
  size_t shared;
  void *stream;
} pushed;
API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  pushed.grid = grid;
  pushed.block = block;
  pushed.shared = shared;
  pushed.stream = stream;
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *(void **)stream = pushed.stream;
  return cudaSuccess;
}
API void **__cudaRegisterFatBinary(void *binary) {
  (void)binary;
  static void *handle;
  return &handle;
}
API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *entry) {
  *kernel = (cudaKernel_t)entry;
  return cudaSuccess;
}
API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                   cudaStream_t s) {
  (void)kernel, (void)grid, (void)block, (void)args, (void)shared;
  ENTER(LAUNCH, fake_stream_device(s));
  return fake_give_kernel(s);
}
API cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
                                 cudaStream_t s) {
  (void)f, (void)grid, (void)block, (void)args, (void)shared;
  ENTER(LAUNCH, fake_stream_device(s));
  return fake_give_kernel(s);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared,
                                            cudaStream_t s) {
  return cudaLaunchKernel(f, grid, block, args, shared, s);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **args) {
  (void)f, (void)args;
  ENTER(LAUNCH, fake_stream_device(c->stream));
  return fake_give_kernel(c->stream);
}
API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  (void)f;
  ENTER(ANY, fakecuda_current_device());
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = 80;
  a->maxDynamicSharedSizeBytes = 48 << 10;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block,
                                                                       size_t shared, unsigned flags) {
  (void)f, (void)block, (void)shared, (void)flags;
  ENTER(ANY, fakecuda_current_device());
  *n = 2;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, block, shared, 0);
}
// The device memory of a symbol is the host variable of the same name.
API cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) {
  ENTER(ANY, fakecuda_current_device());
  *p = (void *)symbol;
  return cudaSuccess;
}

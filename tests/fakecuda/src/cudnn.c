// cuDNN: what convolutions, batch norms and RNNs query before they launch kernels.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define API __attribute__((visibility("default")))

// Set by build.sh to the version that libtorch was compiled with, which it compares.
#ifndef FAKE_CUDNN_VERSION
#define FAKE_CUDNN_VERSION 91900
#endif
API size_t cudnnGetVersion(void) { return FAKE_CUDNN_VERSION; }
// Python computes the major, minor and patch version this way and refuses versions older than the one it was
// compiled with.
API int cudnnGetProperty(int which, int *value) {
  *value = which == 0 ? 9 : which == 1 ? 99 : 0;
  return 0;
}

// ---- the graph API: a descriptor stores only its type ----

struct descriptor {
  int type;
};
API int cudnnBackendCreateDescriptor(int type, void **d) {
  struct descriptor *p = calloc(1, 64);
  p->type = type;
  *d = p;
  return 0;
}
API int cudnnBackendDestroyDescriptor(void *d) {
  free(d);
  return 0;
}
// Every attribute has one element, which is zero. Descriptors that the caller passes to be filled are not
// changed. Element sizes are indexed by enum cudnnBackendAttributeType_t.
API int cudnnBackendGetAttribute(const void *d, int name, int type, int64_t n, int64_t *count, void *out) {
  (void)d;
  enum { kTypeBackendDescriptor = 15, kTypeInt64 = 3, kTypeDouble = 5, kTypeVoidPtr = 6 };
  enum { kEngineNumericalNote = 1302, kEngineBehaviorNote = 1305, kEngineKnobInfo = 1303 };
  int64_t have = name == kEngineNumericalNote || name == kEngineBehaviorNote || name == kEngineKnobInfo ? 0 : 1;
  if (count != NULL) *count = have;
  if (out == NULL || have == 0 || n == 0 || type == kTypeBackendDescriptor) return 0;
  memset(out, 0, type == kTypeInt64 || type == kTypeDouble || type == kTypeVoidPtr ? 8 : 4);
  return 0;
}

// ---- RNN: all weights are contiguous in memory that the caller allocates ----

static __thread size_t weights;
API int cudnnGetRNNWeightSpaceSize(void *h, void *rnn, size_t *n) {
  (void)h, (void)rnn;
  *n = weights != 0 ? weights : 64;
  return 0;
}
API int cudnnGetRNNTempSpaceSizes(void *h, void *rnn, int mode, void *x, size_t *work, size_t *reserve) {
  (void)h, (void)rnn, (void)mode, (void)x;
  *work = 1024;
  if (reserve != NULL) *reserve = 1024;
  return 0;
}

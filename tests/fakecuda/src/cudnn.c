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

// ---- RNN: all weights are contiguous in memory that the caller allocates, one layer and direction after the
// other ----

enum { kLSTM = 2, kGRU = 3, kDouble = 1, kHalf = 2, kBFloat16 = 9 };
struct rnn {
  int mode, directions, element;
  int64_t input, hidden, projection, layers;
};
API int cudnnCreateRNNDescriptor(struct rnn **r) {
  *r = calloc(1, sizeof **r);
  return 0;
}
API int cudnnDestroyRNNDescriptor(struct rnn *r) {
  free(r);
  return 0;
}
API int cudnnSetRNNDescriptor_v8(struct rnn *r, int algorithm, int mode, int bias, int direction, int input_mode,
                                 int type, int precision, int math, int32_t input, int32_t hidden,
                                 int32_t projection, int32_t layers, void *dropout, uint32_t flags) {
  (void)algorithm, (void)bias, (void)input_mode, (void)precision, (void)math, (void)dropout, (void)flags;
  int element = type == kDouble ? 8 : type == kHalf || type == kBFloat16 ? 2 : 4;
  *r = (struct rnn){mode, direction + 1, element, input, hidden, projection, layers};
  return 0;
}
static int64_t gates(const struct rnn *r) { return r->mode == kLSTM ? 4 : r->mode == kGRU ? 3 : 1; }
static int64_t width(const struct rnn *r, int64_t layer) {
  return layer < r->directions ? r->input : r->projection * r->directions;
}
// The number of weights of a layer and direction: the matrices for x and for the state, two biases, and the
// projection.
static int64_t layer_size(const struct rnn *r, int64_t layer) {
  int64_t n = gates(r) * r->hidden * (width(r, layer) + r->projection + 2);
  return r->projection == r->hidden ? n : n + r->projection * r->hidden;
}
API int cudnnGetRNNWeightSpaceSize(void *h, const struct rnn *r, size_t *n) {
  (void)h;
  *n = 0;
  for (int64_t i = 0; i < r->layers * r->directions; i++) *n += layer_size(r, i) * r->element;
  return 0;
}
static __thread int shape[3];  // of the last weight, instead of its descriptor
// The ids are those of the gates for x, then of the gates for the state, then of the projection.
API int cudnnGetRNNWeightParams(void *h, const struct rnn *r, int32_t layer, size_t n, void *weights, int32_t id,
                                void *matrix, void **matrix_at, void *bias, void **bias_at) {
  (void)h, (void)n, (void)matrix, (void)bias;
  char *at = weights;
  for (int64_t i = 0; i < layer; i++) at += layer_size(r, i) * r->element;
  int64_t in = width(r, layer), g = gates(r), block = r->hidden * r->element;
  int of_state = id >= g, projects = id >= 2 * g;
  if (matrix_at != NULL) {
    int64_t before = of_state ? g * in + (id - g) * r->projection : id * in;
    if (projects) before = g * (in + r->projection + 2);
    *matrix_at = at + before * block;
    shape[0] = 1, shape[1] = projects ? r->projection : r->hidden;
    shape[2] = projects ? r->hidden : of_state ? r->projection : in;
  }
  if (bias_at != NULL) {
    *bias_at = at + (g * (in + r->projection) + id) * block;
    shape[0] = 1, shape[1] = r->hidden, shape[2] = 1;
  }
  return 0;
}
API int cudnnGetTensorNdDescriptor(const void *d, int least, int *type, int *dims, int sizes[], int strides[]) {
  (void)d, (void)least, (void)type, (void)strides;
  *dims = 3;
  memcpy(sizes, shape, sizeof shape);
  return 0;
}
API int cudnnGetRNNTempSpaceSizes(void *h, void *rnn, int mode, void *x, size_t *work, size_t *reserve) {
  (void)h, (void)rnn, (void)mode, (void)x;
  *work = 1024;
  if (reserve != NULL) *reserve = 1024;
  return 0;
}

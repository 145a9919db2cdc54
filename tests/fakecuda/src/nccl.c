// The part of NCCL that libtorch's process groups use, between processes of one machine.
//
// The ranks of a communicator share a file in FAKENCCL_DIR (default /dev/shm) that the unique ID names; it is
// removed when the last rank has arrived. Each communicator has a thread that does its work in order: collectives
// in pieces, reduced in the order of the ranks. On a stream such work is not done before the thread says so
// (fake.h).
//
// Rules (fakecuda.h) name these functions, with an ncclResult_t as the error, or "ncclKernel", the work itself:
// its error is the communicator's asynchronous error, its delay is the thread's. As on a real device, a rank that
// is gone is not noticed, and work that cannot end waits until the communicator is aborted; with FAKENCCL_NOTICE=1
// it is an asynchronous error, ncclRemoteError.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

#define API __attribute__((visibility("default")))
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)

enum { SUCCESS, UNHANDLED_CUDA, SYSTEM, INTERNAL, INVALID_ARGUMENT, INVALID_USAGE, REMOTE, IN_PROGRESS };
enum { SUM, PROD, MAX, MIN, AVG, REDUCTIONS };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
static const size_t size_of[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};

typedef struct {
  char name[128];
} ncclUniqueId;
typedef struct {  // the members that all versions have
  size_t size;
  unsigned magic, version;
  int blocking;
} ncclConfig;

enum { PIECE = 1 << 16, RANKS = 64 };
struct mail {
  int64_t sent, received;
  char data[PIECE];
};
struct shared {
  int32_t arrived;
  struct {
    pthread_mutex_t alive;  // held by the rank's thread: its owner's death is noticed
    int32_t left;
    int64_t step;
    char data[PIECE];
  } rank[RANKS];
  struct mail mail[];  // [from][to]
};

enum { ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, SEND, RECV };
struct op {
  int kind, type, reduction, peer;
  const char *from;
  char *to;
  size_t count;
  size_t done;  // bytes sent or received
};
struct batch {
  struct op *ops;
  int n, streams;
  fakecuda_pending *pending[8];
  void *stream[8];
  struct batch *next;
};
typedef struct ncclComm {
  int rank, size, device;
  struct shared *shared;
  size_t bytes;
  char path[256];
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  int ready, stop, busy;
  int32_t aborted, error;
  struct batch *queue;
} *comm_t;

static int notices(void) {
  const char *on = getenv("FAKENCCL_NOTICE");
  return on != NULL && strcmp(on, "1") == 0;
}

#define ENTER_NCCL(device)                                              \
  do {                                                                  \
    static int64_t id;                                                  \
    int e_ = fakecuda_enter_own(&id, __func__, device, UNHANDLED_CUDA); \
    if (e_ != SUCCESS) return e_;                                       \
  } while (0)

// ---- the thread ----

static int gone(comm_t c, int r) {
  if (LOAD(c->shared->rank[r].left)) return 1;
  pthread_mutex_t *alive = &c->shared->rank[r].alive;
  int e = pthread_mutex_trylock(alive);
  if (e == EOWNERDEAD) {
    STORE(c->shared->rank[r].left, 1);
    pthread_mutex_consistent(alive);
  }
  if (e != EBUSY) pthread_mutex_unlock(alive);
  return e == EOWNERDEAD;
}

// Pauses in a wait. Returns an error if it cannot end, or -1 once the communicator is aborted.
static int pause_for(comm_t c, int times) {
  if (LOAD(c->aborted)) return -1;
  if (times % 64 == 63 && notices())
    for (int r = 0; r < c->size; r++)
      if (r != c->rank && gone(c, r)) return REMOTE;
  if (times < 100)
    sched_yield();
  else
    usleep(100);
  return 0;
}

// Waits until all ranks are here.
static int meet(comm_t c) {
  int64_t step = ADD(c->shared->rank[c->rank].step, 1);
  for (int r = 0; r < c->size; r++)
    for (int i = 0; LOAD(c->shared->rank[r].step) < step; i++) {
      int e = pause_for(c, i);
      if (e != 0) return e;
    }
  return 0;
}

static float of_bfloat16(uint16_t v) {
  uint32_t bits = (uint32_t)v << 16;
  float f;
  memcpy(&f, &bits, 4);
  return f;
}
static uint16_t to_bfloat16(float f) {
  uint32_t bits;
  memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define COMBINE(a, b) \
  (op == PROD ? (a) * (b) : op == MAX ? ((a) > (b) ? (a) : (b)) : op == MIN ? ((a) < (b) ? (a) : (b)) : (a) + (b))
#define REDUCE_AS(T, C, load, store)                            \
  for (size_t i = 0; i < n; i++) {                              \
    C all = (C)load(((const T *)c->shared->rank[0].data)[i]);   \
    for (int r = 1; r < c->size; r++) {                         \
      C one = (C)load(((const T *)c->shared->rank[r].data)[i]); \
      all = (C)load(store((C)COMBINE(all, one)));               \
    }                                                           \
    if (op == AVG) all = (C)(all / (C)c->size);                 \
    ((T *)to)[i] = (T)store(all);                               \
  }
static void reduce(comm_t c, void *to, size_t n, int type, int op) {
  switch (type) {
    case INT8:
      REDUCE_AS(int8_t, int8_t, , (int8_t))
      break;
    case UINT8:
      REDUCE_AS(uint8_t, uint8_t, , (uint8_t))
      break;
    case INT32:
      REDUCE_AS(int32_t, int32_t, , )
      break;
    case UINT32:
      REDUCE_AS(uint32_t, uint32_t, , )
      break;
    case INT64:
      REDUCE_AS(int64_t, int64_t, , )
      break;
    case UINT64:
      REDUCE_AS(uint64_t, uint64_t, , )
      break;
    case FLOAT16:
      REDUCE_AS(_Float16, float, , (_Float16))
      break;
    case FLOAT32:
      REDUCE_AS(float, float, , )
      break;
    case FLOAT64:
      REDUCE_AS(double, double, , )
      break;
    case BFLOAT16:
      REDUCE_AS(uint16_t, float, of_bfloat16, to_bfloat16)
      break;
  }
}

static int collective(comm_t c, struct op *o) {
  size_t unit = size_of[o->type], bytes = o->count * unit;
  // The parts of a reduce-scatter are reduced one after the other.
  for (int part = 0; part < (o->kind == REDUCE_SCATTER ? c->size : 1); part++)
    for (size_t at = 0; at < bytes; at += PIECE) {
      size_t n = bytes - at < PIECE ? bytes - at : PIECE;
      if (o->kind != BROADCAST || c->rank == o->peer)
        memcpy(c->shared->rank[c->rank].data, o->from + (size_t)part * bytes + at, n);
      int e = meet(c);
      if (e != 0) return e;
      if (o->kind == ALL_GATHER)
        for (int r = 0; r < c->size; r++) memcpy(o->to + (size_t)r * bytes + at, c->shared->rank[r].data, n);
      else if (o->kind == BROADCAST)
        memcpy(o->to + at, c->shared->rank[o->peer].data, n);
      else if (o->kind == ALL_REDUCE || c->rank == (o->kind == REDUCE ? o->peer : part))
        reduce(c, o->to + at, n / unit, o->type, o->reduction);
      e = meet(c);
      if (e != 0) return e;
    }
  return 0;
}

// Moves a piece of a send or receive. Returns 0 if its peer is not ready.
static int move(comm_t c, struct op *o) {
  int from = o->kind == SEND ? c->rank : o->peer, to = o->kind == SEND ? o->peer : c->rank;
  struct mail *m = &c->shared->mail[from * c->size + to];
  size_t left = o->count * size_of[o->type] - o->done, n = left < PIECE ? left : PIECE;
  int full = LOAD(m->sent) != LOAD(m->received);
  if (full != (o->kind == RECV)) return 0;
  if (o->kind == SEND)
    memcpy(m->data, o->from + o->done, n);
  else
    memcpy(o->to + o->done, m->data, n);
  o->done += n;
  if (o->kind == SEND)
    ADD(m->sent, 1);
  else
    ADD(m->received, 1);
  return 1;
}

// Sends and receives of a batch are done together.
static int exchange(comm_t c, struct batch *b) {
  for (int i = 0;;) {
    int open = 0, moved = 0;
    for (int k = 0; k < b->n; k++) {
      struct op *o = &b->ops[k];
      if (o->kind < SEND || o->done == o->count * size_of[o->type]) continue;
      open = 1;
      int behind = 0;  // another one with this peer
      for (int before = 0; before < k; before++) {
        struct op *p = &b->ops[before];
        behind |= p->kind == o->kind && p->peer == o->peer && p->done < p->count * size_of[p->type];
      }
      if (!behind) moved |= move(c, o);
    }
    if (!open) return 0;
    i = moved ? 0 : i + 1;
    int e = pause_for(c, i);
    if (e != 0) return e;
  }
}

static int run(comm_t c, struct batch *b) {
  static int64_t id;
  for (int i = 0; i < b->streams; i++)
    for (int k = 0; !fakecuda_pending_may_begin(b->pending[i]); k++) {
      int e = pause_for(c, k);
      if (e != 0) return e;
    }
  int e = fakecuda_enter_own(&id, "ncclKernel", c->device, UNHANDLED_CUDA);
  for (int i = 0; i < b->n && e == 0; i++)
    if (b->ops[i].kind < SEND) e = collective(c, &b->ops[i]);
  return e != 0 ? e : exchange(c, b);
}

static void *work(void *arg) {
  comm_t c = arg;
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&c->shared->rank[c->rank].alive, &attr);
  pthread_mutex_lock(&c->shared->rank[c->rank].alive);
  if (ADD(c->shared->arrived, 1) == c->size) unlink(c->path);
  for (int i = 0; LOAD(c->shared->arrived) < c->size && !LOAD(c->aborted); i++) usleep(100);
  pthread_mutex_lock(&c->mutex);
  c->ready = 1;
  pthread_cond_broadcast(&c->changed);
  for (;;) {
    while (c->queue == NULL && !c->stop) pthread_cond_wait(&c->changed, &c->mutex);
    struct batch *b = c->queue;
    if (b == NULL) break;
    c->queue = b->next;
    c->busy = 1;
    pthread_mutex_unlock(&c->mutex);
    int e = LOAD(c->aborted) ? -1 : run(c, b);
    if (e > 0) {
      STORE(c->error, e);
      while (!LOAD(c->aborted)) usleep(100);  // on a device the kernel does not end
    }
    for (int i = 0; i < b->streams; i++) fakecuda_pending_end(b->pending[i]);
    free(b->ops);
    free(b);
    pthread_mutex_lock(&c->mutex);
    c->busy = 0;
    pthread_cond_broadcast(&c->changed);
  }
  pthread_mutex_unlock(&c->mutex);
  STORE(c->shared->rank[c->rank].left, 1);
  pthread_mutex_unlock(&c->shared->rank[c->rank].alive);
  return NULL;
}

// ---- communicators ----

API int ncclGetVersion(int *version) {
  *version = 22809;
  return SUCCESS;
}
API const char *ncclGetErrorString(int e) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the NCCL developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return e >= 0 && e <= IN_PROGRESS ? texts[e] : "unknown result code";
}
API const char *ncclGetLastError(comm_t c) {
  (void)c;
  return "a fake NCCL's error";
}

API int ncclGetUniqueId(ncclUniqueId *id) {
  static int made;
  ENTER_NCCL(fakecuda_current_device());
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "fakenccl-%d-%d-%lx", (int)getpid(), ADD(made, 1), t.tv_nsec);
  return SUCCESS;
}

static void free_comm(comm_t c) {
  munmap(c->shared, c->bytes);
  pthread_mutex_destroy(&c->mutex);
  pthread_cond_destroy(&c->changed);
  free(c);
}

static int connect(comm_t *out, int size, const ncclUniqueId *id, int rank, const ncclConfig *config) {
  if (size < 1 || size > RANKS || rank < 0 || rank >= size) return INVALID_ARGUMENT;
  const char *dir = getenv("FAKENCCL_DIR");
  comm_t c = calloc(1, sizeof *c);
  c->rank = rank;
  c->size = size;
  c->device = fakecuda_current_device();
  c->bytes = sizeof *c->shared + sizeof(struct mail) * (size_t)size * (size_t)size;
  snprintf(c->path, sizeof c->path, "%s/%.127s", dir != NULL ? dir : "/dev/shm", id->name);
  int fd = open(c->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd >= 0 && ftruncate(fd, (off_t)c->bytes) == 0)
    c->shared = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (c->shared == NULL || c->shared == MAP_FAILED) {
    free(c);
    return SYSTEM;
  }
  pthread_mutex_init(&c->mutex, NULL);
  pthread_cond_init(&c->changed, NULL);
  if (pthread_create(&c->thread, NULL, work, c) != 0) {
    free_comm(c);
    return SYSTEM;
  }
  *out = c;
  if (config != NULL && config->blocking == 0) return IN_PROGRESS;
  pthread_mutex_lock(&c->mutex);
  while (!c->ready) pthread_cond_wait(&c->changed, &c->mutex);
  pthread_mutex_unlock(&c->mutex);
  return SUCCESS;
}
API int ncclCommInitRankConfig(comm_t *c, int size, ncclUniqueId id, int rank, const ncclConfig *config) {
  ENTER_NCCL(fakecuda_current_device());
  return connect(c, size, &id, rank, config);
}
API int ncclCommInitRank(comm_t *c, int size, ncclUniqueId id, int rank) {
  ENTER_NCCL(fakecuda_current_device());
  return connect(c, size, &id, rank, NULL);
}
API int ncclCommInitRankScalable(comm_t *c, int size, int rank, int ids, const ncclUniqueId *id,
                                 const ncclConfig *config) {
  ENTER_NCCL(fakecuda_current_device());
  return ids < 1 ? INVALID_ARGUMENT : connect(c, size, id, rank, config);
}
API int ncclCommSplit(comm_t c, int color, int key, comm_t *out, const ncclConfig *config) {
  (void)c, (void)color, (void)key, (void)out, (void)config;
  return INVALID_USAGE;
}
API int ncclCommCount(comm_t c, int *n) {
  *n = c->size;
  return SUCCESS;
}
API int ncclCommUserRank(comm_t c, int *rank) {
  *rank = c->rank;
  return SUCCESS;
}
API int ncclCommGetAsyncError(comm_t c, int *e) {
  ENTER_NCCL(c->device);
  pthread_mutex_lock(&c->mutex);
  *e = LOAD(c->error) != 0 ? LOAD(c->error) : c->ready ? SUCCESS : IN_PROGRESS;
  pthread_mutex_unlock(&c->mutex);
  return SUCCESS;
}
API int ncclCommFinalize(comm_t c) {
  ENTER_NCCL(c->device);
  pthread_mutex_lock(&c->mutex);
  while (c->queue != NULL || c->busy) pthread_cond_wait(&c->changed, &c->mutex);
  pthread_mutex_unlock(&c->mutex);
  return SUCCESS;
}
static int end(comm_t c) {
  pthread_mutex_lock(&c->mutex);
  c->stop = 1;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->mutex);
  pthread_join(c->thread, NULL);
  free_comm(c);
  return SUCCESS;
}
API int ncclCommDestroy(comm_t c) { return c == NULL ? SUCCESS : end(c); }
API int ncclCommAbort(comm_t c) {
  if (c == NULL) return SUCCESS;
  STORE(c->aborted, 1);
  return end(c);
}

// ---- work ----

static __thread struct {
  int depth, n, room;
  struct call {
    comm_t c;
    struct op op;
    void *stream;
  } *calls;
} group;

static void enqueue(comm_t c) {
  struct batch *b = calloc(1, sizeof *b);
  b->ops = calloc((size_t)group.n, sizeof *b->ops);
  for (int i = 0; i < group.n; i++) {
    if (group.calls[i].c != c) continue;
    b->ops[b->n++] = group.calls[i].op;
    group.calls[i].c = NULL;
    int known = 0;
    for (int k = 0; k < b->streams; k++) known |= b->stream[k] == group.calls[i].stream;
    if (known || b->streams == 8) continue;
    b->stream[b->streams] = group.calls[i].stream;
    b->pending[b->streams++] = fakecuda_pending_begin(group.calls[i].stream);
  }
  pthread_mutex_lock(&c->mutex);
  struct batch **last = &c->queue;
  while (*last != NULL) last = &(*last)->next;
  *last = b;
  pthread_cond_broadcast(&c->changed);
  pthread_mutex_unlock(&c->mutex);
}

API int ncclGroupStart(void) {
  group.depth++;
  return SUCCESS;
}
API int ncclGroupEnd(void) {
  if (group.depth == 0) return INVALID_USAGE;
  if (--group.depth != 0) return SUCCESS;
  for (int i = 0; i < group.n; i++)
    if (group.calls[i].c != NULL) enqueue(group.calls[i].c);
  free(group.calls);
  group.calls = NULL;
  group.n = group.room = 0;
  return SUCCESS;
}

static int call(comm_t c, struct op op, void *stream) {
  int rooted = op.kind == REDUCE || op.kind == BROADCAST || op.kind >= SEND;
  if (op.type < 0 || op.type >= TYPES || (rooted && (op.peer < 0 || op.peer >= c->size))) return INVALID_ARGUMENT;
  if (op.reduction < 0 || op.reduction >= REDUCTIONS) return INVALID_ARGUMENT;
  if (op.count == 0) return SUCCESS;
  if (group.n == group.room) {
    group.room = group.room * 2 + 16;
    group.calls = realloc(group.calls, (size_t)group.room * sizeof *group.calls);
  }
  group.calls[group.n++] = (struct call){c, op, stream};
  ncclGroupStart();
  return ncclGroupEnd();
}
#define OP(k, ...) ((struct op){.kind = (k), __VA_ARGS__})

API int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(ALL_REDUCE, .from = from, .to = to, .count = n, .type = type, .reduction = op), stream);
}
API int ncclReduce(const void *from, void *to, size_t n, int type, int op, int root, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(REDUCE, .from = from, .to = to, .count = n, .type = type, .reduction = op, .peer = root),
              stream);
}
API int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(BROADCAST, .from = from, .to = to, .count = n, .type = type, .peer = root), stream);
}
API int ncclBcast(void *p, size_t n, int type, int root, comm_t c, void *stream) {
  return ncclBroadcast(p, p, n, type, root, c, stream);
}
API int ncclAllGather(const void *from, void *to, size_t n, int type, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(ALL_GATHER, .from = from, .to = to, .count = n, .type = type), stream);
}
API int ncclReduceScatter(const void *from, void *to, size_t n, int type, int op, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(REDUCE_SCATTER, .from = from, .to = to, .count = n, .type = type, .reduction = op), stream);
}
API int ncclSend(const void *from, size_t n, int type, int peer, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(SEND, .from = from, .count = n, .type = type, .peer = peer), stream);
}
API int ncclRecv(void *to, size_t n, int type, int peer, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  return call(c, OP(RECV, .to = to, .count = n, .type = type, .peer = peer), stream);
}
API int ncclAlltoAll(const void *from, void *to, size_t n, int type, comm_t c, void *stream) {
  ENTER_NCCL(c->device);
  if (type < 0 || type >= TYPES) return INVALID_ARGUMENT;
  ncclGroupStart();
  for (int r = 0; r < c->size; r++) {
    size_t at = (size_t)r * n * size_of[type];
    call(c, OP(SEND, .from = (const char *)from + at, .count = n, .type = type, .peer = r), stream);
    call(c, OP(RECV, .to = (char *)to + at, .count = n, .type = type, .peer = r), stream);
  }
  return ncclGroupEnd();
}
// The reductions here have no factors.
API int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int where, comm_t c) {
  (void)op, (void)scalar, (void)type, (void)where, (void)c;
  return INVALID_USAGE;
}

// Streams, events, captures and graphs of the fake CUDA runtime, by a simulated clock.
//
// The host has a time, fakecuda_state.clock, which moves when the host waits and when a test sets it. Work given
// to a stream begins when the stream's earlier work and the events it waits for are done, and takes kernel_ns or
// copy_ns. With 0, the default, work is done at once. Kernels do nothing; copies move their bytes when they are
// given to the stream, or, captured, at each launch of the graph. Behind work that another process ends (fake.h),
// whoever gives work waits, as where a real stream's queue is full.
//
// A capture follows the documentation of cudaStreamBeginCapture: a call that it does not allow returns an error
// and invalidates the capture, whose end then returns cudaErrorStreamCaptureInvalidated.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cudart.h"

#define API __attribute__((visibility("default")))
#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)

enum { KERNEL, COPY, SET, HOST };
struct node {
  int kind, to_device, from_device, value;
  void *to;
  const void *from;
  size_t n;
  cudaHostFn_t host;
  void *arg;
};
struct CUgraph_st {
  struct node *nodes;
  size_t count, room;
};
struct CUgraphExec_st {
  struct CUgraph_st graph;
};
struct capture {
  uint64_t id;
  int64_t thread;
  enum cudaStreamCaptureMode mode;
  int invalid, device;
  cudaStream_t origin;
  struct CUgraph_st graph;
  struct capture *next;
};
struct fakecuda_pending {
  int references, ended;
  struct fakecuda_pending *before[2];
};
struct CUstream_st {
  int device;
  struct fakecuda_pending *pending;  // what its work waits for; NULL: nothing
  int64_t done, works;               // when its work is done; how many there were
  struct capture *capture;           // that it is part of
  int unjoined;  // forked from another stream of the capture, which has not waited for it since
  cudaStream_t next;
};
struct CUevent_st {
  int device, recorded;
  struct fakecuda_pending *pending;
  int64_t time, works;
  uint64_t capture;  // id; 0: none
  cudaStream_t stream;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st defaults[FAKECUDA_MAX_DEVICES];
static cudaStream_t streams;
static struct capture *captures;
static uint64_t ids;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }
static cudaError_t fail(cudaError_t e) { return fake_last_error = e; }
static void pass(int64_t until) {
  fakecuda_state *s = fakecuda_get();
  if (until > LOAD(s->clock)) STORE(s->clock, until);
}

int fake_stream_device(cudaStream_t s) {
  // 0, 1 and 2 are the default streams.
  return (uintptr_t)s <= 2 ? fakecuda_current_device() : s->device;
}
static cudaStream_t real(cudaStream_t s) {
  if ((uintptr_t)s > 2) return s;
  cudaStream_t d = &defaults[fakecuda_current_device()];
  d->device = fakecuda_current_device();
  return d;
}

// ---- work that other processes end ----

static pthread_cond_t some_ended = PTHREAD_COND_INITIALIZER;

// These are called under the lock.
static struct fakecuda_pending *share(struct fakecuda_pending *p) {
  if (p != NULL) p->references++;
  return p;
}
static void let_go(struct fakecuda_pending **p) {
  struct fakecuda_pending *of = *p;
  *p = NULL;
  if (of == NULL || --of->references != 0) return;
  let_go(&of->before[0]);
  let_go(&of->before[1]);
  free(of);
}
static int none_before(struct fakecuda_pending *p);
// Whether it has ended, which is then no longer referred to.
static int ended(struct fakecuda_pending **p) {
  if (*p == NULL) return 1;
  // One that joins two ends with them.
  if ((*p)->ended == 0 || ((*p)->ended < 0 && !none_before(*p))) return 0;
  let_go(p);
  return 1;
}
static int none_before(struct fakecuda_pending *p) {
  int first = ended(&p->before[0]), second = ended(&p->before[1]);
  return first && second;
}
static void wait_for(struct fakecuda_pending **p) {
  struct fakecuda_pending *of = share(*p);
  while (!ended(&of)) pthread_cond_wait(&some_ended, &mutex);
  ended(p);
}
static struct fakecuda_pending *new_pending(int state, struct fakecuda_pending *a, struct fakecuda_pending *b) {
  struct fakecuda_pending *p = malloc(sizeof *p);
  *p = (struct fakecuda_pending){1, state, {share(a), share(b)}};
  return p;
}

fakecuda_pending *fakecuda_pending_begin(void *stream) {
  cudaStream_t s = real(stream);
  lock();
  struct fakecuda_pending *p = new_pending(0, ended(&s->pending) ? NULL : s->pending, NULL);
  let_go(&s->pending);
  s->pending = share(p);
  s->works++;
  unlock();
  return p;
}
int fakecuda_pending_may_begin(fakecuda_pending *p) {
  lock();
  int may = none_before(p);
  unlock();
  return may;
}
void fakecuda_pending_end(fakecuda_pending *p) {
  lock();
  p->ended = 1;
  let_go(&p);
  pthread_cond_broadcast(&some_ended);
  unlock();
}

void fakecuda_pending_wait(int device, void *stream) {
  cudaStream_t s = (uintptr_t)stream > 2 ? stream : &defaults[device];
  lock();
  wait_for(&s->pending);
  unlock();
}

static void invalidate(struct capture *c) {
  if (!c->invalid) ADD(fakecuda_get()->invalidated, 1);
  c->invalid = 1;
}

// Called first by what a capture does not allow, such as cudaMalloc. Returns the error it must return.
int fake_unsafe(void) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return 0;
  int e = 0;
  lock();
  for (struct capture *c = captures; c != NULL; c = c->next) {
    if (c->mode == cudaStreamCaptureModeRelaxed) continue;
    if (c->thread == (int64_t)gettid() ||
        (thread_mode == cudaStreamCaptureModeGlobal && c->mode == cudaStreamCaptureModeGlobal)) {
      invalidate(c);
      e = cudaErrorStreamCaptureUnsupported;
    }
  }
  unlock();
  return e == 0 ? 0 : (int)fail(e);
}

// Called first by what waits for a whole device.
int fake_unsafe_device(int device) {
  int e = 0;
  lock();
  for (struct capture *c = captures; c != NULL; c = c->next) {
    if (c->device != device) continue;
    invalidate(c);
    e = cudaErrorStreamCaptureUnsupported;
  }
  unlock();
  return e == 0 ? 0 : (int)fail(e);
}

static void add(struct CUgraph_st *g, struct node n) {
  if (g->count == g->room) {
    g->room = g->room * 2 + 16;
    g->nodes = realloc(g->nodes, g->room * sizeof n);
  }
  g->nodes[g->count++] = n;
}

static int64_t cost(int kind) {
  fakecuda_state *s = fakecuda_get();
  return kind == KERNEL ? LOAD(s->kernel_ns) : kind == HOST ? 0 : LOAD(s->copy_ns);
}

static int run(const struct node *n) {
  switch (n->kind) {
    case COPY:
      return fake_copy(n->to, n->from, n->n, n->to_device, n->from_device);
    case SET:
      return fake_set(n->to, n->value, n->n);
    case HOST:
      n->host(n->arg);
  }
  return 0;
}

// Gives work to a stream: it is captured, or done.
static int give(cudaStream_t stream, struct node n) {
  cudaStream_t s = real(stream);
  lock();
  struct capture *c = s->capture;
  if (c != NULL) {
    int e = c->invalid ? cudaErrorStreamCaptureInvalidated : 0;
    if (e == 0) {
      add(&c->graph, n);
      s->works++;
      if (s != c->origin) s->unjoined = 1;
    }
    unlock();
    if (n.kind == KERNEL) ADD(fakecuda_get()->device[s->device].launches, -1);  // not launched yet
    return e == 0 ? 0 : (int)fail(e);
  }
  wait_for(&s->pending);
  int64_t now = LOAD(fakecuda_get()->clock);
  s->done = (s->done > now ? s->done : now) + cost(n.kind);
  s->works++;
  unlock();
  return run(&n);
}
int fake_give_kernel(cudaStream_t s) { return give(s, (struct node){.kind = KERNEL}); }
int fake_give_copy(cudaStream_t s, void *to, const void *from, size_t n, int to_device, int from_device) {
  return give(
      s, (struct node){
             .kind = COPY, .to = to, .from = from, .n = n, .to_device = to_device, .from_device = from_device});
}
int fake_give_set(cudaStream_t s, void *to, int value, size_t n) {
  return give(s, (struct node){.kind = SET, .to = to, .value = value, .n = n});
}

// ---- streams ----

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  (void)flags, (void)priority;
  ENTER(ANY, fakecuda_current_device());
  cudaStream_t s = calloc(1, sizeof *s);
  s->device = fakecuda_current_device();
  lock();
  s->next = streams;
  streams = s;
  unlock();
  *out = s;
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) {
  return cudaStreamCreateWithPriority(s, flags, 0);
}
API cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) {
  ENTER(ANY, fake_stream_device(s));
  if ((uintptr_t)s <= 2) return cudaSuccess;
  lock();
  for (cudaStream_t *p = &streams; *p != NULL; p = &(*p)->next) {
    if (*p != s) continue;
    *p = s->next;
    break;
  }
  let_go(&s->pending);
  unlock();
  free(s);
  return cudaSuccess;
}

// A stream that is captured can neither be queried nor waited for.
static int refuse_captured(cudaStream_t stream) {
  cudaStream_t s = real(stream);
  lock();
  struct capture *c = s->capture;
  if (c != NULL) invalidate(c);
  unlock();
  return c != NULL ? (int)fail(cudaErrorStreamCaptureUnsupported) : fake_unsafe();
}
API cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  ENTER(SYNC, fake_stream_device(s));
  int e = refuse_captured(s);
  if (e != 0) return e;
  lock();
  wait_for(&real(s)->pending);
  unlock();
  pass(real(s)->done);
  return cudaSuccess;
}
API cudaError_t cudaStreamQuery(cudaStream_t s) {
  ENTER(SYNC, fake_stream_device(s));
  int e = refuse_captured(s);
  if (e != 0) return e;
  lock();
  int done = ended(&real(s)->pending) && real(s)->done <= LOAD(fakecuda_get()->clock);
  unlock();
  return done ? cudaSuccess : fail(cudaErrorNotReady);
}
API cudaError_t cudaDeviceSynchronize(void) {
  int device = fakecuda_current_device();
  ENTER(SYNC, device);
  int e = fake_unsafe_device(device);
  if (e != 0) return e;
  lock();
  wait_for(&defaults[device].pending);
  pass(defaults[device].done);
  for (cudaStream_t s = streams; s != NULL; s = s->next) {
    if (s->device != device) continue;
    if (!ended(&s->pending)) {
      wait_for(&s->pending);
      s = streams;  // the list may have changed
    }
    pass(s->done);
  }
  unlock();
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *arg, unsigned flags) {
  (void)flags;
  ENTER(ANY, fake_stream_device(s));
  int e = refuse_captured(s);
  if (e != 0) return e;
  lock();
  wait_for(&real(s)->pending);
  unlock();
  f(s, cudaSuccess, arg);
  return cudaSuccess;
}
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *arg) {
  ENTER(ANY, fake_stream_device(s));
  return give(s, (struct node){.kind = HOST, .host = f, .arg = arg});
}

// ---- events ----

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  (void)flags;
  ENTER(ANY, fakecuda_current_device());
  *e = calloc(1, sizeof **e);
  (*e)->device = fakecuda_current_device();
  ADD(fakecuda_get()->events, 1);
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  ENTER(ANY, e->device);
  ADD(fakecuda_get()->events, -1);
  lock();
  let_go(&e->pending);
  unlock();
  free(e);
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
  ENTER(ANY, e->device);
  cudaStream_t s = real(stream);
  if (s->device != e->device) return fail(cudaErrorInvalidResourceHandle);
  lock();
  struct capture *c = s->capture;
  int bad = c != NULL && c->invalid;
  if (!bad) {
    int64_t now = LOAD(fakecuda_get()->clock);
    e->time = s->done > now ? s->done : now;
    e->recorded = 1;
    e->capture = c != NULL ? c->id : 0;
    e->works = s->works;
    e->stream = s;
    let_go(&e->pending);
    e->pending = ended(&s->pending) ? NULL : share(s->pending);
  }
  unlock();
  return bad ? fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
  (void)flags;
  return cudaEventRecord(e, s);
}
API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags) {
  (void)flags;
  ENTER(ANY, fake_stream_device(stream));
  cudaStream_t s = real(stream);
  int bad = 0;
  lock();
  struct capture *of = NULL;
  for (struct capture *c = captures; c != NULL; c = c->next)
    if (e->capture != 0 && c->id == e->capture) of = c;
  if (of == NULL) {
    if (e->capture != 0) {
      bad = cudaErrorCapturedEvent;  // of a capture that has ended
    } else if (s->capture != NULL && e->recorded) {
      invalidate(s->capture);
      bad = cudaErrorStreamCaptureIsolation;
    } else if (e->recorded) {
      if (e->time > s->done) s->done = e->time;
      if (!ended(&e->pending) && e->pending != s->pending) {
        struct fakecuda_pending *both = new_pending(-1, e->pending, ended(&s->pending) ? NULL : s->pending);
        let_go(&s->pending);
        s->pending = both;
      }
    }
  } else if (of->invalid) {
    bad = cudaErrorStreamCaptureInvalidated;
  } else if (s->capture != NULL && s->capture != of) {
    invalidate(of);
    invalidate(s->capture);
    bad = cudaErrorStreamCaptureMerge;
  } else if ((uintptr_t)stream <= 2) {
    invalidate(of);
    bad = cudaErrorStreamCaptureImplicit;
  } else {
    if (s->capture == NULL) {  // joins the capture
      s->capture = of;
      s->unjoined = 1;
    }
    if (e->stream != s && e->stream->works == e->works) e->stream->unjoined = 0;
  }
  unlock();
  return bad != 0 ? fail(bad) : cudaSuccess;
}
static int refuse_captured_event(cudaEvent_t e) {
  int bad = 0;
  lock();
  for (struct capture *c = captures; c != NULL; c = c->next) {
    if (e->capture == 0 || c->id != e->capture) continue;
    invalidate(c);
    bad = cudaErrorCapturedEvent;
  }
  if (e->capture != 0) bad = cudaErrorCapturedEvent;
  unlock();
  return bad != 0 ? (int)fail(bad) : fake_unsafe();
}
API cudaError_t cudaEventQuery(cudaEvent_t e) {
  ENTER(SYNC, e->device);
  int bad = refuse_captured_event(e);
  if (bad != 0) return bad;
  lock();
  int done = ended(&e->pending) && e->time <= LOAD(fakecuda_get()->clock);
  unlock();
  return done ? cudaSuccess : fail(cudaErrorNotReady);
}
API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  ENTER(SYNC, e->device);
  int bad = refuse_captured_event(e);
  if (bad != 0) return bad;
  lock();
  wait_for(&e->pending);
  unlock();
  pass(e->time);
  return cudaSuccess;
}
API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  ENTER(SYNC, to->device);
  int64_t now = LOAD(fakecuda_get()->clock);
  lock();
  int done = ended(&from->pending) && ended(&to->pending) && from->time <= now && to->time <= now;
  unlock();
  if (!done) return fail(cudaErrorNotReady);
  *ms = (float)(to->time - from->time) / 1e6F;
  // Programs divide by it.
  if (LOAD(fakecuda_get()->kernel_ns) == 0 && LOAD(fakecuda_get()->copy_ns) == 0 && *ms == 0) *ms = 0.5F;
  return cudaSuccess;
}

// ---- captures ----

API cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
  ENTER(ANY, fake_stream_device(s));
  if ((uintptr_t)s <= 2) return fail(cudaErrorStreamCaptureUnsupported);
  lock();
  int bad = s->capture != NULL;
  if (!bad) {
    struct capture *c = calloc(1, sizeof *c);
    *c = (struct capture){
        .id = ++ids, .thread = gettid(), .mode = mode, .device = s->device, .origin = s, .next = captures};
    captures = s->capture = c;
  }
  unlock();
  return bad ? fail(cudaErrorIllegalState) : cudaSuccess;
}
API cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out) {
  ENTER(ANY, fake_stream_device(s));
  if (out != NULL) *out = NULL;
  if ((uintptr_t)s <= 2 || s->capture == NULL) return fail(cudaErrorIllegalState);
  int bad = 0;
  lock();
  struct capture *c = s->capture;
  if (c->origin != s) {
    invalidate(c);
    unlock();
    return fail(cudaErrorStreamCaptureUnmatched);
  }
  if (c->mode != cudaStreamCaptureModeRelaxed && c->thread != (int64_t)gettid()) {
    invalidate(c);
    bad = cudaErrorStreamCaptureWrongThread;
  } else if (c->invalid) {
    bad = cudaErrorStreamCaptureInvalidated;
  }
  for (cudaStream_t t = streams; t != NULL; t = t->next) {
    if (t->capture != c) continue;
    if (t->unjoined && bad == 0) bad = cudaErrorStreamCaptureUnjoined;
    t->capture = NULL;
    t->unjoined = 0;
  }
  for (struct capture **p = &captures; *p != NULL; p = &(*p)->next) {
    if (*p != c) continue;
    *p = c->next;
    break;
  }
  unlock();
  if (bad != 0) {
    free(c->graph.nodes);
  } else {
    *out = malloc(sizeof **out);
    **out = c->graph;
  }
  free(c);
  return bad != 0 ? fail(bad) : cudaSuccess;
}
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
  ENTER(ANY, fake_stream_device(s));
  int64_t thread = LOAD(fakecuda_get()->capturing);
  lock();
  struct capture *c = (uintptr_t)s > 2 ? s->capture : NULL;
  int on = (uintptr_t)s > 2 ? c != NULL : thread != 0 && thread == (int64_t)gettid();
  *status = !on                       ? cudaStreamCaptureStatusNone
            : c != NULL && c->invalid ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  unlock();
  return cudaSuccess;
}
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **deps,
                                         const cudaGraphEdgeData **edges, size_t *n) {
  lock();
  if (id != NULL) *id = (uintptr_t)s > 2 && s->capture != NULL ? s->capture->id : 1;
  unlock();
  if (graph != NULL) *graph = NULL;
  if (deps != NULL) *deps = NULL;
  if (edges != NULL) *edges = NULL;
  if (n != NULL) *n = 0;
  return cudaStreamIsCapturing(s, status);
}
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
  enum cudaStreamCaptureMode before = thread_mode;
  thread_mode = *mode;
  *mode = before;
  return cudaSuccess;
}

// ---- graphs ----

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags) {
  (void)flags;
  ENTER(ANY, fakecuda_current_device());
  *e = calloc(1, sizeof **e);
  for (size_t i = 0; i < g->count; i++) add(&(*e)->graph, g->nodes[i]);
  ADD(fakecuda_get()->graphs, 1);
  STORE(fakecuda_get()->nodes, (int64_t)g->count);
  return cudaSuccess;
}
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *e, cudaGraph_t g, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(e, g, flags);
}
// Work of one launch is done in its order; launches follow each other on the stream.
API cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  ENTER(LAUNCH, fake_stream_device(s));
  for (size_t i = 0; i < e->graph.count; i++) {
    if (e->graph.nodes[i].kind == KERNEL) ADD(fakecuda_get()->device[fake_stream_device(s)].launches, 1);
    int bad = give(s, e->graph.nodes[i]);
    if (bad != 0) return bad;
  }
  return cudaSuccess;
}
API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n) {
  for (size_t i = 0; nodes != NULL && i < *n && i < g->count; i++) nodes[i] = (cudaGraphNode_t)&g->nodes[i];
  *n = g->count;
  return cudaSuccess;
}
API cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  free(g->nodes);
  free(g);
  return cudaSuccess;
}
API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
  ADD(fakecuda_get()->graphs, -1);
  free(e->graph.nodes);
  free(e);
  return cudaSuccess;
}

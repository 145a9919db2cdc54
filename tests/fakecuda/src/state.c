// The state of the fake devices, failure rules, and device memory. Part of the fake libcudart.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cudart.h"

#define LOAD(x) __atomic_load_n(&(x), __ATOMIC_SEQ_CST)
#define STORE(x, v) __atomic_store_n(&(x), (v), __ATOMIC_SEQ_CST)
#define ADD(x, v) __atomic_add_fetch(&(x), (v), __ATOMIC_SEQ_CST)

static fakecuda_state own;
static fakecuda_state *state = &own;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread int current;
__thread cudaError_t fake_last_error;

int64_t fakecuda_hash(const char *s) {
  uint64_t h = 14695981039346656037u;
  for (; *s != 0; s++) h = (h ^ (uint8_t)*s) * 1099511628211u;
  return (int64_t)h;
}

static int64_t function_of(const char *name) {
  static const char *const classes[] = {"any", "alloc", "launch", "free", "sync", "copy"};
  for (int i = 0; i < 6; i++)
    if (strcmp(name, classes[i]) == 0) return i;
  return fakecuda_hash(name);
}

static int64_t bytes_of(const char *s, char **end) {
  double n = strtod(s, end);
  switch (**end) {
    case 'G':
      n *= 1024;  // fall through
    case 'M':
      n *= 1024;  // fall through
    case 'K':
      n *= 1024;
      ++*end;
  }
  return (int64_t)n;
}

static void add_rule(const char *function, int device, int64_t skip, int64_t times, int error, int kind,
                     int64_t delay_us) {
  int64_t n = LOAD(state->rules);
  state->rule[n] = (fakecuda_rule){function_of(function), device, skip, times, error, kind, delay_us, 0};
  STORE(state->rules, n + 1);
}

static void from_environment(void) {
  const char *devices = getenv("FAKECUDA_DEVICES"), *capacity = getenv("FAKECUDA_CAPACITY");
  const char *rules = getenv("FAKECUDA_RULES");
  fakecuda_set_devices(devices != NULL ? atoi(devices) : 1);
  int64_t bytes = (int64_t)8 << 30;
  for (int i = 0; i < FAKECUDA_MAX_DEVICES; i++) {
    if (capacity != NULL && *capacity != 0) {
      char *end;
      bytes = bytes_of(capacity, &end);
      capacity = *end == ',' ? end + 1 : "";
    }
    state->device[i].capacity = bytes;
  }
  char copy[1024];
  snprintf(copy, sizeof copy, "%s", rules != NULL ? rules : "");
  char *save;
  for (char *r = strtok_r(copy, ";", &save); r != NULL; r = strtok_r(NULL, ";", &save)) {
    char name[128];
    int device = -1, error = 0, kind = 0;
    long long skip = 0, times = 1, delay = 0;
    if (sscanf(r, "%127[^:]:%d:%lld:%lld:%d:%d:%lld", name, &device, &skip, &times, &error, &kind, &delay) >= 1)
      fakecuda_add_rule(name, device, skip, times, error, kind, delay);
  }
}

// With FAKECUDA_CONTROL the words are in the file; the process that creates the file writes the magic number
// last.
static void start(void) {
  const char *file = getenv("FAKECUDA_CONTROL");
  if (file != NULL && *file != 0) {
    int fd = open(file, O_RDWR | O_CREAT, 0600);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || (st.st_size < (off_t)sizeof own && ftruncate(fd, sizeof own) != 0)) {
      perror(file);
      abort();
    }
    void *p = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED) {
      perror(file);
      abort();
    }
    state = p;
  }
  if (LOAD(state->magic) != FAKECUDA_MAGIC) {
    from_environment();
    STORE(state->magic, FAKECUDA_MAGIC);
  }
}

fakecuda_state *fakecuda_get(void) {
  pthread_once(&once, start);
  return state;
}

void fakecuda_set_devices(int n) {
  STORE(state->devices, n < 0 ? 0 : n > FAKECUDA_MAX_DEVICES ? FAKECUDA_MAX_DEVICES : n);
}
void fakecuda_set_capacity(int device, int64_t bytes) { STORE(fakecuda_get()->device[device].capacity, bytes); }
int fakecuda_add_rule(const char *function, int device, int64_t skip, int64_t times, int error, int kind,
                      int64_t delay_us) {
  if (LOAD(state->rules) >= FAKECUDA_MAX_RULES) return -1;
  add_rule(function, device, skip, times, error, kind, delay_us);
  return (int)LOAD(state->rules) - 1;
}
void fakecuda_clear_rules(void) { STORE(fakecuda_get()->rules, 0); }
void fakecuda_lose(int device, int error) {
  STORE(fakecuda_get()->device[device].pending, 0);
  STORE(state->device[device].lost, error);
}
int64_t fakecuda_live(int device) { return LOAD(fakecuda_get()->device[device].live); }
int64_t fakecuda_peak(int device) { return LOAD(fakecuda_get()->device[device].peak); }
void fakecuda_reset_peak(int device) {
  STORE(fakecuda_get()->device[device].peak, LOAD(state->device[device].live));
}

// As CUDA 12 does, cudaSetDevice makes a context too.
static char has_context[FAKECUDA_MAX_DEVICES];
static void make_context(int device) {
  if (!__atomic_test_and_set(&has_context[device], __ATOMIC_SEQ_CST)) ADD(fakecuda_get()->contexts[device], 1);
}
int fakecuda_has_context(int device) { return LOAD(has_context[device]) != 0; }

int fake_set_device(int device) {
  if (device < 0 || device >= LOAD(fakecuda_get()->devices)) return cudaErrorInvalidDevice;
  make_context(device);
  current = device;
  return 0;
}
int fakecuda_current_device(void) { return current; }

static int failed(int e) {
  ADD(state->errors, 1);
  fake_last_error = e;
  return e;
}

// A device's kernels run one after another: a slow launch ends after the earlier ones have ended and its own
// time has passed.
static void take_time(int class_of, int device, int64_t us) {
  static int64_t busy[FAKECUDA_MAX_DEVICES];  // end of the last kernel, in nanoseconds
  if (class_of != FAKECUDA_LAUNCH) {
    usleep((useconds_t)us);
    return;
  }
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec, until, end;
  do {
    until = LOAD(busy[device]);
    end = (until > now ? until : now) + us * 1000;
  } while (!__sync_bool_compare_and_swap(&busy[device], until, end));
  t = (struct timespec){end / 1000000000, end % 1000000000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0) {
  }
}

int fakecuda_enter(int64_t *id, const char *name, int class_of, int device) {
  make_context(device);
  return fakecuda_ask(id, name, class_of, device);
}

int fakecuda_start_error(const char *name) {
  fakecuda_state *s = fakecuda_get();
  for (int64_t i = 0; i < LOAD(s->rules); i++)
    if (LOAD(s->rule[i].function) == fakecuda_hash(name)) return (int)LOAD(s->rule[i].error);
  return 0;
}

int fakecuda_ask(int64_t *id, const char *name, int class_of, int device) {
  fakecuda_state *s = fakecuda_get();
  fakecuda_device *d = &s->device[device];
  ADD(s->calls, 1);
  if (class_of == FAKECUDA_LAUNCH) ADD(d->launches, 1);
  int64_t pending = LOAD(d->pending);
  if (__builtin_expect(pending != 0, 0) &&
      (class_of == FAKECUDA_SYNC || class_of == FAKECUDA_FREE || class_of == FAKECUDA_ALLOC)) {
    STORE(d->lost, pending);
    STORE(d->pending, 0);
  }
  int64_t lost = LOAD(d->lost);
  if (__builtin_expect(lost != 0, 0)) {
    fake_last_error = (int)lost;
    return (int)lost;
  }
  int64_t n = LOAD(s->rules);
  if (__builtin_expect(n == 0, 1)) return 0;
  if (*id == 0) STORE(*id, fakecuda_hash(name));
  for (int64_t i = 0; i < n && i < FAKECUDA_MAX_RULES; i++) {
    fakecuda_rule *r = &s->rule[i];
    int64_t f = LOAD(r->function), on = LOAD(r->device), times = LOAD(r->times), skip = LOAD(r->skip);
    if ((f != FAKECUDA_ANY && f != class_of && f != *id) || (on >= 0 && on != device)) continue;
    int64_t nth = ADD(r->seen, 1) - 1;
    if (nth < skip || (times >= 0 && nth >= skip + times)) continue;
    int64_t delay = LOAD(r->delay_us);
    if (delay > 0) take_time(class_of, device, delay);
    int e = (int)LOAD(r->error);
    if (e == 0) continue;
    switch (LOAD(r->kind)) {
      case FAKECUDA_STICKY:
        STORE(d->lost, e);
        return failed(e);
      case FAKECUDA_ASYNC:
        ADD(s->errors, 1);
        STORE(d->pending, e);
        return 0;
      default:
        return failed(e);
    }
  }
  return 0;
}

int fakecuda_enter_library(int64_t *id, const char *name, int code_when_lost) {
  cudaError_t before = fake_last_error;
  int e = fakecuda_enter(id, name, FAKECUDA_LAUNCH, current);
  if (e != 0 && LOAD(state->device[current].lost) == 0) fake_last_error = before;
  return e != 0 ? code_when_lost : 0;
}

int fakecuda_enter_own(int64_t *id, const char *name, int device, int code_when_lost) {
  cudaError_t before = fake_last_error;
  int e = fakecuda_enter(id, name, FAKECUDA_ANY, device);
  if (e == 0) return 0;
  if (LOAD(state->device[device].lost) != 0) return code_when_lost;
  fake_last_error = before;
  return e;
}

int fake_lost(int device) { return (int)LOAD(fakecuda_get()->device[device].lost); }

int fakecuda_take(int device, int64_t n) {
  fakecuda_device *d = &fakecuda_get()->device[device];
  int64_t now = ADD(d->live, n);
  if (now > LOAD(d->capacity)) {
    ADD(d->live, -n);
    return cudaErrorMemoryAllocation;
  }
  ADD(d->allocations, 1);
  int64_t peak = LOAD(d->peak);
  while (now > peak && !__atomic_compare_exchange_n(&d->peak, &peak, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
  }
  return 0;
}

void fakecuda_give(int device, int64_t n) {
  ADD(state->device[device].live, -n);
  ADD(state->device[device].frees, 1);
}

// Ranges of memory, sorted by address. There are few: libtorch's allocator requests megabytes at a time.
static struct range {
  char *p;
  int64_t size;
  int device;  // -1: pinned host memory
  int mapped;  // allocated by cudaMalloc, to be unmapped
} *ranges;
static int64_t count, room;
static void *freed[4096];  // the last freed addresses, to distinguish double frees from foreign pointers
static unsigned freed_next;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

// The first range that ends after p.
static int64_t find(const char *p) {
  int64_t lo = 0, hi = count;
  while (lo < hi) {
    int64_t mid = (lo + hi) / 2;
    if (ranges[mid].p + ranges[mid].size > p)
      hi = mid;
    else
      lo = mid + 1;
  }
  return lo;
}

static void add_range(struct range r) {
  if (count == room) {
    room = room * 2 + 64;
    ranges = realloc(ranges, (size_t)room * sizeof *ranges);
  }
  int64_t at = find(r.p);
  memmove(ranges + at + 1, ranges + at, (size_t)(count - at) * sizeof *ranges);
  ranges[at] = r;
  count++;
}

static int take_range(void *p, struct range *out) {
  int64_t at = find(p);
  if (at == count || ranges[at].p != p) return 0;
  *out = ranges[at];
  memmove(ranges + at, ranges + at + 1, (size_t)(count - at - 1) * sizeof *ranges);
  count--;
  return 1;
}

void fakecuda_note_range(void *p, int64_t size, int device) {
  struct range r;
  pthread_mutex_lock(&mutex);
  take_range(p, &r);
  if (size != 0) add_range((struct range){p, size, device, 0});
  pthread_mutex_unlock(&mutex);
}

int fake_range(const void *p, int *device, void **base, int64_t *size) {
  pthread_mutex_lock(&mutex);
  int64_t at = find(p);
  int found = at < count && ranges[at].p <= (const char *)p;
  if (found) {
    *device = ranges[at].device;
    if (base != NULL) *base = ranges[at].p;
    if (size != NULL) *size = ranges[at].size;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

// Each allocation maps new pages: unused pages cost nothing, and reads after a free are noticed.
int fake_alloc(int device, void **out, size_t n) {
  int64_t size = ((int64_t)n + 4095) / 4096 * 4096;
  *out = NULL;
  if (n == 0) return 0;
  int e = fakecuda_take(device < 0 ? 0 : device, device < 0 ? 0 : size);
  if (e != 0) return failed(e);
  void *p = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    if (device >= 0) fakecuda_give(device, size);
    return failed(cudaErrorMemoryAllocation);
  }
  if (device < 0) ADD(state->host_live, size);
  pthread_mutex_lock(&mutex);
  add_range((struct range){p, size, device, 1});
  pthread_mutex_unlock(&mutex);
  *out = p;
  return 0;
}

int fake_free(void *p, int host) {
  struct range r;
  if (p == NULL) return 0;
  pthread_mutex_lock(&mutex);
  int found = take_range(p, &r), twice = 0;
  if (found) {
    freed[freed_next++ % 4096] = p;
  } else {
    for (int i = 0; i < 4096; i++) twice |= freed[i] == p;
  }
  pthread_mutex_unlock(&mutex);
  if (!found) {
    ADD(*(twice ? &state->double_frees : &state->foreign_frees), 1);
    fake_last_error = cudaErrorInvalidValue;
    return cudaErrorInvalidValue;
  }
  if (host || r.device < 0)
    ADD(state->host_live, -r.size);
  else
    fakecuda_give(r.device, r.size);
  if (r.mapped) munmap(p, (size_t)r.size);
  return 0;
}

// Reports whether no page of these bytes has been written, so that they are zero. Kernels do nothing, so this
// holds for most device memory. Swapped-out pages are reported as unwritten too.
static int untouched(const void *p, size_t n) {
  unsigned char there[4096];
  char *at = (char *)((uintptr_t)p & ~(uintptr_t)4095),
       *end = (char *)(((uintptr_t)p + n + 4095) & ~(uintptr_t)4095);
  for (; at < end; at += sizeof there * 4096) {
    size_t pages = (size_t)(end - at) / 4096;
    if (pages > sizeof there) pages = sizeof there;
    if (mincore(at, pages * 4096, there) != 0 || memchr(there, 1, pages) != NULL) return 0;
  }
  return 1;
}

// Whole pages of zeros are returned to the system, so that a memset of a large tensor is cheap.
static void zero(char *to, size_t n) {
  char *first = (char *)(((uintptr_t)to + 4095) & ~(uintptr_t)4095), *end = to + n;
  char *last = (char *)((uintptr_t)end & ~(uintptr_t)4095);
  madvise(first, (size_t)(last - first), MADV_DONTNEED);
  memset(to, 0, (size_t)(first - to));
  memset(last, 0, (size_t)(end - last));
}

// Returns 0, or an error if a side that must be device memory is not.
int fake_copy(void *to, const void *from, size_t n, int to_device, int from_device) {
  const void *sides[2] = {to_device ? to : NULL, from_device ? from : NULL};
  for (int i = 0; i < 2; i++) {
    int device;
    void *base;
    int64_t size;
    if (sides[i] == NULL || n == 0) continue;
    if (!fake_range(sides[i], &device, &base, &size) || (char *)sides[i] + n > (char *)base + size) {
      ADD(state->bad_copies, 1);
      fake_last_error = cudaErrorInvalidValue;
      return cudaErrorInvalidValue;
    }
  }
  if (to_device && from_device && n > 1 << 20 && untouched(from, n)) {
    zero(to, n);
  } else {
    memmove(to, from, n);
  }
  return 0;
}

int fake_set(void *to, int value, size_t n) {
  int device;
  if (n != 0 && !fake_range(to, &device, NULL, NULL)) {
    ADD(state->bad_copies, 1);
    fake_last_error = cudaErrorInvalidValue;
    return cudaErrorInvalidValue;
  }
  if (value == 0 && n > 1 << 20) {
    zero(to, n);
  } else {
    memset(to, value, n);
  }
  return 0;
}

// Preloaded, this library makes pthread_create fail: FAKE_THREADS=SKIP:TIMES, counting calls from libraries
// only. The program's own threads, Go's, are not affected.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  static int seen;
  if (real == NULL) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  const char *spec = getenv("FAKE_THREADS"), *times;
  Dl_info from;
  if (spec != NULL && (times = strchr(spec, ':')) != NULL && dladdr(__builtin_return_address(0), &from) != 0 &&
      strstr(from.dli_fname, ".so") != NULL) {
    int n = __atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST) - atoi(spec);
    if (n >= 0 && n < atoi(times + 1)) return EAGAIN;
  }
  return real(thread, attr, start, arg);
}

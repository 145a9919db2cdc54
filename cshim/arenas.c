// glibc makes an arena of malloc for each OS thread, and what is freed in one is of no use in another. Goroutines
// wander over many threads, so there is one arena for four processors, unless the environment has settings of
// malloc (docs/decisions/0035-arenas.md).
#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#include <unistd.h>

// Before main: an arena that a thread has is not taken from it.
__attribute__((constructor)) static void bound_arenas(void) {
  if (getenv("MALLOC_ARENA_MAX") != NULL || getenv("GLIBC_TUNABLES") != NULL) return;
  long n = sysconf(_SC_NPROCESSORS_ONLN) / 4;
  mallopt(M_ARENA_MAX, n < 1 ? 1 : (int)n);
}
#endif

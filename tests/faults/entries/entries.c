/* Calls each function of the shim with an exception thrown at its entry:
 *
 *   entries SHIM KIND FIRST
 *
 * KIND is an ls_throw; the functions from the FIRST on. Says "at NUMBER 0: NAME" before each call and "n 1" after
 * it, so that a parent knows at which one the process ended, and "bad …" where the error is not the exception's.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "table_gen.h"

const char *ls_table_load(void *library);

/* Arguments for a function: data to read and buffers to write. */
static uint64_t buffer[8192];

static const int32_t codes[LS_THROWS] = {LS_ERR_GENERIC, LS_ERR_OUT_OF_MEMORY, LS_ERR_OUT_OF_MEMORY,
                                         LS_ERR_STD,     LS_ERR_UNKNOWN,       LS_ERR_STD,
                                         LS_ERR_STD};

static int number, first, kind;

static int begin(const char *name) {
  if (number++ < first) return 0;
  printf("at %d 0: ls_%s throws %d\n", number - 1, name, kind);
  fflush(stdout);
  memset(buffer, 0, sizeof buffer);
  ls_error *e = lsc_fault_set(LS_FAULT_ENTRY, 0, 1, kind, 1);
  if (e != NULL) abort();
  return 1;
}

static void end(const char *name, int gives_error, ls_error *e) {
  int64_t seen, failed;
  lsc_fault_counts(LS_FAULT_ENTRY, &seen, &failed);
  if (lsc_fault_set(LS_FAULT_ENTRY, 0, 0, 0, 0) != NULL) abort();
  const char *wrong = NULL;
  if (failed != 1)
    wrong = "nothing was thrown";
  else if (gives_error && e == NULL)
    wrong = "no error";
  else if (e != NULL && e->code != codes[kind])
    wrong = "another code";
  else if (e != NULL && (e->message == NULL || *e->message == 0))
    wrong = "no message";
  if (wrong != NULL) printf("bad %d 0: ls_%s throws %d: %s\n", number - 1, name, kind, wrong);
  if (e != NULL) lsc_error_free(e);
  printf("n 1\n");
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  void *shim = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (shim == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const char *missing = ls_table_load(shim);
  if (missing != NULL || lsc_init() != NULL) {
    fprintf(stderr, "%s: %s\n", argv[1], missing != NULL ? missing : "ls_init failed");
    return 2;
  }
  kind = atoi(argv[2]);
  first = atoi(argv[3]);
  ls_memory before, after;
  if (lsc_memory_stats(0xff, &before) != NULL) return 2;
#define ENTRY_ERROR(name, args) \
  if (begin(#name)) end(#name, 1, lsc_##name args);
#define ENTRY_RESULT(name, args) \
  if (begin(#name)) end(#name, 1, lsc_##name args.err);
#define ENTRY_PLAIN(name, args) \
  if (begin(#name)) {           \
    (void)lsc_##name args;      \
    end(#name, 0, NULL);        \
  }
#include "entries_gen.h"
  if (lsc_memory_stats(0xff, &after) != NULL) return 2;
  if (after.allocated != before.allocated || after.handles != before.handles)
    printf("bad %d 0: %lld bytes and %lld handles more than before\n", number,
           (long long)(after.allocated - before.allocated), (long long)(after.handles - before.handles));
  printf("end\n");
  return 0;
}

/* Shared by the fake libraries; all of it is in the fake libcudart. */
#ifndef FAKE_H_
#define FAKE_H_

#include "../fakecuda.h"

#pragma GCC visibility push(default)

/* Called first by every function that touches a device, on which it makes a context. Returns the error that the
 * function must return, or 0. */
int fakecuda_enter(int64_t *id, const char *name, int class_of, int device);
/* The same without a context. */
int fakecuda_ask(int64_t *id, const char *name, int class_of, int device);
/* Reports whether this process has a context on the device. */
int fakecuda_has_context(int device);
/* Returns the error of the rule for a function that touches no device, or 0. */
int fakecuda_start_error(const char *name);
/* The same for a library above the runtime: on a lost device it returns that library's own code. */
int fakecuda_enter_library(int64_t *id, const char *name, int code_when_lost);
#define ENTER(class_of, device)                                          \
  do {                                                                   \
    static int64_t id;                                                   \
    int e_ = fakecuda_enter(&id, __func__, FAKECUDA_##class_of, device); \
    if (e_ != 0) return e_;                                              \
  } while (0)

#define ASK(device)                                             \
  do {                                                          \
    static int64_t id;                                          \
    int e_ = fakecuda_ask(&id, __func__, FAKECUDA_ANY, device); \
    if (e_ != 0) return e_;                                     \
  } while (0)

/* The same for a library whose codes the rules name. */
int fakecuda_enter_own(int64_t *id, const char *name, int device, int code_when_lost);

/* Work on a stream that another process ends, not the simulated clock. Until it has ended, what is given to the
 * stream later waits for it, on the thread that gives it, and events recorded later are not ready. */
typedef struct fakecuda_pending fakecuda_pending;
fakecuda_pending *fakecuda_pending_begin(void *stream);
/* Whether what the stream waited for before has ended. */
int fakecuda_pending_may_begin(fakecuda_pending *p);
void fakecuda_pending_end(fakecuda_pending *p);
/* Waits for what the stream of a device waits for, as whoever gives it work does. */
void fakecuda_pending_wait(int device, void *stream);

int fakecuda_current_device(void);
/* Reserves n bytes of a device's capacity. Returns 0, or 2 if they are not available. */
int fakecuda_take(int device, int64_t n);
void fakecuda_give(int device, int64_t n);
/* Registers device memory that was not allocated by cudaMalloc. A size of 0 removes it. */
void fakecuda_note_range(void *p, int64_t size, int device);
#pragma GCC visibility pop

#endif /* FAKE_H_ */

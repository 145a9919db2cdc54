/* Control of the fake CUDA runtime: virtual devices whose kernels do nothing and whose memory is the host's.
 *
 * Everything that can be set or read is one block of 64-bit words. A process has its own block, or, with
 * FAKECUDA_CONTROL=FILE, maps it from that file: then any other process (or Go, see control.go) sets and reads the
 * same words while it runs. All words may be read and written at any time, atomically.
 *
 * The environment gives the first values, where the file does not exist yet:
 *   FAKECUDA_DEVICES=2             how many devices (default 1)
 *   FAKECUDA_CAPACITY=8G[,4G…]     bytes of each, the last for all others (default 8G)
 *   FAKECUDA_RULES=RULE[;RULE…]    RULE is function:device:skip:times:error:kind:delay_us, later ones may be left
 * out
 *
 * FAKECUDA_MAJOR=9 is the major number of the devices' compute capability (default 8).
 */
#ifndef FAKECUDA_H_
#define FAKECUDA_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define FAKECUDA_MAGIC 0x316475636b6166
#define FAKECUDA_MAX_DEVICES 64 /* libtorch has no more */
#define FAKECUDA_MAX_RULES 8

/* What a rule's function can be besides a name's hash. */
enum {
  FAKECUDA_ANY = 0,   /* every function that touches a device */
  FAKECUDA_ALLOC = 1, /* device memory: cudaMalloc, cudaMallocAsync, cuMemCreate */
  FAKECUDA_LAUNCH = 2,
  FAKECUDA_FREE = 3,
  FAKECUDA_SYNC = 4, /* functions that wait for work or query it */
  FAKECUDA_COPY = 5
};

enum {
  FAKECUDA_ONCE = 0,   /* the error of this call only */
  FAKECUDA_STICKY = 1, /* the device is lost: every later call that touches it fails alike */
  FAKECUDA_ASYNC = 2   /* the call succeeds; the next one that waits loses the device */
};

typedef struct fakecuda_device {
  int64_t capacity, live, peak; /* bytes */
  int64_t allocations, frees, launches;
  int64_t lost;    /* the sticky error, 0: none */
  int64_t pending; /* an error that has occurred and has not been reported */
} fakecuda_device;

/* Applies to calls of one function (or class) on one device: lets `skip` of them through, then makes `times` fail,
 * or only slow; slow kernels run one after another.
 */
typedef struct fakecuda_rule {
  int64_t function; /* FAKECUDA_…, or fakecuda_hash of a name */
  int64_t device;   /* -1: any */
  int64_t skip;
  int64_t times; /* -1: all from then on */
  int64_t error; /* cudaError_t; 0: the call is only slow */
  int64_t kind;
  int64_t delay_us;
  int64_t seen; /* calls that it applied to */
} fakecuda_rule;

typedef struct fakecuda_state {
  int64_t magic;
  int64_t devices;
  int64_t rules;         /* how many of rule[] are in use; set after they are written */
  int64_t calls;         /* of functions that touch a device */
  int64_t errors;        /* injected */
  int64_t double_frees;  /* cudaFree of what was freed */
  int64_t foreign_frees; /* cudaFree of what was never given out */
  int64_t bad_copies;    /* copies from or to device memory that is not there */
  int64_t host_live;     /* bytes of pinned memory */
  int64_t capturing; /* the kernel's number of a thread whose default stream counts as being captured, 0: none */
  /* The simulated clock (src/streams.c), in nanoseconds: the host's time, and what a kernel and a copy take. */
  int64_t clock, kernel_ns, copy_ns;
  int64_t graphs, nodes; /* instantiated graphs that live; the nodes of the last one */
  int64_t invalidated;   /* captures */
  fakecuda_device device[FAKECUDA_MAX_DEVICES];
  fakecuda_rule rule[FAKECUDA_MAX_RULES];
  int64_t events;                         /* that live */
  int64_t contexts[FAKECUDA_MAX_DEVICES]; /* that processes have made on each device */
} fakecuda_state;

/* FNV-1a, 64 bit. */
int64_t fakecuda_hash(const char *function);
fakecuda_state *fakecuda_get(void);

void fakecuda_set_devices(int n); /* libtorch asks once, at its first use */
void fakecuda_set_capacity(int device, int64_t bytes);
/* function: a name, or "any", "alloc", "launch", "free", "sync", "copy". Returns the rule's number, -1: no room.
 */
int fakecuda_add_rule(const char *function, int device, int64_t skip, int64_t times, int error, int kind,
                      int64_t delay_us);
void fakecuda_clear_rules(void);
void fakecuda_lose(int device, int error); /* 0: as new again, which no real device does */
int64_t fakecuda_live(int device);
int64_t fakecuda_peak(int device);
void fakecuda_reset_peak(int device);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif /* FAKECUDA_H_ */

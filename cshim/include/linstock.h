/* Linstock's C API over libtorch.
 *
 * Conventions, stated once:
 *
 *  1. Handles. An ls_tensor is one owned reference to a libtorch tensor; 0 is "no tensor". A function
 *     borrows the handles it is given and never frees them; every handle it returns is the caller's, to be
 *     given back exactly once with ls_tensor_free or ls_tensors_free, on any thread.
 *  2. Errors come back in the call that failed: a non-NULL ls_error is the caller's, its fields can be read,
 *     and ls_error_free frees it. No other result of a failed call is meaningful. There is no "last error".
 *  3. Exceptions never leave: every function is noexcept behind one guard. One that returns no error does what it
 *     is there for as far as it can: it frees, restores, counts; where even that fails, it gives 0.
 *  4. Values. Arguments and results of ls_call are flat arrays of 16-byte ls_value. A list or string is a
 *     header slot (tag, len) followed by its elements inline, 8 bytes an element (bytes for a string),
 *     padded to whole slots. Nothing points into the caller's memory after the call.
 *  5. Threads. Every function may be called from any thread. Modes (gradients, inference, scope) belong to
 *     the calling thread; thread counts, seeds and determinism to the process.
 *  6. Callbacks. Only the functions marked CALLS BACK can call the functions given to ls_set_callbacks.
 *  7. Integers that name things (dtype, device type) are libtorch's own, stable across the window.
 *  8. The scope word: each result carries the calling thread's ls_scope_set value. The shim gives it no
 *     meaning.
 */
#ifndef LINSTOCK_H_
#define LINSTOCK_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define LS_NOEXCEPT noexcept
extern "C" {
#else
#define LS_NOEXCEPT
#endif

#define LS_API __attribute__((visibility("default")))

typedef uintptr_t ls_tensor;
typedef uintptr_t ls_op; /* an operator of the dispatcher; lives as long as the process */

enum ls_code {
  LS_ERR_GENERIC = 1, /* c10::Error */
  LS_ERR_INDEX = 2,
  LS_ERR_VALUE = 3,
  LS_ERR_TYPE = 4,
  LS_ERR_NOT_IMPLEMENTED = 5,
  LS_ERR_LINALG = 6,
  LS_ERR_OUT_OF_MEMORY = 7,
  LS_ERR_DEVICE = 8,    /* the accelerator's error, often sticky; see device_error */
  LS_ERR_STD = 9,       /* an exception that is not libtorch's */
  LS_ERR_ARGUMENT = 10, /* refused by the shim itself */
  LS_ERR_CALLBACK = 11, /* a callback reported failure; see callback */
  LS_ERR_UNKNOWN = 12,
  LS_ERR_DEVICE_LOST = 13, /* the device met a sticky error, now or before; see device_error */
  LS_ERR_STOP_RECOMPUTATION =
      14,              /* a checkpoint has what it needs of this recomputation; see ls_checkpoint_push */
  LS_ERR_INTERNAL = 15 /* an assertion in libtorch failed (TORCH_INTERNAL_ASSERT) */
};

typedef struct ls_error {
  int32_t code;
  int32_t device_error; /* with LS_ERR_DEVICE */
  uint64_t callback;    /* with LS_ERR_CALLBACK: what the callback returned */
  int64_t bytes;        /* with LS_ERR_OUT_OF_MEMORY: asked for; 0: not known */
  int32_t device;       /* with LS_ERR_OUT_OF_MEMORY and bytes: where */
  const char *message;  /* UTF-8, never NULL, without a C++ backtrace */
} ls_error;

enum ls_tag {
  LS_DEFAULT = 0, /* argument left out: the schema's default */
  LS_NONE = 1,
  LS_TENSOR = 2,
  LS_INT = 3, /* int, SymInt, ScalarType, Layout, MemoryFormat, Scalar */
  LS_FLOAT = 4,
  LS_BOOL = 5,
  LS_COMPLEX = 6, /* the real part here, the imaginary part as the next slot's f */
  LS_STRING = 7,
  LS_INTS = 8,
  LS_FLOATS = 9,
  LS_BOOLS = 10, /* 8 bytes an element */
  LS_TENSORS = 11,
  LS_DEVICE = 12 /* (type << 8) | (index & 0xff) */
};

typedef struct ls_value {
  uint32_t tag;
  uint32_t len;
  union {
    int64_t i;
    double f;
    ls_tensor t;
  } u;
} ls_value;

typedef struct ls_result {
  ls_tensor t;
  ls_error *err;
  uint64_t scope;
} ls_result;

typedef struct ls_results {
  uint64_t slots;  /* how many slots were written */
  ls_value *spill; /* not NULL: the results did not fit and stand here; ls_spill_free */
  ls_error *err;
  uint64_t scope;
} ls_results;

#define LS_META_DIMS 8
typedef struct ls_meta {
  int64_t numel;
  int64_t offset;  /* in elements */
  uint64_t data;   /* address of the storage, to compare; 0 where there is none */
  uint64_t nbytes; /* of the storage */
  int64_t version; /* -1 for inference tensors */
  int32_t ndim;
  int16_t dtype;
  int8_t device_type, device_index;
  uint8_t requires_grad, is_leaf, is_contiguous, is_inference;
  /* layout: c10::Layout; kJagged for any nested tensor, whose ragged dimensions have size -1 */
  uint8_t layout, is_conj, is_neg, is_view;
  int64_t sizes[LS_META_DIMS]; /* the first LS_META_DIMS of them; ls_tensor_sizes for more */
  int64_t strides[LS_META_DIMS];
} ls_meta;

/* ---- versions, errors ---- */
/* LS_ABI of the headers that the shim was built with: another means other structs. */
LS_API uint32_t ls_abi(void) LS_NOEXCEPT;
/* What was compiled against and what is loaded, MAJOR<<56|MINOR<<48|PATCH<<40. */
LS_API uint64_t ls_torch_version_built(void) LS_NOEXCEPT;
LS_API uint64_t ls_torch_version_loaded(void) LS_NOEXCEPT;
/* Once, before anything else: installs the counting CPU allocator. Later calls do nothing. */
LS_API ls_error *ls_init(void) LS_NOEXCEPT;
LS_API void ls_error_free(ls_error *err) LS_NOEXCEPT;
/* libtorch's build configuration, a string result. */
LS_API ls_results ls_show_config(ls_value *out, uint64_t out_slots) LS_NOEXCEPT;

/* ---- tensors ---- */
LS_API void ls_tensor_free(ls_tensor t) LS_NOEXCEPT;
LS_API void ls_tensors_free(const ls_tensor *t, uint64_t n) LS_NOEXCEPT;
/* A CPU tensor that owns a copy of nbytes at data, which must be numel × the dtype's size. */
LS_API ls_result ls_tensor_from_data(int32_t dtype, const int64_t *sizes, uint64_t ndim, const void *data,
                                     uint64_t nbytes) LS_NOEXCEPT;
/* A CPU tensor over caller's memory that stays valid until drop(arg) is called, on whichever thread lets
 * the last reference go. With drop == NULL, the id is queued for ls_take_dropped instead. */
LS_API ls_result ls_tensor_from_blob(int32_t dtype, const int64_t *sizes, uint64_t ndim, const void *data,
                                     uint64_t nbytes, void (*drop)(void *), uint64_t arg) LS_NOEXCEPT;
/* Copies the elements in row-major order; nbytes must match exactly and dtype be the tensor's own. */
LS_API ls_error *ls_tensor_copy_out(ls_tensor t, int32_t dtype, void *dst, uint64_t nbytes) LS_NOEXCEPT;
/* The one element of t: LS_INT, LS_FLOAT, LS_BOOL or LS_COMPLEX (two slots). */
LS_API ls_error *ls_tensor_item(ls_tensor t, ls_value out[2]) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_meta(ls_tensor t, ls_meta *out) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_sizes(ls_tensor t, int64_t *sizes, int64_t *strides, uint64_t cap) LS_NOEXCEPT;
/* A second handle to the same tensor. */
LS_API ls_result ls_tensor_alias(ls_tensor t) LS_NOEXCEPT;
LS_API ls_result ls_tensor_to(ls_tensor t, int32_t dtype /* -1: keep */, int32_t device /* -1: keep */,
                              int32_t copy) LS_NOEXCEPT;
/* x[indices]; indices of n tensors, 0 where a dimension is taken whole. */
LS_API ls_result ls_tensor_index(ls_tensor t, const ls_tensor *indices, uint64_t n) LS_NOEXCEPT;

/* ---- operators ---- */
/* name "aten::add", overload "Tensor" or "". 0 and no error: the dispatcher knows no such operator. */
LS_API ls_results ls_op_find(const char *name, const char *overload, ls_op *out) LS_NOEXCEPT;
/* Its schema, as one string. */
LS_API ls_results ls_op_schema(ls_op op, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* 1: it writes into none of its arguments and draws no random numbers. */
LS_API int32_t ls_op_repeatable(ls_op op) LS_NOEXCEPT;
/* 1: it is internal to libtorch, which trusts its arguments: wrong ones may end the process. */
LS_API int32_t ls_op_internal(ls_op op) LS_NOEXCEPT;
/* All names, "aten::add.Tensor", as one string with a newline after each. */
LS_API ls_results ls_op_names(ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
enum ls_call_flags { LS_CALL_DISCARD = 1 /* drop the results (in-place operators) */ };
LS_API ls_results ls_call(ls_op op, const ls_value *args, uint64_t slots, ls_value *out, uint64_t out_slots,
                          uint32_t flags) LS_NOEXCEPT;
LS_API void ls_spill_free(ls_value *spill) LS_NOEXCEPT;

/* ---- autograd ---- */
typedef struct ls_callbacks {
  /* A tensor hook: grad is borrowed; *out is 0 to leave it, or a new handle. Returns 0 for success, else a
   * number that comes back in ls_error.callback. */
  uint64_t (*hook)(uint64_t id, ls_tensor grad, ls_tensor *out);
  /* backward of a custom function: grads[n] borrowed (0: none), saved[ns] borrowed, out[nout] filled with new
   * handles (0: none). */
  uint64_t (*backward)(uint64_t id, const ls_tensor *grads, uint64_t n, const ls_tensor *saved, uint64_t ns,
                       const uint8_t *needs, ls_tensor *out, uint64_t nout);
  /* Computes a checkpointed function again on inputs[n], borrowed; see ls_checkpoint_push. */
  uint64_t (*recompute)(uint64_t id, const ls_tensor *inputs, uint64_t n);
} ls_callbacks;
LS_API void ls_set_callbacks(const ls_callbacks *cb) LS_NOEXCEPT;

/* CALLS BACK. grads and inputs may be NULL; an element of grads may be 0 for "ones". */
LS_API ls_error *ls_backward(const ls_tensor *roots, uint64_t n, const ls_tensor *grads, const ls_tensor *inputs,
                             uint64_t ninputs, int32_t retain, int32_t create) LS_NOEXCEPT;
/* CALLS BACK. out[ninputs]; 0 where an input is unused and that is allowed. */
LS_API ls_error *ls_grad(const ls_tensor *outputs, uint64_t n, const ls_tensor *grads, const ls_tensor *inputs,
                         uint64_t ninputs, int32_t retain, int32_t create, int32_t allow_unused, ls_tensor *out,
                         uint64_t *scope) LS_NOEXCEPT;
LS_API ls_error *ls_set_requires_grad(ls_tensor t, int32_t on) LS_NOEXCEPT;
LS_API ls_error *ls_retain_grad(ls_tensor t) LS_NOEXCEPT;
/* .grad; t is 0 where there is none. */
LS_API ls_result ls_grad_of(ls_tensor t) LS_NOEXCEPT;
LS_API ls_error *ls_set_grad(ls_tensor t, ls_tensor grad) LS_NOEXCEPT;
/* The .grad of each, 0 where there is none; out[n]. */
LS_API ls_error *ls_grads_of(const ls_tensor *t, uint64_t n, ls_tensor *out) LS_NOEXCEPT;
/* .grad = None (zero == 0) or zeros in place (zero == 1). */
LS_API ls_error *ls_zero_grads(const ls_tensor *t, uint64_t n, int32_t zero) LS_NOEXCEPT;
/* The name of grad_fn, as a string; empty for a leaf. */
LS_API ls_results ls_grad_fn_name(ls_tensor t, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* Calls hook(id, …) during backward. The id is queued for ls_take_dropped when libtorch lets the hook go. */
LS_API ls_error *ls_register_hook(ls_tensor t, uint64_t id, uint32_t *slot) LS_NOEXCEPT;
LS_API ls_error *ls_remove_hook(ls_tensor t, uint32_t slot) LS_NOEXCEPT;
/* Ties outputs (computed without gradients) to inputs by a node whose backward is the callback. out[nout]. */
LS_API ls_error *ls_custom_function(uint64_t id, const ls_tensor *inputs, uint64_t nin, const ls_tensor *outputs,
                                    uint64_t nout, const ls_tensor *saved, uint64_t nsaved, ls_tensor *out,
                                    uint64_t *scope) LS_NOEXCEPT;
/* Policies decide what the graph keeps in place of the tensors that operators save for backward. Each thread has a
 * stack of them; the innermost one decides. It is asked on the operator's thread and never calls back then; for
 * the tensor it is asked within a backward pass, on any thread, and may call back.
 *
 * Pushes a checkpoint: from now until ls_saved_pop the graph keeps none of the tensors that operators save on this
 * thread. When a backward pass needs one of them, it calls recompute(id, inputs), with the random states and the
 * modes that were in force at the push, and takes the tensors that are saved then: they must agree with the first
 * ones in number, dtype, shape and device. Once the last of them is saved, operators of the recomputation fail
 * with LS_ERR_STOP_RECOMPUTATION, and what recompute returns is ignored. The tensors live until they are used, and
 * not beyond the pass. The inputs are saved by the policy around. The id is queued for ls_take_dropped when the
 * last node of the graph that may need it is freed, and at once where there is none. *depth is for ls_saved_pop.
 */
LS_API ls_error *ls_checkpoint_push(uint64_t id, const ls_tensor *inputs, uint64_t n, uint64_t *depth) LS_NOEXCEPT;
/* Pops policies of the calling thread until depth are left, also where it returns an error: an input was changed
 * in place since the push, and something would have to be computed from it again. */
LS_API ls_error *ls_saved_pop(uint64_t depth) LS_NOEXCEPT;
/* Ids whose native holder has gone, to be forgotten by the owner. Returns how many were written. */
LS_API uint64_t ls_take_dropped(uint64_t *ids, uint64_t cap) LS_NOEXCEPT;
LS_API uint64_t ls_dropped_count(void) LS_NOEXCEPT;

/* ---- optimizers ---- */
typedef struct ls_adam {
  double lr, beta1, beta2, weight_decay, eps;
  int32_t amsgrad, maximize, decoupled; /* decoupled: AdamW */
} ls_adam;
/* A step of Adam by libtorch's fused kernel on those of n parameters that have a gradient; all are of one dtype
 * and device. avgs, sqs, maxs (NULL without amsgrad) and steps (float32 scalars) are the state of each. */
LS_API ls_error *ls_adam_step(const ls_adam *how, uint64_t n, const ls_tensor *params, const ls_tensor *avgs,
                              const ls_tensor *sqs, const ls_tensor *maxs, const ls_tensor *steps) LS_NOEXCEPT;

/* ---- the calling thread ---- */
enum ls_mode { LS_MODE_GRAD = 0, LS_MODE_INFERENCE = 1 };
LS_API int32_t ls_mode_get(int32_t mode) LS_NOEXCEPT;
/* Pushes; ls_mode_pop restores what was before, on the same thread, innermost first. */
LS_API ls_error *ls_mode_push(int32_t mode, int32_t on) LS_NOEXCEPT;
LS_API void ls_mode_pop(void) LS_NOEXCEPT;
/* Set in the scope word of a result whose thread has computed on the CPU's large blocks, 8 ms and more after this
 * was set last, until the next ls_scope_set: time to let the caller's scheduler have the thread. */
#define LS_SCOPE_LONG (UINT64_C(1) << 60)
/* What stands in a scope word besides, and is no part of it. */
#define LS_SCOPE_FLAGS (LS_SCOPE_SAMPLED | LS_SCOPE_LONG)
/* Sets the scope word, without flags, and returns the one before. */
LS_API uint64_t ls_scope_set(uint64_t scope) LS_NOEXCEPT;
LS_API uint64_t ls_scope_get(void) LS_NOEXCEPT;
/* The flags that a result would carry now: after what gives none, such as ls_backward. */
LS_API uint64_t ls_scope_flags(void) LS_NOEXCEPT;
/* Scope words of threads that ended with one set. Returns how many were written. */
LS_API uint64_t ls_scope_orphans(uint64_t *scopes, uint64_t cap) LS_NOEXCEPT;

/* ---- the process ---- */
LS_API ls_error *ls_manual_seed(uint64_t seed) LS_NOEXCEPT;
LS_API ls_result ls_rng_state(int32_t device) LS_NOEXCEPT; /* uint8 tensor */
LS_API ls_error *ls_set_rng_state(int32_t device, ls_tensor state) LS_NOEXCEPT;
/* Reaches every thread: each one takes the number over at its next call. */
LS_API ls_error *ls_set_num_threads(int32_t n) LS_NOEXCEPT;
LS_API int32_t ls_num_threads(void) LS_NOEXCEPT;
LS_API ls_error *ls_set_deterministic(int32_t on, int32_t warn_only) LS_NOEXCEPT;
LS_API int32_t ls_deterministic(void) LS_NOEXCEPT;
/* 0 highest, 1 high, 2 medium. */
LS_API ls_error *ls_set_matmul_precision(int32_t precision) LS_NOEXCEPT;
LS_API int32_t ls_matmul_precision(void) LS_NOEXCEPT;
LS_API ls_error *ls_set_default_dtype(int32_t dtype) LS_NOEXCEPT;
LS_API int32_t ls_default_dtype(void) LS_NOEXCEPT;
/* How many devices of a type can be used. */
LS_API int32_t ls_device_count(int32_t device_type) LS_NOEXCEPT;
LS_API ls_error *ls_synchronize(int32_t device) LS_NOEXCEPT;

/* ---- memory ----
 * A device is named as in LS_DEVICE; the CPU is 0xff. Bytes are those of storages: a view adds nothing. */
typedef struct ls_memory {
  int64_t allocated;    /* bytes live, as the allocator rounds them */
  int64_t peak;         /* highest allocated since the last reset */
  int64_t requested;    /* bytes live as they were asked for */
  int64_t reserved;     /* allocated, and cached */
  int64_t cached;       /* bytes of free blocks that the allocator keeps */
  int64_t active;       /* allocated, and freed but still used by a stream */
  int64_t largest_free; /* the largest cached block; -1 if unknown */
  int64_t allocations;  /* since the start */
  int64_t frees;
  int64_t total;        /* bytes allocated since the start, about: threads reserve credit for small blocks */
  int64_t limit;        /* 0: none */
  int64_t handles;      /* ls_tensor handles not yet freed, of all devices */
  int64_t created;      /* handles made since the start */
  int64_t most_handles; /* the peak of handles; 64 for each thread may be missing */
} ls_memory;
LS_API ls_error *ls_memory_stats(int32_t device, ls_memory *out) LS_NOEXCEPT;
/* The counters that a pacer reads, without a lock. live includes the credit of threads for small blocks. */
typedef struct ls_pace {
  int64_t live, reserved, limit;
  int64_t total; /* bytes allocated since the start */
  int64_t freed; /* bytes freed since the start */
} ls_pace;
LS_API ls_error *ls_memory_pace(int32_t device, ls_pace *out) LS_NOEXCEPT;
LS_API ls_error *ls_memory_reset_peak(int32_t device) LS_NOEXCEPT;
/* Returns cached blocks to the system; for the CPU also malloc's free pages. */
LS_API ls_error *ls_memory_empty_cache(int32_t device) LS_NOEXCEPT;
/* Returns cached blocks to the system until keep bytes are left at most; for the CPU only. */
LS_API ls_error *ls_memory_trim(int32_t device, int64_t keep, int64_t *freed) LS_NOEXCEPT;
LS_API ls_error *ls_memory_capacity(int32_t device, int64_t *free, int64_t *total) LS_NOEXCEPT;
/* Sets the hard limit: an allocation that would pass it waits, then fails with LS_ERR_OUT_OF_MEMORY. 0: none. */
LS_API ls_error *ls_memory_set_limit(int32_t device, int64_t bytes) LS_NOEXCEPT;
/* A memory cgroup: the directory of its files, and its version, 1 or 2. */
typedef struct ls_cgroup {
  const char *dir;
  int32_t version, unused;
} ls_cgroup;
/* Makes the CPU's limit follow n memory cgroups. The limit is the bytes of tensors and caches, and the room that
 * the groups have besides, less a reserve (src/cgroup.h); `most` at most. It is measured again as memory is
 * allocated, when an allocation does not fit, and when ls_pressure_wait times out. `caller` is how many bytes of
 * the process the caller uses and may return later. ls_memory_set_limit ends this. */
LS_API ls_error *ls_memory_follow_cgroups(const ls_cgroup *groups, uint64_t n, int64_t most,
                                          int64_t caller) LS_NOEXCEPT;
/* Called on the thread whose allocation does not fit, with no lock of the shim held. Returns non-zero if it freed
 * something: the allocation is tried again. Allocations that it makes do not call it. NULL: no callback. */
typedef int32_t (*ls_oom_callback)(void *arg, int32_t device, int64_t bytes);
LS_API ls_error *ls_memory_set_oom_callback(ls_oom_callback fn, void *arg) LS_NOEXCEPT;

/* ---- pressure: a pacer of the caller's ----
 * An allocation that does not fit waits for a round of the pacer, without a lock of the shim and for a bounded
 * time. A round serves all allocations that wait when it begins, on every device. */
typedef struct ls_board {
  uint32_t due; /* set when a device passes a trigger, and when an allocation begins to wait; atomic; the caller
                   clears it */
} ls_board;
LS_API ls_board *ls_memory_board(void) LS_NOEXCEPT;
/* due is set when more than `live` bytes are live, or more than `total` bytes were allocated since the start. An
 * allocation that would take the live bytes past `wait` waits (LS_WAIT_TARGET). INT64_MAX: never. */
LS_API ls_error *ls_memory_set_triggers(int32_t device, int64_t live, int64_t total, int64_t wait) LS_NOEXCEPT;
/* Why an allocation waits. */
enum ls_wait_reason {
  LS_WAIT_TARGET = 1, /* it would pass the wait trigger; it goes on after a quarter of a second at the latest */
  LS_WAIT_LIMIT = 2,  /* it would pass the hard limit; it fails after an exhausted round that freed nothing */
  LS_WAIT_SYSTEM = 3  /* the system or the device has refused the memory; it fails as for LS_WAIT_LIMIT */
};
/* The result of a round for a device; bits. With none the allocations try again, and may ask for another round. */
enum ls_verdict {
  LS_VERDICT_ADMIT = 1,    /* for LS_WAIT_TARGET: the allocations may pass the wait trigger */
  LS_VERDICT_EXHAUSTED = 2 /* for the others: everything that was unreachable when the round began is freed */
};
/* The allocations that wait on one device. */
typedef struct ls_waiters {
  int64_t bytes;   /* their sum */
  int64_t largest; /* the largest of them */
  int32_t device;
  int32_t reason;  /* the highest ls_wait_reason among them */
  int32_t verdict; /* set by the caller, for ls_pressure_done */
  int32_t unused;
} ls_waiters;
#define LS_PRESSURE_DEVICES 65
typedef struct ls_pressure {
  uint64_t round;
  int32_t count, unused; /* devices in waiters; 0: no allocation waits any more */
  ls_waiters waiters[LS_PRESSURE_DEVICES];
} ls_pressure;
/* Allocations wait from ls_pressure_attach (0: a pacer is attached already) to ls_pressure_stop. ls_pressure_wait
 * blocks the calling thread until a round is asked for (1), the time is over (0) or ls_pressure_stop was called
 * (-1); it also does ls_sweeping_set(1) for the thread. ls_pressure_done ends the round with the verdicts in it,
 * after the caller's frees; NULL ends no round. */
LS_API int32_t ls_pressure_attach(void) LS_NOEXCEPT;
LS_API void ls_pressure_stop(void) LS_NOEXCEPT;
LS_API int32_t ls_pressure_wait(ls_pressure *out, int64_t timeout_ms) LS_NOEXCEPT;
LS_API void ls_pressure_done(const ls_pressure *round) LS_NOEXCEPT;
/* Asks for a round and returns at once; 0: no pacer is attached. */
LS_API int32_t ls_pressure_ask(void) LS_NOEXCEPT;
/* While on, allocations of this thread never wait. Returns the value before; a negative value changes nothing. */
LS_API int32_t ls_sweeping_set(int32_t on) LS_NOEXCEPT;
#define LS_WAIT_BUCKETS 96
typedef struct ls_pressure_counts {
  int64_t waits, wait_ns, timeouts, retries, ooms;
  int64_t histogram[LS_WAIT_BUCKETS]; /* waits by length: bucket i holds those below 2^(i/4) microseconds */
} ls_pressure_counts;
LS_API void ls_pressure_stats(ls_pressure_counts *out) LS_NOEXCEPT;

/* ---- samples: which call made the memory that is live ----
 * About every rate bytes a block is sampled; the thread's scope word then has LS_SCOPE_SAMPLED until
 * ls_samples_attach has named the site of what this thread has sampled. Sites are the caller's numbers. */
#define LS_SCOPE_SAMPLED (UINT64_C(1) << 62)
/* 0: none; 1: every block, for a history. */
LS_API void ls_samples_set_rate(int64_t bytes) LS_NOEXCEPT;
/* result may be 0; its block is named also when another thread made it. */
LS_API void ls_samples_attach(uint32_t site, ls_tensor result) LS_NOEXCEPT;
/* How many blocks have been sampled, to be read atomically: what has no scope word in its result is named by it.
 */
LS_API uint64_t *ls_samples_seen(void) LS_NOEXCEPT;
/* The site of blocks that nobody has named. */
#define LS_NO_SITE UINT32_MAX
typedef struct ls_site {
  uint32_t site;
  int32_t device;
  int64_t live_bytes, live_count, total_bytes, total_count; /* estimates: samples weighted by their chance */
} ls_site;
/* Returns how many there are; writes at most cap. */
LS_API uint64_t ls_samples_sites(ls_site *out, uint64_t cap) LS_NOEXCEPT;
/* What a device's own allocator does besides: kinds 2 to 7. */
enum ls_event_kind {
  LS_EVENT_ALLOCATED = 0,
  LS_EVENT_FREED = 1,
  LS_EVENT_FREE_REQUESTED = 2, /* freed once the streams that use the block are done with it */
  LS_EVENT_SEGMENT_ALLOCATED = 3,
  LS_EVENT_SEGMENT_FREED = 4,
  LS_EVENT_SEGMENT_MAPPED = 5,
  LS_EVENT_SEGMENT_UNMAPPED = 6,
  LS_EVENT_SNAPSHOT = 7,      /* ls_cuda_snapshot read the segments here */
  LS_EVENT_OUT_OF_MEMORY = 8, /* address: how many bytes were free */
};
typedef struct ls_event {
  int64_t time_ns; /* since the epoch */
  uint64_t address;
  int64_t bytes;     /* as the allocator rounds them */
  int64_t requested; /* as they were asked for; 0 where freed */
  uint64_t stream;   /* a device's; 0 is the default stream */
  uint32_t site;
  int32_t device;
  int32_t kind; /* ls_event_kind */
  uint32_t thread;
} ls_event;
/* Keeps the last max events of each device; 0 stops and forgets. */
LS_API ls_error *ls_history_set(uint64_t max) LS_NOEXCEPT;
/* The events, those of one device after those of another, each device's oldest first. Returns how many there are;
 * writes at most cap. */
LS_API uint64_t ls_history_events(ls_event *out, uint64_t cap) LS_NOEXCEPT;
/* The sampled blocks that are live, as events of kind 0. */
LS_API uint64_t ls_history_live(ls_event *out, uint64_t cap) LS_NOEXCEPT;
/* Adds an event of kind LS_EVENT_OUT_OF_MEMORY; nothing where no history is kept. */
LS_API ls_error *ls_history_out_of_memory(int32_t device, int64_t bytes, int64_t free, uint32_t site) LS_NOEXCEPT;

/* ---- cuda ---- */
LS_API ls_results ls_device_name(int32_t device, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* The caching allocator's segments and settings as the pickle that PyTorch's memory viewer reads, a string,
 * without stacks and events: those are in the history. Empty where no device has been used. */
LS_API ls_results ls_cuda_snapshot(ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* The options of PyTorch's caching allocator, which the environment's PYTORCH_CUDA_ALLOC_CONF or
 * PYTORCH_ALLOC_CONF sets first. */
typedef struct ls_allocator_settings {
  int64_t max_split_size; /* bytes; 0: any block is split */
  double garbage_collection_threshold;
  int32_t expandable_segments, unused;
} ls_allocator_settings;
/* Returns the text that set them, a string; empty: nothing did. */
LS_API ls_results ls_cuda_allocator_settings(ls_allocator_settings *settings, ls_value *out,
                                             uint64_t out_slots) LS_NOEXCEPT;
/* Sets them from a text as in the environment. What it does not name goes back to its default, but for
 * expandable_segments. After an error they are as they were. */
LS_API ls_error *ls_cuda_set_allocator_settings(const char *text) LS_NOEXCEPT;
/* The CUDA devices that this process has used and that are not lost: bit i is cuda:i. */
LS_API uint64_t ls_cuda_used(void) LS_NOEXCEPT;
/* Whether a graph is being captured on one of the calling thread's streams: no moment for frees that can wait. */
LS_API int32_t ls_cuda_capturing(void) LS_NOEXCEPT;

/* ---- faults: for tests, which make the shim fail where it could ---- */
enum ls_fault_point {
  LS_FAULT_CPU = 0,    /* memory for a CPU tensor: no room, whatever is tried */
  LS_FAULT_SYSTEM = 1, /* the same where the system is asked: what is kept is given back, and it is asked again */
  LS_FAULT_SHIM = 2,   /* an allocation of the shim's own, by malloc or new */
  LS_FAULT_ENTRY = 3,  /* the entry of a function throws */
  LS_FAULT_POINTS = 4
};
enum ls_throw {
  LS_THROW_ERROR = 0,         /* c10::Error */
  LS_THROW_OUT_OF_MEMORY = 1, /* c10::OutOfMemoryError */
  LS_THROW_BAD_ALLOC = 2,
  LS_THROW_STD = 3,      /* std::runtime_error */
  LS_THROW_NOT_STD = 4,  /* an int */
  LS_THROW_LONG = 5,     /* std::runtime_error with a text of a MiB that is not UTF-8 */
  LS_THROW_NAMELESS = 6, /* a std::exception whose what() is NULL */
  LS_THROWS = 7
};
/* Lets skip events of a point pass and makes the next `times` fail (-1: all from then on; 0: disarms it), those of
 * the calling thread alone where mine is set. kind: what an entry throws. */
LS_API ls_error *ls_fault_set(int32_t point, int64_t skip, int64_t times, int32_t kind, int32_t mine) LS_NOEXCEPT;
/* How many events there were since it was armed, and how many of them failed. */
LS_API void ls_fault_counts(int32_t point, int64_t *seen, int64_t *failed) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#include "linstock_ops.h"

#endif /* LINSTOCK_H_ */

/* Handles, values and errors; versions; the state of the calling thread and of the process. */
#ifndef LINSTOCK_LINSTOCK_CORE_H_
#define LINSTOCK_LINSTOCK_CORE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define LS_NOEXCEPT noexcept
#else
#define LS_NOEXCEPT
#endif

#define LS_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

typedef uintptr_t ls_tensor;
typedef uintptr_t ls_object;    /* an object of a class that libtorch's C++ registers (torch::class_) */
typedef uintptr_t ls_generator; /* a random number generator */
typedef uintptr_t ls_op;        /* an operator of the dispatcher; lives as long as the process */

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
      14,                /* a checkpoint has what it needs of this recomputation; see ls_checkpoint_push */
  LS_ERR_INTERNAL = 15,  /* an assertion in libtorch failed (TORCH_INTERNAL_ASSERT) */
  LS_ERR_CAPTURE = 16,   /* not possible while a graph is captured; see device_error, 0 if the shim refused it */
  LS_ERR_NAN = 17,       /* with LS_MODE_ANOMALY: the backward of an operator returned NaN */
  LS_ERR_TIMEOUT = 18,   /* another process did not answer in time (linstock/dist.h) */
  LS_ERR_CONNECTION = 19 /* the connection to another process, or to the store, is lost */
};

typedef struct ls_error {
  int32_t code;
  int32_t device_error; /* with LS_ERR_DEVICE */
  uint64_t callback;    /* with LS_ERR_CALLBACK: what the callback returned */
  int64_t bytes;        /* with LS_ERR_OUT_OF_MEMORY: asked for; 0: not known */
  int64_t live;         /* with LS_ERR_OUT_OF_MEMORY: live on the device when it failed; 0: not known */
  int32_t device;       /* with LS_ERR_OUT_OF_MEMORY: where; without bytes a guess; 0: not known, or the CPU */
  const char *message;  /* UTF-8, never NULL, without a C++ backtrace */
  const char *node;     /* with LS_MODE_ANOMALY: the node whose backward failed; else NULL */
  uint32_t site;        /* with node: the site of the call that made it (linstock/profile.h) */
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
  LS_DEVICE = 12, /* (type << 8) | (index & 0xff) */
  LS_OBJECT = 13,
  LS_STREAM = 14, /* the stream's id in i, its device in len, as in LS_DEVICE */
  LS_GENERATOR = 15,
  LS_UINT = 16 /* a number above INT64_MAX: the bits of a uint64_t in i */
};

typedef struct ls_value {
  uint32_t tag;
  uint32_t len;
  union {
    int64_t i;
    double f;
    ls_tensor t;
    ls_object o;
    ls_generator g;
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
  uint64_t data;   /* address of the storage, for comparisons; 0 if there is none */
  uint64_t nbytes; /* of the storage */
  int64_t version; /* -1 for inference tensors */
  int32_t ndim;
  int16_t dtype;
  int8_t device_type, device_index;
  uint8_t requires_grad, is_leaf, is_contiguous, is_inference;
  /* layout: c10::Layout; kJagged for any nested tensor, whose ragged dimensions have size -1 */
  uint8_t layout, is_conj, is_neg, is_view;
  uint8_t counted;             /* the device's account has the bytes: of a tensor on the CPU, its allocator's */
  int64_t sizes[LS_META_DIMS]; /* the first LS_META_DIMS of them; ls_tensor_sizes for more */
  int64_t strides[LS_META_DIMS];
} ls_meta;

/* ---- versions, errors ---- */
/* Returns LS_ABI of the headers that the shim was built with. If it differs, the structs differ. */
LS_API uint32_t ls_abi(void) LS_NOEXCEPT;
/* The libtorch compiled against and the one loaded, MAJOR<<56|MINOR<<48|PATCH<<40. */
LS_API uint64_t ls_torch_version_built(void) LS_NOEXCEPT;
LS_API uint64_t ls_torch_version_loaded(void) LS_NOEXCEPT;
/* Called first: installs the counting CPU allocator. Later calls do nothing. */
LS_API ls_error *ls_init(void) LS_NOEXCEPT;
LS_API void ls_error_free(ls_error *err) LS_NOEXCEPT;
/* Returns libtorch's build configuration as a string. */
LS_API ls_results ls_torch_config(ls_value *out, uint64_t out_slots) LS_NOEXCEPT;

/* ---- the calling thread ---- */
enum ls_mode_kind {
  LS_MODE_GRAD = 0,      /* operations are recorded for the backward pass */
  LS_MODE_INFERENCE = 1, /* inference mode */
  LS_MODE_AUTOCAST = 2,  /* operators of a device type cast their arguments to a dtype */
  LS_MODE_STREAM = 3,    /* a stream and its device are current (linstock/stream.h) */
  LS_MODE_ANOMALY = 4,   /* errors of backward passes name the call that made the failed node */
  LS_MODE_FORWARD = 5    /* tensors can get tangents (aten::_make_dual, level 0); one thread at a time */
};
typedef struct ls_mode {
  int32_t kind;
  int32_t on; /* of LS_MODE_ANOMALY: NaN is an error, in the passes of all threads; not read for LS_MODE_STREAM and
                 LS_MODE_FORWARD */
  int32_t device; /* of LS_MODE_AUTOCAST: a device type; of LS_MODE_STREAM: a device, as in LS_DEVICE */
  int32_t dtype;  /* of LS_MODE_AUTOCAST: float16 or bfloat16; not read where on is 0 */
  int64_t stream; /* of LS_MODE_STREAM: the stream's id */
} ls_mode;
/* The mode of a kind, and for LS_MODE_AUTOCAST of a device type, that is in force. Not for LS_MODE_STREAM, see
 * ls_stream_current, and LS_MODE_ANOMALY. */
LS_API ls_mode ls_mode_get(int32_t kind, int32_t device_type) LS_NOEXCEPT;
/* Sets a mode. ls_mode_pop restores what was in force before, on the same thread, innermost first. From the first
 * stream other than a default one, every operator records the streams that use its operands (ls_stream_record). */
LS_API ls_error *ls_mode_push(ls_mode mode) LS_NOEXCEPT;
LS_API void ls_mode_pop(void) LS_NOEXCEPT;
/* Forgets the casts of weights that autocast keeps for reuse, because weights were changed: if everywhere, and
 * otherwise if the calling thread is in a region that may have kept some, or in a backward pass, which a thread in
 * such a region may wait for. */
LS_API void ls_casts_clear(int32_t everywhere) LS_NOEXCEPT;
/* Sets the scope word, without LS_SCOPE_SAMPLED, which is not part of it, and returns the one before. If there was
 * none, it returns LS_SCOPE_MAIN on the process's main thread, where the system tells which that is (Linux). */
LS_API uint64_t ls_scope_set(uint64_t scope) LS_NOEXCEPT;
#define LS_SCOPE_MAIN (UINT64_C(1) << 59)
LS_API uint64_t ls_scope_get(void) LS_NOEXCEPT;
/* Returns the scope word. If it is scope, sets parent in its place, and if parent is 0, adds LS_SCOPE_YIELD to the
 * result where ls_yield_due(1) is 1. */
LS_API uint64_t ls_scope_leave(uint64_t scope, uint64_t parent) LS_NOEXCEPT;
/* Writes the scope words of threads that ended with one set. Returns the number written. */
LS_API uint64_t ls_scope_orphans(uint64_t *scopes, uint64_t cap) LS_NOEXCEPT;
/* Reports whether the caller should let its scheduler run, which is once in 8 ms on each thread. If operators may
 * use several threads, the scope word of a result then has LS_SCOPE_YIELD; this function is for calls whose result
 * has no scope word. If at_one_thread is 0 and operators use one thread, it returns 0. */
LS_API int32_t ls_yield_due(int32_t at_one_thread) LS_NOEXCEPT;
#define LS_SCOPE_YIELD (UINT64_C(1) << 60)

/* ---- the process ---- */
/* Seeds the default generators of the CPU and of all devices, that of a device that was not used yet at its first
 * use. An error is that of a device; the others are seeded. */
LS_API ls_error *ls_rng_seed(uint64_t seed) LS_NOEXCEPT;
LS_API ls_result ls_rng_state(int32_t device) LS_NOEXCEPT; /* uint8 tensor */
LS_API ls_error *ls_rng_set_state(int32_t device, ls_tensor state) LS_NOEXCEPT;
/* Makes a generator of a device, with libtorch's default seed. */
LS_API ls_error *ls_generator_new(int32_t device, ls_generator *out) LS_NOEXCEPT;
LS_API void ls_generator_free(ls_generator g) LS_NOEXCEPT;
LS_API ls_error *ls_generator_seed(ls_generator g, uint64_t seed) LS_NOEXCEPT;
/* Seeds it with a number from the system, *seed. */
LS_API ls_error *ls_generator_seed_random(ls_generator g, uint64_t *seed) LS_NOEXCEPT;
LS_API ls_error *ls_generator_current_seed(ls_generator g, uint64_t *seed) LS_NOEXCEPT;
LS_API ls_result ls_generator_state(ls_generator g) LS_NOEXCEPT; /* uint8 tensor */
LS_API ls_error *ls_generator_set_state(ls_generator g, ls_tensor state) LS_NOEXCEPT;
/* Applies to every thread, from its next call on. */
LS_API ls_error *ls_threads_set(int32_t n) LS_NOEXCEPT;
LS_API int32_t ls_threads_get(void) LS_NOEXCEPT;
LS_API ls_error *ls_deterministic_set(int32_t on, int32_t warn_only) LS_NOEXCEPT;
LS_API int32_t ls_deterministic_get(void) LS_NOEXCEPT;
/* 0 highest, 1 high, 2 medium. */
LS_API ls_error *ls_matmul_precision_set(int32_t precision) LS_NOEXCEPT;
LS_API int32_t ls_matmul_precision_get(void) LS_NOEXCEPT;
LS_API ls_error *ls_default_dtype_set(int32_t dtype) LS_NOEXCEPT;
LS_API int32_t ls_default_dtype_get(void) LS_NOEXCEPT;
/* The backends of scaled_dot_product_attention, as in at::SDPBackend, that are allowed, in order of priority.
 * Returns their number, at most cap. */
LS_API uint64_t ls_sdpa_get(int32_t *backends, uint64_t cap) LS_NOEXCEPT;
LS_API ls_error *ls_sdpa_set(const int32_t *backends, uint64_t n) LS_NOEXCEPT;
/* Returns the number of devices of a type that can be used. */
LS_API int32_t ls_device_count(int32_t device_type) LS_NOEXCEPT;
LS_API ls_results ls_device_name(int32_t device, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* Returns the devices of a type that this process has used and that are not lost: bit i is the i-th. */
LS_API uint64_t ls_device_used(int32_t device_type) LS_NOEXCEPT;
LS_API ls_error *ls_device_synchronize(int32_t device) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_CORE_H_ */

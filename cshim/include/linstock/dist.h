/* Process groups: libtorch's c10d with its backends, gloo for CPU tensors and NCCL for those on CUDA devices. */
#ifndef LINSTOCK_LINSTOCK_DIST_H_
#define LINSTOCK_LINSTOCK_DIST_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A lost connection is LS_ERR_CONNECTION, an expired wait LS_ERR_TIMEOUT. A function with an argument `cancel`
 * also returns LS_ERR_TIMEOUT soon after *cancel, which another thread may set during the call, is no longer 0. */

/* ---- stores ----
 * A store maps keys to bytes for all processes of a job. Each ls_store is freed once by ls_store_free; stores and
 * groups that were made from it keep what they need of it. */
typedef uintptr_t ls_store;
typedef struct ls_tcp_store {
  const char *host;
  int32_t port;         /* 0 with server: one that is free */
  int32_t server;       /* 1: this process hosts the store */
  int32_t shared;       /* with server: 1: one server for all stores of the process with this port */
  int32_t workers;      /* without server: announce this process to a server that counts its workers; 0: do not */
  int64_t milliseconds; /* for the connection */
} ls_tcp_store;
/* *port: where the server listens. */
LS_API ls_error *ls_store_tcp(const ls_tcp_store *options, ls_store *store, int32_t *port) LS_NOEXCEPT;
LS_API ls_error *ls_store_file(const char *path, int32_t processes, ls_store *store) LS_NOEXCEPT;
LS_API ls_error *ls_store_hash(ls_store *store) LS_NOEXCEPT;
/* A store whose keys are those of `base` with a prefix and "/". */
LS_API ls_error *ls_store_prefix(ls_store base, const char *prefix, ls_store *store) LS_NOEXCEPT;
LS_API void ls_store_free(ls_store store) LS_NOEXCEPT;
LS_API ls_error *ls_store_set(ls_store store, const char *key, const void *data, uint64_t n) LS_NOEXCEPT;
/* Waits for the key, and returns its value as a string. */
LS_API ls_results ls_store_get(ls_store store, const char *key, int64_t milliseconds, const int32_t *cancel,
                               ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
LS_API ls_error *ls_store_wait(ls_store store, const char *key, int64_t milliseconds,
                               const int32_t *cancel) LS_NOEXCEPT;
LS_API ls_error *ls_store_check(ls_store store, const char *key, int32_t *there) LS_NOEXCEPT;
LS_API ls_error *ls_store_add(ls_store store, const char *key, int64_t n, int64_t *sum) LS_NOEXCEPT;
/* Sets the key to `desired` if its value is `expected`, or if it has none and `expected` is empty. Returns the
 * value that it has then, as a string. */
LS_API ls_results ls_store_compare_set(ls_store store, const char *key, const void *expected, uint64_t expected_n,
                                       const void *desired, uint64_t desired_n, ls_value *out,
                                       uint64_t out_slots) LS_NOEXCEPT;
LS_API ls_error *ls_store_delete(ls_store store, const char *key, int32_t *deleted) LS_NOEXCEPT;
LS_API ls_error *ls_store_num_keys(ls_store store, int64_t *keys) LS_NOEXCEPT;

/* ---- groups ---- */
typedef uintptr_t ls_group;
enum ls_backend {
  LS_BACKEND_GLOO = 1,
  /* Connects at the first collective on a device. Needs the CUDA library. */
  LS_BACKEND_NCCL = 2
};
/* Connects this process to the others of the group, which meet in the store. backends: one or both of ls_backend;
 * the tensors' device chooses. milliseconds: for each collective. within: milliseconds for the connection; once
 * all ranks have come to the store, connecting to each may take a minute at most. checked: nullptr, or the group's
 * name in Python, and collectives first compare their kinds, sizes and dtypes over the ranks, and fail on all
 * ranks if they differ (c10d::ProcessGroupWrapper). */
LS_API ls_error *ls_group_new(ls_store store, int32_t rank, int32_t size, int32_t backends, int64_t milliseconds,
                              int64_t within, const char *checked, const int32_t *cancel,
                              ls_group *group) LS_NOEXCEPT;
/* Makes all collectives in flight and all later ones fail, here at once, and on the other ranks as soon as their
 * connections to this one are found closed. NCCL's other ranks may notice nothing before their timeout. */
LS_API ls_error *ls_group_abort(ls_group group) LS_NOEXCEPT;
/* Aborts the collectives in flight, and waits for their threads. What earlier ones have sent still arrives. */
LS_API void ls_group_free(ls_group group) LS_NOEXCEPT;
/* Waits until the collectives on a device are complete that a reducer has started, and returns their error: a
 * backward pass does not wait for them. */
LS_API ls_error *ls_group_settle(ls_group group) LS_NOEXCEPT;
/* Needs gloo. Waits until all ranks have called it. On rank 0 an error names the ranks that have not. */
LS_API ls_error *ls_group_monitored_barrier(ls_group group, int64_t milliseconds) LS_NOEXCEPT;

enum ls_collective_kind {
  LS_BROADCAST = 0, /* out: one tensor, read on the rank `peer` */
  LS_ALL_REDUCE = 1,
  LS_ALL_REDUCE_COALESCED = 2,
  LS_REDUCE = 3,         /* to the rank `peer` */
  LS_ALL_GATHER = 4,     /* out: a tensor of each rank */
  LS_ALL_GATHER_ONE = 5, /* out: one tensor for all ranks' */
  LS_GATHER = 6,         /* out: a tensor of each rank, on the rank `peer`; elsewhere none */
  LS_SCATTER = 7,        /* in: a tensor for each rank, on the rank `peer`; elsewhere none */
  LS_REDUCE_SCATTER = 8, /* in: a tensor for each rank */
  LS_REDUCE_SCATTER_ONE = 9,
  LS_ALL_TO_ALL_ONE = 10, /* with the sizes of the parts of each tensor; none: equal parts */
  LS_SEND = 11,           /* in: one tensor, to the rank `peer` */
  LS_RECEIVE = 12,        /* out: one tensor, from the rank `peer`; -1: from any */
  LS_BARRIER = 13,
  /* On a device: in is sent to the rank `peer`, and out received from it, at once. NCCL does one after the other
   * otherwise, so that two ranks that both send first would wait for each other. The group must have had another
   * collective on the device. */
  LS_EXCHANGE = 14
};
typedef struct ls_collective {
  int32_t kind;
  int32_t reduce; /* c10d::ReduceOp: 0 sum, 1 average, 2 product, 3 minimum, 4 maximum, 5 and, 6 or, 7 xor */
  int32_t peer;
  int32_t tag; /* of a send and its receive */
} ls_collective;

/* ---- work ----
 * A collective in flight. It holds references to its tensors until it is complete. Freed once by ls_work_free; a
 * collective goes on without it, a send or receive of gloo does not. */
typedef uintptr_t ls_work;
/* Starts a collective. Tensors must be contiguous and on one device that the group has a backend for. All ranks
 * must start the same collectives in the same order, with the same sizes and dtypes: gloo ends a process that
 * receives more than it has room for, unless the group is checked. */
LS_API ls_error *ls_group_start(ls_group group, const ls_collective *collective, const ls_tensor *out,
                                uint64_t out_n, const ls_tensor *in, uint64_t in_n, const int64_t *out_sizes,
                                uint64_t out_sizes_n, const int64_t *in_sizes, uint64_t in_sizes_n,
                                ls_work *work) LS_NOEXCEPT;
/* Waits until the work is complete, *done = 1, or interrupted, *done = 0. Returns the collective's error. One
 * thread at a time waits, and not again after *done = 1 or an error. A device's work is complete when the device
 * has completed it. */
LS_API ls_error *ls_work_wait(ls_work work, int32_t *done) LS_NOEXCEPT;
/* Ends the wait of another thread, or the next one. Not for gloo's LS_REDUCE_SCATTER and LS_REDUCE_SCATTER_ONE. */
LS_API void ls_work_interrupt(ls_work work) LS_NOEXCEPT;
/* Whether it is complete: 1 or 0. Always 0 for gloo's sends, receives and LS_REDUCE_SCATTER(_ONE), which a wait
 * completes. */
LS_API int32_t ls_work_done(ls_work work) LS_NOEXCEPT;
/* The rank from which a receive that is complete has received; -1 with NCCL. */
LS_API int32_t ls_work_source(ls_work work) LS_NOEXCEPT;
LS_API void ls_work_free(ls_work work) LS_NOEXCEPT;

/* ---- data parallelism ----
 * A reducer averages the gradients of parameters over the ranks of a group while backward passes compute them
 * (c10d::Reducer). Freed once by ls_reducer_free, before or after its group; what backward passes in flight use of
 * it stays until they have ended. */
typedef uintptr_t ls_reducer;
enum ls_gradient_compression {
  LS_COMPRESS_NONE = 0,
  LS_COMPRESS_FP16 = 1,
  LS_COMPRESS_BF16 = 2,
  LS_COMPRESS_POWER_SGD = 3
};
typedef struct ls_reducer_options {
  int64_t bucket_bytes, first_bucket_bytes;
  int32_t find_unused;
  int32_t static_graph;
  int32_t bucket_view; /* gradients are views of the buckets */
  int32_t compression;
  /* For LS_COMPRESS_POWER_SGD: the rank of what is sent of a matrix; the first backward pass, from 0, that
   * compresses, at least 2; by how much a matrix must become smaller; and what is added to the norms of columns.
   */
  int32_t power_rank;
  int64_t power_start;
  double power_min_rate, power_epsilon;
} ls_reducer_options;
/* Makes a reducer, once all ranks have called it with parameters of the same shapes. sparse: NULL, or n flags, 1
 * for a parameter whose gradient is sparse. names: one a line. */
LS_API ls_error *ls_reducer_new(ls_group group, const ls_tensor *parameters, uint64_t n, const uint8_t *sparse,
                                const char *names, const ls_reducer_options *options,
                                ls_reducer *reducer) LS_NOEXCEPT;
/* Before a forward pass, after which the backward pass averages gradients, or with sync = 0 does not. join: 0, or
 * an all-reduce of ones, from which the number of ranks is taken that still have inputs; with divide_by_size
 * gradients are divided by the size of the group all the same. */
LS_API ls_error *ls_reducer_before_forward(ls_reducer reducer, int32_t sync, ls_work join,
                                           int32_t divide_by_size) LS_NOEXCEPT;
LS_API ls_error *ls_reducer_after_forward(ls_reducer reducer, int32_t sync, const ls_tensor *outputs,
                                          uint64_t n) LS_NOEXCEPT;
/* On a rank that has no more inputs, in the place of a forward and of a backward pass: takes part in the
 * collectives of the others. */
LS_API ls_error *ls_reducer_join_forward(ls_reducer reducer) LS_NOEXCEPT;
LS_API ls_error *ls_reducer_join_backward(ls_reducer reducer) LS_NOEXCEPT;
/* Four mean times in nanoseconds: of the forward pass, the backward pass, its collectives, and those in which it
 * computed beside them. c10d measures the first 10 backward passes and then each 100th. */
LS_API ls_error *ls_reducer_times(ls_reducer reducer, int64_t *times) LS_NOEXCEPT;
LS_API void ls_reducer_free(ls_reducer reducer) LS_NOEXCEPT;
/* Copies the tensors of the rank `root` to those of the others, several in one message. */
LS_API ls_error *ls_group_broadcast_coalesced(ls_group group, const ls_tensor *tensors, uint64_t n,
                                              int32_t root) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_DIST_H_ */

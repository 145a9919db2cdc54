/* Gradients, hooks, custom functions, checkpoints; fused optimizers. */
#ifndef LINSTOCK_LINSTOCK_AUTOGRAD_H_
#define LINSTOCK_LINSTOCK_AUTOGRAD_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- autograd ---- */
typedef struct ls_callbacks {
  /* A tensor hook: grad is borrowed; *out is 0 to leave it, or a new handle. A post-accumulate hook: grad is the
   * leaf, and *out is not read. Returns 0 for success, else a number that is returned in ls_error.callback. */
  uint64_t (*hook)(uint64_t id, ls_tensor grad, ls_tensor *out);
  /* backward of a custom function: grads[n] borrowed (0: none), saved[ns] borrowed, out[nout] filled with new
   * handles (0: none). */
  uint64_t (*backward)(uint64_t id, const ls_tensor *grads, uint64_t n, const ls_tensor *saved, uint64_t ns,
                       const uint8_t *needs, ls_tensor *out, uint64_t nout);
  /* Recomputes a checkpointed function on inputs[n], borrowed; see ls_checkpoint_push. */
  uint64_t (*recompute)(uint64_t id, const ls_tensor *inputs, uint64_t n);
} ls_callbacks;
LS_API void ls_callbacks_set(const ls_callbacks *cb) LS_NOEXCEPT;

/* CALLS BACK. grads and inputs may be NULL; an element of grads may be 0 for "ones". */
LS_API ls_error *ls_autograd_backward(const ls_tensor *roots, uint64_t n, const ls_tensor *grads,
                                      const ls_tensor *inputs, uint64_t ninputs, int32_t retain,
                                      int32_t create) LS_NOEXCEPT;
/* CALLS BACK. out[ninputs]; 0 for an unused input if allow_unused. */
LS_API ls_error *ls_autograd_grad(const ls_tensor *outputs, uint64_t n, const ls_tensor *grads,
                                  const ls_tensor *inputs, uint64_t ninputs, int32_t retain, int32_t create,
                                  int32_t allow_unused, ls_tensor *out, uint64_t *scope) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_set_requires_grad(ls_tensor t, int32_t on) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_retain_grad(ls_tensor t) LS_NOEXCEPT;
/* Returns .grad; t is 0 if there is none. */
LS_API ls_result ls_tensor_grad(ls_tensor t) LS_NOEXCEPT;
/* Returns .grad without waiting; t is 0 also while another thread reads or writes it. */
LS_API ls_result ls_tensor_try_grad(ls_tensor t) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_set_grad(ls_tensor t, ls_tensor grad) LS_NOEXCEPT;
/* Writes the .grad of each to out[n], 0 if there is none. */
LS_API ls_error *ls_tensors_grad(const ls_tensor *t, uint64_t n, ls_tensor *out) LS_NOEXCEPT;
/* Sets .grad to None (zero == 0) or fills it with zeros in place (zero == 1). */
LS_API ls_error *ls_tensors_zero_grad(const ls_tensor *t, uint64_t n, int32_t zero) LS_NOEXCEPT;
/* Returns the name of grad_fn as a string; empty for a leaf. */
LS_API ls_results ls_tensor_grad_fn_name(ls_tensor t, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* Calls hook(id, …) during backward. The id is queued for ls_dropped_take when libtorch frees the hook. */
LS_API ls_error *ls_hook_register(ls_tensor t, uint64_t id, uint32_t *slot) LS_NOEXCEPT;
LS_API ls_error *ls_hook_remove(ls_tensor t, uint32_t slot) LS_NOEXCEPT;
/* Calls hook(id, leaf, …) each time a backward pass has added to the .grad of a leaf. */
LS_API ls_error *ls_accumulate_hook_register(ls_tensor t, uint64_t id, uint32_t *slot) LS_NOEXCEPT;
LS_API ls_error *ls_accumulate_hook_remove(ls_tensor t, uint32_t slot) LS_NOEXCEPT;
/* Registers a hook of n tensors: for each, slots has the number for ls_hook_remove. In a backward pass, unless
 * any, it calls backward(id, grads…) once, as soon as the gradients of all those of the tensors are there that the
 * pass computes; grads has 0 for the others; there is nothing saved and nothing to fill in. If any, it calls
 * hook(id, …) with the first of the gradients alone, and leaves out tensors that require none. A pass that began
 * before does not call it. */
LS_API ls_error *ls_multi_hook_register(const ls_tensor *tensors, uint64_t n, uint64_t id, int32_t any,
                                        uint32_t *slots) LS_NOEXCEPT;
/* Connects outputs, computed without gradients, to inputs by a node whose backward is the callback. The callback
 * runs with the autocast regions that are in force now. An output that received no gradient gets zeros if
 * materialize is not 0, else 0. out[nout]. */
LS_API ls_error *ls_function_attach(uint64_t id, const ls_tensor *inputs, uint64_t nin, const ls_tensor *outputs,
                                    uint64_t nout, const ls_tensor *saved, uint64_t nsaved, int32_t materialize,
                                    ls_tensor *out, uint64_t *scope) LS_NOEXCEPT;
/* Policies decide what the graph keeps in place of the tensors that operators save for backward. Each thread has a
 * stack of them; the innermost one decides. It runs on the operator's thread and never calls back then; to return
 * a tensor it runs within a backward pass, on any thread, and may call back.
 *
 * Pushes a checkpoint: from now until ls_saved_pop the graph keeps none of the tensors that operators save on this
 * thread. When a backward pass needs one of them, it calls recompute(id, inputs), with the random states and the
 * modes that were in force at the push, and takes the tensors that are saved then: they must agree with the first
 * ones in number, dtype, shape and device. Once the last of them is saved, operators of the recomputation fail
 * with LS_ERR_STOP_RECOMPUTATION, and what recompute returns is ignored. The tensors live until they are used, but
 * not beyond the pass. The enclosing policy saves the inputs. The id is queued for ls_dropped_take when the
 * last node of the graph that may need it is freed, and at once if there is none. *depth is for ls_saved_pop.
 */
LS_API ls_error *ls_checkpoint_push(uint64_t id, const ls_tensor *inputs, uint64_t n, uint64_t *depth) LS_NOEXCEPT;
/* Begins a part of a checkpointed function whose result is kept. *stage is 0 outside of a checkpoint, where
 * nothing is to be done, 1 in the first run, and 2 in a recomputation. In the first run the part's operators save
 * tensors as without the checkpoint, until ls_checkpoint_kept(result) and ls_saved_pop(*depth). In a recomputation
 * ls_checkpoint_take returns the result in place of the part. */
LS_API ls_error *ls_checkpoint_keep(int32_t *stage, uint64_t *depth) LS_NOEXCEPT;
LS_API ls_error *ls_checkpoint_kept(ls_tensor result) LS_NOEXCEPT;
LS_API ls_result ls_checkpoint_take(void) LS_NOEXCEPT;
enum ls_saved_kind {
  LS_SAVED_CPU = 0,  /* tensors of other devices are copied to the CPU */
  LS_SAVED_CAST = 1, /* float32 and float64 tensors are cast to dtype */
  LS_SAVED_FILE = 2  /* tensors are written to a file */
};
typedef struct ls_saved_policy {
  int32_t kind;
  int32_t dtype;     /* of LS_SAVED_CAST: float16 or bfloat16 */
  int32_t pinned;    /* of LS_SAVED_CPU: copy to pinned memory */
  int32_t fd;        /* of LS_SAVED_FILE: open for reading and writing; duplicated */
  int64_t min_bytes; /* smaller tensors are kept as they are */
  int64_t keep;      /* this many bytes are kept as they are first */
} ls_saved_policy;
/* Pushes a policy that keeps tensors in another form until a backward pass needs them. Leaves that require
 * gradients and what the kind does not apply to are kept as they are. A tensor that several nodes save is kept
 * once. */
LS_API ls_error *ls_saved_push(const ls_saved_policy *how, uint64_t *depth) LS_NOEXCEPT;
/* Pushes a policy under which the graph keeps no storage of `sources`. Of a tensor in one of these storages it
 * keeps where it lies, and a backward pass calls backward(id) without gradients, with needs set for that source,
 * for a tensor with the same storage contents and offset 0. What else operators save is kept as the enclosing
 * policy says. The id is queued as that of a checkpoint. */
LS_API ls_error *ls_remade_push(uint64_t id, const ls_tensor *sources, uint64_t n, uint64_t *depth) LS_NOEXCEPT;
/* Called by a callback in a backward pass: calls hook(id) without a tensor at the end of the pass, unless it
 * fails. The id is queued for ls_dropped_take after the pass. */
LS_API ls_error *ls_pass_end(uint64_t id) LS_NOEXCEPT;
/* Pops policies of the calling thread until depth are left, also if it returns an error: an input was changed
 * in place since the push, and a recomputation would need it. */
LS_API ls_error *ls_saved_pop(uint64_t depth) LS_NOEXCEPT;
/* Writes ids whose native holder was freed, so that the caller can drop them. Returns the number written. */
LS_API uint64_t ls_dropped_take(uint64_t *ids, uint64_t cap) LS_NOEXCEPT;
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

/* Rounds from (float32) to bfloat16 into to, which has the same shape, up or down at random, so that the mean of
 * the result is the value: up with the probability (value - lower) / (upper - lower). Infinities and NaN stay. The
 * generator of the device draws. */
LS_API ls_error *ls_round_stochastic(ls_tensor to, ls_tensor from) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_AUTOGRAD_H_ */

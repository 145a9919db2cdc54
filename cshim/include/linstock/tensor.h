/* Tensors, and calls of operators. ops_gen.h has the operators with typed entries. */
#ifndef LINSTOCK_LINSTOCK_TENSOR_H_
#define LINSTOCK_LINSTOCK_TENSOR_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- tensors ---- */
LS_API void ls_tensor_free(ls_tensor t) LS_NOEXCEPT;
LS_API void ls_tensors_free(const ls_tensor *t, uint64_t n) LS_NOEXCEPT;
/* A CPU tensor that owns a copy of nbytes at data, which must be numel × the dtype's size. */
LS_API ls_result ls_tensor_from_data(int32_t dtype, const int64_t *sizes, uint64_t ndim, const void *data,
                                     uint64_t nbytes) LS_NOEXCEPT;
/* A CPU tensor over caller's memory that stays valid until drop(arg) is called, on the thread that frees
 * the last reference. With drop == NULL, arg is queued for ls_dropped_take instead. */
LS_API ls_result ls_tensor_from_blob(int32_t dtype, const int64_t *sizes, uint64_t ndim, const void *data,
                                     uint64_t nbytes, void (*drop)(void *), uint64_t arg) LS_NOEXCEPT;
/* Copies the elements in row-major order; nbytes must match exactly, and dtype must be the tensor's. */
LS_API ls_error *ls_tensor_copy_out(ls_tensor t, int32_t dtype, void *dst, uint64_t nbytes) LS_NOEXCEPT;
/* Writes the only element of t: LS_INT, LS_UINT, LS_FLOAT, LS_BOOL or LS_COMPLEX (two slots). */
LS_API ls_error *ls_tensor_item(ls_tensor t, ls_value out[2]) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_meta(ls_tensor t, ls_meta *out) LS_NOEXCEPT;
LS_API ls_error *ls_tensor_sizes(ls_tensor t, int64_t *sizes, int64_t *strides, uint64_t cap) LS_NOEXCEPT;
/* Returns a second handle to the same tensor. */
LS_API ls_result ls_tensor_alias(ls_tensor t) LS_NOEXCEPT;
/* format is a value of c10::MemoryFormat. */
LS_API ls_result ls_tensor_to(ls_tensor t, int32_t dtype /* -1: keep */, int32_t device /* -1: keep */,
                              int32_t format /* -1: keep */, int32_t copy) LS_NOEXCEPT;
/* Returns t[indices], with n index tensors; 0 takes a dimension whole. */
LS_API ls_result ls_tensor_index(ls_tensor t, const ls_tensor *indices, uint64_t n) LS_NOEXCEPT;

/* ---- operators ---- */
/* name "aten::add", overload "Tensor" or "". 0 and no error: there is no such operator. */
LS_API ls_results ls_op_find(const char *name, const char *overload, ls_op *out) LS_NOEXCEPT;
/* Returns the operator's schema as a string. */
LS_API ls_results ls_op_schema(ls_op op, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
/* Reports whether it writes to none of its arguments and draws no random numbers. */
LS_API int32_t ls_op_repeatable(ls_op op) LS_NOEXCEPT;
/* Reports whether it is internal to libtorch, which does not check its arguments: invalid ones may end the
 * process.
 */
LS_API int32_t ls_op_internal(ls_op op) LS_NOEXCEPT;
/* Returns all names, such as "aten::add.Tensor", as a string with a newline after each. */
LS_API ls_results ls_op_names(ls_value *out, uint64_t out_slots) LS_NOEXCEPT;
enum ls_call_flags { LS_CALL_DISCARD = 1 /* drop the results (in-place operators) */ };
LS_API ls_results ls_op_call(ls_op op, const ls_value *args, uint64_t slots, ls_value *out, uint64_t out_slots,
                             uint32_t flags) LS_NOEXCEPT;
LS_API void ls_spill_free(ls_value *spill) LS_NOEXCEPT;
enum ls_activation {
  LS_ACTIVATION_RELU = 1,
  LS_ACTIVATION_SIGMOID,
  LS_ACTIVATION_TANH,
  LS_ACTIVATION_SILU,
  LS_ACTIVATION_GELU,
  LS_ACTIVATION_GELU_TANH /* its approximation by tanh */
};
/* Returns the activation of aten::linear(input, weight, bias), in the memory of that where autograd does not
 * record it; bias may be 0. */
LS_API ls_result ls_linear_activation(ls_tensor input, ls_tensor weight, ls_tensor bias,
                                      int32_t activation) LS_NOEXCEPT;

/* ---- objects ---- */
LS_API void ls_object_free(ls_object o) LS_NOEXCEPT;
/* The name of its class, a string result: "__torch__.torch.classes.quantized.LinearPackedParamsBase". */
LS_API ls_results ls_object_class(ls_object o, ls_value *out, uint64_t out_slots) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_TENSOR_H_ */

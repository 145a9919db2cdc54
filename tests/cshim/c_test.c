/* Uses the shim alone from plain C: fits a line through four points by gradient descent. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include "linstock.h"

/* Returns 0, or the source line that failed. */
int linstock_c_test(void);

#define CHECK(ok)               \
  do {                          \
    if (!(ok)) return __LINE__; \
  } while (0)

static ls_value tensor_value(ls_tensor t) {
  ls_value v = {LS_TENSOR, 0, {0}};
  v.u.t = t;
  return v;
}

static ls_value int_value(int64_t i) {
  ls_value v = {LS_INT, 0, {0}};
  v.u.i = i;
  return v;
}

static ls_op find(const char *name, const char *overload) {
  ls_op op = 0;
  ls_results r = ls_op_find(name, overload, &op);
  if (r.err != NULL) {
    ls_error_free(r.err);
    return 0;
  }
  return op;
}

static ls_tensor call2(ls_op op, ls_value a, ls_value b) {
  ls_value args[2], out[1] = {{0, 0, {0}}};
  ls_results r;
  args[0] = a;
  args[1] = b;
  r = ls_op_call(op, args, 2, out, 1, 0);
  if (r.err != NULL) {
    ls_error_free(r.err);
    return 0;
  }
  return out[0].u.t;
}

int linstock_c_test(void) {
  const int64_t shape[1] = {4};
  const float xs[4] = {0, 1, 2, 3}, ys[4] = {1, 3, 5, 7};
  const float zero = 0;
  const ls_mode no_grad = {LS_MODE_GRAD, 0, 0, 0, 0};
  ls_memory before, after;
  ls_result x, y, w, b;
  ls_value item[2];
  int step;
  ls_op mul = find("aten::mul", "Tensor"), add = find("aten::add", "Tensor"), sub = find("aten::sub", "Tensor");
  ls_op mse = find("aten::mse_loss", ""), add_ = find("aten::add_", "Tensor");

  CHECK(ls_abi() == LS_ABI);
  CHECK(ls_init() == NULL);
  CHECK(mul != 0 && add != 0 && sub != 0 && mse != 0 && add_ != 0);
  CHECK(ls_memory_stats(0xff, &before) == NULL);
  x = ls_tensor_from_data(6, shape, 1, xs, sizeof xs);
  y = ls_tensor_from_data(6, shape, 1, ys, sizeof ys);
  w = ls_tensor_from_data(6, NULL, 0, &zero, sizeof zero);
  b = ls_tensor_from_data(6, NULL, 0, &zero, sizeof zero);
  CHECK(x.err == NULL && y.err == NULL && w.err == NULL && b.err == NULL);
  CHECK(ls_tensor_set_requires_grad(w.t, 1) == NULL && ls_tensor_set_requires_grad(b.t, 1) == NULL);

  for (step = 0; step < 300; step++) {
    ls_tensor params[2], scaled, line, loss;
    int i;
    params[0] = w.t;
    params[1] = b.t;
    CHECK(ls_tensors_zero_grad(params, 2, 0) == NULL);
    scaled = call2(mul, tensor_value(x.t), tensor_value(w.t));
    line = call2(add, tensor_value(scaled), tensor_value(b.t));
    loss = call2(mse, tensor_value(line), tensor_value(y.t));
    CHECK(scaled != 0 && line != 0 && loss != 0);
    CHECK(ls_autograd_backward(&loss, 1, NULL, NULL, 0, 0, 0) == NULL);
    CHECK(ls_mode_push(no_grad) == NULL);
    for (i = 0; i < 2; i++) {
      ls_result g = ls_tensor_grad(params[i]);
      ls_value args[3];
      ls_results r;
      CHECK(g.err == NULL && g.t != 0);
      args[0] = tensor_value(params[i]);
      args[1] = tensor_value(g.t);
      args[2].tag = LS_FLOAT;
      args[2].len = 0;
      args[2].u.f = -0.1;
      r = ls_op_call(add_, args, 3, NULL, 0, LS_CALL_DISCARD);
      CHECK(r.err == NULL);
      ls_tensor_free(g.t);
    }
    ls_mode_pop();
    ls_tensor_free(scaled);
    ls_tensor_free(line);
    ls_tensor_free(loss);
  }
  CHECK(ls_tensor_item(w.t, item) == NULL && item[0].tag == LS_FLOAT && fabs(item[0].u.f - 2) < 1e-2);
  CHECK(ls_tensor_item(b.t, item) == NULL && fabs(item[0].u.f - 1) < 1e-2);

  /* A wrong call returns an error and changes nothing. */
  {
    ls_value args[2], out[1];
    ls_results r;
    args[0] = tensor_value(x.t);
    args[1] = int_value(1);
    r = ls_op_call(find("aten::matmul", ""), args, 1, out, 1, 0);
    CHECK(r.err != NULL && r.err->code == LS_ERR_ARGUMENT && r.err->message[0] != 0);
    ls_error_free(r.err);
  }
  ls_tensor_free(x.t);
  ls_tensor_free(y.t);
  ls_tensor_free(w.t);
  ls_tensor_free(b.t);
  CHECK(ls_memory_stats(0xff, &after) == NULL);
  CHECK(after.allocated == before.allocated && after.handles == before.handles);
  return 0;
}

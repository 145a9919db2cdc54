#include <atomic>
#include <stdexcept>
#include <thread>

#include "helpers.h"

class Autograd : public ShimTest {};

namespace {
std::atomic<uint64_t> hook_calls{0};
}

TEST_F(Autograd, BackwardAccumulates) {
  Tensor x = floats({1, 2, 3});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  for (int i = 1; i <= 2; i++) {
    Tensor sq(ls_aten_mul_Tensor(x, x));
    Tensor sum = call("aten::sum", "", {T(sq)});
    EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
    Tensor g(ls_tensor_grad(x));
    EXPECT_EQ(values(g), (std::vector<float>{2.f * i, 4.f * i, 6.f * i}));
  }
  EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 1));
  EXPECT_EQ(values(Tensor(ls_tensor_grad(x))), (std::vector<float>{0, 0, 0}));
  EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
  EXPECT_EQ(ls_tensor_grad(x).t, 0u);
}

TEST_F(Autograd, ErrorsAreReported) {
  Tensor x = floats({1, 2});
  EXPECT_ERR(ls_autograd_backward(&x.h, 1, nullptr, nullptr, 0, 0, 0), LS_ERR_GENERIC);
  ls_tensor none = 0;
  EXPECT_ERR(ls_autograd_backward(&none, 1, nullptr, nullptr, 0, 0, 0), LS_ERR_ARGUMENT);
  Tensor l(ls_tensor_to(x, kLong, -1, -1, 0));
  EXPECT_ERR(ls_tensor_set_requires_grad(l, 1), LS_ERR_ARGUMENT);
  Tensor wrong = floats({1, 2, 3});
  EXPECT_ERR(ls_tensor_set_grad(x, wrong), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_set_grad(x, x), LS_ERR_ARGUMENT);
}

TEST_F(Autograd, GradDoesNotChangeLeaves) {
  Tensor x = floats({3});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor y(ls_aten_mul_Tensor(x, x));
  ls_tensor out[1];
  uint64_t scope;
  EXPECT_OK(ls_autograd_grad(&y.h, 1, nullptr, &x.h, 1, 0, 1, 0, out, &scope));
  Tensor g(out[0]);
  EXPECT_EQ(values(g), (std::vector<float>{6}));
  EXPECT_EQ(ls_tensor_grad(x).t, 0u);
  Tensor gg;
  EXPECT_OK(ls_autograd_grad(&g.h, 1, nullptr, &x.h, 1, 0, 0, 0, out, &scope));
  gg = Tensor(out[0]);
  EXPECT_EQ(values(gg), (std::vector<float>{2}));
}

TEST_F(Autograd, HooksCallBackAndFail) {
  ls_callbacks cb{};
  cb.hook = [](uint64_t id, ls_tensor grad, ls_tensor *out) -> uint64_t {
    hook_calls++;
    if (id == 13) return 99;
    *out = ls_aten_add_Tensor(grad, grad).t;
    return 0;
  };
  ls_callbacks_set(&cb);
  {
    Tensor x = floats({1, 2});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    uint32_t slot;
    EXPECT_OK(ls_hook_register(x, 12, &slot));
    Tensor sum = call("aten::sum", "", {T(x)});
    EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 1, 0));
    EXPECT_EQ(values(Tensor(ls_tensor_grad(x))), (std::vector<float>{2, 2}));
    EXPECT_OK(ls_hook_remove(x, slot));
    EXPECT_OK(ls_hook_register(x, 13, &slot));
    ls_error *e = ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
    ASSERT_NE(e, nullptr);
    EXPECT_EQ(e->code, LS_ERR_CALLBACK);
    EXPECT_EQ(e->callback, 99u);
    ls_error_free(e);
  }
  EXPECT_EQ(hook_calls, 2u);
  uint64_t ids[4];
  EXPECT_EQ(ls_dropped_take(ids, 4), 2u) << "both hooks are freed";
}

TEST_F(Autograd, InvalidCallsAreErrors) {
  Tensor x = floats({1, 2});
  uint32_t slot;
  EXPECT_ERR(ls_hook_register(x, 1, &slot), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_multi_hook_register(&x.h, 1, 1, 0, &slot), LS_ERR_ARGUMENT);
  const ls_tensor none = 0;
  EXPECT_ERR(ls_multi_hook_register(&none, 1, 1, 1, &slot), LS_ERR_ARGUMENT);
  constexpr int32_t kMeta = 14 << 8 | 0xff;
  Tensor elsewhere(ls_tensor_to(x, -1, kMeta, -1, 0));
  EXPECT_ERR(ls_tensor_set_grad(x, elsewhere), LS_ERR_ARGUMENT);
  Tensor twice(ls_tensor_to(x, kDouble, -1, -1, 0));
  EXPECT_ERR(ls_tensor_set_grad(x, twice), LS_ERR_ARGUMENT);
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor y(ls_aten_mul_Tensor(x, x));
  EXPECT_ERR(ls_tensor_set_requires_grad(y, 0), LS_ERR_ARGUMENT);
}

// Exceptions from a callback pass through the engine.
TEST_F(Autograd, AHookThatThrowsIsAnError) {
  ls_callbacks cb{};
  cb.hook = [](uint64_t id, ls_tensor, ls_tensor *) -> uint64_t {
    if (id == 1) throw 1;
    throw std::runtime_error("mine");
  };
  ls_callbacks_set(&cb);
  for (uint64_t id : {1, 2}) {
    Tensor x = floats({1, 2});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    uint32_t slot;
    EXPECT_OK(ls_hook_register(x, id, &slot));
    Tensor sum = call("aten::sum", "", {T(x)});
    EXPECT_ERR(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0), id == 1 ? LS_ERR_UNKNOWN : LS_ERR_STD);
  }
}

// A pass does not add a hook that retains a gradient to a node that another pass may be running.
TEST_F(Autograd, InputsInThePassOfAnotherThread) {
  static ls_tensor sum, y;
  static int calls;
  calls = 0;
  ls_callbacks cb{};
  cb.hook = [](uint64_t, ls_tensor, ls_tensor *) -> uint64_t {
    if (calls++ == 0)
      std::thread([] {
        EXPECT_ERR(ls_autograd_backward(&sum, 1, nullptr, &y, 1, /*retain=*/1, 0), LS_ERR_ARGUMENT);
      }).join();
    return 0;
  };
  ls_callbacks_set(&cb);
  Tensor x = floats({1, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor product(ls_aten_mul_Tensor(x, x)), total = call("aten::sum", "", {T(product)});
  y = product, sum = total;
  uint32_t slot;
  EXPECT_OK(ls_hook_register(product, 1, &slot));
  EXPECT_OK(ls_autograd_backward(&sum, 1, nullptr, nullptr, 0, /*retain=*/1, 0));
  EXPECT_EQ(calls, 1);
  for (float i : {1.f, 2.f}) {
    EXPECT_OK(ls_autograd_backward(&sum, 1, nullptr, &y, 1, /*retain=*/1, 0));
    EXPECT_EQ(values(Tensor(ls_tensor_grad(y))), (std::vector<float>{i, i}));
  }
  Tensor plain = floats({1});
  EXPECT_ERR(ls_autograd_backward(&sum, 1, nullptr, &plain.h, 1, 0, 0), LS_ERR_GENERIC);
}

// A failure is reported with its node and its type, also while passes search for NaN.
TEST_F(Autograd, AFailureNamesItsNode) {
  ls_callbacks cb{};
  cb.hook = [](uint64_t id, ls_tensor, ls_tensor *) -> uint64_t {
    if (id == 1) throw std::runtime_error("mine");
    return 99;
  };
  ls_callbacks_set(&cb);
  for (int32_t nan : {0, 1}) {
    for (uint64_t id : {1, 2}) {
      EXPECT_OK(ls_mode_push({LS_MODE_ANOMALY, nan, 0, 0, 0}));
      Tensor x = floats({1, 2});
      EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
      Tensor y(ls_aten_mul_Tensor(x, x));
      uint32_t slot;
      EXPECT_OK(ls_hook_register(y, id, &slot));
      Tensor sum = call("aten::sum", "", {T(y)});
      ls_error *e = ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
      ls_mode_pop();
      ASSERT_NE(e, nullptr);
      EXPECT_EQ(e->code, id == 1 ? LS_ERR_STD : LS_ERR_CALLBACK) << e->message;
      EXPECT_STREQ(e->node, "MulBackward0");
      ls_error_free(e);
    }
  }
  // The gradient of the root at 0 is 0/0.
  EXPECT_OK(ls_mode_push({LS_MODE_ANOMALY, 1, 0, 0, 0}));
  Tensor x = floats({0});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor root = call("aten::sqrt", "", {T(x)}), product(ls_aten_mul_Tensor(root, x));
  ls_error *e = ls_autograd_backward(&product.h, 1, nullptr, nullptr, 0, 0, 0);
  ls_mode_pop();
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(e->code, LS_ERR_NAN) << e->message;
  EXPECT_STREQ(e->node, "SqrtBackward0");
  ls_error_free(e);
}

// Passes that fail on several threads, which begin and end the search for NaN meanwhile.
TEST_F(Autograd, FailuresOnThreads) {
  ls_callbacks cb{};
  cb.hook = [](uint64_t id, ls_tensor, ls_tensor *) -> uint64_t { return id; };
  ls_callbacks_set(&cb);
  on_threads(4, [&](int w) {
    for (int k = 0; k < 50; k++) {
      EXPECT_OK(ls_mode_push({LS_MODE_ANOMALY, k % 2, 0, 0, 0}));
      {
        Tensor x = floats({1, 2});
        EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
        Tensor y(ls_aten_mul_Tensor(x, x));
        uint32_t slot;
        EXPECT_OK(ls_hook_register(y, static_cast<uint64_t>(w) + 1, &slot));
        Tensor sum = call("aten::sum", "", {T(y)});
        ls_error *e = ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
        ASSERT_NE(e, nullptr);
        EXPECT_EQ(e->callback, static_cast<uint64_t>(w) + 1);
        EXPECT_STREQ(e->node, "MulBackward0");
        ls_error_free(e);
      }
      ls_mode_pop();
    }
  });
}

TEST_F(Autograd, CustomFunction) {
  ls_callbacks cb{};
  // y = x * 3, whose backward pass multiplies by a saved value.
  cb.backward = [](uint64_t id, const ls_tensor *grads, uint64_t n, const ls_tensor *saved, uint64_t ns,
                   const uint8_t *needs, ls_tensor *out, uint64_t nout) -> uint64_t {
    EXPECT_EQ(n, 1u);
    EXPECT_EQ(ns, 1u);
    EXPECT_EQ(nout, 2u);
    EXPECT_EQ(needs[0], 1);
    EXPECT_EQ(needs[1], 0);
    if (id == 22) return 5;
    out[0] = ls_aten_mul_Tensor(grads[0], saved[0]).t;
    return 0;
  };
  ls_callbacks_set(&cb);
  {
    Tensor x = floats({1, 2}), other = floats({7}), three = floats({3});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    for (uint64_t id : {uint64_t{21}, uint64_t{22}}) {
      EXPECT_OK(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
      Tensor y(ls_aten_mul_Tensor(x, three));
      ls_mode_pop();
      ls_tensor in[2] = {x, other}, saved[1] = {three}, out[1], ys[1] = {y};
      uint64_t scope;
      EXPECT_OK(ls_function_attach(id, in, 2, ys, 1, saved, 1, 0, out, &scope));
      Tensor tied(out[0]);
      Tensor sum = call("aten::sum", "", {T(tied)});
      ls_error *e = ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
      if (id == 21) {
        EXPECT_EQ(take(e), "");
        EXPECT_EQ(values(Tensor(ls_tensor_grad(x))), (std::vector<float>{3, 3}));
      } else {
        ASSERT_NE(e, nullptr);
        EXPECT_EQ(e->callback, 5u);
        ls_error_free(e);
      }
    }
  }
  uint64_t ids[4];
  EXPECT_EQ(ls_dropped_take(ids, 4), 2u);
}

TEST_F(Autograd, AdamStepsParametersWithGradients) {
  Tensor a = floats({1, 2}), b = floats({3});
  Tensor avg_a = floats({0, 0}), avg_b = floats({0}), sq_a = floats({0, 0}), sq_b = floats({0});
  Tensor step_a = floats({0}, {}), step_b = floats({0}, {});
  Tensor ga = floats({1, -1});
  EXPECT_OK(ls_tensor_set_requires_grad(a, 1));
  EXPECT_OK(ls_tensor_set_grad(a, ga));
  ls_adam how{0.1, 0.9, 0.999, 0, 1e-8, 0, 0, 1};
  ls_tensor params[2] = {a, b}, avgs[2] = {avg_a, avg_b}, sqs[2] = {sq_a, sq_b}, steps[2] = {step_a, step_b};
  EXPECT_OK(ls_adam_step(&how, 2, params, avgs, sqs, nullptr, steps));
  auto v = values(a);
  EXPECT_NEAR(v[0], 0.9f, 1e-5);
  EXPECT_NEAR(v[1], 2.1f, 1e-5);
  EXPECT_EQ(values(b), (std::vector<float>{3})) << "no gradient, no step";
  EXPECT_EQ(values(step_a)[0], 1);
  EXPECT_EQ(values(step_b)[0], 0);
  params[1] = 0;
  EXPECT_ERR(ls_adam_step(&how, 2, params, avgs, sqs, nullptr, steps), LS_ERR_ARGUMENT);
}

// The kernel only looks at the parameter: state that differs from it is an error.
TEST_F(Autograd, AdamRejectsUnequalTensors) {
  Tensor param = floats({1, 2}), grad = floats({1, 1}), avg = floats({0, 0}), sq = floats({0, 0}),
         most = floats({0, 0}), step = floats({0}, {});
  EXPECT_OK(ls_tensor_set_requires_grad(param, 1));
  EXPECT_OK(ls_tensor_set_grad(param, grad));
  constexpr int32_t kMeta = 14 << 8 | 0xff;
  Tensor shape = floats({0, 0}, {2, 1}), dtype(ls_tensor_to(avg, kDouble, -1, -1, 0)),
         elsewhere(ls_tensor_to(avg, -1, kMeta, -1, 0)), four = floats({1, 2, 3, 4});
  Tensor apart = call("aten::slice", "Tensor", {T(four), I(0), I(0), I(4), I(2)});
  Tensor whole(ls_tensor_to(step, kLong, -1, -1, 0));
  ls_adam how{0.1, 0.9, 0.999, 0, 1e-8, 1, 0, 1};
  auto take_step = [&](ls_tensor p, ls_tensor a, ls_tensor s, ls_tensor m, ls_tensor n) {
    return ls_adam_step(&how, 1, &p, &a, &s, &m, &n);
  };
  for (ls_tensor bad : {ls_tensor{0}, shape.h, dtype.h, elsewhere.h, apart.h}) {
    EXPECT_ERR(take_step(param, bad, sq, most, step), LS_ERR_ARGUMENT);
    EXPECT_ERR(take_step(param, avg, bad, most, step), LS_ERR_ARGUMENT);
    EXPECT_ERR(take_step(param, avg, sq, bad, step), LS_ERR_ARGUMENT);
  }
  for (ls_tensor bad : {ls_tensor{0}, avg.h, whole.h}) {
    EXPECT_ERR(take_step(param, avg, sq, most, bad), LS_ERR_ARGUMENT);
  }
  // Equal strides, but with gaps between the elements.
  Tensor gaps = call("aten::slice", "Tensor", {T(four), I(0), I(1), I(4), I(2)});
  EXPECT_OK(ls_tensor_set_grad(apart, gaps));
  EXPECT_ERR(take_step(apart, apart, apart, apart, step), LS_ERR_ARGUMENT);
  EXPECT_EQ(values(step)[0], 0);
  EXPECT_OK(take_step(param, avg, sq, most, step));
  EXPECT_EQ(values(step)[0], 1);
}

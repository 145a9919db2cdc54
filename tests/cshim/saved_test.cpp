// Tensors saved in another form, casts of autocast, hooks of leaves.
#include <ATen/ThreadLocalState.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "helpers.h"

namespace {

constexpr int32_t kHalf = 5, kBFloat16 = 15;

std::atomic<int> hooks_called;

class Saved : public ShimTest {
 protected:
  void SetUp() override {
    ShimTest::SetUp();
    ls_callbacks cb{};
    cb.hook = [](uint64_t, ls_tensor, ls_tensor *) -> uint64_t {
      hooks_called++;
      return 0;
    };
    ls_callbacks_set(&cb);
  }
  static Tensor leaf(const std::vector<float> &v) {
    Tensor x = floats(v);
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    return x;
  }
  static ls_error *backward(ls_tensor y) {
    Tensor sum(ls_aten_sum_dim_IntList(y));
    return ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
  }
};

using SavedThreads = Saved;  // the suite that also runs under ThreadSanitizer in tests/mutate

TEST_F(Saved, PoliciesThatCannotBe) {
  uint64_t depth;
  ls_saved_policy how{};
  how.kind = 7;
  EXPECT_ERR(ls_saved_push(&how, &depth), LS_ERR_ARGUMENT);
  how.kind = LS_SAVED_CAST;
  how.dtype = kDouble;
  EXPECT_ERR(ls_saved_push(&how, &depth), LS_ERR_ARGUMENT);
  how.kind = LS_SAVED_FILE;
  how.fd = -1;
  ls_error *e = ls_saved_push(&how, &depth);
  ASSERT_NE(e, nullptr);
  EXPECT_NE(take(e).find("the file of saved tensors"), std::string::npos);
  EXPECT_ERR(ls_checkpoint_kept(floats({1})), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_checkpoint_take().err, LS_ERR_ARGUMENT);
}

// A tensor that a policy keeps as it is, and that is changed before the backward pass, is an error.
TEST_F(Saved, AChangeIsAnError) {
  Tensor x = leaf({1, 2});
  ls_saved_policy how{};
  how.kind = LS_SAVED_CAST;
  how.dtype = kBFloat16;
  how.keep = 1 << 20;
  uint64_t depth;
  EXPECT_OK(ls_saved_push(&how, &depth));
  Tensor y(ls_aten_exp(x));
  EXPECT_OK(ls_saved_pop(depth));
  {
    ls_value args[] = {T(y), F(2)};
    EXPECT_OK(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
    EXPECT_OK(ls_op_call(op("aten::mul_", "Scalar"), args, 2, nullptr, 0, LS_CALL_DISCARD).err);
    ls_mode_pop();
  }
  EXPECT_ERR(backward(y), LS_ERR_ARGUMENT);
}

// Threads that have the policy of another thread save tensors through it, also while it is popped.
TEST_F(SavedThreads, APolicyIsPoppedWhileOthersSave) {
  ls_saved_policy how{};
  how.kind = LS_SAVED_CAST;
  how.dtype = kBFloat16;
  for (int k = 0; k < 20; k++) {
    uint64_t depth;
    EXPECT_OK(ls_saved_push(&how, &depth));
    at::ThreadLocalState state;
    std::atomic<int> saved{0};
    std::atomic<bool> popped{false};
    std::thread others([&] {
      on_threads(2, [&](int) {
        at::ThreadLocalStateGuard guard(state);
        while (!popped) {
          Tensor x = leaf({1, 2, 3});
          Tensor y(ls_aten_exp(x));
          saved++;
        }
      });
    });
    while (saved < 10) std::this_thread::yield();
    EXPECT_OK(ls_saved_pop(depth));
    popped = true;
    others.join();
  }
}

// The same with a policy that writes to a file, which is popped afterwards.
TEST_F(SavedThreads, OnePolicyOnManyThreads) {
  std::FILE *file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  for (int k = 0; k < 20; k++) {
    ls_saved_policy how{};
    how.kind = LS_SAVED_FILE;
    how.fd = fileno(file);
    how.keep = 64;
    uint64_t depth;
    EXPECT_OK(ls_saved_push(&how, &depth));
    at::ThreadLocalState state;
    on_threads(4, [&](int w) {
      at::ThreadLocalStateGuard guard(state);
      for (int i = 0; i < 20; i++) {
        Tensor x = leaf({static_cast<float>(w), 2, 3});
        Tensor y(ls_aten_exp(x)), z(ls_aten_exp(y));
        EXPECT_OK(backward(z));
        EXPECT_EQ(values(Tensor(ls_tensor_grad(x))).size(), 3u);
      }
    });
    EXPECT_OK(ls_saved_pop(depth));
  }
  std::fclose(file);
}

TEST_F(Saved, RoundingNeedsTheTypes) {
  Tensor x = floats({1, 2}), y = floats({1, 2});
  EXPECT_ERR(ls_round_stochastic(x, y), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_accumulate_hook_register(x, 1, nullptr), LS_ERR_ARGUMENT);
}

// A graph with a hook of several tensors is freed, also if a policy has kept one of them.
TEST_F(Saved, AHookOfSeveralTensorsKeepsNoGraph) {
  {
    Tensor x = leaf({1, 2});
    ls_saved_policy how{};
    how.kind = LS_SAVED_CAST;
    how.dtype = kBFloat16;
    uint64_t depth;
    EXPECT_OK(ls_saved_push(&how, &depth));
    Tensor y(ls_aten_maximum(x, x));
    EXPECT_OK(ls_saved_pop(depth));
    const ls_tensor both[] = {x, y};
    uint32_t slots[2];
    EXPECT_OK(ls_multi_hook_register(both, 2, 5, 0, slots));
  }
  uint64_t ids[2];
  EXPECT_EQ(ls_dropped_take(ids, 2), 1u) << "the hook is freed";
}

// Tensors that are negated when they are read, and zeros without memory.
TEST_F(Saved, RoundingOfLazyTensors) {
  const std::vector<float> numbers = {1, -2, 0.5}, negated = {-1, 2, -0.5};  // of bfloat16, so nothing is random
  auto empty = [] { return Tensor(ls_tensor_to(floats({7, 7, 7}), kBFloat16, -1, -1, 1)); };
  auto read = [](ls_tensor t) { return values(Tensor(ls_tensor_to(t, kFloat, -1, -1, 1))); };
  Tensor from = floats(numbers), to = empty();
  EXPECT_OK(ls_round_stochastic(to, call("aten::_neg_view", "", {T(from)})));
  EXPECT_EQ(read(to), negated);
  Tensor base = empty(), view = call("aten::_neg_view", "", {T(base)});
  EXPECT_OK(ls_round_stochastic(view, from));
  EXPECT_EQ(read(view), numbers);
  EXPECT_EQ(read(base), negated);
  std::vector<ls_value> args;
  append<int64_t>(args, LS_INTS, {3});
  for (int i = 0; i < 4; i++) args.push_back(Default());
  Tensor zeros = call("aten::_efficientzerotensor", "", args);
  EXPECT_OK(ls_round_stochastic(to, zeros));
  EXPECT_EQ(read(to), (std::vector<float>{0, 0, 0}));
}

// Regions of several threads that cast to the same dtype, and to another.
TEST_F(SavedThreads, AutocastRegions) {
  Tensor w = floats({1, 2, 3, 4}, {2, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(w, 1));
  on_threads(4, [&](int i) {
    for (int k = 0; k < 100; k++) {
      EXPECT_OK(ls_mode_push({LS_MODE_AUTOCAST, 1, 0, i % 2 == 0 ? kBFloat16 : kHalf, 0}));
      Tensor y = call("aten::mm", "", {T(w), T(w)});
      ls_meta m;
      EXPECT_OK(ls_tensor_meta(y, &m));
      EXPECT_EQ(m.dtype, i % 2 == 0 ? kBFloat16 : kHalf);
      ls_mode_pop();
    }
  });
}

// Hooks are added to a leaf and removed while passes on other threads call them.
TEST_F(SavedThreads, HooksOfALeaf) {
  Tensor x = leaf({1, 2});
  uint32_t first;
  EXPECT_OK(ls_accumulate_hook_register(x, 1, &first));
  on_threads(4, [&](int w) {
    for (int k = 0; k < 100; k++) {
      if (w % 2 == 0) {
        Tensor y(ls_aten_mul_Tensor(x, x));
        EXPECT_OK(backward(y));
        continue;
      }
      uint32_t slot;
      EXPECT_OK(ls_accumulate_hook_register(x, 2, &slot));
      EXPECT_OK(ls_accumulate_hook_remove(x, slot));
    }
  });
  EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
  // The first hooks of a leaf, from two threads.
  for (int k = 0; k < 100; k++) {
    Tensor own = leaf({1, 2});
    on_threads(2, [&](int w) {
      uint32_t slot;
      EXPECT_OK(ls_accumulate_hook_register(own, static_cast<uint64_t>(w + 3), &slot));
    });
    hooks_called = 0;
    EXPECT_OK(backward(Tensor(ls_aten_mul_Tensor(own, own))));
    EXPECT_EQ(hooks_called, 2);
  }
}

// Hooks of a tensor, of several and of the gradient are added and removed while passes on other threads call them.
TEST_F(SavedThreads, HooksOfASharedTensor) {
  Tensor x = leaf({1, 2}), y(ls_aten_mul_Tensor(x, x));
  uint32_t first;
  EXPECT_OK(ls_hook_register(y, 1, &first));
  on_threads(4, [&](int w) {
    for (int k = 0; k < 3000; k++) {
      if (w % 2 == 0) {
        Tensor sum(ls_aten_sum_dim_IntList(y));
        EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 1, 0));
        continue;
      }
      uint32_t slots[2];
      EXPECT_OK(ls_hook_register(x, 2, slots));
      EXPECT_OK(ls_hook_register(y, 3, slots + 1));
      EXPECT_OK(ls_hook_remove(x, slots[0]));
      EXPECT_OK(ls_hook_remove(y, slots[1]));
      const ls_tensor both[] = {x, y};
      EXPECT_OK(ls_multi_hook_register(both, 2, 4, 1, slots));
      EXPECT_OK(ls_hook_remove(x, slots[0]));
      EXPECT_OK(ls_hook_remove(y, slots[1]));
    }
  });
  EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
  // The first hooks of a leaf, from two threads, while a third runs a pass.
  for (int k = 0; k < 100; k++) {
    Tensor own = leaf({1, 2}), twice(ls_aten_mul_Tensor(own, own));
    on_threads(3, [&](int w) {
      uint32_t slot;
      if (w == 2) {
        Tensor sum(ls_aten_sum_dim_IntList(twice));
        EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 1, 0));
      } else {
        EXPECT_OK(ls_hook_register(own, static_cast<uint64_t>(w + 3), &slot));
      }
    });
    hooks_called = 0;
    EXPECT_OK(backward(twice));
    EXPECT_EQ(hooks_called, 2);
  }
}

}  // namespace

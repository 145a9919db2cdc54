// Checkpoints: what the graph stores instead of saved tensors, and how it recomputes them.
#include <atomic>
#include <functional>
#include <map>
#include <stdexcept>
#include <thread>

#include "helpers.h"

namespace {

constexpr int32_t kByte = 0;

// The checkpointed functions by ID, as a caller of the C API keeps them.
std::map<uint64_t, std::function<uint64_t(const ls_tensor *, uint64_t)>> functions;

int32_t code_of(ls_error *e) {
  int32_t code = e == nullptr ? 0 : e->code;
  ls_error_free(e);
  return code;
}

class Checkpoints : public ShimTest {
 protected:
  void SetUp() override {
    ShimTest::SetUp();
    ls_callbacks cb{};
    cb.recompute = [](uint64_t id, const ls_tensor *in, uint64_t n) { return functions.at(id)(in, n); };
    ls_callbacks_set(&cb);
  }
  void TearDown() override {
    functions.clear();
    ShimTest::TearDown();
  }

  // exp(x) * exp(x): exp saves its result for itself, and the product saves it twice.
  static Tensor square_of_exp(ls_tensor x) {
    Tensor e = call("aten::exp", "", {T(x)});
    return Tensor(ls_aten_mul_Tensor(e, e));
  }
  static uint64_t again(const ls_tensor *in, uint64_t) {
    ls_value arg = T(in[0]), out[1] = {};
    ls_results r = ls_op_call(op("aten::exp"), &arg, 1, out, 1, 0);
    if (r.err != nullptr) return 7000 + static_cast<uint64_t>(code_of(r.err));
    Tensor e(out[0].u.t);
    ls_result product = ls_aten_mul_Tensor(e, e);
    ls_tensor_free(product.t);
    return product.err == nullptr ? 0 : 7000 + static_cast<uint64_t>(code_of(product.err));
  }
  template <class F>
  static Tensor checkpoint(uint64_t id, ls_tensor x, F &&forward) {
    uint64_t depth = 99;
    EXPECT_OK(ls_checkpoint_push(id, &x, 1, &depth));
    Tensor y = forward(x);
    EXPECT_OK(ls_saved_pop(depth));
    return y;
  }
  static void change(ls_tensor t) {
    ls_value args[] = {T(t), T(t)};
    EXPECT_OK(ls_op_call(op("aten::mul_", "Tensor"), args, 2, nullptr, 0, LS_CALL_DISCARD).err);
  }
  static ls_error *backward(ls_tensor y, int32_t retain = 0) {
    Tensor sum = call("aten::sum", "", {T(y)});
    return ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, retain, 0);
  }
  static int64_t bytes() {
    ls_memory m;
    EXPECT_OK(ls_memory_stats(kCpu, &m));
    return m.allocated;
  }
  static std::vector<uint64_t> dropped() {
    std::vector<uint64_t> ids(8);
    ids.resize(ls_dropped_take(ids.data(), ids.size()));
    return ids;
  }
};

}  // namespace

TEST_F(Checkpoints, BackwardRecomputes) {
  int calls = 0;
  functions[31] = [&](const ls_tensor *in, uint64_t n) {
    calls++;
    EXPECT_EQ(n, 1u);
    EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 1);
    uint64_t stopped = again(in, n);
    EXPECT_EQ(stopped, 7000 + static_cast<uint64_t>(LS_ERR_STOP_RECOMPUTATION));
    return stopped;
  };
  Tensor x = floats(std::vector<float>(1024, 0.5f));
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  int64_t before = bytes();
  Tensor plain = square_of_exp(x);
  int64_t kept = bytes() - before;
  EXPECT_OK(backward(plain));
  std::vector<float> want = values(Tensor(ls_tensor_grad(x)));
  EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
  plain = Tensor();
  before = bytes();
  {
    Tensor y = checkpoint(31, x, square_of_exp);
    EXPECT_LT(bytes() - before, kept) << "the exponential is kept";
    EXPECT_TRUE(dropped().empty());
    EXPECT_EQ(calls, 0);
    EXPECT_OK(backward(y, /*retain=*/1));
    EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
    EXPECT_EQ(calls, 1);
    EXPECT_TRUE(dropped() == std::vector<uint64_t>{7000 + LS_ERR_STOP_RECOMPUTATION}) << "the answer to the stop";
    EXPECT_OK(backward(y));
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(values(Tensor(ls_tensor_grad(x))), want);
    EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
    EXPECT_EQ(dropped().size(), 2u) << "the function and the answer";
  }
  EXPECT_EQ(bytes(), before);
}

// Freeing a graph without a backward pass frees its checkpoint. A function that saves nothing also frees its
// checkpoint.
TEST_F(Checkpoints, NothingLeaks) {
  Tensor x = floats({1, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  {
    Tensor y = checkpoint(32, x, square_of_exp);
    EXPECT_TRUE(dropped().empty());
  }
  EXPECT_EQ(dropped(), std::vector<uint64_t>{32});
  Tensor z = checkpoint(33, x, [](ls_tensor t) { return Tensor(ls_aten_add_Tensor(t, t)); });
  EXPECT_EQ(dropped(), std::vector<uint64_t>{33});
}

// The recomputation restores the generator's state of the forward pass, and afterwards the state from before
// the recomputation.
TEST_F(Checkpoints, RandomNumbersAreRepeated) {
  auto draw = [](ls_tensor t) {
    Tensor mask = call("aten::rand_like", "", {T(t), Default(), Default(), Default(), Default(), Default()});
    return Tensor(ls_aten_mul_Tensor(t, mask));
  };
  functions[34] = [&](const ls_tensor *in, uint64_t) {
    ls_value args[] = {T(in[0]), Default(), Default(), Default(), Default(), Default()}, out[1] = {};
    EXPECT_OK(ls_op_call(op("aten::rand_like"), args, 6, out, 1, 0).err);
    Tensor mask(out[0].u.t);
    ls_result r = ls_aten_mul_Tensor(in[0], mask);
    ls_tensor_free(r.t);
    return static_cast<uint64_t>(code_of(r.err));
  };
  Tensor x = floats({1, 1, 1, 1});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor y = checkpoint(34, x, draw);
  std::vector<float> mask = values(y);
  Tensor before(ls_rng_state(kCpu));
  EXPECT_OK(backward(y));
  Tensor after(ls_rng_state(kCpu));
  EXPECT_EQ(values(Tensor(ls_tensor_grad(x))), mask);
  std::vector<uint8_t> a(8192), b(8192);
  ls_meta m;
  EXPECT_OK(ls_tensor_meta(before, &m));
  EXPECT_OK(ls_tensor_copy_out(before, kByte, a.data(), m.nbytes));
  EXPECT_OK(ls_tensor_copy_out(after, kByte, b.data(), m.nbytes));
  EXPECT_EQ(a, b);
}

// An error in a recomputation is the error of the pass, and of a second pass; the thread's state is restored.
TEST_F(Checkpoints, Failures) {
  Tensor x = floats({1, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  struct {
    const char *what;
    int32_t code;
    std::function<uint64_t(const ls_tensor *, uint64_t)> f;
  } cases[] = {
      {"it fails", LS_ERR_CALLBACK, [](const ls_tensor *, uint64_t) { return uint64_t{55}; }},
      {"it saves nothing", LS_ERR_ARGUMENT, [](const ls_tensor *, uint64_t) { return uint64_t{0}; }},
      {"it throws", LS_ERR_STD, [](const ls_tensor *, uint64_t) -> uint64_t { throw std::runtime_error("mine"); }},
      {"it saves another shape", LS_ERR_ARGUMENT,
       [](const ls_tensor *, uint64_t n) {
         Tensor other = floats({1, 2, 3});
         EXPECT_OK(ls_tensor_set_requires_grad(other, 1));
         return again(&other.h, n);
       }},
  };
  for (auto &c : cases) {
    functions[35] = c.f;
    Tensor y = checkpoint(35, x, square_of_exp);
    for (int i = 0; i < 2; i++) {
      EXPECT_EQ(code_of(backward(y, /*retain=*/1)), c.code) << c.what;
      int64_t before = bytes();
      Tensor plain = square_of_exp(x);
      EXPECT_GT(bytes(), before) << c.what << ": a policy is left on the stack";
    }
    // The same graph works once its function does.
    functions[35] = again;
    EXPECT_OK(backward(y));
    EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
  }
}

TEST_F(Checkpoints, AChangedInputIsAnError) {
  Tensor x = floats({1, 2}), w = floats({3, 4});
  EXPECT_OK(ls_tensor_set_requires_grad(w, 1));
  uint64_t depth;
  {
    EXPECT_OK(ls_checkpoint_push(36, &x.h, 1, &depth));
    ls_value args[] = {T(x), T(w)};
    EXPECT_OK(ls_op_call(op("aten::mul_", "Tensor"), args, 2, nullptr, 0, LS_CALL_DISCARD).err);
    EXPECT_ERR(ls_saved_pop(depth), LS_ERR_ARGUMENT);
    EXPECT_EQ(code_of(backward(x)), LS_ERR_ARGUMENT);
  }
  x = Tensor();
  EXPECT_EQ(dropped(), std::vector<uint64_t>{36});
  ls_tensor none = 0;
  EXPECT_ERR(ls_checkpoint_push(37, &none, 1, &depth), LS_ERR_ARGUMENT);
  EXPECT_OK(ls_saved_pop(0));
}

// The same without memory when the policy is popped: the graph of the input does not own itself.
TEST_F(Checkpoints, AChangedInputIsFreedWithoutMemory) {
  Tensor x = floats({1, 2}), w = floats({3, 4});
  EXPECT_OK(ls_tensor_set_requires_grad(w, 1));
  uint64_t depth;
  EXPECT_OK(ls_checkpoint_push(36, &x.h, 1, &depth));
  ls_value args[] = {T(x), T(w)};
  EXPECT_OK(ls_op_call(op("aten::mul_", "Tensor"), args, 2, nullptr, 0, LS_CALL_DISCARD).err);
  {
    Fault fault(LS_FAULT_CPU, 0, kForever);
    EXPECT_NE(code_of(ls_saved_pop(depth)), 0);
  }
  x = Tensor();
  EXPECT_EQ(dropped(), std::vector<uint64_t>{36});
}

// An inner checkpoint keeps the outer one, which has saved nothing itself, but not its input, whose graph owns the
// inner one.
TEST_F(Checkpoints, AnInnerCheckpointKeepsNoInputs) {
  Tensor x = floats({1, 2}), w = floats({3, 4});
  EXPECT_OK(ls_tensor_set_requires_grad(w, 1));
  uint64_t outer, inner;
  EXPECT_OK(ls_checkpoint_push(36, &x.h, 1, &outer));
  EXPECT_OK(ls_checkpoint_push(37, nullptr, 0, &inner));
  ls_value args[] = {T(x), T(w)};
  EXPECT_OK(ls_op_call(op("aten::mul_", "Tensor"), args, 2, nullptr, 0, LS_CALL_DISCARD).err);
  EXPECT_OK(ls_saved_pop(inner));
  EXPECT_OK(ls_saved_pop(outer));
  x = Tensor();
  EXPECT_EQ(dropped().size(), 2u);
}

// ls_saved_pop removes all policies above a depth, also if one of them returns an error.
TEST_F(Checkpoints, AFailureLeavesNoPolicy) {
  Tensor outer = floats({1, 2}), inner = floats({3, 4});
  uint64_t depth;
  EXPECT_OK(ls_checkpoint_push(38, &outer.h, 1, &depth));
  EXPECT_EQ(depth, 0u);
  {
    Tensor x = floats({1, 2});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    EXPECT_OK(ls_checkpoint_push(39, &inner.h, 1, &depth));
    EXPECT_EQ(depth, 1u);
    Tensor y = square_of_exp(x);  // which saves tensors
    change(inner);
    EXPECT_ERR(ls_saved_pop(0), LS_ERR_ARGUMENT);
  }
  EXPECT_OK(ls_checkpoint_push(40, &outer.h, 1, &depth));
  EXPECT_EQ(depth, 0u);
  EXPECT_OK(ls_saved_pop(depth));
  EXPECT_EQ(dropped().size(), 3u);
}

// A recomputation that leaves a checkpoint on the stack, which cannot be removed without an error.
TEST_F(Checkpoints, ARecomputationLeavesAnError) {
  Tensor x = floats({1, 2}), inner = floats({3, 4});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  functions[52] = [&](const ls_tensor *in, uint64_t n) {
    uint64_t depth;
    EXPECT_OK(ls_checkpoint_push(53, &inner.h, 1, &depth));
    uint64_t failed = again(in, n);
    change(inner);
    return failed;
  };
  Tensor y = checkpoint(52, x, square_of_exp);
  EXPECT_EQ(code_of(backward(y)), LS_ERR_ARGUMENT) << "the inner checkpoint has saved what the outer one needs";
}

// An inner checkpoint recomputes its function itself, once the outer checkpoint has recomputed its input.
TEST_F(Checkpoints, Nest) {
  int outer = 0, inner = 0;
  auto both = [&](ls_tensor t) {
    Tensor s = call("aten::sin", "", {T(t)});
    return checkpoint(42, s, square_of_exp);
  };
  functions[41] = [&](const ls_tensor *in, uint64_t) {
    outer++;
    Tensor s = call("aten::sin", "", {T(in[0])});
    uint64_t depth;
    // The inner input is the last tensor that the outer checkpoint has saved.
    return static_cast<uint64_t>(code_of(ls_checkpoint_push(43, &s.h, 1, &depth)));
  };
  functions[42] = [&](const ls_tensor *in, uint64_t n) {
    inner++;
    return again(in, n);
  };
  Tensor x = floats({0.25, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor plain = call("aten::sin", "", {T(x)});
  plain = square_of_exp(plain);
  EXPECT_OK(backward(plain));
  std::vector<float> want = values(Tensor(ls_tensor_grad(x)));
  EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, 0));
  Tensor y = checkpoint(41, x, both);
  EXPECT_OK(backward(y));
  EXPECT_EQ(values(Tensor(ls_tensor_grad(x))), want);
  EXPECT_EQ(outer, 1);
  EXPECT_EQ(inner, 1);
}

// Each thread has its own stack; several threads may traverse the same graph at once.
TEST_F(Checkpoints, Threads) {
  functions[51] = again;
  Tensor x = floats({1, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Tensor shared = checkpoint(51, x, square_of_exp);
  on_threads(4, [&](int) {
    for (int k = 0; k < 50; k++) {
      Tensor own = floats({1, 2});
      EXPECT_OK(ls_tensor_set_requires_grad(own, 1));
      Tensor y = checkpoint(51, own, square_of_exp);
      EXPECT_OK(backward(y));
      ls_tensor out[1];
      uint64_t scope;
      Tensor sum = call("aten::sum", "", {T(shared)});
      EXPECT_OK(ls_autograd_grad(&sum.h, 1, nullptr, &x.h, 1, 1, 0, 0, out, &scope));
      EXPECT_EQ(values(Tensor(out[0])), values(Tensor(ls_tensor_grad(own))));
    }
  });
  Tensor sum = call("aten::sum", "", {T(shared)});
  on_threads(4, [&](int) {
    for (int k = 0; k < 1000; k++) {
      ls_tensor out[1];
      uint64_t scope;
      EXPECT_OK(ls_autograd_grad(&sum.h, 1, nullptr, &x.h, 1, 1, 0, 0, out, &scope));
      ls_tensor_free(out[0]);
    }
  });
}

static ls_error *differentiate(ls_tensor y, ls_tensor x) {
  Tensor sum = call("aten::sum", "", {T(y)});
  ls_tensor out = 0;
  uint64_t scope;
  ls_error *e = ls_autograd_grad(&sum.h, 1, nullptr, &x, 1, 0, 0, 0, &out, &scope);
  ls_tensor_free(out);
  return e;
}

// Two threads traverse the graphs of two results of one checkpoint at the same time, and each frees what it has
// used. The function runs a backward pass itself.
TEST_F(Checkpoints, TwoResultsOnTwoThreads) {
  auto nested = [] {
    Tensor own = floats({1, 2});
    EXPECT_OK(ls_tensor_set_requires_grad(own, 1));
    Tensor y(ls_aten_add_Tensor(own, own));
    EXPECT_OK(differentiate(y, own));
  };
  functions[61] = [&](const ls_tensor *in, uint64_t n) {
    nested();
    uint64_t first = again(in, n);
    return first == 0 ? again(in, n) : first;
  };
  Tensor x = floats({1, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  for (int k = 0; k < 200; k++) {
    uint64_t depth = 99;
    EXPECT_OK(ls_checkpoint_push(61, &x.h, 1, &depth));
    nested();
    Tensor results[] = {square_of_exp(x), square_of_exp(x)};
    EXPECT_OK(ls_saved_pop(depth));
    on_threads(2, [&](int i) { EXPECT_OK(differentiate(results[i], x)); });
    while (!dropped().empty()) {
    }
  }
}

// A backward pass may begin while the function that makes its graph still runs, and keeps results of parts.
TEST_F(Checkpoints, BackwardDuringForward) {
  functions[62] = [&](const ls_tensor *in, uint64_t n) {
    for (int i = 0;; i++)
      if (uint64_t stopped = again(in, n); stopped != 0 || i == 20) return stopped;
  };
  Tensor x = floats({1, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  for (int k = 0; k < 50; k++) {
    std::atomic<bool> done{false};
    uint64_t depth = 99;
    EXPECT_OK(ls_checkpoint_push(62, &x.h, 1, &depth));
    Tensor y = square_of_exp(x);
    std::thread other([&] {
      Tensor sum = call("aten::sum", "", {T(y)});
      do {
        ls_tensor out = 0;
        uint64_t scope;
        EXPECT_OK(ls_autograd_grad(&sum.h, 1, nullptr, &x.h, 1, 1, 0, 0, &out, &scope));
        ls_tensor_free(out);
      } while (!done);
    });
    std::vector<Tensor> more;
    for (int i = 0; i < 20; i++) {
      int32_t stage = 0;
      uint64_t part = 0;
      EXPECT_OK(ls_checkpoint_keep(&stage, &part));
      more.push_back(square_of_exp(x));
      EXPECT_OK(ls_checkpoint_kept(more.back()));
      EXPECT_OK(ls_saved_pop(part));
      more.push_back(square_of_exp(x));
    }
    EXPECT_OK(ls_saved_pop(depth));
    done = true;
    other.join();
    more.clear();
    y = Tensor();
    while (!dropped().empty()) {
    }
  }
}

// Fault points: each failure is an error, leaks nothing, and the next call succeeds.
#include <pthread.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "../../cshim/src/device.h"
#include "helpers.h"

namespace {

class Faults : public ShimTest {
 protected:
  void SetUp() override {
    ShimTest::SetUp();
    callbacks_ = {[](uint64_t, ls_tensor grad, ls_tensor *out) -> uint64_t {
                    ls_result r = ls_tensor_alias(grad);
                    *out = r.t;
                    return static_cast<uint64_t>(code(r.err));
                  },
                  [](uint64_t, const ls_tensor *grads, uint64_t, const ls_tensor *saved, uint64_t, const uint8_t *,
                     ls_tensor *out, uint64_t n) -> uint64_t {
                    for (uint64_t i = 0; i < n; i++) {
                      ls_result r = ls_aten_mul_Tensor(grads[0], saved[0]);
                      out[i] = r.t;
                      if (r.err != nullptr) return static_cast<uint64_t>(code(r.err));
                    }
                    return 0;
                  },
                  [](uint64_t, const ls_tensor *inputs, uint64_t) -> uint64_t {
                    ls_result r = ls_aten_mul_Tensor(inputs[0], inputs[0]);
                    ls_tensor_free(r.t);
                    return static_cast<uint64_t>(code(r.err));
                  }};
    ls_callbacks_set(&callbacks_);
  }
  static ls_callbacks callbacks_;
};
ls_callbacks Faults::callbacks_;

// Calls some of every kind of function and returns the code of the first error. An error from a callback keeps
// its original code.
int32_t program(ls_tensor x, ls_tensor w) {
  struct Freed {
    std::vector<ls_tensor> h;
    Freed() { h.reserve(64); }
    ~Freed() { ls_tensors_free(h.data(), h.size()); }
    ls_tensor add(ls_tensor t) {
      h.push_back(t);
      return t;
    }
  } all;
#define TRY(result)                                \
  [&] {                                            \
    ls_result r_ = (result);                       \
    all.add(r_.t);                                 \
    failed = r_.err != nullptr ? code(r_.err) : 0; \
    return r_.t;                                   \
  }();                                             \
  if (failed != 0) return failed
#define TRY_VOID(call) \
  if ((failed = code(call)) != 0) return failed
  static const ls_op sum_rows = op("aten::sum", "dim_IntList"), sum_all = op("aten::sum"),
                     split_rows = op("aten::split", "Tensor");
  int32_t failed = 0;
  TRY_VOID(ls_tensors_zero_grad(&w, 1, 0));
  ls_tensor y = TRY(ls_aten_matmul(x, w));
  uint64_t depth = 0;
  TRY_VOID(ls_checkpoint_push(13, &y, 1, &depth));
  ls_result product = ls_aten_mul_Tensor(y, y);
  all.add(product.t);
  int32_t popped = code(ls_saved_pop(depth));
  if ((failed = code(product.err)) != 0 || (failed = popped) != 0) return failed;
  y = product.t;
  std::vector<ls_value> args{T(y)};
  append<int64_t>(args, LS_INTS, {0});
  args.push_back(B(true));
  ls_value out[2] = {};
  ls_results rs = ls_op_call(sum_rows, args.data(), args.size(), out, 2, 0);
  if ((failed = code(rs.err)) != 0) return failed;
  ls_tensor rows = all.add(out[0].u.t);
  ls_value split[3] = {T(rows), I(2), I(1)}, none[1];
  rs = ls_op_call(split_rows, split, 3, none, 0, 0);  // more results than the caller's array holds
  if ((failed = code(rs.err)) != 0) return failed;
  auto *parts = reinterpret_cast<const ls_tensor *>(rs.spill + 1);
  for (uint32_t i = 0; i < rs.spill[0].len; i++) all.add(parts[i]);
  ls_tensor part = parts[0];
  ls_spill_free(rs.spill);
  uint32_t slot = 0;
  TRY_VOID(ls_hook_register(part, 7, &slot));
  TRY_VOID(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
  ls_result plain = ls_aten_mul_Tensor(part, part);
  ls_mode_pop();
  EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 1);
  all.add(plain.t);
  if ((failed = code(plain.err)) != 0) return failed;
  ls_tensor tied = 0;
  uint64_t scope = 0;
  TRY_VOID(ls_function_attach(9, &part, 1, &plain.t, 1, &part, 1, 0, &tied, &scope));
  all.add(tied);
  rs = ls_op_call(sum_all, std::vector<ls_value>{T(tied)}.data(), 1, out, 2, 0);
  if ((failed = code(rs.err)) != 0) return failed;
  ls_tensor sum = all.add(out[0].u.t);
  failed = code(ls_autograd_backward(&sum, 1, nullptr, nullptr, 0, 0, 0));
  if (failed != 0) return failed;
  ls_tensor g = TRY(ls_tensor_grad(w));
  std::vector<float> data(6);
  TRY_VOID(ls_tensor_copy_out(g, kFloat, data.data(), 24));
  const int64_t shape[] = {6};
  ls_tensor blob = TRY(ls_tensor_from_blob(kFloat, shape, 1, data.data(), 24, nullptr, 11));
  return code(ls_tensor_set_requires_grad(blob, 1));
}

void sweep(int32_t point, int least) {
  int faults = 0;
  {
    Tensor x = floats({1, 2, 3, 4, 5, 6}, {3, 2}), w = floats({1, 2, 3, 4, 5, 6}, {2, 3});
    EXPECT_OK(ls_tensor_set_requires_grad(w, 1));
    EXPECT_EQ(program(x, w), 0);
  }
  for (int64_t times : {int64_t{1}, kForever}) {
    for (int64_t k = 0;; k++) {
      Tensor x = floats({1, 2, 3, 4, 5, 6}, {3, 2}), w = floats({1, 2, 3, 4, 5, 6}, {2, 3});
      EXPECT_OK(ls_tensor_set_requires_grad(w, 1));
      EXPECT_OK(ls_memory_empty_cache(kCpu));
      int64_t failed = 0;
      {
        Fault f(point, k, times);
        int32_t c = program(x, w);
        failed = f.failed();
        EXPECT_TRUE(c == 0 || c == LS_ERR_OUT_OF_MEMORY || c == LS_ERR_CALLBACK)
            << "fault " << k << " gives " << c;
        // A call that fails once may be retried; functions that only record a line for the profile may be left
        // out.
        if (failed != 0 && point == LS_FAULT_CPU) {
          EXPECT_NE(c, 0) << "fault " << k;
        }
      }
      if (failed == 0) break;
      faults++;
      EXPECT_EQ(program(x, w), 0) << "after fault " << k;
    }
  }
  EXPECT_GE(faults, least);
}

TEST_F(Faults, Memory) { sweep(LS_FAULT_CPU, 10); }
TEST_F(Faults, System) { sweep(LS_FAULT_SYSTEM, 4); }
TEST_F(Faults, OwnAllocations) { sweep(LS_FAULT_SHIM, 60); }

TEST_F(Faults, EntriesThrow) {
  const int32_t want[LS_THROWS] = {LS_ERR_GENERIC, LS_ERR_OUT_OF_MEMORY, LS_ERR_OUT_OF_MEMORY,
                                   LS_ERR_STD,     LS_ERR_UNKNOWN,       LS_ERR_STD,
                                   LS_ERR_STD};
  Tensor x = floats({1, 2});
  for (int32_t kind = 0; kind < LS_THROWS; kind++) {
    ls_meta m;
    Fault f(LS_FAULT_ENTRY, 0, kForever, kind);
    EXPECT_EQ(code(ls_tensor_meta(x, &m)), want[kind]);
    EXPECT_EQ(code(ls_tensor_alias(x).err), want[kind]);
    EXPECT_EQ(code(ls_torch_config(nullptr, 0).err), want[kind]);
    EXPECT_GE(f.failed(), 3);
  }
}

// Functions that return no error still complete.
TEST_F(Faults, EntriesWithoutErrorsComplete) {
  ls_tensor x = ls_tensor_alias(floats({1, 2})).t;
  EXPECT_OK(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
  {
    Fault f(LS_FAULT_ENTRY, 0, kForever, LS_THROW_STD);
    EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 0);
    ls_mode_pop();
    ls_tensor_free(x);
    EXPECT_EQ(ls_abi(), static_cast<uint32_t>(LS_ABI));
    EXPECT_GE(f.failed(), 4);
  }
  EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 1);
}

TEST_F(Faults, TextsAreUTF8) {
  Tensor x = floats({1, 2});
  Fault f(LS_FAULT_ENTRY, 0, kForever, LS_THROW_LONG);
  ls_error *e = ls_tensor_alias(x).err;
  ASSERT_NE(e, nullptr);
  EXPECT_EQ(std::string(e->message), std::string(size_t{1} << 20, '?'));
  ls_error_free(e);
  EXPECT_ERR(ls_fault_set(LS_FAULT_POINTS, 0, 1, 0, 0), LS_ERR_ARGUMENT);
}

// A thread that starts when there is no memory for its own data.
TEST_F(Faults, ThreadWithoutMemory) {
  Tensor x = floats({1, 2});
  for (int i = 0; i < 4; i++) {
    std::thread([&] {
      ls_result r;
      {
        Fault f(LS_FAULT_SHIM, 0, kForever);
        r = ls_aten_mul_Tensor(x, x);
      }
      ls_tensor_free(r.t);
      int32_t c = code(r.err);
      EXPECT_TRUE(c == 0 || c == LS_ERR_OUT_OF_MEMORY);
      Tensor y(ls_aten_mul_Tensor(x, x));
      EXPECT_EQ(values(y), (std::vector<float>{1, 4}));
    }).join();
  }
}

// Calls of a fault point are counted on the thread that armed it only.
TEST_F(Faults, OtherThreadsAreNotAffected) {
  Tensor x = floats({1, 2});
  Fault f(LS_FAULT_ENTRY, 0, kForever, LS_THROW_STD);
  std::thread([&] { Tensor y(ls_aten_mul_Tensor(x, x)); }).join();
  EXPECT_EQ(f.failed(), 0);
}

// A block is added to the cache without allocating memory for its entry.
TEST_F(Faults, AFreeNeedsNoMemory) {
  std::vector<ls_value> args;
  append<int64_t>(args, LS_INTS, {243000});
  Tensor t = call("aten::empty", "memory_format", args);
  ls_memory before, after;
  EXPECT_OK(ls_memory_stats(kCpu, &before));
  int64_t failed;
  {
    Fault f(LS_FAULT_SHIM, 0, kForever);
    t = Tensor();
    failed = f.failed();
  }
  EXPECT_EQ(failed, 0);
  EXPECT_OK(ls_memory_stats(kCpu, &after));
#if !defined(__SANITIZE_ADDRESS__)  // there malloc serves all blocks; none are cached
  EXPECT_GE(after.cached - before.cached, 4 * 243000);
#endif
}

// Without memory for its list entry, a thread that ends within a scope is forgotten.
TEST_F(Faults, AScopeThatCannotBeRecorded) {
  uint64_t ends = 0, words[64];
  int64_t seen, failed = 0;
  // Until the list is full.
  for (; failed == 0 && ends < 2000; ends++) {
    std::thread([] {
      ls_scope_set(5);
      EXPECT_OK(ls_fault_set(LS_FAULT_SHIM, 0, kForever, 0, 1));
    }).join();
    ls_fault_counts(LS_FAULT_SHIM, &seen, &failed);
    EXPECT_OK(ls_fault_set(LS_FAULT_SHIM, 0, 0, 0, 0));
  }
  EXPECT_EQ(failed, 1);
  uint64_t noted = 0;
  while (uint64_t n = ls_scope_orphans(words, 64)) noted += n;
  EXPECT_EQ(noted, ends - 1);
}

// A hook of several tensors for which there is no memory is not left with the first of them.
TEST_F(Faults, HooksOfSeveralTensors) {
  static int calls;
  calls = 0;
  ls_callbacks count{};
  count.hook = [](uint64_t, ls_tensor, ls_tensor *) -> uint64_t { return static_cast<uint64_t>(0 * ++calls); };
  ls_callbacks_set(&count);
  int faults = 0;
  for (int64_t k = 0;; k++) {
    Tensor x = floats({1, 2}), y = floats({1, 2});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    EXPECT_OK(ls_tensor_set_requires_grad(y, 1));
    const ls_tensor both[] = {x, y};
    uint32_t slots[2];
    int32_t failed;
    {
      Fault f(LS_FAULT_SHIM, k, 1);
      failed = code(ls_multi_hook_register(both, 2, 7, 1, slots));
    }
    Tensor product(ls_aten_mul_Tensor(x, y));
    Tensor sum = call("aten::sum", "", {T(product)});
    EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
    if (failed == 0) break;
    EXPECT_EQ(failed, LS_ERR_OUT_OF_MEMORY);
    EXPECT_EQ(calls, 0) << "after fault " << k;
    faults++;
  }
  EXPECT_EQ(calls, 1);
  EXPECT_GE(faults, 4);
}

// Without memory for the name of a node, its failure is reported without the name.
TEST_F(Faults, NamesOfNodes) {
  ls_callbacks fail{};
  fail.hook = [](uint64_t, ls_tensor, ls_tensor *) -> uint64_t { return 99; };
  ls_callbacks_set(&fail);
  struct Failures {
    int named = 0, unnamed = 0, without_memory = 0;
  };
  auto sweep = [](bool anomaly) {
    Failures n;
    for (int64_t k = 0, failed = 1; failed != 0; k++) {
      if (anomaly) {
        EXPECT_OK(ls_mode_push({LS_MODE_ANOMALY, 0, 0, 0, 0}));
      }
      Tensor x = floats({1, 2});
      EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
      Tensor y = call("aten::_softmax", "", {T(x), I(0), B(false)});
      uint32_t slot;
      EXPECT_OK(ls_hook_register(y, 1, &slot));
      Tensor sum = call("aten::sum", "", {T(y)});
      ls_error *e;
      {
        Fault f(LS_FAULT_SHIM, k, 1);
        e = ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
        failed = f.failed();
      }
      if (anomaly) ls_mode_pop();
      if (e->code != LS_ERR_CALLBACK) {
        EXPECT_EQ(e->code, LS_ERR_OUT_OF_MEMORY) << e->message;
        n.without_memory++;
      } else {
        (e->node != nullptr ? n.named : n.unnamed)++;
      }
      ls_error_free(e);
    }
    return n;
  };
  Failures with = sweep(true), without = sweep(false);
  EXPECT_GE(with.named, 1);
  EXPECT_GE(with.unnamed, 1);
  EXPECT_EQ(with.without_memory, without.without_memory);
  EXPECT_EQ(without.named, 0);
}

class Samples : public Faults {
 protected:
  void SetUp() override {
    Faults::SetUp();
    ls_samples_set_rate(1);
    EXPECT_OK(ls_history_set(1000));
  }
  void TearDown() override {
    ls_samples_attach(0, 0);
    ls_samples_set_rate(0);
    EXPECT_OK(ls_history_set(0));
    Faults::TearDown();
  }
};

// Without memory for its sample, a block is missing from the profile and nothing else fails.
TEST_F(Samples, WithoutMemory) {
  for (int64_t k = 0;; k++) {
    int64_t failed = 0;
    // Each on a new thread, which has no list yet.
    std::thread([&] {
      Tensor a = floats({1, 2}), b = floats({3});
      auto seen = *ls_samples_seen();
      Fault f(LS_FAULT_SHIM, k, kForever);
      ls_tensor c = ls_aten_mul_Tensor(a, b).t;
      EXPECT_LE(*ls_samples_seen(), seen + 1);
      ls_tensor_free(c);
      failed = f.failed();
    }).join();
    if (failed == 0) break;
  }
  // One block of events for several freed blocks.
  std::vector<Tensor> many;
  for (int i = 0; i < 100; i++) many.push_back(floats({1, 2, 3}));
  Fault f(LS_FAULT_SHIM, 0, kForever);
  many.resize(0);
  EXPECT_GT(f.failed(), 0);
}

// Without memory for it, an event of a device is missing from the history.
TEST_F(Samples, EventsOfADeviceWithoutMemory) {
  Fault f(LS_FAULT_SHIM, 0, kForever);
  for (int i = 0; i < 1000; i++) ls::note_on_device(0, LS_EVENT_SNAPSHOT, 0, 1, nullptr);
  EXPECT_GT(f.failed(), 0);
}

// The site of a live sampled block.
uint32_t site_of(ls_tensor t) {
  ls_meta m;
  EXPECT_OK(ls_tensor_meta(t, &m));
  std::vector<ls_event> live(ls_history_live(nullptr, 0));
  ls_history_live(live.data(), live.size());
  for (const auto &e : live)
    if (e.address == m.data) return e.site;
  ADD_FAILURE() << "the block is not sampled";
  return 0;
}

TEST_F(Samples, SitesWithoutMemory) {
  ls_samples_attach(1, 0);
  Tensor others;
  std::thread([&] { others = floats({1, 2}); }).join();
  Tensor mine = floats({1, 2});
  {
    Fault f(LS_FAULT_SHIM, 0, 1);
    ls_samples_attach(1 << 20, others);  // a new site needs memory
    EXPECT_EQ(f.failed(), 1);
  }
  EXPECT_EQ(site_of(mine), LS_NO_SITE);
  EXPECT_EQ(site_of(others), 1u << 20) << "what comes after it is named";
  uint64_t sites = ls_samples_sites(nullptr, 0);
  {
    Fault f(LS_FAULT_SHIM, 0, kForever);
    EXPECT_EQ(ls_samples_sites(nullptr, 0), sites - 1) << "without those that have no name";
    EXPECT_EQ(f.failed(), 1);
    std::thread([&] {
      Fault none(LS_FAULT_SHIM, 0, kForever);
      ls_samples_attach(2 << 20, mine);
    }).join();
  }
  EXPECT_EQ(site_of(mine), LS_NO_SITE);
}

// Without memory to take over the samples of libtorch's threads, they are left for the next pass.
TEST_F(Samples, EngineSamplesWithoutMemory) {
  std::vector<Tensor> strays;
  for (int64_t k = 0;; k++) {
    strays.resize(0);
    std::thread([&] {
      pthread_setname_np(pthread_self(), "pt_autograd_0");
      for (int i = 0; i < 40; i++) strays.push_back(floats({1, 2, 3}));
    }).join();
    int64_t failed = 0;
    std::thread([&] {
      Tensor x = floats({1, 2});
      EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
      Tensor sum = call("aten::sum", "", {T(x)});
      Fault f(LS_FAULT_SHIM, k, 1);
      int32_t c = code(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
      EXPECT_TRUE(c == 0 || c == LS_ERR_OUT_OF_MEMORY);
      failed = f.failed();
      ls_samples_attach(3, 0);
    }).join();
    if (failed == 0) break;
  }
  EXPECT_EQ(site_of(strays.front()), 3u);
  EXPECT_EQ(site_of(strays.back()), 3u);
}

}  // namespace

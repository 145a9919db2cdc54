// Threads on the paths that they share: blocks and handles that pass between threads, rounds of pressure,
// limits, samples and settings that change meanwhile. The tests check results as usual; ThreadSanitizer finds
// races.
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "../../cshim/src/device.h"
#include "helpers.h"

namespace {

constexpr int kWorkers = 4;
constexpr int64_t kMiB = 1 << 20;

class Concurrent : public ShimTest {
 protected:
  void TearDown() override {
    EXPECT_OK(ls_memory_set_oom_callback(nullptr, nullptr));
    EXPECT_OK(ls_memory_set_limit(kCpu, 0));
    EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, INT64_MAX));
    ls_samples_set_rate(0);
    EXPECT_OK(ls_history_set(0));
    ShimTest::TearDown();
  }
};

// Blocks that pass between threads: the thread that frees a block is seldom the one that allocated it.
class Pool {
 public:
  void put(ls_tensor t) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_.push_back(t);
  }
  ls_tensor take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (held_.empty()) return 0;
    ls_tensor t = held_.back();
    held_.pop_back();
    return t;
  }
  ~Pool() { ls_tensors_free(held_.data(), held_.size()); }

 private:
  std::mutex mutex_;
  std::vector<ls_tensor> held_;
};

// Runs each function on its own thread, and runs `beside` repeatedly until they have ended.
template <class Beside>
void together(const std::vector<std::function<void(int)>> &work, Beside &&beside) {
  std::atomic<int> running{static_cast<int>(work.size())};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < work.size(); i++) {
    threads.emplace_back([&, i] {
      work[i](static_cast<int>(i));
      running--;
    });
  }
  while (running.load() != 0) beside();
  for (auto &t : threads) t.join();
}

ls_result made(int64_t floats) {
  static const ls_op zeros = op("aten::zeros");
  std::vector<ls_value> args;
  append<int64_t>(args, LS_INTS, {floats});
  ls_value out[1];
  auto r = ls_op_call(zeros, args.data(), args.size(), out, 1, 0);
  return {r.err == nullptr ? out[0].u.t : 0, r.err, 0};
}

// Small blocks, from the threads' own lists, and large ones, from the shared list.
int64_t size_of(int i) {
  static const int64_t sizes[] = {1, 16, 200, 3000, 15000, 20000, 70000, 300000};
  return sizes[i % 8];
}

TEST_F(Concurrent, BlocksPassBetweenThreads) {
  Pool pool;
  std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
    for (int i = 0; i < 300; i++) {
      auto r = made(size_of(i * 7 + w));
      EXPECT_OK(r.err);
      pool.put(r.t);
      ls_tensor_free(pool.take());
      if (i % 3 == 0) pool.put(made(size_of(i)).t);
    }
  });
  together(work, [&] {
    ls_memory m;
    ls_pace p;
    int64_t freed;
    ls_memory_exact_peak(1);
    EXPECT_OK(ls_memory_stats(kCpu, &m));
    EXPECT_GE(m.peak, m.allocated);
    EXPECT_OK(ls_memory_pace(kCpu, &p));
    EXPECT_OK(ls_memory_trim(kCpu, kMiB, &freed));
    EXPECT_OK(ls_memory_reset_peak(kCpu));
    EXPECT_OK(ls_memory_empty_cache(kCpu));
    EXPECT_OK(ls_memory_set_triggers(kCpu, m.allocated + kMiB, m.total + kMiB, INT64_MAX));
    ls_memory_exact_peak(0);
    __atomic_store_n(&ls_memory_board()->due, 0, __ATOMIC_RELAXED);
  });
}

// The heap of a thread that ends, with its counts, passes to the next thread that starts.
TEST_F(Concurrent, HeapsPassToTheNextThread) {
  Pool pool;
  for (int round = 0; round < 10; round++) {
    std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
      ls_scope_set(static_cast<uint64_t>(w + 1));
      for (int i = 0; i < 20; i++) pool.put(made(size_of(i + w)).t);
      for (int i = 0; i < 15; i++) ls_tensor_free(pool.take());
    });
    together(work, [] {
      ls_memory m;
      EXPECT_OK(ls_memory_stats(kCpu, &m));
      std::this_thread::yield();
    });
    uint64_t scopes[kWorkers];
    EXPECT_EQ(ls_scope_orphans(scopes, kWorkers), static_cast<uint64_t>(kWorkers));
  }
}

TEST_F(Concurrent, RoundsUnderALimitThatChanges) {
  ls_memory before;
  EXPECT_OK(ls_memory_stats(kCpu, &before));
  EXPECT_OK(ls_memory_set_limit(kCpu, before.allocated + 8 * kMiB));
  static std::atomic<int> called;
  EXPECT_OK(ls_memory_set_oom_callback(
      [](void *, int32_t, int64_t) -> int32_t { return called.fetch_add(1) % 4 == 0; }, nullptr));
  Pool garbage;
  ASSERT_EQ(ls_pressure_attach(), 1);
  std::atomic<int> rounds{0}, got{0}, refused{0};
  std::thread pacer([&] {
    ls_pressure p;
    int is;
    while ((is = ls_pressure_wait(&p, 20)) != -1) {
      if (is == 0) continue;
      rounds++;
      while (ls_tensor t = garbage.take()) ls_tensor_free(t);
      end_round(p, LS_VERDICT_EXHAUSTED);
    }
  });
  std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
    for (int i = 0; i < 60; i++) {
      auto r = made(kMiB / 4 * (1 + (i + w) % 3));
      if (r.err == nullptr) {
        got++;
        garbage.put(r.t);
        continue;
      }
      EXPECT_EQ(r.err->code, LS_ERR_OUT_OF_MEMORY) << r.err->message;
      ls_error_free(r.err);
      refused++;
    }
  });
  int n = 0;
  together(work, [&] {
    EXPECT_OK(ls_memory_set_limit(kCpu, before.allocated + (6 + n++ % 4) * kMiB));
    EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, before.allocated + 5 * kMiB));
    (void)ls_pressure_ask();
    ls_pressure_counts c;
    ls_pressure_stats(&c);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  ls_pressure_stop();
  pacer.join();
  EXPECT_EQ(got + refused, kWorkers * 60);
  EXPECT_GT(got, refused) << "a sweep finds what the others have left";
  EXPECT_GT(rounds, 0);
}

// Threads allocate for the first time after a limit below what is in use has taken the credit of all threads.
// Only the lock on the list of threads orders the two. More threads start than any test before had, so that they
// are added to the list.
TEST_F(Concurrent, ThreadsStartAfterCreditIsDisabled) {
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 64; i++) {
    threads.emplace_back([&] {
      while (!go.load(std::memory_order_relaxed)) std::this_thread::yield();
      Tensor small(made(64));
    });
  }
  Tensor large(made(16 * kMiB));
  EXPECT_OK(ls_memory_set_limit(kCpu, 8 * kMiB));
  EXPECT_OK(ls_memory_set_limit(kCpu, 0));
  go.store(true, std::memory_order_relaxed);
  for (auto &t : threads) t.join();
}

// A limit that is set, or follows cgroups, while threads allocate up to it.
TEST_F(Concurrent, LimitsAreSetAndFollowCgroups) {
  constexpr int64_t kMost = int64_t{1} << 40;
  std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
    for (int i = 0; i < 100; i++) {
      switch (w) {
        case 0:
          EXPECT_OK(ls_memory_set_limit(kCpu, kMost));
          break;
        case 1:
        case 2: {
          const ls_cgroup groups[] = {{"/nonexistent/a", 2, 0}, {"/nonexistent/b", 1, 0}};
          EXPECT_OK(ls_memory_follow_cgroups(groups, static_cast<uint64_t>(w), kMost, 1, 0));
          break;
        }
        default: {
          Tensor large(made(9 * kMiB));
        }
      }
    }
  });
  together(work, [] { std::this_thread::yield(); });
}

TEST_F(Concurrent, SamplingIsSwitchedOnAndOff) {
  Pool pool;
  std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
    for (int i = 0; i < 300; i++) {
      auto r = made(size_of(i + w));
      EXPECT_OK(r.err);
      ls_samples_attach(static_cast<uint32_t>(w), i % 2 == 0 ? r.t : 0);
      pool.put(r.t);
      ls_tensor_free(pool.take());
    }
    ls_samples_attach(0, 0);
  });
  int n = 0;
  together(work, [&] {
    static const int64_t rates[] = {1, 4096, 0, 512 << 10};
    ls_samples_set_rate(rates[n++ % 4]);
    EXPECT_OK(ls_history_set(n % 5 == 0 ? 0 : 100));
    ls_site sites[8];
    ls_event events[32];
    (void)ls_samples_sites(sites, 8);
    (void)ls_history_events(events, 32);
    (void)ls_history_live(events, 32);
    ls::note_on_device(0, LS_EVENT_SNAPSHOT, 0, 1, nullptr);
    EXPECT_OK(ls_history_out_of_memory(kCpu, 1, 2, 3));
    (void)__atomic_load_n(ls_samples_seen(), __ATOMIC_RELAXED);
  });
}

TEST_F(Concurrent, OutOfMemoryIsNoted) {
  EXPECT_OK(ls_history_set(100));
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; i++) {
    threads.emplace_back([=] {
      for (int n = 0; n < 500; n++) EXPECT_OK(ls_history_out_of_memory(kCpu, 1, 2, i));
    });
  }
  for (auto &t : threads) t.join();
  ls_event events[101];
  EXPECT_EQ(ls_history_events(events, 101), 100u);
}

// Handles of one tensor are made and freed while other threads compute with it.
TEST_F(Concurrent, HandlesAreFreedDuringOperators) {
  Tensor x = floats({1, 2, 3, 4}, {2, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  Pool pool;
  std::vector<std::function<void(int)>> work(kWorkers, [&](int) {
    for (int i = 0; i < 200; i++) {
      Tensor mine(ls_tensor_alias(x));
      pool.put(ls_tensor_alias(mine).t);
      Tensor y(ls_aten_mul_Tensor(mine, mine)), sum(ls_aten_sum_dim_IntList(y));
      ls_tensor leaf = mine, g = 0;
      uint64_t scope;
      EXPECT_OK(ls_autograd_grad(&sum.h, 1, nullptr, &leaf, 1, 0, 0, 0, &g, &scope));
      EXPECT_EQ(values(Tensor(g)), (std::vector<float>{2, 4, 6, 8}));
      ls_tensor_free(pool.take());
      ls_meta m;
      EXPECT_OK(ls_tensor_meta(mine, &m));
    }
  });
  together(work, [&] { ls_tensor_free(pool.take()); });
}

// Gradients are read and replaced while graphs with their tensor come and go. ThreadSanitizer does not see the
// lock under which libtorch adds to a gradient, so no pass does; TestGradsOfManyGoroutines has passes.
TEST_F(Concurrent, GradsChangeWhileGraphsDo) {
  Tensor x = floats({1, 2, 3, 4}, {2, 2});
  EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
  std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
    for (int i = 0; i < 300; i++) {
      Tensor y(ls_aten_mul_Tensor(x, x)), mine = floats({0, 0, 0, 0}, {2, 2});
      EXPECT_OK(ls_tensor_set_grad(x, mine));
      if (i % 3 == 0) {
        EXPECT_OK(ls_tensors_zero_grad(&x.h, 1, w % 2));
      }
    }
  });
  together(work, [&] {
    Tensor(ls_tensor_try_grad(x));
    ls_tensor out;
    EXPECT_OK(ls_tensors_grad(&x.h, 1, &out));
    ls_tensor_free(out);
  });
}

// A tensor gets its metadata once, although two threads need it at the same moment.
TEST_F(Concurrent, FirstGradsOfATensor) {
  constexpr size_t kTensors = 5000;
  std::vector<Tensor> xs;
  for (size_t i = 0; i < kTensors; i++) xs.push_back(floats({1, 2}));
  std::atomic<size_t> arrived{0};
  std::vector<std::function<void(int)>> work(2, [&](int w) {
    Tensor mine = floats({static_cast<float>(w), 0});
    for (size_t i = 0; i < kTensors; i++) {
      arrived++;
      for (int spins = 0; arrived < 2 * (i + 1); spins++)
        if (spins > 1000) std::this_thread::yield();
      EXPECT_OK(ls_tensor_set_grad(xs[i], mine));
    }
  });
  together(work, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  for (auto &x : xs) {
    ls_tensor out = 0;
    EXPECT_OK(ls_tensors_grad(&x.h, 1, &out));
    EXPECT_NE(out, 0u);
    ls_tensor_free(out);
  }
}

TEST_F(Concurrent, HooksBlobsAndFunctionsAreDropped) {
  static const ls_callbacks callbacks{[](uint64_t, ls_tensor, ls_tensor *) -> uint64_t { return 0; },
                                      [](uint64_t, const ls_tensor *grads, uint64_t, const ls_tensor *, uint64_t,
                                         const uint8_t *, ls_tensor *out, uint64_t) -> uint64_t {
                                        out[0] = ls_tensor_alias(grads[0]).t;
                                        return 0;
                                      },
                                      nullptr};
  ls_callbacks_set(&callbacks);
  constexpr int kTimes = 60;
  static float data[4] = {1, 2, 3, 4};
  std::atomic<uint64_t> taken{0};
  std::vector<std::function<void(int)>> work(kWorkers, [&](int) {
    for (int i = 0; i < kTimes; i++) {
      Tensor x = floats({1, 2});
      EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
      uint32_t slot;
      EXPECT_OK(ls_hook_register(x, 1, &slot));
      Tensor y = floats({2, 4}), out;
      uint64_t scope;
      EXPECT_OK(ls_function_attach(2, &x.h, 1, &y.h, 1, nullptr, 0, 0, &out.h, &scope));
      Tensor sum(ls_aten_sum_dim_IntList(out));
      EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
      EXPECT_OK(ls_hook_remove(x, slot));
      int64_t four = 4;
      Tensor blob(ls_tensor_from_blob(kFloat, &four, 1, data, sizeof data, nullptr, 3));
    }
  });
  uint64_t ids[16];
  together(work, [&] {
    (void)ls_dropped_count();
    taken += ls_dropped_take(ids, 16);
  });
  while (uint64_t n = ls_dropped_take(ids, 16)) taken += n;
  EXPECT_EQ(taken.load(), static_cast<uint64_t>(3 * kWorkers * kTimes));
}

TEST_F(Concurrent, SettingsChangeDuringOperators) {
  Tensor x = floats(std::vector<float>(3000, 1));
  std::vector<std::function<void(int)>> work(kWorkers, [&](int w) {
    for (int i = 0; i < 100; i++) {
      Tensor y(ls_aten_exp(x));
      EXPECT_OK(ls_mode_push({w % 2, 1, 0, 0, 0}));
      EXPECT_EQ(ls_mode_get(w % 2, 0).on, 1);
      Tensor r = call("aten::rand_like", "", {T(x)});
      ls_mode_pop();
      ls_op found = 0;
      EXPECT_OK(ls_op_find("aten::addcmul", "", &found).err);
      EXPECT_NE(found, 0u);
      Tensor state(ls_rng_state(kCpu));
      EXPECT_OK(ls_rng_set_state(kCpu, state));
      EXPECT_ERR(ls_aten_add_Tensor(0, 0).err, LS_ERR_ARGUMENT);
    }
  });
  int n = 0;
  together(work, [&] {
    EXPECT_OK(ls_threads_set(1 + n++ % 2));
    EXPECT_GE(ls_threads_get(), 1);
    EXPECT_OK(ls_rng_seed(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  EXPECT_OK(ls_threads_set(1));
}

}  // namespace

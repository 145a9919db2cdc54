// Limits, the out-of-memory callback and rounds: how the shim manages memory, without Go.
#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "devices.h"

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OWN_MALLOC
namespace {
std::atomic<bool> generous{false};
}
extern "C" void *__libc_memalign(size_t align, size_t n);
// While `generous` is set, blocks are larger than asked, as those of other mallocs are.
extern "C" __attribute__((visibility("default"))) int posix_memalign(void **p, size_t align, size_t n) noexcept {
  *p = __libc_memalign(align, generous ? n + n / 3 : n);
  return *p == nullptr ? ENOMEM : 0;
}
#endif

namespace {

int64_t live() {
  ls_memory m;
  EXPECT_OK(ls_memory_stats(kCpu, &m));
  return m.allocated;
}

constexpr int64_t kMiB = 1 << 20;

ls_result empty(int64_t floats) {
  std::vector<float> none;
  ls_value out[1];
  std::vector<ls_value> args;
  append<int64_t>(args, LS_INTS, {floats});
  auto r = ls_op_call(op("aten::zeros"), args.data(), args.size(), out, 1, 0);
  return {r.err == nullptr ? out[0].u.t : 0, r.err, 0};
}

class Memory : public ShimTest {
 protected:
  void TearDown() override {
    EXPECT_OK(ls_memory_set_oom_callback(nullptr, nullptr));
    EXPECT_OK(ls_memory_set_limit(kCpu, 0));
    ShimTest::TearDown();
  }
};

TEST_F(Memory, TheErrorAtTheLimitHasTheSizes) {
  EXPECT_OK(ls_memory_set_limit(kCpu, live() + 8 * kMiB));
  auto a = empty(kMiB);
  ASSERT_EQ(a.err, nullptr);
  auto b = empty(2 * kMiB);
  ASSERT_NE(b.err, nullptr);
  EXPECT_EQ(b.err->code, LS_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(b.err->bytes, 8 * kMiB);
  EXPECT_EQ(b.err->device, kCpu);
  ls_error_free(b.err);
  auto c = empty(kMiB);
  ASSERT_EQ(c.err, nullptr) << "what fits is given";
  ls_tensor_free(a.t);
  ls_tensor_free(c.t);
  EXPECT_ERR(ls_memory_set_limit(kCpu, -1), LS_ERR_ARGUMENT);
}

// An allocation that the system refuses was never live.
TEST_F(Memory, AFailureIsNeitherThePeakNorInTheTotal) {
  ls_memory before, after;
  EXPECT_OK(ls_memory_stats(kCpu, &before));
  for (int64_t floats : {int64_t{1} << 43, int64_t{1} << 45, int64_t{1} << 59, int64_t{1} << 59}) {
    auto r = empty(floats);
    ASSERT_NE(r.err, nullptr);
    EXPECT_EQ(r.err->code, LS_ERR_OUT_OF_MEMORY);
    EXPECT_EQ(r.err->bytes, 4 * floats);
    ls_error_free(r.err);
  }
  EXPECT_OK(ls_memory_stats(kCpu, &after));
  EXPECT_EQ(after.peak, before.peak);
  EXPECT_LT(after.total - before.total, kMiB);
  EXPECT_EQ(after.allocated, before.allocated);
}

#ifdef OWN_MALLOC
// What is counted depends on what was asked, not on the size of malloc's block.
TEST_F(Memory, CountsWithAnyMalloc) {
  generous = true;
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  int64_t before = live();
  for (int64_t bytes = 1; bytes < kMiB; bytes += 1 + bytes / 9) {
    auto a = empty((bytes + 3) / 4);
    ASSERT_EQ(a.err, nullptr);
    EXPECT_GE(live() - before, bytes);
    ls_tensor_free(a.t);
    EXPECT_EQ(live(), before) << bytes << " bytes";
  }
  generous = false;
  EXPECT_OK(ls_memory_empty_cache(kCpu));
}
#endif

struct Holder {
  std::vector<ls_tensor> held;
  int calls = 0;
  int64_t asked = 0;
};

TEST_F(Memory, TheCallbackFreesBeforeTheRetry) {
  Holder h;
  EXPECT_OK(ls_memory_set_limit(kCpu, live() + 12 * kMiB + 65536));
  for (int i = 0; i < 3; i++) h.held.push_back(empty(kMiB).t);
  EXPECT_OK(ls_memory_set_oom_callback(
      [](void *arg, int32_t device, int64_t bytes) -> int32_t {
        auto *h = static_cast<Holder *>(arg);
        h->calls++;
        h->asked = bytes;
        EXPECT_EQ(device, kCpu);
        // Allocations within the callback do not call it again.
        auto more = empty(2 * kMiB);
        EXPECT_NE(more.err, nullptr);
        ls_error_free(more.err);
        if (h->held.empty()) return 0;
        ls_tensor_free(h->held.back());
        h->held.pop_back();
        return 1;
      },
      &h));
  auto t = empty(2 * kMiB);
  ASSERT_EQ(t.err, nullptr);
  EXPECT_EQ(h.calls, 2) << "called as long as it frees and nothing fits";
  EXPECT_EQ(h.asked, 8 * kMiB);
  EXPECT_EQ(h.held.size(), 1u);
  auto u = empty(3 * kMiB);
  ASSERT_NE(u.err, nullptr) << "it gave up when the callback did";
  EXPECT_EQ(u.err->code, LS_ERR_OUT_OF_MEMORY);
  ls_error_free(u.err);
  EXPECT_TRUE(h.held.empty());
  ls_tensor_free(t.t);
}

TEST_F(Memory, OneRoundServesAllWaiters) {
  constexpr int kThreads = 16;
  EXPECT_OK(ls_memory_set_limit(kCpu, live() + kThreads * 4 * kMiB));
  std::vector<ls_tensor> garbage;
  for (int i = 0; i < kThreads; i++) garbage.push_back(empty(kMiB).t);
  ASSERT_EQ(ls_pressure_attach(), 1);
  EXPECT_EQ(ls_pressure_attach(), 0) << "a pacer is attached already";
  auto &due = ls_memory_board()->due;
  __atomic_store_n(&due, 0, __ATOMIC_RELAXED);
  std::vector<ls_result> results(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) threads.emplace_back([&, i] { results[i] = empty(kMiB); });
  int rounds = 0;
  std::thread pacer([&] {
    ls_pressure p;
    // All threads wait before the sweep begins.
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    EXPECT_EQ(__atomic_load_n(&due, __ATOMIC_RELAXED), 1u)
        << "the next operator must see that an allocation waits";
    while (ls_pressure_wait(&p, 500) == 1) {
      rounds++;
      EXPECT_EQ(p.count, 1);
      EXPECT_EQ(p.waiters[0].reason, LS_WAIT_LIMIT);
      EXPECT_EQ(p.waiters[0].device, kCpu);
      EXPECT_EQ(p.waiters[0].bytes, kThreads * 4 * kMiB);
      EXPECT_EQ(p.waiters[0].largest, 4 * kMiB);
      ls_tensors_free(garbage.data(), garbage.size());
      garbage.clear();
      end_round(p, LS_VERDICT_EXHAUSTED);
    }
  });
  for (auto &t : threads) t.join();
  pacer.join();
  ls_pressure_stop();
  EXPECT_EQ(rounds, 1);
  for (auto &r : results) {
    EXPECT_EQ(r.err, nullptr);
    ls_tensor_free(r.t);
  }
  EXPECT_ERR(empty(kMiB * kThreads * 2).err, LS_ERR_OUT_OF_MEMORY);  // sweeping has stopped
}

// An allocation that waited at the wait trigger is retried, since other threads may have taken the freed
// memory. It passes the trigger once a round admits it.
TEST_F(Memory, ARoundAdmitsPastTheWaitTrigger) {
  ASSERT_EQ(ls_pressure_attach(), 1);
  for (bool room : {false, true}) {
    int64_t base = live();
    EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, base + 5 * kMiB));
    int rounds = 0;
    std::thread pacer([&] {
      ls_pressure p;
      while (ls_pressure_wait(&p, rounds == 0 ? 5000 : 100) == 1) {
        EXPECT_EQ(p.count, 1);
        EXPECT_EQ(p.waiters[0].reason, LS_WAIT_TARGET);
        EXPECT_EQ(p.waiters[0].bytes, 8 * kMiB);
        if (++rounds == 2 && room) {
          EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, base + 9 * kMiB));
        }
        end_round(p, rounds == 3 ? LS_VERDICT_ADMIT : 0);
      }
    });
    auto r = empty(2 * kMiB);  // 8 MiB
    pacer.join();
    EXPECT_EQ(rounds, room ? 2 : 3);
    EXPECT_OK(r.err);
    ls_tensor_free(r.t);
  }
  ls_pressure_stop();
  EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, INT64_MAX));
}

// An allocation waits at the wait trigger for LS_WAIT_TARGET_MS in all, in any number of rounds, and then passes
// it. It has timed out once.
TEST_F(Memory, WaitsAtTheWaitTriggerAreBounded) {
  ASSERT_EQ(ls_pressure_attach(), 1);
  EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, live() + kMiB));
  auto ms = [](int n) { return std::chrono::milliseconds(n); };
  for (bool one : {true, false}) {
    ls_pressure_counts before, after;
    ls_pressure_stats(&before);
    std::thread pacer([&] {
      ls_pressure p;
      for (int rounds = 0; ls_pressure_wait(&p, 600) == 1; rounds++) {
        std::this_thread::sleep_for(one ? ms(400) : rounds == 0 ? ms(150) : ms(200));
        end_round(p, one || rounds > 0 ? LS_VERDICT_ADMIT : 0);  // too late
      }
    });
    auto r = empty(2 * kMiB);
    pacer.join();
    EXPECT_OK(r.err);
    ls_tensor_free(r.t);
    ls_pressure_stats(&after);
    EXPECT_EQ(after.timeouts - before.timeouts, 1);
    EXPECT_LE(after.waits - before.waits, one ? 1 : 2);
  }
  ls_pressure_stop();
  EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, INT64_MAX));
}

// A round reports the sum and the largest of the waiting allocations, and the strongest reason. Each verdict
// applies to the allocations that wait for its reason: one at the wait trigger is admitted, one at the hard
// limit fails once the round is exhausted.
TEST_F(Memory, ARoundServesEachReason) {
  ASSERT_EQ(ls_pressure_attach(), 1);
  int64_t base = live();
  EXPECT_OK(ls_memory_set_limit(kCpu, base + 24 * kMiB));
  EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, base + kMiB));
  ls_result soft, hard;
  std::atomic<int> rounds{0};
  std::atomic<bool> reached{false};  // the first allocation waits at the limit
  std::thread pacer([&] {
    ls_pressure p;
    bool both = false;
    while (ls_pressure_wait(&p, 1000) == 1) {
      rounds++;
      if (p.count == 0) {
        end_round(p, 0);
        continue;
      }
      auto &w = p.waiters[0];
      if (w.reason == LS_WAIT_TARGET && w.bytes == w.largest && w.largest == 64 * kMiB) {
        end_round(p, LS_VERDICT_ADMIT);  // next it reaches the hard limit
      } else if (w.bytes == 72 * kMiB) {
        EXPECT_EQ(w.largest, 64 * kMiB);
        EXPECT_EQ(w.reason, LS_WAIT_LIMIT);
        both = true;
        end_round(p, LS_VERDICT_ADMIT);  // not exhausted: the allocation at the limit is retried
      } else if (both) {
        EXPECT_EQ(w.reason, LS_WAIT_LIMIT) << "one at the wait trigger was admitted";
        EXPECT_EQ(w.bytes, 64 * kMiB);
        end_round(p, LS_VERDICT_EXHAUSTED);
      } else {
        reached = reached || w.reason == LS_WAIT_LIMIT;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        end_round(p, w.reason == LS_WAIT_TARGET ? 0 : LS_VERDICT_ADMIT);
      }
    }
  });
  std::thread at_limit([&] { hard = empty(16 * kMiB); });  // 64 MiB
  while (!reached) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread at_soft([&] { soft = empty(2 * kMiB); });  // 8 MiB
  at_limit.join();
  at_soft.join();
  ls_pressure_stop();
  pacer.join();
  EXPECT_OK(soft.err);
  ls_tensor_free(soft.t);
  EXPECT_ERR(hard.err, LS_ERR_OUT_OF_MEMORY);
  EXPECT_OK(ls_memory_set_limit(kCpu, 0));
  EXPECT_OK(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, INT64_MAX));
}

TEST_F(Memory, AnAllocationFailsAfterARoundThatFreesNothing) {
  EXPECT_OK(ls_memory_set_limit(kCpu, live() + 4 * kMiB));
  ASSERT_EQ(ls_pressure_attach(), 1);
  std::atomic<int> rounds{0};
  std::thread pacer([&] {
    ls_pressure p;
    int got;
    while ((got = ls_pressure_wait(&p, 5000)) == 1) {
      end_round(p, ++rounds > 1 ? LS_VERDICT_EXHAUSTED : LS_VERDICT_ADMIT);  // the first is not exhausted
    }
    EXPECT_EQ(got, -1);
  });
  auto t = empty(2 * kMiB);
  ASSERT_NE(t.err, nullptr);
  EXPECT_EQ(t.err->code, LS_ERR_OUT_OF_MEMORY);
  ls_error_free(t.err);
  EXPECT_EQ(rounds.load(), 2);
  ls_pressure_stop();
  pacer.join();
}

// Other threads free what they have just allocated. Only exhausted rounds in which there was never room make an
// allocation fail, however many others there are.
TEST_F(Memory, AnAllocationFailsAlthoughOthersFree) {
  struct Case {
    int64_t asked;                      // MiB
    int unexhausted, taken, exhausted;  // rounds: without a verdict, with room that is taken, with a verdict
    bool fits;
  };
  for (Case c : {Case{8, 0, 0, 9, false}, Case{8, 200, 0, 8, false}, Case{8, 5, 50, 8, false},
                 Case{8, 50, 50, 0, true}, Case{64, 0, 0, 1, false}}) {
    EXPECT_OK(ls_memory_set_limit(kCpu, live() + 16 * kMiB));
    auto held = empty(3 * kMiB);  // 12 MiB
    EXPECT_OK(held.err);
    ASSERT_EQ(ls_pressure_attach(), 1);
    int rounds = 0;
    std::thread pacer([&] {
      ls_pressure p;
      while (ls_pressure_wait(&p, 5000) == 1) {
        int before = rounds++ - c.unexhausted;
        if (before >= 0 && before < c.taken) {
          ls_tensor_free(held.t);
          held = empty(3 * kMiB);
        } else if (before == c.taken && c.fits) {
          ls_tensor_free(held.t);
          held = {};
        } else {
          ls_tensor_free(empty(1000).t);
        }
        end_round(p, before < 0 ? 0 : LS_VERDICT_EXHAUSTED);
      }
    });
    auto r = empty(c.asked * kMiB / 4);
    ls_pressure_stop();
    pacer.join();
    EXPECT_EQ(rounds, c.unexhausted + c.taken + c.exhausted + (c.fits ? 1 : 0));
    if (c.fits) {
      EXPECT_OK(r.err);
      ls_tensor_free(r.t);
    } else {
      EXPECT_ERR(r.err, LS_ERR_OUT_OF_MEMORY);
    }
    if (held.t != 0) ls_tensor_free(held.t);
  }
  EXPECT_OK(ls_memory_set_limit(kCpu, 0));
}

// Checked by ThreadSanitizer, too.
TEST_F(Memory, OnlyOnePacerAttaches) {
  std::atomic<int> attached{0}, most{0};
  on_threads(4, [&](int) {
    for (int k = 0; k < 200; k++) {
      if (ls_pressure_attach() == 0) continue;
      most = std::max<int>(most, ++attached);
      attached--;
      ls_pressure_stop();
    }
  });
  EXPECT_EQ(most.load(), 1);
}

TEST_F(Memory, LimitsThatCannotBeSet) {
  auto message = [](ls_error *e) {
    EXPECT_EQ(e == nullptr ? 0 : e->code, LS_ERR_ARGUMENT);
    return take(e);
  };
  EXPECT_NE(message(ls_memory_set_limit(2 << 8, 1)).find("has no memory of its own"), std::string::npos);
  const ls_cgroup group = {"/nonexistent", 3, 0};
  EXPECT_EQ(message(ls_memory_follow_cgroups(&group, 1, 1, 1, 0)), "cgroups have version 1 or 2, not 3");
  EXPECT_EQ(message(ls_memory_follow_cgroups(nullptr, 0, 0, 1, 0)), "limit: 0 bytes");
}

TEST_F(Memory, CallbacksAreSetByManyThreads) {
  on_threads(4, [](int) {
    for (int k = 0; k < 100; k++)
      EXPECT_OK(ls_memory_set_oom_callback([](void *, int32_t, int64_t) -> int32_t { return 0; }, nullptr));
  });
}

TEST_F(Memory, ExtremeTimeoutsAndRates) {
  ASSERT_EQ(ls_pressure_attach(), 1);
  ls_pressure p;
  for (int64_t over : {INT64_MIN, int64_t{-1}, int64_t{0}}) {
    ASSERT_EQ(ls_pressure_ask(), 1);
    ASSERT_EQ(ls_pressure_wait(&p, over), 0) << "the round can wait until the idle work is done";
    ASSERT_EQ(ls_pressure_wait(&p, INT64_MAX), 1);
    end_round(p, LS_VERDICT_EXHAUSTED);
  }
  EXPECT_EQ(ls_pressure_wait(&p, INT64_MIN), 0);
  EXPECT_EQ(ls_sweeping_set(-1), 1) << "the pacer's thread";
  EXPECT_EQ(ls_sweeping_set(0), 1) << "it was to be left";
  EXPECT_EQ(ls_sweeping_set(-1), 0);
  EXPECT_EQ(ls_sweeping_set(1), 0);
  EXPECT_EQ(ls_sweeping_set(0), 1);
  ls_pressure_stop();
  // So rarely that no block is sampled.
  ls_samples_set_rate(INT64_MAX);
  auto seen = *ls_samples_seen();
  for (int i = 0; i < 1000; i++) ls_tensor_free(empty(10000 + i).t);
  EXPECT_EQ(*ls_samples_seen(), seen);
  ls_samples_set_rate(0);
}

TEST_F(Memory, RequestedAndRoundedBytesAreCounted) {
  ls_memory a, b;
  EXPECT_OK(ls_memory_stats(kCpu, &a));
  auto t = empty(100001);
  EXPECT_OK(ls_memory_stats(kCpu, &b));
  EXPECT_EQ(b.requested - a.requested, 400004);
  EXPECT_GE(b.allocated - a.allocated, 400004);
  EXPECT_LE(b.allocated - a.allocated, 400004 * 9 / 8);
  EXPECT_EQ(b.allocations - a.allocations, 1);
  ls_tensor_free(t.t);
  EXPECT_OK(ls_memory_stats(kCpu, &b));
  EXPECT_EQ(b.requested, a.requested);
  EXPECT_EQ(b.frees - a.frees, 1);
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kRanges = false;  // malloc serves all blocks
#else
constexpr bool kRanges = true;
#endif

ls_memory cpu() {
  ls_memory m{};
  EXPECT_OK(ls_memory_stats(kCpu, &m));
  return m;
}

// Returns a tensor of the given number of 128 KiB units, filled with one number.
struct Block {
  ls_tensor t = 0;
  int64_t units = 0;
  int64_t *data = nullptr;
  static constexpr int64_t kNumbers = 1 << 14;

  Block(int64_t n, int64_t number) : units(n) {
    auto r = empty(2 * n * kNumbers);
    t = r.t;
    EXPECT_EQ(take(r.err), "");
    ls_meta meta;
    EXPECT_OK(ls_tensor_meta(t, &meta));
    data = reinterpret_cast<int64_t *>(meta.data);
    std::fill_n(data, n * kNumbers, number);
  }
  bool holds(int64_t number) const {
    return std::all_of(data, data + units * kNumbers, [number](int64_t d) { return d == number; });
  }
};

// Blocks that one layer frees serve the next layer's allocations of any size: large blocks are split and merge
// with free neighbours.
TEST_F(Memory, LargeBlocksAreSplitAndMerged) {
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  EXPECT_LE(cpu().cached, kMiB) << "small blocks of other threads";
  ls_tensor_free(Block(32 * 8, 0).t);
  int64_t reserved = cpu().reserved;
  for (auto order : {std::vector{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 2, 1, 3}, {1, 3, 0, 2}, {2, 0, 3, 1}}) {
    std::vector<Block> parts;
    for (int64_t k : {8, 80, 40, 128}) parts.emplace_back(k, k);
    if (kRanges) {
      EXPECT_EQ(cpu().reserved, reserved) << "four blocks of what one left";
    }
    for (auto &p : parts) EXPECT_TRUE(p.holds(p.units)) << p.units;
    for (int i : order) ls_tensor_free(parts[static_cast<size_t>(i)].t);
    Block whole(32 * 8, 1);
    if (kRanges) {
      EXPECT_EQ(cpu().reserved, reserved) << "one of what four left";
    }
    ls_tensor_free(whole.t);
  }
  // Part of a free range is returned to the system, in whole huge pages.
  int64_t freed;
  EXPECT_OK(ls_memory_trim(kCpu, 10 * kMiB, &freed));
  EXPECT_LE(cpu().cached, 11 * kMiB);
  if (kRanges) {
    EXPECT_GE(cpu().cached, 8 * kMiB);
    EXPECT_EQ(reserved - cpu().reserved, freed);
  }
  EXPECT_OK(ls_memory_trim(kCpu, 0, &freed));
  EXPECT_LE(cpu().cached, kMiB) << "small blocks of other threads";
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if __GLIBC_PREREQ(2, 33)
// Blocks of 64 KiB to 1 MiB whose sizes vary from step to step come from ranges: malloc's arenas, of which new
// threads get their own, do not grow.
TEST_F(Memory, BlocksOfVaryingSizesDoNotGrowMalloc) {
  auto of_malloc = [] {
    auto m = mallinfo2();
    return static_cast<int64_t>(m.arena + m.hblkhd);
  };
  int64_t before = of_malloc();
  on_threads(4, [](int thread) {
    uint64_t random = static_cast<uint64_t>(thread) * 0x9e3779b97f4a7c15 + 1;
    std::vector<ls_tensor> held(8, 0);
    for (int k = 0; k < 2000; k++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      auto &t = held[random % held.size()];
      ls_tensor_free(t);
      auto r = empty(static_cast<int64_t>((1 << 14) + (random >> 32) % (15 << 14)));
      EXPECT_EQ(take(r.err), "");
      t = r.t;
    }
    for (auto t : held) ls_tensor_free(t);
  });
  EXPECT_LE(of_malloc() - before, 2 * kMiB);
  // Freed blocks merge, so that an allocation as large as all of them fits where they were.
  EXPECT_LE(cpu().cached, 64 * kMiB);
}
#endif
#endif

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The cache of small objects. This program takes operator new from the shim, as libtorch does.
class SmallObjects : public Memory {
 protected:
  static constexpr size_t kBytes = 200;  // 78 chunks are a full list

  void SetUp() override {
    Memory::SetUp();
    ASSERT_EQ(ls_memory_cache_objects(1), 1);
  }
  void TearDown() override {
    ls_memory_cache_objects(0);
    Memory::TearDown();
  }
  static std::vector<void *> make(size_t n) {
    std::vector<void *> list(n);
    for (auto &p : list) p = operator new(kBytes);
    return list;
  }
  static void free_objects(const std::vector<void *> &list) {
    for (void *p : list) operator delete(p);
  }
};

TEST_F(SmallObjects, AThreadReusesItsObjectsLastFirst) {
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  auto first = make(60);
  // Some chunks are of the next size, because malloc does not split off the smallest rest.
  auto rest =
      std::stable_partition(first.begin(), first.end(), [](void *p) { return malloc_usable_size(p) <= kBytes; });
  free_objects({rest, first.end()});
  first.erase(rest, first.end());
  ASSERT_GT(first.size(), 40u);
  free_objects(first);
  auto second = make(first.size());
  std::reverse(second.begin(), second.end());
  EXPECT_EQ(first, second);
  free_objects(second);
}

TEST_F(SmallObjects, AThreadGetsWhatAnotherHasFreed) {
  std::vector<void *> made;
  std::thread([&] { made = make(400); }).join();
  free_objects(made);
  std::sort(made.begin(), made.end());
  std::thread([&] {
    auto list = make(300);
    int64_t found = 0;
    for (void *p : list) found += std::binary_search(made.begin(), made.end(), p);
    EXPECT_GE(found, 300);
    free_objects(list);
  }).join();
}

TEST_F(SmallObjects, NewAndMallocTakeTheChunksOfTheOther) {
  on_threads(4, [](int thread) {
    uint64_t random = static_cast<uint64_t>(thread) * 0x9e3779b97f4a7c15 + 1;
    struct Held {
      unsigned char *p;
      size_t bytes;
      unsigned char pattern;
    };
    std::vector<Held> held(64);
    for (int k = 0; k < 200'000; k++) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      auto &h = held[random % held.size()];
      for (size_t j = 0; j < h.bytes; j++) ASSERT_EQ(h.p[j], h.pattern);
      (random >> 20) % 2 == 0 ? operator delete(h.p) : free(h.p);
      h.bytes = (random >> 24) % 1200;
      h.pattern = static_cast<unsigned char>(random >> 40);
      h.p = static_cast<unsigned char *>((random >> 50) % 2 == 0 ? operator new(h.bytes) : malloc(h.bytes));
      ASSERT_NE(h.p, nullptr);
      memset(h.p, h.pattern, h.bytes);
    }
    for (auto &h : held) operator delete(h.p);
  });
}

TEST_F(SmallObjects, NewFailsAsTheStandardLibrarys) {
  volatile size_t most = PTRDIFF_MAX;
  EXPECT_THROW(operator delete(operator new(most)), std::bad_alloc);
  EXPECT_EQ(operator new(most, std::nothrow), nullptr);
}

#if __GLIBC_PREREQ(2, 33)
TEST_F(SmallObjects, WhatIsKeptIsBounded) {
  auto in_use = [] { return static_cast<int64_t>(mallinfo2().uordblks); };
  int64_t before = in_use();
  {
    std::vector<void *> made;
    std::thread([&] { made = make(100'000); }).join();
    free_objects(made);
  }
  EXPECT_LE(in_use() - before, 128 << 10);
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  std::thread([&] { free_objects(make(70)); }).join();  // a thread that ends frees its list
  EXPECT_LE(in_use() - before, 16 << 10);
}
#endif
#endif

// Threads allocate and free blocks of all sizes while the cache is trimmed. Each thread finds in its blocks
// what it wrote.
TEST_F(Memory, LargeBlocksKeepWhatIsWritten) {
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  ls_memory start = cpu();
  on_threads(4, [](int thread) {
    uint64_t random = static_cast<uint64_t>(thread) * 0x9e3779b97f4a7c15 + 1;
    auto below = [&](uint64_t n) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      return random % n;
    };
    std::vector<std::pair<Block, int64_t>> held;
    for (int64_t k = 0; k < 400; k++) {
      if (held.size() > 6 || (!held.empty() && below(2) == 0)) {
        std::swap(held.back(), held[below(held.size())]);
        EXPECT_TRUE(held.back().first.holds(held.back().second));
        ls_tensor_free(held.back().first.t);
        held.pop_back();
      } else {
        int64_t number = thread << 20 | k;
        held.emplace_back(Block(static_cast<int64_t>(1 + below(below(8) == 0 ? 200 : 40)), number), number);
      }
      int64_t freed;
      if (k % 50 == 0) {
        EXPECT_OK(ls_memory_trim(kCpu, static_cast<int64_t>(below(40)) * kMiB, &freed));
      }
      if (k % 7 == 0) {
        EXPECT_GE(cpu().cached, 0);
      }
    }
    for (auto &[block, number] : held) {
      EXPECT_TRUE(block.holds(number));
      ls_tensor_free(block.t);
    }
  });
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  EXPECT_LE(cpu().reserved - start.reserved, kMiB);
}

// For ThreadSanitizer: the bytes that threads hold are summed while more threads start than there ever were.
// A tensor that has guard pages around it for its own lifetime.
struct Guarded {
  Tensor t;
  explicit Guarded(int32_t side) {
    if (ls_guard_pages_set(side) != nullptr) std::exit(0);
    t = floats({1, 2, 3, 4});
    if (ls_guard_pages_set(LS_GUARD_OFF) != nullptr) std::exit(0);
  }
  volatile float *data() const {
    return static_cast<float *>(reinterpret_cast<c10::TensorImpl *>(t.h)->mutable_data());
  }
};

TEST_F(Memory, GuardPagesChangeNoBytes) {
  ls_memory before, plain, guarded;
  EXPECT_OK(ls_memory_stats(kCpu, &before));
  {
    Tensor t = floats({1, 2, 3, 4});
    EXPECT_OK(ls_memory_stats(kCpu, &plain));
  }
  Guarded g(LS_GUARD_END);
  EXPECT_OK(ls_memory_stats(kCpu, &guarded));
  EXPECT_EQ(guarded.allocated, plain.allocated);
  EXPECT_GT(guarded.allocated, before.allocated);
  EXPECT_EQ(values(g.t), (std::vector<float>{1, 2, 3, 4}));
  EXPECT_ERR(ls_guard_pages_set(LS_GUARD_START + 1), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_guard_pages_set(-1), LS_ERR_ARGUMENT);
}

TEST(GuardPagesDeathTest, EndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  if (ls_init() != nullptr) FAIL();
  EXPECT_DEATH((void)Guarded(LS_GUARD_END).data()[4], "");
  EXPECT_DEATH(Guarded(LS_GUARD_END).data()[4] = 1, "");
  EXPECT_DEATH((void)Guarded(LS_GUARD_START).data()[-1], "");
  EXPECT_DEATH(
      {
        Guarded g(LS_GUARD_END);
        auto *p = g.data();
        g.t = Tensor();
        (void)p[0];
      },
      "");
  EXPECT_EXIT(
      {
        Guarded end(LS_GUARD_END);
        Guarded start(LS_GUARD_START);
        std::exit(end.data()[3] + end.data()[0] + start.data()[0] + start.data()[3] == 10 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(Memory, FiguresWhileThreadsStart) {
  constexpr int kThreads = 48;
  std::atomic<bool> over{false};
  std::thread reader([&] {
    ls_memory m;
    while (!over) EXPECT_OK(ls_memory_stats(kCpu, &m));
  });
  std::atomic<int> there{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&] {
      auto t = empty(10);
      EXPECT_EQ(t.err, nullptr);
      for (there++; there < kThreads;) std::this_thread::yield();
      ls_tensor_free(t.t);
    });
  }
  for (auto &t : threads) t.join();
  over = true;
  reader.join();
}

// At the limit the credit of all threads returns to the account, but never while its thread is using it.
TEST_F(Memory, CreditIsUsedOnce) {
  constexpr int kThreads = 4, kRounds = 3000;
  constexpr int64_t kSmall = 4000, kLarge = 20000;  // floats
  int64_t limit = 0, most = -kMiB, least = kMiB;
  std::barrier<> together(kThreads);
  on_threads(kThreads, [&](int i) {
    for (int k = 0; k < kRounds; k++) {
      Tensor(empty(7500));  // its bytes become credit when it is freed
      together.arrive_and_wait();
      if (i == 0) {
        ls_pace p;
        EXPECT_OK(ls_memory_pace(kCpu, &p));
        limit = p.live + 1;
        EXPECT_OK(ls_memory_set_limit(kCpu, limit));
      }
      together.arrive_and_wait();
      std::vector<Tensor> held;
      for (ls_result r{}; r.err == nullptr; ls_error_free(r.err)) {
        r = empty(i % 2 == 0 ? kSmall : kLarge);
        if (r.err == nullptr) held.emplace_back(r.t);
      }
      together.arrive_and_wait();
      if (i == 0) {
        most = std::max(most, live() - limit);
        least = std::min(least, live() - limit);
        EXPECT_OK(ls_memory_set_limit(kCpu, 0));
        ls_pressure_done(nullptr);  // a round that ends with room left enables credit again
      }
      together.arrive_and_wait();
    }
  });
  EXPECT_LE(most, 0) << "bytes beyond the limit";
  EXPECT_GT(least, -(kSmall + 16) * 4) << "bytes that no thread could allocate";
}

// Reports whether threads have credit: a small allocation then reserves more than it takes.
bool have_credit() {
  Tensor t(empty(10));
  ls_memory m;
  ls_pace p;
  EXPECT_OK(ls_memory_stats(kCpu, &m));
  EXPECT_OK(ls_memory_pace(kCpu, &p));
  return p.live > m.allocated;
}

// Threads have credit again as soon as the limit leaves room, or the next time that the pacer has nothing to do.
TEST_F(Memory, CreditReturnsWithoutARound) {
  EXPECT_TRUE(have_credit());
  EXPECT_OK(ls_memory_set_limit(kCpu, 1));
  EXPECT_OK(ls_memory_set_limit(kCpu, 0));
  EXPECT_TRUE(have_credit()) << "after a limit below the live bytes";
  EXPECT_OK(ls_memory_set_limit(kCpu, live() + 8 * kMiB));
  EXPECT_ERR(empty(4 * kMiB).err, LS_ERR_OUT_OF_MEMORY);
  EXPECT_FALSE(have_credit()) << "after an allocation that was refused";
  ASSERT_EQ(ls_pressure_attach(), 1);
  std::thread([] {
    ls_pressure p;
    EXPECT_EQ(ls_pressure_wait(&p, 0), 0);
  }).join();
  ls_pressure_stop();
  EXPECT_TRUE(have_credit()) << "after the pacer's time was over";
}

// The live bytes in the error are those besides the allocation that failed.
TEST_F(Memory, TheErrorOfTheSystemHasTheLiveBytes) {
  ls_memory_exact_peak(1);  // without credit, which counts as live
  for (int64_t floats : {int64_t{11}, int64_t{15000}, kMiB}) {
    EXPECT_OK(ls_memory_empty_cache(kCpu));
    int64_t before = live();
    EXPECT_OK(ls_fault_set(LS_FAULT_SYSTEM, 0, -1, 0, 1));
    auto r = empty(floats);
    EXPECT_OK(ls_fault_set(LS_FAULT_SYSTEM, 0, 0, 0, 0));
    ASSERT_NE(r.err, nullptr) << floats;
    EXPECT_EQ(r.err->live, before) << floats;
    EXPECT_ERR(r.err, LS_ERR_OUT_OF_MEMORY);
  }
  ls_memory_exact_peak(0);
}

// Rounds end with room left while other threads are refused. Credit belongs either to its thread or to the
// account, never to both: TearDown compares the account with the bytes in use.
TEST_F(Memory, RoundsEndWhileOthersReachTheLimit) {
  EXPECT_OK(ls_memory_set_limit(kCpu, live() + 16 * kMiB));
  std::atomic<int> running{2};
  on_threads(4, [&](int i) {
    if (i == 0) {
      while (running != 0) ls_pressure_done(nullptr);
    } else if (i == 1) {
      while (running != 0) EXPECT_ERR(empty(8 * kMiB).err, LS_ERR_OUT_OF_MEMORY);
    } else {
      for (int k = 0; k < 50000; k++) Tensor(empty(10 + k % 5000));
      running--;
    }
  });
}

// For ThreadSanitizer: the allocator, its profile and the waiting threads lock what they share.
TEST_F(Memory, EverythingAtOnce) {
  ls_samples_set_rate(1);
  EXPECT_OK(ls_history_set(100));
  ASSERT_EQ(ls_pressure_attach(), 1);
  std::atomic<bool> stop{false};
  std::thread pacer([&] {
    ls_pressure p;
    while (!stop) {
      if (ls_pressure_wait(&p, 1) == 1) end_round(p, LS_VERDICT_EXHAUSTED);
    }
  });
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; i++) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 60; k++) {
        std::vector<ls_result> some;
        for (int64_t n : {10, 100, 20000, 30000}) some.push_back(empty(n));
        ls_samples_attach(static_cast<uint32_t>(i), some[0].t);
        std::thread([&] { some.push_back(empty(1000)); }).join();
        for (auto &r : some) {
          EXPECT_EQ(r.err, nullptr);
          ls_tensor_free(r.t);
        }
        ls_memory m;
        ls_site sites[16];
        ls_event events[16];
        int64_t freed;
        switch ((i + k) % 6) {
          case 0:
            EXPECT_OK(ls_memory_stats(kCpu, &m));
            break;
          case 1:
            EXPECT_OK(ls_memory_trim(kCpu, 100000, &freed));
            break;
          case 2:
            ls_samples_sites(sites, 16);
            break;
          case 3:
            ls_history_events(events, 16);
            ls_history_live(events, 16);
            break;
          case 4:
            EXPECT_OK(ls_history_set(100));
            ls_pressure_ask();
            break;
          default:
            EXPECT_OK(ls_memory_set_oom_callback([](void *, int32_t, int64_t) -> int32_t { return 0; }, nullptr));
            ls_pressure_attach();
        }
      }
    });
  }
  for (auto &t : threads) t.join();
  stop = true;
  pacer.join();
  ls_pressure_stop();
  ls_samples_set_rate(0);
  EXPECT_OK(ls_history_set(0));
  int64_t freed;
  EXPECT_OK(ls_memory_trim(kCpu, 0, &freed));
}

// Blocks that libtorch's threads allocate during a backward pass are attributed to the caller.
TEST_F(Memory, EngineSamplesOfManyThreads) {
  ls_samples_set_rate(1);
  std::atomic<int> running{2};
  on_threads(4, [&](int i) {
    if (i < 2) pthread_setname_np(pthread_self(), "pt_autograd_0");
    for (int k = 0; i < 2 && running != 0; k++) ls_tensor_free(empty(10 + k % 100).t);
    if (i < 2) return;
    Tensor x = floats({1, 2});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    for (int k = 0; k < 30; k++) {
      Tensor sum(ls_aten_sum_dim_IntList(x));
      EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ls_samples_attach(static_cast<uint32_t>(i), 0);
    }
    running--;
  });
  ls_samples_set_rate(0);
}

TEST_F(DevicesDeathTest, WithoutDevicesThereIsNoName) {
  EXPECT_EXIT(
      {
        if (ls_init() != nullptr) std::exit(90);
        ls_value out[1];
        ls_error *e = ls_device_name(cuda(0), out, 1).err;
        std::exit(e != nullptr && e->code == LS_ERR_ARGUMENT ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(DevicesDeathTest, StartOnce) {
  EXPECT_EXIT(
      {
        begin();
        on_threads(8, [&](int i) { ask(i % 2); });
        std::exit(devices_.starts * 100 + devices_.uses[0] * 10 + devices_.uses[1]);
      },
      ::testing::ExitedWithCode(111), "");
}

TEST_F(DevicesDeathTest, AreSeededWhenTheyAreUsed) {
  EXPECT_EXIT(
      {
        begin();
        if (ls_rng_seed(7) != nullptr || devices_.starts != 0) std::exit(1);
        ask(1);
        if (devices_.seeds[0] != 0 || devices_.seeds[1] != 7) std::exit(2);
        if (ls_rng_seed(8) != nullptr || devices_.seeds[0] != 0 || devices_.seeds[1] != 8) std::exit(3);
        ask(0);
        if (devices_.seeds[0] != 8) std::exit(4);
        // A device that is lost, or that the call finds to be lost, does not keep others from being seeded.
        devices_.broken = 0;
        ls_error *e = ls_rng_seed(9);
        if (e == nullptr || e->code != LS_ERR_DEVICE_LOST || devices_.seeds[1] != 9) std::exit(5);
        ls_error_free(e);
        std::exit(ls_rng_seed(10) == nullptr && devices_.seeds[1] == 10 ? 0 : 6);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(DevicesDeathTest, AreLostOneByOne) {
  EXPECT_EXIT(
      {
        begin();
        if (fail_on_a_device() != LS_ERR_GENERIC) std::exit(1);  // no number is used
        ask(0);
        ask(1);
        if (fail_on_a_device() != LS_ERR_GENERIC) std::exit(2);  // both work
        devices_.broken = 1;
        std::atomic<int> lost{0};
        on_threads(4, [&](int i) {
          if (i == 0) ask(0);
          lost += fail_on_a_device() == LS_ERR_DEVICE_LOST;
        });
        if (lost == 0) std::exit(3);
        if (ask(1) != LS_ERR_DEVICE_LOST) std::exit(4);
        if (ask(0) == LS_ERR_DEVICE_LOST) std::exit(5);
        if (devices_.uses[0] + devices_.uses[1] != 2) std::exit(6);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(DevicesDeathTest, WithoutAStartAllAreLost) {
  EXPECT_EXIT(
      {
        begin();
        devices_.start_fails = true;
        std::atomic<int> lost{0};
        on_threads(4, [&](int i) { lost += ask(i % 2) == LS_ERR_DEVICE_LOST; });
        std::exit(lost * 10 + devices_.starts);
      },
      ::testing::ExitedWithCode(41), "");
}

TEST_F(DevicesDeathTest, MissingDevicesAreErrors) {
  EXPECT_EXIT(
      {
        begin();
        if (ask(7) != LS_ERR_ARGUMENT) std::exit(1);
        ask(0);
        devices_.count_fails = true;
        if (ask(1) != LS_ERR_STD) std::exit(3);
        // A busy device is probed as well.
        devices_.broken = 0;
        std::exit(fail_on_a_device() == LS_ERR_DEVICE_LOST ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace

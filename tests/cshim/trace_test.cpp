// The recorder of operators: its events, and threads that record while others start, stop and read.
// ThreadSanitizer finds races.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "helpers.h"

namespace {

class TraceTest : public ShimTest {
 protected:
  void TearDown() override {
    ls_trace_stop();
    (void)taken();
    ShimTest::TearDown();
  }
  static std::vector<ls_trace_event> taken() {
    std::vector<ls_trace_event> all, chunk(7);
    while (uint64_t n = ls_trace_take(chunk.data(), chunk.size()))
      all.insert(all.end(), chunk.begin(), chunk.begin() + static_cast<int64_t>(n));
    return all;
  }
  // Returns a text of at most 200 bytes.
  static std::string text(uint32_t number) {
    ls_value out[16];
    ls_results r = ls_trace_text(number, out, 16);
    if (std::string e = take(r.err); !e.empty()) return e;
    return {reinterpret_cast<const char *>(&out[1]), out[0].len};
  }
  static ls_tensor made() {
    const float data[4] = {1, 2, 3, 4};
    const int64_t shape[1] = {4};
    return ls_tensor_from_data(kFloat, shape, 1, data, sizeof data).t;
  }
  // Adds a tensor to itself, n times.
  static void add(int n) {
    ls_tensor x = made();
    for (int i = 0; i < n; i++) ls_tensor_free(ls_aten_add_Tensor(x, x).t);
    ls_tensor_free(x);
  }
};

TEST_F(TraceTest, Events) {
  add(1);
  EXPECT_OK(ls_trace_start(LS_TRACE_SHAPES, 100));
  uintptr_t range = 0;
  EXPECT_OK(ls_range_push("around", &range));
  EXPECT_NE(range, 0u);
  ls_tensor x = made();
  ls_result sum = ls_aten_add_Tensor(x, x);
  EXPECT_NE(sum.scope & LS_SCOPE_SAMPLED, 0u);
  ls_tensor y = sum.t;
  ls_samples_attach(7, y);
  ls_range_pop(range);
  ls_trace_stop();
  ls_tensor_free(y);
  ls_tensor_free(x);
  add(1);
  bool found = false, around = false;
  for (const auto &e : taken()) {
    EXPECT_LE(e.start_ns, e.end_ns);
    if (text(e.name) == "around") {
      around = true;
      EXPECT_EQ(e.kind, LS_TRACE_RANGE);
      EXPECT_EQ(e.depth, 0u);
      EXPECT_EQ(e.site, LS_NO_SITE);
    } else if (text(e.name) == "aten::add") {
      EXPECT_FALSE(found) << "add is recorded twice";
      found = true;
      EXPECT_EQ(e.kind, LS_TRACE_OPERATOR);
      EXPECT_EQ(e.depth, 1u);
      EXPECT_EQ(e.site, 7u);
      EXPECT_EQ(e.inside, 0);
      EXPECT_EQ(e.bytes, 16);
      EXPECT_EQ(text(e.shapes), "[[4], [4], []]");
    }
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(around);
  EXPECT_EQ(ls_trace_dropped(), 0u);
  EXPECT_NE(text(0), "");
  EXPECT_NE(text(1000000), "");
}

TEST_F(TraceTest, Room) {
  EXPECT_OK(ls_trace_start(0, 3));
  add(5);
  EXPECT_EQ(taken().size(), 3u);
  EXPECT_GE(ls_trace_dropped(), 2u);
  EXPECT_OK(ls_trace_start(0, 0));
  add(1);
  EXPECT_TRUE(taken().empty());
}

// A range that began before the recording is no event, and ends without harm.
TEST_F(TraceTest, RangesAcrossRecordings) {
  uintptr_t outer = 0, inner = 0;
  EXPECT_OK(ls_range_push("outer", &outer));
  EXPECT_EQ(outer, 0u);
  EXPECT_OK(ls_trace_start(0, 100));
  EXPECT_OK(ls_range_push("inner", &inner));
  EXPECT_OK(ls_trace_start(0, 100));
  ls_range_pop(inner);
  ls_range_pop(outer);
  EXPECT_TRUE(taken().empty());
}

TEST_F(TraceTest, NVTXNeedsADevice) {
  EXPECT_ERR(ls_nvtx_set(1), LS_ERR_ARGUMENT);
  EXPECT_OK(ls_nvtx_set(0));
}

// An event for which there is no memory is counted, and its operator succeeds.
TEST_F(TraceTest, WithoutMemory) {
  constexpr size_t kAdds = 12;
  bool failed = true, dropped = false;
  for (int64_t k = 0; failed; k++) {
    EXPECT_OK(ls_trace_start(LS_TRACE_SHAPES, 1000));
    std::thread([&] {  // the record of a thread is made with its first event
      Tensor x(made());
      ls_trace_stop();
      EXPECT_OK(ls_trace_start(LS_TRACE_SHAPES, 1000));
      size_t sums = 0;
      {
        Fault f(LS_FAULT_SHIM, k, 1);
        for (size_t i = 0; i < kAdds; i++) {
          ls_result sum = ls_aten_add_Tensor(x, x);
          ls_tensor_free(sum.t);
          sums += sum.err == nullptr;
          ls_error_free(sum.err);
        }
        failed = f.failed() != 0;
      }
      ls_trace_stop();
      if (sums == kAdds) {
        const size_t lost = ls_trace_dropped();
        dropped |= lost > 0;
        EXPECT_EQ(taken().size() + lost, kAdds) << "fault " << k;
      }
    })
        .join();
  }
  EXPECT_TRUE(dropped);
}

TEST_F(TraceTest, Threads) {
  constexpr int kRounds = 40;
  std::atomic<int> running{4};
  std::atomic<bool> seen{false};  // an event: the main thread may have to wait for a processor
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 4; i++) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < kRounds || (!seen && n < 100 * kRounds); n++) {
        std::thread([i] {  // threads that end while their events are left
          add(3);
          ls_samples_attach(i, 0);
        })
            .join();
        add(3);
        ls_samples_attach(i, 0);
      }
      running--;
    });
  }
  size_t events = 0;
  for (int n = 0; running > 0; n++) {
    EXPECT_OK(ls_trace_start(n % 2 == 0 ? 0 : LS_TRACE_SHAPES, 1000));
    std::this_thread::yield();
    for (const auto &e : taken()) {
      events++;
      seen = true;
      EXPECT_EQ(text(e.name).substr(0, 6), "aten::");
      EXPECT_TRUE(e.site < 4 || e.site == LS_NO_SITE) << e.site;
    }
    (void)ls_trace_dropped();
    ls_trace_stop();
    (void)ls_nvtx_set(0);
  }
  for (auto &t : threads) t.join();
  EXPECT_GT(events, 0u);
  EXPECT_OK(ls_trace_start(0, 1000));
  add(2);
  ls_trace_stop();
  EXPECT_GE(taken().size(), 2u);
}

// Threads whose backward passes call back, others that start and stop, and one that reads.
TEST_F(TraceTest, ThreadsThatCallBackAndStop) {
  static const ls_callbacks callbacks{[](uint64_t, ls_tensor, ls_tensor *) -> uint64_t {
                                        add(1);
                                        return 0;
                                      },
                                      nullptr, nullptr};
  ls_callbacks_set(&callbacks);
  std::atomic<int> running{4};
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < 2; i++) {
    threads.emplace_back([&, i] {
      for (int n = 0; n < 400; n++) {
        Tensor x(made());
        EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
        uint32_t slot;
        EXPECT_OK(ls_hook_register(x, 1, &slot));
        Tensor sum(ls_aten_sum_dim_IntList(x));
        EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
        ls_samples_attach(i, 0);
      }
      running--;
    });
    threads.emplace_back([&, i] {
      for (int n = 0; n < 300; n++) {
        EXPECT_OK(ls_trace_start(i, 1000));
        std::this_thread::yield();
        ls_trace_stop();
      }
      running--;
    });
  }
  threads.emplace_back([&] {
    while (running > 0) (void)text(1);
  });
  while (running > 0)
    for (const auto &e : taken()) EXPECT_TRUE(e.site < 2 || e.site == LS_NO_SITE) << e.site;
  for (auto &t : threads) t.join();
}

// The first trace of a process registers the callbacks that ls_trace_stop reads.
TEST(TraceDeathTest, StopsWhileTheFirstStarts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (ls_init() != nullptr) std::exit(90);
        std::thread starts([] {
          if (ls_trace_start(0, 100) != nullptr) std::exit(1);
        });
        std::thread stops([] { ls_trace_stop(); });
        starts.join();
        stops.join();
        ls_trace_stop();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace

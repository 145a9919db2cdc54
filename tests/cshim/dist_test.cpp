// Groups of one rank and their reducers.
#include <atomic>

#include "helpers.h"

namespace {

class Dist : public ShimTest {
 protected:
  void SetUp() override {
    ShimTest::SetUp();
    EXPECT_OK(ls_store_hash(&store_));
    EXPECT_OK(ls_group_new(store_, 0, 1, LS_BACKEND_GLOO, 10000, 10000, nullptr, nullptr, &group_));
  }
  void TearDown() override {
    ls_group_free(group_);
    ls_store_free(store_);
    ShimTest::TearDown();
  }
  static Tensor leaf() {
    Tensor x = floats({1, 2, 3});
    EXPECT_OK(ls_tensor_set_requires_grad(x, 1));
    return x;
  }
  ls_reducer reducer(ls_tensor x) const {
    ls_reducer_options o{1 << 20, 1 << 20, 0, 0, 0, LS_COMPRESS_NONE, 0, 0, 0, 0};
    ls_reducer r = 0;
    EXPECT_OK(ls_reducer_new(group_, &x, 1, nullptr, "x", &o, &r));
    return r;
  }
  // A forward and a backward pass of the sum of x.
  static void pass(ls_reducer r, ls_tensor x) {
    EXPECT_OK(ls_reducer_before_forward(r, 1, 0, 0));
    Tensor sum(ls_aten_sum_dim_IntList(x));
    EXPECT_OK(ls_reducer_after_forward(r, 1, &sum.h, 1));
    EXPECT_OK(ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0));
  }
  ls_store store_ = 0;
  ls_group group_ = 0;
};

TEST_F(Dist, ArgumentsThatCannotBe) {
  ls_store store;
  ls_group group;
  ls_work work;
  int32_t port;
  ls_tcp_store tcp{"127.0.0.1", -1, 1, 0, 0, 1000};
  EXPECT_ERR(ls_store_tcp(&tcp, &store, &port), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_store_set(0, "key", "", 0), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_store_wait(store_, "missing", 10, nullptr), LS_ERR_TIMEOUT);
  EXPECT_ERR(ls_group_new(store_, 0, 0, LS_BACKEND_GLOO, 1000, 1000, nullptr, nullptr, &group), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_group_new(store_, 1, 1, LS_BACKEND_GLOO, 1000, 1000, nullptr, nullptr, &group), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_group_new(store_, 0, 1, 0, 1000, 1000, nullptr, nullptr, &group), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_group_abort(0), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_work_wait(0, &port), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_reducer_join_forward(0), LS_ERR_ARGUMENT);
  Tensor x = floats({1, 2});
  ls_collective none{99, 0, 0, 0}, broadcast{LS_BROADCAST, 0, 1, 0}, reduce{LS_ALL_REDUCE, 99, 0, 0};
  for (const auto *c : {&none, &broadcast, &reduce})
    EXPECT_ERR(ls_group_start(group_, c, &x.h, 1, nullptr, 0, nullptr, 0, nullptr, 0, &work), LS_ERR_ARGUMENT);
  ls_collective scatter{LS_REDUCE_SCATTER_ONE, 0, 0, 0};
  Tensor scalar = floats({1}, {}), row = floats({1, 2}, {1, 2});
  for (ls_tensor in : {scalar.h, row.h})
    EXPECT_ERR(ls_group_start(group_, &scatter, in == scalar.h ? &scalar.h : &x.h, 1, &in, 1, nullptr, 0, nullptr,
                              0, &work),
               LS_ERR_ARGUMENT);
  ls_reducer_options o{1 << 20, 1 << 20, 0, 0, 0, LS_COMPRESS_NONE, 0, 0, 0, 0};
  ls_reducer r;
  EXPECT_ERR(ls_reducer_new(group_, nullptr, 0, nullptr, "", &o, &r), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_reducer_new(group_, &x.h, 1, nullptr, "x", &o, &r), LS_ERR_ARGUMENT);
  Tensor y = leaf();
  o.compression = 99;
  EXPECT_ERR(ls_reducer_new(group_, &y.h, 1, nullptr, "y", &o, &r), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_group_broadcast_coalesced(group_, &x.h, 1, 1), LS_ERR_ARGUMENT);
}

TEST_F(Dist, AReducerAverages) {
  Tensor x = leaf();
  ls_reducer r = reducer(x);
  for (int i = 0; i < 3; i++) pass(r, x);
  int64_t times[4] = {-1, -1, -1, -1};
  EXPECT_OK(ls_reducer_times(r, times));
  EXPECT_GE(times[1], 0);
  ls_reducer_free(r);
  Tensor g(ls_tensor_grad(x));
  EXPECT_NE(g.h, 0u);
}

// Reducers are freed while other threads run backward passes.
TEST_F(Dist, ReducersAreFreedBesidePasses) {
  std::latch begin(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; i++) {
    threads.emplace_back([&] {
      begin.arrive_and_wait();
      for (int k = 0; k < 30; k++) {
        Tensor x = leaf();
        ls_reducer r = reducer(x);
        pass(r, x);
        ls_reducer_free(r);
      }
    });
  }
  for (auto &t : threads) t.join();
}

}  // namespace

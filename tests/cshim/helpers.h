// Shared by the shim's tests. Every test ends with the bytes and handles that it began with.
#pragma once

#include <gtest/gtest.h>

#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "linstock.h"

constexpr int32_t kCpu = 0xff;
constexpr int32_t kFloat = 6, kDouble = 7, kLong = 4;

inline std::string take(ls_error *e) {
  if (e == nullptr) return "";
  std::string s = e->message;
  if (s.empty()) s = "(an error without a message)";
  ls_error_free(e);
  return s;
}

#define EXPECT_OK(call) EXPECT_EQ(take(call), "")
#define EXPECT_ERR(call, code_)                \
  do {                                         \
    ls_error *e_ = (call);                     \
    ASSERT_NE(e_, nullptr) << #call;           \
    EXPECT_EQ(e_->code, code_) << e_->message; \
    EXPECT_NE(std::string(e_->message), "");   \
    ls_error_free(e_);                         \
  } while (0)

class ShimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(ls_init(), nullptr);
    ASSERT_EQ(ls_memory_stats(kCpu, &before_), nullptr);
  }
  void TearDown() override {
    uint64_t ids[64];
    while (ls_dropped_take(ids, 64) != 0) {
    }
    // At a limit threads have no credit, so the account equals the bytes in use.
    ASSERT_EQ(ls_memory_set_limit(kCpu, 1), nullptr);
    ls_memory after;
    ASSERT_EQ(ls_memory_stats(kCpu, &after), nullptr);
    ls_pace account;
    ASSERT_EQ(ls_memory_pace(kCpu, &account), nullptr);
    ASSERT_EQ(ls_memory_set_limit(kCpu, 0), nullptr);
    ls_pressure_done(nullptr);
    EXPECT_EQ(account.live, after.allocated) << "bytes of the account";
    EXPECT_EQ(after.allocated, before_.allocated) << "native bytes";
    EXPECT_EQ(after.handles, before_.handles) << "handles";
  }
  ls_memory before_{};
};

// Ends a round with the same verdict for all waiting threads.
inline void end_round(ls_pressure &p, int32_t verdict) {
  for (int32_t i = 0; i < p.count; i++) p.waiters[i].verdict = verdict;
  ls_pressure_done(&p);
}

// A handle that frees itself.
struct Tensor {
  ls_tensor h = 0;
  Tensor() = default;
  explicit Tensor(ls_result r) : h(r.t) { EXPECT_EQ(take(r.err), ""); }
  explicit Tensor(ls_tensor t) : h(t) {}
  Tensor(Tensor &&o) noexcept : h(o.h) { o.h = 0; }
  Tensor &operator=(Tensor &&o) noexcept {
    std::swap(h, o.h);
    return *this;
  }
  ~Tensor() { ls_tensor_free(h); }
  operator ls_tensor() const { return h; }
};

inline Tensor floats(const std::vector<float> &v, std::vector<int64_t> shape = {-1}) {
  if (shape == std::vector<int64_t>{-1}) shape = {static_cast<int64_t>(v.size())};
  return Tensor(ls_tensor_from_data(kFloat, shape.data(), shape.size(), v.data(), v.size() * 4));
}

inline std::vector<float> values(ls_tensor t) {
  ls_meta m;
  EXPECT_EQ(take(ls_tensor_meta(t, &m)), "");
  std::vector<float> v(static_cast<size_t>(m.numel));
  EXPECT_EQ(take(ls_tensor_copy_out(t, kFloat, v.data(), v.size() * 4)), "");
  return v;
}

constexpr int64_t kForever = -1;

// Arms a fault point on this thread for its own lifetime.
struct Fault {
  int32_t point;
  Fault(int32_t p, int64_t skip, int64_t times, int32_t kind = 0) : point(p) {
    EXPECT_OK(ls_fault_set(p, skip, times, kind, 1));
  }
  ~Fault() { EXPECT_OK(ls_fault_set(point, 0, 0, 0, 0)); }
  int64_t failed() const {
    int64_t seen, failed;
    ls_fault_counts(point, &seen, &failed);
    return failed;
  }
};

// Returns the code of an error and frees the error; 0: none.
inline int32_t code(ls_error *e) {
  if (e == nullptr) return 0;
  int32_t c = e->code;
  EXPECT_NE(std::string(e->message), "");
  ls_error_free(e);
  return c;
}

inline ls_value T(ls_tensor t) { return {LS_TENSOR, 0, {.t = t}}; }
inline ls_value I(int64_t i) { return {LS_INT, 0, {.i = i}}; }
inline ls_value U(uint64_t u) { return {LS_UINT, 0, {.i = static_cast<int64_t>(u)}}; }
inline ls_value F(double f) { return {LS_FLOAT, 0, {.f = f}}; }
inline ls_value B(bool b) { return {LS_BOOL, 0, {.i = b}}; }
inline ls_value None() { return {LS_NONE, 0, {.i = 0}}; }
inline ls_value Default() { return {LS_DEFAULT, 0, {.i = 0}}; }

inline ls_op op(const char *name, const char *overload = "") {
  ls_op o = 0;
  EXPECT_EQ(take(ls_op_find(name, overload, &o).err), "");
  return o;
}

inline Tensor call(const char *name, const char *overload, std::vector<ls_value> args) {
  ls_value out[1] = {};
  ls_results r = ls_op_call(op(name, overload), args.data(), args.size(), out, 1, 0);
  EXPECT_EQ(take(r.err), "");
  EXPECT_EQ(r.spill, nullptr);
  return Tensor(out[0].u.t);
}

// Calls f on n threads, which begin together.
template <class F>
void on_threads(int n, F f) {
  std::vector<std::thread> threads;
  std::latch all(n);
  for (int i = 0; i < n; i++) {
    threads.emplace_back([&, i] {
      all.arrive_and_wait();
      f(i);
    });
  }
  for (auto &t : threads) t.join();
}

// A list value: header slot and inline elements.
template <class E>
void append(std::vector<ls_value> &to, uint32_t tag, const std::vector<E> &elements) {
  static_assert(sizeof(E) == 8);
  to.push_back({tag, static_cast<uint32_t>(elements.size()), {.i = 0}});
  size_t at = to.size(), slots = (elements.size() * 8 + 15) / 16;
  to.resize(at + slots);
  if (!elements.empty()) std::copy(elements.begin(), elements.end(), reinterpret_cast<E *>(&to[at]));
}

// Fake device types: tests how the core handles devices, without CUDA.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../../cshim/src/device.h"
#include "helpers.h"

// The core remembers lost devices for the lifetime of the process, so each test has its own.
struct FakeDevices : ls::Devices {
  int starts = 0, uses[2] = {}, broken = -1;
  uint64_t seeds[2] = {};
  bool start_fails = false, count_fails = false, begin_fails = false, end_fails = false;
  std::atomic<int> graphs{0}, replays{0}, emptied{0};
  inline static std::atomic<int> pinned_freed{0};
  int64_t captured = -1;  // the stream that is captured
  std::atomic<bool> busy{false};

  int32_t count() override {
    if (count_fails) throw std::runtime_error("no count");
    return 2;
  }
  std::string name(int32_t) override { return "fake"; }
  ls::DeviceMemory memory(int32_t) override { return {}; }
  void reset_peak(int32_t) override {}
  void empty_cache(int32_t) override { emptied++; }
  void capacity(int32_t, int64_t *free, int64_t *total) override {
    if (free != nullptr) *free = 0;
    if (total != nullptr) *total = 0;
  }
  double memory_fraction() override { return 1; }
  void empty_pinned_cache() override {}
  bool settle(int32_t, bool) override { return false; }
  void limit_changed(int32_t) override {}
  void synchronize(int32_t) override {}
  bool capturing() override { return false; }
  bool capturing(const c10::Stream &stream) override { return stream.id() == captured; }
  struct FakeGraph : ls::Graph {
    FakeDevices &of;
    explicit FakeGraph(FakeDevices &d) : of(d) { of.graphs++; }
    ~FakeGraph() override { of.graphs--; }
    void begin(ls::PoolId) override {
      if (of.begin_fails) throw std::runtime_error("no begin");
    }
    bool valid() override { return true; }
    ls::PoolId end() override {
      if (of.end_fails) throw std::runtime_error("no end");
      return {7, 8};
    }
    void replay() override { of.replays++; }
  };
  std::unique_ptr<ls::Graph> new_graph() override { return std::make_unique<FakeGraph>(*this); }
  c10::DeleterFnPtr pinned_deleter() override { return free_pinned; }
  static void free_pinned(void *) { pinned_freed++; }
  std::string snapshot() override { return ""; }
  c10::intrusive_ptr<c10d::Backend> new_backend(
      const c10::intrusive_ptr<c10d::Store> &, int, int, std::chrono::milliseconds,
      std::function<void(const c10::intrusive_ptr<c10d::Work> &)>) override {
    throw std::runtime_error("no backend");
  }
  void start() override {
    alone();
    starts++;
    if (start_fails) throw std::runtime_error("no start");
  }
  void use(int32_t index) override {
    alone();
    uses[index]++;
  }
  void seed(int32_t index, uint64_t seed) override {
    if (index == broken) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700, "no seed");
    seeds[index] = seed;
  }
  int32_t alive(int32_t index) noexcept override {
    alone();
    return index == broken ? 700 : 0;
  }
  int32_t current() noexcept override { return 0; }
  // Returns once two threads are here at the same time.
  void alone() noexcept {
    if (busy.exchange(true)) std::_Exit(70);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    busy = false;
  }
};

inline constexpr int32_t cuda(int32_t index) { return 1 << 8 | index; }

// Returns the code of the error when a device's generator is requested. The device has no generator, which is
// the error if nothing fails earlier.
inline int32_t ask(int32_t index) {
  ls_result r = ls_rng_state(cuda(index));
  int32_t code = r.err == nullptr ? 0 : r.err->code;
  ls_error_free(r.err);
  return code;
}

// Returns the code of an operator's error whose text is CUDA's.
inline int32_t fail_on_a_device() {
  std::vector<ls_value> args{I(0)};
  const std::string text = "CUDA error: a test's";
  args.push_back({LS_STRING, static_cast<uint32_t>(text.size()), {.i = 0}});
  size_t at = args.size();
  args.resize(at + (text.size() + 15) / 16);
  std::copy(text.begin(), text.end(), reinterpret_cast<char *>(&args[at]));
  ls_op assertion = op("aten::_assert_scalar");
  ls_value out[1];
  ls_results r = ls_op_call(assertion, args.data(), args.size(), out, 1, 0);
  int32_t code = r.err == nullptr ? 0 : r.err->code;
  ls_error_free(r.err);
  return code;
}

class DevicesDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  FakeDevices devices_;
  void begin() {
    if (ls_init() != nullptr) std::exit(90);
    ls::add_devices(c10::kCUDA, &devices_);
  }
};

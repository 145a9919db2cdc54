// Tests that notice mutants of tests/mutate that no other test can notice, because they need libtorch's own
// types: locks that are held, functions that fail, tensors of fake device types.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include "devices.h"

namespace {
std::atomic<bool> threads_fail{false};
}

// The linker takes this definition before libtorch's.
void at::set_num_threads(int n) {
  if (threads_fail) throw std::bad_alloc();
  static auto real = reinterpret_cast<void (*)(int)>(dlsym(RTLD_NEXT, "_ZN2at15set_num_threadsEi"));
  real(n);
}

namespace {

class Guards : public ShimTest {};

TEST_F(Guards, ThreadsThatCannotBeSet) {
  int32_t before = ls_threads_get();
  threads_fail = true;
  EXPECT_OK(ls_threads_set(before + 1));
  EXPECT_EQ(ls_threads_get(), before);
  threads_fail = false;
  EXPECT_OK(ls_threads_set(before));
}

// Reports whether f waits for the mutex: it has not ended after some time, and ends once the mutex is unlocked.
template <class F>
bool waits_for(std::mutex &mutex, F &&f) {
  f();
  std::atomic<int> stage{0};
  std::unique_lock<std::mutex> lock(mutex);
  std::thread t([&] {
    stage = 1;
    f();
    stage = 2;
  });
  while (stage == 0) std::this_thread::yield();
  for (int i = 0; i < 40 && stage == 1; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  bool waited = stage == 1;
  lock.unlock();
  t.join();
  return waited;
}

std::mutex &generators() {
  at::Generator g = at::globalContext().defaultGenerator(c10::DeviceType::CPU);
  return g.mutex();
}

TEST_F(Guards, TheGeneratorIsLocked) {
  Tensor state(ls_rng_state(kCpu));
  EXPECT_TRUE(waits_for(generators(), [] { ls_tensor_free(ls_rng_state(kCpu).t); }));
  EXPECT_TRUE(waits_for(generators(), [&] { EXPECT_OK(ls_rng_set_state(kCpu, state)); }));
  constexpr int32_t kBFloat16 = 15;
  int64_t two = 2;
  uint16_t bits[2] = {};
  Tensor from = floats({1, 2}), to(ls_tensor_from_data(kBFloat16, &two, 1, bits, sizeof bits));
  EXPECT_TRUE(waits_for(generators(), [&] { EXPECT_OK(ls_round_stochastic(to, from)); }));
}

TEST_F(Guards, AnOwnGeneratorIsLocked) {
  ls_generator g;
  EXPECT_OK(ls_generator_new(kCpu, &g));
  auto &own = reinterpret_cast<c10::GeneratorImpl *>(g)->mutex_;
  uint64_t seed;
  EXPECT_TRUE(waits_for(own, [&] { EXPECT_OK(ls_generator_seed(g, 7)); }));
  EXPECT_TRUE(waits_for(own, [&] { EXPECT_OK(ls_generator_current_seed(g, &seed)); }));
  EXPECT_EQ(seed, 7u);
  EXPECT_TRUE(waits_for(own, [&] { EXPECT_OK(ls_generator_seed_random(g, &seed)); }));
  ls_generator_free(g);
  EXPECT_ERR(ls_generator_seed(0, 7), LS_ERR_ARGUMENT);
}

// A level that libtorch refuses, or that it has ended, does not prevent the next.
TEST_F(Guards, LevelsOfOthers) {
  using torch::autograd::ForwardADLevel;
  const ls_mode forward = {LS_MODE_FORWARD, 1, 0, 0, 0};
  auto taken = ForwardADLevel::get_next_idx();
  EXPECT_ERR(ls_mode_push(forward), LS_ERR_GENERIC);
  ForwardADLevel::release_idx(taken);
  EXPECT_OK(ls_mode_push(forward));
  ForwardADLevel::release_idx(taken);
  ls_mode_pop();
  EXPECT_OK(ls_mode_push(forward));
  ls_mode_pop();
}

struct BrokenDevices final : FakeDevices {
  void start() override { throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 46, "no start"); }
};
struct BusyDevices final : FakeDevices {
  void use(int32_t) override { throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 46, "no use"); }
};

void arm() {
  if (ls_fault_set(LS_FAULT_SHIM, 0, -1, 0, 1) != nullptr) std::exit(91);
}
void disarm() {
  if (ls_fault_set(LS_FAULT_SHIM, 0, 0, 0, 0) != nullptr) std::exit(92);
}

// When libtorch's CUDA cannot be initialized, every CUDA device reports its error; everything else works.
TEST_F(DevicesDeathTest, TheErrorOfAStartIsKept) {
  EXPECT_EXIT(
      {
        if (ls_init() != nullptr) std::exit(90);
        BrokenDevices broken;
        ls::add_devices(c10::kCUDA, &broken);
        ls_error *e = ls_rng_state(cuda(1)).err;
        if (e == nullptr || e->code != LS_ERR_DEVICE_LOST || e->device_error != 46) std::exit(1);
        // The CPU's generator is seeded nevertheless, under its lock.
        if (!waits_for(generators(), [] { ls_rng_seed(7); })) std::exit(2);
        // A tensor whose graph cannot be searched for devices, for lack of memory, is not freed.
        Tensor x = floats({1, 2});
        if (ls_tensor_set_requires_grad(x, 1) != nullptr) std::exit(3);
        ls_tensor y = ls_aten_mul_Tensor(x, x).t;
        arm();
        ls_tensor_free(y);
        disarm();
        ls_error_free(e);
        std::_Exit(0);  // LeakSanitizer ignores tensors that are leaked on purpose
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(DevicesDeathTest, AnErrorThatIsNotStickyIsADeviceError) {
  EXPECT_EXIT(
      {
        if (ls_init() != nullptr) std::exit(90);
        BusyDevices busy;
        ls::add_devices(c10::kCUDA, &busy);
        ls_error *e = ls_rng_state(cuda(0)).err;
        bool right = e != nullptr && e->code == LS_ERR_DEVICE && e->device_error == 46;
        ls_error_free(e);
        std::exit(right ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

// A device allocation is admitted before its allocator is called: it waits for a sweep that frees something,
// and fails after one that frees nothing.
TEST_F(DevicesDeathTest, AnAllocationWaitsBeforeItsDevice) {
  EXPECT_EXIT(
      {
        begin();
        constexpr int64_t kRoom = 1 << 20;
        if (ls_memory_set_limit(cuda(0), kRoom) != nullptr || ls::limit_on_device(1) != kRoom) std::exit(1);
        if (ls::limit_on_device(2) != 0 || ls::limit_on_device(-1) != 0) std::exit(2);
        if (ls_pressure_attach() != 1) std::exit(3);
        std::atomic<bool> over{false};
        std::atomic<int> rounds{0};
        std::atomic<int64_t> garbage{0};
        std::thread pacer([&] {
          while (!over) {
            ls_pressure p;
            if (ls_pressure_wait(&p, 1) != 1) continue;
            if (p.count != 1 || p.waiters[0].device != cuda(0) || p.waiters[0].reason < LS_WAIT_LIMIT)
              std::_Exit(4);
            rounds++;
            ls::dismiss_from_device(1, garbage.exchange(0));
            end_round(p, LS_VERDICT_EXHAUSTED);
          }
        });
        auto live = [] {
          ls_pace now;
          if (ls_memory_pace(cuda(0), &now) != nullptr) std::exit(5);
          return now.live;
        };
        ls::admit_on_device(1, kRoom);
        if (rounds != 0 || live() != kRoom) std::exit(6);
        // An admitted block is counted once, including what the allocator adds to its size.
        ls::count_on_device(1, nullptr, kRoom, kRoom, nullptr);
        if (live() != kRoom) std::exit(7);
        garbage = kRoom;
        ls::admit_on_device(1, kRoom / 2);
        if (rounds != 1 || live() != kRoom / 2) std::exit(8);
        ls::count_on_device(1, nullptr, kRoom / 2 + 512, kRoom / 2, nullptr);
        ls::count_on_device(1, nullptr, -512, 0, nullptr);
        if (live() != kRoom / 2) std::exit(9);
        try {
          ls::admit_on_device(1, kRoom);
          std::exit(10);
        } catch (const c10::OutOfMemoryError &) {
        }
        if (rounds != 2 || live() != kRoom / 2) std::exit(11);
        // When the device itself is full, the allocation is retried only if something was freed since the round
        // before.
        garbage = 512;
        ls::Rounds tries;
        auto again = [&] { return ls::sweep_for_device(1, kRoom, tries); };
        if (!again() || !again() || again()) std::exit(12);
        over = true;
        pacer.join();
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// libtorch's engine must not be started again after its threads have failed to start.
TEST(EngineDeathTest, IsNotStartedAgainAfterAFailure) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (ls_init() != nullptr) std::exit(90);
        ls_callbacks cb{};
        cb.hook = [](uint64_t, ls_tensor, ls_tensor *) -> uint64_t {
          throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
        };
        ls_callbacks_set(&cb);
        auto pass = [](bool hooked) {
          Tensor x = floats({1, 2});
          uint32_t slot;
          if (ls_tensor_set_requires_grad(x, 1) != nullptr) std::exit(91);
          if (hooked && ls_hook_register(x, 1, &slot) != nullptr) std::exit(92);
          Tensor sum = call("aten::sum", "", {T(x)});
          ls_error *e = ls_autograd_backward(&sum.h, 1, nullptr, nullptr, 0, 0, 0);
          int32_t code = e == nullptr ? 0 : e->code;
          ls_error_free(e);
          return code;
        };
        if (pass(true) != LS_ERR_STD) std::exit(1);
        std::exit(pass(false) == LS_ERR_ARGUMENT ? 0 : 2);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace

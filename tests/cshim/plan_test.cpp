// Recordings of what is allocated on the meta device (linstock/plan.h).
#include <ATen/record_function.h>
#include <dlfcn.h>

#include <atomic>

#include "helpers.h"

namespace {
std::atomic<bool> callbacks_fail{false};
}

// The linker takes this definition before libtorch's.
at::CallbackHandle at::addThreadLocalCallback(at::RecordFunctionCallback cb) {
  if (callbacks_fail) throw std::bad_alloc();
  static auto real = reinterpret_cast<at::CallbackHandle (*)(at::RecordFunctionCallback)>(
      dlsym(RTLD_NEXT, "_ZN2at22addThreadLocalCallbackENS_22RecordFunctionCallbackE"));
  return real(cb);
}

namespace {

constexpr int32_t kMeta = 14 << 8 | 0xff;

class Plans : public ShimTest {};

TEST_F(Plans, InvalidCallsAreErrors) {
  ls_value out[16];
  EXPECT_ERR(ls_plan_op(0, out, 16).err, LS_ERR_ARGUMENT);
  callbacks_fail = true;
  EXPECT_ERR(ls_plan_begin(), LS_ERR_OUT_OF_MEMORY);
  callbacks_fail = false;
  EXPECT_OK(ls_plan_begin());
  EXPECT_ERR(ls_plan_begin(), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_plan_op(1000, out, 16).err, LS_ERR_ARGUMENT);
  ls_plan_end();
}

// Other threads free what this one records and reads.
TEST_F(Plans, Threads) {
  constexpr uint64_t kSums = 2000;
  Tensor cpu = floats({1, 2, 3, 4}), x(ls_tensor_to(cpu, -1, kMeta, -1, 0));
  EXPECT_OK(ls_plan_begin());
  std::atomic<ls_tensor> made[3] = {};
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (auto &slot : made) {
    threads.emplace_back([&] {
      while (!over) ls_tensor_free(slot.exchange(0));
    });
  }
  for (uint64_t n = 0; n < kSums; n++) {
    ls_tensor_free(made[n % 3].exchange(ls_aten_add_Tensor(x, x).t));
    ls_plan_block first[4];
    EXPECT_EQ(ls_plan_blocks(first, 4), n + 1);
    EXPECT_EQ(first[0].dtype, kFloat);
    EXPECT_LE(ls_plan_read().live, 8 * ls_plan_rounded(16));
  }
  over = true;
  for (auto &t : threads) t.join();
  for (auto &slot : made) ls_tensor_free(slot.exchange(0));
  ls_plan_totals total = ls_plan_read();
  EXPECT_EQ(total.live, 0);
  EXPECT_EQ(total.total, static_cast<int64_t>(kSums) * ls_plan_rounded(16));
  EXPECT_EQ(total.position, 2 * static_cast<int64_t>(kSums));
  ls_plan_end();
}

}  // namespace

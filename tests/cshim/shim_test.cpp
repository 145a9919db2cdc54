#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "helpers.h"

extern "C" int linstock_c_test(void);

TEST(PlainC, FitsALine) { EXPECT_EQ(linstock_c_test(), 0) << "line of c_test.c"; }

TEST(Versions, AgreeWithTheLoadedLibrary) {
  EXPECT_EQ(ls_abi(), static_cast<uint32_t>(LS_ABI));
  EXPECT_EQ(ls_torch_version_built() >> 48, ls_torch_version_loaded() >> 48);
}

namespace {
std::atomic<int> cpu_detections{0};
}

// Stands in front of MKL's function, which its vector functions call until one of them has run.
extern "C" __attribute__((visibility("default"))) int mkl_serv_vml_cpu_detect() {
  cpu_detections++;
  static auto detect = reinterpret_cast<int (*)()>(dlsym(RTLD_NEXT, "mkl_serv_vml_cpu_detect"));
  return detect();
}

// While several threads make the first calls of MKL's vector functions, one may take a kernel of low accuracy.
TEST(VectorKernelsDeathTest, AreChosenBeforeThreadsCompute) {
  if (dlsym(RTLD_DEFAULT, "vmsSqrt") == nullptr) GTEST_SKIP() << "this libtorch has no MKL";
  EXPECT_EXIT(
      {
        if (cpu_detections != 0) std::exit(90);
        if (ls_init() != nullptr) std::exit(91);
        std::exit(cpu_detections);
      },
      ::testing::ExitedWithCode(1), "");
}

class Tensors : public ShimTest {};

TEST_F(Tensors, RoundTrip) {
  Tensor t = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(values(t), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  ls_meta m;
  EXPECT_OK(ls_tensor_meta(t, &m));
  EXPECT_EQ(m.ndim, 2);
  EXPECT_EQ(m.sizes[1], 3);
  EXPECT_EQ(m.strides[0], 3);
  EXPECT_EQ(m.dtype, kFloat);
  EXPECT_TRUE(m.is_contiguous);
  EXPECT_TRUE(m.counted);
}

TEST_F(Tensors, CopyOutOfAView) {
  Tensor t = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  Tensor tr = call("aten::t", "", {T(t)});
  EXPECT_EQ(values(tr), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST_F(Tensors, WrongSizesAreRefused) {
  float data[6] = {};
  int64_t negative[2] = {-2, -3}, huge[3] = {INT64_MAX, INT64_MAX, 4}, small[1] = {5};
  EXPECT_ERR(ls_tensor_from_data(kFloat, negative, 2, data, 24).err, LS_ERR_ARGUMENT);
  int64_t none[2] = {0, -1};
  EXPECT_ERR(ls_tensor_from_data(kFloat, none, 2, data, 0).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_from_data(kFloat, huge, 3, data, 24).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_from_data(kFloat, small, 1, data, 24).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_from_data(-1, small, 1, data, 20).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_from_data(9999, small, 1, data, 20).err, LS_ERR_ARGUMENT);
  constexpr int32_t kQuint8 = 13;
  EXPECT_ERR(ls_tensor_from_data(kQuint8, small, 1, data, 5).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_from_blob(kQuint8, small, 1, data, 5, nullptr, 0).err, LS_ERR_ARGUMENT);
}

TEST_F(Tensors, CopyOutChecksItsBuffer) {
  Tensor t = floats({1, 2});
  float dst[2];
  EXPECT_ERR(ls_tensor_copy_out(t, kFloat, dst, 4), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_copy_out(t, kLong, dst, 8), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_copy_out(0, kFloat, dst, 8), LS_ERR_ARGUMENT);
  Tensor sparse = call("aten::to_sparse", "", {T(t)});
  EXPECT_ERR(ls_tensor_copy_out(sparse, kFloat, dst, 8), LS_ERR_ARGUMENT);
  int64_t two = 2;
  Tensor nowhere(ls_tensor_from_blob(kFloat, &two, 1, nullptr, 8, nullptr, 1));
  EXPECT_ERR(ls_tensor_copy_out(nowhere, kFloat, dst, 8), LS_ERR_ARGUMENT);
}

TEST_F(Tensors, ANullHandleIsAlwaysAnError) {
  ls_meta m;
  ls_value item[2];
  EXPECT_ERR(ls_tensor_meta(0, &m), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_item(0, item), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_to(0, kLong, -1, -1, 0).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_aten_add_Tensor(0, 0).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_aten_relu_(0), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_tensor_set_requires_grad(0, 1), LS_ERR_ARGUMENT);
  ls_tensor_free(0);
  ls_tensors_free(nullptr, 0);
}

TEST_F(Tensors, ItemOfEachKind) {
  ls_value v[2];
  Tensor f = floats({2.5f}, {});
  EXPECT_OK(ls_tensor_item(f, v));
  EXPECT_EQ(v[0].tag, static_cast<uint32_t>(LS_FLOAT));
  EXPECT_EQ(v[0].u.f, 2.5);
  Tensor l(ls_tensor_to(f, kLong, -1, -1, 0));
  EXPECT_OK(ls_tensor_item(l, v));
  EXPECT_EQ(v[0].tag, static_cast<uint32_t>(LS_INT));
  Tensor c(ls_tensor_to(f, 9, -1, -1, 0));
  EXPECT_OK(ls_tensor_item(c, v));
  EXPECT_EQ(v[0].tag, static_cast<uint32_t>(LS_COMPLEX));
  Tensor b(ls_tensor_to(f, 11, -1, -1, 0));
  EXPECT_OK(ls_tensor_item(b, v));
  EXPECT_EQ(v[0].tag, static_cast<uint32_t>(LS_BOOL));
  Tensor two = floats({1, 2});
  EXPECT_ERR(ls_tensor_item(two, v), LS_ERR_ARGUMENT);
}

TEST_F(Tensors, BlobIsDroppedOnce) {
  static float data[4] = {1, 2, 3, 4};
  int64_t shape[1] = {4};
  {
    Tensor t(ls_tensor_from_blob(kFloat, shape, 1, data, 16, nullptr, 77));
    Tensor v = call("aten::slice", "Tensor", {T(t), I(0), I(1), I(3)});
    EXPECT_EQ(values(v), (std::vector<float>{2, 3}));
    ls_meta m;
    EXPECT_OK(ls_tensor_meta(v, &m));
    EXPECT_FALSE(m.counted);
    EXPECT_EQ(ls_dropped_count(), 0u);
  }
  uint64_t ids[4];
  ASSERT_EQ(ls_dropped_take(ids, 4), 1u);
  EXPECT_EQ(ids[0], 77u);
}

TEST_F(Tensors, MemoryIsCounted) {
  ls_memory a, b;
  EXPECT_OK(ls_memory_stats(kCpu, &a));
  {
    Tensor t = floats(std::vector<float>(1 << 20));
    Tensor view = call("aten::view", "", [&] {
      std::vector<ls_value> args{T(t)};
      append<int64_t>(args, LS_INTS, {1024, 1024});
      return args;
    }());
    EXPECT_OK(ls_memory_stats(kCpu, &b));
    EXPECT_GE(b.allocated - a.allocated, 4 << 20);
    EXPECT_LT(b.allocated - a.allocated, (4 << 20) + 65536) << "a view adds nothing";
    EXPECT_EQ(b.handles - a.handles, 2);
  }
  EXPECT_OK(ls_memory_stats(kCpu, &b));
  EXPECT_EQ(b.allocated, a.allocated);
  EXPECT_GE(b.peak, a.allocated + (4 << 20));
  EXPECT_ERR(ls_memory_stats(1 << 8, &b), LS_ERR_ARGUMENT);
  int64_t free, total;
  EXPECT_ERR(ls_memory_capacity(kCpu, &free, &total), LS_ERR_ARGUMENT);
}

TEST_F(Tensors, AHugeAllocationIsOutOfMemory) {
  std::vector<ls_value> args;
  append<int64_t>(args, LS_INTS, {int64_t{1} << 45});
  ls_value out[1];
  ls_pace before, after;
  EXPECT_OK(ls_memory_pace(kCpu, &before));
  EXPECT_ERR(ls_op_call(op("aten::zeros"), args.data(), args.size(), out, 1, 0).err, LS_ERR_OUT_OF_MEMORY);
  EXPECT_OK(ls_memory_pace(kCpu, &after));
  EXPECT_EQ(after.live, before.live);
}

#if !defined(__SANITIZE_ADDRESS__)  // there malloc serves all blocks; none are cached
TEST_F(Tensors, LargeBlocksAreKeptWithinTheBound) {
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  EXPECT_OK(ls_memory_reset_peak(kCpu));
  ls_memory m;
  uint64_t address = 0;
  for (int i = 0; i < 2; i++) {
    Tensor t = floats(std::vector<float>(1 << 20));
    ls_meta meta;
    EXPECT_OK(ls_tensor_meta(t, &meta));
    if (i == 1) {
      EXPECT_EQ(meta.data, address) << "the second takes the block of the first";
    }
    address = meta.data;
    EXPECT_EQ(meta.data % 64, 0u) << "libtorch's alignment";
  }
  EXPECT_OK(ls_memory_stats(kCpu, &m));
  EXPECT_EQ(m.cached, 4 << 20);
  // Sizes that never fit each other: cached blocks must not accumulate.
  for (int i = 0; i < 40; i++) {
    Tensor t = floats(std::vector<float>((1 << 20) + (i << 19)));
    EXPECT_OK(ls_memory_stats(kCpu, &m));
    EXPECT_LE(m.allocated + m.cached, m.peak + std::max<int64_t>(m.peak / 4, 16 << 20));
  }
  EXPECT_GT(m.peak, 64 << 20) << "both bounds have been tried";
  std::thread([] { Tensor t = floats(std::vector<float>(1 << 22)); }).join();
  EXPECT_OK(ls_memory_empty_cache(kCpu));
  EXPECT_OK(ls_memory_stats(kCpu, &m));
  EXPECT_EQ(m.cached, 0);
}
#endif

class Calls : public ShimTest {};

TEST_F(Calls, TypedAndBoxedAgree) {
  Tensor a = floats({1, 2, 3}), b = floats({10, 20, 30});
  Tensor typed(ls_aten_add_Tensor(a, b));
  Tensor boxed = call("aten::add", "Tensor", {T(a), T(b)});
  EXPECT_EQ(values(typed), values(boxed));
}

TEST_F(Calls, ALinearLayerAndItsActivation) {
  Tensor x = floats({1, -2, 3, 4}, {2, 2}), w = floats({1, 2, -3, 4}, {2, 2}), b = floats({0.5, -30});
  Tensor y(ls_aten_linear(x, w, b));
  const std::vector<std::pair<int32_t, const char *>> activations = {{LS_ACTIVATION_RELU, "aten::relu"},
                                                                     {LS_ACTIVATION_SIGMOID, "aten::sigmoid"},
                                                                     {LS_ACTIVATION_TANH, "aten::tanh"},
                                                                     {LS_ACTIVATION_SILU, "aten::silu"}};
  for (auto [activation, name] : activations) {
    Tensor both(ls_linear_activation(x, w, b, activation));
    EXPECT_EQ(values(both), values(call(name, "", {T(y)}))) << name;
  }
  Tensor tanh(ls_linear_activation(x, w, b, LS_ACTIVATION_GELU_TANH));
  Tensor gelu(ls_linear_activation(x, w, 0, LS_ACTIVATION_GELU));
  EXPECT_EQ(values(x), (std::vector<float>{1, -2, 3, 4}));
  EXPECT_ERR(ls_linear_activation(x, w, b, 0).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_linear_activation(0, w, b, LS_ACTIVATION_RELU).err, LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_linear_activation(x, 0, b, LS_ACTIVATION_RELU).err, LS_ERR_ARGUMENT);
}

TEST_F(Calls, NumbersAreAcceptedForTensorsAsInPython) {
  Tensor a = floats({1, 2, 3});
  Tensor half(ls_tensor_to(a, 5, -1, -1, 0));
  Tensor sum = call("aten::add", "Tensor", {T(half), F(1.5)});
  ls_meta m;
  EXPECT_OK(ls_tensor_meta(sum, &m));
  EXPECT_EQ(m.dtype, 5) << "a number does not promote a float16 tensor";
  Tensor scaled = call("aten::add", "Tensor", {T(a), I(1), F(2)});
  EXPECT_EQ(values(scaled), (std::vector<float>{3, 4, 5}));
}

TEST_F(Calls, NumbersAboveInt64KeepTheirValue) {
  int64_t one[1] = {1};
  std::vector<ls_value> full;
  append<int64_t>(full, LS_INTS, {1});
  full.push_back(U(UINT64_MAX));
  full.push_back(I(29));  // uint64
  Tensor t = call("aten::full", "", full);
  uint64_t got = 0;
  EXPECT_OK(ls_tensor_copy_out(t, 29, &got, 8));
  EXPECT_EQ(got, UINT64_MAX);
  ls_value v[2];
  EXPECT_OK(ls_tensor_item(t, v));
  EXPECT_EQ(v[0].tag, static_cast<uint32_t>(LS_UINT));
  EXPECT_EQ(static_cast<uint64_t>(v[0].u.i), UINT64_MAX);
  ls_value arg = T(t), out = {};
  EXPECT_EQ(take(ls_op_call(op("aten::item"), &arg, 1, &out, 1, 0).err), "");
  EXPECT_EQ(out.tag, static_cast<uint32_t>(LS_UINT));
  EXPECT_EQ(static_cast<uint64_t>(out.u.i), UINT64_MAX);
  Tensor a = floats({1, 2, 3});
  EXPECT_EQ(values(call("aten::add", "Tensor", {T(a), U(UINT64_MAX)})), (std::vector<float>(3, 0x1p64f)));
  EXPECT_EQ(values(call("aten::leaky_relu", "", {T(a), U(UINT64_MAX)})), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(values(call("aten::dropout", "", {T(a), U(0), B(false)})), (std::vector<float>{1, 2, 3})) << "a float";
  int64_t least = INT64_MIN;
  Tensor low(ls_tensor_from_data(kLong, one, 1, &least, 8));
  // It is -1 as int64, by which the least integer must not be divided, as 2^32-1 is as int32.
  std::vector<ls_value> div{T(low), U(UINT64_MAX), {LS_STRING, 5, {.i = 0}}, {}};
  std::memcpy(static_cast<void *>(&div.back()), "trunc", 5);
  EXPECT_ERR(ls_op_call(op("aten::div", "Tensor_mode"), div.data(), div.size(), v, 1, 0).err, LS_ERR_ARGUMENT);
  int32_t least32 = INT32_MIN;
  Tensor low32(ls_tensor_from_data(3, one, 1, &least32, 4));
  div[0] = T(low32);
  div[1] = I(UINT32_MAX);
  EXPECT_ERR(ls_op_call(op("aten::div", "Tensor_mode"), div.data(), div.size(), v, 1, 0).err, LS_ERR_ARGUMENT);
}

TEST_F(Calls, ListsStringsAndDefaults) {
  Tensor a = floats({1, 2, 3, 4}, {2, 2}), b = floats({5, 6, 7, 8}, {2, 2});
  std::vector<ls_value> args;
  append<ls_tensor>(args, LS_TENSORS, {a.h, b.h});
  args.push_back(I(1));
  EXPECT_EQ(values(call("aten::cat", "", args)), (std::vector<float>{1, 2, 5, 6, 3, 4, 7, 8}));

  std::vector<ls_value> gelu{T(a)};
  gelu.push_back({LS_STRING, 4, {.i = 0}});
  gelu.emplace_back();
  std::memcpy(static_cast<void *>(&gelu.back()), "tanh", 4);
  EXPECT_EQ(values(call("aten::gelu", "", gelu)).size(), 4u);

  std::vector<ls_value> sum{T(a)};
  append<int64_t>(sum, LS_INTS, {0});
  sum.push_back(B(true));
  sum.push_back(Default());
  EXPECT_EQ(values(call("aten::sum", "dim_IntList", sum)), (std::vector<float>{4, 6}));
}

TEST_F(Calls, SeveralResultsAndSpill) {
  Tensor a = floats({3, 1, 2});
  ls_value args[1] = {T(a)}, out[2];
  ls_results r = ls_op_call(op("aten::sort"), args, 1, out, 2, 0);
  EXPECT_OK(r.err);
  ASSERT_EQ(r.slots, 2u);
  Tensor sorted(out[0].u.t), order(out[1].u.t);
  EXPECT_EQ(values(sorted), (std::vector<float>{1, 2, 3}));

  Tensor many = floats(std::vector<float>(100));
  ls_value one[1] = {T(many)};
  r = ls_op_call(op("aten::unbind", "int"), one, 1, out, 2, 0);
  EXPECT_OK(r.err);
  ASSERT_NE(r.spill, nullptr);
  ASSERT_EQ(r.spill[0].tag, static_cast<uint32_t>(LS_TENSORS));
  ASSERT_EQ(r.spill[0].len, 100u);
  ls_tensors_free(reinterpret_cast<ls_tensor *>(r.spill + 1), 100);
  ls_spill_free(r.spill);
}

TEST_F(Calls, BadArgumentsAreErrors) {
  Tensor a = floats({1, 2});
  ls_value out[2];
  auto err = [&](const char *name, const char *overload, std::vector<ls_value> args) {
    return ls_op_call(op(name, overload), args.data(), args.size(), out, 2, 0).err;
  };
  EXPECT_ERR(err("aten::add", "Tensor", {}), LS_ERR_ARGUMENT);
  EXPECT_ERR(err("aten::add", "Tensor", {T(a)}), LS_ERR_ARGUMENT);
  EXPECT_ERR(err("aten::add", "Tensor", {T(0), T(a)}), LS_ERR_ARGUMENT);
  EXPECT_ERR(err("aten::add", "Tensor", {T(a), None()}), LS_ERR_ARGUMENT);
  EXPECT_ERR(err("aten::add", "Tensor", {T(a), T(a), F(1), F(1)}), LS_ERR_ARGUMENT);
  EXPECT_ERR(err("aten::softmax", "int", {T(a), F(0.5)}), LS_ERR_ARGUMENT);
  EXPECT_ERR(err("aten::softmax", "int", {T(a), I(7)}), LS_ERR_INDEX);
  EXPECT_ERR(err("aten::add", "Tensor", {T(a), {99, 0, {.i = 0}}}), LS_ERR_ARGUMENT);
  // A list that claims more elements than there are slots.
  EXPECT_ERR(err("aten::cat", "", {{LS_TENSORS, 1000, {.i = 0}}}), LS_ERR_ARGUMENT);
  std::vector<ls_value> ints;
  append<int64_t>(ints, LS_INTS, {1, 2});
  EXPECT_ERR(err("aten::cat", "", ints), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_op_call(0, nullptr, 0, out, 2, 0).err, LS_ERR_ARGUMENT);
  ls_op none = 1;
  EXPECT_OK(ls_op_find("aten::no_such_operator", "", &none).err);
  EXPECT_EQ(none, 0u);
}

TEST_F(Calls, WrongTagsAreRefused) {
  Tensor x = floats({1, 2});
  auto refused = [](const char *name, const char *overload, std::vector<ls_value> args) {
    ls_value out[4];
    ls_results r = ls_op_call(op(name, overload), args.data(), args.size(), out, 4, 0);
    EXPECT_ERR(r.err, LS_ERR_ARGUMENT);
  };
  std::vector<ls_value> none;
  append<uint64_t>(none, LS_TENSORS, {0});
  std::vector<ls_value> shape;
  append<int64_t>(shape, LS_INTS, {2});
  refused("aten::zeros", "", {F(1)});
  refused("aten::cat", "", {I(1)});
  refused("aten::cat", "", none);
  refused("aten::index", "Tensor", {T(x), I(1)});
  refused("aten::sum", "dim_IntList", {T(x), {LS_INTS, 100, {.i = 0}}});
  refused("aten::native_layer_norm_backward", "",
          {T(x), T(x), shape[0], shape[1], T(x), T(x), None(), None(), I(1)});
  EXPECT_EQ(ls_cuda_capturing(), 0);
}

TEST_F(Calls, InvalidDevicesAreErrors) {
  Tensor t = floats({1});
  for (int32_t d : {-1, 200 << 8, 21 << 8, 0xfe, INT32_MAX, INT32_MIN}) {
    EXPECT_ERR(ls_rng_state(d).err, LS_ERR_ARGUMENT);
    EXPECT_ERR(ls_device_synchronize(d), LS_ERR_ARGUMENT);
    if (HasFailure()) return;  // the next call may not return
    if (d >= 0) EXPECT_ERR(ls_tensor_to(t, -1, d, -1, 0).err, LS_ERR_ARGUMENT);
  }
}

TEST_F(Calls, OneDnnLayoutIsAnError) {
  constexpr int64_t kBFloat16 = 15, kMkldnn = 3;
  std::vector<ls_value> args;
  append<int64_t>(args, LS_INTS, {100});
  args.push_back(I(kBFloat16));
  args.push_back(I(kMkldnn));
  ls_value out[1];
  EXPECT_ERR(ls_op_call(op("aten::zeros"), args.data(), args.size(), out, 1, 0).err, LS_ERR_ARGUMENT);
}

TEST_F(Calls, RecurrentLayersAreCounted) {
  Tensor x = floats({1, 2}, {1, 1, 2}), h = floats({0}, {1, 1, 1});
  for (int64_t layers : {INT64_MAX, INT64_MIN, int64_t{0}, int64_t{2}}) {
    std::vector<ls_value> args{T(x), T(h)};
    append<ls_tensor>(args, LS_TENSORS, {x.h, x.h});
    for (auto v : {B(false), I(layers), F(0), B(false), B(true), B(false)}) args.push_back(v);
    ls_value out[2];
    EXPECT_ERR(ls_op_call(op("aten::gru", "input"), args.data(), args.size(), out, 2, 0).err, LS_ERR_ARGUMENT);
  }
  // No layers, and no states or weights either.
  Tensor none = floats({}, {0, 1, 1});
  std::vector<ls_value> args{T(x), T(none)};
  append<ls_tensor>(args, LS_TENSORS, {});
  for (auto v : {B(false), I(0), F(0), B(false), B(true), B(false)}) args.push_back(v);
  ls_value out[2];
  EXPECT_ERR(ls_op_call(op("aten::gru", "input"), args.data(), args.size(), out, 2, 0).err, LS_ERR_ARGUMENT);
}

TEST_F(Calls, ErrorTextsAreUtf8) {
  Tensor t = floats({1, 2, 3, 4}, {2, 2});
  // Overlong encodings, surrogates, code points beyond Unicode, truncated sequences; then valid text.
  for (auto [text, shown] : std::vector<std::pair<std::string, std::string>>{
           {"\xff", "'?'"},
           {"\xc0\x80", "'?\?'"},
           {"\xed\xa0\x80", "'?\?\?'"},
           {"\xf4\x90\x80\x80", "'?\?\?\?'"},
           {"\xe2\x82", "'?\?'"},
           {"\xc3\xa4\xf0\x9f\x98\x80", "'\xc3\xa4\xf0\x9f\x98\x80'"}}) {
    std::vector<ls_value> args{T(t), T(t), {LS_STRING, static_cast<uint32_t>(text.size()), {.i = 0}}, {}};
    std::memcpy(static_cast<void *>(&args[3]), text.data(), text.size());
    ls_value out[1];
    auto message = take(ls_op_call(op("aten::div", "Tensor_mode"), args.data(), args.size(), out, 1, 0).err);
    EXPECT_NE(message.find(shown), std::string::npos) << message;
  }
}

TEST_F(Calls, DiscardFreesTheResults) {
  Tensor a = floats({1, 2});
  ls_value args[2] = {T(a), F(3)};
  EXPECT_OK(ls_op_call(op("aten::add_", "Tensor"), args, 2, nullptr, 0, LS_CALL_DISCARD).err);
  EXPECT_EQ(values(a), (std::vector<float>{4, 5}));
}

TEST_F(Calls, SchemaAndNames) {
  EXPECT_EQ(ls_op_repeatable(0), 0);
  ls_value out[64];
  ls_results r = ls_op_schema(op("aten::relu"), out, 64);
  EXPECT_OK(r.err);
  std::string text(reinterpret_cast<char *>(out + 1), out[0].len);
  EXPECT_EQ(text, "aten::relu(Tensor self) -> Tensor");
  r = ls_op_names(nullptr, 0);
  EXPECT_OK(r.err);
  ASSERT_NE(r.spill, nullptr);
  std::string names(reinterpret_cast<char *>(r.spill + 1), r.spill[0].len);
  EXPECT_NE(names.find("aten::add.Tensor\n"), std::string::npos);
  ls_spill_free(r.spill);
}

class Threads : public ShimTest {};

TEST_F(Threads, ModesNestAndBelongToTheThread) {
  EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 1);
  EXPECT_OK(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
  EXPECT_OK(ls_mode_push({LS_MODE_INFERENCE, 1, 0, 0, 0}));
  EXPECT_EQ(ls_mode_get(LS_MODE_INFERENCE, 0).on, 1);
  std::thread([] {
    EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 1);
    EXPECT_EQ(ls_mode_get(LS_MODE_INFERENCE, 0).on, 0);
  }).join();
  ls_mode_pop();
  EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 0);
  ls_mode_pop();
  EXPECT_EQ(ls_mode_get(LS_MODE_GRAD, 0).on, 1);
  ls_mode_pop();  // one call too many does nothing
  EXPECT_ERR(ls_mode_push({42, 1, 0, 0, 0}), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_mode_push({LS_MODE_STREAM, 1, 0xff, 0, 0}), LS_ERR_ARGUMENT);  // the CPU has no streams
}

TEST_F(Threads, OneThreadHasTangents) {
  const ls_mode forward = {LS_MODE_FORWARD, 1, 0, 0, 0};
  Tensor x = floats({1, 2});
  Tensor dual;
  auto has_tangent = [&] {
    ls_value args[] = {T(dual), I(0)}, out[4];
    ls_results r = ls_op_call(op("aten::_unpack_dual", ""), args, 2, out, 4, 0);
    EXPECT_OK(r.err);
    Tensor primal(out[0].u.t), tangent(out[1].u.t);
    return static_cast<ls_tensor>(tangent) != 0;
  };
  for (int i = 0; i < 2; i++) {
    EXPECT_EQ(ls_mode_get(LS_MODE_FORWARD, 0).on, 0);
    EXPECT_OK(ls_mode_push(forward));
    EXPECT_EQ(ls_mode_get(LS_MODE_FORWARD, 0).on, 1);
    EXPECT_ERR(ls_mode_push(forward), LS_ERR_ARGUMENT);
    dual = call("aten::_make_dual", "", {T(x), T(x), I(0)});
    EXPECT_TRUE(has_tangent());
    std::thread([&] {
      EXPECT_OK(ls_mode_push({LS_MODE_INFERENCE, 1, 0, 0, 0}));
      EXPECT_FALSE(has_tangent());
      EXPECT_OK(ls_mode_push({LS_MODE_INFERENCE, 0, 0, 0, 0}));
      EXPECT_FALSE(has_tangent());
      ls_mode_pop();
      ls_mode_pop();
      EXPECT_EQ(ls_mode_get(LS_MODE_FORWARD, 0).on, 0);
      EXPECT_FALSE(has_tangent());
      EXPECT_ERR(ls_mode_push(forward), LS_ERR_ARGUMENT);
    }).join();
    EXPECT_OK(ls_mode_push({LS_MODE_INFERENCE, 1, 0, 0, 0}));
    EXPECT_EQ(ls_mode_get(LS_MODE_FORWARD, 0).on, 0);
    ls_mode_pop();
    EXPECT_TRUE(has_tangent());
    ls_mode_pop();
    EXPECT_FALSE(has_tangent());
  }
}

TEST_F(Threads, AutocastNestsByDeviceTypeAndDType) {
  constexpr int32_t kHalf = 5, kBFloat16 = 15, kCuda = 1;
  Tensor x = floats({1, 2, 3, 4}, {2, 2});
  auto dtype_of = [&](const char *name) {
    Tensor y = name == std::string("aten::mm") ? call(name, "", {T(x), T(x)}) : call(name, "", {T(x)});
    ls_meta m;
    EXPECT_OK(ls_tensor_meta(y, &m));
    return int32_t{m.dtype};
  };
  EXPECT_EQ(ls_mode_get(LS_MODE_AUTOCAST, 0).on, 0);
  EXPECT_EQ(dtype_of("aten::mm"), kFloat);
  EXPECT_OK(ls_mode_push({LS_MODE_AUTOCAST, 1, 0, kBFloat16, 0}));
  EXPECT_EQ(ls_mode_get(LS_MODE_AUTOCAST, 0).on, 1);
  EXPECT_EQ(ls_mode_get(LS_MODE_AUTOCAST, 0).dtype, kBFloat16);
  EXPECT_EQ(ls_mode_get(LS_MODE_AUTOCAST, kCuda).on, 0) << "another device type";
  EXPECT_EQ(dtype_of("aten::mm"), kBFloat16);
  EXPECT_EQ(dtype_of("aten::exp"), kFloat);
  EXPECT_OK(ls_mode_push({LS_MODE_AUTOCAST, 1, 0, kHalf, 0}));
  EXPECT_EQ(dtype_of("aten::mm"), kHalf) << "no cast to another dtype is reused";
  EXPECT_OK(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
  EXPECT_OK(ls_mode_push({LS_MODE_AUTOCAST, 0, 0, -1, 0}));
  EXPECT_EQ(dtype_of("aten::mm"), kFloat);
  std::thread([] { EXPECT_EQ(ls_mode_get(LS_MODE_AUTOCAST, 0).on, 0); }).join();
  ls_mode_pop();
  ls_mode_pop();
  EXPECT_EQ(dtype_of("aten::mm"), kHalf);
  ls_mode_pop();
  EXPECT_EQ(dtype_of("aten::mm"), kBFloat16);
  ls_mode_pop();
  EXPECT_EQ(ls_mode_get(LS_MODE_AUTOCAST, 0).on, 0);
  EXPECT_EQ(dtype_of("aten::mm"), kFloat);
  EXPECT_ERR(ls_mode_push({LS_MODE_AUTOCAST, 1, 0, kLong, 0}), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_mode_push({LS_MODE_AUTOCAST, 1, 99, kHalf, 0}), LS_ERR_ARGUMENT);
}

TEST_F(Threads, ResultsCarryTheScopeWord) {
  Tensor a = floats({1});
  EXPECT_EQ(ls_scope_set(5), LS_SCOPE_MAIN);  // the test's thread is the main one
  ls_result r = ls_aten_add_Tensor(a, a);
  EXPECT_EQ(r.scope & ~LS_SCOPE_YIELD, 5u);
  Tensor sum(r);
  std::thread([] { EXPECT_EQ(ls_scope_get(), 0u); }).join();
  EXPECT_EQ(ls_scope_set(0), 5u);
  std::thread([] {
    EXPECT_EQ(ls_scope_set(6), 0u);
    EXPECT_EQ(ls_scope_set(0), 6u);
  }).join();
}

TEST_F(Threads, AScopeIsLeftByItsWord) {
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(ls_yield_due(1), 1);
    ls_scope_set(5);
    ls_scope_set(7);
    EXPECT_EQ(ls_scope_leave(5, 0), 7u);
    EXPECT_EQ(ls_scope_get(), 7u);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(ls_scope_leave(7, 5), 7u);
    EXPECT_EQ(ls_scope_get(), 5u);
    EXPECT_EQ(ls_scope_leave(5, 0), 5u | LS_SCOPE_YIELD);
    EXPECT_EQ(ls_scope_get(), 0u);
  }).join();
}

TEST_F(Threads, AYieldIsDueEvery8Milliseconds) {
  Tensor a = floats({1});
  int32_t threads = ls_threads_get();
  EXPECT_OK(ls_threads_set(2));
  auto due = [&] {
    ls_result r = ls_aten_add_Tensor(a, a);
    Tensor sum(r);
    return (r.scope & LS_SCOPE_YIELD) != 0;
  };
  using Clock = std::chrono::steady_clock;
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_TRUE(due());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(ls_yield_due(0), 1);
  // The coarse clock advances by up to 10 ms at once, so that two may be less than 8 ms apart.
  int times = 0;
  auto start = Clock::now();
  while (Clock::now() - start < std::chrono::milliseconds(100)) times += due() ? 1 : 0;
  EXPECT_GE(times, 1);
  EXPECT_LE(times, (Clock::now() - start) / std::chrono::milliseconds(4) + 1);
  EXPECT_OK(ls_threads_set(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_FALSE(due());
  EXPECT_EQ(ls_yield_due(0), 0);
  EXPECT_EQ(ls_yield_due(1), 1);
  EXPECT_OK(ls_threads_set(threads));
}

TEST_F(Threads, AThreadThatEndsInAScopeIsDetected) {
  std::thread([] { ls_scope_set(9); }).join();
  std::thread([] {
    ls_scope_set(10);
    ls_scope_set(0);
  }).join();
  uint64_t words[4];
  ASSERT_EQ(ls_scope_orphans(words, 4), 1u);
  EXPECT_EQ(words[0], 9u);
}

TEST_F(Threads, NumThreadsReachesThreadsThatHaveComputed) {
  int32_t before = ls_threads_get();
  Tensor a = floats(std::vector<float>(1 << 16));
  std::atomic<int> stage{0};
  int32_t seen = 0;
  std::thread t([&] {
    Tensor b(ls_aten_exp(a));
    stage = 1;
    while (stage != 2) std::this_thread::yield();
    Tensor c(ls_aten_exp(a));
    seen = ls_threads_get();
  });
  while (stage != 1) std::this_thread::yield();
  EXPECT_OK(ls_threads_set(7));
  stage = 2;
  t.join();
  EXPECT_EQ(seen, 7);
  EXPECT_OK(ls_threads_set(before));
  EXPECT_ERR(ls_threads_set(0), LS_ERR_ARGUMENT);
}

TEST_F(Threads, SeedsGiveTheSameNumbers) {
  auto draw = [] {
    std::vector<ls_value> args;
    append<int64_t>(args, LS_INTS, {8});
    return values(call("aten::randn", "", args));
  };
  EXPECT_OK(ls_rng_seed(3));
  Tensor state(ls_rng_state(kCpu));
  auto first = draw();
  EXPECT_NE(draw(), first);
  EXPECT_OK(ls_rng_set_state(kCpu, state));
  EXPECT_EQ(draw(), first);
}

// For ThreadSanitizer: shared state is locked.
TEST_F(Threads, SharedListsAreLocked) {
  const char *names[] = {"aten::sin", "aten::cos", "aten::tan", "aten::asin", "aten::acos", "aten::atan"};
  std::vector<std::thread> threads;
  std::atomic<int> dropped{0}, orphans{0};
  constexpr int kThreads = 6, kRounds = 20;
  for (int i = 0; i < kThreads; i++) {
    threads.emplace_back([&, i] {
      static float data[4];
      int64_t shape[] = {4};
      for (int k = 0; k < kRounds; k++) {
        EXPECT_NE(op(names[(i + k) % 6]), 0u);
        Tensor(ls_tensor_from_blob(kFloat, shape, 1, data, sizeof data, nullptr, 1));
        uint64_t ids[8];
        dropped += static_cast<int>(ls_dropped_take(ids, 8));
        std::thread([] { ls_scope_set(11); }).join();
        orphans += static_cast<int>(ls_scope_orphans(ids, 8));
      }
    });
  }
  for (auto &t : threads) t.join();
  uint64_t ids[64];
  while (uint64_t n = ls_dropped_take(ids, 64)) dropped += static_cast<int>(n);
  while (uint64_t n = ls_scope_orphans(ids, 64)) orphans += static_cast<int>(n);
  EXPECT_EQ(dropped.load(), kThreads * kRounds);
  EXPECT_EQ(orphans.load(), kThreads * kRounds);
}

TEST_F(Threads, TheGeneratorsStateIsConsistent) {
  auto bytes_of = [](ls_tensor t) {
    ls_meta m;
    EXPECT_OK(ls_tensor_meta(t, &m));
    std::vector<uint8_t> v(static_cast<size_t>(m.numel));
    EXPECT_OK(ls_tensor_copy_out(t, 0, v.data(), v.size()));
    return v;
  };
  Tensor before(ls_rng_state(kCpu));
  std::vector<std::vector<uint8_t>> known;
  std::vector<Tensor> states;
  for (uint64_t seed : {1, 2, 3, 4}) {
    EXPECT_OK(ls_rng_seed(seed));
    states.emplace_back(ls_rng_state(kCpu));
    known.push_back(bytes_of(states.back()));
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 2; i++) {
    writers.emplace_back([&, i] {
      for (uint64_t k = 0; !stop; k++) {
        EXPECT_OK(ls_rng_seed(1 + k % 2));
        EXPECT_OK(ls_rng_set_state(kCpu, states[2 + (k + static_cast<uint64_t>(i)) % 2]));
      }
    });
  }
  int torn = 0;
  for (int k = 0; k < 4000; k++) {
    Tensor now(ls_rng_state(kCpu));
    auto bytes = bytes_of(now);
    torn += std::find(known.begin(), known.end(), bytes) == known.end();
  }
  stop = true;
  for (auto &t : writers) t.join();
  EXPECT_EQ(torn, 0) << "states that no thread has set";
  EXPECT_OK(ls_rng_set_state(kCpu, before));
}

TEST_F(Threads, ErrorsOfManyThreadsDoNotMix) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; i++) {
    threads.emplace_back([i] {
      Tensor a = floats(std::vector<float>(static_cast<size_t>(i + 2)));
      Tensor b = floats(std::vector<float>(100));
      std::string want = "(" + std::to_string(i + 2) + ")";
      for (int k = 0; k < 200; k++) {
        std::string text = take(ls_aten_add_Tensor(a, b).err);
        ASSERT_NE(text.find(want), std::string::npos) << text;
      }
    });
  }
  for (auto &t : threads) t.join();
}

TEST_F(Threads, Settings) {
  EXPECT_ERR(ls_matmul_precision_set(9), LS_ERR_ARGUMENT);
  EXPECT_OK(ls_matmul_precision_set(1));
  EXPECT_EQ(ls_matmul_precision_get(), 1);
  EXPECT_OK(ls_matmul_precision_set(0));
  EXPECT_ERR(ls_default_dtype_set(kLong), LS_ERR_ARGUMENT);
  EXPECT_OK(ls_default_dtype_set(7));
  EXPECT_EQ(ls_default_dtype_get(), 7);
  EXPECT_OK(ls_default_dtype_set(kFloat));
  EXPECT_OK(ls_deterministic_set(1, 1));
  EXPECT_EQ(ls_deterministic_get(), 1);
  EXPECT_OK(ls_deterministic_set(0, 0));
  for (int32_t backend : {-1, 99}) EXPECT_ERR(ls_sdpa_set(&backend, 1), LS_ERR_ARGUMENT);
  EXPECT_EQ(ls_device_count(0), 1);
  EXPECT_OK(ls_device_synchronize(kCpu));
}

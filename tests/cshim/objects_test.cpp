// Values that are neither tensors nor plain data: objects of C++ classes and streams.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <atomic>
#include <string>

#include "helpers.h"

namespace {

std::atomic<int> boxes{0};  // live ones

struct Box : torch::CustomClassHolder {
  explicit Box(int64_t v) : value(v) { boxes++; }
  ~Box() override { boxes--; }
  int64_t value;
};
struct Other : torch::CustomClassHolder {};

TORCH_LIBRARY(ls_test, m) {
  m.class_<Box>("Box");
  m.class_<Other>("Other");
  m.def("box(int value) -> __torch__.torch.classes.ls_test.Box",
        [](int64_t v) { return c10::make_intrusive<Box>(v); });
  m.def("other() -> __torch__.torch.classes.ls_test.Other", [] { return c10::make_intrusive<Other>(); });
  m.def("unbox(__torch__.torch.classes.ls_test.Box? box) -> int",
        [](const std::optional<c10::intrusive_ptr<Box>> &b) { return b.has_value() ? (*b)->value : -1; });
  m.def("same(__torch__.torch.classes.ls_test.Box box) -> __torch__.torch.classes.ls_test.Box",
        [](const c10::intrusive_ptr<Box> &b) { return b; });
  m.def("stream(Stream s) -> Stream", [](c10::Stream s) { return s; });
}

class Objects : public ShimTest {};

ls_error *run(const char *name, std::vector<ls_value> args, ls_value *out, uint32_t flags = 0) {
  ls_results r = ls_op_call(op(name), args.data(), args.size(), out, 1, flags);
  EXPECT_EQ(r.spill, nullptr);
  return r.err;
}

ls_value O(ls_object o) { return {LS_OBJECT, 0, {.o = o}}; }

// An object that frees itself.
struct Owned {
  Owned(const char *name, std::vector<ls_value> args) {
    ls_value out{};
    EXPECT_OK(run(name, std::move(args), &out));
    EXPECT_EQ(out.tag, static_cast<uint32_t>(LS_OBJECT));
    o = out.u.o;
  }
  ~Owned() { ls_object_free(o); }
  ls_object o = 0;
};

TEST_F(Objects, GoThroughOperators) {
  ls_value out{};
  {
    Owned box("ls_test::box", {I(42)});
    EXPECT_EQ(boxes, 1);
    Owned same("ls_test::same", {O(box.o)});
    EXPECT_EQ(boxes, 1);
    EXPECT_OK(run("ls_test::unbox", {O(same.o)}, &out));
    EXPECT_EQ(out.u.i, 42);
    EXPECT_OK(run("ls_test::unbox", {None()}, &out));
    EXPECT_EQ(out.u.i, -1);
    ls_value text[8];
    ls_results r = ls_object_class(box.o, text, 8);
    EXPECT_OK(r.err);
    EXPECT_EQ(std::string(reinterpret_cast<char *>(text + 1), text[0].len), "__torch__.torch.classes.ls_test.Box");
    ls_memory now;
    EXPECT_OK(ls_memory_stats(kCpu, &now));
    EXPECT_EQ(now.handles, before_.handles + 2);
  }
  EXPECT_EQ(boxes, 0);
  EXPECT_OK(run("ls_test::box", {I(7)}, nullptr, LS_CALL_DISCARD));
  EXPECT_EQ(boxes, 0) << "a discarded result";
  ls_object_free(0);
}

TEST_F(Objects, OfAnotherClassAreRefused) {
  ls_value out{};
  Owned other("ls_test::other", {}), box("ls_test::box", {I(1)});
  EXPECT_ERR(run("ls_test::same", {O(other.o)}, &out), LS_ERR_ARGUMENT);
  EXPECT_ERR(run("ls_test::unbox", {O(other.o)}, &out), LS_ERR_ARGUMENT);
  EXPECT_ERR(run("ls_test::same", {O(0)}, &out), LS_ERR_ARGUMENT);
  EXPECT_ERR(run("ls_test::same", {I(1)}, &out), LS_ERR_ARGUMENT);
  EXPECT_ERR(run("ls_test::box", {O(box.o)}, &out), LS_ERR_ARGUMENT);
  EXPECT_ERR(ls_object_class(0, &out, 1).err, LS_ERR_ARGUMENT);
}

TEST_F(Objects, PackedWeightsOfQuantizedOperators) {
  constexpr int64_t kQInt8 = 12;
  Tensor w = floats({1, 2, 3, 4}, {2, 2}), x = floats({1, 1}, {1, 2});
  Tensor q = call("aten::quantize_per_tensor", "", {T(w), F(0.5), I(0), I(kQInt8)});
  Owned packed("quantized::linear_prepack", {T(q), None()});
  Tensor y = call("quantized::linear_dynamic", "", {T(x), O(packed.o)});
  auto v = values(y);
  ASSERT_EQ(v.size(), 2u);
  EXPECT_NEAR(v[0], 3, 0.05);
  EXPECT_NEAR(v[1], 7, 0.05);
}

TEST_F(Objects, StreamsKeepTheirDeviceAndNumber) {
  ls_value out{};
  EXPECT_OK(run("ls_test::stream", {{LS_STREAM, kCpu, {.i = 5}}}, &out));
  EXPECT_EQ(out.tag, static_cast<uint32_t>(LS_STREAM));
  EXPECT_EQ(out.len, static_cast<uint32_t>(kCpu));
  EXPECT_EQ(out.u.i, 5);
  EXPECT_ERR(run("ls_test::stream", {I(5)}, &out), LS_ERR_ARGUMENT);
  EXPECT_ERR(run("ls_test::stream", {{LS_STREAM, 200 << 8, {.i = 5}}}, &out), LS_ERR_ARGUMENT);
}

}  // namespace

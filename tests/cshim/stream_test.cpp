// Streams and captures of fake devices.
#include <ATen/OpaqueTensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <utility>

#include "devices.h"

namespace {

// The streams and devices of a thread, as libtorch's CUDA has them. Stream 0 is the default one.
struct FakeGuard final : c10::impl::DeviceGuardImplInterface {
  inline static thread_local int8_t device = 0;
  inline static thread_local int64_t streams[2] = {};
  inline static std::atomic<int> recorded{0};

  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device d) const override {
    auto before = getDevice();
    device = d.index();
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, device}; }
  void setDevice(c10::Device d) const override { device = d.index(); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { device = d.index(); }
  c10::Stream getStream(c10::Device d) const override { return stream(d, streams[d.index()]); }
  c10::Stream getDefaultStream(c10::Device d) const override { return stream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto before = getStream(s.device());
    streams[s.device_index()] = s.id();
    return before;
  }
  bool queryStream(const c10::Stream &) const override { return true; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }
  void recordDataPtrOnStream(const c10::DataPtr &, const c10::Stream &) const override { recorded++; }
  static c10::Stream stream(c10::Device d, int64_t id) { return c10::Stream(c10::Stream::UNSAFE, d, id); }
};

// Exits with the line of the first expectation that fails: the tests are processes of their own.
#define WANT(x) \
  if (!(x)) std::_Exit(100 + __COUNTER__)

template <class Impl, class... Arguments>
ls_tensor made(Arguments &&...arguments) {
  return reinterpret_cast<ls_tensor>(c10::make_intrusive<Impl>(std::forward<Arguments>(arguments)...).release());
}

// A tensor whose memory has the deleter of pinned memory.
ls_tensor pinned() {
  static float word;
  at::DataPtr memory(&word, &word, FakeDevices::free_pinned, c10::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), 4, std::move(memory));
  return made<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                               caffe2::TypeMeta::Make<float>());
}

template <class F>
void elsewhere(F f) {
  std::thread(f).join();
}

constexpr ls_pool kNewPool{};

class StreamsDeathTest : public DevicesDeathTest {
 protected:
  void begin() {
    DevicesDeathTest::begin();
    static FakeGuard guard;
    c10::impl::DeviceGuardImplRegistrar(c10::kCUDA, &guard);
  }
};

TEST_F(StreamsDeathTest, ACaptureBelongsToAThreadAndADevice) {
  EXPECT_EXIT(
      {
        begin();
        ls_graph g = 0;
        ls_graph other = 0;
        ls_pool pool;
        WANT(ls_graph_capturing() == 0);
        WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0 && ls_graph_capturing() == 1);
        elsewhere([&] {
          WANT(ls_graph_capturing() == 0);
          WANT(code(ls_graph_begin(cuda(0), &kNewPool, &other)) == LS_ERR_CAPTURE);
          WANT(code(ls_graph_end(g, &pool)) == LS_ERR_CAPTURE);
          WANT(code(ls_device_synchronize(cuda(0))) == LS_ERR_CAPTURE);
          WANT(code(ls_device_synchronize(cuda(1))) != LS_ERR_CAPTURE);
          WANT(code(ls_graph_begin(cuda(1), &kNewPool, &other)) == 0);
        });
        // These wait for the end of the capture: of the device, of all.
        WANT(code(ls_memory_empty_cache(cuda(0))) == 0 && devices_.emptied == 0);
        ls_tensor_free(pinned());
        Tensor plain = floats({1, 2});
        plain = Tensor();
        WANT(FakeDevices::pinned_freed == 0);
        WANT(code(ls_graph_end(g, &pool)) == 0 && pool.first == 7 && pool.second == 8);
        WANT(ls_graph_capturing() == 0 && devices_.emptied == 1);
        WANT(FakeDevices::pinned_freed == 0);
        WANT(code(ls_memory_empty_cache(cuda(0))) == 0 && devices_.emptied == 2);
        WANT(code(ls_graph_replay(g)) == 0 && devices_.replays == 1);
        WANT(code(ls_graph_end(g, &pool)) == LS_ERR_CAPTURE);
        ls_graph_free(g);
        ls_graph_free(0);
        WANT(devices_.graphs == 1);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamsDeathTest, ACaptureWithARefusedCallHasNoGraph) {
  EXPECT_EXIT(
      {
        begin();
        for (bool replays : {false, true}) {
          ls_graph g = 0;
          ls_graph other = 0;
          ls_pool pool;
          WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0);
          WANT(code(replays ? ls_graph_replay(g) : ls_graph_begin(cuda(1), &kNewPool, &other)) == LS_ERR_CAPTURE);
          WANT(ls_graph_capturing() == 1 && code(ls_graph_end(g, &pool)) == LS_ERR_CAPTURE);
          WANT(ls_graph_capturing() == 0 && devices_.graphs == 0);
          ls_graph_free(g);
        }
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamsDeathTest, PinnedMemoryIsFreedWhenNothingIsCaptured) {
  EXPECT_EXIT(
      {
        begin();
        ls_graph g = 0;
        ls_pool pool;
        WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0);
        ls_tensor_free(pinned());
        WANT(FakeDevices::pinned_freed == 0);
        WANT(code(ls_graph_end(g, &pool)) == 0 && FakeDevices::pinned_freed == 1);
        ls_tensor_free(pinned());
        WANT(FakeDevices::pinned_freed == 2);
        ls_graph_free(g);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamsDeathTest, ACaptureThatFailsEnds) {
  EXPECT_EXIT(
      {
        begin();
        ls_graph g = 0;
        ls_pool pool;
        devices_.begin_fails = true;
        WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == LS_ERR_STD);
        WANT(ls_graph_capturing() == 0 && devices_.graphs == 0);
        devices_.begin_fails = false;
        devices_.end_fails = true;
        for (bool abandoned : {false, true}) {
          WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0);
          if (abandoned) ls_graph_abandon(g);
          if (!abandoned) WANT(code(ls_graph_end(g, &pool)) == LS_ERR_STD);
          WANT(ls_graph_capturing() == 0 && devices_.graphs == 0);
          WANT(code(ls_graph_replay(g)) == LS_ERR_ARGUMENT);
          ls_graph_abandon(g);
          ls_graph_free(g);
        }
        WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamsDeathTest, TheStreamModeIsRestored) {
  EXPECT_EXIT(
      {
        begin();
        auto current = [](int32_t device) {
          int64_t s = -1;
          WANT(code(ls_stream_current(device, &s)) == 0);
          return s;
        };
        WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(1), 0, 5})) == 0);
        WANT(current(cuda(1)) == 5 && current(cuda(0)) == 0 && FakeGuard::device == 1);
        WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(0), 0, 0})) == 0);
        WANT(current(cuda(1)) == 5 && FakeGuard::device == 0);
        elsewhere([&] { WANT(current(cuda(1)) == 0); });
        ls_mode_pop();
        WANT(FakeGuard::device == 1);
        ls_mode_pop();
        WANT(current(cuda(1)) == 0 && FakeGuard::device == 0);
        // A stream that another thread captures.
        ls_graph g = 0;
        elsewhere([&] { WANT(code(ls_graph_begin(cuda(1), &kNewPool, &g)) == 0); });
        devices_.captured = 5;
        int32_t done = 0;
        WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(1), 0, 5})) == LS_ERR_CAPTURE);
        WANT(code(ls_stream_query(cuda(1), 5, &done)) == LS_ERR_CAPTURE);
        WANT(code(ls_stream_query(cuda(1), 6, &done)) == 0 && done == 1);
        WANT(current(cuda(1)) == 0);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamsDeathTest, TheCurrentStreamOfAnotherThreadIsNotCaptured) {
  EXPECT_EXIT(
      {
        begin();
        ls_graph g = 0;
        ls_pool pool;
        WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(0), 0, 5})) == 0);
        elsewhere([&] {
          WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(0), 0, 5})) == 0);
          WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == LS_ERR_CAPTURE && ls_graph_capturing() == 0);
          WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(0), 0, 6})) == 0);
          WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0);
          WANT(code(ls_graph_end(g, &pool)) == 0);
          ls_graph_free(g);
          ls_mode_pop();
          ls_mode_pop();
        });
        ls_mode_pop();
        elsewhere([&] {
          WANT(code(ls_mode_push({LS_MODE_STREAM, 1, cuda(0), 0, 5})) == 0);
          WANT(code(ls_graph_begin(cuda(0), &kNewPool, &g)) == 0);
        });
        // Also before the device says that the stream is captured.
        WANT(devices_.captured != 5 && code(ls_mode_push({LS_MODE_STREAM, 1, cuda(0), 0, 5})) == LS_ERR_CAPTURE);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamsDeathTest, InvalidArgumentsAreErrors) {
  EXPECT_EXIT(
      {
        begin();
        int64_t s = 0;
        int32_t done = 0;
        WANT(take(ls_stream_new(kCpu, 0, &s)).find("cpu has no streams") != std::string::npos);
        WANT(code(ls_stream_query(77 << 8, 0, &done)) == LS_ERR_ARGUMENT);
        WANT(code(ls_event_query(0, &done)) == LS_ERR_ARGUMENT);
        WANT(code(ls_graph_replay(0)) == LS_ERR_ARGUMENT);
        ls_event_free(0);
        Tensor x = floats({1, 2});
        WANT(code(ls_stream_record(x, cuda(0), 5)) == LS_ERR_ARGUMENT && FakeGuard::recorded == 0);
        auto opaque = made<at::OpaqueTensorImpl<int>>(c10::DispatchKeySet(c10::DispatchKey::SparseCUDA),
                                                      caffe2::TypeMeta::Make<float>(), c10::Device(c10::kCUDA, 0),
                                                      0, std::vector<int64_t>{2});
        WANT(code(ls_stream_record(opaque, cuda(0), 5)) == LS_ERR_ARGUMENT && FakeGuard::recorded == 0);
        WANT(take(ls_stream_copy(x, x, cuda(0), 5)).find("the tensor is on cpu, the stream is on cuda:0") !=
             std::string::npos);
        WANT(code(ls_stream_copy(0, x, cuda(0), 5)) == LS_ERR_ARGUMENT);
        // The fake devices have no kernels; the current stream is again the one before.
        WANT(code(ls_stream_copy(opaque, x, cuda(0), 5)) != 0);
        WANT(ls_stream_current(cuda(0), &s) == nullptr && s == 0);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// Captures of two devices while other threads free, empty caches and wait: for ThreadSanitizer.
TEST_F(StreamsDeathTest, CapturesOfSeveralThreads) {
  EXPECT_EXIT(
      {
        begin();
        ask(0);
        ask(1);
        std::atomic<int> captured{0};
        ls_graph around = 0;  // so that there is always a capture
        elsewhere([&] { WANT(code(ls_graph_begin(cuda(1), &kNewPool, &around)) == 0); });
        on_threads(6, [&](int i) {
          for (int n = 0; n < 2000; n++) {
            if (i < 2) {
              ls_graph g = 0;
              ls_pool pool;
              if (code(ls_graph_begin(cuda(0), &kNewPool, &g)) != 0) continue;
              captured++;
              WANT(code(ls_graph_end(g, &pool)) == 0);
              ls_graph_free(g);
            } else if (i < 4) {
              ls_tensor_free(pinned());
            } else if (i < 5) {
              WANT(code(ls_memory_empty_cache(cuda(0))) == 0);
            } else {
              (void)code(ls_device_synchronize(cuda(0)));
            }
          }
        });
        WANT(captured > 0 && FakeDevices::pinned_freed == 0 && devices_.graphs == 1);
        _exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace

// CUDA graphs, over libtorch's at::cuda::CUDAGraph.
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/Event.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <mutex>

#include "allocator.h"

namespace ls {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;

// libtorch's graph. Before libtorch 2.15 a failed capture keeps its pool, to which later allocations would go, and
// the device's generator, which would refuse to draw outside of a capture: here the destructor gives both back.
class Captured final : public at::cuda::CUDAGraph {
 public:
  ~Captured() {
    end_failed(*this);
    // From libtorch 2.12 on a graph frees cuBLAS's workspaces of its stream, which other graphs of that stream
    // use, too. It frees those of this stream instead, which has none.
    capture_stream_ =
        c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(this), capture_stream_.device_index());
  }
  c10::MempoolId_t id() const { return mempool_id_; }
  // Reports whether a replay draws random numbers.
  bool draws() const { return !captured_generator_states_.empty(); }

 private:
  // A template, because versions differ in their members.
  template <class G>
  static void end_failed(G &g) noexcept {
    if constexpr (!requires { g.allocated_pool_; }) {
      if (g.capture_ended_) return;
      for (auto &generator : g.captured_generator_states_) {
        auto &state = *generator.first;
        if constexpr (requires { state.capturing_; }) state.capturing_ = false;
      }
      if (g.capture_dev_ == UNDEFINED_DEVICE || g.mempool_id_ == c10::MempoolId_t{0, 0}) return;
      auto quietly = [](auto f) {
        try {
          f();
        } catch (...) {
        }
      };
      auto *host = at::getHostAllocator(at::kCUDA);
      quietly([&] { caching::endAllocateToPool(g.capture_dev_, g.mempool_id_); });
      quietly([&] { host->end_allocate_to_pool(g.mempool_id_); });
      quietly([&] { caching::releasePool(g.capture_dev_, g.mempool_id_); });
      quietly([&] { host->release_pool(g.mempool_id_); });
    }
  }
};

class CudaGraph final : public Graph {
 public:
  ~CudaGraph() override {
    try {
      c10::cuda::CUDAStreamCaptureModeGuard unsafe_too{cudaStreamCaptureModeRelaxed};
      if (expandable_)
        last_replay_.synchronize();
      else  // the memory for the generator's state, freed now, belongs to this stream
        last_replay_.block(c10::cuda::getDefaultCUDAStream(device_));
    } catch (...) {
      // An error of the device, which the next call returns, too.
    }
  }
  void begin(PoolId pool) override {
    const char *uncached = std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING");
    TORCH_CHECK(uncached == nullptr || *uncached == 0,
                "a graph needs the caching allocator, which PYTORCH_NO_CUDA_MEMORY_CACHING turns off");
    device_ = c10::cuda::current_device();
    expandable_ = c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments();
    stream_ = c10::cuda::getCurrentCUDAStream(device_);
    // Calls of other threads, such as those of a sweep, do not end a capture in this mode.
    graph_.capture_begin({pool.first, pool.second}, cudaStreamCaptureModeThreadLocal);
  }

  bool valid() override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream_, &status));
    return status != cudaStreamCaptureStatusInvalidated;
  }

  PoolId end() override {
    graph_.capture_end();
    auto id = graph_.id();
    return {id.first, id.second};
  }

  void replay() override {
    auto stream = c10::cuda::getCurrentCUDAStream(device_);
    std::unique_lock<std::mutex> drawing;
    if (graph_.draws()) {
      // libtorch reads the generator's state and then advances it, without the mutex of operators that draw.
      auto generator = at::cuda::detail::getDefaultCUDAGenerator(device_);
      drawing = std::unique_lock(generator.mutex());
      // Its kernels write the state to memory that the last launch reads. CUDA orders launches alone.
      last_replay_.block(stream);
    }
    graph_.replay();
    if (expandable_ || graph_.draws()) last_replay_.record(stream);
  }

 private:
  Captured graph_;
  // libtorch unmaps an expandable segment when the stream that it was allocated on has no work: that stream has
  // captured the graph, and others replay it. Other segments are freed by cudaFree, which waits for all streams.
  bool expandable_ = false;
  c10::DeviceIndex device_ = 0;
  cudaStream_t stream_ = nullptr;  // that is captured
  c10::Event last_replay_{c10::kCUDA};
};

}  // namespace

std::unique_ptr<Graph> new_cuda_graph() { return std::make_unique<CudaGraph>(); }

}  // namespace ls

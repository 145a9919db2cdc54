// The reducers of linstock/dist.h.
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "dist.h"
#include "passes.h"

namespace ls {
namespace {

using c10::intrusive_ptr;
using c10::ivalue::Future;

// As Python's default, for all tensors that are not gradients.
constexpr size_t kBroadcastBytes = size_t{250} << 20;

// Sends gradients in a shorter dtype, as fp16_compress_hook and bf16_compress_hook of
// torch.distributed.algorithms.ddp_comm_hooks do.
class Compress final : public c10d::CppCommHookInterface<intrusive_ptr<c10d::ProcessGroup>> {
 public:
  Compress(intrusive_ptr<c10d::ProcessGroup> g, at::ScalarType dtype)
      : CppCommHookInterface(std::move(g)), dtype_(dtype) {}
  intrusive_ptr<Future> runHook(c10d::GradBucket &bucket) override {
    std::vector<at::Tensor> sent{bucket.getBuffer().to(dtype_).div_(state_->getSize())};
    auto sum = state_->allreduce(sent)->getFuture();
    return sum->then(
        [buffer = bucket.getBuffer()](Future &f) {
          buffer.copy_(f.value().toTensorVector().at(0));
          return c10::IValue(std::vector<at::Tensor>{buffer});
        },
        c10::ListType::ofTensors());
  }

 private:
  at::ScalarType dtype_;
};

struct Reducer {
  intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  bool find_unused, static_graph;
  // With a static graph: the first backward pass has been seen.
  std::shared_ptr<std::atomic<bool>> seen = std::make_shared<std::atomic<bool>>(false);
  std::mutex mutex;
};

Reducer &reducer_of(ls_reducer r) {
  if (r == 0) throw ArgumentError("no reducer");
  return *reinterpret_cast<Reducer *>(r);
}

std::unordered_map<size_t, std::string> lines(const char *text) {
  std::unordered_map<size_t, std::string> all;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) all.emplace(all.size(), line);
  return all;
}

}  // namespace
}  // namespace ls

ls_error *ls_group_broadcast_coalesced(ls_group group, const ls_tensor *tensors, uint64_t n,
                                       int32_t root) noexcept {
  return ls::run_void([&] {
    auto &g = ls::group_of(group);
    ls::check_rank(root, g.group->getSize());
    if (n == 0) return;
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> list;
    for (const auto &t : ls::tensors_of(tensors, n)) {
      ls::check_tensor(t);
      list.push_back(t.detach());
    }
    c10d::broadcast_coalesced(g.group, list, ls::kBroadcastBytes, root);
  });
}

ls_error *ls_reducer_new(ls_group group, const ls_tensor *parameters, uint64_t n, const char *names,
                         const ls_reducer_options *o, ls_reducer *out) noexcept {
  return ls::run_void([&] {
    auto params = ls::tensors_of(parameters, n);
    if (params.empty()) throw ls::ArgumentError("at least one parameter that requires a gradient is needed");
    for (const auto &p : params) {
      ls::check_tensor(p);
      if (!p.requires_grad() || !p.is_leaf())
        throw ls::ArgumentError("parameters must be leaves that require gradients");
    }
    auto r = std::make_unique<ls::Reducer>();
    r->group = ls::group_of(group).group;
    r->find_unused = o->find_unused != 0;
    r->static_graph = o->static_graph != 0;
    c10d::verify_params_across_processes(r->group, params, std::nullopt);
    // As in Python: one bucket for the first pass where the order of the gradients is not known before it.
    std::vector<size_t> limits{static_cast<size_t>(o->first_bucket_bytes), static_cast<size_t>(o->bucket_bytes)};
    if (r->static_graph || r->find_unused) limits = {static_cast<size_t>(INT64_MAX)};
    std::vector<bool> sparse(params.size(), false);
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(params, limits, sparse));
    std::reverse(buckets.begin(), buckets.end());
    r->reducer = std::make_shared<c10d::Reducer>(
        params, buckets, r->group, sparse, o->bucket_bytes, r->find_unused, o->bucket_view != 0, ls::lines(names),
        o->first_bucket_bytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>{o->first_bucket_bytes, o->bucket_bytes});
    r->logger = std::make_shared<c10d::Logger>(r->reducer);
    r->reducer->set_logger(std::weak_ptr<c10d::Logger>(r->logger));
    r->logger->set_construction_data_and_log("Linstock", {}, -1, true, false, r->static_graph);
    if (r->static_graph) {
      r->reducer->set_static_graph();
      r->logger->set_static_graph();
    }
    if (o->compression == LS_COMPRESS_FP16 || o->compression == LS_COMPRESS_BF16) {
      auto dtype = o->compression == LS_COMPRESS_FP16 ? at::kHalf : at::kBFloat16;
      r->reducer->register_comm_hook(std::make_unique<ls::Compress>(r->group, dtype));
    } else if (o->compression != LS_COMPRESS_NONE) {
      throw ls::ArgumentError("there is no compression " + std::to_string(o->compression));
    }
    *out = reinterpret_cast<ls_reducer>(r.release());
  });
}

ls_error *ls_reducer_before_forward(ls_reducer reducer, int32_t sync, ls_work join,
                                    int32_t divide_by_size) noexcept {
  return ls::run_void([&] {
    auto &r = ls::reducer_of(reducer);
    std::lock_guard<std::mutex> lock(r.mutex);
    if (sync != 0) {
      r.logger->set_runtime_stats_and_log();
      r.reducer->prepare_for_forward();
    }
    if (auto work = ls::c10d_work_of(join)) r.reducer->set_forward_pass_work_handle(work, divide_by_size != 0);
    if (at::GradMode::is_enabled()) r.reducer->rebuild_buckets();
  });
}

ls_error *ls_reducer_after_forward(ls_reducer reducer, int32_t sync, const ls_tensor *outputs,
                                   uint64_t n) noexcept {
  return ls::run_void([&] {
    auto list = ls::tensors_of(outputs, n);
    auto &r = ls::reducer_of(reducer);
    std::lock_guard<std::mutex> lock(r.mutex);
    if (sync != 0)
      r.reducer->prepare_for_backward(r.find_unused && !r.static_graph ? list : std::vector<at::Tensor>{});
    if (!r.static_graph || r.seen->load()) return;
    // The collectives of the first pass of a static graph follow it. Python has a node of its own for it,
    // _DDPSink.
    for (const auto &t : list) {
      if (!t.requires_grad()) continue;
      t.register_hook([weak = std::weak_ptr<c10d::Reducer>(r.reducer), seen = r.seen](const at::Tensor &) {
        if (seen->exchange(true)) return;
        torch::autograd::Engine::get_default_engine().queue_callback([weak] {
          if (auto strong = weak.lock()) strong->delay_all_reduce();
        });
      });
    }
  });
}

ls_error *ls_reducer_join_forward(ls_reducer reducer) noexcept {
  return ls::run_void([&] {
    auto &r = ls::reducer_of(reducer);
    std::lock_guard<std::mutex> lock(r.mutex);
    r.reducer->rebuild_buckets();
  });
}

ls_error *ls_reducer_join_backward(ls_reducer reducer) noexcept {
  return ls::run_void([&] {
    auto &r = ls::reducer_of(reducer);
    std::lock_guard<std::mutex> lock(r.mutex);
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> sums;
    for (auto &bucket : r.reducer->get_grad_buckets(/*return_zero_tensors=*/true))
      sums.push_back(r.reducer->run_comm_hook(bucket));
    for (auto &f : sums) f->waitAndThrow();
    if (r.find_unused) {
      std::vector<at::Tensor> used{r.reducer->get_local_used_map_on_device()};
      r.group->allreduce(used)->wait();
    }
    r.reducer->push_rebuilt_params_for_all_indices();
  });
}

ls_error *ls_reducer_times(ls_reducer reducer, int64_t *times) noexcept {
  return ls::run_void([&] {
    auto &r = ls::reducer_of(reducer);
    std::lock_guard<std::mutex> lock(r.mutex);
    auto data = r.logger->get_ddp_logging_data();
    const char *names[] = {"avg_forward_compute_time", "avg_backward_compute_time", "avg_backward_comm_time",
                           "avg_backward_compute_comm_overlap_time"};
    for (size_t i = 0; i < 4; i++) times[i] = data.ints_map[names[i]];
  });
}

void ls_reducer_free(ls_reducer reducer) noexcept {
  ls::run_quiet([&] {
    if (reducer == 0) return;
    // Its hooks on the parameters hold its address.
    ls::after_passes([r = &ls::reducer_of(reducer)] { delete r; });
  });
}

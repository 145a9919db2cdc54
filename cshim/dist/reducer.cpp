// The reducers of linstock/dist.h.
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <mutex>
#include <random>
#include <sstream>
#include <unordered_map>

#include "device.h"
#include "dist.h"
#include "hooks.h"
#include "passes.h"

namespace ls {
namespace {

using c10::intrusive_ptr;
using c10::ivalue::Future;

// As Python's default, for all tensors that are not gradients.
constexpr size_t kBroadcastBytes = size_t{250} << 20;

// By what a hook divides sums, as the reducer does without one: the number of ranks, or in a Join of those that
// have inputs.
struct Divisor {
  int ranks;
  // Counts those that have inputs; may be nullptr.
  intrusive_ptr<c10d::Work> count;

  int get() {
    if (count) {
      count->wait();
      ranks = count->getFuture()->value().toTensorVector().at(0).item<int>();
      count.reset();
    }
    return ranks;
  }
};

// Sends gradients in a shorter dtype, as fp16_compress_hook and bf16_compress_hook of
// torch.distributed.algorithms.ddp_comm_hooks do.
class Compress final : public c10d::CppCommHookInterface<intrusive_ptr<c10d::ProcessGroup>> {
 public:
  Compress(intrusive_ptr<c10d::ProcessGroup> g, at::ScalarType dtype, std::shared_ptr<Divisor> divisor)
      : CppCommHookInterface(std::move(g)), dtype_(dtype), divisor_(std::move(divisor)) {}
  intrusive_ptr<Future> runHook(c10d::GradBucket &bucket) override {
    std::vector<at::Tensor> sent{bucket.getBuffer().to(dtype_).div_(divisor_->get())};
    auto sum = state_->allreduce(sent)->getFuture();
    return sum->then(
        [buffer = bucket.getBuffer()](Future &f) {
          buffer.copy_(f.value().toTensorVector().at(0));
          return c10::IValue(std::vector<at::Tensor>{buffer});
        },
        c10::ListType::ofTensors());
  }

 private:
  const at::ScalarType dtype_;
  const std::shared_ptr<Divisor> divisor_;
};

// Makes the columns of the matrices orthonormal, as _orthogonalize of powerSGD_hook.py does.
void orthogonalize(const at::Tensor &matrices, double epsilon) {
  const int64_t columns = matrices.size(2);
  const auto dtype = matrices.scalar_type();
  if (columns > 2 && dtype != at::kHalf && dtype != at::kBFloat16) {
    matrices.copy_(std::get<0>(at::linalg_qr(matrices)));
    return;
  }
  for (int64_t i = 0; i < columns; i++) {
    auto column = matrices.narrow(2, i, 1);
    auto norm = at::linalg_vector_norm(column, 2, {1}, /*keepdim=*/true);
    column.div_(epsilon == 0 ? norm : norm.add(epsilon));
    if (i + 1 == columns) break;
    auto rest = matrices.narrow(2, i + 1, columns - i - 1);
    rest.sub_(at::sum(column * rest, {1}, /*keepdim=*/true).mul(column));
  }
}

// Sends matrices as products of two small ones, as powerSGD_hook of torch.distributed.algorithms.ddp_comm_hooks
// does with error feedback and warm start. It waits for its collectives, so that all ranks start them in the same
// order.
class PowerSGD final : public c10d::CppCommHookInterface<intrusive_ptr<c10d::ProcessGroup>> {
 public:
  PowerSGD(intrusive_ptr<c10d::ProcessGroup> g, const ls_reducer_options &o)
      : CppCommHookInterface(std::move(g)),
        rank_(o.power_rank),
        start_(o.power_start),
        min_rate_(o.power_min_rate),
        epsilon_(o.power_epsilon) {
    // Buckets change after the first pass.
    if (rank_ < 1 || start_ < 2 || !(min_rate_ > 0) || !(epsilon_ >= 0))
      throw ArgumentError("PowerSGD needs a rank of at least 1, a start of at least 2 and a positive rate");
  }
  intrusive_ptr<Future> runHook(c10d::GradBucket &bucket) override {
    at::NoGradGuard no_grad;
    auto &buffer = bucket.getBufferRef();
    if (passes_ < start_)
      sum(buffer.div_(state_->getSize()));
    else
      compress(bucket);
    if (bucket.isLast()) passes_++;
    auto done = c10::make_intrusive<Future>(c10::ListType::ofTensors());
    done->markCompleted(std::vector<at::Tensor>{buffer});
    return done;
  }

 private:
  // What a bucket has from one pass to the next.
  struct Memory {
    at::Tensor error, p, q;
  };

  int64_t rank_of(const at::Tensor &matrix) const { return std::min({matrix.size(1), matrix.size(2), rank_}); }

  void sum(const at::Tensor &t) {
    std::vector<at::Tensor> list{t};
    state_->allreduce(list)->wait();
  }

  void compress(c10d::GradBucket &bucket) {
    auto buffer = bucket.getBuffer();
    auto &memory = memories_[bucket.getIndex()];
    if (memory.error.defined())
      buffer.add_(memory.error);
    else
      memory.error = at::zeros_like(buffer);
    auto whole = buffer.clone();

    std::vector<at::Tensor> matrices, others, ps, qs;
    int64_t p_size = 0, q_size = 0;
    for (const auto &gradient : bucket.getGradients()) {
      if (gradient.numel() == 0) continue;
      auto matrix = gradient.view({1, gradient.dim() == 0 ? 1 : gradient.size(0), -1});
      const int64_t n = matrix.size(1), m = matrix.size(2), rank = rank_of(matrix);
      if (static_cast<double>((n + m) * rank) * min_rate_ >= static_cast<double>(n * m)) {
        others.push_back(gradient);
        continue;
      }
      p_size += n * rank;
      q_size += m * rank;
      // Matrices of one shape follow each other; the random numbers are drawn in this order.
      auto same = std::find_if(matrices.rbegin(), matrices.rend(),
                               [&](const at::Tensor &other) { return other.sizes() == matrix.sizes(); });
      matrices.insert(same == matrices.rend() ? matrices.end() : same.base(), matrix);
    }
    const bool first = !memory.p.defined();
    if (first) {
      memory.p = at::empty({p_size}, buffer.options());
      memory.q = at::empty({q_size}, buffer.options());
    }
    int64_t p_begin = 0, q_begin = 0;
    for (const auto &matrix : matrices) {
      const int64_t n = matrix.size(1), m = matrix.size(2), rank = rank_of(matrix);
      ps.push_back(memory.p.narrow(0, p_begin, n * rank).view({1, n, rank}));
      qs.push_back(memory.q.narrow(0, q_begin, m * rank).view({1, m, rank}));
      p_begin += n * rank;
      q_begin += m * rank;
    }
    if (first) {
      // On the CPU, whose numbers are the same on all devices.
      auto generator = at::detail::createCPUGenerator(next_seed());
      auto options = buffer.options().device(at::kCPU);
      for (const auto &q : qs) q.copy_(at::randn(q.sizes(), generator, options));
    }
    for (const auto &q : qs) orthogonalize(q, epsilon_);
    for (size_t i = 0; i < matrices.size(); i++) at::bmm_out(ps[i], matrices[i], qs[i]);

    std::vector<at::Tensor> flat;
    for (const auto &t : others) flat.push_back(t.reshape({-1}));
    auto together = flat.empty() ? at::empty({0}, buffer.options()) : at::cat(flat);
    sum(together);
    together.div_(state_->getSize());
    int64_t begin = 0;
    for (const auto &t : others) {
      t.copy_(together.narrow(0, begin, t.numel()).view_as(t));
      begin += t.numel();
    }
    sum(memory.p);
    for (const auto &p : ps) orthogonalize(p, epsilon_);
    for (size_t i = 0; i < matrices.size(); i++) at::bmm_out(qs[i], matrices[i].transpose(1, 2), ps[i]);
    sum(memory.q);
    memory.q.div_(state_->getSize());
    for (size_t i = 0; i < matrices.size(); i++) at::bmm_out(matrices[i], ps[i], qs[i].transpose(1, 2));
    memory.error = whole.sub_(buffer);
  }

  // The numbers of numpy.random.RandomState(0).randint(1_000_000_000).
  uint64_t next_seed() {
    for (;;) {
      auto n = seeds_() & ((1U << 30) - 1);
      if (n < 1'000'000'000) return n;
    }
  }

  const int64_t rank_, start_;
  const double min_rate_, epsilon_;
  int64_t passes_ = 0;
  std::unordered_map<size_t, Memory> memories_;
  std::mt19937 seeds_{0};
};

// The hooks that copy sparse gradients, with their parameters. They are removed by the destructor, which must not
// run under the lock of the passes: hooks have locks that come before it.
struct Copying {
  std::vector<std::pair<at::Tensor, uint32_t>> hooks;
  Copying() = default;
  Copying(const Copying &) = delete;
  Copying &operator=(const Copying &) = delete;
  ~Copying() {
    for (auto &[t, number] : hooks) remove_hook(t, number);
  }
};

struct Reducer {
  intrusive_ptr<c10d::ProcessGroup> group;
  std::shared_ptr<DeviceBackend> device;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  bool find_unused, static_graph;
  // With a static graph: the first backward pass has been seen, or this rank had no inputs for it.
  std::shared_ptr<std::atomic<bool>> seen = std::make_shared<std::atomic<bool>>(false);
  bool missed = false;
  std::shared_ptr<Divisor> divisor;
  std::mutex mutex;
  std::shared_ptr<Copying> copying = std::make_shared<Copying>();
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
      ls::check_tensor(g, t);
      list.push_back(t.detach());
    }
    ls::check_open(g);
    ls::WithoutSigpipe threads;  // of NCCL, which may connect
    c10d::broadcast_coalesced(g.group, list, ls::kBroadcastBytes, root);
    ls::check_open(g);
  });
}

ls_error *ls_reducer_new(ls_group group, const ls_tensor *parameters, uint64_t n, const uint8_t *flags,
                         const char *names, const ls_reducer_options *o, ls_reducer *out) noexcept {
  return ls::run_void([&] {
    auto params = ls::tensors_of(parameters, n);
    if (params.empty()) throw ls::ArgumentError("at least one parameter that requires a gradient is needed");
    auto &g = ls::group_of(group);
    ls::check_open(g);
    for (const auto &p : params) {
      ls::check_dense(g, p);  // the reducer's buckets have the parameters' strides
      if (!p.requires_grad() || !p.is_leaf())
        throw ls::ArgumentError("parameters must be leaves that require gradients");
    }
    ls::WithoutSigpipe threads;  // of NCCL, which may connect
    auto r = std::make_unique<ls::Reducer>();
    r->group = g.group;
    r->device = g.device;
    r->divisor = std::make_shared<ls::Divisor>(ls::Divisor{g.group->getSize(), nullptr});
    r->find_unused = o->find_unused != 0;
    r->static_graph = o->static_graph != 0;
    c10d::verify_params_across_processes(r->group, params, std::nullopt);
    ls::check_open(g);
    // As in Python, so that ranks in Python have the same buckets: one bucket for the first pass if the reducer
    // then makes others in the order in which the gradients came, and those of the parameters' order if it never
    // does.
    const auto first = static_cast<size_t>(o->first_bucket_bytes), cap = static_cast<size_t>(o->bucket_bytes);
    std::vector<size_t> limits{static_cast<size_t>(INT64_MAX)};
    if (r->find_unused && !r->static_graph)
      limits = first < cap ? std::vector<size_t>{first, cap} : std::vector<size_t>{cap};
    std::vector<bool> sparse(params.size(), false);
    if (flags != nullptr) sparse.assign(flags, flags + params.size());
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(params, limits, sparse));
    std::reverse(buckets.begin(), buckets.end());
    r->reducer = std::make_shared<c10d::Reducer>(
        params, buckets, r->group, sparse, o->bucket_bytes, r->find_unused, o->bucket_view != 0, ls::lines(names),
        o->first_bucket_bytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
    // The reducer divides a sparse gradient in place. Its values may be those of the gradient of another operator.
    for (size_t i = 0; i < params.size(); i++) {
      if (!sparse[i]) continue;
      auto copy = [](const at::Tensor &grad) { return grad.is_sparse() ? grad.clone() : at::Tensor(); };
      r->copying->hooks.emplace_back(params[i], ls::add_hook(params[i], copy));
    }
    r->logger = std::make_shared<c10d::Logger>(r->reducer);
    r->reducer->set_logger(std::weak_ptr<c10d::Logger>(r->logger));
    // It would take the wrapper of a checked group's backend for a gloo backend.
    if (!g.checked) r->logger->set_construction_data_and_log("Linstock", {}, -1, true, false, r->static_graph);
    if (r->static_graph) {
      r->reducer->set_static_graph();
      r->logger->set_static_graph();
    }
    if (o->compression == LS_COMPRESS_FP16 || o->compression == LS_COMPRESS_BF16) {
      auto dtype = o->compression == LS_COMPRESS_FP16 ? at::kHalf : at::kBFloat16;
      r->reducer->register_comm_hook(std::make_unique<ls::Compress>(r->group, dtype, r->divisor));
    } else if (o->compression == LS_COMPRESS_POWER_SGD) {
      if (std::find(sparse.begin(), sparse.end(), true) != sparse.end())
        throw ls::ArgumentError("PowerSGD cannot send sparse gradients");
      r->reducer->register_comm_hook(std::make_unique<ls::PowerSGD>(r->group, *o));
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
      if (r.missed)
        throw ls::ArgumentError(
            "with StaticGraph, a rank needs inputs in the first step of the others to take part in later ones");
      if (r.device) ls::refuse_in_capture("a pass that averages gradients by NCCL");
      r.logger->set_runtime_stats_and_log();
      r.reducer->prepare_for_forward();
    }
    auto work = ls::c10d_work_of(join);
    // Also without a work: c10d would keep the one of the last Join.
    r.reducer->set_forward_pass_work_handle(work, divide_by_size != 0);
    r.divisor->ranks = r.group->getSize();
    r.divisor->count = divide_by_size != 0 ? nullptr : work;
    // In a Join, ranks without inputs do not know whether this pass has gradients.
    if (work || at::GradMode::is_enabled()) r.reducer->rebuild_buckets();
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
      ls::add_hook(t, [weak = std::weak_ptr<c10d::Reducer>(r.reducer), seen = r.seen](const at::Tensor &) {
        if (seen->exchange(true)) return at::Tensor();
        torch::autograd::Engine::get_default_engine().queue_callback([weak] {
          if (auto strong = weak.lock()) strong->delay_all_reduce();
        });
        return at::Tensor();
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
    auto sum_used = [&] {
      // This rank uses none. The reducer's own map has the sum of the last pass.
      std::vector<at::Tensor> used{at::zeros_like(r.reducer->get_local_used_map_on_device())};
      r.group->allreduce(used)->wait();
    };
    // The map precedes the buckets in the first pass of a static graph, and later passes have none.
    const bool first = r.static_graph && !r.seen->exchange(true);
    if (first) {
      r.missed = true;
      sum_used();
    }
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> sums;
    for (auto &bucket : r.reducer->get_grad_buckets(/*return_zero_tensors=*/true))
      sums.push_back(r.reducer->run_comm_hook(bucket));
    for (auto &f : sums) f->waitAndThrow();
    if (r.find_unused && !r.static_graph) sum_used();
    if (r.device) r.device->settle();
    // After the first pass of a static graph, ranks with inputs do not rebuild buckets either.
    if (!first) r.reducer->push_rebuilt_params_for_all_indices();
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
    auto *r = &ls::reducer_of(reducer);
    // libtorch's hooks on the parameters hold its address. Passes in flight need the copies, too.
    ls::after_passes([r, copying = r->copying] { delete r; });
  });
}

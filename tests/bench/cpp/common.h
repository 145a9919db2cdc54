// What the C++ programs of the benchmarks share: clocks, memory, parameters, and the fused optimizers.
#ifndef LINSTOCK_BENCH_COMMON_H_
#define LINSTOCK_BENCH_COMMON_H_

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

namespace bench {

using at::Tensor;
using std::vector;

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The device of the tasks.
inline c10::Device device(c10::kCPU);
inline at::TensorOptions on(c10::ScalarType dtype = at::kFloat) { return at::TensorOptions(device).dtype(dtype); }

inline long rss_kb() {
  long pages = 0, resident = 0;
  FILE *f = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(f, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(f);
  return resident * 4;
}

inline long peak_kb() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_maxrss;
}

inline Tensor param(at::IntArrayRef shape, double std, c10::ScalarType dtype = at::kFloat) {
  Tensor t = at::randn(shape, on(dtype));
  t.mul_(std);
  t.set_requires_grad(true);
  return t;
}
inline Tensor filled(at::IntArrayRef shape, double v, c10::ScalarType dtype = at::kFloat) {
  Tensor t = at::full(shape, v, on(dtype));
  t.set_requires_grad(true);
  return t;
}

// What the optimizers have in common.
struct Optimizer {
  vector<Tensor> params;
  void zero() {
    for (auto &t : params) t.mutable_grad().reset();
  }
  vector<Tensor> grads() const {
    vector<Tensor> all;
    for (auto &t : params) all.push_back(t.grad());
    return all;
  }
};

// Fused Adam and AdamW, as torch.optim implements them.
struct Adam : Optimizer {
  vector<Tensor> avgs, sqs, steps;
  double lr, decay;
  bool w;
  Adam(vector<Tensor> p, double lr, double decay, bool w) : Optimizer{std::move(p)}, lr(lr), decay(decay), w(w) {
    for (auto &t : params) {
      avgs.push_back(at::zeros_like(t));
      sqs.push_back(at::zeros_like(t));
      steps.push_back(at::zeros({}, on()));
    }
  }
  void step() {
    at::AutoGradMode off(false);
    at::_foreach_add_(steps, 1);
    if (w)
      at::_fused_adamw_(params, grads(), avgs, sqs, {}, steps, lr, 0.9, 0.999, decay, 1e-8, false, false);
    else
      at::_fused_adam_(params, grads(), avgs, sqs, {}, steps, lr, 0.9, 0.999, decay, 1e-8, false, false);
  }
};

// Fused SGD with momentum, as torch.optim implements it.
struct SGD : Optimizer {
  vector<Tensor> momentum;
  double lr;
  bool first = true;
  SGD(vector<Tensor> p, double lr) : Optimizer{std::move(p)}, lr(lr) {
    for (auto &t : params) momentum.push_back(at::empty_like(t));
  }
  void step() {
    at::AutoGradMode off(false);
    at::_fused_sgd_(params, grads(), momentum, /*weight_decay=*/0, /*momentum=*/0.9, lr, /*dampening=*/0,
                    /*nesterov=*/false, /*maximize=*/false, first);
    first = false;
  }
};

inline void backward(const Tensor &loss) { torch::autograd::backward({loss}); }

}  // namespace bench

#endif  // LINSTOCK_BENCH_COMMON_H_

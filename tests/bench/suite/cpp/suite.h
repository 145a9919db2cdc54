// What the workloads share: numbers, parameters, layers, a training step.
#ifndef LINSTOCK_BENCH_SUITE_H_
#define LINSTOCK_BENCH_SUITE_H_

#include <cmath>
#include <functional>
#include <memory>

#include "../../cpp/common.h"

namespace suite {

using at::Tensor;
using bench::vector;

// The sequence of numbers.go.
class Numbers {
 public:
  Tensor floats(at::IntArrayRef shape, double bound = 1) {
    Tensor t = at::empty(shape);
    float *v = t.mutable_data_ptr<float>();
    for (int64_t i = 0; i < t.numel(); i++)
      v[i] = (static_cast<float>(next() >> 8) / (1 << 23) - 1) * static_cast<float>(bound);
    return t;
  }
  Tensor ints(uint32_t below, at::IntArrayRef shape) {
    Tensor t = at::empty(shape, at::kLong);
    int64_t *v = t.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < t.numel(); i++) v[i] = next() % below;
    return t;
  }
  // As fill in numbers.go.
  void fill(const vector<Tensor> &params) {
    at::AutoGradMode off(false);
    for (const Tensor &p : params) {
      if (p.dim() > 1)
        p.copy_(floats(p.sizes(), 1 / std::sqrt(static_cast<double>(p.numel() / p.size(0)))));
      else if (p[0].item<float>() != 1)
        p.copy_(floats(p.sizes(), 0.1));
    }
  }

 private:
  uint32_t i_ = 0;
  uint32_t next() {
    uint32_t z = ++i_;
    z ^= z >> 16;
    z *= 0x7feb352d;
    z ^= z >> 15;
    z *= 0x2c1b3c6d;
    return z ^ z >> 16;
  }
};

// A layer adds its parameters to a list as it is made.
using Params = vector<Tensor>;

inline Tensor parameter(Params &p, at::IntArrayRef shape, double v = 0) {
  p.push_back(bench::filled(shape, v));
  return p.back();
}

struct Linear {
  Tensor w, b;
  Linear(Params &p, int64_t in, int64_t out) : w(parameter(p, {out, in})), b(parameter(p, {out})) {}
  Tensor operator()(const Tensor &x) const { return at::linear(x, w, b); }
};

struct LayerNorm {
  Tensor w, b;
  LayerNorm(Params &p, int64_t width) : w(parameter(p, {width}, 1)), b(parameter(p, {width})) {}
  Tensor operator()(const Tensor &x) const { return at::layer_norm(x, w.sizes(), w, b); }
};

// Linear layers with ReLU between them.
struct MLP {
  vector<Linear> layers;
  MLP(Params &p, const vector<int64_t> &sizes) {
    for (size_t i = 0; i + 1 < sizes.size(); i++) layers.emplace_back(p, sizes[i], sizes[i + 1]);
  }
  Tensor operator()(Tensor x) const {
    for (size_t i = 0; i < layers.size(); i++) {
      x = layers[i](x);
      if (i + 1 < layers.size()) x = at::relu(x);
    }
    return x;
  }
};

// A step. If read is true it returns its loss, otherwise 0.
using Step = std::function<double(bool read)>;

inline double number(const Tensor &t, bool read) { return read ? t.item<double>() : 0; }

template <class Optimizer, class Loss>
Step training(Optimizer opt, Loss loss) {
  return [opt, loss](bool read) mutable {
    Tensor l = loss();
    opt.zero();
    bench::backward(l);
    opt.step();
    return number(l, read);
  };
}

// Fills the parameters and trains them with Adam.
template <class Loss>
Step adam(Numbers &n, const Params &p, Loss loss) {
  n.fill(p);
  return training(bench::Adam(p, 1e-3, 0, false), loss);
}

using Make = Step(Numbers &);
Make tiny_mlp, deep_mlp, mlp, residual_tower, refinement, feedback, gated;
Make gru, lstm, recurrent_attention;
Make convnet, autoencoder, resnet18, cnn256;
Make encoder, embedding, gpt_step, gpt_evaluation, gpt_generation;
Make request, add;

}  // namespace suite

#endif  // LINSTOCK_BENCH_SUITE_H_

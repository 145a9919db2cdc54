#include "suite.h"

namespace suite {

namespace {

struct Conv {
  Tensor w, b;
  int64_t stride, pad;
  Conv(Params &p, int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, bool bias = true)
      : w(parameter(p, {out, in, kernel, kernel})), stride(stride), pad(kernel / 2) {
    if (bias) b = parameter(p, {out});
  }
  Tensor operator()(const Tensor &x) const { return at::conv2d(x, w, b, {stride, stride}, {pad, pad}); }
};

struct BatchNorm {
  Tensor w, b, mean, var;
  BatchNorm(Params &p, int64_t width)
      : w(parameter(p, {width}, 1)), b(parameter(p, {width})), mean(at::zeros({width})), var(at::ones({width})) {}
  Tensor operator()(const Tensor &x) const {
    return at::batch_norm(x, w, b, mean, var, /*training=*/true, 0.1, 1e-5, /*cudnn_enabled=*/true);
  }
};

// A transposed convolution that doubles height and width.
struct Upsample {
  Tensor w, b;
  Upsample(Params &p, int64_t in, int64_t out) : w(parameter(p, {in, out, 4, 4})), b(parameter(p, {out})) {}
  Tensor operator()(const Tensor &x) const { return at::conv_transpose2d(x, w, b, {2, 2}, {1, 1}); }
};

// The block of ResNet-18.
struct BasicBlock {
  Conv conv1;
  BatchNorm bn1;
  Conv conv2;
  BatchNorm bn2;
  vector<Conv> down;
  vector<BatchNorm> down_bn;
  BasicBlock(Params &p, int64_t in, int64_t out, int64_t stride)
      : conv1(p, in, out, 3, stride, false), bn1(p, out), conv2(p, out, out, 3, 1, false), bn2(p, out) {
    if (stride != 1) {
      down.emplace_back(p, in, out, 1, stride, false);
      down_bn.emplace_back(p, out);
    }
  }
  Tensor operator()(const Tensor &x) const {
    Tensor y = at::relu(bn1(conv1(x)));
    y = bn2(conv2(y));
    return at::relu(y.add(down.empty() ? x : down_bn[0](down[0](x))));
  }
};

}  // namespace

Step convnet(Numbers &n) {
  Params p;
  Conv a(p, 3, 16, 3), b(p, 16, 32, 3), c(p, 32, 64, 3);
  MLP head(p, {64 * 4 * 4, 128, 10});
  Tensor x = n.floats({32, 3, 32, 32}), y = n.ints(10, {32});
  return adam(n, p, [=] {
    Tensor h = at::max_pool2d(at::relu(a(x)), {2, 2});
    h = at::max_pool2d(at::relu(b(h)), {2, 2});
    h = at::max_pool2d(at::relu(c(h)), {2, 2});
    return at::cross_entropy_loss(head(h.flatten(1)), y);
  });
}

Step autoencoder(Numbers &n) {
  Params p;
  Conv a(p, 1, 16, 3, 2), b(p, 16, 32, 3, 2);
  Upsample c(p, 32, 16), d(p, 16, 1);
  Tensor x = n.floats({32, 1, 32, 32});
  return adam(n, p, [=] {
    Tensor h = at::relu(a(x));
    h = at::relu(b(h));
    h = at::relu(c(h));
    return at::mse_loss(at::tanh(d(h)), x);
  });
}

Step resnet18(Numbers &n) {
  Params p;
  Conv stem(p, 3, 64, 7, 2, false);
  BatchNorm bn(p, 64);
  vector<BasicBlock> blocks;
  for (int64_t in = 64, out = 64; out <= 512; in = out, out *= 2) {
    blocks.emplace_back(p, in, out, in == out ? 1 : 2);
    blocks.emplace_back(p, out, out, 1);
  }
  Linear head(p, 512, 1000);
  Tensor x = n.floats({8, 3, 64, 64}), y = n.ints(1000, {8});
  n.fill(p);
  return training(bench::SGD(p, 0.01), [=] {
    Tensor h = at::max_pool2d(at::relu(bn(stem(x))), {3, 3}, {2, 2}, {1, 1});
    for (auto &b : blocks) h = b(h);
    return at::cross_entropy_loss(head(at::adaptive_avg_pool2d(h, {1, 1}).flatten(1)), y);
  });
}

Step cnn256(Numbers &n) {
  Params p;
  Conv a(p, 3, 16, 3);
  BatchNorm bn_a(p, 16);
  Conv b(p, 16, 32, 3);
  BatchNorm bn_b(p, 32);
  Conv c(p, 32, 64, 3);
  BatchNorm bn_c(p, 64);
  Linear head(p, 64, 10);
  Tensor x = n.floats({4, 3, 256, 256}), y = n.ints(10, {4});
  return adam(n, p, [=] {
    Tensor h = at::max_pool2d(at::relu(bn_a(a(x))), {2, 2});
    h = at::max_pool2d(at::relu(bn_b(b(h))), {2, 2});
    h = at::relu(bn_c(c(h)));
    return at::cross_entropy_loss(head(at::adaptive_avg_pool2d(h, {1, 1}).flatten(1)), y);
  });
}

}  // namespace suite

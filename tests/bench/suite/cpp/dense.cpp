#include "suite.h"

namespace suite {

namespace {

Step classify(Numbers &n, const vector<int64_t> &sizes, int64_t rows) {
  Params p;
  MLP m(p, sizes);
  Tensor x = n.floats({rows, sizes.front()}), y = n.ints(10, {rows});
  return adam(n, p, [=] { return at::cross_entropy_loss(m(x), y); });
}

}  // namespace

Step tiny_mlp(Numbers &n) { return classify(n, {32, 64, 64, 10}, 32); }

Step deep_mlp(Numbers &n) {
  vector<int64_t> sizes(24, 64);
  sizes.push_back(10);
  return classify(n, sizes, 64);
}

Step mlp(Numbers &n) { return classify(n, {784, 256, 128, 64, 10}, 128); }

Step residual_tower(Numbers &n) {
  struct Block {
    LayerNorm norm;
    MLP mlp;
  };
  Params p;
  vector<Block> blocks;
  for (int i = 0; i < 8; i++) {
    LayerNorm norm(p, 256);
    blocks.push_back({norm, MLP(p, {256, 256, 256})});
  }
  Tensor x = n.floats({64, 256}), y = n.floats({64, 256});
  return adam(n, p, [=] {
    Tensor h = x;
    for (auto &b : blocks) h = h.add(b.mlp(b.norm(h)));
    return at::mse_loss(h, y);
  });
}

Step refinement(Numbers &n) {
  Params p;
  Linear in(p, 64, 128);
  LayerNorm norm(p, 128);
  Linear a(p, 128, 128), b(p, 128, 128), out(p, 128, 64);
  Tensor x = n.floats({128, 64}), y = n.floats({128, 64});
  return adam(n, p, [=] {
    Tensor h = in(x);
    for (int i = 0; i < 5; i++) h = h.add(b(at::gelu(a(norm(h)))));
    return at::mse_loss(out(h), y);
  });
}

Step feedback(Numbers &n) {
  Params p;
  Linear body(p, 64 + 128, 128), out(p, 128, 64);
  Tensor x = n.floats({128, 64}), y = n.floats({128, 64});
  return adam(n, p, [=] {
    Tensor h = at::zeros({128, 128});
    for (int i = 0; i < 10; i++) h = at::tanh(body(at::cat({x, h}, 1)));
    return at::mse_loss(out(h), y);
  });
}

Step gated(Numbers &n) {
  Params p;
  Linear router(p, 128, 3);
  vector<MLP> experts;
  for (int i = 0; i < 3; i++) experts.emplace_back(p, vector<int64_t>{128, 512, 128});
  Tensor x = n.floats({512, 128}), y = n.floats({512, 128});
  return adam(n, p, [=] {
    Tensor gate = at::softmax(router(x), 1);
    Tensor sum = at::zeros({512, 128});
    for (int i = 0; i < 3; i++) sum = sum.add(experts[i](x).mul(gate.narrow(1, i, 1)));
    return at::mse_loss(sum, y);
  });
}

}  // namespace suite

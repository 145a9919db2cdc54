// The GPT of the benchmarks, as examples/chargpt has it.
#ifndef LINSTOCK_BENCH_GPT_H_
#define LINSTOCK_BENCH_GPT_H_

#include "common.h"

namespace bench {

struct Config {
  int64_t vocab = 97, width = 128, layers = 4, heads = 4, context = 64;
  c10::ScalarType dtype = at::kFloat;
};

struct GPT {
  Config c;
  struct Block {
    Tensor ln1w, ln1b, qkvw, qkvb, projw, projb, ln2w, ln2b, fcw, fcb, outw, outb;
  };
  Tensor tok, pos, lnw, lnb, head;
  vector<Block> blocks;
  explicit GPT(Config config = {}) : c(config) {
    int64_t width = c.width;
    auto weight = [&](int64_t out, int64_t in) { return param({out, in}, 0.02, c.dtype); };
    auto vec = [&](int64_t n, double v) { return filled({n}, v, c.dtype); };
    tok = weight(c.vocab, width);
    pos = weight(c.context, width);
    for (int i = 0; i < c.layers; i++) {
      blocks.push_back({vec(width, 1), vec(width, 0), weight(3 * width, width), vec(3 * width, 0),
                        weight(width, width), vec(width, 0), vec(width, 1), vec(width, 0),
                        weight(4 * width, width), vec(4 * width, 0), weight(width, 4 * width), vec(width, 0)});
    }
    lnw = vec(width, 1);
    lnb = vec(width, 0);
    head = weight(c.vocab, width);
  }
  vector<Tensor> params() {
    vector<Tensor> p{tok, pos};
    for (auto &b : blocks)
      p.insert(p.end(),
               {b.ln1w, b.ln1b, b.qkvw, b.qkvb, b.projw, b.projb, b.ln2w, b.ln2b, b.fcw, b.fcb, b.outw, b.outb});
    p.insert(p.end(), {lnw, lnb, head});
    return p;
  }
  Tensor attention(const Tensor &x, const Block &b) {
    int64_t n = x.size(0), t = x.size(1), width = c.width;
    auto qkv =
        at::linear(x, b.qkvw, b.qkvb).view({n, t, 3, c.heads, width / c.heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    qkv.clear();
    return at::linear(y.transpose(1, 2).reshape({n, t, width}), b.projw, b.projb);
  }
  Tensor forward(const Tensor &ids) {
    int64_t width = c.width;
    Tensor x = at::embedding(tok, ids).add(pos.slice(0, 0, ids.size(1)));
    for (auto &b : blocks) {
      x = x.add(attention(at::layer_norm(x, {width}, b.ln1w, b.ln1b), b));
      x = x.add(at::linear(at::gelu(at::linear(at::layer_norm(x, {width}, b.ln2w, b.ln2b), b.fcw, b.fcb)), b.outw,
                           b.outb));
    }
    return at::linear(at::layer_norm(x, {width}, lnw, lnb), head);
  }
};

}  // namespace bench

#endif  // LINSTOCK_BENCH_GPT_H_

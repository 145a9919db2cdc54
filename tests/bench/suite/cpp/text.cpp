#include "../../cpp/gpt.h"
#include "suite.h"

namespace suite {

using bench::GPT;

namespace {

// torch.nn.TransformerEncoderLayer with its default post-norm and ReLU.
struct EncoderLayer {
  static constexpr int64_t heads = 4;
  Tensor in_w, in_b;
  Linear out;
  MLP feed_forward;
  LayerNorm norm1, norm2;
  EncoderLayer(Params &p, int64_t width)
      : in_w(parameter(p, {3 * width, width})),
        in_b(parameter(p, {3 * width})),
        out(p, width, width),
        feed_forward(p, {width, 4 * width, width}),
        norm1(p, width),
        norm2(p, width) {}
  Tensor attention(const Tensor &x) const {
    int64_t n = x.size(0), t = x.size(1), width = x.size(2);
    auto qkv = at::linear(x, in_w, in_b).chunk(3, -1);
    for (auto &part : qkv) part = part.view({n, t, heads, width / heads}).transpose(1, 2);
    Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]);
    // Time first, as torch.nn.MultiheadAttention computes it.
    return out(y.permute({2, 0, 1, 3}).reshape({t, n, width})).transpose(0, 1);
  }
  Tensor operator()(Tensor x) const {
    x = norm1(x.add(attention(x)));
    return norm2(x.add(feed_forward(x)));
  }
};

}  // namespace

Step encoder(Numbers &n) {
  Params p;
  EncoderLayer a(p, 128), b(p, 128);
  Linear head(p, 128, 10);
  Tensor x = n.floats({16, 32, 128}), y = n.ints(10, {16});
  return adam(n, p, [=] { return at::cross_entropy_loss(head(b(a(x)).mean(1)), y); });
}

Step embedding(Numbers &n) {
  Params p;
  Tensor table = parameter(p, {20000, 64});
  Linear head(p, 64, 10);
  Tensor x = n.ints(20000, {64, 32}), y = n.ints(10, {64});
  return adam(n, p, [=] { return at::cross_entropy_loss(head(at::embedding(table, x).mean(1)), y); });
}

namespace {

Tensor gpt_loss(GPT &m, const Tensor &x, const Tensor &y) {
  Tensor logits = m.forward(x);
  return at::cross_entropy_loss(logits.view({-1, m.c.vocab}), y.view({-1}));
}

}  // namespace

Step gpt_step(Numbers &n) {
  GPT m;
  Tensor x = n.ints(m.c.vocab, {16, m.c.context}), y = n.ints(m.c.vocab, {16, m.c.context});
  n.fill(m.params());
  return training(bench::Adam(m.params(), 1e-3, 0.01, true), [=]() mutable { return gpt_loss(m, x, y); });
}

Step gpt_evaluation(Numbers &n) {
  GPT m;
  Tensor x = n.ints(m.c.vocab, {64, m.c.context}), y = n.ints(m.c.vocab, {64, m.c.context});
  n.fill(m.params());
  return [=](bool read) mutable {
    at::AutoGradMode off(false);
    return number(gpt_loss(m, x, y), read);
  };
}

namespace {

// Keys and values (1, heads, context, width of a head) of each block.
struct Generator {
  GPT m;
  vector<Tensor> keys, values;
  explicit Generator(GPT model) : m(std::move(model)) {
    for (size_t i = 0; i < m.blocks.size(); i++) {
      for (auto *cache : {&keys, &values})
        cache->push_back(at::zeros({1, m.c.heads, m.c.context, m.c.width / m.c.heads}));
    }
  }
  Tensor attention(size_t i, const Tensor &x, int64_t at) {
    const auto &b = m.blocks[i];
    auto qkv = at::linear(x, b.qkvw, b.qkvb)
                   .view({1, 1, 3, m.c.heads, m.c.width / m.c.heads})
                   .permute({2, 0, 3, 1, 4})
                   .unbind(0);
    keys[i].narrow(2, at, 1).copy_(qkv[1]);
    values[i].narrow(2, at, 1).copy_(qkv[2]);
    Tensor y =
        at::scaled_dot_product_attention(qkv[0], keys[i].narrow(2, 0, at + 1), values[i].narrow(2, 0, at + 1));
    return at::linear(y.transpose(1, 2).reshape({1, 1, m.c.width}), b.projw, b.projb);
  }
  // The logits (1, 1, vocabulary) of the token after the one at the given position.
  Tensor next(int64_t token, int64_t at) {
    at::IntArrayRef width = m.c.width;
    Tensor x = at::embedding(m.tok, at::full({1, 1}, token, at::kLong)).add(m.pos.narrow(0, at, 1));
    for (size_t i = 0; i < m.blocks.size(); i++) {
      const auto &b = m.blocks[i];
      x = x.add(attention(i, at::layer_norm(x, width, b.ln1w, b.ln1b), at));
      x = x.add(at::linear(at::gelu(at::linear(at::layer_norm(x, width, b.ln2w, b.ln2b), b.fcw, b.fcb)), b.outw,
                           b.outb));
    }
    return at::linear(at::layer_norm(x, width, m.lnw, m.lnb), m.head);
  }
};

}  // namespace

Step gpt_generation(Numbers &n) {
  GPT m;
  n.fill(m.params());
  return [g = Generator(m), first = int64_t{0}](bool read) mutable {
    at::AutoGradMode off(false);
    int64_t token = first++ % g.m.c.vocab;
    double best = 0;
    for (int64_t at = 0; at < g.m.c.context; at++) {
      Tensor logits = g.next(token, at);
      if (read && at == g.m.c.context - 1) best = logits.max().item<double>();
      token = logits.argmax().item<int64_t>();
    }
    return best;
  };
}

}  // namespace suite

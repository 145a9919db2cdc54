#include "suite.h"

namespace suite {

namespace {

constexpr int64_t length = 50, rows = 32, in = 64, hidden = 128;

// The parameters of a layer of GRU (three gates) or LSTM (four).
vector<Tensor> rnn(Params &p, int64_t gates, int64_t in, int64_t hidden) {
  return {parameter(p, {gates * hidden, in}), parameter(p, {gates * hidden, hidden}),
          parameter(p, {gates * hidden}), parameter(p, {gates * hidden})};
}

}  // namespace

Step gru(Numbers &n) {
  Params p;
  auto layer = rnn(p, 3, in, hidden);
  Linear head(p, hidden, 10);
  Tensor x = n.floats({length, rows, in}), y = n.ints(10, {rows});
  return adam(n, p, [=] {
    Tensor h = at::zeros({1, rows, hidden});
    Tensor out = std::get<0>(at::gru(x, h, layer, true, 1, 0.0, true, false, false));
    return at::cross_entropy_loss(head(out.select(0, -1)), y);
  });
}

Step lstm(Numbers &n) {
  Params p;
  auto params = rnn(p, 4, in, hidden);
  for (auto &t : rnn(p, 4, hidden, hidden)) params.push_back(t);
  Linear head(p, hidden, 10);
  Tensor x = n.floats({length, rows, in}), y = n.ints(10, {rows});
  return adam(n, p, [=] {
    Tensor h = at::zeros({2, rows, hidden}), c = at::zeros({2, rows, hidden});
    Tensor out = std::get<0>(at::lstm(x, {h, c}, params, true, 2, 0.0, true, false, false));
    return at::cross_entropy_loss(head(out.select(0, -1)), y);
  });
}

Step recurrent_attention(Numbers &n) {
  constexpr int64_t rows = 16, looks = 8, width = 32, hidden = 128;
  Params p;
  auto conv = [&](int64_t in, int64_t out) {
    Tensor w = parameter(p, {out, in, 3, 3}), b = parameter(p, {out});
    return [=](const Tensor &x) { return at::relu(at::conv2d(x, w, b, {2, 2}, {1, 1})); };
  };
  auto conv1 = conv(1, 16);
  auto conv2 = conv(16, width);
  Linear query(p, hidden, width);
  auto cell = rnn(p, 3, width, hidden);
  Linear head(p, hidden, 10), expand(p, hidden, width * 8 * 8);
  Tensor up1 = parameter(p, {width, 16, 4, 4}), up2 = parameter(p, {16, 1, 4, 4});
  Tensor x = n.floats({rows, 1, 32, 32}), y = n.ints(10, {rows});
  return adam(n, p, [=] {
    Tensor features = conv2(conv1(x)).flatten(2);  // (N, width, places)
    Tensor h = at::zeros({rows, hidden});
    Tensor loss = at::zeros({});
    for (int i = 0; i < looks; i++) {
      Tensor score = query(h).unsqueeze(1).bmm(features).mul(1 / std::sqrt(static_cast<double>(width)));
      Tensor seen = at::softmax(score, -1).bmm(features.transpose(1, 2)).squeeze(1);
      h = at::gru_cell(seen, h, cell[0], cell[1], cell[2], cell[3]);
      loss = loss.add(at::cross_entropy_loss(head(h), y));
    }
    Tensor d = expand(h).view({-1, width, 8, 8});
    d = at::relu(at::conv_transpose2d(d, up1, {}, {2, 2}, {1, 1}));
    d = at::tanh(at::conv_transpose2d(d, up2, {}, {2, 2}, {1, 1}));
    return loss.add(at::mse_loss(d, x));
  });
}

}  // namespace suite

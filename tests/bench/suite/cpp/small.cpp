#include <cstring>

#include "suite.h"

namespace suite {

Step request(Numbers &n) {
  Params p;
  MLP m(p, {32, 64, 64, 10});
  Tensor row = n.floats({32});
  vector<float> x(row.const_data_ptr<float>(), row.const_data_ptr<float>() + 32);
  n.fill(p);
  return [=](bool) {
    at::AutoGradMode off(false);
    Tensor in = at::empty({1, 32});
    std::memcpy(in.mutable_data_ptr<float>(), x.data(), x.size() * sizeof(float));
    Tensor out = m(in);
    vector<float> answer(out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel());
    double sum = 0;
    for (float v : answer) sum += v;
    return sum;
  };
}

Step add(Numbers &n) {
  Tensor a = n.floats({16}), b = n.floats({16});
  return [=](bool read) {
    for (int i = 0; i < 63; i++) Tensor c = a.add(b);
    Tensor c = a.add(b);
    return read ? c.sum().item<double>() : 0;
  };
}

}  // namespace suite

// The C++ arm: the tasks of arm.go and arm.py, written with libtorch directly.
#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/CPUAllocator.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpt.h"
#include "linstock.h"

using namespace bench;

namespace {

void finish() {
  if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
}

// A task: f runs it the given number of times; n runs make a turn.
struct Loop {
  int n;
  std::function<void(int)> f;
};

// add through the shim, as arm.go calls it.
Loop shim_add() {
  const float values[16] = {};
  const int64_t sizes[] = {16};
  ls_tensor a = ls_tensor_from_data(static_cast<int32_t>(at::kFloat), sizes, 1, values, sizeof values).t;
  ls_tensor b = ls_tensor_from_data(static_cast<int32_t>(at::kFloat), sizes, 1, values, sizeof values).t;
  return {20480, [=](int n) {
            ls_tensor sums[64];
            for (int i = 0; i < n; i += 64) {
              for (ls_tensor &sum : sums) sum = ls_aten_add_Tensor(a, b).t;
              ls_tensors_free(sums, 64);
            }
          }};
}

Loop operation(std::string task) {
  auto cut = [&](const std::string &suffix) {
    bool has = task.ends_with(suffix);
    if (has) task.resize(task.size() - suffix.size());
    return has;
  };
  cut("/release");  // there is only one way to free
  bool grad = cut("+grad");
  Tensor a = at::randn({16}, on()), b = at::randn({16}, on()), m = at::randn({16, 16}, on()),
         w = at::randn({16, 16}, on());
  a.set_requires_grad(grad);
  m.set_requires_grad(grad);
  if (task == "add")
    return {20480, [=](int n) {
              for (int i = 0; i < n; i++) Tensor c = a.add(b);
            }};
  if (task == "view")
    return {20480, [=](int n) {
              for (int i = 0; i < n; i++) Tensor c = a.view({4, 4});
            }};
  if (task == "matmul")
    return {20480, [=](int n) {
              for (int i = 0; i < n; i++) Tensor c = m.matmul(w);
            }};
  return {};  // this arm does not have the task
}

Loop mlp() {
  vector<int64_t> sizes{32, 64, 64, 10};
  vector<Tensor> p;
  for (size_t i = 0; i + 1 < sizes.size(); i++) {
    p.push_back(param({sizes[i + 1], sizes[i]}, 0.1));
    p.push_back(filled({sizes[i + 1]}, 0));
  }
  auto opt = std::make_shared<Adam>(p, 1e-3, 0, false);
  Tensor x = at::randn({32, 32}, on()), y = at::randint(10, {32}, on(at::kLong));
  return {400, [=](int n) {
            for (int i = 0; i < n; i++) {
              Tensor h = x;
              for (size_t l = 0; l < p.size(); l += 2) {
                h = at::linear(h, p[l], p[l + 1]);
                if (l + 2 < p.size()) h = at::relu(h);
              }
              Tensor loss = at::cross_entropy_loss(h, y);
              opt->zero();
              backward(loss);
              opt->step();
            }
          }};
}

struct Trainer {
  GPT model;
  Adam opt{model.params(), 1e-3, 0.01, true};
  Tensor x, y;
  explicit Trainer(Config c = {}, int64_t rows = 16)
      : model(c),
        x(at::randint(c.vocab, {rows, c.context}, on(at::kLong))),
        y(at::randint(c.vocab, {rows, c.context}, on(at::kLong))) {}
  Tensor forward() {
    Tensor logits = model.forward(x);
    return at::cross_entropy_loss(logits.view({-1, model.c.vocab}), y.view({-1}));
  }
  void step() { step(forward()); }
  void step(const Tensor &loss) {
    opt.zero();
    backward(loss);
    opt.step();
  }
};

template <class F>
Loop repeat(int turn, F f) {
  return {turn, [=](int n) mutable {
            for (int i = 0; i < n; i++) f();
          }};
}

Loop gpt() {
  auto t = std::make_shared<Trainer>();
  return repeat(2, [=] { t->step(); });
}

Loop large(Config c, int64_t rows) {
  auto t = std::make_shared<Trainer>(c, rows);
  return repeat(5, [=] { t->step(); });
}

// ResNet-50, trained with SGD.
struct ResNet {
  struct Conv {
    Tensor w, g, b, mean, var;
    int64_t stride, pad;
    Conv(int64_t in, int64_t out, int64_t kernel, int64_t stride)
        : w(param({out, in, kernel, kernel}, 0.02)),
          g(filled({out}, 1)),
          b(filled({out}, 0)),
          mean(at::zeros({out}, on())),
          var(at::ones({out}, on())),
          stride(stride),
          pad(kernel / 2) {}
    Tensor operator()(const Tensor &x) const {
      Tensor y = at::conv2d(x, w, {}, {stride, stride}, {pad, pad});
      return at::batch_norm(y, g, b, mean, var, /*training=*/true, 0.1, 1e-5,
                            at::globalContext().userEnabledCuDNN());
    }
  };
  struct Block {
    vector<Conv> convs, down;
  };
  vector<Conv> stem;
  vector<Block> blocks;
  Tensor headw, headb;
  ResNet() {
    stem.emplace_back(3, 64, 7, 2);
    int64_t in = 64, mid = 64;
    for (int count : {3, 4, 6, 3}) {
      for (int i = 0; i < count; i++) {
        int64_t stride = i == 0 && mid > 64 ? 2 : 1;
        Block b;
        b.convs = {Conv(in, mid, 1, 1), Conv(mid, mid, 3, stride), Conv(mid, 4 * mid, 1, 1)};
        if (i == 0) b.down = {Conv(in, 4 * mid, 1, stride)};
        blocks.push_back(b);
        in = 4 * mid;
      }
      mid *= 2;
    }
    headw = param({1000, in}, 0.02);
    headb = filled({1000}, 0);
  }
  vector<Tensor> params() {
    vector<Tensor> p;
    auto add = [&](const vector<Conv> &convs) {
      for (auto &c : convs) p.insert(p.end(), {c.w, c.g, c.b});
    };
    add(stem);
    for (auto &b : blocks) {
      add(b.convs);
      add(b.down);
    }
    p.insert(p.end(), {headw, headb});
    return p;
  }
  Tensor forward(const Tensor &images) {
    Tensor x = at::max_pool2d(at::relu(stem[0](images)), {3, 3}, {2, 2}, {1, 1});
    for (auto &b : blocks) {
      Tensor y = at::relu(b.convs[0](x));
      y = at::relu(b.convs[1](y));
      y = b.convs[2](y);
      x = at::relu(y.add(b.down.empty() ? x : b.down[0](x)));
    }
    return at::linear(at::adaptive_avg_pool2d(x, {1, 1}).flatten(1), headw, headb);
  }
};

Loop resnet50() {
  auto model = std::make_shared<ResNet>();
  auto opt = std::make_shared<SGD>(model->params(), 0.1);
  Tensor x = at::randn({64, 3, 224, 224}, on()), y = at::randint(1000, {64}, on(at::kLong));
  return repeat(5, [=] {
    Tensor loss = at::cross_entropy_loss(model->forward(x), y);
    opt->zero();
    backward(loss);
    opt->step();
  });
}

Loop lstm() {
  constexpr int64_t width = 1024;
  vector<Tensor> params;
  for (int layer = 0; layer < 2; layer++) {
    for (int i = 0; i < 2; i++) params.push_back(param({4 * width, width}, 0.02));
    for (int i = 0; i < 2; i++) params.push_back(param({4 * width}, 0.02));
  }
  Tensor x = at::randn({64, 64, width}, on());
  return repeat(5, [=]() mutable {
    for (auto &p : params) p.mutable_grad().reset();
    Tensor h = at::zeros({2, 64, width}, on()), c = at::zeros({2, 64, width}, on());
    auto y = at::lstm(x, {h, c}, params, true, 2, 0.0, true, false, false);
    backward(std::get<0>(y).sum());
  });
}

Loop attention() {
  vector<Tensor> qkv;
  for (int i = 0; i < 3; i++) qkv.push_back(param({8, 16, 2048, 64}, 1, at::kBFloat16));
  return repeat(5, [=]() mutable {
    for (auto &t : qkv) t.mutable_grad().reset();
    backward(at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true).sum());
  });
}

Loop gpteval() {
  auto model = std::make_shared<GPT>();
  Tensor x = at::randint(model->c.vocab, {64, model->c.context}, on(at::kLong));
  return {1, [=](int n) {
            at::AutoGradMode off(false);
            for (int i = 0; i < n; i++) model->forward(x);
          }};
}

// The same step under autocast.
Loop amp() {
  auto t = std::make_shared<Trainer>();
  return repeat(2, [=] {
    at::autocast::set_autocast_enabled(device.type(), true);
    at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
    Tensor loss = t->forward();
    at::autocast::set_autocast_enabled(device.type(), false);
    at::autocast::clear_cache();
    t->step(loss);
  });
}

// The step of Adam or AdamW with 10 million parameters. Other optimizers are compared with Python alone.
Loop optimizer(bool w) {
  vector<Tensor> params;
  for (int i = 0; i < 40; i++) {
    params.push_back(param({512, 512}, 1));
    params.back().mutable_grad() = at::randn({512, 512}, on());
  }
  auto opt = std::make_shared<Adam>(params, 1e-3, w ? 0.01 : 0, w);
  return repeat(1, [=] { opt->step(); });
}

Loop make(const std::string &task) {
  if (task == "amp") return amp();
  if (task == "step/adam") return optimizer(false);
  if (task == "step/adamw") return optimizer(true);
  if (task == "mlp") return mlp();
  if (task == "gpt") return gpt();
  if (task == "gpteval") return gpteval();
  if (task == "gpt10m") return large({65, 384, 6, 6, 256, at::kBFloat16}, 64);
  if (task == "gpt350m") return large({24576, 1024, 24, 16, 1024, at::kBFloat16}, 4);
  if (task == "resnet50") return resnet50();
  if (task == "lstm") return lstm();
  if (task == "attention") return attention();
  if (task == "add/shim") return shim_add();
  return operation(task);
}

void peak(const std::string &task) {
  { Tensor warm = at::ones({4}).add(1); }
  long base = rss_kb();
  Loop loop = make(task);
  if (!loop.f) {
    std::printf("-\n");
    return;
  }
  loop.f(1);
  std::printf("%ld\n", peak_kb() - base);
}

void memory(int steps) {
  { Tensor warm = at::ones({4}).add(1); }
  long base = rss_kb();
  Trainer t;
  std::vector<long> at;  // RSS at the end of each quarter
  for (int i = 0; i < steps; i++) {
    t.step();
    if ((i + 1) % (steps / 4) == 0) at.push_back(rss_kb() - base);
  }
  ls_memory m;
  if (ls_memory_stats(0xff, &m) != nullptr) std::abort();
  std::printf("%ld", peak_kb() - base);
  for (long kb : at) std::printf(" %ld", kb);
  std::printf(" %ld\n", static_cast<long>(m.peak / 1024));
}

}  // namespace

// arm THREADS [DEVICE] runs the tasks named on standard input and answers each with a line. With
// BENCH_ALLOCATOR=libtorch it runs without the shim's allocator, like a C++ program that does not use Linstock.
int main(int argc, char **argv) {
  const char *allocator = std::getenv("BENCH_ALLOCATOR");
  auto *stock = c10::GetCPUAllocator();
  if (argc > 2) device = c10::Device(argv[2]);
  if (!device.is_cpu() && dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  if (argc < 2 || ls_init() != nullptr) return 2;
  if (const char *cudnn = std::getenv("LINSTOCK_CUDNN"); cudnn && std::string(cudnn) == "0")
    at::globalContext().setUserEnabledCuDNN(false);
  if (allocator && std::string(allocator) == "libtorch") c10::SetCPUAllocator(stock, 255);
  at::set_num_threads(std::atoi(argv[1]));
  at::manual_seed(0);
  std::map<std::string, Loop> made;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.starts_with("memory ")) {
      memory(std::stoi(line.substr(7)));
    } else if (line.starts_with("peak ")) {
      peak(line.substr(5));
    } else {
      if (!made.contains(line)) made[line] = make(line);
      Loop &loop = made[line];
      if (!loop.f) {
        std::printf("-\n");
      } else {
        finish();
        double start = now();
        loop.f(loop.n);
        finish();
        std::printf("%.1f\n", (now() - start) / loop.n * 1e9);
      }
    }
    std::fflush(stdout);
  }
  // Exit without destructors: libtorch's order of destruction is not part of the measurement.
  _exit(0);
}

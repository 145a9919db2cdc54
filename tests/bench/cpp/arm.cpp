// The C++ arm: the tasks of arm.go and arm.py, written against libtorch itself.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "linstock.h"

using at::Tensor;
using std::vector;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A task: f runs it so many times; n make a turn.
struct Loop {
  int n;
  std::function<void(int)> f;
};

long rss_kb() {
  long pages = 0, resident = 0;
  FILE *f = std::fopen("/proc/self/statm", "r");
  if (std::fscanf(f, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(f);
  return resident * 4;
}

long peak_kb() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return u.ru_maxrss;
}

Loop operation(std::string task) {
  auto cut = [&](const std::string &suffix) {
    bool has = task.ends_with(suffix);
    if (has) task.resize(task.size() - suffix.size());
    return has;
  };
  cut("/release");  // there is but one way to free
  bool grad = cut("+grad");
  Tensor a = at::randn({16}), b = at::randn({16}), m = at::randn({16, 16}), w = at::randn({16, 16});
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
  return {};
}

Tensor param(at::IntArrayRef shape, double std) {
  Tensor t = at::randn(shape);
  t.mul_(std);
  t.set_requires_grad(true);
  return t;
}
Tensor filled(at::IntArrayRef shape, double v) {
  Tensor t = at::full(shape, v);
  t.set_requires_grad(true);
  return t;
}

// Fused Adam and AdamW as torch.optim runs them.
struct Adam {
  vector<Tensor> params, avgs, sqs, steps;
  double lr, decay;
  bool w;
  Adam(vector<Tensor> p, double lr, double decay, bool w) : params(std::move(p)), lr(lr), decay(decay), w(w) {
    for (auto &t : params) {
      avgs.push_back(at::zeros_like(t));
      sqs.push_back(at::zeros_like(t));
      steps.push_back(at::zeros({}));
    }
  }
  void zero() {
    for (auto &t : params) t.mutable_grad().reset();
  }
  void step() {
    at::AutoGradMode off(false);
    vector<Tensor> grads;
    for (auto &t : params) grads.push_back(t.grad());
    at::_foreach_add_(steps, 1);
    if (w)
      at::_fused_adamw_(params, grads, avgs, sqs, {}, steps, lr, 0.9, 0.999, decay, 1e-8, false, false);
    else
      at::_fused_adam_(params, grads, avgs, sqs, {}, steps, lr, 0.9, 0.999, decay, 1e-8, false, false);
  }
};

void backward(const Tensor &loss) { torch::autograd::backward({loss}); }

Loop mlp() {
  vector<int64_t> sizes{32, 64, 64, 10};
  vector<Tensor> p;
  for (size_t i = 0; i + 1 < sizes.size(); i++) {
    p.push_back(param({sizes[i + 1], sizes[i]}, 0.1));
    p.push_back(filled({sizes[i + 1]}, 0));
  }
  auto opt = std::make_shared<Adam>(p, 1e-3, 0, false);
  Tensor x = at::randn({32, 32}), y = at::randint(10, {32}, at::kLong);
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

struct GPT {
  static constexpr int64_t layers = 4, width = 128, heads = 4, context = 64, vocab = 97;
  struct Block {
    Tensor ln1w, ln1b, qkvw, qkvb, projw, projb, ln2w, ln2b, fcw, fcb, outw, outb;
  };
  Tensor tok, pos, lnw, lnb, head;
  vector<Block> blocks;
  GPT() {
    tok = param({vocab, width}, 0.02);
    pos = param({context, width}, 0.02);
    for (int i = 0; i < layers; i++) {
      blocks.push_back({filled({width}, 1), filled({width}, 0), param({3 * width, width}, 0.02),
                        filled({3 * width}, 0), param({width, width}, 0.02), filled({width}, 0),
                        filled({width}, 1), filled({width}, 0), param({4 * width, width}, 0.02),
                        filled({4 * width}, 0), param({width, 4 * width}, 0.02), filled({width}, 0)});
    }
    lnw = filled({width}, 1);
    lnb = filled({width}, 0);
    head = param({vocab, width}, 0.02);
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
    int64_t n = x.size(0), t = x.size(1);
    auto qkv =
        at::linear(x, b.qkvw, b.qkvb).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4}).unbind(0);
    Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    qkv.clear();
    return at::linear(y.transpose(1, 2).reshape({n, t, width}), b.projw, b.projb);
  }
  Tensor forward(const Tensor &ids) {
    Tensor x = at::embedding(tok, ids).add(pos.slice(0, 0, ids.size(1)));
    for (auto &b : blocks) {
      x = x.add(attention(at::layer_norm(x, {width}, b.ln1w, b.ln1b), b));
      x = x.add(at::linear(at::gelu(at::linear(at::layer_norm(x, {width}, b.ln2w, b.ln2b), b.fcw, b.fcb)), b.outw,
                           b.outb));
    }
    return at::linear(at::layer_norm(x, {width}, lnw, lnb), head);
  }
};

struct Trainer {
  GPT model;
  Adam opt{model.params(), 1e-3, 0.01, true};
  Tensor x = at::randint(GPT::vocab, {16, GPT::context}, at::kLong),
         y = at::randint(GPT::vocab, {16, GPT::context}, at::kLong);
  void step() {
    Tensor loss;
    {
      Tensor logits = model.forward(x);
      loss = at::cross_entropy_loss(logits.view({-1, GPT::vocab}), y.view({-1}));
    }
    opt.zero();
    backward(loss);
    opt.step();
  }
};

Loop gpt() {
  auto t = std::make_shared<Trainer>();
  return {2, [=](int n) {
            for (int i = 0; i < n; i++) t->step();
          }};
}

Loop gpteval() {
  auto model = std::make_shared<GPT>();
  Tensor x = at::randint(GPT::vocab, {64, GPT::context}, at::kLong);
  return {1, [=](int n) {
            at::AutoGradMode off(false);
            for (int i = 0; i < n; i++) model->forward(x);
          }};
}

Loop make(const std::string &task) {
  if (task == "mlp") return mlp();
  if (task == "gpt") return gpt();
  if (task == "gpteval") return gpteval();
  return operation(task);
}

void memory(int steps) {
  { Tensor warm = at::ones({4}).add(1); }
  long base = rss_kb();
  Trainer t;
  std::vector<long> at;  // the RSS at the end of each quarter
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

// arm THREADS: the tasks named on standard input, each answered by a line. With BENCH_ALLOCATOR=libtorch without
// the shim's allocator, as a C++ program has it that never heard of Linstock.
int main(int argc, char **argv) {
  const char *allocator = std::getenv("BENCH_ALLOCATOR");
  auto *stock = c10::GetCPUAllocator();
  if (argc < 2 || ls_init() != nullptr) return 2;
  if (allocator && std::string(allocator) == "libtorch") c10::SetCPUAllocator(stock, 255);
  at::set_num_threads(std::atoi(argv[1]));
  at::manual_seed(0);
  std::map<std::string, Loop> made;
  std::string line;
  while (std::getline(std::cin, line)) {
    if (line.starts_with("memory ")) {
      memory(std::stoi(line.substr(7)));
    } else {
      if (!made.contains(line)) made[line] = make(line);
      Loop &loop = made[line];
      if (!loop.f) {
        std::printf("-\n");
      } else {
        double start = now();
        loop.f(loop.n);
        std::printf("%.1f\n", (now() - start) / loop.n * 1e9);
      }
    }
    std::fflush(stdout);
  }
  // Leave without destructors: libtorch's order of destruction at exit is not ours to measure.
  _exit(0);
}

// The C++ arm of the suite: arm WORKLOAD THREADS answers the lines of standard input as arm.go says. With
// BENCH_ALLOCATOR=libtorch it does without the shim, as a C++ program that never heard of Linstock.
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "linstock.h"
#include "suite.h"

namespace {

const std::map<std::string, suite::Make *> workloads = {
    {"tinymlp", suite::tiny_mlp},
    {"deepmlp", suite::deep_mlp},
    {"mlp", suite::mlp},
    {"residual tower", suite::residual_tower},
    {"iterative refinement", suite::refinement},
    {"feedback loop", suite::feedback},
    {"gated routing", suite::gated},
    {"gru", suite::gru},
    {"lstm", suite::lstm},
    {"recurrent attention", suite::recurrent_attention},
    {"convnet", suite::convnet},
    {"autoencoder", suite::autoencoder},
    {"resnet18 at 64", suite::resnet18},
    {"cnn at 256", suite::cnn256},
    {"transformer encoder", suite::encoder},
    {"embedding 20000x64", suite::embedding},
    {"gpt step", suite::gpt_step},
    {"gpt evaluation", suite::gpt_evaluation},
    {"gpt generation", suite::gpt_generation},
    {"request", suite::request},
    {"add", suite::add},
};

}  // namespace

int main(int argc, char **argv) {
  if (argc < 3 || !workloads.contains(argv[1])) {
    std::fprintf(stderr, "usage: suite WORKLOAD THREADS\n");
    return 2;
  }
  const char *allocator = std::getenv("BENCH_ALLOCATOR");
  bool own = allocator && std::string(allocator) == "libtorch";
  if (!own && ls_init() != nullptr) return 2;
  at::set_num_threads(std::atoi(argv[2]));
  long library = bench::rss_kb();
  suite::Numbers numbers;
  suite::Step step = workloads.at(argv[1])(numbers);
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int count = 0;
    words >> command >> count;
    if (command == "steps") {
      for (int i = 0; i < count; i++) std::printf(i ? " %.9g" : "%.9g", step(true));
      std::printf("\n");
    } else if (command == "time") {
      double start = bench::now();
      while (bench::now() - start < 0.020) step(false);
      start = bench::now();
      for (int i = 0; i < count; i++) step(false);
      std::printf("%.1f\n", (bench::now() - start) / count * 1e9);
    } else if (command == "memory") {
      std::printf("%ld %ld\n", library, bench::peak_kb());
    } else {
      return 2;
    }
    std::fflush(stdout);
  }
  // Leave without destructors: libtorch's order of destruction at exit is not ours to measure.
  _exit(0);
}

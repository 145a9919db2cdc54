// The C++ server of the benchmark: libtorch behind cpp-httplib.
//
//   serve-arm WEIGHTS THREADS ROWS
//
// ROWS is the maximum number of requests in a batch; with 1 each request is computed by the thread that serves it.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <c10/core/InferenceMode.h>
#include <httplib.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <future>
#include <iterator>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using at::Tensor;

namespace {

const std::vector<int64_t> widths{32, 64, 64, 10};

long rss_kb() {
  long pages = 0, resident = 0;
  FILE *f = std::fopen("/proc/self/statm", "r");
  if (f == nullptr || std::fscanf(f, "%ld %ld", &pages, &resident) != 2) std::abort();
  std::fclose(f);
  return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

struct Network {
  std::vector<Tensor> params;
  explicit Network(const char *path) {
    std::ifstream file(path, std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const char *at = bytes.data();
    auto read = [&](at::IntArrayRef shape) {
      Tensor t = at::empty(shape);
      std::memcpy(t.mutable_data_ptr(), at, t.nbytes());
      at += t.nbytes();
      params.push_back(t);
    };
    for (size_t i = 0; i + 1 < widths.size(); i++) {
      read({widths[i + 1], widths[i]});
      read({widths[i + 1]});
    }
  }
  Tensor operator()(Tensor x) const {
    for (size_t i = 0; i < params.size(); i += 2) {
      x = at::linear(x, params[i], params[i + 1]);
      if (i + 2 < params.size()) x = at::relu(x);
    }
    return x;
  }
};

// The answers to the rows of a batch.
std::vector<std::string> predict(const Network &network, const std::vector<const std::string *> &rows) {
  c10::InferenceMode guard;
  Tensor x = at::empty({static_cast<int64_t>(rows.size()), widths.front()});
  char *to = static_cast<char *>(x.mutable_data_ptr());
  for (auto *row : rows) {
    std::memcpy(to, row->data(), row->size());
    to += row->size();
  }
  Tensor y = network(x);
  const char *from = static_cast<const char *>(y.const_data_ptr());
  std::vector<std::string> answers;
  for (size_t i = 0; i < rows.size(); i++) answers.emplace_back(from + i * 40, 40);
  return answers;
}

// Computes the requests that wait whenever one of its threads is free.
class Batcher {
 public:
  Batcher(const Network &network, size_t rows, unsigned threads) : network_(network), rows_(rows) {
    for (unsigned i = 0; i < threads; i++) std::thread([this] { run(); }).detach();
  }
  std::string predict(const std::string &row) {
    Request r{&row, {}};
    auto answer = r.answer.get_future();
    {
      std::lock_guard lock(mutex_);
      waiting_.push_back(&r);
    }
    some_.notify_one();
    return answer.get();
  }

 private:
  struct Request {
    const std::string *row;
    std::promise<std::string> answer;
  };
  void run() {
    for (;;) {
      std::vector<Request *> batch;
      std::vector<const std::string *> rows;
      {
        std::unique_lock lock(mutex_);
        some_.wait(lock, [this] { return !waiting_.empty(); });
        while (!waiting_.empty() && batch.size() < rows_) {
          batch.push_back(waiting_.front());
          rows.push_back(waiting_.front()->row);
          waiting_.pop_front();
        }
      }
      auto answers = ::predict(network_, rows);
      for (size_t i = 0; i < batch.size(); i++) batch[i]->answer.set_value(std::move(answers[i]));
    }
  }
  const Network &network_;
  const size_t rows_;
  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<Request *> waiting_;
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  at::set_num_threads(std::atoi(argv[2]));
  at::ones({4}).add(1);
  const long base = rss_kb();
  const Network network(argv[1]);
  const size_t rows = std::strtoul(argv[3], nullptr, 10);
  Batcher batcher(network, rows, rows > 1 ? std::thread::hardware_concurrency() : 0);
  httplib::Server server;
  // A connection occupies a thread of the pool as long as it is open.
  server.new_task_queue = [] { return new httplib::ThreadPool(80); };
  server.set_keep_alive_max_count(1u << 30);
  // The defaults of 5 s would end a connection on a machine that is busy with other work.
  server.set_keep_alive_timeout(600);
  server.set_read_timeout(600);
  server.set_write_timeout(600);
  server.set_tcp_nodelay(true);
  server.Post("/predict", [&](const httplib::Request &q, httplib::Response &w) {
    if (q.body.size() != 128) {
      w.status = 400;
      return;
    }
    std::string answer = rows > 1 ? batcher.predict(q.body) : std::move(predict(network, {&q.body})[0]);
    w.set_content(std::move(answer), "application/octet-stream");
  });
  const int port = server.bind_to_any_port("127.0.0.1");
  std::printf("127.0.0.1:%d %ld\n", port, base);
  std::fflush(stdout);
  std::thread([] {
    while (std::getchar() != EOF) {
    }
    _exit(0);
  }).detach();
  return server.listen_after_bind() ? 0 : 1;
}

// Random sequences of calls to the exported functions, with valid arguments and with those invalid arguments
// that the API promises to detect: NULL tensors, unknown enum values, counts and sizes that do not fit,
// malformed values. A sequence ends with the native bytes and handles that it began with. A crash, a hang, an
// error without a valid text and a leak are failures. One sequence in sixteen runs on four threads at once.
//
// A test of internal/opgen compares the calls below, and what is left out, with the headers.
//
// Left out:
//	ls_aten_*  most of them: their code is generated from one template, and ls_op_call calls their operators
//
//	cshim_fuzz [-share F] [-calls N] [-seed S] [-jobs J]     10,000,000 calls (or F of them) in J processes
//	cshim_fuzz -seed S -sequence K [-length L] [-trace]      one sequence (its first L calls) in this process
//
// The sequences run in child processes, so that the parent can report which one crashed. With
// LINSTOCK_LIBFUZZER this is a libFuzzer target instead, which takes its random numbers from libFuzzer's bytes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "linstock.h"

namespace {

constexpr int32_t kCpu = 0xff, kMeta = 14 << 8 | 0xff;
constexpr int32_t kFloat = 6, kDouble = 7, kLong = 4, kBool = 11, kHalf = 5, kBFloat16 = 15;
constexpr int kSizes[] = {1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 1, 2};  // bytes of an element, by dtype
constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kRoom = 64 * kMiB;  // the bytes that a sequence may allocate; larger requests fail
constexpr int kThreads = 4;
constexpr size_t kPool = 24;
constexpr int64_t kMost = 1 << 20, kMostOnMeta = 1 << 12;  // elements
constexpr int kMostFailures = 40;
constexpr int64_t kHang = 60;  // seconds

// Shared by the parent and its children.
struct Worker {
  std::atomic<uint64_t> sequence, step[kThreads], began;  // began: in seconds; 0 between sequences
  std::atomic<const char *> name[kThreads];               // at the same address in all processes
};
struct Shared {
  std::atomic<uint64_t> next, calls, errors, failures;
  Worker workers[64];
};
Shared *shared;
Worker *self;
uint64_t seed = 1;
bool trace = false;
int length = 200;  // calls of a thread in a sequence

int64_t seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Random numbers, or libFuzzer's bytes.
struct Source {
  std::mt19937_64 random;
  const uint8_t *data = nullptr, *end = nullptr;

  uint64_t next() {
    if (data == nullptr) return random();
    uint64_t v = 0;
    for (int i = 0; i < 2 && data < end; i++) v = v << 8 | *data++;
    return v;
  }
  bool done() const { return data != nullptr && data >= end; }
};

[[noreturn]] void fail(const std::string &what) {
  std::fprintf(stderr, "cshim_fuzz: %s\n", what.c_str());
  std::abort();
}

bool utf8(const char *s) {
  auto *p = reinterpret_cast<const unsigned char *>(s);
  while (*p != 0) {
    int more = *p < 0x80                 ? 0
               : *p >= 0xc2 && *p < 0xe0 ? 1
               : *p >= 0xe0 && *p < 0xf0 ? 2
               : *p >= 0xf0 && *p < 0xf5 ? 3
                                         : -1;
    if (more < 0) return false;
    for (p++; more > 0; more--, p++)
      if ((*p & 0xc0) != 0x80) return false;
  }
  return true;
}

// An operator for ls_op_call, with the types of its arguments.
struct Operator {
  const char *name, *overload;
  ls_op op = 0;
  std::vector<std::string> args = {};  // types, as written in the schema
};

// Operators for ls_op_call: ordinary ones that cover each type of argument.
Operator operators[] = {
    {"aten::add", "Tensor"},
    {"aten::add_", "Tensor"},
    {"aten::sub", "Scalar"},
    {"aten::sum", "dim_IntList"},
    {"aten::sum", ""},
    {"aten::mean", "dim"},
    {"aten::cat", ""},
    {"aten::stack", ""},
    {"aten::split", "Tensor"},
    {"aten::chunk", ""},
    {"aten::unbind", "int"},
    {"aten::zeros", ""},
    {"aten::full", ""},
    {"aten::arange", "start_step"},
    {"aten::eye", "m"},
    {"aten::linspace", ""},
    {"aten::randn", ""},
    {"aten::randperm", ""},
    {"aten::rand_like", ""},
    {"aten::index", "Tensor"},
    {"aten::index_put_", ""},
    {"aten::index_select", ""},
    {"aten::gather", ""},
    {"aten::scatter", "src"},
    {"aten::scatter_add_", ""},
    {"aten::masked_select", ""},
    {"aten::where", "self"},
    {"aten::topk", ""},
    {"aten::sort", "stable"},
    {"aten::max", "dim"},
    {"aten::argmax", ""},
    {"aten::unique_dim", ""},
    {"aten::cumsum", ""},
    {"aten::flip", ""},
    {"aten::roll", ""},
    {"aten::tril", ""},
    {"aten::diag", ""},
    {"aten::pad", ""},
    {"aten::conv2d", ""},
    {"aten::max_pool2d_with_indices", ""},
    {"aten::native_layer_norm", ""},
    {"aten::batch_norm", ""},
    {"aten::embedding", ""},
    {"aten::embedding_bag", ""},
    {"aten::gru", "input"},
    {"aten::nll_loss_nd", ""},
    {"aten::cross_entropy_loss", ""},
    {"aten::scaled_dot_product_attention", ""},
    {"aten::einsum", ""},
    {"aten::tensordot", ""},
    {"aten::linalg_qr", ""},
    {"aten::linalg_solve", ""},
    {"aten::linalg_eig", ""},
    {"aten::linalg_norm", ""},
    {"aten::svd", ""},
    {"aten::fft_fft", ""},
    {"aten::bincount", ""},
    {"aten::histc", ""},
    {"aten::bucketize", "Tensor"},
    {"aten::one_hot", ""},
    {"aten::multinomial", ""},
    {"aten::bernoulli_", "float"},
    {"aten::normal_", ""},
    {"aten::div", "Tensor_mode"},
    {"aten::gelu", ""},
    {"aten::clamp", ""},
    {"aten::to", "dtype"},
    {"aten::to", "device"},
    {"aten::contiguous", ""},
    {"aten::view", "dtype"},
    {"aten::as_strided", ""},
    {"aten::squeeze", "dims"},
    {"aten::repeat_interleave", "Tensor"},
    {"aten::meshgrid", "indexing"},
    {"aten::var_mean", "correction"},
    {"aten::lerp", "Scalar"},
    {"aten::addcmul", ""},
    {"aten::fill_", "Scalar"},
    {"aten::copy_", ""},
    {"aten::detach", ""},
    {"aten::upsample_bilinear2d", "vec"},
    {"aten::result_type", "Tensor"},
    {"aten::equal", ""},
    {"aten::item", ""},
    {"aten::is_complex", ""},
    {"aten::real", ""},
    {"aten::complex", ""},
    {"aten::isin", "Tensor_Tensor"},
    {"aten::to_sparse", ""},
    {"aten::to_sparse_csr", ""},
    {"aten::to_sparse_csc", ""},
    {"aten::to_sparse_bsr", ""},
    {"aten::to_mkldnn", ""},
    {"aten::to_dense", ""},
    {"aten::quantize_per_tensor", ""},
    {"aten::mm", ""},
    {"aten::addmm", ""},
    {"aten::_local_scalar_dense", ""},
    {"aten::_make_dual", ""},
    {"aten::_unpack_dual", ""},
    {"aten::_efficientzerotensor", ""},
    {"aten::_neg_view", ""},
    {"aten::_conj", ""},
    {"aten::size", "int"},
    {"prepacked::linear_clamp_prepack", ""},
    {"prepacked::linear_clamp_run", ""},
    {"aten::nothing", ""},
};

std::vector<std::string> all_names;  // "aten::add.Tensor"

// Returns the types of a schema's arguments: "aten::f(Tensor self, int[2] k=1, *, Scalar? s=None) -> Tensor".
std::vector<std::string> argument_types(const std::string &schema) {
  std::vector<std::string> types;
  size_t at = schema.find('(') + 1;
  int depth = 0;
  std::string arg;
  for (; at < schema.size(); at++) {
    char c = schema[at];
    if (depth == 0 && (c == ',' || c == ')')) {
      size_t start = arg.find_first_not_of(' ');
      if (start != std::string::npos && arg[start] != '*')
        types.push_back(arg.substr(start, arg.find(' ', start) - start));
      arg.clear();
      if (c == ')') break;
      continue;
    }
    if (c == '(' || c == '[') depth++;
    if (c == ')' || c == ']') depth--;
    arg += c;
  }
  return types;
}

// Handles that are passed from thread to thread.
std::atomic<ls_tensor> exchange[8];
std::atomic<uint64_t> dropped{0};  // blobs whose handles are released

// Slots that follow a value and hold its elements.
uint64_t payload_of(const ls_value &v) {
  if (v.tag == LS_STRING) return (uint64_t{v.len} + 15) / 16;
  if (v.tag >= LS_INTS && v.tag <= LS_TENSORS) return (uint64_t{v.len} + 1) / 2;
  return v.tag == LS_COMPLEX;
}

class Fuzz {
 public:
  Fuzz(Source s, int thread, bool many) : source_(std::move(s)), thread_(thread), many_(many) {}

  void run(int calls);
  void start();   // fills the pool
  void finish();  // frees all

  // ---- random values ----
  uint64_t below(uint64_t n) { return source_.next() % n; }
  bool one(uint64_t n) { return below(n) == 0; }
  // The case of a switch, which a trace shows.
  uint64_t choose(uint64_t n) {
    uint64_t k = below(n);
    if (trace) std::fprintf(stderr, "    case %" PRIu64 "\n", k);
    return k;
  }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return list.begin()[below(list.size())];
  }
  int64_t integer() {
    if (one(10))
      return pick<int64_t>(
          {int64_t{1} << 40, int64_t{1} << 62, INT64_MAX, INT64_MIN, -(int64_t{1} << 40), INT64_MIN + 1});
    return pick<int64_t>({0, 1, 2, 3, 4, 5, -1, -2, -3, 0, 1, 2});
  }
  double real() {
    return pick<double>({0, 1, 0.5, -1, 2, -0.0, NAN, INFINITY, -INFINITY, 1e300, 1e-300, 0.1, 0.9, 3});
  }
  int32_t dtype() {
    return one(8) ? static_cast<int32_t>(below(64)) - 8
                  : pick<int32_t>({kFloat, kFloat, kFloat, 7, kLong, 3, kBool, 0, 5, 9, 15, 10});
  }
  int32_t device() {
    return pick<int32_t>({kCpu, kCpu, kCpu, kCpu, 0, kMeta, -1, 1 << 8, 1 << 8 | 0xff, 1 << 8 | 3, 200 << 8,
                          INT32_MAX, INT32_MIN, 5 << 8});
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> s(below(5));
    for (auto &d : s) d = pick<int64_t>({1, 2, 3, 4, 2, 3, 0});
    return s;
  }
  std::vector<int64_t> integers() {
    if (small_) return shape();
    if (one(12)) return std::vector<int64_t>(below(70), pick<int64_t>({0, 1, -1, int64_t{1} << 40, INT64_MAX}));
    if (one(3)) return shape();
    std::vector<int64_t> v(below(5));
    for (auto &i : v) i = integer();
    return v;
  }
  std::string text() {
    return pick<const char *>({"",    "none", "mean",      "sum",   "trunc",    "floor",    "reflect", "constant",
                               "ij",  "xy",   "ij,jk->ik", "ii",    "\xff\xfe", "\xc3\xa9", "reduced", "fro",
                               "nuc", "tanh", "same",      "valid", "circular", "...",      "left"});
  }
  ls_tensor tensor() { return one(40) || pool_.empty() ? 0 : pool_[below(pool_.size())]; }
  ls_generator generator() { return one(10) || generators_.empty() ? 0 : generators_[below(generators_.size())]; }
  ls_object object() { return one(10) || objects_.empty() ? 0 : objects_[below(objects_.size())]; }
  ls_store store() { return one(20) || stores_.empty() ? 0 : stores_[below(stores_.size())]; }
  std::vector<ls_tensor> tensors(uint64_t most = 4) {
    std::vector<ls_tensor> v(below(most + 1));
    for (auto &t : v) t = tensor();
    return v;
  }

  // ---- results ----
  void ok(ls_error *e) {
    if (e == nullptr) return;
    shared->errors.fetch_add(1, std::memory_order_relaxed);
    if (e->code < LS_ERR_GENERIC || e->code > LS_ERR_CONNECTION) fail("error code " + std::to_string(e->code));
    if (e->message == nullptr || e->message[0] == 0) fail("an error without a text");
    if (!utf8(e->message)) fail("a text that is not UTF-8");
    if (trace) std::fprintf(stderr, "    error %d: %.150s\n", e->code, e->message);
    ls_error_free(e);
  }
  // Operators take as long as a tensor has elements, and one without memory may have any number.
  void keep(ls_tensor t) {
    if (t == 0) return;
    ls_meta m{};
    ls_error_free(ls_tensor_meta(t, &m));
    if (m.numel > (m.device_type == kMeta >> 8 ? kMostOnMeta : kMost)) return ls_tensor_free(t);
    pool_.push_back(t);
  }
  // For calls that need a device other than the CPU.
  void refused(ls_error *e) {
    if (e == nullptr) fail("a call has succeeded that needs a device");
    ok(e);
  }
  // Keeps an object; frees another if there are many.
  void keep_object(ls_object o) {
    values([&](ls_value *out, uint64_t n) { return ls_object_class(o, out, n); });
    objects_.push_back(o);
    if (objects_.size() <= 4) return;
    ls_object_free(objects_.front());
    objects_.erase(objects_.begin());
  }
  void result(ls_result r) {
    if (r.err != nullptr && r.t != 0) fail("a handle beside an error");
    keep(r.t);
    ok(r.err);
  }
  // Takes the tensors out of slots.
  void results(ls_results r, const ls_value *out, uint64_t out_slots) {
    if (r.err != nullptr) {
      if (r.spill != nullptr) fail("a spill beside an error");
      return ok(r.err);
    }
    if (r.spill == nullptr && r.slots > out_slots) fail("more slots than there are");
    const ls_value *v = r.spill != nullptr ? r.spill : out;
    for (uint64_t i = 0; i < r.slots; i++) {
      uint64_t payload = payload_of(v[i]);
      if ((v[i].tag > LS_STREAM && v[i].tag != LS_UINT) || payload > r.slots - i - 1) fail("a malformed result");
      if (v[i].tag == LS_TENSOR) keep(v[i].u.t);
      if (v[i].tag == LS_OBJECT) keep_object(v[i].u.o);
      if (v[i].tag == LS_TENSORS) {
        auto *handles = reinterpret_cast<const ls_tensor *>(v + i + 1);
        for (uint32_t k = 0; k < v[i].len; k++) keep(handles[k]);
      }
      i += payload;
    }
    ls_spill_free(r.spill);
  }
  template <class F>
  void values(F &&call) {
    ls_value out[16];
    uint64_t slots = pick<uint64_t>({0, 1, 2, 16, 16, 16});
    results(call(out, slots), out, slots);
  }

  void make();
  void free_some();
  void boxed();
  void argument(const std::string &type, std::vector<ls_value> &to);
  void wrong(std::vector<ls_value> &to);
  void backward();
  void grad();
  void custom();
  void hook();
  void adam();
  void in_place();
  void typed();
  void blob();
  void swap();
  void pressure();
  void memory();
  void samples();
  void process();
  void threads_words();
  void names();
  void look();
  void set_grad();
  void versions();
  void cuda();
  void generators();
  void streams();
  void stores();
  void groups();
  void collective(ls_group group);
  void reducer(ls_group group);
  void policies();
  void checkpoint();
  void plans();
  void traces();
  void faults();
  void round();

 private:
  struct Call {
    const char *name;
    void (Fuzz::*run)();
    int weight;
  };
  static const std::vector<Call> calls_;
  static const std::vector<uint8_t> by_weight_;

  Source source_;
  int thread_;
  bool many_;
  // A graph may reference a gradient that contains it: a cycle that only the caller can cut. Then nothing is
  // freed before the end.
  bool rings_ = false;
  // Tensors with huge expanded shapes take no memory, but unlimited time.
  bool small_ = false;
  int modes_ = 0, exact_peaks_ = 0;
  uint64_t policies_ = 0;
  std::vector<ls_tensor> pool_, held_;
  struct Hook {
    ls_tensor t;  // an alias, private to this thread
    uint32_t slot;
    bool accumulate;
  };
  std::vector<Hook> hooks_;
  void keep_hook(ls_tensor t, uint32_t slot, bool accumulate) {
    if (hooks_.size() < 8 && t != 0) hooks_.push_back({ls_tensor_alias(t).t, slot, accumulate});
  }
  std::vector<ls_generator> generators_;
  std::vector<ls_object> objects_;
  std::vector<ls_store> stores_;
  std::vector<int> stores_fds_;  // of the files of stores
  std::vector<uintptr_t> ranges_;
};

const std::vector<Fuzz::Call> Fuzz::calls_ = {
    {"ls_tensor_from_data", &Fuzz::make, 12},
    {"ls_tensor_free", &Fuzz::free_some, 12},
    {"ls_op_call", &Fuzz::boxed, 30},
    {"typed operators", &Fuzz::typed, 30},
    {"in-place operators", &Fuzz::in_place, 8},
    {"ls_tensor_meta …", &Fuzz::look, 16},
    {"ls_autograd_backward", &Fuzz::backward, 6},
    {"ls_autograd_grad", &Fuzz::grad, 4},
    {"ls_function_attach", &Fuzz::custom, 2},
    {"ls_hook_register", &Fuzz::hook, 3},
    {"ls_adam_step", &Fuzz::adam, 3},
    {"ls_tensor_set_grad …", &Fuzz::set_grad, 8},
    {"ls_tensor_from_blob", &Fuzz::blob, 3},
    {"hand-over", &Fuzz::swap, 6},
    {"ls_pressure_…", &Fuzz::pressure, 4},
    {"ls_memory_…", &Fuzz::memory, 8},
    {"ls_samples_…", &Fuzz::samples, 6},
    {"process settings", &Fuzz::process, 6},
    {"thread words", &Fuzz::threads_words, 6},
    {"ls_op_find …", &Fuzz::names, 6},
    {"versions", &Fuzz::versions, 2},
    {"ls_cuda_…", &Fuzz::cuda, 2},
    {"ls_generator_…", &Fuzz::generators, 4},
    {"ls_stream_…, ls_event_…, ls_graph_…", &Fuzz::streams, 2},
    {"ls_store_…", &Fuzz::stores, 3},
    {"ls_group_…, ls_work_…", &Fuzz::groups, 1},
    {"ls_saved_push, ls_checkpoint_keep …", &Fuzz::policies, 6},
    {"ls_checkpoint_push", &Fuzz::checkpoint, 4},
    {"ls_plan_…", &Fuzz::plans, 4},
    {"ls_trace_…", &Fuzz::traces, 4},
    {"ls_fault_set", &Fuzz::faults, 2},
    {"ls_round_stochastic", &Fuzz::round, 2},
};
const std::vector<uint8_t> Fuzz::by_weight_ = [] {
  std::vector<uint8_t> v;
  for (size_t i = 0; i < Fuzz::calls_.size(); i++)
    v.insert(v.end(), static_cast<size_t>(Fuzz::calls_[i].weight), static_cast<uint8_t>(i));
  return v;
}();

void Fuzz::run(int calls) {
  rings_ = one(8);
  for (int i = 0; i < calls && !source_.done(); i++) {
    auto &c = calls_[by_weight_[below(by_weight_.size())]];
    self->name[thread_].store(c.name, std::memory_order_relaxed);
    self->step[thread_].store(static_cast<uint64_t>(i), std::memory_order_relaxed);
    if (trace) std::fprintf(stderr, "  thread %d, call %d: %s\n", thread_, i, c.name);
    (this->*c.run)();
    shared->calls.fetch_add(1, std::memory_order_relaxed);
    while (pool_.size() > kPool) free_some();
  }
}

void Fuzz::make() {
  auto s = shape();
  int32_t d = dtype();
  uint64_t n = d >= 0 && d < 16 ? static_cast<uint64_t>(kSizes[d]) : 4;
  if (one(50)) s = {pick<int64_t>({256, 300, 700}), 100};  // large blocks take another path than small ones
  for (auto e : s) n *= static_cast<uint64_t>(e);
  std::vector<uint8_t> data(n);
  if (d == kLong)
    for (uint64_t i = 0; i + 8 <= n; i += 8) data[i] = static_cast<uint8_t>(below(4));
  else if (d == kFloat)
    for (uint64_t i = 0; i + 4 <= n; i += 4) {
      float f = static_cast<float>(real());
      std::memcpy(&data[i], &f, 4);
    }
  else if (d == kBool)
    for (auto &b : data) b = static_cast<uint8_t>(below(2));
  uint64_t nbytes = n;
  if (one(20)) nbytes = pick<uint64_t>({0, n + 1, n / 2, UINT64_MAX});
  if (nbytes > n) data.resize(std::min<uint64_t>(nbytes, n + 1));
  if (one(20)) {
    s = integers();
  }
  result(ls_tensor_from_data(d, s.data(), s.size(), data.data(), nbytes));
  if (!pool_.empty() && one(12)) result(ls_tensor_to(pool_.back(), -1, kMeta, -1, 0));
  if (!pool_.empty() && one(2)) ok(ls_tensor_set_requires_grad(pool_.back(), 1));
}

void Fuzz::start() {
  for (int i = 0; i < 8; i++) make();
}

void Fuzz::free_some() {
  ls_tensor_free(0);
  if (pool_.empty()) return;
  auto &to = held_;
  uint64_t n = std::min<uint64_t>(1 + below(4), pool_.size());
  if (rings_) {
    to.insert(to.end(), pool_.end() - static_cast<int64_t>(n), pool_.end());
  } else if (one(2)) {
    ls_tensors_free(pool_.data() + pool_.size() - n, n);
  } else {
    std::swap(pool_[below(pool_.size())], pool_.back());
    ls_tensor_free(pool_.back());
    n = 1;
  }
  pool_.resize(pool_.size() - n);
}

void Fuzz::finish() {
  ok(ls_saved_pop(0));
  while (modes_ > 0) {
    ls_mode_pop();
    modes_--;
  }
  for (; exact_peaks_ > 0; exact_peaks_--) ls_memory_exact_peak(0);
  for (; !ranges_.empty(); ranges_.pop_back()) ls_range_pop(ranges_.back());
  ls_plan_end();
  for (auto s : stores_) ls_store_free(s);
  for (int fd : stores_fds_) close(fd);
  for (auto g : generators_) ls_generator_free(g);
  for (auto o : objects_) ls_object_free(o);
  pool_.insert(pool_.end(), held_.begin(), held_.end());
  held_.clear();
  if (rings_) {
    for (auto t : pool_) ok(ls_tensor_set_grad(t, 0));
    for (auto &h : hooks_) ok(ls_tensor_set_grad(h.t, 0));
  }
  for (auto &h : hooks_) ls_tensor_free(h.t);
  hooks_.clear();
  ls_tensors_free(pool_.data(), pool_.size());
  pool_.clear();
  ls_samples_attach(0, 0);
  ls_scope_set(0);
  ls_sweeping_set(0);
}

void Fuzz::look() {
  ls_tensor t = tensor();
  switch (below(12)) {
    case 0: {
      ls_value v[2];
      return ok(ls_tensor_item(t, v));
    }
    case 1: {
      int64_t sizes[3], strides[3];
      return ok(ls_tensor_sizes(t, sizes, strides, below(4)));
    }
    case 2: {
      if (t == 0) return;  // an alias of NULL is NULL
      return result(ls_tensor_alias(t));
    }
    case 3:
    case 4:
      return result(ls_tensor_to(t, one(3) ? -1 : dtype(), one(2) ? -1 : device(),
                                 static_cast<int32_t>(below(6)) - 1, static_cast<int32_t>(below(2))));
    case 5:
    case 6: {
      auto v = tensors();
      return result(ls_tensor_index(t, v.data(), v.size()));
    }
    case 7:
      return values([&](ls_value *out, uint64_t n) { return ls_tensor_grad_fn_name(t, out, n); });
    case 8:
    case 9: {
      ls_meta m;
      if (auto *e = ls_tensor_meta(t, &m)) return ok(e);
      static const int64_t most = 1 << 20;
      if (m.numel < 0 || m.numel > most) return;
      std::vector<char> data(static_cast<size_t>(m.numel) * 16 + 16);
      uint64_t nbytes = static_cast<uint64_t>(m.numel) * pick<uint64_t>({4, 4, 4, 8, 1, 2, 16});
      return ok(ls_tensor_copy_out(t, one(4) ? dtype() : m.dtype, data.data(), one(10) ? 0 : nbytes));
    }
    default: {
      ls_meta m;
      return ok(ls_tensor_meta(t, &m));
    }
  }
}

// Returns a value of a schema's type, or of another type.
void Fuzz::argument(const std::string &type, std::vector<ls_value> &to) {
  auto scalar = [&] {
    switch (below(5)) {
      case 0:
        to.push_back({LS_INT, 0, {.i = integer()}});
        break;
      case 1:
        to.push_back({LS_BOOL, 0, {.i = static_cast<int64_t>(below(2))}});
        break;
      case 2:
        to.push_back({LS_FLOAT, 0, {.f = real()}});
        break;
      case 3:
        to.push_back({LS_UINT, 0, {.i = integer()}});
        break;
      default:
        to.push_back({LS_COMPLEX, 0, {.f = real()}});
        to.push_back({LS_COMPLEX, 0, {.f = real()}});
    }
  };
  auto list = [&](uint32_t tag, const std::vector<int64_t> &v) {
    to.push_back({tag, static_cast<uint32_t>(v.size()), {.i = 0}});
    size_t at = to.size();
    to.resize(at + (v.size() + 1) / 2);
    if (!v.empty()) std::memcpy(static_cast<void *>(&to[at]), v.data(), v.size() * 8);
  };
  auto is = [&](const char *prefix) { return type.rfind(prefix, 0) == 0; };
  bool several = type.find('[') != std::string::npos;
  if (type.back() == '?' && one(3)) return to.push_back({LS_NONE, 0, {.i = 0}});
  if (one(8)) return to.push_back({LS_DEFAULT, 0, {.i = 0}});
  if (is("Tensor")) {
    if (!several) {
      if (one(15)) return scalar();
      return to.push_back({LS_TENSOR, 0, {.t = tensor()}});
    }
    auto v = tensors();
    return list(LS_TENSORS, {v.begin(), v.end()});
  }
  if (is("int") || is("SymInt")) {
    if (several) return list(LS_INTS, integers());
    return to.push_back({LS_INT, 0, {.i = integer()}});
  }
  if (is("ScalarType")) return to.push_back({LS_INT, 0, {.i = dtype()}});
  if (is("Layout") || is("MemoryFormat"))
    return to.push_back({LS_INT, 0, {.i = static_cast<int64_t>(below(12)) - 2}});
  if (is("Scalar")) return scalar();
  if (is("float")) {
    if (!several) return to.push_back({LS_FLOAT, 0, {.f = real()}});
    std::vector<int64_t> v(below(4));
    for (auto &e : v) {
      double d = real();
      std::memcpy(&e, &d, 8);
    }
    return list(LS_FLOATS, v);
  }
  if (is("bool")) {
    if (!several) return to.push_back({LS_BOOL, 0, {.i = static_cast<int64_t>(below(2))}});
    return list(LS_BOOLS, std::vector<int64_t>(below(5), 1));
  }
  if (is("str")) {
    auto s = text();
    to.push_back({LS_STRING, static_cast<uint32_t>(s.size()), {.i = 0}});
    size_t at = to.size();
    to.resize(at + (s.size() + 15) / 16);
    if (!s.empty()) std::memcpy(static_cast<void *>(&to[at]), s.data(), s.size());
    return;
  }
  if (is("Device")) return to.push_back({LS_DEVICE, 0, {.i = device()}});
  if (is("Generator")) return to.push_back({LS_GENERATOR, 0, {.g = generator()}});
  if (is("__torch__")) return to.push_back({LS_OBJECT, 0, {.o = object()}});
  to.push_back({LS_DEFAULT, 0, {.i = 0}});
}

// Corrupts encoded arguments that contain no handles.
void Fuzz::wrong(std::vector<ls_value> &to) {
  if (to.empty() || one(4))
    return to.push_back({static_cast<uint32_t>(below(LS_UINT + 1)), static_cast<uint32_t>(below(3)), {.i = 0}});
  auto &v = to[below(to.size())];
  switch (below(4)) {
    case 0:
      v.len = pick<uint32_t>({0, 1, 100, UINT32_MAX, UINT32_MAX / 2});
      break;
    case 1:
      to.resize(below(to.size() + 1));
      break;
    default:
      break;  // the caller changes its tag, if no number becomes a handle by that
  }
  // A different length would turn a list's elements into values. A number there that equals a tensor's tag is
  // not followed by a handle.
  for (size_t i = 0; i < to.size(); i += 1 + payload_of(to[i])) {
    if (to[i].tag == LS_TENSOR) to[i].u.t = 0;
    if (to[i].tag == LS_OBJECT) to[i].u.o = 0;
    if (to[i].tag == LS_TENSORS) to[i].len = 0;
  }
}

// Formats arguments for a trace.
void describe(ls_tensor t) {
  ls_meta m;
  if (t == 0) return;
  if (ls_error *e = ls_tensor_meta(t, &m)) return ls_error_free(e);
  std::fprintf(stderr, "        dtype %d%s, offset %" PRId64 ", sizes and strides", m.dtype,
               m.requires_grad ? ", requires grad" : "", m.offset);
  for (int i = 0; i < m.ndim && i < LS_META_DIMS; i++)
    std::fprintf(stderr, " %" PRId64 "/%" PRId64, m.sizes[i], m.strides[i]);
  std::fprintf(stderr, "\n");
}

// Formats arguments for a trace. Corrupted ones may contain a tensor's tag followed by a number that is not a
// handle.
void describe(const std::vector<ls_value> &args, bool spoilt) {
  for (size_t i = 0; i < args.size(); i++) {
    const ls_value &v = args[i];
    std::fprintf(stderr, "      tag %u, len %u, %" PRId64 "\n", v.tag, v.len, v.u.i);
    if (spoilt) continue;
    if (v.tag == LS_TENSOR) describe(v.u.t);
    if (v.tag == LS_TENSORS) {
      auto *handles = reinterpret_cast<const ls_tensor *>(&v + 1);
      for (uint32_t k = 0; k < v.len; k++) describe(handles[k]);
    }
    i += payload_of(v);
  }
}

void Fuzz::boxed() {
  auto &o = operators[below(std::size(operators))];
  std::vector<ls_value> args;
  // No number is taken for a handle here, so arguments with a corrupted structure contain no handles.
  bool spoil = one(10);
  auto is_handle = [](const std::string &type) {
    return type.rfind("Tensor", 0) == 0 || type.rfind("Generator", 0) == 0 || type.rfind("__torch__", 0) == 0;
  };
  small_ = std::strcmp(o.name, "aten::as_strided") == 0;
  for (auto &type : o.args) {
    if (one(60)) {
      argument(pick<const char *>({"int", "float", "str", "bool", "Device", "int[]", "Scalar"}), args);
    } else if (spoil && is_handle(type)) {
      args.push_back({pick<uint32_t>({LS_NONE, LS_INT, LS_DEFAULT, LS_STRING, LS_UINT + 1, UINT32_MAX}),
                      static_cast<uint32_t>(below(3)),
                      {.i = 0}});
    } else {
      argument(type, args);
    }
    if (one(100)) break;
  }
  small_ = false;
  if (spoil) wrong(args);
  std::vector<ls_value> exact(args);  // so that AddressSanitizer reports reads past the end
  exact.shrink_to_fit();
  self->name[thread_].store(o.name, std::memory_order_relaxed);
  if (trace) {
    std::fprintf(stderr, "    %s.%s\n", o.name, o.overload);
    describe(exact, spoil);
  }
  bool in_place = std::strlen(o.name) > 0 && o.name[std::strlen(o.name) - 1] == '_';
  // An operator that writes to a tensor saved by its own graph makes a reference cycle.
  if (in_place) ok(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
  values([&](ls_value *out, uint64_t n) {
    return ls_op_call(o.op, exact.data(), exact.size(), out, n, in_place || one(20) ? LS_CALL_DISCARD : 0);
  });
  if (in_place) ls_mode_pop();
}

void Fuzz::typed() {
  ls_tensor x = tensor(), y = tensor(), z = tensor();
  auto v = integers();
  int64_t i = integer(), k = integer();
  uint64_t which = below(40);
  if (trace) {
    std::fprintf(stderr, "    case %" PRIu64 ", %" PRId64 ", %" PRId64 "\n", which, i, k);
    for (auto t : {x, y, z}) describe(t);
  }
  switch (which) {
    case 0:
      return result(ls_aten_add_Tensor(x, y));
    case 1:
      return result(ls_aten_sub_Tensor(x, y));
    case 2:
      return result(ls_aten_mul_Tensor(x, y));
    case 3:
      return result(ls_aten_div_Tensor(x, y));
    case 4:
      return result(ls_aten_neg(x));
    case 5:
      return result(ls_aten_exp(x));
    case 6:
      return result(ls_aten_log(x));
    case 7:
      return result(ls_aten_sqrt(x));
    case 8:
      return result(ls_aten_maximum(x, y));
    case 9:
      return result(ls_aten_eq_Tensor(x, y));
    case 10:
      return result(ls_aten_lt_Tensor(x, y));
    case 11:
      return result(ls_aten_gt_Tensor(x, y));
    case 12:
      return result(ls_aten_sum_dim_IntList(x));
    case 13:
      return result(ls_aten_mean_dim(x));
    case 14:
      return result(ls_aten_matmul(x, y));
    case 15:
      return result(ls_aten_mm(x, y));
    case 16:
      return result(ls_aten_bmm(x, y));
    case 17:
      return result(ls_aten_addmm(x, y, z));
    case 18:
      if (one(2)) return result(ls_linear_activation(x, y, z, static_cast<int32_t>(below(8))));
      return result(ls_aten_linear(x, y, z));
    case 19:
      return result(ls_aten_view(x, v.data(), v.size()));
    case 20:
      return result(ls_aten_reshape(x, v.data(), v.size()));
    case 21:
      return result(ls_aten_transpose_int(x, i, k));
    case 22:
      return result(ls_aten_t(x));
    case 23:
      return result(ls_aten_permute(x, v.data(), v.size()));
    case 24:
      return result(ls_aten_squeeze_dim(x, i));
    case 25:
      return result(ls_aten_unsqueeze(x, i));
    case 26:
      // See small_.
      for (auto &d : v)
        if (d > 4) d = 4;
      v.resize(std::min<size_t>(v.size(), 6));
      return result(ls_aten_expand(x, v.data(), v.size()));
    case 27:
      return result(ls_aten_select_int(x, i, k));
    case 28:
      return result(ls_aten_slice_Tensor(x, i));
    case 29:
      return result(ls_aten_contiguous(x));
    case 30:
      return result(ls_aten_clone(x));
    case 31:
      return result(ls_aten_detach(x));
    case 32:
      return result(ls_aten_masked_fill_Tensor(x, y, z));
    case 33:
      return result(ls_aten_relu(x));
    case 34:
      return result(ls_aten_softmax_int(x, i));
    case 35:
      return result(ls_aten_log_softmax_int(x, i));
    case 36:
      return result(ls_aten_layer_norm(x, v.data(), v.size(), y, z));
    case 37:
      return result(ls_aten_dropout(x, real()));
    case 38:
      return result(ls_aten_cross_entropy_loss(x, y));
    default:
      return result(ls_aten_mse_loss(x, y));
  }
}

void Fuzz::in_place() {
  ls_tensor x = tensor(), y = tensor(), z = tensor();
  bool off = one(3) || x == y || x == z;
  if (!off && x != 0 && y != 0) {
    // Operators on x have saved x itself. If x were written into x, the graph would hold its own output, a
    // cycle that libtorch never frees.
    ok(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
    auto r = ls_aten_clone(y);
    ls_mode_pop();
    result(r);
    y = r.t;
    z = y;
  }
  if (off) ok(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
  if (trace)
    for (auto t : {x, y, z}) describe(t);
  switch (choose(14)) {
    case 0:
      ok(ls_aten_add__Tensor(x, y));
      break;
    case 1:
      ok(ls_aten_sub__Tensor(x, y));
      break;
    case 2:
      ok(ls_aten_mul__Tensor(x, y));
      break;
    case 3:
      ok(ls_aten_div__Tensor(x, y));
      break;
    case 4:
      ok(ls_aten_neg_(x));
      break;
    case 5:
      ok(ls_aten_exp_(x));
      break;
    case 6:
      ok(ls_aten_log_(x));
      break;
    case 7:
      ok(ls_aten_eq__Tensor(x, y));
      break;
    case 8:
      ok(ls_aten_addmm_(x, y, z));
      break;
    case 9:
      ok(ls_aten_detach_(x));
      break;
    case 10:
      ok(ls_aten_masked_fill__Tensor(x, y, z));
      break;
    case 11:
      ok(ls_aten_relu_(x));
      break;
    case 12:
      ok(ls_aten_tanh_(x));
      break;
    default:
      ok(ls_aten_sigmoid_(x));
      break;
  }
  if (off) ls_mode_pop();
}

void Fuzz::backward() {
  ls_tensor root[2] = {tensor(), tensor()}, ones[2] = {one(2) ? 0 : tensor(), 0};
  uint64_t n = one(10) ? below(3) : 1;
  if (n == 1 && !one(3)) {
    auto r = ls_aten_sum_dim_IntList(root[0]);
    result(r);
    root[0] = r.t;
  }
  auto inputs = tensors(2);
  bool with = one(4);
  ok(ls_autograd_backward(root, n, one(3) ? nullptr : ones, with ? inputs.data() : nullptr,
                          with ? inputs.size() : 0, static_cast<int32_t>(below(2)), rings_ && one(3)));
}

void Fuzz::grad() {
  ls_tensor root = tensor();
  if (!one(3)) {
    auto r = ls_aten_sum_dim_IntList(root);
    result(r);
    root = r.t;
  }
  auto inputs = tensors(3);
  std::vector<ls_tensor> out(inputs.size());
  uint64_t scope;
  auto *e = ls_autograd_grad(&root, 1, nullptr, inputs.data(), inputs.size(), static_cast<int32_t>(below(2)),
                             static_cast<int32_t>(below(2)), static_cast<int32_t>(below(2)), out.data(), &scope);
  if (e == nullptr)
    for (auto t : out) keep(t);
  ok(e);
}

void Fuzz::set_grad() {
  ls_tensor x = tensor(), y = tensor();
  switch (choose(7)) {
    case 0:
      return ok(ls_tensor_set_requires_grad(x, static_cast<int32_t>(below(2))));
    case 1:
      return ok(ls_tensor_retain_grad(x));
    case 2:
      return result(one(2) ? ls_tensor_grad(x) : ls_tensor_try_grad(x));
    case 3: {
      // A gradient with a graph can hold its own tensor.
      if (y == 0 || rings_) return ok(ls_tensor_set_grad(x, y));
      auto d = ls_aten_detach(y);
      result(d);
      return ok(ls_tensor_set_grad(x, d.t));
    }
    case 4: {
      auto v = tensors();
      std::vector<ls_tensor> out(v.size(), 1);
      auto *e = ls_tensors_grad(v.data(), v.size(), out.data());
      for (auto t : out) {
        if (e != nullptr && t != 0) fail("a gradient beside an error");
        keep(t);
      }
      return ok(e);
    }
    default: {
      auto v = tensors();
      return ok(ls_tensors_zero_grad(v.data(), v.size(), static_cast<int32_t>(below(2))));
    }
  }
}

// Ids with this bit are those of callbacks whose result is not read.
constexpr uint64_t kNoResult = uint64_t{1} << 63;

uint64_t on_hook(uint64_t id, ls_tensor grad, ls_tensor *out) {
  if ((id & kNoResult) != 0) return id % 4 == 2 ? 7 : 0;
  if (id % 4 == 1) *out = ls_tensor_alias(grad).t;
  if (id % 4 == 2) return 7;
  if (id % 4 == 3) {
    auto r = ls_aten_sum_dim_IntList(grad);  // with a different shape
    *out = r.t;
    ls_error_free(r.err);
  }
  if (id % 8 == 4) ls_error_free(ls_pass_end(id / 8 | kNoResult));
  return 0;
}

// Ids of ls_remade_push: the dtype, and the number of elements of a storage.
uint64_t remade_id(int32_t dtype, int64_t numel) {
  return static_cast<uint64_t>(numel) << 8 | static_cast<uint64_t>(dtype);
}

uint64_t on_backward(uint64_t id, const ls_tensor *grads, uint64_t n, const ls_tensor *saved, uint64_t ns,
                     const uint8_t *needs, ls_tensor *out, uint64_t nout) {
  if (grads == nullptr && needs != nullptr) {
    auto numel = static_cast<int64_t>(id >> 8);
    std::vector<char> zeros(static_cast<size_t>(numel) * static_cast<size_t>(kSizes[id % 16]));
    for (uint64_t i = 0; i < nout; i++) {
      if (needs[i] == 0) continue;
      auto r = ls_tensor_from_data(static_cast<int32_t>(id % 16), &numel, 1, zeros.data(), zeros.size());
      ls_error_free(r.err);
      out[i] = r.t;
    }
    return 0;
  }
  for (uint64_t i = 0; i < nout; i++) {
    if (id % 3 == 0 || needs[i] == 0) continue;
    ls_tensor from = i < n ? grads[i] : ns > 0 ? saved[0] : 0;
    if (from != 0) out[i] = ls_tensor_alias(from).t;
  }
  return id % 7 == 6 ? 3 : 0;
}

// A function to checkpoint, by its id: it computes the same each time. Returns 0 if an operator has failed, as in
// a recomputation that is complete.
ls_tensor checkpointed(uint64_t id, ls_tensor x) {
  ls_tensor y = ls_tensor_alias(x).t;
  for (id >>= 3; id != 0 && y != 0; id >>= 3) {
    ls_result r{};
    int32_t stage = 0;
    uint64_t depth = 0;
    switch (id % 8) {
      case 0:
        r = ls_aten_exp(y);
        break;
      case 1:
        r = ls_aten_mul_Tensor(y, y);
        break;
      case 2:
        r = ls_aten_dropout(y, 0.5);
        break;
      case 3:
        r = ls_aten_matmul(y, y);
        break;
      case 4:
        r = ls_aten_sum_dim_IntList(y);
        break;
      case 5:  // another checkpoint
        r.err = ls_checkpoint_push(id, &y, 1, &depth);
        if (r.err != nullptr) break;
        r.t = checkpointed(id, y);
        r.err = ls_saved_pop(depth);
        id = 0;
        break;
      case 6:  // a part that is not recomputed
        r.err = ls_checkpoint_keep(&stage, &depth);
        if (r.err != nullptr) break;
        r = stage == 2 ? ls_checkpoint_take() : ls_aten_exp(y);
        if (stage != 1) break;
        ls_error_free(ls_checkpoint_kept(r.t));
        ls_error_free(ls_saved_pop(depth));
        break;
      default:
        r = ls_aten_softmax_int(y, 0);
    }
    ls_error_free(r.err);
    ls_tensor_free(y);
    y = r.t;
  }
  return y;
}

uint64_t on_recompute(uint64_t id, const ls_tensor *inputs, uint64_t n) {
  if (id % 8 == 7) return 5;
  if (id % 8 == 6) id += 8;  // another function
  if (n != 0) ls_tensor_free(checkpointed(id, inputs[0]));
  return 0;
}

void Fuzz::hook() {
  if (!hooks_.empty() && one(3)) {
    auto &h = hooks_[below(hooks_.size())];
    uint32_t slot = one(4) ? static_cast<uint32_t>(below(9)) : h.slot;
    return ok(h.accumulate ? ls_accumulate_hook_remove(h.t, slot) : ls_hook_remove(h.t, slot));
  }
  ls_tensor t = tensor();
  uint32_t slot = 0;
  ls_error *e;
  switch (choose(8)) {
    case 0:
      return ok(ls_hook_remove(t, pick<uint32_t>({0, 1, UINT32_MAX})));
    case 1:
      return ok(ls_accumulate_hook_remove(t, pick<uint32_t>({0, 1, UINT32_MAX})));
    case 2:
      return ok(ls_pass_end(source_.next()));
    case 3:
      e = ls_accumulate_hook_register(t, source_.next() / 2, &slot);
      if (e == nullptr) keep_hook(t, slot, true);
      return ok(e);
    case 4: {
      auto v = tensors(3);
      uint32_t slots[3] = {};
      if (trace)
        for (auto each : v) describe(each);
      e = ls_multi_hook_register(v.data(), v.size(), source_.next() | kNoResult, static_cast<int32_t>(below(2)),
                                 slots);
      for (size_t i = 0; e == nullptr && i < v.size(); i++) keep_hook(v[i], slots[i], false);
      return ok(e);
    }
    default:
      e = ls_hook_register(t, source_.next() / 2, &slot);
      if (e == nullptr) keep_hook(t, slot, false);
      return ok(e);
  }
}

void Fuzz::custom() {
  auto in = tensors(3), saved = tensors(2);
  std::vector<ls_tensor> fresh;
  for (uint64_t n = below(3); n > 0; n--) {
    auto r = ls_aten_detach(tensor());
    auto c = ls_aten_clone(r.t);
    result(r);
    if (c.t != 0) fresh.push_back(c.t);
    result(c);
  }
  // Only tensors without a graph can be outputs: others make reference cycles.
  if (one(10)) fresh.push_back(0);
  std::vector<ls_tensor> out(fresh.size());
  uint64_t scope;
  auto *e = ls_function_attach(source_.next(), in.data(), in.size(), fresh.data(), fresh.size(), saved.data(),
                               saved.size(), one(2), out.data(), &scope);
  if (e == nullptr)
    for (auto t : out) keep(t);
  ok(e);
}

void Fuzz::adam() {
  uint64_t n = below(3);
  std::vector<ls_tensor> p, a, s, m, t;
  for (uint64_t i = 0; i < n; i++) {
    ls_tensor x = tensor();
    p.push_back(x);
    float zero = 0;
    auto step = ls_tensor_from_data(kFloat, nullptr, 0, &zero, 4);
    result(step);
    t.push_back(one(10) ? tensor() : step.t);
    for (auto *v : {&a, &s, &m}) {
      auto r = ls_aten_clone(x);
      ls_tensor h = r.t;
      if (r.err == nullptr && h != 0) {
        auto d = ls_aten_detach(h);
        result(d);
        h = d.t;
      }
      result(r);
      v->push_back(one(10) ? tensor() : h);
    }
    if (x != 0 && one(2)) {
      auto g = ls_aten_detach(a.back());
      if (g.err == nullptr && g.t != 0 && !one(4)) ok(ls_tensor_set_grad(x, g.t));
      result(g);
    }
  }
  ls_adam how{real(),
              real(),
              real(),
              real(),
              real(),
              static_cast<int32_t>(below(2)),
              static_cast<int32_t>(below(2)),
              static_cast<int32_t>(below(2))};
  ok(ls_adam_step(&how, n, p.data(), a.data(), s.data(), how.amsgrad != 0 && !one(5) ? m.data() : nullptr,
                  t.data()));
}

void Fuzz::blob() {
  static float memory[16] = {1, 2, 3};
  auto s = shape();
  uint64_t n = 4;
  for (auto d : s) n *= static_cast<uint64_t>(d);
  if (n > sizeof memory) s = {16}, n = 64;
  if (one(10)) n++;
  auto drop = [](void *) { dropped.fetch_add(1, std::memory_order_relaxed); };
  auto r = one(2) ? ls_tensor_from_blob(one(10) ? dtype() : kFloat, s.data(), s.size(), memory, n, drop, 0)
                  : ls_tensor_from_blob(kFloat, s.data(), s.size(), memory, n, nullptr, source_.next());
  if (r.err != nullptr) return result(r);
  // Other handles share the memory, so only a copy is written to.
  result(ls_aten_clone(r.t));
  ls_tensor_free(r.t);
  uint64_t ids[8];
  ls_dropped_take(ids, below(9));
  (void)ls_dropped_count();
}

// Passes a tensor that nothing else references to another thread and takes one from another thread.
void Fuzz::swap() {
  auto &slot = exchange[below(std::size(exchange))];
  ls_tensor give = 0;
  if (ls_tensor t = tensor(); t != 0 && !one(4)) {
    ok(ls_mode_push({LS_MODE_GRAD, 0, 0, 0, 0}));
    auto r = ls_aten_clone(t);
    ls_mode_pop();
    ok(r.err);
    give = r.t;
  }
  keep(slot.exchange(give));
}

void Fuzz::memory() {
  int32_t d = device();
  switch (below(12)) {
    case 0:
    case 1: {
      ls_memory m;
      return ok(ls_memory_stats(d, &m));
    }
    case 2: {
      ls_pace p;
      return ok(ls_memory_pace(d, &p));
    }
    case 3:
      return ok(ls_memory_reset_peak(d));
    case 4:
      return ok(ls_memory_empty_cache(d));
    case 5: {
      int64_t freed;
      return ok(ls_memory_trim(d, integer(), &freed));
    }
    case 6: {
      int64_t free, total;
      return ok(ls_memory_capacity(d, &free, &total));
    }
    case 7: {
      // Always a limit that leaves memory to the machine: an allocation up to the limit is granted.
      ls_memory m;
      ok(ls_memory_stats(kCpu, &m));
      if (one(3)) ok(ls_memory_set_limit(kCpu, pick<int64_t>({-1, INT64_MIN, 1})));
      ok(ls_memory_set_limit(kCpu, m.allocated + pick<int64_t>({4096, kMiB, kRoom, kRoom})));
      if (d != kCpu && d >> 8 != 0) ok(ls_memory_set_limit(d, integer()));
      return;
    }
    case 8: {
      static auto callback = [](void *, int32_t, int64_t) -> int32_t { return 0; };
      ok(ls_memory_set_oom_callback(one(3) ? +callback : nullptr, nullptr));
      return;
    }
    case 9:
      return ok(ls_memory_set_triggers(d, one(2) ? INT64_MAX : integer(), one(2) ? INT64_MAX : integer(),
                                       one(2) ? INT64_MAX : integer()));
    case 10: {
      ls_memory m;
      ok(ls_memory_stats(kCpu, &m));
      ls_cgroup group{pick<const char *>({"/nonexistent", "/sys/fs/cgroup"}), pick<int32_t>({1, 2, 3}), 0};
      ok(ls_memory_follow_cgroups(&group, below(2), m.allocated + kRoom, 1, 0));
      if (!one(4)) return;
      ok(ls_memory_follow_cgroups(&group, below(2), integer() % kRoom, 1, 0));
      return ok(ls_memory_set_limit(kCpu, m.allocated + kRoom));
    }
    default:
      __atomic_store_n(&ls_memory_board()->due, 0, __ATOMIC_RELAXED);
      return;
  }
}

void Fuzz::pressure() {
  ls_pressure p;
  switch (below(6)) {
    case 0: {
      // A round of the pacer, which frees tensors that other threads have passed.
      if (ls_pressure_attach() == 0) return;
      for (uint64_t n = 1 + below(3); n > 0; n--) {
        // On a single thread the requested round is already there. Among several threads another may have taken
        // it.
        bool asked = (!many_ || one(2)) && ls_pressure_ask() == 1;
        int64_t timeout =
            asked && !many_ ? pick<int64_t>({0, -1, INT64_MIN, INT64_MAX}) : static_cast<int64_t>(below(2));
        if (ls_pressure_wait(&p, timeout) != 1) continue;
        ls_tensor_free(exchange[below(std::size(exchange))].exchange(0));
        for (int32_t i = 0; i < p.count; i++) p.waiters[i].verdict = LS_VERDICT_EXHAUSTED;
        ls_pressure_done(&p);
      }
      ls_sweeping_set(0);
      return ls_pressure_stop();
    }
    case 1:
      (void)ls_pressure_ask();
      return;
    case 2:
      // Without a request it would wait for ever.
      if (ls_pressure_ask() == 1) (void)ls_pressure_wait(&p, pick<int64_t>({0, 1, -1, INT64_MIN}));
      ls_sweeping_set(0);
      return;
    case 3:
      if (one(4)) return ls_pressure_done(nullptr);
      p = {};
      p.round = one(2) ? 0 : below(9);
      p.count = static_cast<int32_t>(integer());
      for (auto &w : p.waiters) {
        w.device = static_cast<int32_t>(integer());
        w.verdict = static_cast<int32_t>(below(4));
      }
      return ls_pressure_done(&p);
    case 4: {
      ls_pressure_waited(integer(), static_cast<int32_t>(below(2)));
      ls_pressure_counts c;
      return ls_pressure_stats(&c);
    }
    default: {
      int32_t before = ls_sweeping_set(static_cast<int32_t>(integer()));
      if (before != 0 && before != 1) fail("sweeping");
      ls_sweeping_set(0);
      return;
    }
  }
}

void Fuzz::samples() {
  switch (below(8)) {
    case 0:
      return ls_samples_set_rate(pick<int64_t>({0, 1, 4096, 512 << 10, -1, INT64_MAX}));
    case 1:
    case 2:
      return ls_samples_attach(static_cast<uint32_t>(below(100)), one(2) ? 0 : tensor());
    case 3: {
      ls_site sites[8];
      (void)ls_samples_sites(sites, below(9));
      (void)__atomic_load_n(ls_samples_seen(), __ATOMIC_RELAXED);
      return;
    }
    case 4:
      return ok(ls_history_set(pick<uint64_t>({0, 1, 100, 1000})));
    case 5: {
      ls_event events[16];
      (void)ls_history_events(events, below(17));
      return;
    }
    case 6:
      return ok(ls_history_out_of_memory(device(), integer(), integer(), 1));
    default: {
      ls_event events[16];
      (void)ls_history_live(events, below(17));
      return;
    }
  }
}

void Fuzz::process() {
  switch (below(17)) {
    case 0:
      return ok(ls_rng_seed(source_.next()));
    case 1:
      return result(ls_rng_state(device()));
    case 2: {
      auto r = ls_rng_state(kCpu);
      result(r);
      return ok(ls_rng_set_state(one(4) ? device() : kCpu, one(2) ? tensor() : r.t));
    }
    case 3:
      // Each number of threads starts its own pool.
      return ok(ls_threads_set(one(40) ? 2 : pick<int32_t>({1, 1, 0, -1, INT32_MIN})));
    case 4:
      (void)ls_threads_get();
      return;
    case 5:
      if (many_) return;
      return ok(ls_deterministic_set(static_cast<int32_t>(below(2)), 1));
    case 6:
      (void)ls_deterministic_get();
      return;
    case 7:
      if (many_) return;
      return ok(ls_matmul_precision_set(static_cast<int32_t>(integer())));
    case 8:
      (void)ls_matmul_precision_get();
      return;
    case 9:
      if (many_) return;
      return ok(ls_default_dtype_set(dtype()));
    case 10:
      (void)ls_default_dtype_get();
      return ok(ls_device_synchronize(device()));
    case 11:
      return ls_casts_clear(static_cast<int32_t>(below(2)));
    case 12:
      (void)ls_yield_due(static_cast<int32_t>(below(2)));
      return;
    case 13: {
      int32_t backends[8];
      uint64_t n = ls_sdpa_get(backends, below(9));
      for (uint64_t i = n; i < 8; i++) backends[i] = static_cast<int32_t>(one(10) ? integer() : below(5));
      if (many_) return;
      return ok(ls_sdpa_set(backends, below(9)));
    }
    case 14:
      (void)ls_memory_cache_objects(static_cast<int32_t>(below(2)));
      return;
    case 15: {
      bool on = exact_peaks_ < 3 && one(2);
      if (!on && exact_peaks_ == 0) return;
      exact_peaks_ += on ? 1 : -1;
      return ls_memory_exact_peak(on);
    }
    default:
      (void)ls_device_count(pick<int32_t>({0, 1, 14, -1, 127, INT32_MAX, INT32_MIN}));
      return;
  }
}

void Fuzz::threads_words() {
  switch (below(6)) {
    case 0:
    case 1: {
      if (modes_ > 3) break;
      auto kind = static_cast<int32_t>(one(10) ? integer() : static_cast<int64_t>(below(6)));
      auto *e = ls_mode_push({kind, static_cast<int32_t>(below(2)),
                              static_cast<int32_t>(one(10) ? integer() : static_cast<int64_t>(below(2))),
                              pick<int32_t>({5, 15, 15, static_cast<int32_t>(dtype())}), 0});
      if (e == nullptr) modes_++;
      return ok(e);
    }
    case 2:
      (void)ls_mode_get(static_cast<int32_t>(integer()), static_cast<int32_t>(integer()));
      return;
    case 3: {
      uint64_t word = source_.next() & ~(LS_SCOPE_SAMPLED | LS_SCOPE_YIELD);
      ls_scope_set(word);
      if (ls_scope_get() != word) fail("the scope word is not what was set");
      if ((ls_scope_leave(word, word + 1) & ~LS_SCOPE_YIELD) != word) fail("the scope word is not what was left");
      return;
    }
    case 4: {
      uint64_t words[4];
      (void)ls_scope_orphans(words, below(5));
      return;
    }
    default:
      break;
  }
  ls_mode_pop();  // does nothing without CUDA
  modes_ = std::max(0, modes_ - 1);
}

void Fuzz::names() {
  ls_op op = 0;
  auto &full = all_names[below(all_names.size())];
  size_t dot = full.find('.');
  std::string name = full.substr(0, dot), overload = dot == std::string::npos ? "" : full.substr(dot + 1);
  if (one(4)) overload = text();
  if (one(6)) name = pick<const char *>({"", "aten", "::", "aten::", "aten::nothing", "\xff", "aten::add.Tensor"});
  ok(ls_op_find(name.c_str(), overload.c_str(), &op).err);
  (void)ls_op_repeatable(op);
  (void)ls_op_internal(op);
  values([&](ls_value *out, uint64_t n) { return ls_op_schema(op, out, n); });
}

void Fuzz::versions() {
  if (ls_abi() != LS_ABI) fail("ls_abi");
  if (ls_torch_version_built() >> 48 != ls_torch_version_loaded() >> 48) fail("versions");
  ls_error_free(nullptr);
  ls_spill_free(nullptr);
  ok(ls_init());
  if (one(20)) values([](ls_value *out, uint64_t n) { return ls_torch_config(out, n); });
  if (one(200)) values([](ls_value *out, uint64_t n) { return ls_op_names(out, n); });
}

void Fuzz::cuda() {
  values([&](ls_value *out, uint64_t n) { return ls_device_name(device(), out, n); });
  values([](ls_value *out, uint64_t n) { return ls_cuda_snapshot(out, n); });
  ls_allocator_settings settings;
  values([&](ls_value *out, uint64_t n) { return ls_cuda_allocator_settings(&settings, out, n); });
  ok(ls_cuda_set_allocator_settings(pick<const char *>({nullptr, "", "expandable_segments:True", "no:"})));
  ls_device_used(device() >> 8);
  ls_cuda_capturing();
}

void Fuzz::generators() {
  ls_generator g = generator();
  uint64_t number;
  switch (generators_.empty() ? below(2) * 7 : choose(8)) {
    case 0: {
      if (generators_.size() > 3) return;
      ls_generator made = 0;
      auto *e = ls_generator_new(one(3) ? device() : kCpu, &made);
      if (e == nullptr) generators_.push_back(made);
      return ok(e);
    }
    case 1:
      return ok(ls_generator_seed(g, source_.next()));
    case 2:
      ok(ls_generator_seed_random(g, &number));
      return ok(ls_generator_seed(g, 1));  // so that the sequence can be repeated
    case 3:
      return ok(ls_generator_current_seed(g, &number));
    case 4:
      return result(ls_generator_state(g));
    case 5:
    case 6: {
      auto r = ls_generator_state(generator());
      result(r);
      return ok(ls_generator_set_state(g, one(2) ? tensor() : r.t));
    }
    default:
      if (generators_.empty()) return ls_generator_free(0);
      ls_generator_free(generators_.back());
      generators_.pop_back();
  }
}

// There are no devices with streams here.
void Fuzz::streams() {
  int32_t d = device(), done;
  int64_t s = integer();
  ls_stream_event event = 0;
  ls_graph graph = 0;
  ls_pool pool{};
  double ms;
  switch (choose(16)) {
    case 0:
      return refused(ls_stream_new(d, static_cast<int32_t>(integer()), &s));
    case 1:
      return refused(ls_stream_current(d, &s));
    case 2:
      return refused(ls_stream_query(d, s, &done));
    case 3:
      return refused(ls_stream_synchronize(d, s));
    case 4:
      return refused(ls_stream_record(tensor(), d, s));
    case 5:
      return refused(ls_stream_copy(tensor(), tensor(), d, s));
    case 6:
      return refused(ls_event_new(d, static_cast<int32_t>(below(2)), &event));
    case 7:
      return refused(ls_event_record(event, d, s));
    case 8:
      return refused(ls_event_wait(event, d, s));
    case 9:
      return refused(ls_event_query(event, &done));
    case 10:
      return refused(ls_event_synchronize(event));
    case 11:
      return refused(ls_event_elapsed(event, event, &ms));
    case 12:
      return refused(ls_graph_begin(d, &pool, &graph));
    case 13:
      return refused(ls_graph_end(graph, &pool));
    case 14:
      return refused(ls_graph_replay(graph));
    default:
      ls_event_free(event);
      ls_graph_abandon(graph);
      ls_graph_free(graph);
      if (ls_graph_capturing() != 0) fail("a graph is being captured");
  }
}

void Fuzz::stores() {
  ls_store s = store(), made = 0;
  auto key = text();
  char data[16] = {'1', '2'};
  uint64_t n = below(sizeof data + 1);
  // The longest wait ends at once: it is cancelled.
  int64_t ms = pick<int64_t>({0, 1, -1, INT64_MIN, INT64_MAX});
  int32_t answer, cancel = ms > 1;
  int64_t number;
  switch (stores_.empty() ? below(2) * 13 : choose(14)) {
    case 0:
    case 1: {
      if (stores_.size() > 3) return;
      ls_error *e;
      if (one(2)) {
        e = ls_store_prefix(s, key.c_str(), &made);
      } else if (one(20)) {
        ls_tcp_store tcp{"127.0.0.1",
                         one(4) ? static_cast<int32_t>(integer()) - 70000 : 0,
                         1,
                         static_cast<int32_t>(below(2)),
                         static_cast<int32_t>(below(3)),
                         1000};
        e = ls_store_tcp(&tcp, &made, &answer);
      } else if (one(4)) {
        int fd = memfd_create("store", 0);
        stores_fds_.push_back(fd);
        e = ls_store_file(("/proc/self/fd/" + std::to_string(fd)).c_str(), pick<int32_t>({1, 2, 0, -1}), &made);
      } else {
        e = ls_store_hash(&made);
      }
      if (e == nullptr) stores_.push_back(made);
      return ok(e);
    }
    case 2:
    case 3:
      return ok(ls_store_set(s, key.c_str(), data, n));
    case 4:
    case 5:
      return values(
          [&](ls_value *out, uint64_t slots) { return ls_store_get(s, key.c_str(), ms, &cancel, out, slots); });
    case 6:
      return ok(ls_store_wait(s, key.c_str(), ms, ms > 1 ? &cancel : nullptr));
    case 7:
      return ok(ls_store_check(s, key.c_str(), &answer));
    case 8:
      return ok(ls_store_add(s, key.c_str(), integer(), &number));
    case 9:
    case 10: {
      uint64_t expected = below(3);
      return values([&](ls_value *out, uint64_t slots) {
        return ls_store_compare_set(s, key.c_str(), data, expected, data, n, out, slots);
      });
    }
    case 11:
      return ok(ls_store_delete(s, key.c_str(), &answer));
    case 12:
      return ok(ls_store_num_keys(s, &number));
    default:
      if (stores_.empty()) return ls_store_free(0);
      ls_store_free(stores_.back());
      stores_.pop_back();
  }
}

// A group of this process alone.
void Fuzz::groups() {
  ls_group group = 0;
  if (one(10)) {
    ls_store s = 0;
    ok(ls_store_hash(&s));
    bool right = !one(4);
    ok(ls_group_new(s, right ? 0 : static_cast<int32_t>(integer()), right ? 1 : static_cast<int32_t>(below(3)),
                    right ? LS_BACKEND_GLOO : static_cast<int32_t>(integer()), 20, 5, one(4) ? "checked" : nullptr,
                    nullptr, &group));
    ls_store_free(s);
  }
  for (uint64_t n = group == 0 ? 1 : below(30); n > 0; n--) collective(group);
  ls_group_free(group);
}

void Fuzz::collective(ls_group group) {
  switch (choose(12)) {
    case 0:
      return ok(one(4) ? ls_group_abort(group) : ls_group_settle(group));
    case 1:
      return ok(ls_group_monitored_barrier(group, pick<int64_t>({1, 0, -1, 10})));
    case 2: {
      auto v = tensors();
      return ok(ls_group_broadcast_coalesced(group, v.data(), v.size(), one(4) ? 1 : 0));
    }
    case 3:
    case 4:
      return reducer(group);
    default: {
      auto out = tensors(2), in = tensors(2);
      auto out_sizes = shape(), in_sizes = shape();
      if (one(2)) out_sizes.clear(), in_sizes.clear();
      ls_collective c{static_cast<int32_t>(below(18)) - 1, static_cast<int32_t>(below(10)) - 1,
                      pick<int32_t>({0, 0, 0, 1, -1}), static_cast<int32_t>(below(3))};
      if (trace) std::fprintf(stderr, "    collective %d, %d, %d\n", c.kind, c.reduce, c.peer);
      ls_work work = 0;
      ok(ls_group_start(group, &c, out.data(), out.size(), in.data(), in.size(), out_sizes.data(),
                        out_sizes.size(), in_sizes.data(), in_sizes.size(), &work));
      if (one(4)) ls_work_interrupt(work);
      (void)ls_work_done(work);
      int32_t done = 0;
      for (int i = 0; i < 2 && done == 0; i++) {
        auto *e = ls_work_wait(work, &done);
        if (e != nullptr) i = 2;
        ok(e);
      }
      (void)ls_work_source(work);
      return ls_work_free(work);
    }
  }
}

// A reducer, and a pass with it.
void Fuzz::reducer(ls_group group) {
  auto params = tensors(2);
  if (one(2))
    for (auto &t : params) {
      auto r = ls_aten_detach(t);
      ok(ls_tensor_set_requires_grad(r.t, 1));
      t = r.t;
      result(r);
    }
  const uint8_t sparse[] = {static_cast<uint8_t>(below(2)), static_cast<uint8_t>(below(2))};
  ls_reducer_options o{pick<int64_t>({1 << 20, 1, 100}),
                       pick<int64_t>({1 << 20, 1}),
                       static_cast<int32_t>(below(2)),
                       static_cast<int32_t>(below(2)),
                       static_cast<int32_t>(below(2)),
                       static_cast<int32_t>(below(5)),
                       static_cast<int32_t>(below(3)),
                       static_cast<int64_t>(below(4)),
                       real(),
                       real()};
  ls_reducer r = 0;
  ok(ls_reducer_new(group, params.data(), params.size(), one(4) ? sparse : nullptr, "a\nb", &o, &r));
  for (uint64_t k = below(4); k > 0; k--) {
    auto sync = static_cast<int32_t>(below(4) != 0);
    if (one(4)) {
      ok(ls_reducer_join_forward(r));
      ok(ls_reducer_join_backward(r));
      continue;
    }
    ok(ls_reducer_before_forward(r, sync, 0, static_cast<int32_t>(below(2))));
    auto sum = ls_aten_sum_dim_IntList(params.empty() ? tensor() : params[0]);
    ok(ls_reducer_after_forward(r, sync, &sum.t, 1));
    if (!one(4)) ok(ls_autograd_backward(&sum.t, 1, nullptr, nullptr, 0, 0, 0));
    result(sum);
  }
  int64_t times[4];
  ok(ls_reducer_times(r, times));
  ls_reducer_free(r);
}

// Pushes a policy for what the graph keeps, or pops some. The sequence goes on between the two.
void Fuzz::policies() {
  uint64_t depth = 0;
  ls_error *e = nullptr;
  switch (policies_ > 3 ? 9 : choose(12)) {
    case 0:
    case 1: {
      auto v = tensors(3);
      if (trace)
        for (auto t : v) describe(t);
      e = ls_checkpoint_push(source_.next(), v.data(), v.size(), &depth);
      break;
    }
    case 2:
    case 3: {
      ls_saved_policy how{};
      how.kind = one(10) ? static_cast<int32_t>(integer()) : static_cast<int32_t>(below(3));
      how.dtype = one(10) ? dtype() : pick<int32_t>({kHalf, kBFloat16});
      how.pinned = static_cast<int32_t>(below(2));
      how.min_bytes = one(2) ? 0 : integer();
      how.keep = one(2) ? 0 : integer();
      int fd = one(4) ? open("/dev/null", O_RDWR | O_CLOEXEC) : memfd_create("saved", MFD_CLOEXEC);
      how.fd = one(10) ? -1 : fd;
      e = ls_saved_push(&how, &depth);
      close(fd);
      break;
    }
    case 4: {
      // The callback makes numbers of other values: they must not be indices.
      auto v = tensors(2);
      ls_meta m{};
      if (!v.empty()) ls_error_free(ls_tensor_meta(v[0], &m));
      bool number = m.dtype == kFloat || m.dtype == kDouble || m.dtype == kHalf || m.dtype == kBFloat16;
      int64_t most = 1 << 16, numel = number ? static_cast<int64_t>(m.nbytes) / kSizes[m.dtype] : 1;
      e = ls_remade_push(remade_id(number ? m.dtype : kFloat, one(8) ? 1 : std::min(numel, most)), v.data(),
                         v.size(), &depth);
      break;
    }
    case 5: {
      int32_t stage = 0;
      e = ls_checkpoint_keep(&stage, &depth);
      if (e == nullptr && stage != 1) return;
      break;
    }
    case 6:
      return ok(ls_checkpoint_kept(tensor()));
    case 7:
      return result(ls_checkpoint_take());
    default:
      depth = below(policies_ + 2);
      policies_ = std::min(policies_, depth);
      return ok(ls_saved_pop(depth));
  }
  if (e == nullptr) policies_ = depth + 1;
  ok(e);
}

// A checkpointed function, which a backward pass recomputes.
void Fuzz::checkpoint() {
  ls_tensor x = tensor();
  uint64_t id = below(1 << 15), depth = 0;
  if (trace) std::fprintf(stderr, "    function %" PRIu64 "\n", id);
  if (auto *e = ls_checkpoint_push(id, &x, 1, &depth)) return ok(e);
  ls_tensor y = checkpointed(id, x);
  ok(ls_saved_pop(depth));
  if (y == 0) return;
  if (one(2)) {
    auto sum = ls_aten_sum_dim_IntList(y);
    for (uint64_t k = 1 + below(2); k > 0; k--) ok(ls_autograd_backward(&sum.t, 1, nullptr, nullptr, 0, k > 1, 0));
    result(sum);
  }
  keep(y);
}

void Fuzz::plans() {
  switch (choose(8)) {
    case 0:
    case 1:
      return ok(ls_plan_begin());
    case 2:
      return ls_plan_end();
    case 3: {
      auto t = ls_plan_read();
      if (t.live < 0 || t.peak < t.live || t.total < t.peak || t.position < 0) fail("the totals of a plan");
      return;
    }
    case 4:
    case 5: {
      ls_plan_block blocks[8];
      uint64_t cap = below(9), n = std::min(ls_plan_blocks(blocks, cap), cap);
      for (uint64_t i = 0; i < n; i++) {
        auto &b = blocks[i];
        if (b.bytes < 1 || b.rounded < b.bytes || (b.died >= 0 && b.died <= b.born)) fail("a block of a plan");
        values([&](ls_value *out, uint64_t slots) { return ls_plan_op(b.op, out, slots); });
      }
      return;
    }
    case 6:
      return values(
          [&](ls_value *out, uint64_t n) { return ls_plan_op(static_cast<uint32_t>(integer()), out, n); });
    default: {
      int64_t n = integer();
      int64_t rounded = ls_plan_rounded(n);
      if (n < int64_t{1} << 46 && rounded < n) fail("rounded bytes");
      // What another shape of the same tensors would take.
      auto r = ls_tensor_to(tensor(), -1, kMeta, -1, 0);
      return result(r);
    }
  }
}

void Fuzz::traces() {
  switch (choose(9)) {
    case 0:
    case 1:
      return ok(ls_trace_start(static_cast<uint32_t>(below(4)), pick<uint64_t>({0, 1, 100, 1000})));
    case 2:
      return ls_trace_stop();
    case 3:
    case 4: {
      ls_trace_event events[8];
      uint64_t cap = below(9), n = ls_trace_take(events, cap);
      if (n > cap) fail("more events than there is room for");
      for (uint64_t i = 0; i < n; i++) {
        if (events[i].end_ns < events[i].start_ns) fail("an event ends before it begins");
        values([&](ls_value *out, uint64_t slots) { return ls_trace_text(events[i].name, out, slots); });
      }
      return;
    }
    case 5:
      (void)ls_trace_dropped();
      ok(ls_nvtx_set(0));
      refused(ls_nvtx_set(1));
      return values([&](ls_value *out, uint64_t n) {
        return ls_trace_text(static_cast<uint32_t>(one(2) ? below(60) : integer()), out, n);
      });
    case 6:
    case 7: {
      if (ranges_.size() > 3) break;
      uintptr_t range = 0;
      ok(ls_range_push(text().c_str(), &range));
      ranges_.push_back(range);
      return;
    }
    default:
      break;
  }
  if (ranges_.empty()) return ls_range_pop(0);
  ls_range_pop(ranges_.back());
  ranges_.pop_back();
}

// Calls that fail where they can. All threads share a point.
void Fuzz::faults() {
  if (one(10)) ok(ls_fault_set(static_cast<int32_t>(integer()), integer(), 0, 0, 1));
  if (many_) return;
  int32_t point = pick<int32_t>({LS_FAULT_CPU, LS_FAULT_SYSTEM, LS_FAULT_ENTRY});
  ok(ls_fault_set(point, static_cast<int64_t>(below(4)), pick<int64_t>({1, 2, -1}),
                  static_cast<int32_t>(below(LS_THROWS)), 1));
  for (uint64_t n = 1 + below(3); n > 0; n--) one(2) ? typed() : look();
  int64_t seen, failed;
  ls_fault_counts(point, &seen, &failed);
  if (failed > seen) fail("more faults than events");
  ok(ls_fault_set(point, 0, 0, 0, 0));
}

void Fuzz::round() {
  ls_tensor from = tensor();
  if (one(4)) return ok(ls_round_stochastic(tensor(), from));
  auto x = ls_tensor_to(from, one(2) ? kFloat : -1, -1, -1, 0);
  auto to = ls_tensor_to(x.t, kBFloat16, -1, -1, 1);
  ok(ls_round_stochastic(to.t, x.t));
  result(x);
  result(to);
}

// ---- sequences ----

std::string string_of(ls_results r) {
  if (r.err != nullptr) fail(r.err->message);
  std::string s(reinterpret_cast<char *>(r.spill + 1), r.spill[0].len);
  ls_spill_free(r.spill);
  return s;
}

void load() {
  if (ls_error *e = ls_init()) fail(e->message);
  // An access beyond a tensor ends the process.
  if (ls_error *e = ls_guard_pages_set(LS_GUARD_END)) fail(e->message);
  static const ls_callbacks callbacks{on_hook, on_backward, on_recompute};
  ls_callbacks_set(&callbacks);
  for (auto &o : operators) {
    if (ls_error *e = ls_op_find(o.name, o.overload, &o.op).err) fail(e->message);
    if (o.op != 0) o.args = argument_types(string_of(ls_op_schema(o.op, nullptr, 0)));
  }
  auto names = string_of(ls_op_names(nullptr, 0));
  for (size_t at = 0, end; (end = names.find('\n', at)) != std::string::npos; at = end + 1)
    all_names.push_back(names.substr(at, end - at));
  std::sort(all_names.begin(), all_names.end());
}

void check(ls_error *e) {
  if (e != nullptr) fail(e->message);
}

ls_memory now() {
  ls_memory m;
  check(ls_memory_stats(kCpu, &m));
  return m;
}

// The process's settings when a sequence begins.
void reset() {
  check(ls_memory_set_triggers(kCpu, INT64_MAX, INT64_MAX, INT64_MAX));
  check(ls_memory_set_limit(kCpu, 0));
  check(ls_memory_set_limit(kCpu, now().allocated + kRoom));
  check(ls_memory_set_oom_callback(nullptr, nullptr));
  ls_samples_set_rate(0);
  check(ls_history_set(0));
  check(ls_default_dtype_set(kFloat));
  check(ls_threads_set(1));
  check(ls_rng_seed(1));
  check(ls_deterministic_set(0, 0));
  static const std::vector<int32_t> attention = [] {
    std::vector<int32_t> all(8);
    all.resize(ls_sdpa_get(all.data(), all.size()));
    return all;
  }();
  check(ls_sdpa_set(attention.data(), attention.size()));
  ls_memory_cache_objects(0);
  ls_trace_stop();
  ls_trace_event events[64];
  while (ls_trace_take(events, 64) != 0) {
  }
  ls_pressure_stop();
}

Source source_of(uint64_t sequence, int thread) {
  Source s;
  std::seed_seq words{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                      static_cast<uint32_t>(sequence), static_cast<uint32_t>(sequence >> 32),
                      static_cast<uint32_t>(thread)};
  s.random.seed(words);
  return s;
}

void play(uint64_t sequence, Source *given) {
  reset();
  bool many = given == nullptr && sequence % 16 == 15;
  if (many) {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++)
      threads.emplace_back([=] {
        Fuzz f(source_of(sequence, i), i, true);
        f.start();
        f.run(length);
        f.finish();
      });
    for (auto &t : threads) t.join();
  } else {
    Fuzz f(given != nullptr ? *given : source_of(sequence, 0), 0, false);
    f.start();
    f.run(length);
    f.finish();
  }
  for (auto &slot : exchange) ls_tensor_free(slot.exchange(0));
  ls_pressure_stop();
  uint64_t words[64];
  while (ls_dropped_take(words, 64) != 0) {
  }
  while (ls_scope_orphans(words, 64) != 0) {
  }
}

void sequence(uint64_t k, Source *given = nullptr) {
  self->sequence.store(k);
  self->began.store(static_cast<uint64_t>(seconds()));
  // By the second run libtorch has made everything that it makes once and keeps.
  for (int i = 0;; i++) {
    auto before = now();
    play(k, given);
    auto after = now();
    if (after.allocated == before.allocated && after.handles == before.handles) break;
    if (i == 2)
      fail("a leak of " + std::to_string(after.allocated - before.allocated) + " bytes and " +
           std::to_string(after.handles - before.handles) + " handles");
  }
  self->began.store(0);
}

#ifndef LINSTOCK_LIBFUZZER
void report(const Worker &w, const std::string &how) {
  std::fprintf(stderr,
               "cshim_fuzz: %s in sequence %" PRIu64 "; again with: cshim_fuzz -seed %" PRIu64
               " -sequence %" PRIu64 " -trace\n",
               how.c_str(), w.sequence.load(), seed, w.sequence.load());
  for (int i = 0; i < (w.sequence.load() % 16 == 15 ? kThreads : 1); i++)
    if (const char *name = w.name[i].load())
      std::fprintf(stderr, "  thread %d, call %" PRIu64 ": %s\n", i, w.step[i].load(), name);
}

// The end of a log, without libtorch's warnings.
void show(int log) {
  std::string text(1 << 16, 0);
  off_t size = lseek(log, 0, SEEK_END);
  ssize_t n = pread(log, text.data(), text.size(), std::max<off_t>(0, size - static_cast<off_t>(text.size())));
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, n)));
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    if (text.compare(at, 2, "[W") != 0) std::fprintf(stderr, "%s\n", text.substr(at, end - at).c_str());
  }
}

int run_all(uint64_t calls, int jobs) {
  std::vector<pid_t> pids(static_cast<size_t>(jobs), 0);
  std::vector<int> logs;  // the children's output, with many of libtorch's warnings
  for (int i = 0; i < jobs; i++) logs.push_back(memfd_create("log", 0));
  auto start = seconds(), said = start;
  auto begin = [&](size_t i) {
    auto &w = shared->workers[i];
    w.began.store(0);
    pid_t pid = fork();
    if (pid != 0) {
      pids[i] = pid;
      return;
    }
    self = &w;
    dup2(logs[i], 2);
    load();
    while (shared->calls.load() < calls) {
      // The output of a sequence is printed only if it fails.
      if (ftruncate(2, 0) != 0 || lseek(2, 0, SEEK_SET) != 0) fail("the log");
      sequence(shared->next.fetch_add(1));
    }
    std::_Exit(0);
  };
  for (size_t i = 0; i < pids.size(); i++) begin(i);
  bool tty = isatty(2) != 0;
  auto say = [&](const char *end) {
    std::fprintf(stderr,
                 "%s%" PRIu64 " of %" PRIu64 " calls, %" PRIu64 " sequences, %" PRIu64 " errors returned, %" PRIu64
                 " failures, %" PRId64 " s%s",
                 tty ? "\r" : "", std::min(shared->calls.load(), calls), calls, shared->next.load(),
                 shared->errors.load(), shared->failures.load(), seconds() - start, end);
  };
  size_t left = pids.size();
  while (left > 0) {
    for (size_t i = 0; i < pids.size(); i++) {
      if (pids[i] == 0) continue;
      auto &w = shared->workers[i];
      auto began = static_cast<int64_t>(w.began.load());
      bool hangs = began != 0 && seconds() - began > kHang;
      if (hangs) kill(pids[i], SIGKILL);
      int status = 0;
      if (waitpid(pids[i], &status, hangs ? 0 : WNOHANG) == 0) continue;
      pids[i] = 0;
      left--;
      if (status == 0) continue;
      shared->failures.fetch_add(1);
      show(logs[i]);
      report(w, hangs                 ? "a hang"
                : WIFSIGNALED(status) ? std::string("signal ") + strsignal(WTERMSIG(status))
                                      : "exit code " + std::to_string(WEXITSTATUS(status)));
      if (shared->failures.load() >= kMostFailures) shared->calls.store(calls);
      if (shared->calls.load() < calls) {
        begin(i);
        left++;
      }
    }
    usleep(100000);
    if (seconds() - said >= (tty ? 1 : 10)) {
      said = seconds();
      say(tty ? "" : "\n");
    }
  }
  say("\n");
  uint64_t failures = shared->failures.load();
  std::printf("scorecard|cfuzz|%" PRIu64 " calls in %" PRIu64 " sequences; %" PRIu64
              " crashes, hangs or leaks|%s\n",
              shared->calls.load(), shared->next.load(), failures, failures == 0 ? "ok" : "FAILED");
  return failures == 0 ? 0 : 1;
}
#endif

void map_shared() {
  void *p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) fail("mmap");
  shared = new (p) Shared();
  self = &shared->workers[0];
}

}  // namespace

#ifdef LINSTOCK_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static bool once = (map_shared(), load(), true);
  (void)once;
  static uint64_t n = 0;
  Source s;
  s.data = data;
  s.end = data + size;
  sequence(n++, &s);
  return 0;
}
#else
int main(int argc, char **argv) {
  // The sequences run in parallel.
  setenv("OMP_NUM_THREADS", "1", 0);
  double share = 1;
  uint64_t calls = 10'000'000, only = UINT64_MAX;
  // Two for each core: sequences sometimes wait for memory.
  int jobs = static_cast<int>(std::clamp(2 * std::thread::hardware_concurrency(), 2u, 64u));
  for (int i = 1; i < argc; i++) {
    std::string name = argv[i];
    name.erase(0, name.find_first_not_of('-'));
    if (name == "trace") {
      trace = true;
      continue;
    }
    const char *value = i + 1 < argc ? argv[++i] : "";
    if (name == "share")
      share = std::atof(value);
    else if (name == "calls")
      calls = std::strtoull(value, nullptr, 10);
    else if (name == "seed")
      seed = std::strtoull(value, nullptr, 10);
    else if (name == "length")
      length = std::atoi(value);
    else if (name == "sequence")
      only = std::strtoull(value, nullptr, 10);
    else if (name == "jobs")
      jobs = std::clamp(std::atoi(value), 1, 64);
    else {
      std::fprintf(stderr,
                   "usage: cshim_fuzz [-share F] [-calls N] [-seed S] [-jobs J] | -seed S -sequence K [-length L] "
                   "[-trace]\n");
      return 2;
    }
  }
  map_shared();
  if (only != UINT64_MAX) {
    load();
    sequence(only);
    std::printf("sequence %" PRIu64 ": ok, %" PRIu64 " calls\n", only, shared->calls.load());
    std::fflush(stdout);
    std::_Exit(0);
  }
  return run_all(static_cast<uint64_t>(static_cast<double>(calls) * share), jobs);
}
#endif

#include "anomaly.h"

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "memory.h"
#include "shim.h"

namespace ls {
namespace {

using torch::autograd::AnomalyMetadata;
using torch::autograd::AnomalyMode;

// The site of a node. A node that a backward pass has made has that of the node that made it.
struct NodeSite {
  std::atomic<uint32_t> site{LS_NO_SITE};
};

thread_local int depth = 0;
thread_local bool checks = false;
thread_local std::vector<std::shared_ptr<NodeSite>> waiting;

// libtorch's switch, which is one of the process.
std::mutex switch_mutex;
int threads_on = 0, threads_checking = 0;

void count_threads(int on, int checking) {
  std::lock_guard<std::mutex> lock(switch_mutex);
  threads_on += on;
  threads_checking += checking;
  AnomalyMode::set_enabled(threads_on != 0, threads_checking != 0);
}

// The failures of passes that have not ended yet. A pass that something else ends leaves its own here.
constexpr size_t kMostFailures = 64;
std::mutex failures_mutex;
std::deque<FailedNode> &failures() {
  static auto *f = new std::deque<FailedNode>;
  return *f;
}

// The engine reports NaN by an exception of a type that operators throw, too; only the text differs.
bool is_nan_report(const std::exception_ptr &e, const std::string &node) {
  {
    std::lock_guard<std::mutex> lock(switch_mutex);
    if (threads_checking == 0) return false;
  }
  const std::string nan = "Function '" + node + "' returned nan values";
  // The engine has caught a std::exception.
  try {
    std::rethrow_exception(e);
  } catch (const std::exception &error) {
    return std::string_view(error.what()).starts_with(nan);
  }
}

class Metadata final : public AnomalyMetadata {
 public:
  // Called in the constructor of a node, before assign_parent.
  void store_stack() override {
    if (depth == 0 || torch::autograd::get_current_node()) return;
    waiting.reserve(waiting.size() + 1);
    site_ = std::make_shared<NodeSite>();
    waiting.push_back(site_);
    mark_unnamed();
  }
  void assign_parent(const decltype(torch::autograd::Edge::function) &parent) override {
    if (!parent) return;
    if (auto *m = dynamic_cast<Metadata *>(parent->metadata())) site_ = m->site_;
  }
  // Called where the node's exception is caught.
  void print_stack(const std::string &node) override {
    try {
      FailedNode f;
      f.cause = std::current_exception();
      f.node = node;
      f.site = site_ ? site_->site.load() : LS_NO_SITE;
      f.nan = is_nan_report(f.cause, node);
      std::lock_guard<std::mutex> lock(failures_mutex);
      failures().push_back(std::move(f));
      if (failures().size() > kMostFailures) failures().pop_front();
    } catch (...) {
      // Without memory for it, the error does not name the node.
    }
  }

 private:
  std::shared_ptr<NodeSite> site_;
};

}  // namespace

AnomalyRegion::AnomalyRegion(bool check_nan) : before_(checks) {
  count_threads(depth == 0 ? 1 : 0, static_cast<int>(check_nan) - static_cast<int>(checks));
  depth++;
  checks = check_nan;
}

AnomalyRegion::~AnomalyRegion() {
  depth--;
  count_threads(depth == 0 ? -1 : 0, static_cast<int>(before_) - static_cast<int>(checks));
  checks = before_;
  if (depth == 0) std::vector<std::shared_ptr<NodeSite>>().swap(waiting);
}

// Its caller is noexcept, so an injected failure of an allocation must not end here.
std::unique_ptr<AnomalyMetadata> make_anomaly_metadata() {
  return std::unique_ptr<AnomalyMetadata>(new (std::nothrow) Metadata);
}

void name_nodes(uint32_t site) noexcept {
  for (auto &n : waiting) n->site.store(site);
  waiting.clear();
}

void rethrow_with_node() {
  auto e = std::current_exception();
  std::optional<FailedNode> found;
  {
    std::lock_guard<std::mutex> lock(failures_mutex);
    auto &all = failures();
    auto it = std::find_if(all.begin(), all.end(), [&](const FailedNode &f) { return f.cause == e; });
    if (it != all.end()) {
      found = std::move(*it);
      all.erase(it);
    }
  }
  if (found) throw std::move(*found);
  std::rethrow_exception(e);
}

}  // namespace ls

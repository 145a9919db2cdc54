#include "lost.h"

#include <torch/csrc/autograd/function.h>

#include <mutex>
#include <unordered_set>
#include <vector>

#include "device.h"
#include "shim.h"

namespace ls {

std::atomic<uint64_t> lost_devices{0};

namespace {

constexpr int kMost = 64;
std::atomic<uint64_t> started{0};
std::atomic<int32_t> errors[kMost];

// One at a time starts a device or looks for lost ones.
std::mutex &mutex() {
  static auto *m = new std::mutex;
  return *m;
}

uint64_t bit(int32_t index) noexcept { return index >= 0 && index < kMost ? uint64_t{1} << index : 0; }

bool on_lost(c10::Device d) noexcept {
  return d.is_cuda() && (lost_devices.load(std::memory_order_acquire) & bit(d.index())) != 0;
}

void mark(int32_t index, int32_t error) noexcept {
  if (bit(index) == 0) return;
  errors[index].store(error);
  lost_devices.fetch_or(bit(index));
}

// Nodes of the graph below a tensor. A graph that is larger than this is leaked unseen.
constexpr size_t kMostNodes = 1 << 16;

}  // namespace

bool any_device_lost() noexcept { return any_lost(); }

DeviceLost::DeviceLost(int32_t i, int32_t e)
    : text("cuda:" + std::to_string(i) + " is lost (CUDA error " + std::to_string(e) +
           "): nothing can be computed there until the process starts anew"),
      index(i),
      error(e) {}

int32_t error_of_lost(int32_t index) noexcept { return bit(index) != 0 ? errors[index].load() : 0; }

void refuse_lost(c10::TensorImpl *impl) {
  if (!impl->is_cuda()) return;
  auto d = impl->device();
  if (on_lost(d)) throw DeviceLost(d.index(), error_of_lost(d.index()));
}

void use_device(c10::Device d) {
  auto *devices = cuda_devices();
  // libtorch itself says what is wrong with a device of which we know nothing.
  if (!d.is_cuda() || devices == nullptr) return;
  int32_t index = d.has_index() ? d.index() : devices->current();
  if (any_lost() && on_lost({d.type(), static_cast<c10::DeviceIndex>(index)}))
    throw DeviceLost(index, error_of_lost(index));
  if ((started.load(std::memory_order_acquire) & bit(index)) != 0) return;
  std::lock_guard<std::mutex> lock(mutex());
  if (on_lost({d.type(), static_cast<c10::DeviceIndex>(index)})) throw DeviceLost(index, error_of_lost(index));
  if ((started.load() & bit(index)) != 0) return;
  int32_t n = devices->count();
  if (index < 0 || index >= n || index >= kMost)
    throw ArgumentError("there is no cuda:" + std::to_string(index) + ": this machine has " + std::to_string(n) +
                        " CUDA devices");
  try {
    devices->start(index);
  } catch (const c10::AcceleratorError &e) {
    // libtorch does not begin again where it failed: it would crash.
    for (int32_t i = 0; i < n; i++)
      if (!devices->started(i)) mark(i, e.get_error_code());
    if (on_lost({d.type(), static_cast<c10::DeviceIndex>(index)})) throw DeviceLost(index, e.get_error_code());
    throw;
  }
  started.fetch_or(bit(index));
}

int32_t look_for_lost(int32_t error) noexcept {
  auto *devices = cuda_devices();
  if (devices == nullptr) return -1;
  int32_t found = -1;
  try {
    std::lock_guard<std::mutex> lock(mutex());
    int32_t n = devices->count();
    for (int32_t i = 0; i < n && i < kMost; i++) {
      if ((started.load() & bit(i)) == 0 || (lost_devices.load() & bit(i)) != 0) continue;
      int32_t answer = devices->alive(i);
      if (answer == 0) continue;
      mark(i, error != 0 ? error : answer);
      found = i;
    }
  } catch (...) {
  }
  return found;
}

bool must_leak(c10::TensorImpl *impl) noexcept {
  if (impl->is_cuda() && on_lost(impl->device())) return true;
  try {
    // A tensor that is fine can hold a graph that holds tensors that are not, and a gradient.
    auto *meta = impl->autograd_meta();
    if (meta == nullptr) return false;
    const at::Tensor &grad = impl->grad();
    if (grad.defined() && on_lost(grad.device())) return true;
    auto root = Borrowed(reinterpret_cast<ls_tensor>(impl), Borrowed::Metadata{})->grad_fn();
    if (root == nullptr) return false;
    std::unordered_set<torch::autograd::Node *> seen;
    std::vector<torch::autograd::Node *> todo{root.get()};
    while (!todo.empty()) {
      auto *node = todo.back();
      todo.pop_back();
      if (!seen.insert(node).second) continue;
      if (seen.size() > kMostNodes) return true;
      for (uint32_t i = 0; i < node->num_inputs(); i++)
        if (on_lost(node->input_metadata(i).device())) return true;
      for (const auto &edge : node->next_edges())
        if (edge.function) todo.push_back(edge.function.get());
    }
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace ls

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
constexpr int32_t kUnknown = 999;  // cudaErrorUnknown
enum { kCold, kUp, kFailed };
std::atomic<int32_t> state{kCold};
int32_t start_error = 0;
std::atomic<uint64_t> used{0};
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

void refuse_lost_device(int32_t index) {
  if ((lost_devices.load(std::memory_order_acquire) & bit(index)) != 0)
    throw DeviceLost(index, error_of_lost(index));
}

void refuse_lost(c10::TensorImpl *impl) {
  if (impl->is_cuda()) refuse_lost_device(impl->device().index());
}

void use_device(c10::Device d) {
  auto *devices = cuda_devices();
  // libtorch itself says what is wrong with a device of which we know nothing.
  if (!d.is_cuda() || devices == nullptr) return;
  int32_t index = d.has_index() ? d.index() : devices->current();
  refuse_lost_device(index);
  if ((used.load(std::memory_order_acquire) & bit(index)) != 0) return;
  bool up = start_devices();
  std::lock_guard<std::mutex> lock(mutex());
  refuse_lost_device(index);
  if ((used.load() & bit(index)) != 0) return;
  int32_t n = devices->count();
  if (index < 0 || index >= n || index >= kMost)
    throw ArgumentError("there is no cuda:" + std::to_string(index) + ": this machine has " + std::to_string(n) +
                        " CUDA devices");
  if (!up) throw DeviceLost(index, start_error);
  devices->use(index);
  used.fetch_or(bit(index));
}

uint64_t used_devices() noexcept { return used.load() & ~lost_devices.load(); }

bool start_devices() noexcept {
  auto *devices = cuda_devices();
  if (devices == nullptr) return false;
  int32_t is = state.load(std::memory_order_acquire);
  if (is != kCold) return is == kUp;
  std::lock_guard<std::mutex> lock(mutex());
  if (state.load() != kCold) return state.load() == kUp;
  try {
    devices->start();
    state.store(kUp);
    return true;
  } catch (const c10::AcceleratorError &e) {
    start_error = e.get_error_code();
  } catch (...) {
    start_error = kUnknown;
  }
  for (int32_t i = 0; i < kMost; i++) mark(i, start_error);
  state.store(kFailed);
  return false;
}

int32_t look_for_lost(int32_t error, bool failed) noexcept {
  auto *devices = cuda_devices();
  if (devices == nullptr) return -1;
  int32_t found = -1;
  try {
    std::lock_guard<std::mutex> lock(mutex());
    int32_t n = devices->count();
    for (int32_t i = 0; i < n && i < kMost; i++) {
      if ((used.load() & bit(i)) == 0) continue;
      if ((lost_devices.load() & bit(i)) != 0) {
        // Its error once more, by a way that did not name the device; or a failure that names no error, on a
        // thread that met the loss at the same time as another.
        if (found < 0 && (error != 0 ? error == error_of_lost(i) : failed)) found = i;
        continue;
      }
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

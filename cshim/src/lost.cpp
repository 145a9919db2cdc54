#include "lost.h"

#include <torch/csrc/autograd/function.h>

#include <bit>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "device.h"
#include "grads.h"
#include "shim.h"

namespace ls {

std::atomic<uint64_t> lost_devices{0};

namespace {

constexpr int32_t kUnknown = 999;  // cudaErrorUnknown
enum { kCold, kUp, kFailed };
// The part of libtorch for a row of device_types.
struct Part {
  std::atomic<int32_t> state{kCold};
  int32_t start_error = 0;
  // Why the start has failed; written before the state, and never destroyed.
  const std::string *why = nullptr;
};
Part parts[kDeviceTypes];
std::atomic<uint64_t> used{0};
std::optional<uint64_t> seed;  // of the devices that are not used yet, under the mutex
std::atomic<int32_t> errors[kMaxSlots];

// Held by the thread that starts a device or looks for lost ones.
std::mutex &mutex() {
  static auto *m = new std::mutex;
  return *m;
}

uint64_t bit(int slot) noexcept { return slot > kCpuSlot ? uint64_t{1} << (slot - 1) : 0; }

bool on_lost(c10::Device d) noexcept { return is_lost(slot_of(d)); }

void mark(int slot, int32_t error) noexcept {
  errors[slot].store(error);
  lost_devices.fetch_or(bit(slot));
}

// Starts the part of a row of which there are devices. Returns false if that failed, now or before.
bool start(int i, Devices *devices) noexcept {
  const auto &row = device_types[i];
  auto &part = parts[i];
  int32_t is = part.state.load(std::memory_order_acquire);
  if (is != kCold) return is == kUp;
  std::lock_guard<std::mutex> lock(mutex());
  if (part.state.load() != kCold) return part.state.load() == kUp;
  try {
    devices->start();
    part.state.store(kUp);
    return true;
  } catch (const c10::AcceleratorError &e) {
    part.start_error = e.get_error_code();
    part.why = new std::string(e.what_without_backtrace());
  } catch (const c10::Error &e) {
    part.start_error = kUnknown;
    part.why = new std::string(e.what_without_backtrace());
  } catch (const std::exception &e) {
    part.start_error = kUnknown;
    part.why = new std::string(e.what());
  } catch (...) {
    part.start_error = kUnknown;
  }
  part.state.store(kFailed);
  for (int slot = row.first; slot < row.first + row.most; slot++) mark(slot, part.start_error);
  return false;
}

// The most nodes of a graph that are searched. A larger graph is leaked.
constexpr size_t kMostNodes = 1 << 16;

}  // namespace

bool any_device_lost() noexcept { return any_lost(); }

DeviceLost::DeviceLost(int slot, int32_t e)
    : text(device_at(slot).str() + " is lost (" + row_of(slot)->name + " error " + std::to_string(e) +
           "): it cannot be used until the process is restarted"),
      error(e) {
  const auto &part = parts[row_number(row_of(slot)->type)];
  if (part.state.load() != kFailed || part.why == nullptr) return;
  text = device_at(slot).str() + " cannot be used until the process is restarted: the start of " +
         row_of(slot)->name + " has failed: " + *part.why;
}

int32_t error_of_lost(int slot) noexcept { return bit(slot) != 0 ? errors[slot].load() : 0; }

bool is_lost(int slot) noexcept { return (lost_devices.load(std::memory_order_acquire) & bit(slot)) != 0; }

void refuse_lost_device(int slot) {
  if (is_lost(slot)) throw DeviceLost(slot, error_of_lost(slot));
}

void refuse_lost(c10::TensorImpl *impl) { refuse_lost_device(slot_of(impl->device())); }

void use_device(c10::Device d) {
  int i = row_number(d.type());
  auto *devices = devices_of(d.type());
  // libtorch itself reports what is wrong with a device of another type.
  if (devices == nullptr) return;
  int32_t index = d.has_index() ? d.index() : devices->current();
  int slot = slot_of(d.type(), index);
  refuse_lost_device(slot);
  if ((used.load(std::memory_order_acquire) & bit(slot)) != 0) return;
  bool up = start(i, devices);
  std::lock_guard<std::mutex> lock(mutex());
  refuse_lost_device(slot);
  if ((used.load() & bit(slot)) != 0) return;
  int32_t n = devices->count();
  if (slot < 0 || index >= n)
    throw ArgumentError("device " + c10::Device(d.type(), static_cast<c10::DeviceIndex>(index)).str() +
                        " does not exist; this machine has " + std::to_string(n) + " " + device_types[i].name +
                        (n == 1 ? " device" : " devices"));
  if (!up) throw DeviceLost(slot, parts[i].start_error);
  devices->use(index);
  if (seed) devices->seed(index, *seed);
  used.fetch_or(bit(slot));
}

uint64_t used_devices() noexcept { return used.load() & ~lost_devices.load(); }

void seed_devices(uint64_t value) {
  uint64_t slots;
  {
    std::lock_guard<std::mutex> lock(mutex());
    seed = value;
    slots = used_devices();
  }
  std::exception_ptr failure;
  for (; slots != 0; slots &= slots - 1) {
    int slot = std::countr_zero(slots) + 1;
    try {
      devices_at(slot).seed(index_of(slot), value);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

int look_for_lost(int32_t error, bool failed) noexcept {
  int found = -1;
  std::lock_guard<std::mutex> lock(mutex());
  for (int slot = 1; slot < kMaxSlots; slot++) {
    if ((used.load() & bit(slot)) == 0) continue;
    if ((lost_devices.load() & bit(slot)) != 0) {
      // Its error again, from a call that did not name the device; or a failure that names no error, on a thread
      // that met the loss at the same time as another.
      if (found < 0 && (error != 0 ? error == error_of_lost(slot) : failed)) found = slot;
      continue;
    }
    int32_t answer = devices_at(slot).alive(index_of(slot));
    if (answer == 0) continue;
    mark(slot, error != 0 ? error : answer);
    found = slot;
  }
  return found;
}

bool must_leak(c10::TensorImpl *impl) noexcept {
  if (on_lost(impl->device())) return true;
  try {
    // A tensor on another device can own a gradient or graph with tensors on this one.
    auto *meta = impl->autograd_meta();
    if (meta == nullptr) return false;
    Borrowed t(reinterpret_cast<ls_tensor>(impl), Borrowed::Metadata{});
    at::Tensor grad = grad_of(t);
    if (grad.defined() && on_lost(grad.device())) return true;
    auto root = t->grad_fn();
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

void discard(at::Tensor &&t) noexcept {
  if (t.defined() && any_lost() && must_leak(t.unsafeGetTensorImpl())) (void)t.unsafeReleaseTensorImpl();
  t.reset();
}

}  // namespace ls

// What the C API offers of CUDA devices beyond memory's own functions.
#include <c10/core/AllocatorConfig.h>

#include "device.h"
#include "lost.h"
#include "shim.h"

namespace ls {
namespace {

Devices &need_cuda() {
  auto *devices = cuda_devices();
  if (devices == nullptr) throw ArgumentError("there is no CUDA device in this process");
  return *devices;
}

}  // namespace
}  // namespace ls

ls_results ls_device_name(int32_t device, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    auto d = c10::Device(static_cast<c10::DeviceType>(device >> 8 & 0xff));
    if (!d.is_cuda()) return ls::put_string(r, c10::DeviceTypeName(d.type(), /*lower_case=*/true), out, out_slots);
    ls::put_string(r, ls::need_cuda().name(device & 0xff), out, out_slots);
  });
}

ls_results ls_cuda_snapshot(ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) { ls::put_string(r, ls::need_cuda().snapshot(), out, out_slots); });
}

ls_results ls_cuda_allocator_settings(ls_allocator_settings *settings, ls_value *out,
                                      uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    ls::need_cuda();
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    size_t most = Config::max_split_size();
    *settings = {most >= static_cast<size_t>(INT64_MAX) ? 0 : static_cast<int64_t>(most),
                 Config::garbage_collection_threshold(), Config::use_expandable_segments(), 0};
    ls::put_string(r, c10::CachingAllocator::getAllocatorSettings(), out, out_slots);
  });
}

ls_error *ls_cuda_set_allocator_settings(const char *text) noexcept {
  return ls::run_void([&] {
    ls::need_cuda();
    if (text == nullptr) throw ls::ArgumentError("no settings");
    std::string before = c10::CachingAllocator::getAllocatorSettings();
    try {
      c10::CachingAllocator::setAllocatorSettings(text);
    } catch (...) {
      c10::CachingAllocator::setAllocatorSettings(before);
      throw;
    }
  });
}

uint64_t ls_cuda_used(void) noexcept {
  return ls::run_quiet([] { return ls::used_devices(); });
}

int32_t ls_cuda_capturing(void) noexcept {
  return ls::run_quiet([]() -> int32_t {
    auto *d = ls::cuda_devices();
    return d != nullptr && d->capturing();
  });
}

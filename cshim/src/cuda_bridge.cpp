// The functions of linstock/cuda.h.
#include <c10/core/AllocatorConfig.h>

#include "device.h"
#include "shim.h"

namespace {
ls::Devices &need_cuda() { return ls::need_devices(c10::kCUDA); }
}  // namespace

ls_results ls_cuda_snapshot(ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) { ls::put_string(r, need_cuda().snapshot(), out, out_slots); });
}

ls_results ls_cuda_allocator_settings(ls_allocator_settings *settings, ls_value *out,
                                      uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    auto &cuda = need_cuda();
    using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;
    size_t most = Config::max_split_size();
    *settings = {most >= static_cast<size_t>(INT64_MAX) ? 0 : static_cast<int64_t>(most),
                 Config::garbage_collection_threshold(), Config::use_expandable_segments(), 0,
                 cuda.memory_fraction()};
    ls::put_string(r, c10::CachingAllocator::getAllocatorSettings(), out, out_slots);
  });
}

ls_error *ls_cuda_set_allocator_settings(const char *text) noexcept {
  return ls::run_void([&] {
    need_cuda();
    std::string before = c10::CachingAllocator::getAllocatorSettings();
    try {
      c10::CachingAllocator::setAllocatorSettings(text);
    } catch (...) {
      c10::CachingAllocator::setAllocatorSettings(before);
      throw;
    }
  });
}

int32_t ls_cuda_capturing(void) noexcept {
  return ls::run_quiet([]() -> int32_t {
    auto *d = ls::devices_of(c10::kCUDA);
    return d != nullptr && d->capturing();
  });
}

// What the C API offers of CUDA devices beyond memory's own functions.
#include "device.h"
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

int32_t ls_cuda_capturing(void) noexcept {
  return ls::run_quiet([]() -> int32_t {
    auto *d = ls::cuda_devices();
    return d != nullptr && d->capturing();
  });
}

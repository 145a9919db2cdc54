#include "device.h"

#include <atomic>

#include "lost.h"
#include "shim.h"
#include "stream.h"

namespace ls {

namespace {
std::atomic<Devices *> by_row[kDeviceTypes];
}  // namespace

void add_devices(c10::DeviceType type, Devices *devices) noexcept {
  if (int i = row_number(type); i >= 0) by_row[i].store(devices);
}

bool any_capture() noexcept { return captures() != 0; }

Devices *devices_of(c10::DeviceType type) noexcept {
  int i = row_number(type);
  return i < 0 ? nullptr : by_row[i].load(std::memory_order_acquire);
}

Devices &need_devices(c10::DeviceType type) {
  auto *devices = devices_of(type);
  if (devices == nullptr)
    throw ArgumentError("no " + c10::DeviceTypeName(type) + " device can be used by this process");
  return *devices;
}

}  // namespace ls

ls_results ls_device_name(int32_t device, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    auto type = static_cast<c10::DeviceType>(device >> 8 & 0xff);
    bool named = ls::slot_of(type, 0) > 0;  // by its driver
    ls::put_string(r, named ? ls::need_devices(type).name(device & 0xff) : c10::DeviceTypeName(type, true), out,
                   out_slots);
  });
}

uint64_t ls_device_used(int32_t device_type) noexcept {
  return ls::run_quiet([&]() -> uint64_t {
    int first = ls::slot_of(static_cast<c10::DeviceType>(device_type), 0);
    if (first <= 0) return 0;
    uint64_t used = ls::used_devices() >> (first - 1);
    int most = ls::row_of(first)->most;
    return most < 64 ? used & ((uint64_t{1} << most) - 1) : used;
  });
}

#include "device.h"

#include <atomic>

namespace ls {

namespace {
std::atomic<Devices *> cuda{nullptr};
}

void set_cuda_devices(Devices *devices) noexcept { cuda.store(devices); }
Devices *cuda_devices() noexcept { return cuda.load(std::memory_order_acquire); }

// Until the core has one of its own.
__attribute__((weak)) bool device_pressure(int32_t) noexcept { return false; }

}  // namespace ls

#include "device.h"

#include <atomic>

namespace ls {

namespace {
std::atomic<Devices *> cuda{nullptr};
}

void set_cuda_devices(Devices *devices) noexcept { cuda.store(devices); }
Devices *cuda_devices() noexcept { return cuda.load(std::memory_order_acquire); }

}  // namespace ls

// Devices that are lost. Every call to a device with a sticky error returns that error; to free memory on it can
// end the process, and so can a second start of libtorch's part for it after one that failed half-way. Such a
// device is marked until the process ends: calls that use it are refused before libtorch sees them, and its memory
// is never freed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

namespace ls {

// Lost devices, bit i for slot i + 1 (device.h). Read before each use of a tensor: one load while none is lost.
extern std::atomic<uint64_t> lost_devices;
inline bool any_lost() noexcept { return __builtin_expect(lost_devices.load(std::memory_order_relaxed) != 0, 0); }

// Reports whether a slot's device is lost. A slot of -1 is of no device.
bool is_lost(int slot) noexcept;

// LS_ERR_DEVICE_LOST.
struct DeviceLost : std::exception {
  std::string text;
  int32_t error;
  // The text says so where the start of libtorch's part has failed.
  DeviceLost(int slot, int32_t e);
  const char *what() const noexcept override { return text.c_str(); }
};

// Throws DeviceLost if the tensor is on a lost device. For the slow path: after any_lost().
void refuse_lost(c10::TensorImpl *impl);

// Called before a device other than the CPU is used by name: starts it the first time. Throws if it is lost or
// does not exist.
void use_device(c10::Device d);
// Seeds the default generators of the devices in use, and of every other device before its first use: no device is
// started. Seeds all that it can before it throws.
void seed_devices(uint64_t seed);

// Returns the devices that were used and are not lost: bit i is slot i + 1.
uint64_t used_devices() noexcept;

// Called with an error of libtorch's that may be a device's last: asks each device, and marks those that are lost.
// failed: the error's text says that CUDA, cuBLAS or the like failed. Returns the slot of the device that the
// error is about; -1: none.
int look_for_lost(int32_t error, bool failed) noexcept;
// Returns the error that a device was lost with.
int32_t error_of_lost(int slot) noexcept;

// Reports whether to free the tensor, its gradient or its graph would free memory of a lost device: it must be
// leaked.
bool must_leak(c10::TensorImpl *impl) noexcept;
// Frees a tensor, or leaks it.
void discard(at::Tensor &&t) noexcept;

}  // namespace ls

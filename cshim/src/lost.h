// Devices that are lost. A CUDA device that has met a sticky error answers every later call with it: freeing
// memory on it can end the process, and so can starting libtorch's CUDA again where it failed half-way. A device
// found so is marked, once and for ever; what touches it is refused before libtorch sees it, and its memory is
// never freed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

namespace ls {

// A bit for each CUDA device. Tested before each use of a tensor: one load while nothing is lost.
extern std::atomic<uint64_t> lost_devices;
inline bool any_lost() noexcept { return __builtin_expect(lost_devices.load(std::memory_order_relaxed) != 0, 0); }

// LS_ERR_DEVICE_LOST.
struct DeviceLost : std::exception {
  std::string text;
  int32_t index, error;
  DeviceLost(int32_t i, int32_t e);
  const char *what() const noexcept override { return text.c_str(); }
};

// Throws DeviceLost where the tensor is on a lost device. Cheap enough for the slow path only: after any_lost().
void refuse_lost(c10::TensorImpl *impl);

// Before a device other than the CPU is used by name: starts it the first time, refuses it when it is lost or is
// none.
void use_device(c10::Device d);
// Starts libtorch's CUDA, where there is any and it is not done yet; what calls it without naming a device must
// come here first. False: there is none, or it failed, now or before, and must not be touched.
bool start_devices() noexcept;

// The CUDA devices that were used so far and are not lost, a bit for each.
uint64_t used_devices() noexcept;

// Called with an error of libtorch's in hand that may be a device's last: asks each device, marks those that are
// gone. failed: its text says that CUDA, cuBLAS or the like failed. Returns the device that the error tells of,
// -1: none.
int32_t look_for_lost(int32_t error, bool failed) noexcept;
// The error that a device was lost with.
int32_t error_of_lost(int32_t index) noexcept;

// True where freeing the tensor, or what hangs on it, would free memory of a lost device: it must be leaked.
bool must_leak(c10::TensorImpl *impl) noexcept;

}  // namespace ls

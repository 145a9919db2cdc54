// What the core of the shim asks of a kind of device other than the CPU. The CUDA library (cshim/cuda) implements
// it and hands it over when it is loaded; the core links nothing of CUDA.
#pragma once

#include <cstdint>
#include <string>

namespace ls {

constexpr int32_t kMaxCudaDevices = 64;

struct DeviceMemory {
  int64_t allocated, allocated_peak;  // bytes in tensors' blocks, as the allocator rounds them
  int64_t requested;                  // bytes asked for
  int64_t reserved, reserved_peak;    // bytes held from the device
  int64_t active;                     // allocated, and freed but still used by a stream
  int64_t allocations, frees;         // since the start
  int64_t largest_free;               // the largest block in the cache; -1 where it is not known
  int64_t ooms, retries;              // as the allocator counts them
};

// Every method may be called from any thread, and may throw what libtorch throws.
class Devices {
 public:
  virtual ~Devices() = default;
  virtual int32_t count() = 0;
  virtual std::string name(int32_t index) = 0;
  virtual DeviceMemory memory(int32_t index) = 0;
  virtual void reset_peak(int32_t index) = 0;
  virtual void empty_cache(int32_t index) = 0;
  // What the device has, and what is free on it for everybody.
  virtual void capacity(int32_t index, int64_t *free, int64_t *total) = 0;
  // Called when limit_on_device has changed.
  virtual void limit_changed(int32_t index) = 0;
  virtual void synchronize(int32_t index) = 0;
  // True while a graph is being captured on one of the calling thread's current streams.
  virtual bool capturing() = 0;
  // The allocator's segments and settings as PyTorch's own pickle (torch.cuda.memory._dump_snapshot).
  virtual std::string snapshot() = 0;

  // Starts libtorch's CUDA, for all devices. It must not be tried again where it throws.
  virtual void start() = 0;
  // Before the first use of a device, after start. A limit that was set before comes into force here.
  virtual void use(int32_t index) = 0;
  // The error that the device answers with whatever it is asked; 0: it is well. Never throws.
  virtual int32_t alive(int32_t index) noexcept = 0;
  // The calling thread's device.
  virtual int32_t current() noexcept = 0;
};

// Hands the CUDA devices to the core: called once by the CUDA library, before the first operator.
__attribute__((visibility("default"))) void set_cuda_devices(Devices *devices) noexcept;
Devices *cuda_devices() noexcept;  // NULL where there are none

// Whether any device was lost to an error that does not go away (lost.h).
__attribute__((visibility("default"))) bool any_device_lost() noexcept;
// Throws DeviceLost where this one was.
__attribute__((visibility("default"))) void refuse_lost_device(int32_t index);

// Counts bytes into the device's account before its allocator is asked for them: waits for memory, without any
// lock, where they do not fit. Throws c10::OutOfMemoryError.
__attribute__((visibility("default"))) void admit_on_device(int32_t index, int64_t n);
// Takes bytes out again that were admitted and not given.
__attribute__((visibility("default"))) void dismiss_from_device(int32_t index, int64_t n) noexcept;
// After the allocator has failed to give what was admitted: waits for a sweep. False: it has freed nothing.
__attribute__((visibility("default"))) bool sweep_for_device(int32_t index, int64_t n) noexcept;
// The bytes that may be live; 0: no limit.
__attribute__((visibility("default"))) int64_t limit_on_device(int32_t index) noexcept;

// Called by the device's allocator for each block given out (n > 0) and taken back (n < 0), under its lock. Of the
// bytes, so many were admitted before.
__attribute__((visibility("default"))) void count_on_device(int32_t index, void *p, int64_t n, int64_t admitted,
                                                            void *stream) noexcept;
// Called by it for what else it does, for the history: an ls_event_kind.
__attribute__((visibility("default"))) void note_on_device(int32_t index, int32_t kind, uint64_t address,
                                                           int64_t n, void *stream) noexcept;
// The same for the segments that it takes from the device and gives back.
__attribute__((visibility("default"))) void reserved_on_device(int32_t index, int64_t n) noexcept;
// Called when an allocation of so many bytes has failed in the end, on the thread that throws.
__attribute__((visibility("default"))) void failed_on_device(int32_t index, int64_t asked) noexcept;

}  // namespace ls

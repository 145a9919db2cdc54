// The devices that have memory, and what the core asks of those that are not the CPU.
//
// A slot numbers a device in this process: 0 is the CPU; each row of device_types has the slots of one other type.
// To support another type, add a row and a library that implements Devices and hands it over by add_devices. The
// core links nothing of a device's runtime.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace c10d {
class Backend;
class Store;
class Work;
}  // namespace c10d

namespace ls {

constexpr int kMaxSlots = 65;  // the CPU, and a bit of a word for each other device
constexpr int kCpuSlot = 0;

struct DeviceTypeRow {
  c10::DeviceType type;
  const char *name;  // in errors
  int first, most;   // its slots
};
inline constexpr DeviceTypeRow device_types[] = {
    {c10::kCUDA, "CUDA", 1, kMaxSlots - 1},
};
constexpr int kDeviceTypes = sizeof(device_types) / sizeof(device_types[0]);

// Returns the number of a type's row; -1: it has none.
constexpr int row_number(c10::DeviceType type) noexcept {
  for (int i = 0; i < kDeviceTypes; i++)
    if (device_types[i].type == type) return i;
  return -1;
}
// Returns the slot of the index-th device of a type; -1: it has none.
constexpr int slot_of(c10::DeviceType type, int64_t index) noexcept {
  if (type == c10::kCPU) return kCpuSlot;
  int i = row_number(type);
  return i >= 0 && index >= 0 && index < device_types[i].most ? device_types[i].first + static_cast<int>(index)
                                                              : -1;
}
inline int slot_of(c10::Device d) noexcept { return slot_of(d.type(), d.index()); }
// Returns the device of a slot that slot_of has returned.
constexpr const DeviceTypeRow *row_of(int slot) noexcept {
  for (const auto &row : device_types)
    if (slot >= row.first && slot < row.first + row.most) return &row;
  return nullptr;
}
constexpr int32_t index_of(int slot) noexcept { return slot == kCpuSlot ? 0 : slot - row_of(slot)->first; }
inline c10::Device device_at(int slot) {
  if (slot == kCpuSlot) return c10::Device(c10::kCPU);
  return c10::Device(row_of(slot)->type, static_cast<c10::DeviceIndex>(index_of(slot)));
}
// Makes a device the thread's current one. Calls of libtorch ask the current device, or change to the one they
// need and back: that fails on a lost device, and may make a context on one that the program does not use.
// c10::DeviceGuard restores the device also if it has not changed, which ends the process after an error of the
// device (libtorch 2.11).
struct OnDevice {
  explicit OnDevice(c10::Device d) {
    if (d.is_cpu() || !d.has_index()) return;
    guard.emplace(d.type());
    before = guard->exchangeDevice(d);
  }
  OnDevice(const OnDevice &) = delete;
  OnDevice &operator=(const OnDevice &) = delete;
  ~OnDevice() {
    try {
      if (guard && guard->getDevice() != before) guard->uncheckedSetDevice(before);
    } catch (...) {
    }
  }

 private:
  std::optional<c10::impl::VirtualGuardImpl> guard;
  c10::Device before = c10::kCPU;
};
// Returns a slot's device as linstock/core.h writes it.
constexpr int32_t word_of(int slot) noexcept {
  return slot == kCpuSlot ? 0xff : static_cast<int32_t>(row_of(slot)->type) << 8 | index_of(slot);
}

struct DeviceMemory {
  int64_t allocated, allocated_peak;  // bytes in tensors' blocks, as the allocator rounds them
  int64_t requested;                  // bytes asked for
  int64_t reserved;                   // bytes held from the device
  int64_t active;                     // allocated, and freed but still used by a stream
  int64_t allocations, frees;         // since the start
  int64_t largest_free;               // the largest block in the cache; -1 where it is not known
};

// A memory pool of graphs. Two zeros: a new one.
struct PoolId {
  uint64_t first, second;
};

// A graph of a device's work. The methods are called by one thread at a time, and may throw what libtorch throws.
class Graph {
 public:
  virtual ~Graph() = default;
  // Begins to capture the calling thread's current stream of the current device.
  virtual void begin(PoolId pool) = 0;
  // Reports whether the capture that has begun can still become a graph.
  virtual bool valid() = 0;
  // Ends the capture, also if it throws.
  virtual PoolId end() = 0;
  virtual void replay() = 0;
};

// The devices of one type. Any thread may call any method; methods may throw what libtorch throws.
class Devices {
 public:
  virtual ~Devices() = default;
  virtual int32_t count() = 0;
  virtual std::string name(int32_t index) = 0;
  virtual DeviceMemory memory(int32_t index) = 0;
  virtual void reset_peak(int32_t index) = 0;
  virtual void empty_cache(int32_t index) = 0;
  // The bytes that the device has, and those that no process uses. Without free it makes no context there.
  virtual void capacity(int32_t index, int64_t *free, int64_t *total) = 0;
  // The part of each device's memory that the environment's options of the allocator allow; 1: all.
  virtual double memory_fraction() = 0;
  // Returns cached blocks of pinned memory to the system.
  virtual void empty_pinned_cache() = 0;
  // Has the allocator count the freed blocks of which other streams have ended their use; waits for the device
  // first if asked, so that these are all. Returns whether there were freed blocks that it had not counted.
  virtual bool settle(int32_t index, bool wait) = 0;
  // Called when the limit of a device has changed.
  virtual void limit_changed(int32_t index) = 0;
  virtual void synchronize(int32_t index) = 0;
  // Reports whether a graph is being captured on one of the calling thread's current streams.
  virtual bool capturing() = 0;
  // Reports whether any thread captures a graph on the stream.
  virtual bool capturing(const c10::Stream &stream) = 0;
  virtual std::unique_ptr<Graph> new_graph() = 0;
  // Returns the deleter of pinned memory, by which such memory is known.
  virtual c10::DeleterFnPtr pinned_deleter() = 0;
  // Returns the allocator's segments and settings as PyTorch's own pickle (torch.cuda.memory._dump_snapshot).
  virtual std::string snapshot() = 0;

  // Starts libtorch's part for this type, for all devices. It must not be called again if it has thrown.
  virtual void start() = 0;
  // Called before the first use of a device, after start. A limit that was set before takes effect here.
  virtual void use(int32_t index) = 0;
  // Seeds the device's default generator.
  virtual void seed(int32_t index, uint64_t seed) = 0;
  // Returns the error that every call to the device returns; 0: none. Never throws.
  virtual int32_t alive(int32_t index) noexcept = 0;
  // Returns the calling thread's device.
  virtual int32_t current() noexcept = 0;

  // Makes the backend of a process group for tensors on these devices, whose ranks meet in the store. It calls
  // `started` with each collective that c10d may have started by itself, and has no thread of its own.
  virtual c10::intrusive_ptr<c10d::Backend> new_backend(
      const c10::intrusive_ptr<c10d::Store> &store, int rank, int size, std::chrono::milliseconds timeout,
      std::function<void(const c10::intrusive_ptr<c10d::Work> &)> started) = 0;
};

// Gives the core the devices of a type: called once by the type's library, before the first operator.
__attribute__((visibility("default"))) void add_devices(c10::DeviceType type, Devices *devices) noexcept;
// Returns the devices of a type; nullptr: there are none.
Devices *devices_of(c10::DeviceType type) noexcept;
// The same; throws ArgumentError where there are none.
Devices &need_devices(c10::DeviceType type);
// Returns those of a slot other than the CPU's, whose device exists.
inline Devices &devices_at(int slot) noexcept { return *devices_of(row_of(slot)->type); }

// What follows is for allocators of devices. A slot of -1 does nothing.

// Reports whether a device was lost to an error that does not go away (lost.h).
__attribute__((visibility("default"))) bool any_device_lost() noexcept;
// Throws DeviceLost if this one was.
__attribute__((visibility("default"))) void refuse_lost_device(int slot);

// Reports whether any thread captures a graph.
__attribute__((visibility("default"))) bool any_capture() noexcept;
// Throws CaptureError, with what cannot be captured, if the calling thread's current stream is being captured. The
// capture goes on, and its end throws, too.
__attribute__((visibility("default"))) void refuse_in_capture(const char *what);

// Adds bytes to the device's account before its allocator is asked for them. Waits for memory, without a lock, if
// they do not fit. Throws c10::OutOfMemoryError.
__attribute__((visibility("default"))) void admit_on_device(int slot, int64_t n);
// Subtracts bytes that were admitted and not allocated.
__attribute__((visibility("default"))) void dismiss_from_device(int slot, int64_t n) noexcept;
// The rounds of the pacer that an allocation has waited for.
struct Rounds {
  int all = 0;
  int vain = 0;               // exhausted rounds since the last that made more room than those before
  int64_t least = INT64_MAX;  // the fewest live bytes in one of them
  int64_t seen = -1;          // bytes allocated and freed on the device before the last one
  int timeouts = 0;           // rounds in a row that did not end in time
  bool over = false;          // the next try is the last
};
// Waits for a round after the allocator has failed to allocate what was admitted. Returns false if no other try
// can succeed.
__attribute__((visibility("default"))) bool sweep_for_device(int slot, int64_t n, Rounds &rounds) noexcept;
// Returns the bytes that may be live; 0: no limit.
__attribute__((visibility("default"))) int64_t limit_on_device(int slot) noexcept;

// Called by the device's allocator, under its lock, for each block allocated (n > 0) and freed (n < 0). `admitted`
// of the bytes were admitted before.
__attribute__((visibility("default"))) void count_on_device(int slot, void *p, int64_t n, int64_t admitted,
                                                            void *stream) noexcept;
// Called for its other events, for the history; kind is an ls_event_kind.
__attribute__((visibility("default"))) void note_on_device(int slot, int32_t kind, uint64_t address, int64_t n,
                                                           void *stream) noexcept;
// Called for the segments that it takes from the device (n > 0) and returns.
__attribute__((visibility("default"))) void reserved_on_device(int slot, int64_t n) noexcept;
// Called when an allocation of so many bytes has failed in the end, on the thread that throws.
__attribute__((visibility("default"))) void failed_on_device(int slot, int64_t asked) noexcept;

}  // namespace ls

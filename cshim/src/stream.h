// Streams and captures, for the other files of the shim.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstdint>

namespace ls {

// The stream and device that were current before LS_MODE_STREAM was set.
struct StreamMode {
  c10::Stream stream;
  c10::Device device;
  c10::Stream entered;  // that is current now
  static StreamMode enter(int32_t device, int64_t stream);
  void undo() const;
};

// How many graphs are being captured, by all threads.
extern std::atomic<int32_t> captures_underway;
inline int32_t captures() noexcept { return captures_underway.load(std::memory_order_acquire); }

// Returns a number of the capture that the calling thread's current stream of the device is part of; 0: none.
uint64_t capture_on(c10::Device d);

// Reports whether to wait for the device ends no capture: neither one on it, nor one of the calling thread.
bool may_wait_for(int slot) noexcept;
// Notes that the capture in which the calling thread takes part, if any, lacks a call: its end throws
// CaptureError.
void note_refusal() noexcept;
// Throws CaptureError while a graph is captured on the device: to wait for the device would end the capture.
void refuse_while_captured(c10::Device d);
// Takes over the reference to a tensor until no graph is captured, if it is in pinned memory: libtorch records an
// event on each stream that used such memory; recorded on a stream that captures, the event never completes. Also
// if the calling thread's capture has become invalid: to free what several streams used would end the process.
bool keep_until_captured(c10::TensorImpl *impl) noexcept;
// Notes that a device's cache is to be emptied when its capture has ended. Returns false if there is no capture.
bool empty_cache_after_capture(int slot) noexcept;

}  // namespace ls

// The conversion of exceptions to ls_error.
#include <c10/core/Allocator.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <string_view>
#include <typeinfo>

#include "anomaly.h"
#include "device.h"
#include "memory.h"
#include "saved.h"
#include "stream.h"

namespace ls {
namespace {

// Returned if there is no memory for an error.
ls_error no_memory{LS_ERR_OUT_OF_MEMORY, 0, 0, 0, 0, 0, "out of memory", nullptr, LS_NO_SITE};

// A text may quote the caller's bytes: those that are not UTF-8 become "?".
void make_utf8(char *s) noexcept {
  auto *p = reinterpret_cast<unsigned char *>(s);
  while (*p != 0) {
    // The bounds of the second byte exclude overlong forms, surrogates and numbers above U+10FFFF.
    int more = *p < 0x80 ? 0 : *p < 0xc2 ? -1 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : *p < 0xf5 ? 3 : -1;
    unsigned low = *p == 0xe0   ? 0xa0
                   : *p == 0xf0 ? 0x90
                                : 0x80,
             high = *p == 0xed   ? 0x9f
                    : *p == 0xf4 ? 0x8f
                                 : 0xbf;
    bool ok = more <= 0 || (p[1] >= low && p[1] <= high);
    for (int i = 2; ok && i <= more; i++) ok = (p[i] & 0xc0) == 0x80;
    if (more >= 0 && ok) {
      p += 1 + more;
    } else {
      *p++ = '?';
    }
  }
}

ls_error *make(int32_t code, std::string_view text, int32_t device_error = 0, uint64_t callback = 0) noexcept {
  auto *e = static_cast<ls_error *>(std::malloc(sizeof(ls_error) + text.size() + 1));
  if (e == nullptr) return &no_memory;
  char *copy = reinterpret_cast<char *>(e + 1);
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = 0;
  make_utf8(copy);
  *e = {code, device_error, callback, 0, 0, 0, copy, nullptr, LS_NO_SITE};
  return e;
}

// Returns e with the name and the site of the node that failed. Frees e.
ls_error *with_node(ls_error *e, const std::string &node, uint32_t site) noexcept {
  if (e == &no_memory) return e;
  size_t n = std::strlen(e->message) + 1, k = node.size() + 1;
  auto *both = static_cast<ls_error *>(std::malloc(sizeof(ls_error) + n + k));
  if (both == nullptr) return e;
  *both = *e;
  char *texts = reinterpret_cast<char *>(both + 1);
  std::memcpy(texts, e->message, n);
  std::memcpy(texts + n, node.c_str(), k);
  both->message = texts;
  both->node = texts + n;
  both->site = site;
  std::free(e);
  return both;
}

// Reports the cause as if no node were known.
ls_error *of_cause(const FailedNode &f) noexcept {
  try {
    std::rethrow_exception(f.cause);
  } catch (...) {
    auto *e = current_error();
    if (f.nan && e != &no_memory) e->code = LS_ERR_NAN;
    return e;
  }
}

int32_t code_of(const c10::Error &e) noexcept {
  if (dynamic_cast<const c10::IndexError *>(&e)) return LS_ERR_INDEX;
  if (dynamic_cast<const c10::ValueError *>(&e)) return LS_ERR_VALUE;
  if (dynamic_cast<const c10::TypeError *>(&e)) return LS_ERR_TYPE;
  if (dynamic_cast<const c10::LinAlgError *>(&e)) return LS_ERR_LINALG;
  // TORCH_INTERNAL_ASSERT and TORCH_CHECK throw the same type; only the text differs.
  if (std::strstr(e.what_without_backtrace(), "INTERNAL ASSERT FAILED") != nullptr) return LS_ERR_INTERNAL;
  return LS_ERR_GENERIC;
}

bool has(const char *text, std::initializer_list<const char *> any) noexcept {
  for (const char *part : any)
    if (strcasestr(text, part) != nullptr) return true;
  return false;
}

// Returns the code of an error of c10d or gloo that is not the caller's. Only their texts tell an expired wait
// from a lost connection; gloo's "Application timeout" is how it closes connections after any other error.
int32_t code_of_peer(const char *text) noexcept {
  return has(text, {"timed out", "timeout"}) && !has(text, {"application timeout"}) ? LS_ERR_TIMEOUT
                                                                                    : LS_ERR_CONNECTION;
}

// Reports whether an exception is gloo's IoException, which no header declares.
bool of_gloo(const std::exception &e) noexcept {
  return std::strcmp(typeid(e).name(), "N4gloo11IoExceptionE") == 0;
}

// Reports whether an error's text contains a name of CUDA: cuBLAS, cuDNN and the like throw plain errors.
bool of_cuda(const char *text) noexcept { return has(text, {"cuda", "cudnn", "_status_", "_failed"}); }

// Returns the error of a call for which a CUDA device had no memory, if it is not the allocator's: neither the
// bytes nor the device are known. The calling thread's device is the best guess.
ls_error *of_device_memory(const char *text) noexcept {
  auto *e = make(LS_ERR_OUT_OF_MEMORY, text);
  auto *devices = devices_of(c10::kCUDA);
  if (e == &no_memory || devices == nullptr) return e;
  if (int slot = slot_of(c10::kCUDA, devices->current()); slot > kCpuSlot) e->device = word_of(slot);
  return e;
}

// Returns an error that may have been caused by a device.
ls_error *of_device(const char *text, int32_t error, int32_t code) noexcept {
  // cudaErrorStreamCaptureUnsupported to cudaErrorStreamCaptureWrongThread: the device is well.
  constexpr int32_t kCaptureFirst = 900, kCaptureLast = 908;
  constexpr int32_t kMemoryAllocation = 2;  // cudaErrorMemoryAllocation
  if (error == kMemoryAllocation || std::strstr(text, "_STATUS_ALLOC_FAILED") != nullptr)
    return of_device_memory(text);
  if (error >= kCaptureFirst && error <= kCaptureLast) return make(LS_ERR_CAPTURE, text, error);
  // An error about an argument may name a device, too, which says nothing about its state.
  int lost = look_for_lost(error, has(text, {"cuda error", "cudnn error", "_status_", "_failed"}));
  if (lost >= 0) return make(LS_ERR_DEVICE_LOST, text, error != 0 ? error : error_of_lost(lost));
  return make(code, text, error);
}

}  // namespace

ls_error *current_error() noexcept {
  try {
    throw;
  } catch (const FailedNode &f) {
    return with_node(of_cause(f), f.node, f.site);
  } catch (const CallbackError &e) {
    return make(LS_ERR_CALLBACK, e.what_without_backtrace(), 0, e.id);
  } catch (const c10::OutOfMemoryError &e) {
    auto *made = make(LS_ERR_OUT_OF_MEMORY, e.what_without_backtrace());
    if (made != &no_memory) {
      auto failure = take_last_failure();
      made->bytes = failure.bytes;
      made->live = failure.live;
      made->device = failure.device;
    }
    return made;
  } catch (const c10::AcceleratorError &e) {
    return of_device(e.what_without_backtrace(), e.get_error_code(), LS_ERR_DEVICE);
  } catch (const CaptureError &e) {
    note_refusal();  // by the shim: CUDA does not know of it
    return make(LS_ERR_CAPTURE, e.what());
  } catch (const DeviceLost &e) {
    return make(LS_ERR_DEVICE_LOST, e.what(), e.error);
  } catch (const c10::DistError &e) {
    const char *text = e.what_without_backtrace();
    // Errors of NCCL that no other rank has caused.
    if (has(text, {"ncclUnhandledCudaError"})) return of_device(text, 0, LS_ERR_GENERIC);
    if (has(text, {"ncclInvalidArgument", "ncclInvalidUsage", "ncclInternalError"}))
      return make(LS_ERR_GENERIC, text);
    return make(code_of_peer(text), text);
  } catch (const c10::NotImplementedError &e) {
    // An operator without a kernel: the first sentence names the operator and the backend. The rest, up to a
    // hundred lines, lists the kernels of all backends.
    std::string_view text = e.what_without_backtrace();
    return make(LS_ERR_NOT_IMPLEMENTED, text.substr(0, text.find(" This could be because")));
  } catch (const c10::Error &e) {
    const char *text = e.what_without_backtrace();
    if (has(text, {"during cuda graph capture", "during graph capture", "during stream capture",
                   "outside graph capture", "cannot be graph captured"})) {
      note_refusal();  // by libtorch: CUDA does not know of it
      return make(LS_ERR_CAPTURE, text);
    }
    if (of_cuda(text)) return of_device(text, 0, code_of(e));
    return make(code_of(e), text);
  } catch (const ArgumentError &e) {
    return make(LS_ERR_ARGUMENT, e.what());
  } catch (const StopRecomputation &e) {
    return make(LS_ERR_STOP_RECOMPUTATION, e.what());
  } catch (const std::bad_alloc &) {
    return &no_memory;
  } catch (const std::exception &e) {
    const char *text = e.what();
    if (text == nullptr) return make(LS_ERR_STD, "an exception without a text");
    if (of_gloo(e)) return make(code_of_peer(text), text);
    if (of_cuda(text)) return of_device(text, 0, LS_ERR_STD);
    return make(LS_ERR_STD, text);
  } catch (...) {
    return make(LS_ERR_UNKNOWN, "an exception of a type unknown to the shim");
  }
}

}  // namespace ls

void ls_error_free(ls_error *err) noexcept {
  ls::run_quiet([&] {
    if (err != &ls::no_memory) std::free(err);
  });
}

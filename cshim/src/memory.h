// The core's accounting of memory: each device's account, admission and waiting, samples.
#pragma once

#include <c10/core/Storage.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "device.h"
#include "shim.h"

namespace ls {

// A device's account, shared by all threads.
struct alignas(64) Account {
  // Bytes live, and the credit of threads for small blocks: never less than the bytes in use.
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> trigger{INT64_MAX};        // live bytes past which the next operator asks the policy
  std::atomic<int64_t> total_trigger{INT64_MAX};  // the same for total
  std::atomic<int64_t> wait_trigger{INT64_MAX};   // an allocation that would pass it waits, but does not fail
  // Live bytes up to which allocations are admitted without a look at the cgroup. The limit, or less where the
  // CPU's limit follows a cgroup: past it the room in the cgroup is measured again (follow_limit).
  std::atomic<int64_t> granted{INT64_MAX};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> total{0};            // bytes ever allocated: large blocks, and credit of threads
  std::atomic<int64_t> measure{INT64_MAX};  // the total at which the room in the cgroup is measured again
  std::atomic<int64_t> limit{INT64_MAX};    // hard: an allocation that would pass it waits, then fails
  std::atomic<int64_t> reserved{0};         // a device's: bytes that its allocator holds
  std::atomic<int64_t> freed{0};            // bytes ever freed
  std::atomic<int64_t> withdrawn{0};        // bytes ever admitted that could then not be allocated
  std::atomic<int64_t> low{0};              // the fewest live bytes since a round began, while allocations wait
};
extern Account accounts[kMaxSlots];

inline void raise(std::atomic<int64_t> &high, int64_t now) noexcept {
  int64_t h = high.load(std::memory_order_relaxed);
  while (now > h && !high.compare_exchange_weak(h, now, std::memory_order_relaxed)) {
  }
}

// Adds n bytes to the account's live bytes if they fit below the limit and, unless past_trigger, below the wait
// trigger. Reports whether they did, and sets live to the sum less the credit of threads where that may be a new
// peak. count_admitted or withdraw must follow.
bool try_admit(int slot, int64_t n, int64_t &live, bool past_trigger = true) noexcept;
// Counts n admitted bytes that were allocated, in the peak and the total. live is what try_admit returned.
void count_admitted(int slot, int64_t n, int64_t live) noexcept;
// Takes n admitted bytes back that could not be allocated.
void withdraw(int slot, int64_t n) noexcept;
// The bytes that threads have reserved in the CPU's account and not allocated.
int64_t thread_credit() noexcept;
// The bytes that the calling thread has requested of the CPU's allocator less those that it has freed.
int64_t requested_by_thread() noexcept;
// The same of the allocators of all other devices.
extern constinit thread_local int64_t device_bytes_by_thread __attribute__((tls_model("initial-exec")));
// The bytes of small free blocks that threads keep.
int64_t kept_small() noexcept;
// While credit is disabled threads reserve nothing in advance; what they had reserved is given back before this
// returns. An allocation or a fixed limit that the live bytes meet disables it; a new fixed limit, the end of a
// round and a timeout of ls_pressure_wait enable it if a tenth of the limit is free. It stays disabled between the
// two calls of ls_memory_exact_peak.
void set_credit_disabled(bool on) noexcept;
// Measures the room in the cgroups and sets the CPU's limit, for an allocation of n bytes. Returns false if the
// limit does not follow a cgroup.
bool follow_limit(int64_t n) noexcept;
// try_admit that waits for memory if they do not fit, and throws c10::OutOfMemoryError in the end. Returns live.
int64_t admit(int slot, int64_t n, int64_t asked);
void release(int slot, int64_t n) noexcept;

// admit with a fast path for allocations that fit.
inline int64_t enter(int slot, int64_t n, int64_t asked) {
  int64_t live = 0;
  return try_admit(slot, n, live, false) ? live : admit(slot, n, asked);
}

// No address space has as many bytes. Larger sizes are refused unadmitted: their sums would not fit 64 bits.
constexpr int64_t kLargestAdmitted = int64_t{1} << 46;

using Clock = std::chrono::steady_clock;
// Waits for a round after the system or the device has refused n admitted bytes. Returns false if no other try can
// succeed.
bool wait_for_system(int slot, int64_t n, Rounds &rounds) noexcept;

// Set on a thread that collects: its allocations must not wait for a round.
extern constinit thread_local bool sweeping __attribute__((tls_model("initial-exec")));

// The bytes of the last allocation that failed on this thread, for the error; 0 if unknown.
struct LastFailure {
  int64_t bytes;
  int32_t device;  // as in linstock/core.h
  // The live bytes at that moment, because the operator frees its own before the error is reported; 0 if unknown.
  int64_t live;
};
extern thread_local LastFailure last_failure;
// Returns and clears this thread's last failure, or that of a device's allocation on a thread of the autograd
// engine.
LastFailure take_last_failure() noexcept;
// admitted is how many of the device's live bytes are those of the allocation that fails.
[[noreturn]] void out_of_memory(int slot, int64_t asked, const char *why, int64_t admitted = 0);

// Frees cached blocks of the CPU's allocator until keep bytes are left at most. Returns the bytes freed.
int64_t shrink_cpu_cache(int64_t keep) noexcept;
int64_t cpu_cached() noexcept;
// Reports whether the account of a storage's device has its bytes. On the CPU those of from_blob and page-locked
// memory are not the allocator's.
bool counted(const c10::Storage &s) noexcept;
// Returns the bytes that the CPU's allocator takes for n bytes.
int64_t cpu_rounded(size_t n) noexcept;
// Returns the allocator's cached blocks and malloc's free pages to the system. Other threads return theirs at
// their next allocation.
void empty_all() noexcept;
// Frees what the cache of small objects keeps, but for the lists of other threads.
void empty_objects() noexcept;
// Returns malloc's free pages to the system if they are many compared with the bytes in use.
void trim_malloc() noexcept;

// Called once, by ls_init.
void make_pressure();
void make_samples();

// Returns the slot of a device as linstock/core.h writes it. Throws ArgumentError if the device does not exist.
int slot_of_word(int32_t device);

// ---- samples ----
// A flag in the words.scope of a thread that has samples without a site.
constexpr uint64_t kSampled = LS_SCOPE_SAMPLED;
void sample_allocated(void *p, int64_t n, int64_t asked, int slot, uint64_t stream = 0) noexcept;
void sample_freed(void *p, int64_t n, int slot, uint64_t stream = 0) noexcept;
// The sampled blocks of devices that are not freed. Their frees are noted at a rate of 0, too.
extern std::atomic<int64_t> samples_on_devices;
// The same for a device's allocator, which does not store which blocks are sampled. n < 0 is a free.
void maybe_sample(void *p, int64_t n, int slot, uint64_t stream) noexcept;
// Moves the samples of the autograd engine's threads, taken during this thread's backward pass, to this thread.
void adopt_samples() noexcept;
// Asks the calling thread's caller for the site of its call (ls_samples_attach).
void mark_unnamed() noexcept;
int64_t next_sample() noexcept;
void all_threads_catch_up() noexcept;     // at their next allocation
extern std::atomic<int64_t> sample_rate;  // bytes between samples; 0: none; 1: each

}  // namespace ls

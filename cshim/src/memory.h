// The core's own view of memory: what each thread holds, what a device may hold, who waits for memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "device.h"
#include "shim.h"

namespace ls {

constexpr int kMaxDevices = 1 + kMaxCudaDevices;  // the CPU, then CUDA's
constexpr int kCpuSlot = 0;

// What all threads share of one device's account.
struct alignas(64) Account {
  // Bytes live, and besides what threads have taken ahead for their small blocks: never less than the truth.
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> trigger{INT64_MAX};        // past it the next operator asks the policy
  std::atomic<int64_t> total_trigger{INT64_MAX};  // the same for total
  std::atomic<int64_t> soft_limit{INT64_MAX};  // an allocation that would pass it waits for a round, then goes on
  // What is admitted at once. Equal to the limit, but lower where the CPU's limit follows a cgroup: past it the
  // room in the cgroup is measured again (follow_limit).
  std::atomic<int64_t> granted{INT64_MAX};
  std::atomic<int64_t> peak{0};
  std::atomic<int64_t> total{0};            // bytes ever given out, in large blocks and in what threads took ahead
  std::atomic<int64_t> measure{INT64_MAX};  // the total at which the room in the cgroup is measured again
  std::atomic<int64_t> limit{INT64_MAX};    // an allocation that would pass it waits, then fails
  std::atomic<int64_t> reserved{0};         // a device's: bytes that its allocator holds
  std::atomic<int64_t> freed{0};            // and given back
};
extern Account accounts[kMaxDevices];

inline void raise(std::atomic<int64_t> &high, int64_t now) noexcept {
  int64_t h = high.load(std::memory_order_relaxed);
  while (now > h && !high.compare_exchange_weak(h, now, std::memory_order_relaxed)) {
  }
}

// Counts n bytes in where they fit below the limit, and below the soft limit unless they may pass that. Returns
// whether it has.
bool try_admit(int slot, int64_t n, bool past_soft_limit = true) noexcept;
// What threads have taken ahead of the CPU's account and not given out.
int64_t taken_ahead() noexcept;
// The bytes of small free blocks that threads keep.
int64_t kept_small() noexcept;
// While it is on, as from where an allocation meets the CPU's limit until a round ends with a tenth of it free,
// threads take nothing ahead; what they had is given back before this returns.
void set_tight(bool on) noexcept;
// Measures what the cgroups leave for n bytes more and sets the CPU's limit. False where the limit follows no
// cgroup.
bool follow_limit(int64_t n) noexcept;
// Counts n bytes in, waiting for memory where they do not fit. Throws c10::OutOfMemoryError.
void admit(int slot, int64_t n, int64_t asked);
void release(int slot, int64_t n) noexcept;

// Fast path of admit for the common case.
inline void enter(int slot, int64_t n, int64_t asked) {
  if (!try_admit(slot, n, false)) admit(slot, n, asked);
}

using Clock = std::chrono::steady_clock;
constexpr auto kGiveUp = std::chrono::seconds(30);  // of waits for one allocation
enum class Waited {
  kNoServer,  // no pacer is attached, or this thread is the pacer's
  kRetry,     // it fits, or some was freed, or the time is over: another try, and another wait, may succeed
  kGranted,   // LS_WAIT_TARGET: it may pass the soft limit; otherwise: the round was exhausted
};
// Waits, for a bounded time, until a round that begins after this call has ended; at a limit (LS_WAIT_LIMIT) also
// until n bytes fit.
Waited wait_for_round(int slot, int64_t n, ls_wait_reason reason);
// Whether another try may succeed after a wait before which so many bytes had been freed.
inline bool may_fit(Waited waited, const Account &a, int64_t freed_before) {
  return waited == Waited::kRetry || (waited == Waited::kGranted && a.freed.load() != freed_before);
}

// Set on a thread that collects: it must never wait for a round.
extern constinit thread_local bool sweeping __attribute__((tls_model("initial-exec")));

// The bytes of the last allocation that failed on this thread, for the error; 0 where it is not known.
struct LastFailure {
  int64_t bytes;
  int32_t device;  // as in linstock.h
};
extern thread_local LastFailure last_failure;
// That of this thread, or else of a device's allocation that has failed on an engine's thread.
LastFailure take_last_failure() noexcept;
[[noreturn]] void out_of_memory(int slot, int64_t asked, const char *why);

// Frees blocks that the CPU's allocator keeps until no more than keep bytes are left; gives how many were freed.
int64_t shrink_cpu_cache(int64_t keep) noexcept;
int64_t cpu_cached() noexcept;
// Gives back all that the allocator and malloc keep free; other threads give theirs back at their next allocation.
void empty_all() noexcept;
// Gives malloc's free pages back where they are many beside what is in use.
void trim_malloc() noexcept;

// Called once, by ls_init.
void make_pressure();
void make_samples();

// A slot from linstock.h's device word; throws ArgumentError for one that is not counted.
int slot_of(int32_t device);
inline int32_t word_of(int slot) { return slot == kCpuSlot ? 0xff : (1 << 8 | (slot - 1)); }

// ---- samples ----
// Set in the words.scope of a thread that has samples without a site.
constexpr uint64_t kSampled = LS_SCOPE_SAMPLED;
void sample_allocated(void *p, int64_t n, int64_t asked, int slot, uint64_t stream = 0) noexcept;
void sample_freed(void *p, int64_t n, int slot, uint64_t stream = 0) noexcept;
// The same for a device's allocator, which does not note which blocks are sampled: n < 0 is a free.
void maybe_sample(void *p, int64_t n, int slot, uint64_t stream) noexcept;
// Gives this thread the samples that libtorch's own threads have made for its backward pass.
void adopt_samples() noexcept;
int64_t next_sample() noexcept;
void all_threads_catch_up() noexcept;     // a new rate reaches them at their next allocation
extern std::atomic<int64_t> sample_rate;  // bytes between samples; 0: none; 1: each

}  // namespace ls

// Admission of allocations, and waiting. An allocation that does not fit below its device's limits asks for a
// round and waits, for a bounded time and without a lock of the allocator's. A round serves all allocations that
// wait: the pacer's thread frees what it can, then wakes them, and they try again. An allocation fails only after
// a round that began after its request and was exhausted: at once if nothing was allocated or freed meanwhile,
// otherwise after kVain such rounds in which there was never room for it.
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "cgroup.h"
#include "device.h"
#include "memory.h"
#include "stream.h"

namespace ls {

Account accounts[kMaxSlots];
constinit thread_local bool sweeping = false;
thread_local LastFailure last_failure{0, 0, 0};

namespace {

// `due` is set when an account passes a trigger. Operators read it before they begin.
alignas(64) ls_board board{};

struct Callback {
  ls_oom_callback fn;
  void *arg;
};
std::atomic<const Callback *> callback{nullptr};

constexpr int kCallbackCalls = 16;                    // the most calls of the callback for one allocation
constexpr auto kRoundWait = std::chrono::seconds(2);  // for one round: a collection of a large Go heap takes long
constexpr int kVain = 8;
constexpr int kMostTimeouts = 15;  // rounds in a row that no pacer has ended

static_assert(LS_PRESSURE_DEVICES == kMaxSlots);

// An allocation that waits. Lives on its thread's stack, in a list guarded by Pressure::mutex.
struct Waiter {
  int slot;
  int64_t bytes;
  ls_wait_reason reason;
  bool exhaust;
  Waiter *next, **link;  // link points to the pointer to this one
};

// Rounds, and the allocations that wait for them. Never destroyed.
struct Pressure {
  std::mutex mutex;
  std::condition_variable wanted;                 // the pacer waits here
  std::condition_variable done;                   // allocations wait here
  uint64_t asked = 0, started = 0, finished = 0;  // rounds
  // The last round that admitted a device's waiters past the wait trigger, and the last that was exhausted.
  uint64_t admitted[kMaxSlots] = {}, exhausted[kMaxSlots] = {};
  int64_t low[kMaxSlots] = {};  // the fewest live bytes in a device's last round
  bool attached = false, stop = false;
  Waiter *first = nullptr;
  std::atomic<int> waiters{0};
  std::atomic<int64_t> waits{0}, wait_ns{0}, timeouts{0}, retries{0}, ooms{0};
  std::atomic<int64_t> histogram[LS_WAIT_BUCKETS] = {};

  void count_wait(int64_t ns, bool timed_out) noexcept {
    waits.fetch_add(1, std::memory_order_relaxed);
    wait_ns.fetch_add(ns, std::memory_order_relaxed);
    if (timed_out) timeouts.fetch_add(1, std::memory_order_relaxed);
    auto bucket = static_cast<int>(std::ceil(4 * std::log2(std::max(1.0, static_cast<double>(ns) / 1000))));
    histogram[std::min(bucket, LS_WAIT_BUCKETS - 1)].fetch_add(1, std::memory_order_relaxed);
  }

  static Pressure &get() {
    static auto *p = new Pressure;
    return *p;
  }
};

// The last failure of a device's allocation on any thread, packed; 0: none. A backward pass fails on a thread of
// the autograd engine, and its caller's thread reports the error.
std::atomic<uint64_t> last_on_device{0};
constexpr int kBytesBits = 48;
constexpr int64_t kMostBytes = (int64_t{1} << kBytesBits) - 1;

uint64_t packed(const LastFailure &f) noexcept {
  return static_cast<uint64_t>(f.device) << kBytesBits | static_cast<uint64_t>(std::min(f.bytes, kMostBytes));
}

// Records that an allocation has failed. admitted is how many of the device's live bytes are its own.
void count_failed(int slot, int64_t asked, int64_t admitted) noexcept {
  last_failure = {asked, word_of(slot), accounts[slot].live.load(std::memory_order_relaxed) - admitted};
  if (slot > kCpuSlot) last_on_device.store(packed(last_failure));
  Pressure::get().ooms.fetch_add(1, std::memory_order_relaxed);
}

inline void count_allocated(Account &a, int64_t n, int64_t live) noexcept {
  int64_t total = n + a.total.fetch_add(n, std::memory_order_relaxed);
  if (__builtin_expect(live > a.trigger.load(std::memory_order_relaxed) ||
                           total > a.total_trigger.load(std::memory_order_relaxed),
                       0)) {
    __atomic_store_n(&board.due, 1, __ATOMIC_RELAXED);
  }
  if (__builtin_expect(total > a.measure.load(std::memory_order_relaxed), 0)) follow_limit(0);
}

// The CPU's limit while it follows the cgroups. Never destroyed.
struct Follow {
  std::mutex mutex;
  std::vector<CGroup> groups;       // empty: the limit is fixed
  int64_t most = 0;                 // the upper bound of the limit
  double share = 1;                 // so is this share of the lowest limit of a group
  int64_t resident = 0;             // anonymous memory at the start, without tensors and the caller's share
  std::atomic<bool> active{false};  // groups is not empty

  static Follow &get() {
    static auto *f = new Follow;
    return *f;
  }
};

void set_cpu_limit(int64_t limit, int64_t granted, int64_t measure) noexcept {
  auto &a = accounts[kCpuSlot];
  a.limit.store(limit);
  a.granted.store(granted);
  a.measure.store(measure);
  if (limit == INT64_MAX) return;
  int64_t live = a.live.load();
  // The cache may keep what the limit has room for.
  int64_t keep = std::max<int64_t>(0, limit - live - kept_small());
  if (cpu_cached() - kept_small() > keep) shrink_cpu_cache(std::max<int64_t>(keep, 1));
}

void lower(std::atomic<int64_t> &low, int64_t now) noexcept {
  int64_t l = low.load(std::memory_order_relaxed);
  while (now < l && !low.compare_exchange_weak(l, now, std::memory_order_relaxed)) {
  }
}

bool fits_limit(int slot, int64_t n) {
  auto &a = accounts[slot];
  return a.live.load(std::memory_order_relaxed) + n <= a.limit.load(std::memory_order_relaxed);
}

// Subtracts n live bytes, and adds them to one of the counters that activity reads.
void subtract(Account &a, int64_t n, std::atomic<int64_t> &counter) noexcept {
  // In this order: a thread that sees the room also sees that the counter has changed.
  counter.fetch_add(n);
  int64_t live = a.live.fetch_sub(n) - n;
  auto &p = Pressure::get();
  if (__builtin_expect(p.waiters.load(std::memory_order_relaxed) == 0, 1)) return;
  lower(a.low, live);
  // The pacer's own frees wake no thread: the end of the round wakes all, and before that they would slow it down.
  if (!sweeping) p.done.notify_one();
}

// Measures the cgroups first: other memory of the process may have changed.
bool try_admit_followed(int slot, int64_t n, int64_t &live) {
  if (slot == kCpuSlot) follow_limit(n);
  return try_admit(slot, n, live);
}

bool try_admit_without_credit(int slot, int64_t n, int64_t &live) {
  if (slot == kCpuSlot) set_credit_disabled(true);
  return try_admit_followed(slot, n, live);
}

// Lets threads have credit again if a tenth of the CPU's limit is free.
void restore_credit() noexcept {
  const auto &cpu = accounts[kCpuSlot];
  if (cpu.live.load() < cpu.limit.load() / 10 * 9) set_credit_disabled(false);
}

enum class Waited {
  kNoServer,  // no pacer is attached, or this thread is the pacer's
  kTimeout,   // the time is over, and the round has not ended
  kRetry,     // the bytes fit, or some were freed: another try or another wait may succeed
  kVerdict,   // LS_WAIT_TARGET: the allocation may pass the wait trigger; otherwise: the round was exhausted
};
struct Wait {
  Waited result;
  int64_t low;  // the fewest live bytes in the device's last round
};

// Waits until a round that begins after this call has ended, or the time is over. LS_WAIT_LIMIT: or until n bytes
// fit.
Wait wait_for_round(int slot, int64_t n, ls_wait_reason reason, bool exhaust,
                    Clock::time_point until = Clock::now() + kRoundWait);

// Returns a number that changes with every allocation and free on the device.
int64_t activity(const Account &a) { return a.freed.load() + a.withdrawn.load() + a.total.load(); }

// Reports whether an allocation that did not fit after a round waits for another one. before is its activity
// before the round. n is 0 if the limit was not what refused it.
bool another(Rounds &r, const Wait &w, int slot, int64_t n, int64_t before) {
  auto &a = accounts[slot];
  bool exhausted = w.result == Waited::kVerdict;
  if (w.result == Waited::kNoServer) return false;
  // Timeouts are counted: the time of a process that was stopped says nothing about its pacer.
  r.timeouts = w.result == Waited::kTimeout ? r.timeouts + 1 : 0;
  if (r.timeouts == kMostTimeouts) return false;
  // A thread that has allocated before the round may be about to free.
  int64_t earlier = r.seen < 0 ? before : r.seen;
  r.seen = before;
  if (exhausted && activity(a) == earlier) return false;
  r.all++;
  int64_t limit = a.limit.load();
  if (n > limit) return !exhausted;
  int64_t lacking = n == 0 ? w.low : w.low - (limit - n);
  // Another thread has taken the room, or there was more than before: some day it may be enough.
  if (lacking <= 0 || w.low < r.least - lacking / 1024) {
    r.least = w.low;
    r.vain = 0;
    return true;
  }
  if (!exhausted) return true;
  // Other threads allocate and free, but never enough. They may do so soon.
  for (int i = 0; i < 1 << r.vain && (n == 0 || !fits_limit(slot, n)); i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ++r.vain < kVain;
}

}  // namespace

void make_pressure() {
  Pressure::get();
  Follow::get();
}

bool follow_limit(int64_t n) noexcept {
  auto &f = Follow::get();
  if (!f.active.load(std::memory_order_acquire)) return false;
  std::lock_guard<std::mutex> lock(f.mutex);
  if (f.groups.empty()) return false;
  auto &a = accounts[kCpuSlot];
  int64_t tensors = a.live.load() + cpu_cached();
  // A cgroup's usage does not contain tensors that have not been written yet.
  int64_t anonymous = resident_anonymous();
  int64_t written = anonymous == 0 ? tensors : std::min(tensors, anonymous - f.resident);
  auto [room, lowest] = cgroup_room(f.groups, written);
  int64_t most = f.most;
  if (lowest != INT64_MAX) most = std::min(most, static_cast<int64_t>(f.share * static_cast<double>(lowest)));
  int64_t limit = std::max<int64_t>(1, std::min(room, most));
  // The next measurement comes after a quarter of the room, in live or allocated bytes: sooner near the limit.
  constexpr int64_t kLeast = 4 << 20, kMost = 256 << 20;
  int64_t step = std::clamp((limit - tensors) / 4, kLeast, kMost);
  int64_t live = a.live.load();
  set_cpu_limit(limit, std::min(limit, std::max(tensors + step, live + n)),
                a.total.load() + std::max(step, 16 * kLeast));
  return true;
}

int slot_of_word(int32_t device) {
  auto type = static_cast<c10::DeviceType>(device >> 8);
  int index = device & 0xff;
  if (type == c10::kCPU) return kCpuSlot;
  if (slot_of(type, 0) < 0)
    throw ArgumentError("memory: a device of type " + std::to_string(device >> 8) + " has no memory of its own");
  if (index == 0xff) index = 0;
  auto *d = devices_of(type);
  int count = d == nullptr ? 0 : d->count(), slot = slot_of(type, index);
  if (index < count && slot >= 0) return slot;
  const char *name = row_of(slot_of(type, 0))->name;
  throw ArgumentError("memory: device " + c10::DeviceTypeName(type, true) + ":" + std::to_string(index) +
                      " does not exist; this machine has " + std::to_string(count) + " " + name +
                      (count == 1 ? " device" : " devices"));
}

LastFailure take_last_failure() noexcept {
  auto mine = last_failure;
  last_failure = {0, 0, 0};
  if (mine.bytes != 0) {
    uint64_t same = packed(mine);
    last_on_device.compare_exchange_strong(same, 0);
    return mine;
  }
  uint64_t other = last_on_device.exchange(0);
  if (other == 0) return mine;
  return {static_cast<int64_t>(other) & kMostBytes, static_cast<int32_t>(other >> kBytesBits), 0};
}

void out_of_memory(int slot, int64_t asked, const char *why, int64_t admitted) {
  count_failed(slot, asked, admitted);
  C10_THROW_ERROR(OutOfMemoryError, why);
}

bool try_admit(int slot, int64_t n, int64_t &live, bool past_trigger) noexcept {
  auto &a = accounts[slot];
  int64_t limit = a.granted.load(std::memory_order_relaxed);
  if (!past_trigger) limit = std::min(limit, a.wait_trigger.load(std::memory_order_relaxed));
  int64_t now = a.live.load(std::memory_order_relaxed), credit = 0;
  // The credit of threads is not live: the peak is counted without it. Credit is read before and after: what a
  // thread gives back in between is in `now` and no longer in the credit.
  auto read_credit = [&] {
    if (__builtin_expect(now + n > a.peak.load(std::memory_order_relaxed), 0) && slot == kCpuSlot)
      credit = std::max(credit, thread_credit());
  };
  do {
    if (now + n > limit) return false;
    read_credit();
  } while (!a.live.compare_exchange_weak(now, now + n, std::memory_order_relaxed));
  read_credit();
  live = now + n - credit;
  return true;
}

void count_admitted(int slot, int64_t n, int64_t live) noexcept {
  auto &a = accounts[slot];
  raise(a.peak, live);
  count_allocated(a, n, a.live.load(std::memory_order_relaxed));
}

void release(int slot, int64_t n) noexcept { subtract(accounts[slot], n, accounts[slot].freed); }

void withdraw(int slot, int64_t n) noexcept { subtract(accounts[slot], n, accounts[slot].withdrawn); }

int64_t admit(int slot, int64_t n, int64_t asked) {
  auto &a = accounts[slot];
  int64_t sum = 0;
  Rounds rounds;
  rounds.seen = activity(a);
  if (slot == kCpuSlot && a.live.load(std::memory_order_relaxed) + n > a.granted.load(std::memory_order_relaxed))
    follow_limit(n);
  // At the wait trigger an allocation waits until a round makes room or admits it, for LS_WAIT_TARGET_MS at most.
  auto until = Clock::now() + std::chrono::milliseconds(LS_WAIT_TARGET_MS);
  while (a.wait_trigger.load(std::memory_order_relaxed) < a.limit.load(std::memory_order_relaxed)) {
    if (try_admit(slot, n, sum, false)) return sum;
    if (wait_for_round(slot, n, LS_WAIT_TARGET, false, until).result != Waited::kRetry) break;
  }
  if (try_admit_followed(slot, n, sum) || try_admit_without_credit(slot, n, sum)) return sum;
  // Freed blocks that other streams still use are live until the device's allocator is asked. During a
  // capture on the device it does not ask, and to wait would end the capture.
  auto settled = [&](bool wait) {
    return slot != kCpuSlot && n <= a.limit.load() && may_wait_for(slot) &&
           devices_at(slot).settle(index_of(slot), wait) && try_admit(slot, n, sum);
  };
  if (settled(false)) return sum;
  if (auto *cb = callback.load(std::memory_order_acquire)) {
    for (int i = 0; i < kCallbackCalls && !sweeping; i++) {
      sweeping = true;  // allocations of the callback neither wait nor call it again
      int32_t again = cb->fn(cb->arg, word_of(slot), n);
      sweeping = false;
      if (try_admit_without_credit(slot, n, sum)) return sum;
      if (again == 0) break;
    }
  }
  for (;;) {
    int64_t before = activity(a);
    Wait wait = wait_for_round(slot, n, LS_WAIT_LIMIT, rounds.all >= 2);
    Pressure::get().retries.fetch_add(1, std::memory_order_relaxed);
    if (try_admit_without_credit(slot, n, sum) || settled(true)) return sum;
    // Another thread may have been preempted just before a free: give it 5 ms.
    for (int i = 0; i < 5 && wait.result == Waited::kVerdict && activity(a) == before; i++) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (!another(rounds, wait, slot, n, before)) break;
  }
  // If the limit follows the cgroups, malloc's free pages may make room.
  if (slot == kCpuSlot && Follow::get().active.load()) empty_all();
  if (try_admit_without_credit(slot, n, sum)) return sum;
  int64_t live = a.live.load(), limit = a.limit.load();
  out_of_memory(slot, asked,
                ("out of memory: " + std::to_string(asked) + " bytes asked, " + std::to_string(live) +
                 " live of a limit of " + std::to_string(limit))
                    .c_str());
}

namespace {
Wait wait_for_round(int slot, int64_t n, ls_wait_reason reason, bool exhaust, Clock::time_point until) {
  if (sweeping) return {Waited::kNoServer, 0};
  auto &p = Pressure::get();
  std::unique_lock<std::mutex> lock(p.mutex);
  if (!p.attached) return {Waited::kNoServer, 0};
  uint64_t mine = p.started + 1;
  p.asked = std::max(p.asked, mine);
  Waiter self{slot, n, reason, exhaust, p.first, &p.first};
  if (p.first != nullptr) p.first->link = &self.next;
  p.first = &self;
  p.waiters.fetch_add(1);
  p.wanted.notify_one();
  __atomic_store_n(&board.due, 1, __ATOMIC_RELAXED);  // so that the next operators wait before they begin
  auto start = Clock::now();
  bool ok = p.done.wait_until(lock, until, [&] {
    return p.finished >= mine || !p.attached || (reason == LS_WAIT_LIMIT && fits_limit(slot, n));
  });
  p.waiters.fetch_sub(1);
  *self.link = self.next;
  if (self.next != nullptr) self.next->link = self.link;
  p.count_wait(std::chrono::nanoseconds(Clock::now() - start).count(), !ok);
  if (!ok) return {Waited::kTimeout, p.low[slot]};
  if (!p.attached) return {Waited::kNoServer, 0};
  auto &verdict = reason == LS_WAIT_TARGET ? p.admitted : p.exhausted;
  return {verdict[slot] >= mine ? Waited::kVerdict : Waited::kRetry, p.low[slot]};
}
}  // namespace

bool wait_for_system(int slot, int64_t n, Rounds &rounds) noexcept {
  if (rounds.over) return false;
  auto &a = accounts[slot];
  int64_t before = activity(a);
  Wait wait = wait_for_round(slot, n, LS_WAIT_SYSTEM, rounds.all >= 2);
  Pressure::get().retries.fetch_add(1, std::memory_order_relaxed);
  rounds.over = !another(rounds, wait, slot, 0, before);
  return activity(a) != before || !rounds.over;
}

void admit_on_device(int slot, int64_t n) {
  if (slot <= kCpuSlot) return;
  if (n > kLargestAdmitted) out_of_memory(slot, n, "out of memory: the size exceeds the address space");
  enter(slot, n, n);
}

void dismiss_from_device(int slot, int64_t n) noexcept {
  if (n != 0 && slot > kCpuSlot) withdraw(slot, n);
}

bool sweep_for_device(int slot, int64_t n, Rounds &rounds) noexcept {
  return slot > kCpuSlot && wait_for_system(slot, n, rounds);
}

int64_t limit_on_device(int slot) noexcept {
  if (slot <= kCpuSlot) return 0;
  int64_t limit = accounts[slot].limit.load();
  return limit == INT64_MAX ? 0 : limit;
}

constinit thread_local int64_t device_bytes_by_thread __attribute__((tls_model("initial-exec"))) = 0;

void count_on_device(int slot, void *p, int64_t n, int64_t admitted, void *stream) noexcept {
  if (slot <= kCpuSlot) return;
  device_bytes_by_thread += n;
  maybe_sample(p, n, slot, reinterpret_cast<uint64_t>(stream));
  if (n < 0) return release(slot, -n);
  auto &a = accounts[slot];
  int64_t more = n - admitted;
  if (more < 0) withdraw(slot, -more);
  if (more > 0) a.live.fetch_add(more, std::memory_order_relaxed);
  count_admitted(slot, n, a.live.load(std::memory_order_relaxed));
}

void reserved_on_device(int slot, int64_t n) noexcept {
  if (slot > kCpuSlot) accounts[slot].reserved.fetch_add(n, std::memory_order_relaxed);
}

void failed_on_device(int slot, int64_t asked) noexcept {
  if (slot > kCpuSlot) count_failed(slot, asked, asked);
}

}  // namespace ls

using ls::Pressure;

ls_board *ls_memory_board(void) noexcept {
  return ls::run_quiet([] { return &ls::board; });
}

ls_error *ls_memory_set_triggers(int32_t device, int64_t live, int64_t total, int64_t wait_trigger) noexcept {
  return ls::run_void([&] {
    auto &a = ls::accounts[ls::slot_of_word(device)];
    a.trigger.store(live);
    a.total_trigger.store(total);
    a.wait_trigger.store(wait_trigger);
  });
}

ls_error *ls_memory_set_limit(int32_t device, int64_t bytes) noexcept {
  return ls::run_void([&] {
    if (bytes < 0) throw ls::ArgumentError("limit: " + std::to_string(bytes) + " bytes");
    int slot = ls::slot_of_word(device);
    if (slot != ls::kCpuSlot) {
      // Cached blocks count towards a device's limit. A capture on the device would end.
      if (bytes != 0 && ls::accounts[slot].reserved.load() > bytes && !ls::empty_cache_after_capture(slot))
        ls::devices_at(slot).empty_cache(ls::index_of(slot));
    }
    int64_t limit = bytes == 0 ? INT64_MAX : bytes;
    if (slot == ls::kCpuSlot) {
      auto &f = ls::Follow::get();
      std::lock_guard<std::mutex> lock(f.mutex);
      f.groups.clear();
      f.active.store(false);
      ls::set_cpu_limit(limit, limit, INT64_MAX);
      if (ls::accounts[slot].live.load() > limit) ls::set_credit_disabled(true);
      ls::restore_credit();
    } else {
      ls::accounts[slot].limit.store(limit);
      ls::accounts[slot].granted.store(limit);
      ls::devices_at(slot).limit_changed(ls::index_of(slot));
    }
    Pressure::get().done.notify_all();
  });
}

ls_error *ls_memory_follow_cgroups(const ls_cgroup *list, uint64_t n, int64_t most, double share,
                                   int64_t caller) noexcept {
  return ls::run_void([&] {
    if (most <= 0) throw ls::ArgumentError("limit: " + std::to_string(most) + " bytes");
    if (!(share > 0 && share <= 1))
      throw ls::ArgumentError("limit: a share in (0, 1] is needed, got " + std::to_string(share));
    std::vector<ls::CGroup> groups;
    for (uint64_t i = 0; i < n; i++) {
      if (list[i].version != 1 && list[i].version != 2)
        throw ls::ArgumentError("cgroups have version 1 or 2, not " + std::to_string(list[i].version));
      groups.push_back({list[i].version, list[i].dir});
    }
    {
      auto &f = ls::Follow::get();
      std::lock_guard<std::mutex> lock(f.mutex);
      f.groups = std::move(groups);
      f.most = most;
      f.share = share;
      f.resident = std::max<int64_t>(
          0, ls::resident_anonymous() - caller - ls::accounts[ls::kCpuSlot].live.load() - ls::cpu_cached());
      f.active.store(!f.groups.empty());
      if (f.groups.empty()) ls::set_cpu_limit(most, most, INT64_MAX);
    }
    ls::follow_limit(0);
    Pressure::get().done.notify_all();
  });
}

ls_error *ls_memory_set_oom_callback(ls_oom_callback fn, void *arg) noexcept {
  return ls::run_void([&] {
    // Earlier callbacks are kept: another thread may be calling one.
    static std::mutex mutex;
    static auto *all = new std::deque<ls::Callback>;
    std::lock_guard<std::mutex> lock(mutex);
    if (fn != nullptr) all->push_back({fn, arg});
    ls::callback.store(fn == nullptr ? nullptr : &all->back(), std::memory_order_release);
  });
}

int32_t ls_pressure_attach(void) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    auto &p = Pressure::get();
    std::lock_guard<std::mutex> lock(p.mutex);
    if (p.attached) return 0;
    p.attached = true;
    p.stop = false;
    p.finished = p.started = p.asked;
    return 1;
  });
}

void ls_pressure_stop(void) noexcept {
  ls::run_quiet([&] {
    auto &p = Pressure::get();
    std::lock_guard<std::mutex> lock(p.mutex);
    p.attached = false;
    p.stop = true;
    p.wanted.notify_all();
    p.done.notify_all();
  });
}

int32_t ls_pressure_wait(ls_pressure *out, int64_t timeout_ms) noexcept {
  return ls::run_quiet([&, timeout_ms]() mutable -> int32_t {
    auto &p = Pressure::get();
    ls::sweeping = true;
    std::unique_lock<std::mutex> lock(p.mutex);
    auto due = [&] { return p.stop || (timeout_ms > 0 && p.asked > p.started); };
    // A day at most: its nanoseconds fit into 64 bits.
    timeout_ms = std::clamp<int64_t>(timeout_ms, 0, 24 * 3600 * 1000);
    if (!p.wanted.wait_for(lock, std::chrono::milliseconds(timeout_ms), due)) {
      lock.unlock();
      ls::follow_limit(0);
      ls::restore_credit();
      ls::trim_malloc();
      return 0;
    }
    if (p.stop) return -1;
    p.started = p.asked;
    *out = {};
    out->round = p.started;
    for (auto *w = p.first; w != nullptr; w = w->next) {
      int32_t device = ls::word_of(w->slot), i = 0;
      while (i < out->count && out->waiters[i].device != device) i++;
      auto &d = out->waiters[i];
      out->count = std::max(out->count, i + 1);
      d.device = device;
      d.bytes += w->bytes;
      d.largest = std::max(d.largest, w->bytes);
      d.reason = std::max<int32_t>(d.reason, w->reason);
      d.exhaust |= w->exhaust ? 1 : 0;
      auto &a = ls::accounts[w->slot];
      a.low.store(a.live.load());
    }
    return 1;
  });
}

void ls_pressure_done(const ls_pressure *round) noexcept {
  ls::run_quiet([&] {
    ls::restore_credit();
    auto &p = Pressure::get();
    std::lock_guard<std::mutex> lock(p.mutex);
    if (round != nullptr) {
      p.finished = std::max(p.finished, round->round);
      for (int i = 0; i < std::clamp(round->count, 0, LS_PRESSURE_DEVICES); i++) {
        auto &w = round->waiters[i];
        int slot = ls::slot_of(static_cast<c10::DeviceType>(w.device >> 8), w.device & 0xff);
        if (slot < 0) continue;
        p.low[slot] = ls::accounts[slot].low.load();
        if ((w.verdict & LS_VERDICT_ADMIT) != 0) p.admitted[slot] = std::max(p.admitted[slot], round->round);
        if ((w.verdict & LS_VERDICT_EXHAUSTED) != 0) p.exhausted[slot] = std::max(p.exhausted[slot], round->round);
      }
    }
    p.done.notify_all();
  });
}

int32_t ls_pressure_ask(void) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    auto &p = Pressure::get();
    std::lock_guard<std::mutex> lock(p.mutex);
    if (!p.attached) return 0;
    p.asked = std::max(p.asked, p.started + 1);
    p.wanted.notify_one();
    return 1;
  });
}

int32_t ls_sweeping_set(int32_t on) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    int32_t before = ls::sweeping;
    if (on >= 0) ls::sweeping = on != 0;
    return before;
  });
}

void ls_pressure_waited(int64_t ns, int32_t timed_out) noexcept {
  ls::run_quiet([&] { Pressure::get().count_wait(ns, timed_out != 0); });
}

void ls_pressure_stats(ls_pressure_counts *out) noexcept {
  ls::run_quiet([&] {
    auto &p = Pressure::get();
    *out = {p.waits.load(), p.wait_ns.load(), p.timeouts.load(), p.retries.load(), p.ooms.load(), {}};
    for (int i = 0; i < LS_WAIT_BUCKETS; i++) out->histogram[i] = p.histogram[i].load();
  });
}

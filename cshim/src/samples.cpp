// Samples of allocations: which call made the memory that is live. About one block every rate bytes is sampled,
// as in Go's heap profile. The thread that allocates it is marked, and the caller then names the call. With a
// rate of 1 every block is sampled, and a history of events can be recorded.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "anomaly.h"
#include "memory.h"
#include "trace.h"

namespace ls {

std::atomic<int64_t> sample_rate{0}, samples_on_devices{0};

namespace {

constexpr uint64_t kNoEvent = UINT64_MAX;
// The most blocks of a thread that wait for a name; beyond it the older half stays without one.
constexpr size_t kMostUnnamed = size_t{1} << 16;

struct Sample {
  uint64_t number;  // tells the users of an address apart
  int64_t n, asked;
  double weight;
  uint64_t event;  // its number in the history
  uint32_t site;
  int slot;

  double bytes() const { return static_cast<double>(n) * weight; }
};

// A sampled block whose call has no name yet. It may be freed already; it still counts as allocated.
struct Unnamed {
  void *p;
  Sample sample;
};

// The last events of a device.
struct History {
  std::deque<ls_event> events;
  uint64_t first = 0;  // the number of events.front()
};

struct Site {
  double live_bytes = 0, live_count = 0, total_bytes = 0, total_count = 0;
};

// Leaked on purpose: blocks are freed until the process ends.
struct Samples {
  std::mutex mutex;
  std::unordered_map<void *, Sample> blocks;
  std::unordered_map<uint64_t, Site> sites;  // by device slot and site
  History histories[kMaxSlots];
  uint64_t max = 0;  // events of each history
  uint64_t number = 0;
  std::vector<Unnamed> strays;  // sampled by libtorch's threads, for the next backward pass that ends

  static Samples &get() {
    static auto *s = new Samples;
    return *s;
  }
  Site &site(int slot, uint32_t site) { return sites[static_cast<uint64_t>(slot) << 32 | site]; }
  uint64_t note(int slot, int32_t kind, uint64_t address, int64_t n, int64_t asked, uint32_t site,
                uint64_t stream);
  void name(Unnamed &u, uint32_t site);
};

std::atomic<bool> history_on{false};
std::atomic<uint64_t> seen{0};
std::atomic<bool> any_strays{false};
std::atomic<uint32_t> threads{0};
thread_local uint32_t thread_number = 0;
// The blocks that this thread has sampled and that have no name yet. A plain pointer, which can be read while the
// thread's destructors run: what they sample after UnnamedOfThread's destructor is leaked.
thread_local std::vector<Unnamed> *unnamed = nullptr;
struct UnnamedOfThread {
  ~UnnamedOfThread() { delete std::exchange(unnamed, nullptr); }
};
thread_local uint64_t random_state = 0;
thread_local bool engines = false;  // this thread is one of libtorch's for backward passes

// The caller holds the mutex.
uint64_t Samples::note(int slot, int32_t kind, uint64_t address, int64_t n, int64_t asked, uint32_t site,
                       uint64_t stream) {
  if (max == 0) return kNoEvent;
  if (thread_number == 0) thread_number = threads.fetch_add(1) + 1;
  auto now = std::chrono::system_clock::now().time_since_epoch();
  auto &h = histories[slot];
  h.events.push_back({std::chrono::nanoseconds(now).count(), address, n, asked, stream, site, word_of(slot), kind,
                      thread_number});
  while (h.events.size() > max) {
    h.events.pop_front();
    h.first++;
  }
  return h.first + h.events.size() - 1;
}

// The caller holds the mutex.
void Samples::name(Unnamed &u, uint32_t name) {
  auto &entry = site(u.sample.slot, name);
  entry.total_bytes += u.sample.bytes();
  entry.total_count += u.sample.weight;
  uint64_t event = u.sample.event;
  auto &h = histories[u.sample.slot];
  if (event != kNoEvent && event >= h.first && event - h.first < h.events.size())
    h.events[event - h.first].site = name;
  auto it = blocks.find(u.p);
  if (it == blocks.end() || it->second.number != u.sample.number) return;  // freed, and perhaps allocated again
  it->second.site = name;
  entry.live_bytes += u.sample.bytes();
  entry.live_count += u.sample.weight;
}

std::vector<Unnamed> &list_of_thread() {
  if (unnamed == nullptr) {
    char name[16] = "";
    pthread_getname_np(pthread_self(), name, sizeof name);
    engines = std::strncmp(name, "pt_autograd", 11) == 0;
    static thread_local UnnamedOfThread end;
    (void)&end;
    unnamed = new std::vector<Unnamed>;
  }
  return *unnamed;
}

void bound(std::vector<Unnamed> &list) {
  if (list.size() >= kMostUnnamed)
    list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2));
}

}  // namespace

void make_samples() { Samples::get(); }

int64_t next_sample() noexcept {
  int64_t rate = sample_rate.load(std::memory_order_relaxed);
  if (rate == 0) return int64_t{1} << 30;  // read again after a gigabyte
  if (rate == 1) return 0;
  if (random_state == 0) random_state = reinterpret_cast<uint64_t>(&random_state) | 1;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  double u = static_cast<double>(random_state >> 11) / static_cast<double>(uint64_t{1} << 53);
  return static_cast<int64_t>(std::min(-std::log(1 - u) * static_cast<double>(rate), 0x1p62));
}

void sample_allocated(void *p, int64_t n, int64_t asked, int slot, uint64_t stream) noexcept {
  int64_t rate = sample_rate.load(std::memory_order_relaxed);
  double weight = rate <= 1 ? 1 : 1 / -std::expm1(-static_cast<double>(n) / static_cast<double>(rate));
  auto &s = Samples::get();
  try {
    auto &mine = list_of_thread();
    std::lock_guard<std::mutex> lock(s.mutex);
    uint64_t event = s.note(slot, LS_EVENT_ALLOCATED, reinterpret_cast<uint64_t>(p), n, asked, LS_NO_SITE, stream);
    Sample sample{++s.number, n, asked, weight, event, LS_NO_SITE, slot};
    s.blocks[p] = sample;
    if (slot != kCpuSlot) samples_on_devices.fetch_add(1, std::memory_order_relaxed);
    auto &list = engines ? s.strays : mine;
    bound(list);
    list.push_back({p, sample});
    if (engines) {
      any_strays.store(true, std::memory_order_relaxed);
    } else {
      words.scope |= kSampled;
    }
    seen.fetch_add(1, std::memory_order_relaxed);
  } catch (...) {
    // If there is no memory for it, the block is not in the profile.
  }
}

void sample_freed(void *p, int64_t n, int slot, uint64_t stream) noexcept {
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto note = [&](uint32_t site) {
    s.note(slot, LS_EVENT_FREED, reinterpret_cast<uint64_t>(p), n, 0, site, stream);
  };
  auto it = s.blocks.find(p);
  try {
    if (it == s.blocks.end()) {  // a device's block from before the history
      if (history_on.load(std::memory_order_relaxed)) note(LS_NO_SITE);
      return;
    }
    auto &b = it->second;
    if (b.site != LS_NO_SITE) {
      auto &site = s.site(slot, b.site);
      site.live_bytes -= b.bytes();
      site.live_count -= b.weight;
    }
    note(b.site);
  } catch (...) {
  }
  if (it == s.blocks.end()) return;
  s.blocks.erase(it);
  if (slot != kCpuSlot) samples_on_devices.fetch_sub(1, std::memory_order_relaxed);
}

void note_on_device(int slot, int32_t kind, uint64_t address, int64_t n, void *stream) noexcept {
  if (!history_on.load(std::memory_order_relaxed) || slot < 0) return;
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  try {
    s.note(slot, kind, address, n, 0, LS_NO_SITE, reinterpret_cast<uint64_t>(stream));
  } catch (...) {
    // If there is no memory for it, the event is not in the history.
  }
}

void adopt_samples() noexcept {
  if (!any_strays.load(std::memory_order_relaxed)) return;
  auto &s = Samples::get();
  try {
    auto &mine = list_of_thread();
    std::lock_guard<std::mutex> lock(s.mutex);
    mine.insert(mine.end(), s.strays.begin(), s.strays.end());
    s.strays.clear();
    any_strays.store(false, std::memory_order_relaxed);
    mark_unnamed();
  } catch (...) {
  }
}

void mark_unnamed() noexcept {
  words.scope |= kSampled;
  seen.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace ls

using ls::Samples;

void ls_samples_set_rate(int64_t bytes) noexcept {
  ls::run_quiet([&] {
    ls::sample_rate.store(bytes < 0 ? 0 : bytes);
    ls::all_threads_catch_up();
  });
}

uint64_t *ls_samples_seen(void) noexcept {
  return ls::run_quiet([&]() -> uint64_t * { return reinterpret_cast<uint64_t *>(&ls::seen); });
}

void ls_samples_attach(uint32_t name, ls_tensor result) noexcept {
  ls::run_quiet([&] {
    ls::words.scope &= ~ls::kSampled;
    ls::name_events(name);
    ls::name_nodes(name);
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    if (ls::unnamed != nullptr) {
      for (auto &u : *ls::unnamed) {
        auto it = s.blocks.find(u.p);
        // The thread's caller may have named it from another thread.
        if (it != s.blocks.end() && it->second.number == u.sample.number && it->second.site != LS_NO_SITE)
          continue;
        try {
          s.name(u, name);
        } catch (...) {
        }
      }
      ls::unnamed->clear();
    }
    if (result == 0) return;
    ls::Borrowed b(result, ls::Borrowed::Metadata{});
    if (!b->has_storage()) return;
    auto it = s.blocks.find(b->storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context());
    if (it == s.blocks.end() || it->second.site != LS_NO_SITE) return;
    ls::Unnamed u{it->first, it->second};
    s.name(u, name);
  });
}

uint64_t ls_samples_sites(ls_site *out, uint64_t cap) noexcept {
  return ls::run_quiet([&]() -> uint64_t {
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    uint64_t i = 0;
    auto put = [&](int slot, uint32_t name, const ls::Site &site) {
      if (i < cap) {
        out[i] = {name,
                  ls::word_of(slot),
                  std::llround(site.live_bytes),
                  std::llround(site.live_count),
                  std::llround(site.total_bytes),
                  std::llround(site.total_count)};
      }
      i++;
    };
    for (auto &[key, site] : s.sites) put(static_cast<int>(key >> 32), static_cast<uint32_t>(key), site);
    try {
      std::unordered_map<int, ls::Site> rest;
      for (auto &[p, b] : s.blocks) {
        if (b.site != LS_NO_SITE) continue;
        auto &site = rest[b.slot];
        site.live_bytes += b.bytes();
        site.live_count += b.weight;
        site.total_bytes += b.bytes();
        site.total_count += b.weight;
      }
      for (auto &[slot, site] : rest) put(slot, LS_NO_SITE, site);
    } catch (...) {
    }
    return i;
  });
}

ls_error *ls_history_set(uint64_t max) noexcept {
  return ls::run_void([&] {
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.max = max;
    ls::history_on.store(max != 0, std::memory_order_relaxed);
    for (auto &h : s.histories) {
      if (max != 0) continue;
      h.first += h.events.size();
      h.events.clear();
    }
  });
}

uint64_t ls_history_events(ls_event *out, uint64_t cap) noexcept {
  return ls::run_quiet([&]() -> uint64_t {
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    uint64_t i = 0;
    for (auto &h : s.histories) {
      for (auto &e : h.events) {
        if (i < cap) out[i] = e;
        i++;
      }
    }
    return i;
  });
}

ls_error *ls_history_out_of_memory(int32_t device, int64_t bytes, int64_t free, uint32_t site) noexcept {
  return ls::run_void([&] {
    int slot = ls::slot_of_word(device);
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.note(slot, LS_EVENT_OUT_OF_MEMORY, static_cast<uint64_t>(free), bytes, bytes, site, 0);
  });
}

uint64_t ls_history_live(ls_event *out, uint64_t cap) noexcept {
  return ls::run_quiet([&]() -> uint64_t {
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    uint64_t i = 0;
    for (auto &[p, b] : s.blocks) {
      if (i < cap) out[i] = {0, reinterpret_cast<uint64_t>(p), b.n, b.asked, 0, b.site, ls::word_of(b.slot), 0, 0};
      i++;
    }
    return s.blocks.size();
  });
}

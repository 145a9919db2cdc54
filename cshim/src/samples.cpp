// Which call made the memory that is live. About every rate bytes of allocation one block is sampled, as Go's heap
// profile does it; the thread that made it is marked, and the caller names the call at its next chance. A block
// freed before that is only counted. With the rate at 1 every block is sampled, and a history of events can be
// kept.
#include <chrono>
#include <cmath>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "memory.h"

namespace ls {

std::atomic<int64_t> sample_rate{0};

namespace {

constexpr uint32_t kNoSite = UINT32_MAX;

struct Sample {
  int64_t n;
  double weight;
  uint64_t event;  // its number in the history
  uint32_t site;
  int slot;
};

struct Site {
  double live_bytes = 0, live_count = 0, total_bytes = 0, total_count = 0;
};

// Leaked on purpose: blocks are freed until the process ends.
struct Samples {
  std::mutex mutex;
  std::unordered_map<void *, Sample> blocks;
  std::unordered_map<uint64_t, Site> sites;  // by device slot and site
  std::deque<ls_event> history;
  uint64_t first = 0;  // the number of history.front()
  uint64_t max = 0;

  static Samples &get() {
    static auto *s = new Samples;
    return *s;
  }
  Site &site(int slot, uint32_t site) { return sites[static_cast<uint64_t>(slot) << 32 | site]; }
  uint64_t note(void *p, int64_t n, int slot, uint32_t site, int32_t kind);
};

std::atomic<uint32_t> threads{0};
thread_local uint32_t thread_number = 0;
// The blocks that this thread has sampled and nobody has named a site for. Leaked with the thread's pointer: a
// destructor of its own would run before the last frees.
thread_local std::vector<void *> *unnamed = nullptr;
thread_local uint64_t random_state = 0;

uint64_t Samples::note(void *p, int64_t n, int slot, uint32_t site, int32_t kind) {
  if (max == 0) return UINT64_MAX;
  if (thread_number == 0) thread_number = threads.fetch_add(1) + 1;
  auto now = std::chrono::system_clock::now().time_since_epoch();
  history.push_back({std::chrono::nanoseconds(now).count(), reinterpret_cast<uint64_t>(p), n, site, word_of(slot),
                     kind, thread_number});
  while (history.size() > max) {
    history.pop_front();
    first++;
  }
  return first + history.size() - 1;
}

}  // namespace

int64_t next_sample() noexcept {
  int64_t rate = sample_rate.load(std::memory_order_relaxed);
  if (rate == 0) return int64_t{1} << 30;  // asked again after a gigabyte
  if (rate == 1) return 0;
  if (random_state == 0) random_state = reinterpret_cast<uint64_t>(&random_state) | 1;
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  double u = static_cast<double>(random_state >> 11) / static_cast<double>(uint64_t{1} << 53);
  return static_cast<int64_t>(-std::log(1 - u) * static_cast<double>(rate));
}

void sample_allocated(void *p, int64_t n, int slot) noexcept {
  int64_t rate = sample_rate.load(std::memory_order_relaxed);
  double weight = rate <= 1 ? 1 : 1 / -std::expm1(-static_cast<double>(n) / static_cast<double>(rate));
  auto &s = Samples::get();
  try {
    if (unnamed == nullptr) unnamed = new std::vector<void *>;
    unnamed->push_back(p);
    std::lock_guard<std::mutex> lock(s.mutex);
    s.blocks[p] = {n, weight, s.note(p, n, slot, kNoSite, 0), kNoSite, slot};
    words.scope |= kSampled;
  } catch (...) {
    // Without memory for it the block is not in the profile.
  }
}

void sample_freed(void *p, int64_t n, int slot) noexcept {
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto it = s.blocks.find(p);
  if (it == s.blocks.end()) return;
  auto &b = it->second;
  try {
    if (b.site != kNoSite) {
      auto &site = s.site(slot, b.site);
      site.live_bytes -= static_cast<double>(b.n) * b.weight;
      site.live_count -= b.weight;
    }
    s.note(p, n, slot, b.site, 1);
  } catch (...) {
  }
  s.blocks.erase(it);
}

}  // namespace ls

using ls::Samples;

void ls_samples_set_rate(int64_t bytes) noexcept {
  ls::sample_rate.store(bytes < 0 ? 0 : bytes);
  ls::all_threads_catch_up();
}

void ls_samples_attach(uint32_t name) noexcept {
  ls::words.scope &= ~ls::kSampled;
  if (ls::unnamed == nullptr || ls::unnamed->empty()) return;
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  for (void *p : *ls::unnamed) {
    auto it = s.blocks.find(p);
    if (it == s.blocks.end() || it->second.site != ls::kNoSite) continue;  // freed; perhaps given out again
    auto &b = it->second;
    try {
      auto &site = s.site(b.slot, name);
      auto bytes = static_cast<double>(b.n) * b.weight;
      site.live_bytes += bytes;
      site.live_count += b.weight;
      site.total_bytes += bytes;
      site.total_count += b.weight;
      b.site = name;
      if (b.event >= s.first && b.event - s.first < s.history.size()) s.history[b.event - s.first].site = name;
    } catch (...) {
    }
  }
  ls::unnamed->clear();
}

uint64_t ls_samples_sites(ls_site *out, uint64_t cap) noexcept {
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  uint64_t i = 0;
  for (auto &[key, site] : s.sites) {
    if (i < cap) {
      out[i] = {static_cast<uint32_t>(key),     ls::word_of(static_cast<int>(key >> 32)),
                std::llround(site.live_bytes),  std::llround(site.live_count),
                std::llround(site.total_bytes), std::llround(site.total_count)};
    }
    i++;
  }
  return s.sites.size();
}

ls_error *ls_history_set(uint64_t max) noexcept {
  return ls::run_void([&] {
    auto &s = Samples::get();
    std::lock_guard<std::mutex> lock(s.mutex);
    s.max = max;
    if (max == 0) s.history.clear();
  });
}

uint64_t ls_history_events(ls_event *out, uint64_t cap) noexcept {
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  for (uint64_t i = 0; i < s.history.size() && i < cap; i++) out[i] = s.history[i];
  return s.history.size();
}

uint64_t ls_history_live(ls_event *out, uint64_t cap) noexcept {
  auto &s = Samples::get();
  std::lock_guard<std::mutex> lock(s.mutex);
  uint64_t i = 0;
  for (auto &[p, b] : s.blocks) {
    if (i < cap) out[i] = {0, reinterpret_cast<uint64_t>(p), b.n, b.site, ls::word_of(b.slot), 0, 0};
    i++;
  }
  return s.blocks.size();
}

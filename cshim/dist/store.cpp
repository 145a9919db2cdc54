// The stores of linstock/dist.h.
#include "dist.h"

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace ls {

using std::chrono::milliseconds;

void wait_for(c10d::Store &store, const std::vector<std::string> &keys, milliseconds timeout,
              const int32_t *cancel) {
  // The store's own wait cannot be cancelled. That of a TCP store blocks all other calls, and prints a warning
  // when it expires.
  using clock = std::chrono::steady_clock;
  auto end = clock::now() + timeout;
  for (auto pause = milliseconds(1); !store.check(keys); pause = std::min(2 * pause, milliseconds(50))) {
    auto left = std::chrono::ceil<milliseconds>(end - clock::now());
    if (left.count() <= 0 || (cancel != nullptr && __atomic_load_n(cancel, __ATOMIC_RELAXED) != 0))
      C10_THROW_ERROR(DistStoreError, "timed out waiting for the key " + keys[0]);
    std::this_thread::sleep_for(std::min(pause, left));
  }
}

c10d::Store &store_of(ls_store s) {
  if (s == 0) throw ArgumentError("no store");
  return *reinterpret_cast<c10d::Store *>(s);
}

namespace {

ls_store give_store(c10::intrusive_ptr<c10d::Store> s) { return reinterpret_cast<ls_store>(s.release()); }

std::vector<uint8_t> bytes(const void *data, uint64_t n) {
  auto *p = static_cast<const uint8_t *>(data);
  return {p, p + n};
}

void put(ls_results &r, const std::vector<uint8_t> &v, ls_value *out, uint64_t out_slots) {
  put_string(r, std::string(v.begin(), v.end()), out, out_slots);
}

}  // namespace
}  // namespace ls

ls_error *ls_store_tcp(const ls_tcp_store *options, ls_store *store, int32_t *port) noexcept {
  return ls::run_void([&] {
    c10d::TCPStoreOptions o;
    if (options->port < 0 || options->port > UINT16_MAX)
      throw ls::ArgumentError("port " + std::to_string(options->port) + " is not in [0, 65535]");
    o.port = static_cast<uint16_t>(options->port);
    o.isServer = options->server != 0;
    o.multiTenant = options->shared != 0;
    o.waitWorkers = !o.isServer && options->workers > 0;
    if (o.waitWorkers) o.numWorkers = options->workers;
    o.timeout = ls::time_of(options->milliseconds);
    ls::WithoutSigpipe threads;
    auto made = c10::make_intrusive<c10d::TCPStore>(options->host == nullptr ? "" : options->host, o);
    *port = made->getPort();
    *store = ls::give_store(std::move(made));
  });
}

ls_error *ls_store_file(const char *path, int32_t processes, ls_store *store) noexcept {
  return ls::run_void([&] { *store = ls::give_store(c10::make_intrusive<c10d::FileStore>(path, processes)); });
}

ls_error *ls_store_hash(ls_store *store) noexcept {
  return ls::run_void([&] { *store = ls::give_store(c10::make_intrusive<c10d::HashStore>()); });
}

ls_error *ls_store_prefix(ls_store base, const char *prefix, ls_store *store) noexcept {
  return ls::run_void([&] {
    auto b = c10::intrusive_ptr<c10d::Store>::reclaim_copy(&ls::store_of(base));
    *store = ls::give_store(c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(b)));
  });
}

void ls_store_free(ls_store store) noexcept {
  ls::run_quiet([&] {
    if (store != 0) c10::intrusive_ptr<c10d::Store>::reclaim(&ls::store_of(store));
  });
}

ls_error *ls_store_set(ls_store store, const char *key, const void *data, uint64_t n) noexcept {
  return ls::run_void([&] { ls::store_of(store).set(key, ls::bytes(data, n)); });
}

ls_results ls_store_get(ls_store store, const char *key, int64_t milliseconds, const int32_t *cancel,
                        ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    auto &s = ls::store_of(store);
    ls::wait_for(s, {key}, ls::time_of(milliseconds), cancel);
    ls::put(r, s.get(key), out, out_slots);
  });
}

ls_error *ls_store_wait(ls_store store, const char *key, int64_t milliseconds, const int32_t *cancel) noexcept {
  return ls::run_void([&] { ls::wait_for(ls::store_of(store), {key}, ls::time_of(milliseconds), cancel); });
}

ls_error *ls_store_check(ls_store store, const char *key, int32_t *there) noexcept {
  return ls::run_void([&] { *there = ls::store_of(store).check({key}); });
}

ls_error *ls_store_add(ls_store store, const char *key, int64_t n, int64_t *sum) noexcept {
  return ls::run_void([&] { *sum = ls::store_of(store).add(key, n); });
}

ls_results ls_store_compare_set(ls_store store, const char *key, const void *expected, uint64_t expected_n,
                                const void *desired, uint64_t desired_n, ls_value *out,
                                uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    auto now = ls::store_of(store).compareSet(key, ls::bytes(expected, expected_n), ls::bytes(desired, desired_n));
    ls::put(r, now, out, out_slots);
  });
}

ls_error *ls_store_delete(ls_store store, const char *key, int32_t *deleted) noexcept {
  return ls::run_void([&] { *deleted = ls::store_of(store).deleteKey(key); });
}

ls_error *ls_store_num_keys(ls_store store, int64_t *keys) noexcept {
  return ls::run_void([&] { *keys = ls::store_of(store).getNumKeys(); });
}

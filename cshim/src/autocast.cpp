// Autocast regions and the cache of casts.
#include "autocast.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "hooks.h"
#include "shim.h"
#include "stream.h"

namespace ls {
namespace {

// The regions of the process that use the cache for a device type: all cast to one dtype.
struct Claims {
  int regions = 0;
  int32_t dtype = 0;
};
std::mutex claims_mutex;
std::array<Claims, c10::COMPILE_TIME_MAX_DEVICE_TYPES> claims;

thread_local bool may_cache = false;  // the regions in force use the cache
thread_local int claimed_regions = 0;
// Of a device type: the innermost region is on and has a claim.
thread_local std::array<bool, c10::COMPILE_TIME_MAX_DEVICE_TYPES> claimed_type{};

bool claim(const ls_mode &m) {
  if (any_lost()) return false;       // a cast on a lost device must not be freed, so the cache cannot be cleared
  if (captures() != 0) return false;  // this thread may be the one that captures, or the engine's thread for it
  std::lock_guard<std::mutex> lock(claims_mutex);
  Claims &c = claims[static_cast<size_t>(m.device)];
  if (c.regions != 0 && c.dtype != m.dtype) return false;
  c.regions++;
  c.dtype = m.dtype;
  return true;
}

void unclaim(int32_t device_type) noexcept {
  std::lock_guard<std::mutex> lock(claims_mutex);
  claims[static_cast<size_t>(device_type)].regions--;
}

void clear() noexcept {
  if (!any_lost()) at::autocast::clear_cache();
}

// Whether all regions in force on the calling thread have claims: libtorch's cache is on or off for all of them.
bool all_claimed() {
  return std::ranges::all_of(at::autocast::_AUTOCAST_SUPPORTED_DEVICES, [](c10::DeviceType type) {
    return !at::autocast::is_autocast_enabled(type) || claimed_type[static_cast<size_t>(type)];
  });
}

void set(const ls_mode &m) {
  auto type = static_cast<c10::DeviceType>(m.device);
  at::autocast::set_autocast_dtype(type, static_cast<c10::ScalarType>(m.dtype));
  at::autocast::set_autocast_enabled(type, m.on != 0);
}

}  // namespace

void grad_mode_changed() noexcept {
  at::autocast::set_autocast_cache_enabled(may_cache && c10::GradMode::is_enabled() &&
                                           !c10::InferenceMode::is_enabled());
}

ls_mode autocast_in_force(int32_t device_type) {
  auto type = static_cast<c10::DeviceType>(device_type);
  if (device_type < 0 || device_type >= c10::COMPILE_TIME_MAX_DEVICE_TYPES ||
      !at::autocast::is_autocast_available(type))
    throw ArgumentError("autocast: there is none for device type " + std::to_string(device_type));
  return {LS_MODE_AUTOCAST, at::autocast::is_autocast_enabled(type), device_type,
          static_cast<int32_t>(at::autocast::get_autocast_dtype(type)), 0};
}

AutocastRegion::AutocastRegion(ls_mode mode)
    : before_(autocast_in_force(mode.device)),
      claimed_before_(claimed_type[static_cast<size_t>(mode.device)]),
      may_cache_before_(may_cache) {
  auto dtype = static_cast<c10::ScalarType>(mode.dtype);
  if (mode.on == 0)
    mode.dtype = before_.dtype;
  else if (dtype != c10::kHalf && dtype != c10::kBFloat16)
    throw ArgumentError("autocast: the dtype must be float16 or bfloat16");
  set(mode);
  if (mode.on != 0) {
    claimed_ = c10::GradMode::is_enabled() && !c10::InferenceMode::is_enabled() && claim(mode);
    claimed_type[static_cast<size_t>(mode.device)] = claimed_;
    may_cache = all_claimed();
    if (claimed_ && claimed_regions++ == 0) clear();
  }
  grad_mode_changed();
}

AutocastRegion::~AutocastRegion() {
  if (claimed_) {
    if (--claimed_regions == 0) clear();
    unclaim(before_.device);
  }
  set(before_);
  claimed_type[static_cast<size_t>(before_.device)] = claimed_before_;
  may_cache = may_cache_before_;
  grad_mode_changed();
}

AutocastState AutocastState::now() {
  AutocastState s;
  for (auto type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES)
    if (at::autocast::is_autocast_enabled(type)) s.on_.push_back(autocast_in_force(static_cast<int32_t>(type)));
  return s;
}

AutocastGuard::AutocastGuard(const AutocastState &state) {
  std::vector<ls_mode> off = AutocastState::now().on_;
  regions_.reserve(off.size() + state.on_.size());
  for (auto m : off) {
    m.on = 0;
    regions_.push_back(std::make_unique<AutocastRegion>(m));
  }
  for (const auto &m : state.on_) regions_.push_back(std::make_unique<AutocastRegion>(m));
}

AutocastGuard::~AutocastGuard() {
  while (!regions_.empty()) regions_.pop_back();  // the innermost first
}

CastCachePause::CastCachePause() : may_cache_before_(std::exchange(may_cache, false)) {
  if (may_cache_before_) grad_mode_changed();
}

CastCachePause::~CastCachePause() {
  may_cache = may_cache_before_;
  if (may_cache) grad_mode_changed();
}

}  // namespace ls

void ls_casts_clear(int32_t everywhere) noexcept {
  ls::run_quiet([&] {
    if (everywhere != 0 || ls::claimed_regions != 0 || ls::current_pass() != nullptr) ls::clear();
  });
}

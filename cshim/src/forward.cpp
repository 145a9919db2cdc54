#include "forward.h"

#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/function.h>

#include <atomic>
#include <thread>

#include "shim.h"

using torch::autograd::ForwardADLevel;

namespace ls {
namespace {

std::atomic<bool> is_open{false}, ever_open{false};
thread_local bool adopted = false;
thread_local bool in_level = false;

void set_tangents(bool on) { c10::AutogradState::get_tls_state().set_fw_grad_mode(on); }

}  // namespace

ForwardLevel::ForwardLevel() {
  if (is_open.exchange(true)) throw ArgumentError("a level of forward-mode differentiation is open already");
  try {
    if (!ever_open.exchange(true)) threads_epoch.fetch_add(1, std::memory_order_release);
    adopt_settings();
    level_ = ForwardADLevel::get_by_idx(ForwardADLevel::get_next_idx());
  } catch (...) {
    is_open.store(false);
    throw;
  }
  in_level = true;
  set_tangents(!c10::InferenceMode::is_enabled());
}

ForwardLevel::~ForwardLevel() {
  in_level = false;
  set_tangents(false);
  try {
    ForwardADLevel::release_idx(0);
    // A thread that frees a tensor with a tangent holds the level for a moment. As its last holder it would drop
    // the tangents, perhaps after the next level has begun.
    while (level_.use_count() > 1) std::this_thread::yield();
  } catch (...) {
  }
  level_.reset();
  is_open.store(false);
}

bool forward_in_force() {
  adopt_settings();
  return is_open.load() && c10::AutogradState::get_tls_state().get_fw_grad_mode();
}

bool adopt_forward_mode() noexcept {
  if (adopted || !ever_open.load()) return true;
  // A backward pass has its state from where it began, and restores the thread's when it ends.
  if (torch::autograd::get_current_node()) return false;
  adopted = true;
  set_tangents(false);
  return true;
}

void inference_mode_changed() noexcept {
  if (adopted && !c10::InferenceMode::is_enabled()) set_tangents(in_level);
}

}  // namespace ls

// Levels of forward-mode differentiation (docs/decisions/0037-forward-mode.md).
//
// libtorch has one level, for the process, and every operator on a tensor with a tangent reads and makes tangents.
// At the end of the level libtorch drops the tangents while operators of other threads may be reading them. So
// from the first level on, tangents exist only for the thread of the level and for the threads of the engine that
// work for it.
#pragma once

#include <memory>

namespace torch::autograd {
struct ForwardADLevel;
}

namespace ls {

// LS_MODE_FORWARD on the calling thread. Throws if the level is open already.
class ForwardLevel {
 public:
  ForwardLevel();
  ~ForwardLevel();
  ForwardLevel(const ForwardLevel &) = delete;
  ForwardLevel &operator=(const ForwardLevel &) = delete;

 private:
  std::shared_ptr<torch::autograd::ForwardADLevel> level_;
};

// Whether the calling thread computes tangents.
bool forward_in_force();

// Turns tangents off on the calling thread if a level has ever been opened. Returns false if that is not possible
// now.
bool adopt_forward_mode() noexcept;

// Called after inference mode was turned on or off on the calling thread, which turns tangents on where it is off.
void inference_mode_changed() noexcept;

}  // namespace ls

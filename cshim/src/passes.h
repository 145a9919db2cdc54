// The backward passes in flight.
#pragma once

#include <functional>

namespace ls {

// A backward pass that the calling thread runs, for as long as it exists.
class Pass {
 public:
  Pass();
  ~Pass();
  Pass(const Pass &) = delete;
  Pass &operator=(const Pass &) = delete;
};

// Calls f when no backward pass is in flight: at once, or at the end of the last one. No pass starts during the
// call; f must not throw. For what hooks of libtorch's C++ code use without a reference.
void after_passes(std::function<void()> f);

}  // namespace ls

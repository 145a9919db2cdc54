// Hooks of several tensors.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <optional>

namespace ls {

// What the hooks of several tensors have received in the calling thread's backward pass, for as long as it runs.
class HooksOfPass {
 public:
  HooksOfPass();

 private:
  std::optional<c10::DebugInfoGuard> guard_;
};

}  // namespace ls

// Kinds of libtorch's thread-local debug info that are this library's. A backward pass takes this state to the
// engine's threads.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <string_view>
#include <type_traits>

namespace ls {

// The kind of a name. Before libtorch 2.15 kinds are numbers, of which libtorch's own are small.
template <const std::string_view &name, int number, class Kind = c10::DebugInfoKind>
Kind debug_info_kind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(number);
  } else {
    return Kind(&name);
  }
}

}  // namespace ls

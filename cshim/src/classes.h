// Size classes: eight for each power of two.
#pragma once

#include <cstddef>

namespace ls {

inline size_t log2_of(size_t n) noexcept { return 63 - static_cast<size_t>(__builtin_clzll(n)); }

// Returns the distance between n's class and the next; n is at least 8.
inline size_t step_of(size_t n) noexcept { return size_t{1} << (log2_of(n) - 3); }

// Returns the number of n's class; that of 2^k is 8 k.
inline size_t class_of(size_t n) noexcept { return 8 * log2_of(n) + n / step_of(n) - 8; }

}  // namespace ls

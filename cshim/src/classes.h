// Size classes: each power of two is cut in eight.
#pragma once

#include <cstddef>

namespace ls {

inline size_t log2_of(size_t n) noexcept { return 63 - static_cast<size_t>(__builtin_clzll(n)); }

// The distance of n's class to the next one; n is at least 8.
inline size_t step_of(size_t n) noexcept { return size_t{1} << (log2_of(n) - 3); }

// The number of n's class, with the class of 2^k at 8 k.
inline size_t class_of(size_t n) noexcept { return 8 * log2_of(n) + n / step_of(n) - 8; }

}  // namespace ls

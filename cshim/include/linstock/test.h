/* For tests: faults, which make the shim fail where it could, and guard pages around tensors. */
#ifndef LINSTOCK_LINSTOCK_TEST_H_
#define LINSTOCK_LINSTOCK_TEST_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- faults: for tests, which make the shim fail where it could ---- */
enum ls_fault_point {
  LS_FAULT_CPU = 0,    /* memory for a CPU tensor, from the cache or the system */
  LS_FAULT_SYSTEM = 1, /* memory from the system, which is tried again after the caches are emptied */
  LS_FAULT_SHIM = 2,   /* memory for the shim itself, by malloc or new */
  LS_FAULT_ENTRY = 3,  /* the entry of a function throws */
  LS_FAULT_POINTS = 4
};
enum ls_throw {
  LS_THROW_ERROR = 0,         /* c10::Error */
  LS_THROW_OUT_OF_MEMORY = 1, /* c10::OutOfMemoryError */
  LS_THROW_BAD_ALLOC = 2,
  LS_THROW_STD = 3,      /* std::runtime_error */
  LS_THROW_NOT_STD = 4,  /* an int */
  LS_THROW_LONG = 5,     /* std::runtime_error with a text of a MiB that is not UTF-8 */
  LS_THROW_NAMELESS = 6, /* a std::exception whose what() is NULL */
  LS_THROWS = 7
};
/* Lets the first `skip` events of a point succeed and makes the next `times` events fail (-1: all; 0: disarms it).
 * With mine only events of the calling thread count. kind: what an entry throws. */
LS_API ls_error *ls_fault_set(int32_t point, int64_t skip, int64_t times, int32_t kind, int32_t mine) LS_NOEXCEPT;
/* Returns the number of events since the point was armed, and of those that failed. */
LS_API void ls_fault_counts(int32_t point, int64_t *seen, int64_t *failed) LS_NOEXCEPT;

/* ---- guard pages: for tests of what libtorch reads and writes ---- */
enum ls_guard {
  LS_GUARD_OFF = 0,
  LS_GUARD_END = 1,  /* memory ends beside its guard page, or less than 16 bytes before it */
  LS_GUARD_START = 2 /* memory begins beside its guard page */
};
/* Places the memory of each CPU tensor that is made from now on beside a page that cannot be accessed, so that an
 * access beyond the tensor raises SIGSEGV; so does one to a freed tensor. Beside 20,000 tensors with guard pages,
 * and where the system has no more mappings, a tensor has none. */
LS_API ls_error *ls_guard_pages_set(int32_t side) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_TEST_H_ */

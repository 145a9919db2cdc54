/* Faults for tests, which make the shim fail where it could. */
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

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_TEST_H_ */

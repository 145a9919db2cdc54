/* Faults for tests, which make the shim fail where it could. */
#ifndef LINSTOCK_LINSTOCK_TEST_H_
#define LINSTOCK_LINSTOCK_TEST_H_

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- faults: for tests, which make the shim fail where it could ---- */
enum ls_fault_point {
  LS_FAULT_CPU = 0,    /* memory for a CPU tensor: no room, whatever is tried */
  LS_FAULT_SYSTEM = 1, /* the same where the system is asked: what is kept is given back, and it is asked again */
  LS_FAULT_SHIM = 2,   /* an allocation of the shim's own, by malloc or new */
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
/* Lets skip events of a point pass and makes the next `times` fail (-1: all from then on; 0: disarms it), those of
 * the calling thread alone where mine is set. kind: what an entry throws. */
LS_API ls_error *ls_fault_set(int32_t point, int64_t skip, int64_t times, int32_t kind, int32_t mine) LS_NOEXCEPT;
/* How many events there were since it was armed, and how many of them failed. */
LS_API void ls_fault_counts(int32_t point, int64_t *seen, int64_t *failed) LS_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* LINSTOCK_LINSTOCK_TEST_H_ */

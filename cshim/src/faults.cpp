#include "faults.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "shim.h"

namespace ls {

std::atomic<uint32_t> faults_armed{0};

namespace {

struct Point {
  std::atomic<int64_t> skip{0}, times{0}, seen{0}, failed{0};
  std::atomic<const void *> thread{nullptr};  // the address of the thread state of the only thread that fails
  std::atomic<int32_t> kind{0};
};
Point points[LS_FAULT_POINTS];

struct Nameless : std::exception {
  const char *what() const noexcept override { return nullptr; }
};

}  // namespace

bool fault_due(int32_t point) noexcept {
  Point &p = points[point];
  const void *only = p.thread.load(std::memory_order_relaxed);
  if (only != nullptr && only != &words) return false;
  int64_t n = p.seen.fetch_add(1), skip = p.skip.load(), times = p.times.load();
  if (n < skip || (times >= 0 && n - skip >= times)) return false;
  p.failed.fetch_add(1);
  return true;
}

void fault_entry() {
  if (!fault(LS_FAULT_ENTRY)) return;
  switch (points[LS_FAULT_ENTRY].kind.load()) {
    case LS_THROW_OUT_OF_MEMORY:
      C10_THROW_ERROR(OutOfMemoryError, "a fault was injected: out of memory");
    case LS_THROW_BAD_ALLOC:
      throw std::bad_alloc();
    case LS_THROW_STD:
      throw std::runtime_error("a fault was injected");
    case LS_THROW_NOT_STD:
      throw 42;
    case LS_THROW_LONG:
      throw std::runtime_error(std::string(size_t{1} << 20, '\xff'));
    case LS_THROW_NAMELESS:
      throw Nameless();
    default:
      C10_THROW_ERROR(Error, "a fault was injected");
  }
}

}  // namespace ls

// The shim's own allocations: the linker binds its references to malloc and new to these (CMakeLists.txt).
extern "C" {
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n) { return ls::fault(LS_FAULT_SHIM) ? nullptr : __real_malloc(n); }
void *__real__Znwm(size_t n);
void *__wrap__Znwm(size_t n) {
  if (ls::fault(LS_FAULT_SHIM)) throw std::bad_alloc();
  return __real__Znwm(n);
}
void *__real__ZnwmSt11align_val_tRKSt9nothrow_t(size_t n, std::align_val_t align, const std::nothrow_t &) noexcept;
void *__wrap__ZnwmSt11align_val_tRKSt9nothrow_t(size_t n, std::align_val_t align,
                                                const std::nothrow_t &t) noexcept {
  return ls::fault(LS_FAULT_SHIM) ? nullptr : __real__ZnwmSt11align_val_tRKSt9nothrow_t(n, align, t);
}
}

ls_error *ls_fault_set(int32_t point, int64_t skip, int64_t times, int32_t kind, int32_t mine) noexcept {
  try {
    if (point < 0 || point >= LS_FAULT_POINTS)
      throw ls::ArgumentError("there is no fault point " + std::to_string(point));
  } catch (...) {
    return ls::current_error();
  }
  ls::Point &p = ls::points[point];
  ls::faults_armed.fetch_and(~(1u << point));
  if (point == LS_FAULT_ENTRY) ls::threads_epoch.fetch_and(~ls::kEntriesArmed);
  if (times == 0) return nullptr;
  p.skip.store(skip);
  p.times.store(times);
  p.seen.store(0);
  p.failed.store(0);
  p.kind.store(kind);
  p.thread.store(mine != 0 ? &ls::words : nullptr);
  ls::faults_armed.fetch_or(1u << point);
  if (point == LS_FAULT_ENTRY) ls::threads_epoch.fetch_or(ls::kEntriesArmed);
  return nullptr;
}

void ls_fault_counts(int32_t point, int64_t *seen, int64_t *failed) noexcept {
  bool known = point >= 0 && point < LS_FAULT_POINTS;
  *seen = known ? ls::points[point].seen.load() : 0;
  *failed = known ? ls::points[point].failed.load() : 0;
}

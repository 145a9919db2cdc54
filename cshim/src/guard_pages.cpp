// Guard pages, for tests: an access beyond the memory of a CPU tensor, or to that of a freed one, ends the
// process.
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>

#include "shim.h"

namespace ls {
namespace {

// Gives each tensor mappings of its own between two pages that cannot be accessed. It also holds the block that
// the tensor would have without guard pages, so that bytes are counted, and fail, as they do without.
class GuardedAllocator final : public c10::Allocator {
 public:
  static GuardedAllocator &get() {
    static auto *g = new GuardedAllocator(c10::GetAllocator(c10::DeviceType::CPU));
    return *g;
  }

  c10::DataPtr allocate(size_t n) override {
    c10::DataPtr counted = counted_->allocate(n);
    int32_t side = side_.load();
    if (side == LS_GUARD_OFF || n == 0 || full()) return counted;
    const size_t data = (n + page_ - 1) / page_ * page_, all = data + 2 * page_;
    auto *start =
        static_cast<char *>(mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (start == MAP_FAILED) return counted;
    char *first = start + page_;
    if (mprotect(first, data, PROT_READ | PROT_WRITE) != 0) {
      munmap(start, all);
      return counted;
    }
    std::memset(first, 0xee, data);  // like memory that was used before
    // Kernels need the alignment of their largest element, complex128.
    constexpr size_t kAlignment = 16;
    void *p = side == LS_GUARD_START ? first : first + data - (n + kAlignment - 1) / kAlignment * kAlignment;
    std::lock_guard<std::mutex> lock(mutex_);
    blocks_.emplace(p, Block{start, all, std::move(counted)});
    return {p, p, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void *dest, const void *src, size_t n) const override { default_copy_data(dest, src, n); }

  void set(int32_t side) {
    side_ = side;
    c10::SetAllocator(c10::DeviceType::CPU, this, /*priority=*/1);
  }

 private:
  struct Block {
    void *start;
    size_t size;
    c10::DataPtr counted;
  };

  explicit GuardedAllocator(c10::Allocator *counted) : counted_(counted) {}

  // Reports whether no more tensors may have guard pages. Each takes two mappings; Linux gives a process 65,530,
  // and the Go runtime ends the process if it gets none.
  bool full() {
    constexpr size_t kMost = 20000;
    std::lock_guard<std::mutex> lock(mutex_);
    return blocks_.size() >= kMost;
  }

  static void free(void *p) {
    auto &g = get();
    std::unique_lock<std::mutex> lock(g.mutex_);
    auto block = g.blocks_.extract(p);
    lock.unlock();
    if (block.empty()) return g.counted_->raw_deleter()(p);  // it has no guard pages
    munmap(block.mapped().start, block.mapped().size);
  }

  c10::Allocator *const counted_;
  const size_t page_ = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::atomic<int32_t> side_{LS_GUARD_OFF};
  std::mutex mutex_;
  std::unordered_map<void *, Block> blocks_;
};

}  // namespace
}  // namespace ls

ls_error *ls_guard_pages_set(int32_t side) noexcept {
  return ls::run_void([&] {
    if (side < LS_GUARD_OFF || side > LS_GUARD_START)
      throw ls::ArgumentError("there is no side " + std::to_string(side));
    ls::GuardedAllocator::get().set(side);
  });
}

// The recording of storages on the meta device (linstock/plan.h), by an allocator that counts and allocates
// nothing.
//
// The context of a recorded storage's data pointer is its Entry, so that its deleter learns of the free. The
// pointer itself is null, as with libtorch's own allocator for the meta device.
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory.h"
#include "meta.h"
#include "shim.h"

namespace ls {
namespace {

struct Recording {
  std::mutex mutex;  // guards what follows: any thread may free
  std::vector<ls_plan_block> blocks;
  ls_plan_totals totals{};
  // Only the recording thread uses these.
  std::vector<std::string> names{"unknown"};
  std::unordered_map<std::string, uint32_t> numbers;
  std::vector<uint32_t> open;  // the operators that run now, the innermost last
  at::CallbackHandle callback = 0;
};
thread_local std::shared_ptr<Recording> recording;

struct Entry {
  std::shared_ptr<Recording> recording;
  size_t block;
  uint64_t name;  // never used again, unlike an address
};
std::atomic<uint64_t> last_name{uint64_t{1} << 63};  // no address

void free_recorded(void *p) noexcept {
  std::unique_ptr<Entry> e(static_cast<Entry *>(p));
  auto &r = *e->recording;
  std::lock_guard<std::mutex> lock(r.mutex);
  auto &b = r.blocks[e->block];
  b.died = r.totals.position++;
  r.totals.live -= b.rounded;
}

class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n) override {
    c10::Device meta(c10::DeviceType::Meta);
    if (__builtin_expect(recording == nullptr, 1) || n == 0) return {nullptr, nullptr, &free_recorded, meta};
    auto &r = *recording;
    auto e = std::make_unique<Entry>(Entry{recording, 0, ++last_name});
    ls_plan_block b{};
    b.storage = e->name;
    b.bytes = static_cast<int64_t>(n);
    b.rounded = cpu_rounded(n);
    b.died = -1;
    b.dtype = -1;
    b.op = r.open.empty() ? 0 : r.open.back();
    b.backward = torch::autograd::get_current_graph_task_id() != -1;
    std::lock_guard<std::mutex> lock(r.mutex);
    b.born = r.totals.position++;
    e->block = r.blocks.size();
    r.blocks.push_back(b);
    r.totals.live += b.rounded;
    r.totals.total += b.rounded;
    r.totals.peak = std::max(r.totals.peak, r.totals.live);
    return {nullptr, e.release(), &free_recorded, meta};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_recorded; }
  void copy_data(void *, const void *, size_t) const override {}
};

std::unique_ptr<at::ObserverContext> op_begins(const at::RecordFunction &f) {
  if (auto &r = recording; r != nullptr) {
    auto [at, fresh] = r->numbers.try_emplace(f.name(), static_cast<uint32_t>(r->names.size()));
    if (fresh) r->names.emplace_back(f.name());
    r->open.push_back(at->second);
  }
  return nullptr;
}

// Returns the entry of a storage; nullptr: it was not recorded.
Entry *entry_of(const c10::Storage &s) {
  const auto &p = s.data_ptr();
  return p.get_deleter() == &free_recorded ? static_cast<Entry *>(p.get_context()) : nullptr;
}

void note_dtype(Recording &r, const at::Tensor &t) {
  if (!t.defined() || !t.is_meta() || !t.has_storage()) return;
  auto *e = entry_of(t.storage());
  if (e == nullptr) return;
  // Without the lock: only this thread adds blocks and sets their types.
  if (e->recording.get() == &r && r.blocks[e->block].dtype < 0)
    r.blocks[e->block].dtype = static_cast<int32_t>(t.scalar_type());
}

void op_ends(const at::RecordFunction &f, at::ObserverContext *) {
  auto &r = recording;
  if (r == nullptr) return;
  if (!r->open.empty()) r->open.pop_back();
  for (const auto &v : f.outputs()) {
    if (v.isTensor()) {
      note_dtype(*r, v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor &t : v.toTensorList()) note_dtype(*r, t);
    }
  }
}

}  // namespace

uint64_t name_of_meta(const c10::Storage &s) {
  auto *e = entry_of(s);
  return e != nullptr ? e->name : reinterpret_cast<uint64_t>(s.unsafeGetStorageImpl());
}

void make_meta_allocator() {
  static MetaAllocator allocator;
  c10::SetAllocator(c10::DeviceType::Meta, &allocator, /*priority=*/1);
}

}  // namespace ls

ls_error *ls_plan_begin(void) noexcept {
  return ls::run_void([] {
    if (ls::recording != nullptr) throw ls::ArgumentError("a plan is being recorded on this thread");
    auto r = std::make_shared<ls::Recording>();
    ls::recording = r;
    try {
      r->callback =
          at::addThreadLocalCallback(at::RecordFunctionCallback(&ls::op_begins, &ls::op_ends)
                                         .needsOutputs(true)
                                         .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
    } catch (...) {
      ls::recording.reset();
      throw;
    }
  });
}

void ls_plan_end(void) noexcept {
  ls::run_quiet([] {
    if (ls::recording == nullptr) return;
    auto r = std::move(ls::recording);
    ls::recording.reset();
    at::removeCallback(r->callback);
  });
}

ls_plan_totals ls_plan_read(void) noexcept {
  return ls::run_quiet([]() -> ls_plan_totals {
    if (ls::recording == nullptr) return {};
    std::lock_guard<std::mutex> lock(ls::recording->mutex);
    return ls::recording->totals;
  });
}

uint64_t ls_plan_blocks(ls_plan_block *out, uint64_t cap) noexcept {
  return ls::run_quiet([&]() -> uint64_t {
    if (ls::recording == nullptr) return 0;
    std::lock_guard<std::mutex> lock(ls::recording->mutex);
    const auto &all = ls::recording->blocks;
    std::copy_n(all.begin(), std::min<size_t>(cap, all.size()), out);
    return all.size();
  });
}

ls_results ls_plan_op(uint32_t op, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    if (ls::recording == nullptr || op >= ls::recording->names.size())
      throw ls::ArgumentError("the plan has no operator " + std::to_string(op));
    ls::put_string(r, ls::recording->names[op], out, out_slots);
  });
}

int64_t ls_plan_rounded(int64_t n) noexcept {
  return ls::run_quiet([&]() -> int64_t { return n <= 0 ? 0 : ls::cpu_rounded(static_cast<size_t>(n)); });
}

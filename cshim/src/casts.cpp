// The cache of autocast: the casts of weights. libtorch makes a cast under the lock of its cache. In Linstock the
// cast's allocation may wait for a sweep, which clears the cache before the allocation fails: each would wait for
// the other. So this cache makes casts without its lock. It is otherwise libtorch's.
//
// libtorch calls these functions instead of its own (see sequence.cpp), unless another library loaded it before or
// it was linked with -Bsymbolic: it then keeps casts in its own cache, and clear_cache clears that, too.
#include <ATen/CachedTensorUtils.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>

#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace at::autocast {
namespace {

using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
struct Cast {
  Weak weight;  // while it exists, no other tensor has the weight's address
  Tensor value;
};
using Casts = std::unordered_map<c10::TensorImpl *, Cast>;

std::mutex mutex;
Casts *casts = nullptr;  // guarded by the mutex, as is the next; nullptr: none
uint64_t cleared = 0;    // how often the cache was cleared

bool cacheable(ScalarType to, const Tensor &arg, DeviceType device) {
  return is_autocast_cache_enabled() && to == get_lower_precision_fp_from_device_type(device) &&
         arg.scalar_type() == kFloat && arg.requires_grad() && arg.is_leaf() && !arg.is_view() &&
         !c10::InferenceMode::is_enabled() && !caching::is_cached_tensor(arg);
}

// Returns libtorch's own clear_cache, or nullptr.
void (*libtorchs_clear())() {
#ifdef __APPLE__
  constexpr const char *kLibrary = "libtorch_cpu.dylib";
#else
  constexpr const char *kLibrary = "libtorch_cpu.so";
#endif
  void *library = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr
                            : reinterpret_cast<void (*)()>(dlsym(library, "_ZN2at8autocast11clear_cacheEv"));
}

}  // namespace

void clear_cache() {
  static void (*const libtorchs)() = libtorchs_clear();
  if (libtorchs != nullptr && libtorchs != &clear_cache) libtorchs();
  std::unique_ptr<Casts> old;  // freed without the lock
  std::lock_guard<std::mutex> lock(mutex);
  old.reset(std::exchange(casts, nullptr));
  cleared++;
}

Tensor cached_cast(ScalarType to, const Tensor &arg, DeviceType device) {
  if (!is_eligible(arg, device) || arg.scalar_type() == to) return arg;
  if (!cacheable(to, arg, device)) return arg.to(to);
  uint64_t before = 0;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (casts != nullptr) {
      if (auto it = casts->find(arg.unsafeGetTensorImpl()); it != casts->end()) return it->second.value;
    }
    before = cleared;
  }
  Tensor cast = [&] {
    c10::AutoGradMode on(true);  // a pass on another thread may have them off
    return arg.to(to);
  }();
  std::lock_guard<std::mutex> lock(mutex);
  if (cleared != before) return cast;  // the weight may have changed meanwhile
  if (casts == nullptr) casts = new Casts;
  // If another thread has cast the weight meanwhile, both use that cast.
  return casts->try_emplace(arg.unsafeGetTensorImpl(), Cast{Weak(arg.getIntrusivePtr()), cast})
      .first->second.value;
}

}  // namespace at::autocast

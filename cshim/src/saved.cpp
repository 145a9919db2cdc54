// Policies that keep saved tensors in another form: on the CPU, in a smaller dtype, in a file.
#include "saved.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <torch/csrc/autograd/variable.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "device.h"
#include "shim.h"
#include "trace.h"

namespace ls {
namespace {

using torch::autograd::SavedVariableHooks;

// An open file, to the end of which tensors are written. Closed with the last tensor in it.
class File {
 public:
  explicit File(int fd) : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, 0)) {
    if (fd_ < 0) throw ArgumentError(std::string("the file of saved tensors: ") + std::strerror(errno));
  }
  ~File() { ::close(fd_); }
  File(const File &) = delete;
  File &operator=(const File &) = delete;

  // Only one thread may append at a time.
  int64_t append(const void *data, size_t n) {
    int64_t at = end_;
    end_ += static_cast<int64_t>(n);
    auto *p = static_cast<const char *>(data);
    for (size_t done = 0; done < n;)
      done += moved(::pwrite(fd_, p + done, n - done, at + static_cast<int64_t>(done)), "write");
    return at;
  }
  void read(void *data, size_t n, int64_t at) const {
    auto *p = static_cast<char *>(data);
    for (size_t done = 0; done < n;)
      done += moved(::pread(fd_, p + done, n - done, at + static_cast<int64_t>(done)), "read");
  }

 private:
  static size_t moved(ssize_t n, const char *what) {
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && errno == EINTR) return 0;
    throw ArgumentError(std::string("saved tensors: cannot ") + what +
                        " the file: " + (n == 0 ? "it is too short" : std::strerror(errno)));
  }
  int fd_;
  int64_t end_ = 0;
};

// A tensor in another form, shared by the nodes that have saved it.
class Packed {
 public:
  Packed(const at::Tensor &t, const ls_saved_policy &how, const std::shared_ptr<File> &file)
      : options_(t.options()), sizes_(t.sizes().vec()), strides_(t.strides().vec()) {
    switch (how.kind) {
      case LS_SAVED_CPU: {
        held_ = at::empty_strided(sizes_, strides_, options_.device(c10::kCPU).pinned_memory(how.pinned != 0));
        held_.copy_(t);
        break;
      }
      case LS_SAVED_CAST:
        held_ = t.to(static_cast<c10::ScalarType>(how.dtype));
        break;
      default:
        file_ = file;
        held_ = t.cpu();
        at_ = file_->append(held_.const_data_ptr(), held_.nbytes());
        held_.reset();
    }
  }
  ~Packed() { discard(std::move(held_)); }
  Packed(const Packed &) = delete;
  Packed &operator=(const Packed &) = delete;

  at::Tensor unpack() const {
    at::Tensor t = held_;
    if (file_ != nullptr) {
      t = at::empty_strided(sizes_, strides_, options_.device(c10::kCPU));
      file_->read(t.mutable_data_ptr(), t.nbytes(), at_);
    }
    return t.to(options_);
  }

 private:
  at::TensorOptions options_;
  std::vector<int64_t> sizes_, strides_;
  at::Tensor held_;
  std::shared_ptr<File> file_;
  int64_t at_ = 0;
};

class Converting final : public SavedPolicy, public std::enable_shared_from_this<Converting> {
 public:
  explicit Converting(const ls_saved_policy &how) : how_(how), keep_(how.keep) {
    auto dtype = static_cast<c10::ScalarType>(how.dtype);
    if (how.kind < LS_SAVED_CPU || how.kind > LS_SAVED_FILE)
      throw ArgumentError("saved tensors: kind " + std::to_string(how.kind) + " is unknown");
    if (how.kind == LS_SAVED_CAST && dtype != c10::kHalf && dtype != c10::kBFloat16)
      throw ArgumentError("saved tensors: the dtype must be float16 or bfloat16");
    if (how.kind == LS_SAVED_FILE) file_ = std::make_shared<File>(how.fd);
  }
  std::unique_ptr<SavedVariableHooks> hooks() override;
  void popped() override {
    std::lock_guard<std::mutex> lock(mutex_);
    known_.clear();
  }

  // Returns nullptr for a tensor that is kept as it is.
  std::shared_ptr<Packed> pack(const at::Tensor &t) {
    if (!applies(t)) return nullptr;
    Key key(t);
    c10::weak_intrusive_ptr<c10::StorageImpl> storage(t.storage().getWeakStorageImpl());
    std::lock_guard<std::mutex> lock(mutex_);
    auto known = known_.find(key);
    if (known != known_.end()) {
      if (known->second.storage.expired()) {
        known_.erase(known);
      } else if (known->second.kept) {
        return nullptr;
      } else if (auto p = known->second.packed.lock()) {
        return p;
      }
    }
    auto bytes = static_cast<int64_t>(t.nbytes());
    bool kept = bytes <= keep_;
    if (kept) keep_ -= bytes;
    std::shared_ptr<Packed> p;
    if (!kept) p = std::make_shared<Packed>(t, how_, file_);
    known_.insert_or_assign(std::move(key), Known{std::move(storage), p, kept});
    return p;
  }

 private:
  struct Key {
    const void *storage;
    int64_t offset, version;
    c10::ScalarType dtype;
    std::vector<int64_t> sizes, strides;
    explicit Key(const at::Tensor &t)
        : storage(t.storage().unsafeGetStorageImpl()),
          offset(t.storage_offset()),
          version(t._version()),
          dtype(t.scalar_type()),
          sizes(t.sizes().vec()),
          strides(t.strides().vec()) {}
    auto operator<=>(const Key &) const = default;
  };
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // while it is held, no other storage has its address
    std::weak_ptr<Packed> packed;
    bool kept;
  };

  // The program keeps parameters in any case.
  static bool is_parameter(const at::TensorBase &t) { return t.is_leaf() && t.requires_grad(); }
  bool applies(const at::Tensor &t) const {
    if (t.layout() != c10::kStrided || t.is_nested() || t.is_inference() || !t.has_storage() || t.is_conj() ||
        t.is_neg() || t._is_zerotensor() || static_cast<int64_t>(t.nbytes()) < how_.min_bytes || t.nbytes() == 0 ||
        !t.is_non_overlapping_and_dense() || is_parameter(t) || (t.is_view() && is_parameter(t._base())))
      return false;
    switch (how_.kind) {
      case LS_SAVED_CPU:
        return !t.is_cpu() && !t.is_meta();
      case LS_SAVED_CAST:
        return t.scalar_type() == c10::kFloat || t.scalar_type() == c10::kDouble;
      default:
        return !t.is_meta();
    }
  }

  const ls_saved_policy how_;
  std::shared_ptr<File> file_;
  std::mutex mutex_;
  int64_t keep_;
  std::map<Key, Known> known_;
};

// The graph's object for one saved tensor.
class Converted final : public SavedVariableHooks {
 public:
  explicit Converted(std::shared_ptr<Converting> policy) : policy_(std::move(policy)) {}
  void call_pack_hook(const at::Tensor &t) override {
    c10::AutoGradMode off(false);
    packed_ = policy_->pack(t);
    policy_.reset();
    if (packed_ == nullptr) unchanged_.emplace(t);
  }
  at::Tensor call_unpack_hook() override {
    c10::AutoGradMode off(false);
    return packed_ != nullptr ? packed_->unpack() : unchanged_->get();
  }

 private:
  std::shared_ptr<Converting> policy_;  // until it has packed
  std::shared_ptr<Packed> packed_;
  std::optional<Unchanged> unchanged_;
};

std::unique_ptr<SavedVariableHooks> Converting::hooks() { return std::make_unique<Converted>(shared_from_this()); }

// Keeps where a tensor lies in one of several storages, which a callback makes again.
class Remaking final : public SavedPolicy, public std::enable_shared_from_this<Remaking> {
 public:
  Remaking(uint64_t id, std::vector<at::Tensor> sources)
      : ticket_(hold(id)), n_(sources.size()), sources_(std::move(sources)), enclosing_(innermost_policy()) {}
  std::unique_ptr<SavedVariableHooks> hooks() override;
  void popped() override {
    sources_.clear();
    enclosing_.reset();
  }
  std::optional<size_t> find(const at::Tensor &t) const {
    if (t.layout() != c10::kStrided || t.is_nested() || !t.has_storage() || t.is_conj() || t.is_neg()) return {};
    for (size_t i = 0; i < sources_.size(); i++)
      if (sources_[i].storage().unsafeGetStorageImpl() == t.storage().unsafeGetStorageImpl()) return i;
    return {};
  }
  at::Tensor make(size_t i) const {
    std::vector<uint8_t> needs(n_);
    needs[i] = 1;
    Made out(n_);
    CalledBack called;
    uint64_t failed =
        callbacks.backward(ticket_->id, nullptr, 0, nullptr, 0, needs.data(), out.handles.data(), n_);
    if (failed != 0) throw CallbackError(failed, "a saved tensor could not be made again");
    at::Tensor t = copy_of(out.handles[i]);
    if (!t.defined()) throw ArgumentError("a saved tensor was not made again");
    return t;
  }

 private:
  std::shared_ptr<Ticket> ticket_;
  size_t n_;
  std::vector<at::Tensor> sources_;  // until the policy is popped: the graph must not keep them
  std::shared_ptr<SavedPolicy> enclosing_;
};

// The graph's object for one saved tensor.
class Remade final : public SavedVariableHooks {
 public:
  Remade(std::shared_ptr<Remaking> policy, std::unique_ptr<SavedVariableHooks> other)
      : policy_(std::move(policy)), other_(std::move(other)) {}
  void call_pack_hook(const at::Tensor &t) override {
    if (auto i = policy_->find(t)) {
      other_.reset();
      source_ = *i;
      dtype_ = t.scalar_type();
      sizes_ = t.sizes().vec();
      strides_ = t.strides().vec();
      offset_ = t.storage_offset();
      return;
    }
    policy_.reset();
    if (other_ != nullptr)
      other_->call_pack_hook(t);
    else
      unchanged_.emplace(t);
  }
  at::Tensor call_unpack_hook() override {
    if (other_ != nullptr) return other_->call_unpack_hook();
    if (unchanged_) return unchanged_->get();
    c10::AutoGradMode off(false);
    at::Tensor t = policy_->make(source_);
    if (t.scalar_type() != dtype_) throw ArgumentError("a saved tensor was made again with another dtype");
    return t.as_strided(sizes_, strides_, offset_);
  }

 private:
  std::shared_ptr<Remaking> policy_;           // if the tensor lies in a storage that is made again
  std::unique_ptr<SavedVariableHooks> other_;  // if the enclosing policy keeps it
  std::optional<Unchanged> unchanged_;         // otherwise
  size_t source_ = 0;
  c10::ScalarType dtype_ = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes_, strides_;
  int64_t offset_ = 0;
};

std::unique_ptr<SavedVariableHooks> Remaking::hooks() {
  return std::make_unique<Remade>(shared_from_this(), enclosing_ == nullptr ? nullptr : enclosing_->hooks());
}

}  // namespace

at::Tensor data_of(const at::Tensor &t) {
  return at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(torch::autograd::impl::version_counter(t),
                                                                     /*allow_tensor_metadata_change=*/false));
}

const at::Tensor &Unchanged::get() const {
  if (version() != version_)
    throw ArgumentError(
        "a tensor that an operator has saved for backward was changed in place since: it is at version " +
        std::to_string(version()) + ", expected " + std::to_string(version_));
  return held_;
}

at::Tensor Unchanged::take() {
  if (held_.defined()) (void)get();
  return release();
}

}  // namespace ls

ls_error *ls_saved_push(const ls_saved_policy *how, uint64_t *depth) noexcept {
  return ls::run_void([&] { *depth = ls::push_policy(std::make_shared<ls::Converting>(*how)); });
}

ls_error *ls_remade_push(uint64_t id, const ls_tensor *sources, uint64_t n, uint64_t *depth) noexcept {
  return ls::run_void([&] {
    auto list = ls::tensors_of(sources, n);
    for (const auto &t : list)
      if (!t.defined() || !t.has_storage()) throw ls::ArgumentError("sources: tensors with a storage are needed");
    *depth = ls::push_policy(std::make_shared<ls::Remaking>(id, std::move(list)));
  });
}

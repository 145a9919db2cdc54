// Boxed calls of any operator of the dispatcher, whose arguments are checked against its schema.
#include <ATen/core/Generator.h>
#include <ATen/core/class_type.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "guards.h"
#include "shim.h"

namespace ls {
namespace {

uint64_t payload_slots(uint64_t bytes) { return (bytes + sizeof(ls_value) - 1) / sizeof(ls_value); }

// The slots of a value and its payload.
uint64_t width(const ls_value &v) {
  switch (v.tag) {
    case LS_COMPLEX:
      return 2;
    case LS_STRING:
      return 1 + payload_slots(v.len);
    case LS_INTS:
    case LS_FLOATS:
    case LS_BOOLS:
    case LS_TENSORS:
      return 1 + payload_slots(uint64_t{v.len} * 8);
    default:
      return 1;
  }
}

const char *tag_name(uint32_t tag) {
  static const char *const names[] = {"default", "none",   "tensor", "int",       "float", "bool",
                                      "complex", "string", "ints",   "floats",    "bools", "tensors",
                                      "device",  "object", "stream", "generator", "uint"};
  return tag < sizeof(names) / sizeof(names[0]) ? names[tag] : "an unknown tag";
}

[[noreturn]] void mismatch(const c10::Argument &arg, const ls_value &v) {
  throw ArgumentError("argument '" + arg.name() + "' wants " + arg.type()->str() + ", got " + tag_name(v.tag));
}

template <class T>
const T *payload(const ls_value *v) {
  return reinterpret_cast<const T *>(v + 1);
}

bool is_number(const ls_value &v) {
  return v.tag == LS_INT || v.tag == LS_UINT || v.tag == LS_FLOAT || v.tag == LS_BOOL || v.tag == LS_COMPLEX;
}

using Object = c10::ivalue::Object;

// An object with a reference of its own.
c10::intrusive_ptr<Object> object_of(ls_object o) {
  if (o == 0) throw ArgumentError("an object is needed, got none");
  return c10::intrusive_ptr<Object>::reclaim_copy(reinterpret_cast<Object *>(o));
}

c10::IValue object_value(const c10::Argument &arg, const c10::Type &type, const ls_value *v) {
  if (v->tag != LS_OBJECT) mismatch(arg, *v);
  auto o = object_of(v->u.o);
  // Some kernels do not check it.
  if (!o->type()->isSubtypeOf(type))
    throw ArgumentError("argument '" + arg.name() + "' wants " + type.str() + ", got " + o->name());
  return o;
}

c10::IValue ints_value(const c10::Argument &arg, const ls_value *v) {
  if (v->tag == LS_INT) {
    // Python's "int[2] stride=1": one number stands for all elements if the schema gives the length.
    size_t n = arg.N().has_value() ? static_cast<size_t>(*arg.N()) : 1;
    return c10::List<int64_t>(c10::IntArrayRef(std::vector<int64_t>(n, v->u.i)));
  }
  if (v->tag != LS_INTS) mismatch(arg, *v);
  return c10::List<int64_t>(c10::IntArrayRef(payload<int64_t>(v), v->len));
}

c10::IValue list_value(const c10::Argument &arg, const c10::TypePtr &element, const ls_value *v) {
  switch (element->kind()) {
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return ints_value(arg, v);
    case c10::TypeKind::FloatType: {
      c10::List<double> list;
      if (v->tag == LS_FLOATS) {
        for (uint32_t i = 0; i < v->len; i++) list.push_back(payload<double>(v)[i]);
      } else if (v->tag == LS_INTS) {
        for (uint32_t i = 0; i < v->len; i++) list.push_back(static_cast<double>(payload<int64_t>(v)[i]));
      } else {
        mismatch(arg, *v);
      }
      return list;
    }
    case c10::TypeKind::BoolType: {
      if (v->tag != LS_BOOLS) mismatch(arg, *v);
      c10::List<bool> list;
      for (uint32_t i = 0; i < v->len; i++) list.push_back(payload<int64_t>(v)[i] != 0);
      return list;
    }
    case c10::TypeKind::NumberType: {
      c10::impl::GenericList generic(element);
      if (v->tag == LS_FLOATS) {
        for (uint32_t i = 0; i < v->len; i++) generic.push_back(c10::Scalar(payload<double>(v)[i]));
      } else if (v->tag == LS_INTS) {
        for (uint32_t i = 0; i < v->len; i++) generic.push_back(c10::Scalar(payload<int64_t>(v)[i]));
      } else {
        mismatch(arg, *v);
      }
      return generic;
    }
    case c10::TypeKind::TensorType: {
      if (v->tag != LS_TENSORS) mismatch(arg, *v);
      c10::List<at::Tensor> list;
      list.reserve(v->len);
      for (uint32_t i = 0; i < v->len; i++) {
        ls_tensor h = payload<ls_tensor>(v)[i];
        if (h == 0)
          throw ArgumentError("argument '" + arg.name() + "': element " + std::to_string(i) + " is not a tensor");
        list.push_back(copy_of(h));
      }
      return list;
    }
    case c10::TypeKind::OptionalType: {
      if (v->tag != LS_TENSORS) mismatch(arg, *v);
      c10::List<std::optional<at::Tensor>> list;
      list.reserve(v->len);
      for (uint32_t i = 0; i < v->len; i++) list.push_back(optional_of(payload<ls_tensor>(v)[i]));
      return list;
    }
    default:
      mismatch(arg, *v);
  }
}

c10::IValue value_of(const c10::Argument &arg, c10::TypePtr type, const ls_value *v) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    if (v->tag == LS_NONE) return {};
    type = type->castRaw<c10::OptionalType>()->getElementType();
  }
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      if (v->tag == LS_TENSOR) {
        if (v->u.t == 0) throw ArgumentError("argument '" + arg.name() + "': a tensor is needed, got none");
        return copy_of(v->u.t);
      }
      // A number cannot be written to.
      if (is_number(*v) && (arg.alias_info() == nullptr || !arg.alias_info()->isWrite()))
        return wrapped_number(scalar_of(v));
      break;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      if (v->tag == LS_INT) return v->u.i;
      break;
    case c10::TypeKind::FloatType:
      if (v->tag == LS_FLOAT) return v->u.f;
      if (v->tag == LS_INT) return static_cast<double>(v->u.i);
      if (v->tag == LS_UINT) return static_cast<double>(static_cast<uint64_t>(v->u.i));
      break;
    case c10::TypeKind::BoolType:
      if (v->tag == LS_BOOL) return v->u.i != 0;
      break;
    case c10::TypeKind::NumberType:
      if (is_number(*v)) return scalar_of(v);
      break;
    case c10::TypeKind::StringType:
      if (v->tag == LS_STRING) return std::string(payload<char>(v), v->len);
      break;
    case c10::TypeKind::DeviceObjType:
      if (v->tag == LS_DEVICE) return device_of(v->u.i);
      break;
    case c10::TypeKind::ClassType:
      return object_value(arg, *type, v);
    case c10::TypeKind::GeneratorType:
      if (v->tag == LS_GENERATOR && v->u.g != 0) return generator_at(v->u.g);
      break;
    case c10::TypeKind::StreamObjType:
      if (v->tag == LS_STREAM) return c10::Stream(c10::Stream::UNSAFE, device_of(v->len), v->u.i);
      break;
    case c10::TypeKind::ListType:
      return list_value(arg, type->castRaw<c10::ListType>()->getElementType(), v);
    case c10::TypeKind::AnyType:
      if (v->tag == LS_TENSOR) return copy_of(v->u.t);
      if (v->tag == LS_INT) return v->u.i;
      if (v->tag == LS_FLOAT) return v->u.f;
      if (v->tag == LS_BOOL) return v->u.i != 0;
      if (v->tag == LS_STRING) return std::string(payload<char>(v), v->len);
      if (v->tag == LS_OBJECT) return object_of(v->u.o);
      break;
    default:
      break;
  }
  mismatch(arg, *v);
}

// Reads the arguments from the slots; arguments that are left out have the schema's default.
void push_arguments(const c10::FunctionSchema &schema, const ls_value *args, uint64_t slots,
                    torch::jit::Stack &stack) {
  const auto &formals = schema.arguments();
  stack.reserve(formals.size());
  uint64_t at = 0;
  for (const auto &arg : formals) {
    const ls_value *v = nullptr;
    if (at < slots) {
      uint64_t w = width(args[at]);
      if (w > slots - at) throw ArgumentError("argument '" + arg.name() + "' runs past the end of the array");
      v = &args[at];
      at += w;
    }
    if (v != nullptr && v->tag != LS_DEFAULT) {
      stack.push_back(value_of(arg, arg.type(), v));
    } else if (arg.default_value().has_value()) {
      stack.push_back(*arg.default_value());
    } else if (arg.type()->kind() == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else {
      throw ArgumentError("argument '" + arg.name() + "' (" + arg.type()->str() + ") is missing");
    }
  }
  if (at < slots) throw ArgumentError("takes " + std::to_string(formals.size()) + " arguments, got more");
}

// Results under construction; frees the handles made so far if an exception is thrown.
class Results {
 public:
  ~Results() {
    if (done_) return;
    for (ls_tensor h : given_) ls_tensor_free(h);
    for (ls_object o : objects_) ls_object_free(o);
  }
  void add(const c10::IValue &v) {
    if (v.isTensor()) {
      out_.push_back({LS_TENSOR, 0, {.t = hand(v.toTensor())}});
    } else if (v.isNone()) {
      out_.push_back({LS_NONE, 0, {.i = 0}});
    } else if (v.isInt()) {
      out_.push_back({LS_INT, 0, {.i = v.toInt()}});
    } else if (v.isUnsigned()) {  // above INT64_MAX, as isInt is false
      out_.push_back({LS_UINT, 0, {.i = static_cast<int64_t>(v.toUInt())}});
    } else if (v.isDouble()) {
      out_.push_back({LS_FLOAT, 0, {.f = v.toDouble()}});
    } else if (v.isBool()) {
      out_.push_back({LS_BOOL, 0, {.i = v.toBool()}});
    } else if (v.isComplexDouble()) {
      complex(v.toComplexDouble());
    } else if (v.isString()) {
      const auto &s = v.toStringRef();
      bytes(LS_STRING, s.data(), s.size(), s.size());
    } else if (v.isDevice()) {
      out_.push_back({LS_DEVICE, 0, {.i = word_of(v.toDevice())}});
    } else if (v.isObject()) {
      objects_.push_back(0);
      count_handle(&HandleCount::made);
      objects_.back() = reinterpret_cast<ls_object>(v.toObject().release());
      out_.push_back({LS_OBJECT, 0, {.o = objects_.back()}});
    } else if (v.isStream()) {
      auto s = v.toStream();
      out_.push_back({LS_STREAM, static_cast<uint32_t>(word_of(s.device())), {.i = s.id()}});
    } else if (v.isIntList()) {
      auto l = v.toIntVector();
      bytes(LS_INTS, l.data(), l.size(), l.size() * 8);
    } else if (v.isDoubleList()) {
      auto l = v.toDoubleVector();
      bytes(LS_FLOATS, l.data(), l.size(), l.size() * 8);
    } else if (v.isBoolList()) {
      std::vector<int64_t> l;
      for (bool b : v.toBoolList()) l.push_back(b);
      bytes(LS_BOOLS, l.data(), l.size(), l.size() * 8);
    } else if (v.isTensorList()) {
      std::vector<ls_tensor> l;
      for (const at::Tensor &t : v.toTensorVector()) l.push_back(hand(t));
      bytes(LS_TENSORS, l.data(), l.size(), l.size() * 8);
    } else if (v.isSymInt()) {
      out_.push_back({LS_INT, 0, {.i = v.toSymInt().guard_int(__FILE__, __LINE__)}});
    } else if (v.isScalar()) {
      auto s = v.toScalar();
      if (s.isComplex())
        complex(s.toComplexDouble());
      else
        add(s.isFloatingPoint() ? c10::IValue(s.toDouble())
            : s.isBoolean()     ? c10::IValue(s.toBool())
                                : c10::IValue(s.toLong()));
    } else {
      throw ArgumentError("a result of type " + v.tagKind() + " cannot leave the shim");
    }
  }
  void finish(ls_results &r, ls_value *out, uint64_t out_slots) {
    size_t n = out_.size();
    if (n > out_slots) {
      r.spill = static_cast<ls_value *>(std::malloc(n * sizeof(ls_value)));
      if (r.spill == nullptr) throw std::bad_alloc();
      out = r.spill;
    }
    if (n != 0) std::memcpy(out, out_.data(), n * sizeof(ls_value));
    r.slots = n;
    done_ = true;
  }

 private:
  static int64_t word_of(c10::Device d) { return (static_cast<int64_t>(d.type()) << 8) | (d.index() & 0xff); }
  ls_tensor hand(at::Tensor t) {
    given_.push_back(0);
    return given_.back() = give(std::move(t));
  }
  void complex(c10::complex<double> c) {
    out_.push_back({LS_COMPLEX, 0, {.f = c.real()}});
    out_.push_back({LS_COMPLEX, 0, {.f = c.imag()}});
  }
  void bytes(uint32_t tag, const void *data, size_t len, size_t nbytes) {
    if (len > UINT32_MAX) throw ArgumentError("a result is too long");
    out_.push_back({tag, static_cast<uint32_t>(len), {.i = 0}});
    size_t at = out_.size();
    out_.resize(at + payload_slots(nbytes));
    if (nbytes != 0) std::memcpy(static_cast<void *>(&out_[at]), data, nbytes);
  }
  std::vector<ls_value> out_;
  std::vector<ls_tensor> given_;
  std::vector<ls_object> objects_;
  bool done_ = false;
};

// One object for each operator, never freed: an ls_op is its address.
ls_op interned(const c10::OperatorHandle &h) {
  static std::mutex mutex;
  static auto *operators = new std::unordered_map<c10::OperatorName, std::unique_ptr<Operator>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto &slot = (*operators)[h.operator_name()];
  if (!slot) slot = std::make_unique<Operator>(h);
  return reinterpret_cast<ls_op>(slot.get());
}

const Operator &operator_of(ls_op op) {
  if (op == 0) throw ArgumentError("no operator");
  return *reinterpret_cast<const Operator *>(op);
}

}  // namespace

void check_odd(const char *name, const char *overload, std::initializer_list<ls_tensor> tensors) {
  auto found = c10::Dispatcher::singleton().findSchema({name, overload});
  if (!found.has_value()) return;
  std::vector<at::Tensor> list;
  for (ls_tensor t : tensors)
    if (t != 0) list.push_back(copy_of(t));
  operator_of(interned(*found)).check_layouts(list);
}

void put_string(ls_results &r, const std::string &s, ls_value *out, uint64_t out_slots) {
  Results results;
  results.add(c10::IValue(s));
  results.finish(r, out, out_slots);
}

}  // namespace ls

ls_results ls_op_find(const char *name, const char *overload, ls_op *out) noexcept {
  return ls::run_values([&](ls_results &) {
    *out = 0;
    auto found = c10::Dispatcher::singleton().findSchema({name, overload});
    if (found.has_value()) *out = ls::interned(*found);
  });
}

ls_results ls_op_schema(ls_op op, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    std::ostringstream text;
    text << ls::operator_of(op).handle.schema();
    ls::put_string(r, text.str(), out, out_slots);
  });
}

int32_t ls_op_repeatable(ls_op op) noexcept {
  return ls::run_quiet([&]() -> int32_t {
    auto &handle = ls::operator_of(op).handle;
    return !handle.schema().is_mutable() && !handle.hasTag(at::Tag::nondeterministic_seeded);
  });
}

int32_t ls_op_internal(ls_op op) noexcept {
  return ls::run_quiet([&]() -> int32_t { return ls::operator_of(op).internal; });
}

ls_results ls_op_names(ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) {
    std::string all;
    for (const auto &name : c10::Dispatcher::singleton().getAllOpNames()) {
      all += name.name;
      if (!name.overload_name.empty()) all += "." + name.overload_name;
      all += '\n';
    }
    ls::put_string(r, all, out, out_slots);
  });
}

ls_results ls_op_call(ls_op op, const ls_value *args, uint64_t slots, ls_value *out, uint64_t out_slots,
                      uint32_t flags) noexcept {
  return ls::run_values([&](ls_results &r) {
    const ls::Operator &o = ls::operator_of(op);
    torch::jit::Stack stack;
    ls::push_arguments(o.handle.schema(), args, slots, stack);
    o.check(stack);
    o.place_numbers(stack);
    o.copy_arguments(stack);
    o.call(stack);
    if (flags & LS_CALL_DISCARD) return;
    ls::Results results;
    for (const auto &v : stack) results.add(v);
    stack.clear();
    results.finish(r, out, out_slots);
  });
}

void ls_spill_free(ls_value *spill) noexcept {
  ls::run_quiet([&] { std::free(spill); });
}

void ls_object_free(ls_object o) noexcept {
  ls::run_quiet([&] {
    if (o == 0) return;
    ls::count_handle(&ls::HandleCount::freed);
    c10::intrusive_ptr<ls::Object>::reclaim(reinterpret_cast<ls::Object *>(o));
  });
}

ls_results ls_object_class(ls_object o, ls_value *out, uint64_t out_slots) noexcept {
  return ls::run_values([&](ls_results &r) { ls::put_string(r, ls::object_of(o)->name(), out, out_slots); });
}

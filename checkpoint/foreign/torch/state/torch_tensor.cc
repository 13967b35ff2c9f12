// SPDX-License-Identifier: Apache-2.0
//
// torch has written tensors in several forms over the years, and each may be wrapped in others:
//
//   _rebuild_tensor(storage, offset, sizes, strides)                                      "v1"
//   _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks[, metadata])
//   _rebuild_tensor_v3(storage, offset, sizes, strides, requires_grad, hooks, dtype[, metadata])
//   _rebuild_parameter(tensor, ...), Parameter(tensor, ...)
//   _rebuild_from_type_v2(function, type, arguments, state)
//
// Unwrap finds the innermost call; a form that is not in this list (a subclass, a quantized tensor) is refused by name
// rather than read as something else. requires_grad and hooks do not matter to a checkpoint.
#include "fsdp/checkpoint/foreign/torch/state/torch_tensor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/pickle/torch_globals.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

constexpr int kMaxWrappers = 8;  // a parameter can wrap a parameter

absl::Status Broken(PickleValue value, const std::string& what) {
  return absl::DataLossError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

absl::Status Unsupported(PickleValue value, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("byte ", value.place(), " of the pickle: ", what));
}

// True for a call whose first argument is the tensor: a parameter.
bool IsParameter(PickleValue value) {
  return value.is_call("torch._utils._rebuild_parameter") ||
         value.is_call("torch._utils._rebuild_parameter_with_state") || value.is_call("torch.nn.parameter.Parameter");
}

// The call that creates the tensor itself; arguments are as in the table above.
struct TensorCall {
  std::string_view function;  // "v1", "v2" or "v3"
  PickleValue arguments;
};

std::optional<TensorCall> FindTensorCall(PickleValue callee, PickleValue arguments) {
  if (callee.is_global("torch._utils._rebuild_tensor")) return TensorCall{"v1", arguments};
  if (callee.is_global("torch._utils._rebuild_tensor_v2")) return TensorCall{"v2", arguments};
  if (callee.is_global("torch._utils._rebuild_tensor_v3")) return TensorCall{"v3", arguments};
  return std::nullopt;
}

// Looks through parameters and subclasses to the call that creates the tensor itself.
absl::StatusOr<TensorCall> Unwrap(PickleValue value) {
  for (int i = 0; i < kMaxWrappers; ++i) {
    if (!value.is(Kind::kCall)) break;
    if (const auto call = FindTensorCall(value.callee(), value.arguments())) return *call;
    const PickleValue arguments = value.arguments();
    if (IsParameter(value) && arguments.size() > 0) {
      value = arguments.at(0);
      continue;
    }
    // _rebuild_from_type_v2(function, type, arguments, state): the result of copy.deepcopy and of attributes on
    // tensors.
    if (!value.is_call("torch._tensor._rebuild_from_type_v2") || arguments.size() != 4) break;
    const auto call = FindTensorCall(arguments.at(0), arguments.at(2));
    const bool is_plain =
        arguments.at(1).is_global("torch.Tensor") || arguments.at(1).is_global("torch.nn.parameter.Parameter");
    if (call && is_plain && arguments.at(2).is(Kind::kTuple)) return *call;
    break;
  }
  const bool has_type = value.is_call("torch._tensor._rebuild_from_type_v2") && value.arguments().size() > 1 &&
                        value.arguments().at(1).is(Kind::kGlobal);
  if (!has_type) return Unsupported(value, "a tensor in a form that is not read");
  return Unsupported(value, absl::StrCat("a tensor of the subclass ", Quote(value.arguments().at(1).name()),
                                         " is not read: save it as a plain tensor"));
}

absl::StatusOr<int64_t> NotNegative(PickleValue value, const char* what) {
  if (!value.is(Kind::kInt) || value.integer() < 0) {
    return Broken(value, absl::StrCat(what, " is ",
                                      value.is(Kind::kInt) ? absl::StrCat(value.integer())
                                                           : std::string(PickleKindName(value.kind())),
                                      ", expected an integer from 0"));
  }
  return value.integer();
}

// {"conj": True}: the elements of the storage are not the tensor's.
absl::Status CheckMetadata(PickleValue metadata) {
  if (metadata.is(Kind::kNone)) return absl::OkStatus();
  if (!metadata.is(Kind::kDict)) return Broken(metadata, "a tensor's metadata is not a dict");
  for (int64_t i = 0; i < metadata.size(); ++i) {
    const auto [name, value] = metadata.member(i);
    if (value.is(Kind::kBool) && !value.boolean()) continue;
    const std::string text = name.is(Kind::kString) ? Quote(name.text()) : "metadata";
    return Unsupported(value, absl::StrCat("a tensor with ", text, " set, which is not read; save its clone()"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DType> DTypeOf(const TorchStorage& storage, const TensorCall& call) {
  if (call.function != "v3") {
    if (storage.dtype) return *storage.dtype;
    return Unsupported(call.arguments, "a tensor without a dtype in a storage without one");
  }
  const PickleValue global = call.arguments.at(6);
  if (!global.is(Kind::kGlobal)) return Broken(global, "a tensor's dtype is not a dtype");
  const absl::StatusOr<DType> dtype = DTypeOfGlobal(global.name());
  return dtype.ok() ? dtype : Unsupported(global, std::string(dtype.status().message()));
}

// Checks that the last element of the view is inside its storage. This check keeps every later read inside the
// storage's bytes, so it tests sums and products for overflow.
absl::Status CheckBounds(const TorchTensor& tensor, PickleValue value) {
  if (tensor.shape.numel() == 0) return absl::OkStatus();
  const int64_t capacity = tensor.storage.nbytes / SizeOf(tensor.dtype);
  int64_t last = tensor.offset;
  bool fits = last < capacity;
  for (int d = 0; fits && d < tensor.shape.rank(); ++d) {
    int64_t reach = 0;
    fits = !__builtin_mul_overflow(tensor.shape.dim(d) - 1, tensor.strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last) && last < capacity;
  }
  if (fits) return absl::OkStatus();
  return Broken(value, absl::StrCat("a tensor of shape ", tensor.shape.ToString(), " reaches beyond its storage ",
                                    Quote(tensor.storage.key), " of ", tensor.storage.nbytes, " bytes"));
}

}  // namespace

bool TorchTensor::is_contiguous() const {
  int64_t expected = 1;
  for (int d = shape.rank(); d-- > 0;) {
    if (shape.dim(d) != 1 && strides[d] != expected && shape.numel() != 0) return false;
    expected *= shape.dim(d);
  }
  return true;
}

// CheckBounds has excluded overflow.
int64_t TorchTensor::touched_bytes() const {
  if (shape.numel() == 0) return 0;
  int64_t last = 0;
  for (int d = 0; d < shape.rank(); ++d) last += (shape.dim(d) - 1) * strides[d];
  return (last + 1) * SizeOf(dtype);
}

PickleValue UnwrapTorchTensor(PickleValue value) {
  for (int i = 0; i < kMaxWrappers && IsParameter(value) && value.arguments().size() > 0; ++i) {
    value = value.arguments().at(0);
  }
  return value;
}

// torch pickles __dict__, or a tuple of it and of __slots__; an empty dict is no attribute.
TorchWrapper WrapperOf(PickleValue value) {
  constexpr const char* kParameter = "torch.nn.parameter.Parameter";
  TorchWrapper wrapper;
  for (int i = 0; i < kMaxWrappers && value.is(Kind::kCall); ++i) {
    const PickleValue arguments = value.arguments();
    const bool is_typed = value.is_call("torch._tensor._rebuild_from_type_v2") && arguments.size() == 4;
    const bool has_state =
        is_typed || (value.is_call("torch._utils._rebuild_parameter_with_state") && arguments.size() == 4);
    if (has_state) {
      const PickleValue state = arguments.at(3);
      wrapper.has_attributes |= (state.is(Kind::kDict) || state.is_sequence()) && state.size() > 0;
    }
    wrapper.is_parameter |= IsParameter(value) || (is_typed && arguments.at(1).is_global(kParameter));
    if (!IsParameter(value) || arguments.size() == 0) break;
    value = arguments.at(0);
  }
  return wrapper;
}

bool IsTorchTensor(PickleValue value) {
  return value.is(Kind::kCall) && (IsParameter(value) || FindTensorCall(value.callee(), value.arguments()) ||
                                   value.is_call("torch._tensor._rebuild_from_type_v2"));
}

absl::StatusOr<std::vector<int64_t>> ReadSizes(PickleValue value) {
  if (value.is_call("torch.Size")) {
    if (value.arguments().size() == 0) return std::vector<int64_t>();
    value = value.arguments().at(0);
  }
  if (!value.is_sequence()) return Broken(value, "sizes that are not a tuple");
  if (value.size() > kMaxTorchRank) {
    return Broken(value, absl::StrCat(value.size(), " dimensions, more than ", kMaxTorchRank));
  }
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < value.size(); ++i) {
    FSDP_ASSIGN_OR_RETURN(sizes.emplace_back(), NotNegative(value.at(i), "a size"));
  }
  return sizes;
}

absl::StatusOr<TorchStorage> ReadTorchStorage(PickleValue persistent) {
  if (!persistent.is(Kind::kPersistent)) return Broken(persistent, "a tensor without a storage");
  const PickleValue id = persistent.at(0);
  const bool has_form = id.is(Kind::kTuple) && id.size() >= 5 && id.at(0).is(Kind::kString) &&
                        id.at(0).text() == "storage" && id.at(1).is(Kind::kGlobal) && id.at(2).is(Kind::kString);
  if (!has_form) return Broken(persistent, "a persistent id that is not a storage");
  if (id.size() > 5 && !id.at(5).is(Kind::kNone)) {
    return Unsupported(id, "a storage that is a view of another, as torch before 0.4 wrote them");
  }
  // torch writes numbers. Any number of tensors may have the key of one storage, and each one is looked up.
  constexpr size_t kMaxKeyBytes = 1024;
  if (id.at(2).text().size() > kMaxKeyBytes) {
    return Broken(id, absl::StrCat("a storage with a key of ", id.at(2).text().size(), " bytes"));
  }
  TorchStorage storage;
  storage.key = std::string(id.at(2).text());
  FSDP_ASSIGN_OR_RETURN(const int64_t numel, NotNegative(id.at(4), "the number of elements of a storage"));
  const std::string type = id.at(1).name();
  if (!IsUntypedStorage(type)) {
    const absl::StatusOr<DType> dtype = DTypeOfGlobal(type);
    if (!dtype.ok()) return Unsupported(id, std::string(dtype.status().message()));
    storage.dtype = *dtype;
  }
  if (__builtin_mul_overflow(numel, storage.element_size(), &storage.nbytes))
    return Broken(id, "a storage of more than 2^63 bytes");
  return storage;
}

absl::StatusOr<TorchTensor> ReadTorchTensor(PickleValue value) {
  FSDP_ASSIGN_OR_RETURN(const TensorCall call, Unwrap(value));
  const PickleValue arguments = call.arguments;
  const int64_t least = call.function == "v1" ? 4 : call.function == "v2" ? 6 : 7;
  if (arguments.size() < least) return Broken(value, absl::StrCat("a tensor of ", arguments.size(), " arguments"));
  if (arguments.size() > least) FSDP_RETURN_IF_ERROR(CheckMetadata(arguments.at(least)));
  TorchTensor tensor;
  FSDP_ASSIGN_OR_RETURN(tensor.storage, ReadTorchStorage(arguments.at(0)));
  FSDP_ASSIGN_OR_RETURN(tensor.dtype, DTypeOf(tensor.storage, call));
  FSDP_ASSIGN_OR_RETURN(tensor.offset, NotNegative(arguments.at(1), "a storage offset"));
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, ReadSizes(arguments.at(2)));
  FSDP_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, ReadSizes(arguments.at(3)));
  tensor.strides.assign(strides.begin(), strides.end());
  const absl::StatusOr<Shape> shape = Shape::Create(sizes);
  if (!shape.ok()) return Broken(arguments.at(2), std::string(shape.status().message()));
  tensor.shape = *shape;
  if (tensor.strides.size() != sizes.size()) return Broken(arguments.at(3), "sizes and strides of different length");
  FSDP_RETURN_IF_ERROR(CheckBounds(tensor, value));
  return tensor;
}

}  // namespace fsdp

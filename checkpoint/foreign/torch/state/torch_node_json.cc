// SPDX-License-Identifier: Apache-2.0
//
// A TorchNode as one value of Python, in JSON (python_json.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_tree.h"

namespace fsdp {

absl::StatusOr<std::string> ReadBytes(const TorchTensorReader& read, int tensor, DType dtype,
                                      const Interval& interval) {
  std::string bytes(interval.size() * SizeOf(dtype), '\0');
  FSDP_RETURN_IF_ERROR(read(tensor, interval, reinterpret_cast<std::byte*>(bytes.data())));
  return bytes;
}

// A null reader refuses every tensor, so the table of types is never used.
absl::StatusOr<PythonJson> TorchNode::ToJson() const { return ToJson(TorchLeafTypes(0, nullptr), nullptr); }

absl::StatusOr<PythonJson> TorchNode::ToJson(const TorchLeafTypes& tensors, const TorchTensorReader& read) const {
  if (kind_ == Kind::kValue) return value();
  if (kind_ == Kind::kTensor) {
    if (read == nullptr) return absl::InvalidArgumentError("a tensor instead of a plain value");
    const TorchLeafType& type = tensors[tensor_];
    if (type.shape.numel() > kMaxLiteralBytes / SizeOf(type.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a tensor of shape ", type.shape.ToString(), " instead of a plain value or a small tensor"));
    }
    FSDP_ASSIGN_OR_RETURN(std::string bytes, ReadBytes(read, tensor_, type.dtype, {0, type.shape.numel()}));
    return JsonOfTensor({type.dtype, type.shape, std::move(bytes)});
  }
  const bool is_object = IsPlainDict();
  PythonJson json = is_object ? PythonJson::object() : PythonJson::array();
  for (const auto& [name, member] : members()) {
    FSDP_ASSIGN_OR_RETURN(PythonJson value, member.ToJson(tensors, read));
    if (is_object) {
      AppendMember(json, name, std::move(value));
    } else if (is_list) {
      json.push_back(std::move(value));
    } else {
      PythonJson key = member.has_json_name ? ParsePythonJson(name) : PythonJson(name);
      json.push_back(PythonJson::array({std::move(key), std::move(value)}));
    }
  }
  if (Tag() == nullptr) return json;
  return PythonJson({{kPythonTag, Tag()}, {"items", std::move(json)}});
}

bool TorchNode::IsPlainDict() const {
  return !is_list && !is_ordered && !is_counter &&
         std::none_of(members().begin(), members().end(),
                      [](const Member& member) { return member.second.has_json_name || member.first == kPythonTag; });
}

const char* TorchNode::Tag() const {
  if (is_list) return is_tuple ? "tuple" : nullptr;
  return is_ordered ? "OrderedDict" : is_counter ? "Counter" : IsPlainDict() ? nullptr : "dict";
}

}  // namespace fsdp

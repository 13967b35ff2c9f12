// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/torch/state/literal_tensor.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

template <typename T>
PythonJson NumberOf(const std::string& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

template <typename T, typename From>
std::string BytesOf(From number) {
  const T value = static_cast<T>(number);
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// The value of a tensor without dimensions as a number; null unless the number converts back to the same bytes. JSON
// has neither NaN nor infinity, and a float16 or an int32 is so rare here that it stays a tensor.
PythonJson NumberOfTensor(const LiteralTensor& tensor) {
  if (tensor.shape.rank() != 0) return nullptr;
  PythonJson number;
  if (tensor.dtype == DType::kFloat32) number = NumberOf<float>(tensor.bytes);
  if (tensor.dtype == DType::kFloat64) number = NumberOf<double>(tensor.bytes);
  if (tensor.dtype == DType::kInt64) number = NumberOf<int64_t>(tensor.bytes);
  if (number.is_number_float() && !std::isfinite(number.get<double>())) return nullptr;
  return number;
}

std::optional<LiteralTensor> TensorOfNumber(const PythonJson& number, const std::string& dtype) {
  // The notes may come from an untrusted checkpoint, so a value of another type stays as it is.
  if (!number.is_number()) return std::nullopt;
  if (dtype == "float32") return LiteralTensor{DType::kFloat32, Shape(), BytesOf<float>(number.get<double>())};
  if (dtype == "float64") return LiteralTensor{DType::kFloat64, Shape(), BytesOf<double>(number.get<double>())};
  if (dtype == "int64") return LiteralTensor{DType::kInt64, Shape(), BytesOf<int64_t>(number.get<int64_t>())};
  return std::nullopt;
}

std::string Joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : absl::StrCat(path, ".", name);
}

// A copy of `json` with change(value, path) in place of each value for which that is not nullopt; does not descend into
// changed values. A path is names and indices joined by dots: "betas.0".
template <typename Change>
PythonJson Changed(const PythonJson& json, const std::string& path, const Change& change) {
  if (std::optional<PythonJson> changed = change(json, path)) return *std::move(changed);
  if (!json.is_structured()) return json;
  PythonJson result = json.is_array() ? PythonJson::array() : PythonJson::object();
  size_t index = 0;
  for (const auto& [name, value] : json.items()) {
    // Indices count as path elements, so that a single member of "betas" can be a tensor.
    if (json.is_array()) {
      result.push_back(Changed(value, Joined(path, absl::StrCat(index++)), change));
    } else {
      AppendMember(result, name, Changed(value, Joined(path, name), change));
    }
  }
  return result;
}

}  // namespace

PythonJson JsonOfTensor(const LiteralTensor& tensor) {
  PythonJson json;
  json[kPythonTag] = "tensor";
  json["dtype"] = std::string(DTypeName(tensor.dtype));
  json["shape"] = std::vector<int64_t>(tensor.shape.dims().begin(), tensor.shape.dims().end());
  json["hex"] = absl::BytesToHexString(tensor.bytes);
  return json;
}

std::optional<LiteralTensor> TensorOfJson(const PythonJson& json) {
  if (!json.is_object() || json.size() != 4 || json.value(kPythonTag, PythonJson()) != "tensor") return std::nullopt;
  const PythonJson dtype = json.value("dtype", PythonJson());
  const PythonJson shape = json.value("shape", PythonJson());
  const PythonJson hex = json.value("hex", PythonJson());
  if (!dtype.is_string() || !shape.is_array() || !hex.is_string()) return std::nullopt;
  const absl::StatusOr<DType> parsed_dtype = ParseDType(dtype.get<std::string>());
  std::vector<int64_t> dims;
  for (const PythonJson& dim : shape) {
    if (!dim.is_number_integer()) return std::nullopt;
    dims.push_back(dim.get<int64_t>());
  }
  const absl::StatusOr<Shape> parsed_shape = Shape::Create(dims);
  // Bounded before the bytes are decoded: any text of a checkpoint can claim to be a tensor.
  if (!parsed_dtype.ok() || !parsed_shape.ok() || parsed_shape->numel() > kMaxLiteralBytes) return std::nullopt;
  LiteralTensor tensor = {*parsed_dtype, *parsed_shape, absl::HexStringToBytes(hex.get<std::string>())};
  // The round trip refuses all spellings but one, so that text stays text (TextOfPython) unless it is certainly a
  // tensor.
  const bool is_whole = static_cast<int64_t>(tensor.bytes.size()) == parsed_shape->numel() * SizeOf(*parsed_dtype);
  return is_whole && JsonOfTensor(tensor) == json ? std::make_optional(std::move(tensor)) : std::nullopt;
}

PythonJson WithNumbersForTensors(const PythonJson& group) {
  PythonJson notes = PythonJson::object();  // dtype by path
  PythonJson plain = Changed(group, "", [&](const PythonJson& value, const std::string& path) {
    const std::optional<LiteralTensor> tensor = TensorOfJson(value);
    const PythonJson number = tensor ? NumberOfTensor(*tensor) : PythonJson();
    if (number.is_null()) return std::optional<PythonJson>();
    notes[path] = std::string(DTypeName(tensor->dtype));
    return std::make_optional(number);
  });
  if (!notes.empty()) plain[kTensorsOfGroup] = std::move(notes);
  return plain;
}

PythonJson WithTensorsForNumbers(const PythonJson& group) {
  const auto notes = group.find(kTensorsOfGroup);
  if (notes == group.end() || !notes->is_object()) return group;
  // The notes are removed before the walk, or they would be walked as members of the group.
  PythonJson plain = group;
  plain.erase(kTensorsOfGroup);
  return Changed(plain, "", [&](const PythonJson& value, const std::string& path) {
    const auto note = notes->find(path);
    if (note == notes->end() || !note->is_string()) return std::optional<PythonJson>();
    const std::optional<LiteralTensor> tensor = TensorOfNumber(value, note->get<std::string>());
    return tensor ? std::make_optional(JsonOfTensor(*tensor)) : std::nullopt;
  });
}

}  // namespace fsdp

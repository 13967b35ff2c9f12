// SPDX-License-Identifier: Apache-2.0
//
// The pickles of numpy, in all its versions (numpy 2 calls the module numpy._core.multiarray, numpy 1 numpy.core):
//
//   dtype    numpy.dtype("f8", False, True), with the state (3, "<", None, None, None, -1, -1, 0)
//   scalar   multiarray.scalar(dtype, bytes)
//   array    multiarray._reconstruct(numpy.ndarray, (0,), b"b"), with the state (1, shape, dtype, is_fortran, bytes)
#include "fsdp/checkpoint/foreign/torch/state/numpy_value.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "fsdp/checkpoint/foreign/torch/pickle/pickle_bytes.h"
#include "fsdp/checkpoint/foreign/torch/state/pickle_writer.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {
namespace {

using Kind = PickleKind;

struct NumpyDType {
  std::string_view name;  // with the byte order
  int64_t nbytes;
};

constexpr std::array kDTypes = {NumpyDType{"|b1", 1}, NumpyDType{"|i1", 1},  NumpyDType{"|u1", 1}, NumpyDType{"<i2", 2},
                                NumpyDType{"<u2", 2}, NumpyDType{"<i4", 4},  NumpyDType{"<u4", 4}, NumpyDType{"<i8", 8},
                                NumpyDType{"<u8", 8}, NumpyDType{"<f2", 2},  NumpyDType{"<f4", 4}, NumpyDType{"<f8", 8},
                                NumpyDType{"<c8", 8}, NumpyDType{"<c16", 16}};

const NumpyDType* FindDType(std::string_view name) {
  const auto* const at =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NumpyDType& dtype) { return dtype.name == name; });
  return at == kDTypes.end() ? nullptr : at;
}

// A number of any kind, or an array of integers or bools.
bool IsKept(const NumpyDType& dtype, bool is_scalar, int64_t numel, int64_t nbytes) {
  const char kind = dtype.name[1];
  const bool is_whole = nbytes % dtype.nbytes == 0 && nbytes / dtype.nbytes == numel;
  return nbytes <= kMaxNumpyBytes && is_whole && (is_scalar || (kind != 'f' && kind != 'c'));
}

// ("f8", False, True) and its state, or the state with the alignment flags that numpy 1 wrote as 0 and 1.
const NumpyDType* DTypeOf(PickleValue value) {
  if (!value.is_call("numpy.dtype") || !value.has_state()) return nullptr;
  const PickleValue arguments = value.arguments();
  const PickleValue state = value.state();
  const bool has_form = arguments.size() >= 1 && arguments.at(0).is(Kind::kString) && state.is(Kind::kTuple) &&
                        state.size() == 8 && state.at(1).is(Kind::kString);
  // Texts of a pickle can be long, and be in many calls.
  if (!has_form || arguments.at(0).text().size() > 3 || state.at(1).text().size() != 1) return nullptr;
  for (int i = 2; i < 5; ++i) {  // neither a subarray nor a structure
    if (!state.at(i).is(Kind::kNone)) return nullptr;
  }
  return FindDType(absl::StrCat(std::string(state.at(1).text()), std::string(arguments.at(0).text())));
}

PythonJson JsonOf(PickleValue call, const NumpyDType& dtype, PythonJson shape, const std::string& bytes) {
  PythonJson json;
  json[kPythonTag] = kNumpyTag;
  json["module"] = std::string(call.callee().global_module());
  json["dtype"] = std::string(dtype.name);
  json["shape"] = std::move(shape);
  json["hex"] = absl::BytesToHexString(bytes);
  return json;
}

bool IsScalar(PickleValue call) {
  return call.callee().global_name() == "scalar" && call.arguments().size() == 2 && !call.has_state();
}

bool IsArray(PickleValue call) {
  return call.callee().global_name() == "_reconstruct" && call.arguments().size() == 3 &&
         call.arguments().at(0).is_global("numpy.ndarray") && call.has_state() && call.state().is(Kind::kTuple) &&
         call.state().size() == 5 && call.state().at(1).is(Kind::kTuple);
}

std::optional<PythonJson> ScalarJson(PickleValue call) {
  const NumpyDType* const dtype = DTypeOf(call.arguments().at(0));
  const PickleValue value = call.arguments().at(1);
  if (dtype == nullptr) return std::nullopt;
  const std::optional<std::string> bytes = BytesOfPickle(value);
  if (!bytes || !IsKept(*dtype, /*is_scalar=*/true, 1, static_cast<int64_t>(bytes->size()))) return std::nullopt;
  return JsonOf(call, *dtype, nullptr, *bytes);
}

std::optional<PythonJson> ArrayJson(PickleValue call) {
  const PickleValue state = call.state();
  const NumpyDType* const dtype = DTypeOf(state.at(2));
  const bool is_row_major = state.at(3).is(Kind::kBool) && !state.at(3).boolean();
  if (dtype == nullptr || !is_row_major) return std::nullopt;
  std::vector<int64_t> dims;
  for (int64_t i = 0; i < std::min<int64_t>(state.at(1).size(), 64); ++i) {
    if (!state.at(1).at(i).is(Kind::kInt)) return std::nullopt;
    dims.push_back(state.at(1).at(i).integer());
  }
  const absl::StatusOr<Shape> shape = Shape::Create(dims);
  if (!shape.ok()) return std::nullopt;
  const std::optional<std::string> bytes = BytesOfPickle(state.at(4));
  const bool is_kept = bytes && state.at(1).size() == static_cast<int64_t>(dims.size()) &&
                       IsKept(*dtype, /*is_scalar=*/false, shape->numel(), static_cast<int64_t>(bytes->size()));
  return is_kept ? std::make_optional(JsonOf(call, *dtype, dims, *bytes)) : std::nullopt;
}

std::string TextOf(const PythonJson& json, const char* member) {
  const auto at = json.find(member);
  return at != json.end() && at->is_string() ? at->get<std::string>() : std::string();
}

void WriteDType(std::string_view name, PickleWriter& pickle) {
  pickle.Global("numpy.dtype");
  pickle.Mark();
  pickle.String(name.substr(1));
  pickle.Bool(false);
  pickle.Bool(true);
  pickle.Tuple();
  pickle.Reduce();
  pickle.Mark();
  pickle.Integer(3);
  pickle.String(name.substr(0, 1));
  for (int i = 0; i < 3; ++i) pickle.None();
  pickle.Integer(-1);
  pickle.Integer(-1);
  pickle.Integer(0);
  pickle.Tuple();
  pickle.Build();
}

}  // namespace

// Text in UTF-8 takes up to two bytes for each of its own.
int64_t BytesOfNumpy(PickleValue call) {
  const int64_t nbytes = IsScalar(call)  ? MaxBytesOfPickle(call.arguments().at(1))
                         : IsArray(call) ? MaxBytesOfPickle(call.state().at(4))
                                         : 0;
  return nbytes <= 2 * kMaxNumpyBytes ? nbytes : 0;
}

std::optional<PythonJson> JsonOfNumpy(PickleValue call) {
  // Empty arrays stay objects too.
  if (BytesOfNumpy(call) == 0) return std::nullopt;
  return IsScalar(call) ? ScalarJson(call) : ArrayJson(call);
}

bool IsNumpyJson(const PythonJson& json) {
  if (!json.is_object() || json.size() != 5 || TextOf(json, kPythonTag) != kNumpyTag) return false;
  const std::string module = TextOf(json, "module");
  const NumpyDType* const dtype = FindDType(TextOf(json, "dtype"));
  const auto shape = json.find("shape");
  const std::string hex = TextOf(json, "hex");
  const bool has_form = (module == "numpy._core.multiarray" || module == "numpy.core.multiarray") && dtype != nullptr &&
                        shape != json.end() && (shape->is_null() || shape->is_array()) &&
                        hex.size() <= static_cast<size_t>(2 * kMaxNumpyBytes);
  if (!has_form) return false;
  std::vector<int64_t> dims;
  for (const PythonJson& dim : *shape) {
    if (!dim.is_number_integer()) return false;
    dims.push_back(dim.get<int64_t>());
  }
  const absl::StatusOr<Shape> parsed = Shape::Create(dims);
  const std::string bytes = absl::HexStringToBytes(hex);
  return parsed.ok() && absl::BytesToHexString(bytes) == hex &&
         IsKept(*dtype, shape->is_null(), parsed->numel(), static_cast<int64_t>(bytes.size()));
}

void WriteNumpy(const PythonJson& json, PickleWriter& pickle) {
  const bool is_scalar = json["shape"].is_null();
  const std::string dtype = TextOf(json, "dtype");
  const std::string bytes = absl::HexStringToBytes(TextOf(json, "hex"));
  pickle.Global(absl::StrCat(TextOf(json, "module"), is_scalar ? ".scalar" : "._reconstruct"));
  pickle.Mark();
  if (is_scalar) {
    WriteDType(dtype, pickle);
    pickle.Bytes(bytes);
    pickle.Tuple();
    return pickle.Reduce();
  }
  pickle.Global("numpy.ndarray");
  pickle.Integers({0});
  pickle.Bytes("b");
  pickle.Tuple();
  pickle.Reduce();
  pickle.Mark();
  pickle.Integer(1);
  pickle.Integers(json["shape"].get<std::vector<int64_t>>());
  WriteDType(dtype, pickle);
  pickle.Bool(false);
  pickle.Bytes(bytes);
  pickle.Tuple();
  pickle.Build();
}

}  // namespace fsdp

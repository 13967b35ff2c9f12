// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/zarr_dtype.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/narrow_integer.h"
#include "fsdp/tensor/convert_elements.h"

namespace fsdp {
namespace {

// NumPy's kinds and sizes; byte order is the character before.
const std::map<std::string_view, DType>& NumPyTypes() {
  static const auto* const types = new std::map<std::string_view, DType>{
      {"b1", DType::kBool},      {"i1", DType::kInt8},        {"i2", DType::kInt16},   {"i4", DType::kInt32},
      {"i8", DType::kInt64},     {"u1", DType::kUInt8},       {"u2", DType::kUInt16},  {"u4", DType::kUInt32},
      {"u8", DType::kUInt64},    {"f2", DType::kFloat16},     {"f4", DType::kFloat32}, {"f8", DType::kFloat64},
      {"c8", DType::kComplex64}, {"c16", DType::kComplex128},
  };
  return *types;
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status NoValue(const ZarrDType& dtype, std::string_view text) {
  return absl::DataLossError(
      absl::StrCat("fill_value ", Printable(text), " is no value of ", std::string(DTypeName(dtype.dtype))));
}

// A number of a text that JSON has no number for, or of a JSON number.
bool NumberOf(std::string_view text, double& number) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text == "NaN") number = std::numeric_limits<double>::quiet_NaN();
  if (text == "Infinity") number = kInfinity;
  if (text == "-Infinity") number = -kInfinity;
  return text == "NaN" || text == "Infinity" || text == "-Infinity" || absl::SimpleAtod(View(text), &number);
}

// One part of an element, little-endian, to `out`.
absl::Status PartBytes(const ZarrDType& dtype, const JsonView& value, char* out) {
  const DType part = PartOf(dtype.dtype);
  const std::optional<std::string> quoted = value.string();
  const std::string text = quoted ? *quoted : std::string(value.text());
  const int64_t size = SizeOf(part);
  uint64_t bits = 0;
  if (quoted && absl::StartsWith(text, "0x") && absl::SimpleHexAtoi(text, &bits)) {
    if (size < 8 && bits >> (8 * size) != 0) return NoValue(dtype, text);
    std::memcpy(out, &bits, size);
    return absl::OkStatus();
  }
  if (part == DType::kBool && (text == "true" || text == "false")) {
    *out = text == "true" ? 1 : 0;
    return absl::OkStatus();
  }
  absl::Status status = NoValue(dtype, text);
  double number = 0;
  int64_t integer = 0;
  uint64_t natural = 0;
  if (IsFloatingPoint(part)) {
    if (NumberOf(text, number)) status = Convert(DType::kFloat64, &number, part, out, 1);
  } else if (!quoted && absl::SimpleAtoi(text, &integer)) {
    status = Convert(DType::kInt64, &integer, part, out, 1);
    // Convert keeps the low bits of a number that is too large.
    int64_t back = 0;
    if (status.ok()) status = Convert(part, out, DType::kInt64, &back, 1);
    if (status.ok() && back != integer) status = NoValue(dtype, text);
  } else if (!quoted && part == DType::kUInt64 && absl::SimpleAtoi(text, &natural)) {
    std::memcpy(out, &natural, sizeof(natural));
    status = absl::OkStatus();
  } else if (!quoted && NumberOf(text, number)) {  // "0.0" of an integer
    status = Convert(DType::kFloat64, &number, part, out, 1);
    double back = 0;
    if (status.ok()) status = Convert(part, out, DType::kFloat64, &back, 1);
    if (status.ok() && back != number) status = NoValue(dtype, text);
  }
  return status;
}

}  // namespace

// "<f4" of version 2, or "float32", "bfloat16", "float8_e4m3fn" of version 3 and of ml_dtypes.
std::optional<ZarrDType> ZarrDTypeOfName(std::string_view name) {
  if (name.size() > 2 && (name[0] == '<' || name[0] == '>' || name[0] == '|')) {
    const auto at = NumPyTypes().find(name.substr(1));
    if (at == NumPyTypes().end()) return std::nullopt;
    // "|" is for types of one byte.
    if (name[0] == '|' && SizeOf(at->second) != 1) return std::nullopt;
    return ZarrDType{at->second, name[0] == '>' && SizeOf(at->second) != 1};
  }
  if (const std::optional<NarrowInteger> narrow = NarrowIntegerOfName(name)) return ZarrDType{narrow->dtype, false};
  const absl::StatusOr<DType> dtype = ParseDType(name);
  return dtype.ok() ? std::make_optional(ZarrDType{*dtype, false}) : std::nullopt;
}

// A complex fill value is an array of two numbers; null, and no value, is zero, as tensorstore reads it.
absl::StatusOr<std::string> FillBytes(const ZarrDType& dtype, const std::optional<JsonView>& fill) {
  std::string bytes(SizeOf(dtype.dtype), '\0');
  if (!fill || fill->text() == "null") return bytes;
  const size_t part = SizeOf(PartOf(dtype.dtype));
  size_t at = 0;
  if (fill->is_array()) {
    for (const JsonView value : *fill) {
      if (at == bytes.size()) return NoValue(dtype, fill->text());
      FSDP_RETURN_IF_ERROR(PartBytes(dtype, value, bytes.data() + at));
      at += part;
    }
    if (at != bytes.size()) return NoValue(dtype, fill->text());
  } else {
    FSDP_RETURN_IF_ERROR(PartBytes(dtype, *fill, bytes.data()));
  }
  if (!dtype.is_swapped) return bytes;
  for (auto begin = bytes.begin(); begin != bytes.end(); begin += part) std::reverse(begin, begin + part);
  return bytes;
}

}  // namespace fsdp

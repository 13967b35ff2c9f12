// SPDX-License-Identifier: Apache-2.0
//
// A table, in the order of the enumerators' values, has the size, name and kind of each dtype: a new dtype
// is one line here, and a codec.

#include "fsdp/tensor/dtype.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/check.h"

namespace fsdp {
namespace {

struct Row {
  std::string_view name;
  int64_t size;
  bool floating;
};

// By the value of the enumerator.
constexpr std::array<Row, 22> kRows = {{
    {"float64", 8, true},         {"float32", 4, true},
    {"bfloat16", 2, true},        {"float16", 2, true},
    {"float8_e4m3fn", 1, true},   {"float8_e5m2", 1, true},
    {"int64", 8, false},          {"int32", 4, false},
    {"int16", 2, false},          {"int8", 1, false},
    {"uint64", 8, false},         {"uint32", 4, false},
    {"uint16", 2, false},         {"uint8", 1, false},
    {"bool", 1, false},           {"complex32", 4, false},
    {"complex64", 8, false},      {"complex128", 16, false},
    {"float8_e4m3fnuz", 1, true}, {"float8_e5m2fnuz", 1, true},
    {"float8_e8m0fnu", 1, true},  {"float4_e2m1fn_x2", 1, false},
}};

constexpr std::array<DType, kRows.size()> kAll = [] {
  std::array<DType, kRows.size()> all{};
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<DType>(i);
  return all;
}();

const Row& RowOf(DType dtype) {
  Check(static_cast<size_t>(dtype) < kRows.size(), "not a DType");
  return kRows[static_cast<size_t>(dtype)];
}

}  // namespace

absl::Span<const DType> AllDTypes() { return kAll; }

int64_t SizeOf(DType dtype) { return RowOf(dtype).size; }

std::string_view DTypeName(DType dtype) { return RowOf(dtype).name; }

absl::StatusOr<DType> ParseDType(std::string_view name) {
  for (DType dtype : kAll) {
    if (DTypeName(dtype) == name) return dtype;
  }
  const auto append_name = [](std::string* out, DType dtype) { out->append(DTypeName(dtype)); };
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype \"", std::string(name), "\"; known: ", absl::StrJoin(kAll, ", ", append_name)));
}

bool IsFloatingPoint(DType dtype) { return RowOf(dtype).floating; }

bool IsPacked(DType dtype) { return dtype == DType::kFloat4E2M1FNx2; }

bool IsComplex(DType dtype) { return PartOf(dtype) != dtype; }

DType PartOf(DType dtype) {
  switch (dtype) {
    case DType::kComplex32:
      return DType::kFloat16;
    case DType::kComplex64:
      return DType::kFloat32;
    case DType::kComplex128:
      return DType::kFloat64;
    default:
      return dtype;
  }
}

}  // namespace fsdp

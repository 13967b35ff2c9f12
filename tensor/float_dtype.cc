// SPDX-License-Identifier: Apache-2.0
#include "fsdp/tensor/float_dtype.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

// A floating-point dtype and its other names. In the order in which a message lists them.
struct Row {
  DType dtype;
  std::vector<std::string> synonyms;
};

const std::vector<Row>& Rows() {
  static const auto* rows = new std::vector<Row>{
      {DType::kFloat32, {"fp32", "f32", "float"}},
      {DType::kBFloat16, {"bf16"}},
      {DType::kFloat16, {"fp16", "f16", "half"}},
      {DType::kFloat64, {"fp64", "f64", "double"}},
      {DType::kFloat8E4M3FN, {"fp8_e4m3", "f8_e4m3", "float8_e4m3"}},
      {DType::kFloat8E5M2, {"fp8_e5m2", "f8_e5m2"}},
      {DType::kFloat8E4M3FNUZ, {}},
      {DType::kFloat8E5M2FNUZ, {}},
      {DType::kFloat8E8M0FNU, {}},
  };
  return *rows;
}

// "float16 (fp16, f16, half)".
std::string NamesOf(const Row& row) {
  const std::string name(DTypeName(row.dtype));
  return row.synonyms.empty() ? name : absl::StrCat(name, " (", absl::StrJoin(row.synonyms, ", "), ")");
}

}  // namespace

absl::StatusOr<DType> ParseFloatDType(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  const std::string name(absl::StripPrefix(lower, "torch."));
  std::vector<std::string> expected;
  for (const Row& row : Rows()) {
    if (name == DTypeName(row.dtype)) return row.dtype;
    for (const std::string& synonym : row.synonyms) {
      if (name == synonym) return row.dtype;
    }
    expected.push_back(NamesOf(row));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Printable(text), ", expected a floating-point dtype: ", absl::StrJoin(expected, ", ")));
}

std::string FloatDTypeName(std::string_view text) {
  const absl::StatusOr<DType> dtype = ParseFloatDType(text);
  return std::string(dtype.ok() ? DTypeName(*dtype) : text);
}

}  // namespace fsdp

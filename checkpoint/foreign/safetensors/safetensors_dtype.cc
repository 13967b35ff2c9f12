// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/safetensors/safetensors_dtype.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "fsdp/base/check.h"
#include "fsdp/base/quote.h"

namespace fsdp {
namespace {

struct DTypeEntry {
  std::string_view name;
  std::optional<DType> dtype;  // nullopt: a dtype of the format that this project does not support
};

// The order is the reference library's, by ascending alignment; files are written in descending order.
constexpr std::array<DTypeEntry, 22> kDTypes = {{
    {"BOOL", DType::kBool},
    {"F4", DType::kFloat4E2M1FNx2},
    {"F6_E2M3", std::nullopt},
    {"F6_E3M2", std::nullopt},
    {"U8", DType::kUInt8},
    {"I8", DType::kInt8},
    {"F8_E5M2", DType::kFloat8E5M2},
    {"F8_E4M3", DType::kFloat8E4M3FN},
    {"F8_E8M0", DType::kFloat8E8M0FNU},
    {"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    {"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
    {"I16", DType::kInt16},
    {"U16", DType::kUInt16},
    {"F16", DType::kFloat16},
    {"BF16", DType::kBFloat16},
    {"I32", DType::kInt32},
    {"U32", DType::kUInt32},
    {"F32", DType::kFloat32},
    {"C64", DType::kComplex64},
    {"F64", DType::kFloat64},
    {"I64", DType::kInt64},
    {"U64", DType::kUInt64},
}};

}  // namespace

bool HasSafetensorsDType(DType dtype) { return SafetensorsDTypeOrder(dtype) < static_cast<int>(kDTypes.size()); }

std::string_view SafetensorsDTypeName(DType dtype) {
  Check(HasSafetensorsDType(dtype), "a dtype that safetensors does not have");
  return kDTypes[SafetensorsDTypeOrder(dtype)].name;
}

int SafetensorsDTypeOrder(DType dtype) {
  const auto at = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const DTypeEntry& e) { return e.dtype == dtype; });
  return static_cast<int>(at - kDTypes.begin());
}

absl::StatusOr<DType> ParseSafetensorsDType(std::string_view name) {
  for (const DTypeEntry& entry : kDTypes) {
    if (entry.name != name) continue;
    if (entry.dtype.has_value()) return *entry.dtype;
    return absl::InvalidArgumentError(absl::StrCat("dtype ", std::string(name), " is not supported"));
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", Quote(name)));
}

}  // namespace fsdp

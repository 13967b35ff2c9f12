// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/gguf/ggml_type.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "fsdp/checkpoint/foreign/gguf/dequantize.h"
#include "fsdp/checkpoint/foreign/gguf/quantize.h"

namespace fsdp {
namespace {

constexpr DType kF32 = DType::kFloat32;

// ids 4, 5, 31 to 33 and 36 to 38 were types of earlier releases, which llama.cpp does not read any more either.
constexpr GgmlType kTypes[] = {
    {0, "F32", 1, 4, kF32},
    {1, "F16", 1, 2, DType::kFloat16},
    {2, "Q4_0", 32, 18, kF32, DequantizeQ4_0},
    {3, "Q4_1", 32, 20, kF32, DequantizeQ4_1},
    {6, "Q5_0", 32, 22, kF32, DequantizeQ5_0},
    {7, "Q5_1", 32, 24, kF32, DequantizeQ5_1},
    {8, "Q8_0", 32, 34, kF32, DequantizeQ8_0, QuantizeQ8_0},
    {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84, kF32, DequantizeQ2K},
    {11, "Q3_K", 256, 110, kF32, DequantizeQ3K},
    {12, "Q4_K", 256, 144, kF32, DequantizeQ4K},
    {13, "Q5_K", 256, 176, kF32, DequantizeQ5K},
    {14, "Q6_K", 256, 210, kF32, DequantizeQ6K},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66, kF32, DequantizeIQ2XXS},
    {17, "IQ2_XS", 256, 74, kF32, DequantizeIQ2XS},
    {18, "IQ3_XXS", 256, 98, kF32, DequantizeIQ3XXS},
    {19, "IQ1_S", 256, 50, kF32, DequantizeIQ1S},
    {20, "IQ4_NL", 32, 18, kF32, DequantizeIQ4NL},
    {21, "IQ3_S", 256, 110, kF32, DequantizeIQ3S},
    {22, "IQ2_S", 256, 82, kF32, DequantizeIQ2S},
    {23, "IQ4_XS", 256, 136, kF32, DequantizeIQ4XS},
    {24, "I8", 1, 1, DType::kInt8},
    {25, "I16", 1, 2, DType::kInt16},
    {26, "I32", 1, 4, DType::kInt32},
    {27, "I64", 1, 8, DType::kInt64},
    {28, "F64", 1, 8, DType::kFloat64},
    {29, "IQ1_M", 256, 56, kF32, DequantizeIQ1M},
    {30, "BF16", 1, 2, DType::kBFloat16},
    {34, "TQ1_0", 256, 54, kF32, DequantizeTQ1_0},
    {35, "TQ2_0", 256, 66, kF32, DequantizeTQ2_0},
    {39, "MXFP4", 32, 17, kF32, DequantizeMXFP4, QuantizeMXFP4},
    {40, "NVFP4", 64, 36, kF32, DequantizeNVFP4},
    {41, "Q1_0", 128, 18},
};

template <typename Condition>
const GgmlType* FindType(Condition is_wanted) {
  const auto* const at = std::find_if(std::begin(kTypes), std::end(kTypes), is_wanted);
  return at == std::end(kTypes) ? nullptr : at;
}

}  // namespace

absl::Span<const GgmlType> GgmlTypes() { return kTypes; }

const GgmlType* FindGgmlType(uint32_t id) {
  return FindType([&](const GgmlType& type) { return type.id == id; });
}

const GgmlType* FindGgmlType(std::string_view name) {
  return FindType([&](const GgmlType& type) {
    return absl::EqualsIgnoreCase(absl::string_view(type.name.data(), type.name.size()),
                                  absl::string_view(name.data(), name.size()));
  });
}

const GgmlType* FindGgmlType(DType dtype) {
  return FindType([&](const GgmlType& type) { return !type.is_quantized() && type.dtype == dtype; });
}

}  // namespace fsdp

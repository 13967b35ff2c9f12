// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/onnx/onnx_type.h"

#include <algorithm>

namespace fsdp {
namespace {

constexpr int kFloats = 4;
constexpr int kInt32s = 5;
constexpr int kInt64s = 7;
constexpr int kDoubles = 10;
constexpr int kUInt64s = 11;

constexpr OnnxType kTypes[] = {
    {1, "FLOAT", 32, DType::kFloat32, kFloats, 4},
    {2, "UINT8", 8, DType::kUInt8, kInt32s, 1},
    {3, "INT8", 8, DType::kInt8, kInt32s, 1, true},
    {4, "UINT16", 16, DType::kUInt16, kInt32s, 2},
    {5, "INT16", 16, DType::kInt16, kInt32s, 2, true},
    {6, "INT32", 32, DType::kInt32, kInt32s, 4, true},
    {7, "INT64", 64, DType::kInt64, kInt64s, 8, true},
    {8, "STRING"},
    {9, "BOOL", 8, DType::kBool, kInt32s, 1},
    {10, "FLOAT16", 16, DType::kFloat16, kInt32s, 2},
    {11, "DOUBLE", 64, DType::kFloat64, kDoubles, 8},
    {12, "UINT32", 32, DType::kUInt32, kUInt64s, 4},
    {13, "UINT64", 64, DType::kUInt64, kUInt64s, 8},
    {14, "COMPLEX64", 64, DType::kComplex64, kFloats, 4},
    {15, "COMPLEX128", 128, DType::kComplex128, kDoubles, 8},
    {16, "BFLOAT16", 16, DType::kBFloat16, kInt32s, 2},
    {17, "FLOAT8E4M3FN", 8, DType::kFloat8E4M3FN, kInt32s, 1},
    {18, "FLOAT8E4M3FNUZ", 8, DType::kFloat8E4M3FNUZ, kInt32s, 1},
    {19, "FLOAT8E5M2", 8, DType::kFloat8E5M2, kInt32s, 1},
    {20, "FLOAT8E5M2FNUZ", 8, DType::kFloat8E5M2FNUZ, kInt32s, 1},
    {21, "UINT4", 4, DType::kUInt8, kInt32s, 1},
    {22, "INT4", 4, DType::kInt8, kInt32s, 1, true},
    {23, "FLOAT4E2M1", 4, DType::kFloat4E2M1FNx2, kInt32s, 1},
    {24, "FLOAT8E8M0", 8, DType::kFloat8E8M0FNU, kInt32s, 1},
    {25, "UINT2", 2, DType::kUInt8, kInt32s, 1},
    {26, "INT2", 2, DType::kInt8, kInt32s, 1, true},
};

}  // namespace

const OnnxType* FindOnnxType(int id) {
  const auto* const at =
      std::find_if(std::begin(kTypes), std::end(kTypes), [&](const OnnxType& type) { return type.id == id; });
  return at == std::end(kTypes) ? nullptr : at;
}

void ExpandOnnxElements(const OnnxType& type, const std::byte* bytes, int64_t first, int64_t count, std::byte* out) {
  const int per_byte = 8 / type.bits;
  const int mask = (1 << type.bits) - 1;
  const int sign = type.is_signed ? 1 << (type.bits - 1) : 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i;
    const int code = static_cast<int>(bytes[at / per_byte]) >> (type.bits * (at % per_byte)) & mask;
    out[i] = static_cast<std::byte>((code ^ sign) - sign);
  }
}

}  // namespace fsdp

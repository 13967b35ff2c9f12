// SPDX-License-Identifier: Apache-2.0
//
// DType: the element types that tensors hold: all of PyTorch's but the quantized ones. Names are PyTorch's,
// without "torch.". Kernels compute in a few of them (tensor/ops.h, nn/ops/layer_ops.h); all others are stored,
// converted and resharded.
#ifndef FSDP_TENSOR_DTYPE_H_
#define FSDP_TENSOR_DTYPE_H_

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fsdp {

// Values go through shared memory between ranks; never renumber.
enum class DType : uint8_t {
  kFloat64 = 0,
  kFloat32 = 1,
  kBFloat16 = 2,
  kFloat16 = 3,
  kFloat8E4M3FN = 4,  // OCP: no infinities, one NaN pattern per sign
  kFloat8E5M2 = 5,    // IEEE-like
  kInt64 = 6,
  kInt32 = 7,
  kInt16 = 8,
  kInt8 = 9,
  kUInt64 = 10,
  kUInt32 = 11,
  kUInt16 = 12,
  kUInt8 = 13,
  kBool = 14,       // one byte, 0 or 1; any other byte that a file has counts as 1
  kComplex32 = 15,  // a complex number is its real part, then its imaginary part
  kComplex64 = 16,
  kComplex128 = 17,
  kFloat8E4M3FNUZ = 18,  // no infinities and no -0, whose code is the one NaN
  kFloat8E5M2FNUZ = 19,
  kFloat8E8M0FNU = 20,  // powers of two: no sign, no zero

  // Packed: an element is a byte of two numbers, the first in its low half. A shape counts bytes, as PyTorch's does: a
  // row of 32 numbers has 16 elements. Only stored and compared, never converted.
  kFloat4E2M1FNx2 = 21,
};

// All dtypes, in the order of their values; for tables and for messages that list them. The span is always valid.
absl::Span<const DType> AllDTypes();

// Bytes of one element: 1, 2, 4, 8 or 16. A complex number counts with both parts. This function and DTypeName abort on
// a number that is not an enumerator.
int64_t SizeOf(DType dtype);

// "float32", "bfloat16", "float8_e4m3fn", ..., "bool".
std::string_view DTypeName(DType dtype);

// The inverse of DTypeName. Any other name is kInvalidArgument, with a message that lists the known ones. Names are
// compared exactly, case included.
absl::StatusOr<DType> ParseDType(std::string_view name);

// True for the nine floating-point dtypes that convert to one another, float8 formats included; not for complex ones,
// as in PyTorch, and not for packed ones.
bool IsFloatingPoint(DType dtype);

// True for float4_e2m1fn_x2: an element is two numbers (UnpackFloats in convert_elements.h).
bool IsPacked(DType dtype);

// True for the three complex dtypes.
bool IsComplex(DType dtype);

// The dtype of the real and of the imaginary part of a complex dtype; any other dtype itself. float16 for complex32,
// float32 for complex64, float64 for complex128.
DType PartOf(DType dtype);

}  // namespace fsdp

#endif  // FSDP_TENSOR_DTYPE_H_

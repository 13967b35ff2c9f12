// SPDX-License-Identifier: Apache-2.0
//
// For tests of kernels: tensors on TestDevice, at any element offset from a cache line, since parameters are views of
// flat buffers. Their memory is between guards, which are checked when it is freed: a kernel that writes outside fails
// the test.
#ifndef FSDP_NN_TENSOR_TESTUTIL_H_
#define FSDP_NN_TENSOR_TESTUTIL_H_

#include <cstdint>
#include <vector>

#include "fsdp/nn/ops/reference_ops.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// `values`, rounded to `dtype` (float32, bfloat16, float16 or int32), in memory `offset` elements after a cache line.
Tensor TestTensor(DType dtype, const Shape& shape, const Doubles& values, int64_t offset = 0);

// A matrix with rows `row_stride` elements apart, and NaN between them; contiguous if the stride is its columns.
Tensor PaddedTensor(DType dtype, const Shape& shape, const Doubles& values, int64_t row_stride);

// All NaN: an output that must be written everywhere.
Tensor NanTensor(DType dtype, const Shape& shape, int64_t offset = 0);

Tensor TokenTensor(const std::vector<int32_t>& tokens, const Shape& shape);

// The elements of `t`, which may be on any device, widened exactly. Blocks.
Doubles ValuesOf(const Tensor& t);

// `n` normally distributed values that `dtype` represents exactly.
Doubles RandomValues(DType dtype, int64_t n, int seed);

// Fails the test unless each element is within `relative` of `expected` plus `relative` of expected's root mean square.
void ExpectClose(const Tensor& t, const Doubles& expected, double relative);

// Fails the test unless both have the same bytes: NaN and the sign of zero count.
void ExpectSameBytes(const Tensor& a, const Tensor& b);

}  // namespace fsdp

#endif  // FSDP_NN_TENSOR_TESTUTIL_H_

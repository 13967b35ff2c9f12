// SPDX-License-Identifier: Apache-2.0
//
// A bfloat16 or float16 matrix product by float32 ones: tile by tile, operands are widened into working memory of some
// megabytes a thread, multiplied and summed in float32, and the result is rounded once. Tiles depend only on the shape.
#ifndef FSDP_NN_HOST_CONVERTED_MATMUL_H_
#define FSDP_NN_HOST_CONVERTED_MATMUL_H_

#include "absl/status/status.h"
#include "fsdp/nn/host/onednn_matmul.h"
#include "fsdp/nn/ops/gemm.h"

namespace fsdp {

// Any transposition, with or without bias, accumulating or not. An error is oneDNN's, and c may then be half written.
// Precondition: gemm.dtype is bfloat16 or float16, no dimension is 0.
absl::Status ConvertedMatmul(const Gemm& gemm, const OneDnnMatmul& float32);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_CONVERTED_MATMUL_H_

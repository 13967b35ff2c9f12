// SPDX-License-Identifier: Apache-2.0
//
// Gemm: a matrix product on the host or on a GPU, as addresses, strides and dtypes.
#ifndef FSDP_NN_OPS_GEMM_H_
#define FSDP_NN_OPS_GEMM_H_

#include <cstdint>

#include "fsdp/tensor/dtype.h"

namespace fsdp {

// Matrices are row-major. The product is over k, and c has float32 sums that are rounded once, whatever the dtypes. c
// [m, n] = a [m, k] b [k, n] + bias [n], or c += a b. A transposed operand is stored as [k, m] or [n, k]. The rows in
// memory are `lda`, `ldb`, `ldc` elements apart.
struct Gemm {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  // Not owned. c overlaps neither a, b nor bias. The addresses are of the host, or of a GPU for CudaMatmul.
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // may be null; null when accumulating
  void* c = nullptr;
  // At least the columns of the operand as stored: k or m for a, n or k for b, n for c.
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  DType dtype = DType::kFloat32;    // of a, b and bias: float32, bfloat16 or float16
  DType c_dtype = DType::kFloat32;  // float32, or `dtype`
  // How a and b are stored, and whether c keeps its old values as a term of the sum.
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

}  // namespace fsdp

#endif  // FSDP_NN_OPS_GEMM_H_

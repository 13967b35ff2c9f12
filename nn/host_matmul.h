// SPDX-License-Identifier: Apache-2.0
//
// HostMatmul: matrix products on the host by oneDNN, float32 and bfloat16 with float32 accumulation. Primitives are
// made once per shape and kept. Where oneDNN has no bfloat16 for this processor (AVX2), operands are converted to
// float32, multiplied, and the result is rounded once. Runs at once on the calling thread; thread-safe. The bits of a
// result depend on the operands' values and shape and on `threads`, never on their addresses.
#ifndef FSDP_NN_HOST_MATMUL_H_
#define FSDP_NN_HOST_MATMUL_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "tensor/dtype.h"

namespace fsdp {

// c [m, n] = a [m, k] b [k, n] + bias [n], or c += a b. A transposed operand lies in memory as [k, m] or [n, k]. The
// rows in memory are `lda`, `ldb`, `ldc` elements apart.
struct Gemm {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // may be null; null when accumulating
  void* c = nullptr;
  int64_t lda = 0;
  int64_t ldb = 0;
  int64_t ldc = 0;
  DType dtype = DType::kFloat32;    // of a, b and bias: float32 or bfloat16
  DType c_dtype = DType::kFloat32;  // float32, or `dtype`
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
};

class HostMatmul {
 public:
  // `threads` is the number that one product may use.
  explicit HostMatmul(int threads);
  ~HostMatmul();

  // kInvalidArgument for dtypes other than those above; kInternal with oneDNN's words when it fails.
  absl::Status Run(const Gemm& gemm) const;

 private:
  class Primitives;
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace fsdp

#endif  // FSDP_NN_HOST_MATMUL_H_

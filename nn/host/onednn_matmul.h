// SPDX-License-Identifier: Apache-2.0
//
// OneDnnMatmul: matrix products by oneDNN, float32, or bfloat16 with float32 sums if the processor has instructions for
// it. Primitives are made once per shape and kept as long as this object. Runs immediately on the calling thread;
// thread-safe. The bits of a result depend on the operands' values and shape and on `threads`, never on their
// addresses. oneDNN's exceptions do not leave this class.
#ifndef FSDP_NN_HOST_ONEDNN_MATMUL_H_
#define FSDP_NN_HOST_ONEDNN_MATMUL_H_

#include <memory>

#include "absl/status/status.h"
#include "fsdp/nn/ops/gemm.h"

namespace fsdp {

class OneDnnMatmul {
 public:
  // `threads` is the number that one product may use.
  explicit OneDnnMatmul(int threads);
  ~OneDnnMatmul();

  // kUnimplemented if oneDNN has no bfloat16 for this processor; kInternal with oneDNN's message when it fails.
  // Preconditions: dtypes as in Gemm, no dimension 0.
  absl::Status Run(const Gemm& gemm) const;

 private:
  class Primitives;
  std::unique_ptr<Primitives> primitives_;
};

}  // namespace fsdp

#endif  // FSDP_NN_HOST_ONEDNN_MATMUL_H_

// SPDX-License-Identifier: Apache-2.0
//
// HostMatmul: matrix products on the host, float32, bfloat16 and float16 with float32 accumulation, by oneDNN. If
// oneDNN has no bfloat16 for this processor (AVX2), or one at half of float32's speed, and for float16, operands are
// converted to float32 tile by tile, multiplied, and the result is rounded once. Runs immediately on the calling
// thread; thread-safe. The bits of a result depend on the operands' values and shape, the processor and `threads`,
// never on addresses.
#ifndef FSDP_NN_HOST_HOST_MATMUL_H_
#define FSDP_NN_HOST_HOST_MATMUL_H_

#include "absl/status/status.h"
#include "fsdp/nn/host/onednn_matmul.h"
#include "fsdp/nn/ops/gemm.h"

namespace fsdp {

// How bfloat16 operands are multiplied.
enum class BFloat16Products : uint8_t {
  kNative,     // by the processor's bfloat16 instructions; converted all the same if oneDNN lacks them
  kConverted,  // as float32
};

// The faster one on this processor. A rule, not a measurement, so that all ranks on such processors get the same bits.
BFloat16Products FastBFloat16Products();

// Streams share one: products of several threads run at the same time, each on `threads` threads.
class HostMatmul {
 public:
  // `threads` is the number that one product may use.
  explicit HostMatmul(int threads, BFloat16Products products = FastBFloat16Products());

  // A product with m or n of 0 does nothing. kInvalidArgument for dtypes other than Gemm's; kInternal with oneDNN's
  // message when it fails.
  absl::Status Run(const Gemm& gemm) const;

 private:
  const BFloat16Products products_;
  const OneDnnMatmul onednn_;
};

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_MATMUL_H_

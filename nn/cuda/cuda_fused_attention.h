// SPDX-License-Identifier: Apache-2.0
//
// CudaFusedAttention: cuDNN's attention on one CUDA device, for the calls that it can serve: AttentionRounding::kOnline
// in 16 bits, if cuDNN is installed, on GPUs of compute capability 9.0, the only ones on which it was run, and for
// shapes that it has a deterministic engine for. Our own kernels serve all others; both keep the same statistics.
// Thread-safe.
#ifndef FSDP_NN_CUDA_CUDA_FUSED_ATTENTION_H_
#define FSDP_NN_CUDA_CUDA_FUSED_ATTENTION_H_

#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/nn/cudnn/cudnn_attention.h"
#include "fsdp/nn/ops/kernel_options.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// Operands as for LayerOps::CausalAttention and CausalAttentionBackward.
class CudaFusedAttention {
 public:
  // Puts the work on `stream` and returns true, or returns false if cuDNN does not serve the call. Any other failure is
  // the stream's.
  bool Forward(const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& statistics,
               CudaStream& stream);
  struct BackwardOperands {
    const Tensor& grad_out;
    const Tensor& qkv;
    const Tensor& out;
    const Tensor& statistics;
    const Tensor& grad_qkv;
  };
  bool Backward(const BackwardOperands& operands, const AttentionShape& shape, CudaStream& stream);

  // LayerOps::AttentionKernels on the device of number `ordinal`. Makes the plans for the shape.
  std::string Describe(const AttentionShape& shape, DType dtype, int ordinal);

 private:
  // cuDNN on the device, opened by the first call, or the reason why it could not be opened.
  absl::StatusOr<std::shared_ptr<CudnnAttention>> Open(int ordinal);
  // The same for one call; null if cuDNN does not serve it.
  std::shared_ptr<CudnnAttention> For(const AttentionShape& shape, std::initializer_list<const Tensor*> operands,
                                      CudaStream& stream);

  std::mutex mutex_;
  std::unique_ptr<absl::StatusOr<std::shared_ptr<CudnnAttention>>> opened_;  // guarded by mutex_
};

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_FUSED_ATTENTION_H_

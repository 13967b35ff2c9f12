// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy on a CUDA device: a block for each row, one pass over the logits forward, one backward; see
// nn/ops/layer_ops.h for the contract. Operands are right but for the targets' values. Kernels are put on `stream`;
// nothing is waited for.
#ifndef FSDP_NN_CUDA_CUDA_CROSS_ENTROPY_H_
#define FSDP_NN_CUDA_CUDA_CROSS_ENTROPY_H_

#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

struct KernelRefusal;

// A target that is not a class is written to `refusal`; the loss is then NaN. `row_losses` has room for one each.
// logits [N, V], targets int32 [N], loss float32 [1], statistics float32 [N, 2].
void CudaCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                      double* row_losses, KernelRefusal* refusal, CUstream_st* stream);

// grad_logits may be `logits`. A target that forward refused gets no one-hot term.
void CudaCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_CROSS_ENTROPY_H_

// SPDX-License-Identifier: Apache-2.0
//
// Cross entropy on a CUDA device: a block for each row; see nn/ops/layer_ops.h for the contract. The loss and its
// gradient together read the logits from memory once, if a row fits into a block's shared memory. Operands have been
// checked except for the targets' values, and rows may be padded. Results do not depend on alignment or padding.
// Kernels are put on `stream`; nothing is waited for.
#ifndef FSDP_NN_CUDA_CUDA_CROSS_ENTROPY_H_
#define FSDP_NN_CUDA_CUDA_CROSS_ENTROPY_H_

#include "fsdp/tensor/tensor.h"

struct CUstream_st;

namespace fsdp {

struct KernelRefusal;
struct DeviceScale;

// Operands of forward: logits [N, V], targets int32 [N], loss float32 [1], statistics float32 [N, 2], and room for a
// loss of each row. A target that is not a class is written to `refusal`; the loss is then NaN.
struct CrossEntropyOperands {
  Tensor logits, targets, loss, statistics;
  double* row_losses = nullptr;
  KernelRefusal* refusal = nullptr;
};

void CudaCrossEntropy(const CrossEntropyOperands& operands, CUstream_st* stream);

// grad_logits may be `logits`. A target that forward refused gets no one-hot term.
void CudaCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, CUstream_st* stream);

// Both, into the logits, with the same bits as one after the other.
void CudaCrossEntropyWithGradient(const CrossEntropyOperands& operands, float scale, CUstream_st* stream);

// The same by a scale in device memory.
void CudaCrossEntropyWithGradient(const CrossEntropyOperands& operands, const DeviceScale& scale, CUstream_st* stream);

}  // namespace fsdp

#endif  // FSDP_NN_CUDA_CUDA_CROSS_ENTROPY_H_

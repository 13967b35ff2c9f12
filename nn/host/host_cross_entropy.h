// SPDX-License-Identifier: Apache-2.0
//
// The host's softmax cross entropy; see nn/ops/layer_ops.h for the contract. Runs immediately on up to `threads`
// threads, each on an interval of the rows. A logit that is NaN makes the loss NaN, and the gradients of its row.
#ifndef FSDP_NN_HOST_HOST_CROSS_ENTROPY_H_
#define FSDP_NN_HOST_HOST_CROSS_ENTROPY_H_

#include "absl/status/status.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// logits [N, V], float32, bfloat16 or float16; targets int32, N elements; loss float32 [1]; statistics float32 [N, 2].
// kOutOfRange names a target outside [0, V) and its place.
absl::Status HostCrossEntropy(const Tensor& logits, const Tensor& targets, const Tensor& loss, const Tensor& statistics,
                              int threads);

// grad_logits = scale / N (softmax(logits) - one_hot(targets)); may be `logits` itself. Precondition: HostCrossEntropy
// accepted the targets.
void HostCrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& statistics, float scale,
                              const Tensor& grad_logits, int threads);

}  // namespace fsdp

#endif  // FSDP_NN_HOST_HOST_CROSS_ENTROPY_H_

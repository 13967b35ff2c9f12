// SPDX-License-Identifier: Apache-2.0
//
// CrossEntropyLoss: the mean over tokens of the cross entropy of softmax(logits) against targets, in float32 whatever
// the logits' dtype.
//
//   FSDP_ASSIGN_OR_RETURN(Tensor logits, model.Forward(tokens, tape));
//   FSDP_ASSIGN_OR_RETURN(Tensor loss, CrossEntropyLoss().Forward(logits, targets, tape));
//   FSDP_ASSIGN_OR_RETURN(Tensor grad_logits, CrossEntropyLoss().Backward(1.0f / grad_accum, tape));
//   FSDP_RETURN_IF_ERROR(model.Backward(grad_logits, tape).status());
#ifndef FSDP_NN_CROSS_ENTROPY_LOSS_H_
#define FSDP_NN_CROSS_ENTROPY_LOSS_H_

#include "absl/status/statusor.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class CrossEntropyLoss final {
 public:
  // logits [N, V]; targets int32 with N elements. Returns the loss, float32 [1], on the stream's device.
  absl::StatusOr<Tensor> Forward(const Tensor& logits, const Tensor& targets, Tape& tape) const;

  // d (scale * loss) / d logits. The logits' memory is reused for it: they are gone afterwards.
  absl::StatusOr<Tensor> Backward(float scale, Tape& tape) const;
};

}  // namespace fsdp

#endif  // FSDP_NN_CROSS_ENTROPY_LOSS_H_

// SPDX-License-Identifier: Apache-2.0
//
// CrossEntropyLoss: the mean over tokens of the cross entropy of softmax(logits) against targets, in float32 whatever
// the logits' dtype.
//
//   FSDP_ASSIGN_OR_RETURN(Tensor logits, model.Forward(tokens, tape));
//   FSDP_ASSIGN_OR_RETURN(Tensor loss, CrossEntropyLoss().Forward(logits, targets, tape));
//   FSDP_ASSIGN_OR_RETURN(Tensor grad_logits, CrossEntropyLoss().Backward(1.0f / grad_accum, tape));
//   FSDP_RETURN_IF_ERROR(model.Backward(grad_logits, tape).status());
//
// If nothing happens between the two, use ForwardBackward, which is faster on a GPU.
#ifndef FSDP_NN_CROSS_ENTROPY_LOSS_H_
#define FSDP_NN_CROSS_ENTROPY_LOSS_H_

#include "absl/status/statusor.h"
#include "fsdp/nn/ops/device_scaled_loss.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// It is not a Module: it has two inputs and no parameters, and hooks do not apply to it. It has no state, so one
// object, or a temporary as above, serves any number of tapes.
class CrossEntropyLoss final {
 public:
  // logits [N, V], float32, bfloat16 or float16; targets int32 with N elements, each in [0, V). Returns the loss,
  // float32 [1], on the stream's device: reading it is the caller's copy and wait. Returns kInvalidArgument for wrong
  // shapes; a target outside [0, V) is found only when the kernel runs, and fails the stream.
  absl::StatusOr<Tensor> Forward(const Tensor& logits, const Tensor& targets, Tape& tape) const;

  // d (scale * loss) / d logits [N, V], in the logits' dtype. The logits' own memory holds the result, so every tensor
  // that shares it has lost the logits afterwards. `scale` is 1 / (number of micro-batches) if gradients are
  // accumulated.
  absl::StatusOr<Tensor> Backward(float scale, Tape& tape) const;

  // Forward and Backward in one call, with the results of both: a GPU then reads the logits once. Keeps nothing on the
  // tape.
  struct LossAndGradient {
    Tensor loss, grad_logits;
  };
  absl::StatusOr<LossAndGradient> ForwardBackward(const Tensor& logits, const Tensor& targets, float scale,
                                                  Tape& tape) const;

  // The same by a scale in the device's memory, read in stream order. kUnimplemented on a host.
  absl::StatusOr<LossAndGradient> ForwardBackward(const Tensor& logits, const Tensor& targets, const DeviceScale& scale,
                                                  Tape& tape) const;
};

}  // namespace fsdp

#endif  // FSDP_NN_CROSS_ENTROPY_LOSS_H_

// SPDX-License-Identifier: Apache-2.0
//
// LinearCrossEntropyLoss: a language model's head and the cross entropy of its logits in one, over chunks of rows, so
// that the logits of all rows never exist. They are the largest activation: tokens times vocabulary.
//
//   tape.set_loss_scale(1.0f / grad_accum);                                  // before forward
//   LinearCrossEntropyLoss criterion(/*num_chunks=*/8);
//   FSDP_ASSIGN_OR_RETURN(Tensor hidden, base.Forward(tokens, tape));        // within the DoForwardList of a model
//   FSDP_ASSIGN_OR_RETURN(Tensor loss, criterion.Forward(head, hidden, targets, tape));
//   ...
//   FSDP_ASSIGN_OR_RETURN(Tensor grad_hidden, criterion.Backward(head, tape));   // within its DoBackwardList
//
// torchtune has it as LinearCrossEntropyLoss, Liger as FusedLinearCrossEntropy. Compared with the head and
// CrossEntropyLoss, loss and gradients differ by rounding: the order of a sum over rows depends on the chunks. Chunks
// depend only on the number of rows and num_chunks.
#ifndef FSDP_NN_LINEAR_CROSS_ENTROPY_LOSS_H_
#define FSDP_NN_LINEAR_CROSS_ENTROPY_LOSS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/tape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// No Module: the head is the caller's, with its place and names in the model. It keeps no state between calls, so one
// object serves any number of tapes.
class LinearCrossEntropyLoss final {
 public:
  // Rows are cut into `num_chunks` chunks of one size, the last of which may be smaller, or into as many as there are
  // rows. A number below 1 is 1.
  explicit LinearCrossEntropyLoss(int64_t num_chunks) : num_chunks_(num_chunks) {}

  // The mean over all rows of the cross entropy of softmax(head(x)) against targets, float32 [1]: x [..., in_features],
  // targets int32, one for each row. It calls the hooks of `head`, whose unit it may be, as Module::Forward does.
  //
  // On a tape that keeps for backward it also computes the gradients of x and of the head's parameters, times
  // Tape::loss_scale(), chunk by chunk as each chunk's logits exist, and keeps them on the tape: 4 bytes for each
  // element of a parameter that requires a gradient. In 16 bits they are summed over the chunks in float32, and rounded
  // once, by Backward.
  //
  // kInvalidArgument for wrong shapes, and for a head of a class derived from Linear (tensor parallelism);
  // kFailedPrecondition if an adapter of the head is a unit of its own; kUnimplemented for a scale in the memory of a
  // device that has no kernel for it. A target out of range fails the stream. On a host it waits for the stream after
  // each chunk, so that memory is bounded.
  absl::StatusOr<Tensor> Forward(Linear& head, const Tensor& x, const Tensor& targets, Tape& tape) const;

  // Adds the gradients of the head's parameters, and returns the gradient of x. kFailedPrecondition if the tape's last
  // forward was not that of this class.
  absl::StatusOr<Tensor> Backward(Linear& head, Tape& tape) const;

 private:
  struct Rows;

  absl::StatusOr<Tensor> LossAndGrads(Linear& head, const Rows& rows, const Shape& shape, Tape& tape) const;
  // Fills `grad_x` if it is defined.
  absl::StatusOr<Tensor> AllChunks(Linear& head, const Rows& rows, const Tensor& grad_x, Tape& tape) const;
  static absl::StatusOr<Tensor> Chunk(Linear& head, const Rows& chunk, double share, const Tensor& grad_x, Tape& tape);

  int64_t num_chunks_;
};

}  // namespace fsdp

#endif  // FSDP_NN_LINEAR_CROSS_ENTROPY_LOSS_H_

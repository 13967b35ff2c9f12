// SPDX-License-Identifier: Apache-2.0
//
// ModelWithHead: what a language model does with its head, for every kind of model: logits, or the loss of targets by
// chunks of rows (nn/linear_cross_entropy_loss.h).
#ifndef FSDP_MODELS_MODEL_WITH_HEAD_H_
#define FSDP_MODELS_MODEL_WITH_HEAD_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/linear_cross_entropy_loss.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// Inputs and outputs, as in Hugging Face's models:
//
//   {tokens [B, T]}                     {logits [B * T, vocab_size]}; backward takes their gradient
//   {tokens, targets int32 [B, T]}      {loss, float32 [1]}; backward takes an undefined tensor, since the gradient is
//                                       1 times Tape::loss_scale()
//
// A subclass adds the base, tokens to hidden states, and the head as its children.
class ModelWithHead : public Module {
 protected:
  explicit ModelWithHead(int64_t loss_chunks) : loss_(loss_chunks) {}

  // Call it in the constructor; both are children.
  void SetParts(Module* base, Linear* head);

 private:
  absl::StatusOr<TensorList> DoForwardList(const TensorList& inputs, Tape& tape) final;
  absl::StatusOr<TensorList> DoBackwardList(const TensorList& grad_outputs, Tape& tape) final;

  const LinearCrossEntropyLoss loss_;
  Module* base_ = nullptr;
  Linear* head_ = nullptr;
};

}  // namespace fsdp

#endif  // FSDP_MODELS_MODEL_WITH_HEAD_H_

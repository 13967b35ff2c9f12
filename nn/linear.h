// SPDX-License-Identifier: Apache-2.0
//
// Linear (PyTorch's, weight [out, in]) and Conv1D (Hugging Face's name for the same map with weight [in, out], which
// GPT-2's checkpoints have). Input [..., in], output [..., out], in the dtype of the input. kInvalidArgument for
// another last dimension.
#ifndef FSDP_NN_LINEAR_H_
#define FSDP_NN_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

class LinearCrossEntropyLoss;

// y = x weight^T, plus a bias, if there is one, that starts at 0. Parameters: weight [out_features, in_features], bias
// [out_features]. Backward needs the weight bound again, and skips the gradient of a parameter that does not require
// it.
class Linear : public Module {
 public:
  // `initializer` is for the weight.
  Linear(int64_t in_features, int64_t out_features, const Initializer& initializer, bool bias = false);

  // Shares another module's weight [out, in]: a tied head. The parameter then has two names, its gradient is the sum of
  // both uses, and it is stored once (StateDict::aliases).
  explicit Linear(std::shared_ptr<Parameter> tied_weight);

  std::string_view type_name() const override { return "Linear"; }

  // Adds a low-rank adapter (LoRA): y += alpha / rank * (x A^T) B^T, with the weights A [rank, in_features] and B
  // [out_features, rank] of new children "lora_A" and "lora_B", PEFT's names. B starts at 0, so y changes only once it
  // is trained. Freezes weight and bias; they may be unfrozen. Call it once, before the module is named, materialised
  // or sharded; not for the layers of tensor parallelism.
  void AddLora(int64_t rank, float alpha);

  // From now on the rows of the output have the distance that suits the device's products (Tape::EmptyRows), in forward
  // and in both products of backward. For a head, whose output a loss reads: on a GPU, products of rows that are not a
  // multiple of 16 bytes, such as the 50,257 bfloat16 of GPT-2's logits, are several times slower.
  void PadOutputRows() { pads_output_rows_ = true; }

 protected:
  // Keeps x on the tape; the output is new memory of the tape.
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  // False: forward leaves the bias out, for layers whose outputs are added up over ranks, only one of which has it.
  bool adds_bias_ = true;

  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;  // may be null

 private:
  friend class LinearCrossEntropyLoss;  // runs a head over parts of the rows

  absl::Status AddLoraOutput(const Tensor& x, const Tensor& out, Tape& tape);
  absl::StatusOr<Tensor> LoraBackward(const Tensor& grad_output, Tape& tape);

  bool pads_output_rows_ = false;
  Linear* lora_a_ = nullptr;  // children, both or neither
  Linear* lora_b_ = nullptr;
  double lora_divisor_ = 1;  // rank / alpha
};

// y = x weight + bias; the bias starts at 0. Parameters: weight [in_features, out_features], bias [out_features].
class Conv1D final : public Module {
 public:
  Conv1D(int64_t in_features, int64_t out_features, const Initializer& initializer);

  std::string_view type_name() const override { return "Conv1D"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
  std::shared_ptr<Parameter> bias_;
};

}  // namespace fsdp

#endif  // FSDP_NN_LINEAR_H_

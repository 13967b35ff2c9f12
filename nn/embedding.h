// SPDX-License-Identifier: Apache-2.0
//
// Embedding: rows of a table chosen by tokens. PositionEmbedding: the first T rows of a table added to every sequence.
// Both classes correspond to torch.nn.Embedding, which Hugging Face uses for tokens (wte) and for positions (wpe).
#ifndef FSDP_NN_EMBEDDING_H_
#define FSDP_NN_EMBEDDING_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "fsdp/nn/module.h"

namespace fsdp {

// Tokens int32 [...] to [..., embedding_dim]. Parameter: weight [num_embeddings, embedding_dim]. Tokens have no
// gradient: Backward returns an undefined tensor. The row of `padding_idx`, in [0, num_embeddings), starts at 0 and
// gets no gradient. A token outside [0, num_embeddings) fails the stream when the kernel runs. kInvalidArgument for
// tokens of another dtype. The output has the dtype of the bound weight.
class Embedding final : public Module {
 public:
  // `initializer` fills all rows except `padding_idx`.
  Embedding(int64_t num_embeddings, int64_t embedding_dim, const Initializer& initializer,
            std::optional<int64_t> padding_idx = std::nullopt);

  std::string_view type_name() const override { return "Embedding"; }
  // For a head that is tied to this table (Linear's second constructor).
  const std::shared_ptr<Parameter>& weight() const { return weight_; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& tokens, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
  std::optional<int64_t> padding_idx_;
};

// x [B, T, C] to x + weight[0:T], T at most num_positions. Parameter: weight [num_positions, C], the Embedding of
// positions 0 to T - 1. It takes the sum rather than the positions, so that it needs no tokens and its gradient for x
// is grad_output itself. kInvalidArgument for an input of another rank, a longer sequence, or another C.
class PositionEmbedding final : public Module {
 public:
  PositionEmbedding(int64_t num_positions, int64_t embedding_dim, const Initializer& initializer);

  // The same name as Embedding: both are torch.nn.Embedding to a wrap policy.
  std::string_view type_name() const override { return "Embedding"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override;
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override;

  std::shared_ptr<Parameter> weight_;
};

}  // namespace fsdp

#endif  // FSDP_NN_EMBEDDING_H_

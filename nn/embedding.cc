// SPDX-License-Identifier: Apache-2.0
//
// An embedding is a product with one-hot rows, out = onehot(tokens) weight, of which only the look-up is computed. Its
// backward, grad_weight += onehot(tokens)^T grad_out, is a sum for each token that occurs, over the rows of grad_out at
// its occurrences. Tokens are integers: there is no gradient to pass on.
#include "fsdp/nn/embedding.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/nn/last_dim.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {

namespace {

// The row of `padding_idx` starts at 0 and stays there, since it gets no gradient: torch.nn.Embedding's rule.
Initializer WithPadding(Initializer initializer, std::optional<int64_t> padding_idx, int64_t embedding_dim) {
  if (padding_idx.has_value()) {
    initializer.zeros = {*padding_idx * embedding_dim, (*padding_idx + 1) * embedding_dim};
  }
  return initializer;
}

}  // namespace

Embedding::Embedding(int64_t num_embeddings, int64_t embedding_dim, const Initializer& initializer,
                     std::optional<int64_t> padding_idx)
    : weight_(AddParameter("weight", {num_embeddings, embedding_dim},
                           WithPadding(initializer, padding_idx, embedding_dim))),
      padding_idx_(padding_idx) {}

absl::StatusOr<Tensor> Embedding::DoForward(const Tensor& tokens, Tape& tape) {
  if (!tokens.defined() || tokens.dtype() != DType::kInt32) {
    return absl::InvalidArgumentError("embedding: tokens must be int32");
  }
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  std::vector<int64_t> dims(tokens.shape().dims().begin(), tokens.shape().dims().end());
  dims.push_back(weight_->shape.dim(1));
  FSDP_ASSIGN_OR_RETURN(Shape shape, Shape::Create(dims));
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(weight.dtype(), shape));
  tape.ops().Embedding(tokens, weight, out, tape.stream());
  tape.Save(tokens);
  return out;
}

absl::StatusOr<Tensor> Embedding::DoBackward(const Tensor& grad_output, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(Tensor tokens, tape.Restore());
  if (weight_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(Tensor grad_weight, weight_->Grad());
    tape.ops().EmbeddingBackward(tokens, grad_output, padding_idx_, grad_weight, tape.stream());
  }
  return Tensor();
}

PositionEmbedding::PositionEmbedding(int64_t num_positions, int64_t embedding_dim, const Initializer& initializer)
    : weight_(AddParameter("weight", {num_positions, embedding_dim}, initializer)) {}

absl::StatusOr<Tensor> PositionEmbedding::DoForward(const Tensor& x, Tape& tape) {
  FSDP_RETURN_IF_ERROR(CheckLastDim("position embedding", x, weight_->shape.dim(1)));
  if (x.shape().rank() != 3 || x.shape().dim(1) > weight_->shape.dim(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("position embedding: input ", x.shape().ToString(),
                     " is not [batch, seq_len, embedding] with seq_len <= ", weight_->shape.dim(0), " positions"));
  }
  FSDP_ASSIGN_OR_RETURN(Tensor weight, weight_->Data());
  FSDP_ASSIGN_OR_RETURN(Tensor out, tape.Empty(x.dtype(), x.shape()));
  const int64_t sequence_numel = x.shape().row_numel();
  // Positions 0 to T - 1 are the first T * C elements of the table, the same for every sequence, so each sequence is
  // one elementwise sum and no look-up is needed.
  const Tensor positions = weight.Slice({0, sequence_numel});
  for (int64_t b = 0; b < x.shape().dim(0); ++b) {
    const Interval sequence = {b * sequence_numel, (b + 1) * sequence_numel};
    tape.ops().Add(x.Slice(sequence), positions, out.Slice(sequence), tape.stream());
  }
  return out;
}

absl::StatusOr<Tensor> PositionEmbedding::DoBackward(const Tensor& grad_output, Tape& tape) {
  if (weight_->requires_grad) {
    FSDP_ASSIGN_OR_RETURN(const ParameterGrad to, weight_->GradToWrite());
    // For its gradient, the part of the table in use is a bias of T * C elements that is added to each of the B
    // sequences: grad_weight[0:T] (+)= sum over b of grad_out[b]. The rest of the table has no gradient.
    const int64_t sequence_numel = grad_output.shape().row_numel();
    if (!to.accumulate && sequence_numel < to.grad.numel()) {
      tape.device().ops().Zero(to.grad.Slice({sequence_numel, to.grad.numel()}), tape.stream());
    }
    tape.ops().BiasBackward(grad_output.View({grad_output.shape().dim(0), sequence_numel}),
                            {to.grad.Slice({0, sequence_numel}), to.accumulate}, tape.stream());
  }
  return grad_output;  // d (x + weight) / d x is the identity
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/nn/cross_attention.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

int64_t MemoryDim(const CrossAttentionOptions& o) { return o.memory_dim > 0 ? o.memory_dim : o.embed_dim; }

// The width of keys and of values; 0 for invalid options, which Forward refuses.
int64_t KvWidth(const CrossAttentionOptions& o) {
  if (o.num_heads < 1 || o.num_kv_heads < 0) return 0;
  return o.embed_dim / o.num_heads * (o.num_kv_heads > 0 ? o.num_kv_heads : o.num_heads);
}

std::unique_ptr<Linear> Projection(int64_t in, int64_t out, const CrossAttentionOptions& o) {
  return std::make_unique<Linear>(in, out, o.initializer, o.bias);
}

std::string ShapeOrUndefined(const Tensor& t) { return t.defined() ? t.shape().ToString() : "undefined"; }

bool IsBatchOf(const Tensor& t, int64_t columns) {
  return t.defined() && t.shape().rank() == 3 && t.shape().dim(2) == columns;
}

}  // namespace

CrossAttention::CrossAttention(const CrossAttentionOptions& options)
    : options_(options),
      q_proj_(AddChild("q_proj", Projection(options.embed_dim, options.embed_dim, options))),
      k_proj_(AddChild("k_proj", Projection(MemoryDim(options), KvWidth(options), options))),
      v_proj_(AddChild("v_proj", Projection(MemoryDim(options), KvWidth(options), options))),
      out_proj_(AddChild("out_proj", Projection(options.embed_dim, options.embed_dim, options))) {}

absl::StatusOr<CrossAttentionShape> CrossAttention::ShapeOf(const TensorList& inputs) const {
  const CrossAttentionOptions& o = options_;
  if (o.num_heads < 1 || o.num_kv_heads < 0 || o.embed_dim < 1 || o.embed_dim % o.num_heads != 0 ||
      o.num_heads % std::max<int64_t>(o.num_kv_heads, 1) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cross attention: embed_dim ", o.embed_dim, " in ", o.num_heads, " heads, ", o.num_kv_heads,
        " of keys: expected heads that divide embed_dim, and heads of keys that divide them (0: as many)"));
  }
  if (inputs.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat("cross attention: ", inputs.size(),
                                                   " inputs, expected x, memory and key_mask, which may be undefined"));
  }
  const Tensor &x = inputs[0], &memory = inputs[1], &mask = inputs[2];
  if (!IsBatchOf(x, o.embed_dim) || !IsBatchOf(memory, MemoryDim(o)) || x.shape().dim(0) != memory.shape().dim(0)) {
    return absl::InvalidArgumentError(absl::StrCat("cross attention: x ", ShapeOrUndefined(x), " and memory ",
                                                   ShapeOrUndefined(memory), " != wanted [B, T, ", o.embed_dim,
                                                   "] and [B, S, ", MemoryDim(o), "]"));
  }
  if (mask.defined() && mask.numel() != memory.shape().dim(0) * memory.shape().dim(1)) {
    return absl::InvalidArgumentError(absl::StrCat("cross attention: key_mask ", mask.shape().ToString(),
                                                   " != wanted [", memory.shape().dim(0), ", ", memory.shape().dim(1),
                                                   "], an element for each key"));
  }
  return SizesOf(x.shape().dim(0), x.shape().dim(1), memory.shape().dim(1));
}

// Forward has checked that num_heads divides embed_dim and is at least 1.
CrossAttentionShape CrossAttention::SizesOf(int64_t batch, int64_t q_len, int64_t kv_len) const {
  const int64_t head_dim = options_.embed_dim / options_.num_heads;
  return {.batch = batch,
          .q_len = q_len,
          .kv_len = kv_len,
          .num_heads = options_.num_heads,
          .num_kv_heads = options_.num_kv_heads,
          .head_dim = head_dim,
          .scale = 1 / std::sqrt(static_cast<float>(head_dim))};
}

absl::StatusOr<TensorList> CrossAttention::DoForwardList(const TensorList& inputs, Tape& tape) {
  FSDP_ASSIGN_OR_RETURN(const CrossAttentionShape shape, ShapeOf(inputs));
  CrossAttentionOperands operands;
  operands.key_mask = inputs[2];
  FSDP_ASSIGN_OR_RETURN(operands.q, q_proj_->Forward(inputs[0], tape));
  FSDP_ASSIGN_OR_RETURN(operands.k, k_proj_->Forward(inputs[1], tape));
  FSDP_ASSIGN_OR_RETURN(operands.v, v_proj_->Forward(inputs[1], tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor heads, tape.Empty(operands.q.dtype(), operands.q.shape()));
  FSDP_ASSIGN_OR_RETURN(const Tensor statistics,
                        tape.Empty(DType::kFloat32, {shape.batch * shape.num_heads * shape.q_len, 2}));
  tape.ops().CrossAttention(operands, shape, heads, statistics, tape.stream());
  // DoBackwardList restores in reverse order. The mask is saved even if undefined, so that the count does not vary.
  for (const Tensor& t : {operands.q, operands.k, operands.v, operands.key_mask, statistics}) tape.Save(t);
  FSDP_ASSIGN_OR_RETURN(Tensor out, out_proj_->Forward(heads, tape));
  return TensorList{std::move(out)};
}

absl::StatusOr<TensorList> CrossAttention::DoBackwardList(const TensorList& grad_outputs, Tape& tape) {
  if (grad_outputs.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("cross attention backward: ", grad_outputs.size(),
                                                   " gradients, expected the gradient of its output"));
  }
  // First, because out_proj_ saved its input last.
  FSDP_ASSIGN_OR_RETURN(const Tensor grad_heads, out_proj_->Backward(grad_outputs[0], tape));
  CrossAttentionOperands operands;
  FSDP_ASSIGN_OR_RETURN(const Tensor statistics, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(operands.key_mask, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(operands.v, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(operands.k, tape.Restore());
  FSDP_ASSIGN_OR_RETURN(operands.q, tape.Restore());
  const Shape &q = operands.q.shape(), &k = operands.k.shape();
  const CrossAttentionShape shape = SizesOf(q.dim(0), q.dim(1), k.dim(1));
  CrossAttentionGrads grads;
  FSDP_ASSIGN_OR_RETURN(grads.q, tape.Empty(operands.q.dtype(), operands.q.shape()));
  FSDP_ASSIGN_OR_RETURN(grads.k, tape.Empty(operands.k.dtype(), operands.k.shape()));
  FSDP_ASSIGN_OR_RETURN(grads.v, tape.Empty(operands.v.dtype(), operands.v.shape()));
  tape.ops().CrossAttentionBackward(grad_heads, operands, statistics, shape, grads, tape.stream());
  // The reverse order of the forward calls, as the tape's stack requires.
  FSDP_ASSIGN_OR_RETURN(const Tensor from_v, v_proj_->Backward(grads.v, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor from_k, k_proj_->Backward(grads.k, tape));
  FSDP_ASSIGN_OR_RETURN(Tensor grad_x, q_proj_->Backward(grads.q, tape));
  // k and v are both projections of memory, so their two gradients are added.
  FSDP_ASSIGN_OR_RETURN(Tensor grad_memory, tape.Empty(from_k.dtype(), from_k.shape()));
  tape.ops().Add(from_k, from_v, grad_memory, tape.stream());
  // An undefined tensor, because the mask has no gradient.
  return TensorList{std::move(grad_x), std::move(grad_memory), Tensor()};
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// TensorPartition: how tensor parallel ranks hold a parameter. Megatron's files of ranks do not say; the layers by
// which it builds every model do:
//
//   kColumns    axis 0: ColumnParallelLinear, embeddings of the vocabulary; the query groups of linear_qkv
//   kGated      axis 0 of linear_fc1 with a gated unit (SwiGLU): each rank has its part of the gate, then of the up
//               projection, and the whole tensor has the gate, then the up projection
//   kRows       axis 1: the weight of RowParallelLinear
//   kReplicated every rank has all: norms, position embeddings, routers, biases that are added after a reduction
//
// Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_MEGATRON_TENSOR_PARTITION_H_
#define FSDP_CHECKPOINT_FOREIGN_MEGATRON_TENSOR_PARTITION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/joined_tensor.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

enum class TensorPartition : uint8_t { kReplicated, kColumns, kGated, kRows };

// By the name of a parameter; kColumns for linear_fc1, gated or not. nullopt: no layer of Megatron-Core that is known
// has that name, so its parts cannot be joined.
std::optional<TensorPartition> PartitionOfName(std::string_view name);

// For a linear_fc1, the name of the linear_fc2 after it: it has as many columns as linear_fc1 has rows, or half of them
// if the unit is gated. Empty for other names. Of a bias, the linear_fc2's weight.
std::string SecondLinearOf(std::string_view name);

// The shape that `ranks` parts of shape `part` have together. kInvalidArgument if the parts do not have such an axis.
absl::StatusOr<Shape> JoinedShape(TensorPartition partition, const Shape& part, int ranks);

// The parts in the joined tensor, with the rank for a number. Precondition: JoinedShape is OK. A replicated tensor is
// rank 0's.
std::vector<JoinedPiece> PiecesOf(TensorPartition partition, const Shape& part, int ranks);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_MEGATRON_TENSOR_PARTITION_H_

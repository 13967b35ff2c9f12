// SPDX-License-Identifier: Apache-2.0
//
// Layers work on the last dimension of an activation and carry the leading ones (batch, sequence) along, as in PyTorch:
// [..., C] is taken as rows of C elements.
#ifndef FSDP_NN_LAST_DIM_H_
#define FSDP_NN_LAST_DIM_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "fsdp/tensor/shape.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// kInvalidArgument unless `t` is defined and its last dimension is `wanted`. `layer` names the layer in the message,
// which gives the actual and the wanted shape.
absl::Status CheckLastDim(std::string_view layer, const Tensor& t, int64_t wanted);

// `t` as [rows, last], a view of the same memory; rows may be 0. Precondition: at least one dimension, the last not 0.
Tensor AsRows(const Tensor& t);

// `shape` with another last dimension: the output of a layer that maps C to `last` and carries the leading dimensions.
// Precondition: at least one dimension, and the result a valid Shape.
Shape WithLastDim(const Shape& shape, int64_t last);

}  // namespace fsdp

#endif  // FSDP_NN_LAST_DIM_H_

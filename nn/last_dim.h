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

// kInvalidArgument unless the last dimension of `t` is `wanted`; `layer` names the layer in the message.
absl::Status CheckLastDim(std::string_view layer, const Tensor& t, int64_t wanted);

// `t` as [rows, last]. Precondition: at least one dimension, the last not 0.
Tensor AsRows(const Tensor& t);

// `shape` with another last dimension.
Shape WithLastDim(const Shape& shape, int64_t last);

}  // namespace fsdp

#endif  // FSDP_NN_LAST_DIM_H_

// SPDX-License-Identifier: Apache-2.0
//
// The names of dtypes in safetensors files, and their order there.
#ifndef FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_DTYPE_H_
#define FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_DTYPE_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

// False for a dtype that the format does not have.
bool HasSafetensorsDType(DType dtype);

// "F32", "BF16", "F8_E4M3", ... The format must have `dtype`.
std::string_view SafetensorsDTypeName(DType dtype);

// Rises with the alignment of dtypes, and is highest for those that the format does not have. Files are written in
// descending order.
int SafetensorsDTypeOrder(DType dtype);

// kInvalidArgument distinguishes a dtype of the format that this project does not support from an unknown name.
absl::StatusOr<DType> ParseSafetensorsDType(std::string_view name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_SAFETENSORS_SAFETENSORS_DTYPE_H_

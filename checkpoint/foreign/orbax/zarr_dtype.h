// SPDX-License-Identifier: Apache-2.0
//
// The names of zarr's element types, and values of them in JSON. Version 2 has NumPy's ("<f4", "|b1") and, for the
// types of ml_dtypes, bare names ("bfloat16"); version 3 has bare names ("float32"). Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_DTYPE_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_DTYPE_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/json_view.h"
#include "fsdp/tensor/dtype.h"

namespace fsdp {

struct ZarrDType {
  DType dtype = DType::kFloat32;
  bool is_swapped = false;  // big-endian, of more than one byte
};

// An integer of fewer than eight bits has the dtype that it is read as (narrow_integer.h). nullopt for a name that no
// dtype here has: float4, texts, structures.
std::optional<ZarrDType> ZarrDTypeOfName(std::string_view name);

// The bytes of one element with the value of `fill`, which may be null (zero), a number, true, a text ("NaN",
// "Infinity", "0x7fc00000"; a base64 text of version 2 is refused) or, of a complex type, a list of two. kDataLoss when
// it is no value of the type; kUnimplemented when it is one that is not read.
absl::StatusOr<std::string> FillBytes(const ZarrDType& dtype, const std::optional<JsonView>& fill);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ZARR_DTYPE_H_

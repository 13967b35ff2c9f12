// SPDX-License-Identifier: Apache-2.0
//
// CheckBoolBytes: a bool is stored as one byte, 0 or 1; any other value is damage, in every format.
#ifndef FSDP_CHECKPOINT_SOURCE_BOOL_BYTES_H_
#define FSDP_CHECKPOINT_SOURCE_BOOL_BYTES_H_

#include "absl/status/status.h"
#include "fsdp/tensor/interval.h"

namespace fsdp {

// Checks `bytes`, the elements `interval` of a bool tensor. kDataLoss names the first element that is neither 0 nor 1,
// by its index in the tensor.
absl::Status CheckBoolBytes(const void* bytes, const Interval& interval);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_BOOL_BYTES_H_

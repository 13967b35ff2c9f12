// SPDX-License-Identifier: Apache-2.0
//
// How a conversion divides its `max_memory`: the program itself, the names and places of tensors (which grow with their
// number and that of rank files, not with their size), and what is left for payload.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_MEMORY_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct ConvertShape {
  int source_ranks = 0;  // rank files that hold parts of a tensor; 0 for safetensors
  int target_ranks = 0;
  int64_t parity_bytes = 0;  // that making parity files takes, when the payload is written
};

// Bytes of payload that may be in memory at once. kResourceExhausted when the names and places of `contents` leave too
// little of `max_memory`, or too little for parity; the message says how much would do.
absl::StatusOr<int64_t> PayloadMemory(const StateDict& contents, const ConvertShape& shape, int64_t max_memory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_MEMORY_H_

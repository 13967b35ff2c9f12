// SPDX-License-Identifier: Apache-2.0
//
// How a conversion divides its max_memory: the program itself, the names and places of tensors (which grow with the
// number of tensors and of rank files, not with the bytes of the model), and payload, which gets the rest.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_MEMORY_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_MEMORY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Numbers of files and bytes that a conversion needs memory for, in addition to names.
struct ConvertShape {
  int source_ranks = 0;      // source files that may each hold a part of a tensor; 0 if each tensor is in one file
  int target_ranks = 0;      // the same for the target: FormatMemory::rank_files
  bool is_plain = false;     // FormatTraits::is_plain of the target
  bool is_hdf5 = false;      // FormatTraits::is_hdf5 of the target
  int64_t parity_bytes = 0;  // for computing parity while payload is written: FormatMemory::parity_bytes
};

// Bytes of payload that may be in memory at the same time, over all buffers. kResourceExhausted when the names and
// places of `contents` leave too little of `max_memory`, or too little for parity; the message gives the limit that
// would be enough.
absl::StatusOr<int64_t> PayloadMemory(const StateDict& contents, const ConvertShape& shape, int64_t max_memory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_MEMORY_H_

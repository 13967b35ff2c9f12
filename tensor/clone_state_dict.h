// SPDX-License-Identifier: Apache-2.0
//
// A deep copy of a state dict: the values of one moment, which later steps of training do not change.
#ifndef FSDP_TENSOR_CLONE_STATE_DICT_H_
#define FSDP_TENSOR_CLONE_STATE_DICT_H_

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Every tensor gets memory of its own; texts, aliases, layouts and attributes are copied. A tensor on the stream's
// device is copied there, a tensor in host memory to host memory (pinned memory if `stream` is on a GPU). The copies
// run on `stream`, after the work already on it; this function waits for them. kInvalidArgument for a tensor on any
// other device; kResourceExhausted if there is no memory.
absl::StatusOr<StateDict> CloneStateDict(const StateDict& state, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CLONE_STATE_DICT_H_

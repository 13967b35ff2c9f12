// SPDX-License-Identifier: Apache-2.0
//
// A deep copy of a state dict: the values of one moment, which later steps of training do not change.
#ifndef FSDP_TENSOR_CLONE_STATE_DICT_H_
#define FSDP_TENSOR_CLONE_STATE_DICT_H_

#include "absl/status/statusor.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Every tensor in memory of its own, texts, aliases, layouts and attributes copied. A tensor on the stream's device is
// copied there, one in host memory to host memory (pinned, beside a GPU). The copies run on `stream`, after its work so
// far, and this waits for them. kInvalidArgument for a tensor of another device than these two; kResourceExhausted if
// there is no memory.
absl::StatusOr<StateDict> CloneStateDict(const StateDict& state, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_TENSOR_CLONE_STATE_DICT_H_

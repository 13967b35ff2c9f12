// SPDX-License-Identifier: Apache-2.0
//
// FitJoinedState: the state of an optimizer that was joined from the files of ranks gets the shapes of its parameters.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_PT_JOINED_STATE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_PT_JOINED_STATE_H_

#include "absl/status/status.h"
#include "fsdp/checkpoint/foreign/torch/pt/tensor_list.h"
#include "fsdp/checkpoint/foreign/torch/state/torch_state.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// Gives the joined state of each parameter the parameter's shape. `tensors` are the leaves of `state`, which is of
// `ranks` ranks. kInvalidArgument if a size says that copies are shards or the reverse.
absl::Status FitJoinedState(int ranks, const TensorSourceOptions& options, const TensorList& tensors,
                            TorchState& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_PT_JOINED_STATE_H_

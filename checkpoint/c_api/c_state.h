// SPDX-License-Identifier: Apache-2.0
//
// fsdp_state: the state that a program in another language saves, as a StateDict whose shards are the program's memory.
#ifndef FSDP_CHECKPOINT_C_API_C_STATE_H_
#define FSDP_CHECKPOINT_C_API_C_STATE_H_

#include "absl/status/status.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/tensor/state_dict.h"

struct fsdp_state {
  fsdp::StateDict state;
};

namespace fsdp {

// kInvalidArgument, by name, for a parameter of a unit that the state does not have, or has with another number of
// elements.
absl::Status CheckUnitsOf(const StateDict& state);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_C_API_C_STATE_H_

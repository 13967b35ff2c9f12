// SPDX-License-Identifier: Apache-2.0
//
// OptimSlices: an optimizer's state dict converted from the form in which it was saved to the form that this rank's
// optimizer needs: the slices of its flat shards, keyed by names, as a LOCAL state dict. Only the optimizer's part of a
// state dict is converted. Entries of parameters outside all units, the user's own entries among them, are copied
// unchanged, and so is param_groups if the state dict has it.
#ifndef FSDP_FSDP_STATE_OPTIM_SLICES_H_
#define FSDP_FSDP_STATE_OPTIM_SLICES_H_

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/state_gather.h"
#include "fsdp/fsdp/units/unit.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// This rank's slices of `state`, in newly allocated memory: tensors on the group's device, scalars in pinned host
// memory. kInvalidArgument names an entry of another shape or form; every rank returns it, except under kFull and
// kLocal, which do not communicate. Collective for kFullFirst and kSharded. Blocks.
absl::StatusOr<StateDict> OptimSlices(const UnitStore& units, const StateDict& state, StateSource from);

}  // namespace fsdp

#endif  // FSDP_FSDP_STATE_OPTIM_SLICES_H_

// SPDX-License-Identifier: Apache-2.0
//
// The state of a module that is not sharded yet, for values that are loaded before wrapping:
//
//   FSDP_RETURN_IF_ERROR(LoadModuleState(*module, state, *group->device()).status());      // on rank 0, or on all
//   FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(module), group,
//                                                                    {.sync_module_states = true}));
//
// Each rank that loads holds the whole model until it is wrapped; afterwards LoadStateDict and Restore need no more
// than a unit. Local: no call communicates. One thread for each module.
#ifndef FSDP_FSDP_MODULE_STATE_H_
#define FSDP_FSDP_MODULE_STATE_H_

#include "absl/status/statusor.h"
#include "fsdp/fsdp/state/incompatible_keys.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// A FULL state dict that aliases the memory of `module`'s parameters and persistent buffers, so LoadCheckpoint fills
// these; shared ones once, with their other names as aliases. A parallel layer has its part of a tensor, which makes
// the state SHARDED. kFailedPrecondition, naming it, for one without memory (Module::Materialize gives some) and for a
// module that is sharded. Does not block.
absl::StatusOr<StateDict> GetModuleState(Module& module);

// Copies a FULL state dict into the parameters and persistent buffers of `module`, converting floating-point dtypes.
// Allocates memory on `device` for parameters without memory, without a gradient. A parallel layer takes its part of
// the whole tensor. A shared parameter may be saved under any of its names. kInvalidArgument, before anything is
// changed: a tensor of another shape, of a dtype that does not convert, or not whole; missing and unexpected names if
// options.strict, which are otherwise returned; broadcast_from_rank0, because there is no group. kFailedPrecondition
// for a module that is sharded. Blocks.
absl::StatusOr<IncompatibleKeys> LoadModuleState(Module& module, const StateDict& state, Device& device,
                                                 const LoadStateDictOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_FSDP_MODULE_STATE_H_

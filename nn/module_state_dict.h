// SPDX-License-Identifier: Apache-2.0
//
// The state of a module that is not sharded, as a FULL state dict, the same as FSDP's GetStateDict returns for the same
// model. So any checkpoint, of any format and any number of ranks, can be loaded into a plain module, and saved from
// one:
//
//   FSDP_RETURN_IF_ERROR(model->Materialize(*device, /*seed=*/0));
//   FSDP_ASSIGN_OR_RETURN(StateDict state, GetModuleStateDict(*model));
//   FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, state));            // fills the module's own memory
#ifndef FSDP_NN_MODULE_STATE_DICT_H_
#define FSDP_NN_MODULE_STATE_DICT_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"

namespace fsdp {

// Parameters and persistent buffers under their first names, each as a view of the module's memory; further names of
// shared ones are aliases. Names the module's parameters (AssignNames). kFailedPrecondition, naming the parameter, if
// one has no memory: before Materialize, or sharded. Does not block.
absl::StatusOr<StateDict> GetModuleStateDict(Module& module);

// Copies whole tensors of `state`, as FullStateDictConfig makes them, into the module's memory, on `stream`, which must
// be of the module's device; blocks until the copies have ended. An error changes nothing: kInvalidArgument lists names
// that are missing or unexpected, and names a tensor of another shape, another dtype, or that is not whole.
absl::Status LoadModuleStateDict(const StateDict& state, Module& module, Stream& stream);

}  // namespace fsdp

#endif  // FSDP_NN_MODULE_STATE_DICT_H_

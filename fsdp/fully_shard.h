// SPDX-License-Identifier: Apache-2.0
//
// FullyShard: FSDP2. Marks a module as a unit, in place: each of its parameters that no inner unit has is cut on
// dimension 0, or on the dimension that shard_placement_fn returns, over the ranks of a mesh. Apply it to inner modules
// first, to the whole model last:
//
//   FSDP_ASSIGN_OR_RETURN(auto mesh, DeviceMesh::Create(group, {8}, {"shard"}));
//   for (Module* block : blocks) FSDP_RETURN_IF_ERROR(FullyShard(*block, mesh).status());
//   FSDP_ASSIGN_OR_RETURN(FsdpModule* root, FullyShard(*model, mesh));
//   FSDP_ASSIGN_OR_RETURN(auto parameters, root->parameters());
//   AdamW optimizer(parameters, {.lr = 3e-4});
//   for (...) {
//     FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
//     FSDP_ASSIGN_OR_RETURN(Tensor output, model->Forward(input, tape));
//     ...
//   }
//
// The first use of the outermost module makes it the root and allocates, for all units below, all memory that training
// needs (PyTorch's lazy initialisation).
#ifndef FSDP_FSDP_FULLY_SHARD_H_
#define FSDP_FSDP_FULLY_SHARD_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/options/fully_shard_options.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// `mesh` has one dimension (shard) or two (replicate, shard). The result lives as long as `module`. kInvalidArgument,
// naming it, for a container without a forward, a module that is sharded already, a parameter that is a scalar, or of
// integers and not frozen, options that Validate refuses, and for a reshard_after_forward that does not divide the
// shard group; kUnimplemented for a placement on another dimension than 0 that the ranks do not divide. Local.
absl::StatusOr<FsdpModule*> FullyShard(Module& module, std::shared_ptr<const DeviceMesh> mesh,
                                       const FullyShardOptions& options = {});

// Several modules as one unit: gathered when the first of them runs forward, resharded when all have run, or at the end
// of the root's forward. A module that runs once more, such as a head for each chunk of a loss, gathers it again. No
// such module can be the root. kInvalidArgument, naming its index in `modules`, also for one that is null or listed
// before.
absl::StatusOr<FsdpModule*> FullyShard(const std::vector<Module*>& modules, std::shared_ptr<const DeviceMesh> mesh,
                                       const FullyShardOptions& options = {});

// Makes models take turns on the streams of the first of `roots`, as PyTorch's share_comm_ctx does for the parts of a
// pipeline on one rank: all-gathers, reduce-scatters and all-reduces, and compute, which PyTorch's modules share
// anyway. So a tape of one runs forward and backward of the others as well, and each begins after the work of the one
// before it. An error on these streams is an error of all models. Call it before the first use of every root but the
// first: kFailedPrecondition, naming its index in `roots`, for one that was used or is not a root. kInvalidArgument for
// a null and for a root on another device. Local.
absl::Status ShareCommCtx(const std::vector<FsdpModule*>& roots);

}  // namespace fsdp

#endif  // FSDP_FSDP_FULLY_SHARD_H_

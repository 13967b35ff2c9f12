// SPDX-License-Identifier: Apache-2.0
//
// FindUnits: finds the modules that FSDP1 wrapped, only from the sizes of its flat parameters.
//
// Why it is needed: optimizer.state_dict() of an FSDP1 model, and FSDP.flatten_sharded_optim_state_dict, key the state
// of flat parameters by id and do not record units. PyTorch wrote the golden files flat.pt and flat_ranks_w3 that way.
// The sizes nearly always leave one choice of units. If they leave two, reading fails and asks for a FlatLayout with
// units.
//
// Every choice of modules is tried, whether a policy or a programmer made it, so a layout that is found is the only
// one. One kind of choice is left out: a list (a module with numbered children and nothing else) that is itself a unit
// and holds some children of one structure, while other children of that structure are units. A ModuleList is never
// wrapped, because it has no forward; a Sequential could be, but no policy of torch does so, and allowing for it would
// leave two choices for every stack of blocks. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_UNIT_SEARCH_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_UNIT_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/flat_layout.h"

namespace fsdp {

// The names of the units, in the order of their flat parameters. `parameters` are in the model's order; `sizes` are the
// elements of each flat parameter in the order of the modules, including padding for `world_size` ranks. Choices that
// place every parameter alike count as one. kFailedPrecondition when no choice of units gives these sizes.
// kInvalidArgument when more than one does, naming two, and when the search gives up: it is bounded by 2,000 states for
// each module.
absl::StatusOr<std::vector<std::string>> FindUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                   const std::vector<int64_t>& sizes, int world_size);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_UNIT_SEARCH_H_

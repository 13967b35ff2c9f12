// SPDX-License-Identifier: Apache-2.0
//
// FindUnits: which modules FSDP1 wrapped, from the sizes of its flat parameters alone, where torch saved them by id.
// Every choice of modules is tried, whatever policy or hand may have made it, so a layout that is found is the only
// one.
//
// One kind of choice is left out: a list (a module that has numbered modules and nothing else) that is itself a unit
// and holds some modules of one structure, while others of that structure in it are units. A ModuleList is never
// wrapped, having no forward; a Sequential could be, but no policy does so, and to allow for it would leave two ways
// for every stack of blocks. Pure.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_UNIT_SEARCH_H_
#define FSDP_CHECKPOINT_TORCH_STATE_UNIT_SEARCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/flat_layout.h"

namespace fsdp {

// The modules that are units when the flat parameters, in the order of the modules, have these sizes, padding for
// `world_size` ranks included. kInvalidArgument when no choice of units makes these sizes, and when more than one does,
// each with other parameters in a flat parameter; then the message names two.
absl::StatusOr<std::vector<std::string>> FindUnits(const std::vector<FlatLayout::Parameter>& parameters,
                                                   const std::vector<int64_t>& sizes, int world_size);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_UNIT_SEARCH_H_

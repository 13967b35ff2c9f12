// SPDX-License-Identifier: Apache-2.0
//
// Which arrays of an Orbax checkpoint are a model's and which an optimizer's. Orbax saves any tree; flax and optax give
// the branches their names:
//
//   params.layers_0.kernel                 model/layers_0.kernel
//   opt_state.0.mu.layers_0.kernel         optim/state/layers_0.kernel/mu
//   opt_state.0.count, step, batch_stats.* extra/ and the whole name
//
// State of the optimizer is what ends with the name of a parameter; what comes last before it is the state's name, with
// all of the path if two paths end the same. A tree without these branches is a model as a whole, but its counters of
// steps. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_NAMES_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_NAMES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/source_layout.h"
#include "fsdp/tensor/shape.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct OrbaxArrayName {
  std::string name;  // with the item in front of it if there are several: "state.params.layers_0.kernel"
  Shape shape;
};

struct OrbaxNames {
  std::vector<StateKey> keys;  // of the arrays, in their order
  SourceLayout layout;

  // The arrays that may count the steps, the best first.
  std::vector<size_t> counters;
};

// `items`: the names of the items if there are several. kInvalidArgument if two of them have a branch "params".
absl::StatusOr<OrbaxNames> NameOrbaxArrays(const std::vector<OrbaxArrayName>& arrays,
                                           const std::vector<std::string>& items);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_NAMES_H_

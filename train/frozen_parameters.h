// SPDX-License-Identifier: Apache-2.0
//
// Parameters that a run does not train (--freeze): they have no gradient and no optimizer state, and their bytes never
// change, so incremental checkpoints link them. A checkpoint keeps their names, so that their missing optimizer state
// is known to be intended.
#ifndef FSDP_TRAIN_FROZEN_PARAMETERS_H_
#define FSDP_TRAIN_FROZEN_PARAMETERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/nn/module.h"
#include "fsdp/optim/sharded_parameter.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Freezes the parameters of `module` that have a name in which `pattern`, an ECMAScript regular expression, matches
// anywhere. Call before sharding. kInvalidArgument if it is not a regular expression, matches no parameter, or matches
// all of them.
absl::Status FreezeParameters(const std::string& pattern, Module& module);

// The parameters that are not frozen, for an optimizer.
std::vector<ShardedParameter*> TrainableParameters(const std::vector<ShardedParameter*>& parameters);

// The names of the frozen parameters.
std::vector<std::string> FrozenNames(const std::vector<ShardedParameter*>& parameters);

// The names as a checkpoint keeps them, and back; kDataLoss if `text` is not a list of names.
std::string EncodeFrozen(const std::vector<std::string>& names);
absl::StatusOr<std::vector<std::string>> DecodeFrozen(const std::string& text);

// `wanted` without the optimizer state of `names`; the tensors share their memory with `wanted`.
StateDict WithoutOptimState(const StateDict& wanted, const std::vector<std::string>& names);

// Sentences for people about a run that freezes `now` and continues from one that froze `before`; empty if the two are
// equal.
std::vector<std::string> DescribeFrozenChange(const std::vector<std::string>& before,
                                              const std::vector<std::string>& now);

}  // namespace fsdp

#endif  // FSDP_TRAIN_FROZEN_PARAMETERS_H_

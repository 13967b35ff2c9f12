// SPDX-License-Identifier: Apache-2.0
//
// Parameters that a run does not train (--freeze): they have no gradient and no optimizer state, and their bytes never
// change, so that incremental checkpoints link them. What was frozen is kept in a checkpoint, since it says whose
// optimizer state is missing there on purpose.
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

// Freezes the parameters of `module` one of whose names `pattern`, an ECMAScript regular expression, matches anywhere.
// Call before sharding. kInvalidArgument where it is no regular expression, matches none, or leaves nothing to train.
absl::Status FreezeParameters(const std::string& pattern, Module& module);

// Those that are not frozen: what an optimizer is made of.
std::vector<ShardedParameter*> TrainableParameters(const std::vector<ShardedParameter*>& parameters);

// Names of those that are.
std::vector<std::string> FrozenNames(const std::vector<ShardedParameter*>& parameters);

// The names as a checkpoint keeps them, and back; kDataLoss when `text` is no list of names.
std::string EncodeFrozen(const std::vector<std::string>& names);
absl::StatusOr<std::vector<std::string>> DecodeFrozen(const std::string& text);

// `wanted` without the optimizer state of `names`; the tensors share their memory with `wanted`.
StateDict WithoutOptimState(const StateDict& wanted, const std::vector<std::string>& names);

// Sentences for people about a run that freezes `now` and continues from one that froze `before`; none where they are
// the same.
std::vector<std::string> DescribeFrozenChange(const std::vector<std::string>& before,
                                              const std::vector<std::string>& now);

}  // namespace fsdp

#endif  // FSDP_TRAIN_FROZEN_PARAMETERS_H_

// SPDX-License-Identifier: Apache-2.0
//
// A language model for training as TrainOptions ask: its config from a file or a preset, its units wrapped and sharded
// over a group.
#ifndef FSDP_TRAIN_SHARDED_MODEL_H_
#define FSDP_TRAIN_SHARDED_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// options.config is a config.json, a directory that holds one, or the name of a preset, of a model of kind
// options.model. What the file says and this project does otherwise (dropout) is added to `notes`, a sentence each.
// kNotFound when it is none of them.
absl::StatusOr<CausalLmConfig> ReadModelConfig(const TrainOptions& options, std::vector<std::string>* notes);

// Random weights from options.fsdp.init_seed, equal on any number of ranks. `trace` may be null. Collective.
absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeShardedModel(const CausalLmConfig& config,
                                                                           const TrainOptions& options,
                                                                           std::shared_ptr<ProcessGroup> group,
                                                                           std::shared_ptr<Trace> trace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_SHARDED_MODEL_H_

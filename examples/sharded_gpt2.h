// SPDX-License-Identifier: Apache-2.0
//
// A GPT-2 for training as TrainOptions ask: its config from a file or a preset, its units wrapped and sharded over a
// group.
#ifndef FSDP_EXAMPLES_SHARDED_GPT2_H_
#define FSDP_EXAMPLES_SHARDED_GPT2_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "examples/train_options.h"
#include "fsdp/fsdp.h"
#include "models/gpt2.h"

namespace fsdp {

// `config` is a config.json, a directory that holds one, or the name of a preset. What the file says and this project
// does otherwise (dropout) is added to `notes`, a sentence each. kNotFound when it is none of them.
absl::StatusOr<Gpt2Config> ReadGpt2Config(const std::string& config, std::vector<std::string>* notes);

// Random weights from options.seed, equal on any number of ranks. Collective.
absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeShardedGpt2(const Gpt2Config& config,
                                                                          const TrainOptions& options,
                                                                          std::shared_ptr<ProcessGroup> group);

}  // namespace fsdp

#endif  // FSDP_EXAMPLES_SHARDED_GPT2_H_

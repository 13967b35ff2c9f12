// SPDX-License-Identifier: Apache-2.0
//
// A language model as TrainOptions require it: its config from a file or a preset, its modules wrapped into units and
// sharded over a group, by either interface: FullyShardedDataParallel::Wrap (--api=fsdp1), or FullyShard on the same
// modules, bottom-up, over a mesh of the ranks (--api=fsdp2). The result has one type, so nothing after it differs.
#ifndef FSDP_TRAIN_SHARDED_LANGUAGE_MODEL_H_
#define FSDP_TRAIN_SHARDED_LANGUAGE_MODEL_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// The file of options.config, given directly or by its directory; a preset does not have one.
std::string ModelConfigPath(const TrainOptions& options);

// options.config is a config.json, a directory that holds one, or the name of a preset, of a model of kind
// options.model. Settings of the file that this project does not follow (dropout) are added to `notes`, which may be
// null, one sentence each. kNotFound if there is neither such a file nor such a preset; the parser's error, with the
// path, for a file that does not describe a model of this kind.
absl::StatusOr<CausalLmConfig> ReadModelConfig(const TrainOptions& options, std::vector<std::string>* notes);

// A model with random weights from options.fsdp.init_seed, equal on any number of ranks, with options.freeze applied.
// No rank ever holds the whole model. `trace` may be null. kInvalidArgument, naming the flag, for a shard_group_size
// that does not divide the ranks; without one, the ranks of a host form a group, and kFailedPrecondition if hosts have
// different numbers of ranks. Collective.
absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeShardedModel(const CausalLmConfig& config,
                                                                           const TrainOptions& options,
                                                                           std::shared_ptr<ProcessGroup> group,
                                                                           std::shared_ptr<Trace> trace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_SHARDED_LANGUAGE_MODEL_H_

// SPDX-License-Identifier: Apache-2.0
//
// A model for training under FSDP2 as TrainOptions ask (--api=fsdp2): a mesh over the ranks, FullyShard on the modules
// that the wrapping picks and on the whole model.
#ifndef FSDP_TRAIN_FULLY_SHARDED_MODEL_H_
#define FSDP_TRAIN_FULLY_SHARDED_MODEL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/nn/module.h"
#include "fsdp/tensor/trace.h"
#include "fsdp/train/train_options.h"

namespace fsdp {

// `policy` says which modules are units of their own. Random weights from options.seed, equal on any number of ranks.
// `trace` may be null. Collective.
absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> MakeFullyShardedModel(std::unique_ptr<Module> module,
                                                                                const WrapPolicy& policy,
                                                                                const TrainOptions& options,
                                                                                std::shared_ptr<ProcessGroup> group,
                                                                                std::shared_ptr<Trace> trace);

}  // namespace fsdp

#endif  // FSDP_TRAIN_FULLY_SHARDED_MODEL_H_

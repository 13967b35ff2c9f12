// SPDX-License-Identifier: Apache-2.0
//
// CheckpointSaver: saves model and optimizer as TrainOptions ask: when, in which form, how many are kept. step-K holds
// the state after K steps.
#ifndef FSDP_EXAMPLES_CHECKPOINT_SAVER_H_
#define FSDP_EXAMPLES_CHECKPOINT_SAVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/train_options.h"
#include "fsdp/fsdp.h"
#include "optim/optimizer.h"
#include "tensor/state_dict.h"

namespace fsdp {

// Extras of a saved state: texts of decimal digits.
StateKey StepKey();        // steps done
StateKey TokensSeenKey();  // by them, over all ranks

class CheckpointSaver {
 public:
  // `options`, `model` and `optimizer` are the caller's and outlive it. `superseded`: steps of checkpoint_dir that this
  // run replaces; they are deleted once its first checkpoint is committed, so that there always is a good one.
  CheckpointSaver(const TrainOptions& options, FullyShardedDataParallel& model, Optimizer& optimizer,
                  std::vector<std::string> superseded);

  // True when a checkpoint is due after `steps_done` steps.
  bool IsDue(int64_t steps_done) const;

  // Saves the state after `steps_done` steps, and returns its path. Collective; blocks until it is durable. Any rank's
  // failure is returned on all.
  absl::StatusOr<std::string> Save(int64_t steps_done, int64_t tokens_seen);

 private:
  absl::StatusOr<StateDict> GatherState(int64_t steps_done, int64_t tokens_seen);
  absl::Status DeleteOld(const std::string& saved);

  const TrainOptions& options_;
  FullyShardedDataParallel& model_;
  Optimizer& optimizer_;
  std::vector<std::string> superseded_;
};

}  // namespace fsdp

#endif  // FSDP_EXAMPLES_CHECKPOINT_SAVER_H_

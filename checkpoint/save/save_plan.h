// SPDX-License-Identifier: Apache-2.0
//
// SavePlan: what one rank contributes to a save, checked before a byte is written. Pure but for the addresses of
// tensors.
#ifndef FSDP_CHECKPOINT_SAVE_SAVE_PLAN_H_
#define FSDP_CHECKPOINT_SAVE_SAVE_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/tree/tree_file.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct SavePlan {
  // In the order of the state dict. A tensor of which this rank has nothing to write has an empty interval.
  std::vector<TreeFile::TensorPart> tensors;
  std::vector<TreeFile::Text> texts;

  // False where all that the rank holds are copies of what others write.
  bool is_writer = true;

  // Of the names, dtypes and shapes: equal on ranks that hold parts of the same tensors.
  Digest tensors_digest;
};

// What is to be written of `state`, which must outlive the plan. kInvalidArgument, naming the value, for a name, a
// shard or an alias that cannot be stored; for kFull also for a tensor that is not held whole.
absl::StatusOr<SavePlan> PlanSave(const StateDict& state);

// As PlanSave, for all of every tensor of `contents`, whose shards are not looked at; elements come from `read`. Both
// must outlive the plan.
absl::StatusOr<SavePlan> PlanWhole(const StateDict& contents, const PayloadReader& read);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_SAVE_PLAN_H_

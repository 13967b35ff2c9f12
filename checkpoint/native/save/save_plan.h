// SPDX-License-Identifier: Apache-2.0
//
// SavePlan: the contribution of one rank to a save: every tensor with the interval that this rank writes and a reader
// of its elements, the texts and the attributes. All names, shards and aliases are checked before a byte is written. No
// I/O.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_PLAN_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_PLAN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/digest.h"
#include "fsdp/checkpoint/native/tree/tree_file.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct SavePlan {
  // In the order of the state dict. The interval is empty if this rank writes no element of the tensor.
  std::vector<TreeFile::TensorPart> tensors;
  std::vector<TreeFile::Text> texts;

  // False if the rank holds tensors and all of them are copies that other ranks write.
  bool is_writer = true;

  RunMetadata attributes;

  // The digest of all names, dtypes and shapes, in order: equal on ranks that hold parts of the same tensors.
  Digest tensors_digest;
};

// The plan of a rank that holds `state`, which must outlive the plan: its readers read from the shards.
// kInvalidArgument, naming the value, for a name, a shard, an alias or an attribute that cannot be stored; for kFull
// also for a tensor that is not whole.
absl::StatusOr<SavePlan> PlanSave(const StateDict& state);

// The plan of a process that writes every tensor of `contents` whole. Shards in `contents` are ignored; elements come
// from `read`. Both must outlive the plan. Errors as PlanSave.
absl::StatusOr<SavePlan> PlanWhole(const StateDict& contents, const PayloadReader& read);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_SAVE_PLAN_H_

// SPDX-License-Identifier: Apache-2.0
//
// The flat datasets of a LOCAL rank file: the tensors that share one, and their offsets in it. A LOCAL checkpoint
// stores a rank's flat shards as they are in memory, so that saving and loading copy long runs. Pure.
#ifndef FSDP_CHECKPOINT_NATIVE_TREE_FLAT_PARTS_H_
#define FSDP_CHECKPOINT_NATIVE_TREE_FLAT_PARTS_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/native/tree/tree_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Puts the tensors of `tree` that belong to `units` into flat datasets (TreeFile::InFlat), in the order of this rank's
// flat shards: one dataset for each unit, kind of value and dtype, from the first element that the rank holds to the
// last. Padding between tensors is zero. kInvalidArgument names a tensor whose elements are not part of one run of the
// flat parameter.
absl::Status AddFlatParts(const std::vector<FlatUnitLayout>& units, TreeFile& tree);

// Cuts each of `tensors` to the elements that shard `shard` of `shards` holds under FSDP: a run of ceil(numel / shards)
// elements of a flat parameter, a dim-0 chunk of other tensors. Sets TensorPart::interval, which AddFlatParts reads.
void CutFlat(const std::vector<FlatUnitLayout>& units, int shards, int shard,
             std::vector<TreeFile::TensorPart>& tensors);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_TREE_FLAT_PARTS_H_

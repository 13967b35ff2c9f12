// SPDX-License-Identifier: Apache-2.0
//
// The flat half of a LOCAL rank file: which tensors of it share a long dataset, and where in it they are. Pure.
#ifndef FSDP_CHECKPOINT_TREE_FLAT_PARTS_H_
#define FSDP_CHECKPOINT_TREE_FLAT_PARTS_H_

#include <vector>

#include "absl/status/status.h"
#include "fsdp/checkpoint/tree/tree_layout.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

// Puts the tensors of `tree` that belong to `units` into flat datasets, as they lie in this rank's flat shards: one for
// each unit, kind of value and dtype, from the first element that the rank holds to the last. Padding between them is
// zero. kInvalidArgument names a tensor whose elements are not those of one run of the flat parameter.
absl::Status AddFlatParts(const std::vector<FlatUnitLayout>& units, TreeFile& tree);

// Cuts each of `tensors` to the elements that shard `shard` of `shards` holds, as FSDP shards it: of a flat parameter a
// run of ceil(numel / shards) elements, of other tensors a dim-0 chunk. Sets TensorPart::interval, which AddFlatParts
// reads.
void CutFlat(const std::vector<FlatUnitLayout>& units, int shards, int shard,
             std::vector<TreeFile::TensorPart>& tensors);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TREE_FLAT_PARTS_H_

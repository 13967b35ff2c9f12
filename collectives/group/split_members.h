// SPDX-License-Identifier: Apache-2.0
//
// SplitMembers: who is with whom when a process group is split.
#ifndef FSDP_COLLECTIVES_GROUP_SPLIT_MEMBERS_H_
#define FSDP_COLLECTIVES_GROUP_SPLIT_MEMBERS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/blob_gather.h"

namespace fsdp {

// The ranks that gave this rank's `color`, ordered by key, then by rank: the new order of ranks. Every rank of the
// group that `gather` gathers over calls it.
absl::StatusOr<std::vector<int>> SplitMembers(const BlobGather& gather, int color, int key);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_SPLIT_MEMBERS_H_

// SPDX-License-Identifier: Apache-2.0
//
// BlobGather: the only operation of the control plane, as a function: every rank passes a blob and gets the blobs of
// all ranks, by rank. Blocking. JobStore::AllGatherObject implements it for ranks without a group,
// ProcessGroup::AllGatherObject for the ranks of a group. The functions here are built on it; every rank must call them
// at the same time.
#ifndef FSDP_COLLECTIVES_GROUP_BLOB_GATHER_H_
#define FSDP_COLLECTIVES_GROUP_BLOB_GATHER_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fsdp {

using BlobGather = std::function<absl::StatusOr<std::vector<std::string>>(std::string_view blob)>;

// As AllReduceStatus of process_group.h: OK on every rank if `mine` is OK on every rank; else, on every rank, the error
// of the lowest rank that has one. Call it after any step that can fail on a single rank, so that no rank continues
// without the others.
absl::Status AllReduceStatus(const BlobGather& gather, const absl::Status& mine);

// The ranks that passed this rank's `color`, ordered by key, then by rank: the members of this rank's part of the
// split, in their new order. kFailedPrecondition if a rank is in another call.
absl::StatusOr<std::vector<int>> SplitMembers(const BlobGather& gather, int color, int key);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_BLOB_GATHER_H_

// SPDX-License-Identifier: Apache-2.0
//
// BlobGather: the one control-plane operation, as a function: every rank gives a blob and gets all of them, by rank.
// The Store gives it to ranks that have no group yet, ProcessGroup::GatherBlobs to those that have.
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

// As AgreeOn of process_group.h.
absl::Status AgreeOn(const BlobGather& gather, const absl::Status& mine);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_BLOB_GATHER_H_

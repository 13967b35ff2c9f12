// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/process_group.h"

#include "fsdp/collectives/group/blob_gather.h"

namespace fsdp {

// Gathers over the group's own control plane.
absl::Status AgreeOn(ProcessGroup& group, const absl::Status& mine) {
  return AgreeOn([&group](std::string_view blob) { return group.GatherBlobs(blob); }, mine);
}

}  // namespace fsdp

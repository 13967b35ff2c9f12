// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/process_group.h"

#include "fsdp/collectives/group/blob_gather.h"

namespace fsdp {

// The group's own control plane is the gather.
absl::Status AgreeOn(ProcessGroup& group, const absl::Status& mine) {
  return AgreeOn([&group](std::string_view blob) { return group.GatherBlobs(blob); }, mine);
}

}  // namespace fsdp

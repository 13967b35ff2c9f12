// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/group/process_group.h"

#include "fsdp/collectives/group/blob_gather.h"

namespace fsdp {

// Gathers over the group's own control plane.
absl::Status AllReduceStatus(ProcessGroup& group, const absl::Status& mine) {
  return AllReduceStatus([&group](std::string_view blob) { return group.AllGatherObject(blob); }, mine);
}

}  // namespace fsdp

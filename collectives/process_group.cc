// SPDX-License-Identifier: Apache-2.0
#include "collectives/process_group.h"

#include "collectives/blob_gather.h"

namespace fsdp {

absl::Status AgreeOn(ProcessGroup& group, const absl::Status& mine) {
  return AgreeOn([&group](std::string_view blob) { return group.GatherBlobs(blob); }, mine);
}

}  // namespace fsdp

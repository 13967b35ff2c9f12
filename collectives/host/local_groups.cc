// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/host/local_groups.h"

#include <utility>

#include "fsdp/collectives/host/host_collectives.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/host/local_fabric.h"

namespace fsdp {

std::vector<std::unique_ptr<ProcessGroup>> CreateLocalGroups(const std::vector<std::shared_ptr<Device>>& devices,
                                                             absl::Duration timeout) {
  std::vector<std::unique_ptr<ProcessGroup>> groups;
  for (std::unique_ptr<Fabric>& fabric : CreateLocalFabrics(devices)) {
    groups.push_back(std::make_unique<HostProcessGroup>(std::make_unique<HostCollectives>(std::move(fabric), timeout)));
  }
  return groups;
}

}  // namespace fsdp

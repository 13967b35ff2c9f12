// SPDX-License-Identifier: Apache-2.0
//
// Groups of backend "local" on host devices: their ranks are threads of one process.
#ifndef FSDP_COLLECTIVES_HOST_LOCAL_GROUPS_H_
#define FSDP_COLLECTIVES_HOST_LOCAL_GROUPS_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

// A group of `devices.size()` ranks of backend "local", by rank; use each from its own thread. `timeout`: of each
// collective.
std::vector<std::unique_ptr<ProcessGroup>> CreateLocalGroups(const std::vector<std::shared_ptr<Device>>& devices,
                                                             absl::Duration timeout = absl::Minutes(10));

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_LOCAL_GROUPS_H_

// SPDX-License-Identifier: Apache-2.0
//
// LocalFabric: the fabric of ranks that are threads of one process. An address is a pointer, and the control memory and
// the staging slots are on the heap. A rank cannot die without the others, so IsAlive is always true.
#ifndef FSDP_COLLECTIVES_HOST_LOCAL_FABRIC_H_
#define FSDP_COLLECTIVES_HOST_LOCAL_FABRIC_H_

#include <memory>
#include <vector>

#include "fsdp/collectives/host/fabric.h"

namespace fsdp {

// A fabric for each device, by rank, all of one group. Allocate takes memory of the rank's own device.
std::vector<std::unique_ptr<Fabric>> CreateLocalFabrics(const std::vector<std::shared_ptr<Device>>& devices);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_LOCAL_FABRIC_H_

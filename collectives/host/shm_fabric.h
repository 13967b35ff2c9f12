// SPDX-License-Identifier: Apache-2.0
//
// ShmFabric: ranks that are processes of one host. Each has a SharedHeap that all peers map read-only, and each group
// has one block of control memory and staging slots that all map read-write. An address is an offset in its rank's
// heap.
#ifndef FSDP_COLLECTIVES_HOST_SHM_FABRIC_H_
#define FSDP_COLLECTIVES_HOST_SHM_FABRIC_H_

#include <memory>

#include "fsdp/collectives/host/fabric.h"

namespace fsdp {

// The fabric of rank `rank` of `size` ranks, which all call this at the same time; `gather` gathers over them. Ranks
// may share a process, as in tests. kUnavailable when a peer went away meanwhile.
absl::StatusOr<std::unique_ptr<Fabric>> CreateShmFabric(int rank, int size, std::shared_ptr<Device> device,
                                                        const BlobGather& gather);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_SHM_FABRIC_H_

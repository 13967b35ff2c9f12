// SPDX-License-Identifier: Apache-2.0
//
// ShmFabric: the fabric of ranks that are processes of one host. Each rank has a SharedHeap that all peers map
// read-only, and each group has one block of control memory and staging slots that all its ranks map read-write. An
// address is an offset in the heap of the rank that published it. A pidfd per peer reports whether its process still
// runs.
#ifndef FSDP_COLLECTIVES_HOST_SHM_FABRIC_H_
#define FSDP_COLLECTIVES_HOST_SHM_FABRIC_H_

#include <memory>

#include "fsdp/collectives/host/fabric.h"

namespace fsdp {

// The fabric of rank `rank` of `size` ranks, which all call this at the same time; `gather` gathers over them. Ranks
// may share a process, as in tests. kUnavailable if a peer ended meanwhile.
absl::StatusOr<std::unique_ptr<Fabric>> CreateShmFabric(int rank, int size, std::shared_ptr<Device> device,
                                                        const BlobGather& gather);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_HOST_SHM_FABRIC_H_

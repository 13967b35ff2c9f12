// SPDX-License-Identifier: Apache-2.0
//
// CreateFakeGroup: one rank of a world without its other ranks (PyTorch's FakeProcessGroup). Every collective succeeds
// immediately without peers, so one process can run the work of, say, rank 17 of 16,384: make its shards, run its
// schedule, plan its saves, and count its memory. Arguments, sizes and the order of calls are checked as by a real
// group. The values come from this rank only, so results computed with them are meaningless:
//
//   AllGather             copies the input to this rank's slice of the output; the other slices stay as they are
//   ReduceScatter         copies this rank's slice of the input to the output, whatever the operation
//   AllReduce, Broadcast  leave the tensor as it is
//   AllGatherObject           this rank's blob, once for each rank: every peer agrees, and is on this host
#ifndef FSDP_COLLECTIVES_FAKE_PROCESS_GROUP_H_
#define FSDP_COLLECTIVES_FAKE_PROCESS_GROUP_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/tensor/device.h"

namespace fsdp {

struct FakeGroupOptions {
  int rank = 0;
  int size = 1;

  // A host device. Default: a new one.
  std::shared_ptr<Device> device = nullptr;

  // The sizes of the groups that the next calls of Split make, in order, because the colors of the peers are unknown. A
  // hybrid strategy splits into {shard_group_size, size / shard_group_size}. This rank's place in such a group is its
  // key modulo the size, so keys must be places or ranks of consecutive blocks. A Split beyond the list is
  // kFailedPrecondition.
  std::vector<int> split_sizes = {};
};

// A group of backend "fake". It does not block, needs no memory for peers, and has the threading rules of every
// ProcessGroup. kInvalidArgument for a rank that is not in the world, for a split size that does not divide it, and for
// a device that is not a host device.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateFakeGroup(FakeGroupOptions options);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_FAKE_PROCESS_GROUP_H_

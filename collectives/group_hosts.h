// SPDX-License-Identifier: Apache-2.0
//
// GroupHosts: the host of each rank of a group, exchanged between the ranks. Programs use it to choose the size of
// groups that shard inside a host and replicate between hosts:
//
//   const absl::StatusOr<int> shards = RanksPerHost(*group);
//   DeviceMesh::Create(group, {group->size() / *shards, *shards}, {"replicate", "shard"});
#ifndef FSDP_COLLECTIVES_GROUP_HOSTS_H_
#define FSDP_COLLECTIVES_GROUP_HOSTS_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/collectives/net/host_layout.h"

namespace fsdp {

struct HostIdentity;

struct GroupHosts {
  HostLayout layout;
  std::vector<std::string> names;  // by host: its host name, for messages only: containers may have equal names

  // "4 ranks on 2 hosts with 2 ranks each". An irregular layout also lists the ranks of each host: "3 ranks on 2 hosts
  // with 2, 1 ranks: host-a has ranks 0, 1; host-b has rank 2".
  std::string ToString() const;
};

// `gather`, a BlobGather (group/blob_gather.h), gathers over the ranks; each rank contributes its own host. Blocks.
absl::StatusOr<GroupHosts> FindHosts(
    const std::function<absl::StatusOr<std::vector<std::string>>(std::string_view blob)>& gather,
    const HostIdentity& mine);

// FindHosts over a group. `host_id` as InitOptions::host_id. Collective; blocks.
absl::StatusOr<GroupHosts> FindHosts(ProcessGroup& group, std::string_view host_id = {});

// The number of ranks on every host of the group; all ranks if there is one host. kFailedPrecondition, on every rank,
// if hosts have different numbers of ranks or if the ranks of a host are not consecutive; the error lists the ranks of
// each host. Collective; blocks.
absl::StatusOr<int> RanksPerHost(ProcessGroup& group, std::string_view host_id = {});

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_GROUP_HOSTS_H_

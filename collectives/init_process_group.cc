// SPDX-License-Identifier: Apache-2.0
#include "collectives/init_process_group.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/host_identity.h"
#include "collectives/host_process_group.h"
#include "collectives/job_store.h"
#include "collectives/run_ranks.h"
#include "collectives/shm_fabric.h"
#include "tensor/host_device.h"

namespace fsdp {
namespace {

// What the environment says, before ranks have to meet.
absl::Status CheckLocalWorldSize(const Rendezvous& r) {
  if (r.local_world_size == r.world_size) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("ranks are on several hosts: ", r.local_world_size, " of ", r.world_size,
                                               " ranks are on the host of rank ", r.rank, " (by the environment of ",
                                               r.source, "); there is no backend for that yet, shm serves one host"));
}

absl::Status CheckHosts(JobStore& job) {
  ASSIGN_OR_RETURN(const std::vector<std::string> blobs, job.GatherBlobs(HostIdentity::OfThisProcess().ToBlob()));
  std::vector<HostIdentity> hosts;
  for (const std::string& blob : blobs) {
    hosts.push_back(HostIdentity::FromBlob(blob));
  }
  return CheckOneHost(hosts);
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const InitOptions& options) {
  ASSIGN_OR_RETURN(const Rendezvous rendezvous, RendezvousFromEnvironment());
  return JoinProcessGroup(rendezvous, options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> JoinProcessGroup(const Rendezvous& rendezvous,
                                                               const InitOptions& options) {
  std::shared_ptr<Device> device = options.device != nullptr ? options.device : CreateHostDevice();
  if (rendezvous.world_size == 1) {
    return std::shared_ptr<ProcessGroup>(std::move(CreateLocalGroups({std::move(device)}, options.timeout)[0]));
  }
  RETURN_IF_ERROR(CheckLocalWorldSize(rendezvous));
  ASSIGN_OR_RETURN(const std::unique_ptr<JobStore> job, JobStore::Open(rendezvous, options.timeout));
  RETURN_IF_ERROR(CheckHosts(*job));
  ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                   CreateShmFabric(rendezvous.rank, rendezvous.world_size, std::move(device),
                                   [&job](std::string_view blob) { return job->GatherBlobs(blob); }));
  RETURN_IF_ERROR(job->Close());
  return std::make_shared<HostProcessGroup>(std::move(fabric), options.timeout);
}

}  // namespace fsdp

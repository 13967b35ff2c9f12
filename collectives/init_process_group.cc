// SPDX-License-Identifier: Apache-2.0
//
// The steps of JoinProcessGroup, and what each needs to exchange with the other ranks:
//
//   rendezvous (who am I) -> JobStore: find rank 0 -> CheckHosts -> CreateShmFabric -> close the store ->
//   [CreateNcclGroup]
//                            sockets                  blobs         blobs              Leave              host group
//
// The ranks need the store only until the fabric exists: from then on they share memory, in which a death is noticed
// within milliseconds. Rank 0 keeps serving it as long as the group lives, so that MASTER_PORT stays taken and another
// job that is given it is told whose it is. A group on GPUs has a host group for its control plane, made in the same
// way.
#include "fsdp/collectives/init_process_group.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/host/host_collectives.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/host/shm_fabric.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/job/job_store.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

// Finds several hosts from the environment alone, before the ranks have to find each other.
absl::Status CheckLocalWorldSize(const Rendezvous& r) {
  if (r.local_world_size == r.world_size) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("ranks are on several hosts: ", r.local_world_size, " of ", r.world_size,
                                               " ranks are on the host of rank ", r.rank, " (by the environment of ",
                                               r.source, "); there is no backend for that yet, shm serves one host"));
}

// The backend for `device`; kInvalidArgument if options.backend is another one.
absl::StatusOr<std::string> ChooseBackend(const InitOptions& options, const Device& device, int world_size) {
  const bool on_gpu = device.type() == DeviceType::kCuda;
  const std::string fits = world_size == 1 ? "local" : on_gpu ? "nccl" : "shm";
  // A single rank may ask for the backend that several ranks would have; it gets "local".
  const bool alone = world_size == 1 && options.backend == (on_gpu ? "nccl" : "shm");
  if (options.backend.empty() || options.backend == fits || alone) return fits;
  return absl::InvalidArgumentError(absl::StrCat("backend \"", options.backend, "\" for ", world_size,
                                                 world_size == 1 ? " rank" : " ranks", " on ", device.name(),
                                                 ": expected \"", fits, "\""));
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateGroupOfOne(std::shared_ptr<Device> device, absl::Duration timeout) {
  if (device->type() == DeviceType::kCpu) {
    return std::shared_ptr<ProcessGroup>(std::move(CreateLocalGroups({std::move(device)}, timeout)[0]));
  }
  FSDP_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ProcessGroup>> groups,
                        CreateLocalCudaGroups({std::move(device)}, timeout));
  return std::shared_ptr<ProcessGroup>(std::move(groups[0]));
}

absl::Status CheckHosts(JobStore& job) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, job.GatherBlobs(HostIdentity::OfThisProcess().ToBlob()));
  std::vector<HostIdentity> hosts;
  for (const std::string& blob : blobs) {
    hosts.push_back(HostIdentity::FromBlob(blob));
  }
  return CheckOneHost(hosts);
}

// The group of a rank and what lives as long as it. Destroyed from the last member to the first: the port is free
// once the group has ended.
struct JoinedGroup {
  std::unique_ptr<StoreServer> server;  // null on other ranks than 0
  std::unique_ptr<ProcessGroup> group;
};

std::shared_ptr<ProcessGroup> Hold(std::unique_ptr<StoreServer> server, std::unique_ptr<ProcessGroup> group) {
  auto joined = std::make_shared<JoinedGroup>(JoinedGroup{std::move(server), std::move(group)});
  ProcessGroup* const part = joined->group.get();
  return {std::move(joined), part};
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const InitOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const Rendezvous rendezvous, RendezvousFromEnvironment());
  return JoinProcessGroup(rendezvous, options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> JoinProcessGroup(const Rendezvous& rendezvous,
                                                               const InitOptions& options) {
  std::shared_ptr<Device> device = options.device != nullptr ? options.device : CreateHostDevice();
  FSDP_ASSIGN_OR_RETURN(const std::string backend, ChooseBackend(options, *device, rendezvous.world_size));
  if (rendezvous.world_size == 1) return CreateGroupOfOne(std::move(device), options.timeout);
  FSDP_RETURN_IF_ERROR(CheckLocalWorldSize(rendezvous));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<JobStore> job, JobStore::Open(rendezvous, options.timeout));
  FSDP_RETURN_IF_ERROR(CheckHosts(*job));
  const bool on_gpu = backend == "nccl";
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                        CreateShmFabric(rendezvous.rank, rendezvous.world_size, on_gpu ? CreateHostDevice() : device,
                                        [&job](std::string_view blob) { return job->GatherBlobs(blob); }));
  FSDP_RETURN_IF_ERROR(job->Close());
  auto on_host =
      std::make_unique<HostProcessGroup>(std::make_unique<HostCollectives>(std::move(fabric), options.timeout));
  if (!on_gpu) return Hold(job->TakeServer(), std::move(on_host));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                        CreateNcclGroup(std::move(on_host), std::move(device), options.timeout));
  return Hold(job->TakeServer(), std::move(group));
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The steps of InitProcessGroup, with the data that each exchanges with the other ranks:
//
//   rendezvous (who am I) -> JobStore: find rank 0 -> FindHosts -> on one host: CreateShmFabric            -> watch
//                                                               -> on several: CreateUcxTransport or, if      the job
//                                                                  asked for, a registered backend's
//                            sockets                  blobs                    blobs
//
// The device is created first, so that an error of the device is known before another rank waits for this one. If only
// FindHosts can give this rank's place among the ranks of its host, the device is created after it.
//
//   -> on GPUs: CreateNcclGroup, with the group made so far for its control plane
//
// All ranks keep their connections to the store, over which each learns which rank is lost (job_watch.h): in shared
// memory a death is noticed, but not that a rank is stopped. Rank 0 serves the store as long as the group lives, so
// that MASTER_PORT stays taken and another job with the same port learns which job has it.
#include "fsdp/collectives/init_process_group.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/file_descriptor.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/fake_process_group.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/group_hosts.h"
#include "fsdp/collectives/host/host_collectives.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/host/shm_fabric.h"
#include "fsdp/collectives/job/host_identity.h"
#include "fsdp/collectives/job/job_store.h"
#include "fsdp/collectives/job/job_watch.h"
#include "fsdp/collectives/job/socket.h"
#include "fsdp/collectives/net/host_layout.h"
#include "fsdp/collectives/net/layered_collectives.h"
#include "fsdp/collectives/net/net_collectives.h"
#include "fsdp/collectives/net/network_interfaces.h"
#include "fsdp/collectives/net/transport_backend.h"
#include "fsdp/collectives/net/ucx_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/tensor/host_device.h"

namespace fsdp {
namespace {

// `names` and the names of the registered backends as one list of quoted names: "a", "b" or "c".
std::string OneOf(std::vector<std::string> names) {
  for (std::string& name : RegisteredTransportBackends()) names.push_back(std::move(name));
  std::string list = absl::StrCat("\"", names[0], "\"");
  for (size_t i = 1; i < names.size(); ++i) {
    absl::StrAppend(&list, i + 1 < names.size() ? ", " : " or ", "\"", names[i], "\"");
  }
  return list;
}

absl::Status WrongBackend(const InitOptions& options, const std::string& ranks, std::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("backend \"", options.backend, "\" for ", ranks, ": expected ", std::string(expected)));
}

// Checks options.backend by the device only, before ranks meet.
absl::Status CheckBackend(const InitOptions& options, const Device& device, int world_size) {
  const bool on_gpu = device.type() == DeviceType::kCuda;
  const std::string& backend = options.backend;
  // A single rank may ask for the backend that several ranks would have; it gets "local".
  const bool fits = backend.empty() || (!on_gpu && backend == "fake") || (world_size == 1 && backend == "local") ||
                    (on_gpu ? backend == "nccl"
                            : backend == "shm" || backend == "net" || RegisteredTransportBackend(backend) != nullptr);
  if (fits) return absl::OkStatus();
  const std::string ranks = absl::StrCat(world_size, world_size == 1 ? " rank" : " ranks", " on ", device.name());
  std::string expected = world_size == 1 ? "\"local\"" : on_gpu ? "\"nccl\"" : OneOf({"shm", "net"});
  if (backend == "mpi" && RegisteredTransportBackend(backend) == nullptr) {
    absl::StrAppend(&expected, "; \"mpi\" is available in a program that depends on //collectives/mpi");
  }
  return WrongBackend(options, ranks, expected);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateGroupOfOne(std::shared_ptr<Device> device, absl::Duration timeout) {
  if (device->type() == DeviceType::kCpu) {
    return std::shared_ptr<ProcessGroup>(std::move(CreateLocalGroups({std::move(device)}, timeout)[0]));
  }
  FSDP_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<ProcessGroup>> groups,
                        CreateLocalCudaGroups({std::move(device)}, timeout));
  return std::shared_ptr<ProcessGroup>(std::move(groups[0]));
}

absl::StatusOr<std::shared_ptr<Device>> CreateDevice(const Rendezvous& job, const InitOptions& options) {
  std::shared_ptr<Device> device = options.device;
  if (device == nullptr && options.make_device != nullptr) {
    FSDP_ASSIGN_OR_RETURN(device, options.make_device(job));
  }
  if (device == nullptr) device = CreateHostDevice();
  FSDP_RETURN_IF_ERROR(CheckBackend(options, *device, job.world_size));
  return device;
}

// A fake rank meets no other rank, so the job needs no master.
absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateFakeGroupOf(const Rendezvous& job, const InitOptions& options) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateDevice(job, options));
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                        CreateFakeGroup({.rank = job.rank, .size = job.world_size, .device = std::move(device)}));
  return group;
}

// `job` with the place that its rank has among the ranks of its host by `layout`.
Rendezvous WithLocalRank(Rendezvous job, const HostLayout& layout) {
  const std::vector<int>& here = layout.ranks_on(layout.host_of(job.rank));
  job.local_rank = static_cast<int>(std::find(here.begin(), here.end(), job.rank) - here.begin());
  job.local_world_size = static_cast<int>(here.size());
  job.local_ranks_are_known = true;
  return job;
}

// The watch of a group's job, which holds the port on rank 0. Null until the collectives exist, which ask it.
using HeldWatch = std::shared_ptr<std::unique_ptr<JobWatch>>;

// A rank that has met the others.
struct MetRank {
  int rank = 0;
  std::string master_addr;
  HostLayout layout;
  std::unique_ptr<JobStore> job;
};

// The network interface to use between hosts: the one that routes to rank 0's host. Rank 0's host may resolve its own
// name to loopback, so it uses the route to another host. Empty if none is found. Every rank calls it.
absl::StatusOr<std::string> NetworkOfTheJob(const MetRank& met, const BlobGather& gather) {
  const NetworkInterface mine = InterfaceTowards(met.master_addr);
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, gather(mine.address));
  if (!mine.name.empty()) return mine.name;
  for (int r = 0; r < met.layout.size(); ++r) {
    if (met.layout.host_of(r) == met.layout.host_of(met.rank) || addresses[r].empty()) continue;
    return InterfaceTowards(addresses[r]).name;
  }
  return std::string();
}

// The backend sends the address of rank 0 to the ranks of other hosts if the launcher did not: rank 0 takes a free
// port, whose descriptor is then used like one from our launcher. Blocks until all ranks have called it.
absl::StatusOr<Rendezvous> FindMasterOver(const TransportBackend& backend, Rendezvous rendezvous) {
  FileDescriptor listener;
  std::string address;
  absl::Status listens;
  if (rendezvous.rank == 0) {
    absl::StatusOr<FileDescriptor> any = ListenTcpForHosts("127.0.0.1", 0);
    const absl::StatusOr<int> port = any.ok() ? ListeningPort(any->get()) : any.status();
    listens = port.status();
    if (port.ok()) {
      listener = *std::move(any);
      address = absl::StrCat(HostIdentity::OfThisProcess("").name, " ", *port);
    }
  }
  FSDP_ASSIGN_OR_RETURN(const std::string given,
                        backend.share_address(rendezvous.rank, rendezvous.world_size, listens.ok() ? address : ""));
  FSDP_RETURN_IF_ERROR(listens);
  const std::vector<std::string> parts = absl::StrSplit(given, ' ');
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &rendezvous.master_port)) {
    return absl::UnavailableError(absl::StrCat("rank ", rendezvous.rank, " of ", rendezvous.world_size,
                                               ": rendezvous over ", std::string(backend.name),
                                               ": rank 0 cannot listen on any port"));
  }
  rendezvous.master_addr = parts[0];
  rendezvous.store_fd = listener.Release();
  rendezvous.no_master.clear();
  return rendezvous;
}

// The transport between all ranks: UCX's, or a registered backend's if the options name it.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(const MetRank& met, const InitOptions& options,
                                                           const PeerWatch& watch, const BlobGather& gather) {
  const std::string place = absl::StrCat("pid ", getpid(), " on ", HostIdentity::OfThisProcess(options.host_id).name);
  if (const TransportBackend* backend = RegisteredTransportBackend(options.backend)) {
    return backend->create(met.rank, met.layout.size(), place, watch, gather);
  }
  FSDP_ASSIGN_OR_RETURN(const std::string interface, NetworkOfTheJob(met, gather));
  return CreateUcxTransport(met.rank, met.layout.size(),
                            {.place = place, .interface = interface, .timeout = options.timeout, .watch = watch},
                            gather);
}

// The collectives of all ranks, whose memory is on `device`: through shared memory on one host, else through a network.
absl::StatusOr<std::unique_ptr<BlockingCollectives>> CreateCollectives(const MetRank& met,
                                                                       std::shared_ptr<Device> device,
                                                                       const InitOptions& options,
                                                                       const PeerWatch& watch) {
  JobStore& job = *met.job;
  const HostLayout& layout = met.layout;
  const BlobGather gather = [&job](std::string_view blob) { return job.AllGatherObject(blob); };
  if (layout.hosts() > 1 && options.backend == "shm") {
    return WrongBackend(options, absl::StrCat("ranks on ", layout.ToString()), OneOf({"net"}));
  }
  const bool is_registered = RegisteredTransportBackend(options.backend) != nullptr;
  if (layout.hosts() == 1 && options.backend != "net" && !is_registered) {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Fabric> fabric,
                          CreateShmFabric(met.rank, layout.size(), std::move(device), gather));
    return std::make_unique<HostCollectives>(std::move(fabric), options.timeout, RankNames{}, watch);
  }
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, CreateTransport(met, options, watch, gather));
  auto net = std::make_unique<NetCollectives>(
      std::move(transport), std::move(device),
      NetOptions{.timeout = options.timeout, .watch = watch, .backend = is_registered ? options.backend : "net"});
  return CreateLayeredCollectives(std::move(net), layout, gather);
}

// The same, and sets `held`: the watch starts after the collectives have been created, because they still need the
// store, and takes it over. It is not queried before.
absl::StatusOr<std::unique_ptr<BlockingCollectives>> CreateWatchedCollectives(const MetRank& met,
                                                                              std::shared_ptr<Device> device,
                                                                              const InitOptions& options,
                                                                              const HeldWatch& held) {
  const PeerWatch watch = [held](absl::Duration wait) {
    return *held == nullptr ? absl::OkStatus() : (*held)->Verdict(wait);
  };
  FSDP_ASSIGN_OR_RETURN(auto collectives, CreateCollectives(met, std::move(device), options, watch));
  FSDP_ASSIGN_OR_RETURN(*held, met.job->Watch());
  // The end of rank 0's group ends the watch, which must not be before all ranks have begun to watch.
  FSDP_RETURN_IF_ERROR(collectives->AllGatherObject(/*sequence=*/0, "").status());
  return collectives;
}

// A rank's group and the objects that must live as long.
class JoinedGroup {
 public:
  // `control`: the host group in `group`, or `group` itself.
  JoinedGroup(HeldWatch watch, const HostProcessGroup& control, std::unique_ptr<ProcessGroup> group)
      : watch_(std::move(watch)), control_(control), group_(std::move(group)) {}

  // The port is free after the group has ended. If the group is broken, the other ranks see this rank as lost.
  ~JoinedGroup() {
    const bool is_done = control_.first_rank_to_give_up() < 0;
    group_.reset();
    if (is_done) (*watch_)->Leave();
    watch_->reset();
  }

  ProcessGroup* group() const { return group_.get(); }

 private:
  const HeldWatch watch_;
  const HostProcessGroup& control_;
  std::unique_ptr<ProcessGroup> group_;
};

std::shared_ptr<ProcessGroup> Hold(HeldWatch watch, const HostProcessGroup& control,
                                   std::unique_ptr<ProcessGroup> group) {
  auto joined = std::make_shared<JoinedGroup>(std::move(watch), control, std::move(group));
  ProcessGroup* const part = joined->group();
  return {std::move(joined), part};
}

}  // namespace

absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const InitOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const Rendezvous rendezvous, RendezvousFromEnvironment());
  return InitProcessGroup(rendezvous, options);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> InitProcessGroup(const Rendezvous& given, const InitOptions& options) {
  if (options.backend == "fake") return CreateFakeGroupOf(given, options);
  std::shared_ptr<Device> device;
  if (given.local_ranks_are_known) {
    FSDP_ASSIGN_OR_RETURN(device, CreateDevice(given, options));
  }
  if (given.world_size == 1) return CreateGroupOfOne(std::move(device), options.timeout);
  Rendezvous rendezvous = given;
  const TransportBackend* const registered = RegisteredTransportBackend(options.backend);
  if (registered != nullptr && !given.no_master.empty()) {
    FSDP_ASSIGN_OR_RETURN(rendezvous, FindMasterOver(*registered, given));
  }
  MetRank met{.rank = rendezvous.rank, .master_addr = rendezvous.master_addr, .layout = {}, .job = nullptr};
  FSDP_ASSIGN_OR_RETURN(met.job, JobStore::Open(rendezvous, options.join_timeout.value_or(options.timeout)));
  FSDP_ASSIGN_OR_RETURN(const GroupHosts hosts,
                        FindHosts([&met](std::string_view blob) { return met.job->AllGatherObject(blob); },
                                  HostIdentity::OfThisProcess(options.host_id)));
  met.layout = hosts.layout;
  if (device == nullptr) {
    FSDP_ASSIGN_OR_RETURN(device, CreateDevice(WithLocalRank(rendezvous, met.layout), options));
  }
  const bool on_gpu = device->type() == DeviceType::kCuda;
  const auto watch = std::make_shared<std::unique_ptr<JobWatch>>();
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<BlockingCollectives> collectives,
                        CreateWatchedCollectives(met, on_gpu ? CreateHostDevice() : device, options, watch));
  auto on_host = std::make_unique<HostProcessGroup>(std::move(collectives));
  const HostProcessGroup& control = *on_host;
  if (!on_gpu) return Hold(watch, control, std::move(on_host));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                        CreateNcclGroup(std::move(on_host), std::move(device), options.timeout, met.layout.hosts()));
  return Hold(watch, control, std::move(group));
}

}  // namespace fsdp

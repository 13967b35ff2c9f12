// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite on GPUs, with ranks that are threads: "local", all ranks on GPU 0; "local_on_gpus" and "nccl",
// which need a GPU for each rank; and "nccl_two_a_host", as "nccl" with two consecutive ranks on each simulated host,
// and blobs and heartbeats between hosts.
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/cuda/cuda_process_group.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/net/layered_collectives.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"

namespace fsdp {
namespace {

constexpr char kAcrossHosts[] = "nccl_two_a_host";
constexpr char kOnGpus[] = "local_on_gpus";

// The parts from which a rank creates its group.
struct RankParts {
  std::shared_ptr<CudaCommunicator> local;
  std::shared_ptr<Device> device;
  std::unique_ptr<Transport> transport;
};

HostLayout TwoAHost(int size) {
  std::vector<std::string> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back(absl::StrCat(r / 2));
  return HostLayout::Of(hosts);
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateGroupAcrossHosts(ProcessGroup& meeting, RankParts parts,
                                                                     absl::Duration timeout) {
  const HostLayout layout = TwoAHost(meeting.size());
  auto net = std::make_unique<NetCollectives>(std::move(parts.transport), meeting.device(), NetOptions{timeout});
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<BlockingCollectives> collectives,
                        CreateLayeredCollectives(std::move(net), layout,
                                                 [&](std::string_view blob) { return meeting.AllGatherObject(blob); }));
  return CreateNcclGroup(std::make_unique<HostProcessGroup>(std::move(collectives)), std::move(parts.device), timeout,
                         layout.hosts());
}

absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateGroup(const GroupUnderTest& under_test, ProcessGroup& meeting,
                                                          RankParts parts, absl::Duration timeout) {
  if (under_test.backend == kAcrossHosts) return CreateGroupAcrossHosts(meeting, std::move(parts), timeout);
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting.Split(0, meeting.rank()));
  if (under_test.backend == "nccl") return CreateNcclGroup(std::move(control), std::move(parts.device), timeout);
  return CudaProcessGroup::Create(std::move(control), std::move(parts.local), std::move(parts.device), {timeout});
}

}  // namespace

std::vector<std::string> BackendsUnderTest() { return {"local", kOnGpus, "nccl", kAcrossHosts}; }

absl::Status CanRun(const GroupUnderTest& under_test) {
  FSDP_ASSIGN_OR_RETURN(const int gpus, CudaDeviceCount());
  if (under_test.backend == "local" || gpus >= under_test.size) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(under_test.backend, " wants ", under_test.size, " GPUs, there are ", gpus));
}

// The threads first meet in a group of host memory, which RunRanks creates; its split becomes the control group of the
// backend under test.
absl::Status RunOnBackend(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration timeout) {
  FSDP_RETURN_IF_ERROR(CanRun(under_test));
  const bool nccl = under_test.backend != "local" && under_test.backend != kOnGpus;
  ThreadNetwork network(under_test.size);
  std::vector<std::shared_ptr<Device>> devices;
  for (int r = 0; r < under_test.size; ++r) {
    // NCCL refuses two ranks on one GPU.
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(under_test.backend == "local" ? 0 : r));
    devices.push_back(std::move(device));
  }
  std::vector<std::shared_ptr<CudaCommunicator>> locals(devices.size());
  if (!nccl) {
    FSDP_ASSIGN_OR_RETURN(locals, CreateLocalCudaCommunicators(devices));
  }
  return RunRanks(under_test.size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    const int rank = meeting->rank();
    FSDP_ASSIGN_OR_RETURN(
        const std::shared_ptr<ProcessGroup> group,
        CreateGroup(under_test, *meeting, {locals[rank], devices[rank], network.Join(rank)}, timeout));
    const absl::Status status = rank_main(group);
    if (!status.ok()) {
      meeting->Abort(status);  // first, or a rank that fails because of this one could count as the first
      group->Abort(status);
    }
    return status;
  });
}

}  // namespace fsdp

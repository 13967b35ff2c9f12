// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite with shared memory in symmetric windows of backend nccl, a GPU for each rank: "nccl_windows",
// and "nccl_copy_engines", a group whose all-gathers use copy engines.
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/group/symmetric_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"

namespace fsdp {
namespace {

constexpr char kCopyEngines[] = "nccl_copy_engines";

// A group whose Allocate makes a window of the memory, until the buffer goes.
class WindowedGroup final : public ForwardingProcessGroup, public AllocatesTogether {
 public:
  explicit WindowedGroup(std::shared_ptr<ProcessGroup> inner) : ForwardingProcessGroup(std::move(inner)) {}

  absl::StatusOr<Buffer> Allocate(int64_t nbytes) override {
    FSDP_ASSIGN_OR_RETURN(Buffer memory, inner().Allocate(nbytes));
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(inner(), "the suite"));
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<SymmetricWindow> window, symmetric->RegisterWindow(memory));
    void* const data = memory.data();
    const DeviceId device = memory.device();
    // The window ends first.
    const auto free = [window = std::move(window), memory = std::move(memory)]() mutable {
      window.reset();
      memory = Buffer();
    };
    return Buffer(data, nbytes, free, device);
  }
};

absl::StatusOr<std::shared_ptr<ProcessGroup>> CreateGroup(const GroupUnderTest& under_test, ProcessGroup& meeting,
                                                          absl::Duration timeout) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting.rank()));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting.Split(0, meeting.rank()));
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                        CreateNcclGroup(std::move(control), std::move(device), timeout));
  if (under_test.backend == kCopyEngines) {
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(*group, "the suite"));
    FSDP_ASSIGN_OR_RETURN(group, symmetric->SplitForCopyEngines());
  }
  return std::make_shared<WindowedGroup>(std::move(group));
}

}  // namespace

namespace {

absl::Status RunRanksOf(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration timeout) {
  return RunRanks(under_test.size, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, CreateGroup(under_test, *meeting, timeout));
    const absl::Status status = rank_main(group);
    if (!status.ok()) {
      meeting->Abort(status);  // first, or a rank that fails because of this one could count as the first
      group->Abort(status);
    }
    return status;
  });
}

// Whether NCCL makes windows here: not for GPUs that do not reach each other's memory, and in some releases not for one
// rank.
absl::Status TryWindow(const GroupUnderTest& under_test) {
  static std::mutex mutex;
  static auto* const tried = new std::map<std::pair<std::string, int>, absl::Status>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto [known, is_new] = tried->try_emplace({under_test.backend, under_test.size});
  if (is_new) {
    known->second = RunRanksOf(
        under_test, [](const std::shared_ptr<ProcessGroup>& group) { return group->Allocate(1 << 16).status(); },
        absl::Minutes(1));
  }
  return known->second;
}

}  // namespace

std::vector<std::string> BackendsUnderTest() { return {"nccl_windows", kCopyEngines}; }

// Only what RegisterWindow and SplitForCopyEngines refuse by name; other errors are failures of the suite.
absl::Status CanRun(const GroupUnderTest& under_test) {
  FSDP_ASSIGN_OR_RETURN(const int gpus, CudaDeviceCount());
  if (gpus < under_test.size) {
    return absl::UnavailableError(absl::StrCat("nccl wants ", under_test.size, " GPUs, there are ", gpus));
  }
  const absl::Status made = TryWindow(under_test);
  return made.code() == absl::StatusCode::kFailedPrecondition ? absl::UnavailableError(made.message())
                                                              : absl::OkStatus();
}

absl::Status RunOnBackend(const GroupUnderTest& under_test, const RankMain& rank_main, absl::Duration timeout) {
  FSDP_RETURN_IF_ERROR(CanRun(under_test));
  return RunRanksOf(under_test, rank_main, timeout);
}

}  // namespace fsdp

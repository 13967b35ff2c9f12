// SPDX-License-Identifier: Apache-2.0
//
// Symmetric windows of backend nccl, on a fake NCCL (fake_nccl.h) that refuses what NCCL does not promise. The
// conformance suite tests the data (conformance_windows.cc).
#include "fsdp/collectives/cuda/nccl_windows.h"

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/cuda/fake_nccl.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/group/symmetric_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBytes = 1 << 16;

class NcclWindowsTest : public testing::TestWithParam<int> {
 protected:
  ~NcclWindowsTest() override {
    SetFakeNcclFaults({});
    const FakeNcclCounts left = CountFakeNccl();
    EXPECT_EQ(left.windows, 0);
    EXPECT_EQ(left.communicators, 0);
    EXPECT_EQ(left.allocations, 0);
    EXPECT_EQ(left.left_windows, 0) << "windows of which the communicator was destroyed first";
    EXPECT_EQ(left.freed_windows, 0) << "windows of which the memory was freed first";
  }

  int ranks() const { return GetParam(); }

  // The status that each rank returns.
  std::vector<absl::Status> Run(const std::function<absl::Status(ProcessGroup& group, Stream& stream)>& rank_main) {
    std::vector<absl::Status> results(ranks());
    EXPECT_OK(RunRanks(ranks(), [&](std::shared_ptr<ProcessGroup> meeting) {
      results[meeting->rank()] = [&]() -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
        FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                              CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(1)));
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
        return rank_main(*group, *stream);
      }();
      return absl::OkStatus();
    }));
    return results;
  }

  // All ranks' ranks, gathered into the middle of `memory`.
  static absl::Status GatherInto(const Buffer& memory, ProcessGroup& group, Stream& stream) {
    constexpr int64_t kNumel = 100;
    const int64_t width = SizeOf(DType::kInt64);
    const Tensor all(memory.Slice(kBytes / 2, group.size() * kNumel * width), DType::kInt64,
                     Shape({group.size() * kNumel}));
    const Tensor own = all.Slice({group.rank() * kNumel, (group.rank() + 1) * kNumel});
    Fill(group, own, [&](int64_t) { return group.rank(); });
    group.AllGather(own, all, stream);
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    return ExpectElements(group, all, [](int64_t i) { return static_cast<int>(i / kNumel); });
  }

  // Makes memory of this group a window of `group`, and gathers into it.
  static absl::Status GatherInWindow(ProcessGroup& group, Stream& stream) {
    FSDP_ASSIGN_OR_RETURN(const Buffer memory, group.Allocate(kBytes));
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(group, "test"));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricWindow> window, symmetric->RegisterWindow(memory));
    FSDP_RETURN_IF_ERROR(GatherInto(memory, group, stream));
    return group.AllGatherObject("").status();  // no rank counts before all have gathered
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, NcclWindowsTest, testing::Values(1, 3));

TEST_P(NcclWindowsTest, AWindowEndsBeforeItsMemoryAndItsCommunicator) {
  const std::vector<absl::Status> results = Run([&](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_RETURN_IF_ERROR(GatherInWindow(group, stream));
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    return CountFakeNccl().symmetric >= ranks() ? absl::OkStatus() : absl::DataLossError("no symmetric all-gather");
  });
  for (const absl::Status& result : results) EXPECT_OK(result);
}

// The window holds the communicator, and so may outlive the group.
TEST_P(NcclWindowsTest, AWindowMayOutliveItsGroup) {
  EXPECT_OK(RunRanks(ranks(), [](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group,
                          CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(1)));
    FSDP_ASSIGN_OR_RETURN(const Buffer memory, group->Allocate(kBytes));
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(*group, "test"));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricWindow> window, symmetric->RegisterWindow(memory));
    group.reset();
    return absl::OkStatus();
  }));
}

TEST_P(NcclWindowsTest, ACommunicatorThatWasAbortedKeepsNoWindow) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Buffer memory, group.Allocate(kBytes));
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(group, "test"));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<SymmetricWindow> window, symmetric->RegisterWindow(memory));
    group.Abort(absl::DataLossError("had enough"));
    return GatherInto(memory, group, stream);
  });
  for (const absl::Status& result : results) EXPECT_FALSE(result.ok());
}

TEST_P(NcclWindowsTest, SizesThatDifferAreRefusedOnEveryRankWithBothSizes) {
  if (ranks() == 1) GTEST_SKIP() << "one rank has one size";
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Buffer memory, group.Allocate(group.rank() == 2 ? 2 * kBytes : kBytes));
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(group, "test"));
    const absl::Status refused = symmetric->RegisterWindow(memory).status();
    FSDP_RETURN_IF_ERROR(GatherInWindow(group, stream));  // the group can still be used
    return refused;
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("symmetric window: rank 2 of 3 has 131072 bytes, rank 0 has 65536 bytes: "
                                           "expected equal sizes on all ranks")));
  }
}

TEST_P(NcclWindowsTest, MemoryOfAWindowIsNotRegisteredAgain) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream&) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Buffer memory, group.Allocate(kBytes));
    FSDP_ASSIGN_OR_RETURN(SymmetricGroup * symmetric, SymmetricGroupOf(group, "test"));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<SymmetricWindow> window, symmetric->RegisterWindow(memory));
    EXPECT_THAT(symmetric->RegisterWindow(memory).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("ncclCommWindowRegister: invalid usage")));
    window.reset();
    return symmetric->RegisterWindow(memory).status();
  });
  for (const absl::Status& result : results) EXPECT_OK(result);
}

TEST_P(NcclWindowsTest, GpusThatDoNotReachEachOtherHaveNone) {
  SetFakeNcclFaults({.no_windows = true});
  for (const absl::Status& result : Run(GatherInWindow)) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("symmetric window: NCCL made none: expected GPUs that reach each other's "
                                           "memory by NVLink or PCIe")));
  }
}

TEST_P(NcclWindowsTest, AnNcclWithoutWindowsIsNamedWithItsVersionAndTheOneThatIsNeeded) {
  SetFakeNcclFaults({.version = 22603});
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream&) {
    auto& symmetric = dynamic_cast<SymmetricGroup&>(group);
    EXPECT_THAT(symmetric.RegisterWindow(Buffer()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("NCCL 2.26.3 is loaded")));
    return SymmetricGroupOf(group, "set_symm_mem_for_comm").status();
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 "set_symm_mem_for_comm: symmetric windows: NCCL 2.26.3 is loaded: expected 2.27.0 or "
                                 "later (libnccl.so.2)"));
  }
}

TEST_P(NcclWindowsTest, OnlyAGroupForCopyEnginesGathersByThem) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    const int before = CountFakeNccl().by_copy_engines;
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    FSDP_RETURN_IF_ERROR(GatherInWindow(group, stream));
    EXPECT_EQ(CountFakeNccl().by_copy_engines, before);
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> engines,
                          dynamic_cast<SymmetricGroup&>(group).SplitForCopyEngines());
    EXPECT_EQ(engines->rank(), group.rank());
    EXPECT_EQ(engines->size(), group.size());
    FSDP_RETURN_IF_ERROR(GatherInWindow(*engines, stream));
    EXPECT_EQ(CountFakeNccl().by_copy_engines, before + group.size());
    // Outside of a window they are ordinary.
    FSDP_ASSIGN_OR_RETURN(const Buffer memory, group.Allocate(kBytes));
    FSDP_RETURN_IF_ERROR(GatherInto(memory, *engines, stream));
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    EXPECT_EQ(CountFakeNccl().by_copy_engines, before + group.size());
    return absl::OkStatus();
  });
  for (const absl::Status& result : results) EXPECT_OK(result);
}

TEST_P(NcclWindowsTest, CopyEnginesNeedALaterNcclThanWindows) {
  SetFakeNcclFaults({.version = 22705});
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_RETURN_IF_ERROR(GatherInWindow(group, stream));
    return dynamic_cast<SymmetricGroup&>(group).SplitForCopyEngines().status();
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("all-gathers by copy engines: NCCL 2.27.5 is loaded: expected 2.28.0 or "
                                           "later (libnccl.so.2)")));
  }
}

TEST(GroupsWithoutWindowsTest, AreNamed) {
  EXPECT_OK(RunRanks(2, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    EXPECT_THAT(SymmetricGroupOf(*group, "set_symm_mem_for_comm").status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("set_symm_mem_for_comm: backend local on cpu has no symmetric windows: expected "
                                   "backend nccl, or not this option")));
    return absl::OkStatus();
  }));
  const absl::StatusOr<std::shared_ptr<Device>> device = CreateCudaDevice(0);
  ASSERT_OK(device.status());
  const absl::StatusOr<std::vector<std::unique_ptr<ProcessGroup>>> groups = CreateLocalCudaGroups({*device});
  ASSERT_OK(groups.status());
  EXPECT_THAT(SymmetricGroupOf(*groups->front(), "option").status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("option: backend local on GPUs has no symmetric windows"))));
}

TEST(NcclVersionsTest, ABuildWithAnOldHeaderAndAnOldDriverAreRefusedByName) {
  const NcclVersions found = NcclVersions::Find();
  EXPECT_OK(CheckNcclHasCopyEngines(found));
  NcclVersions old_header = found, old_driver = found, no_functions = found;
  old_header.has_policy = false;
  EXPECT_OK(CheckNcclHasWindows(old_header));
  EXPECT_THAT(CheckNcclHasCopyEngines(old_header),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "all-gathers by copy engines: this program was built with the nccl.h of an NCCL that has no "
                       "CTAPolicy: expected 2.27.0 or later"));
  old_driver.driver = 12040;
  EXPECT_OK(CheckNcclHasWindows(old_driver));
  EXPECT_THAT(CheckNcclHasCopyEngines(old_driver),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       "all-gathers by copy engines: the driver has CUDA 12.4: expected CUDA 12.5 or later"));
  no_functions.has_functions = false;  // a library that calls itself new
  EXPECT_THAT(CheckNcclHasCopyEngines(no_functions),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("symmetric windows: NCCL 2.")));
}

TEST(NcclVersionTextTest, HasTheDigitsOfOldAndNewVersions) {
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
  EXPECT_EQ(NcclVersionText(23007), "2.30.7");
  EXPECT_EQ(NcclVersionText(2804), "2.8.4");
}

}  // namespace
}  // namespace fsdp

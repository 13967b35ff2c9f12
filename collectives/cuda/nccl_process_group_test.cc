// SPDX-License-Identifier: Apache-2.0
//
// What backend nccl does when NCCL fails it: a fake NCCL (fake_nccl.h) is told to. The data is the conformance suite's
// business.
#include "collectives/cuda/nccl_process_group.h"

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/conformance/conformance.h"
#include "collectives/cuda/fake_nccl.h"
#include "collectives/run_ranks.h"
#include "cuda/cuda_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;

class NcclProcessGroupTest : public testing::Test {
 protected:
  ~NcclProcessGroupTest() override { SetFakeNcclFaults({}); }

  // What each rank returns.
  static std::vector<absl::Status> Run(
      const std::function<absl::Status(ProcessGroup& group, Stream& stream)>& rank_main,
      absl::Duration timeout = absl::Minutes(1)) {
    std::vector<absl::Status> results(kRanks);
    EXPECT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> meeting) {
      results[meeting->rank()] = [&]() -> absl::Status {
        ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
        ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
        ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                         CreateNcclGroup(std::move(control), std::move(device), timeout));
        ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
        return rank_main(*group, *stream);
      }();
      return absl::OkStatus();
    }));
    return results;
  }

  static absl::Status AllReduceOnce(ProcessGroup& group, Stream& stream) {
    ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, 1000));
    Fill(group, t, [](int64_t) { return 1; });
    group.AllReduce(t, ReduceOp::kSum, stream);
    return stream.Synchronize();
  }
};

TEST_F(NcclProcessGroupTest, AnAsynchronousErrorOfOneRankIsToldToAll) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    RETURN_IF_ERROR(AllReduceOnce(group, stream));
    RETURN_IF_ERROR(group.GatherBlobs("").status());
    if (group.rank() == 1) SetFakeNcclFaults({.rank = 1, .async_error = ncclRemoteError});
    RETURN_IF_ERROR(group.GatherBlobs("").status());
    return AllReduceOnce(group, stream);
  });
  for (int r = 0; r < kRanks; ++r) {
    EXPECT_THAT(results[r], StatusIs(absl::StatusCode::kUnavailable,
                                     AllOf(HasSubstr("all_reduce #4: "), HasSubstr("gave up: nccl: remote process "
                                                                                   "exited or there was a network "
                                                                                   "error"))));
    EXPECT_THAT(results[r].message(), HasSubstr(r == 1 ? "this rank gave up" : "rank 1 gave up"));
  }
}

TEST_F(NcclProcessGroupTest, ACollectiveThatHangsEndsAtItsDeadlineOnEveryRank) {
  SetFakeNcclFaults({.rank = 2});
  const absl::Time start = absl::Now();
  const std::vector<absl::Status> results = Run(AllReduceOnce, absl::Milliseconds(300));
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 HasSubstr("all_reduce #1 waited 300ms; all ranks are in it")));
  }
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(300));
}

TEST_F(NcclProcessGroupTest, AStreamThatWaitedForAFailedCollectiveHasItsError) {
  SetFakeNcclFaults({.rank = 0, .async_error = ncclSystemError});
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<Stream> compute, group.device()->CreateStream("compute"));
    group.Barrier(stream);
    compute->Wait(stream.Record());
    bool ran = false;
    compute->Run([&ran] {
      ran = true;
      return absl::OkStatus();
    });
    const absl::Status status = compute->Synchronize();
    return ran ? absl::InternalError("work ran on a failed collective's output") : status;
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInternal, HasSubstr("unhandled system error")));
  }
}

TEST_F(NcclProcessGroupTest, ACommunicatorThatIsNeverReadyIsGivenUpAtTheDeadline) {
  SetFakeNcclFaults({.init_hangs = true});
  const std::vector<absl::Status> results = Run(AllReduceOnce, absl::Milliseconds(200));
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                 HasSubstr("ncclCommInitRankConfig waited 200ms for its peers")));
  }
  EXPECT_EQ(CountFakeNccl().communicators, 0);
}

TEST_F(NcclProcessGroupTest, ArenasAreRegisteredAndEverythingIsGivenBack) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> pair, group.Split(group.rank() / 2, 0));
    ASSIGN_OR_RETURN(const Buffer arena, group.Allocate(1 << 20));
    // As many as there can be, since the others may not have come as far.
    if (CountFakeNccl().registrations < 1) return absl::DataLossError("the arena is not registered");
    const Tensor t(arena, DType::kFloat32, Shape({1 << 18}));
    Fill(group, t, [](int64_t) { return 2; });
    pair->AllReduce(t, ReduceOp::kAvg, stream);
    group.AllReduce(t, ReduceOp::kAvg, stream);
    RETURN_IF_ERROR(stream.Synchronize());
    return ExpectElements(
        group, t, [](int64_t) { return 2; }, 5 * 0x1p-24);
  });
  for (const absl::Status& result : results) EXPECT_OK(result);
  const FakeNcclCounts left = CountFakeNccl();
  EXPECT_EQ(left.communicators, 0);
  EXPECT_EQ(left.allocations, 0);
  EXPECT_EQ(left.registrations, 0);
  EXPECT_EQ(left.reductions, 0);
}

TEST_F(NcclProcessGroupTest, AHostDeviceIsRefused) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
    EXPECT_THAT(CreateNcclGroup(std::move(control), meeting->device(), absl::Minutes(1)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wanted a GPU, the device is cpu")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

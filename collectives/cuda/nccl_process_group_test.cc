// SPDX-License-Identifier: Apache-2.0
//
// The behaviour of backend nccl when NCCL fails; a fake NCCL (fake_nccl.h) fails on request. The conformance suite
// tests the data.
#include "fsdp/collectives/cuda/nccl_process_group.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/cuda/fake_nccl.h"
#include "fsdp/collectives/group/coalesced_calls.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/group/peer_watch.h"
#include "fsdp/collectives/host/host_process_group.h"
#include "fsdp/collectives/net/layered_collectives.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/tensor/work_graph.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int kRanks = 3;

class NcclProcessGroupTest : public testing::Test {
 protected:
  ~NcclProcessGroupTest() override { SetFakeNcclFaults({}); }

  // The status that each rank returns.
  static std::vector<absl::Status> Run(
      const std::function<absl::Status(ProcessGroup& group, Stream& stream)>& rank_main,
      absl::Duration timeout = absl::Minutes(1)) {
    std::vector<absl::Status> results(kRanks);
    EXPECT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> meeting) {
      results[meeting->rank()] = [&]() -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
        FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                              CreateNcclGroup(std::move(control), std::move(device), timeout));
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
        return rank_main(*group, *stream);
      }();
      return absl::OkStatus();
    }));
    return results;
  }

  static absl::Status AllReduceOnce(ProcessGroup& group, Stream& stream) {
    FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, 1000));
    Fill(group, t, [](int64_t) { return 1; });
    group.AllReduce(t, ReduceOp::kSum, stream);
    return stream.Synchronize();
  }
};

TEST_F(NcclProcessGroupTest, AnAsynchronousErrorOfOneRankIsToldToAll) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_RETURN_IF_ERROR(AllReduceOnce(group, stream));
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    if (group.rank() == 1) SetFakeNcclFaults({.rank = 1, .async_error = ncclRemoteError});
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
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
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> compute, group.device()->CreateStream("compute"));
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
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> pair, group.Split(group.rank() / 2, 0));
    FSDP_ASSIGN_OR_RETURN(const Buffer arena, group.Allocate(1 << 20));
    // At least this rank's: the others may not have registered theirs yet.
    if (CountFakeNccl().registrations < 1) return absl::DataLossError("the arena is not registered");
    const Tensor t(arena, DType::kFloat32, Shape({1 << 18}));
    Fill(group, t, [](int64_t) { return 2; });
    pair->AllReduce(t, ReduceOp::kAvg, stream);
    group.AllReduce(t, ReduceOp::kAvg, stream);
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
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

TEST_F(NcclProcessGroupTest, CoalescedCallsAreOneGroup) {
  const int before = CountFakeNccl().groups;
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Tensor a, NewTensor(group, Placement::kShared, DType::kFloat32, 7));
    FSDP_ASSIGN_OR_RETURN(const Tensor b, NewTensor(group, Placement::kShared, DType::kInt64, 9));
    Fill(group, a, [](int64_t) { return 1; });
    Fill(group, b, [](int64_t) { return 2; });
    {
      const CoalescedCalls coalesced(group);
      group.AllReduce(a, ReduceOp::kAvg, stream);
      group.AllReduce(b, ReduceOp::kSum, stream);
    }
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    return ExpectElements(group, b, [](int64_t) { return 2 * kRanks; });
  });
  for (const absl::Status& result : results) EXPECT_OK(result);
  EXPECT_EQ(CountFakeNccl().groups - before, kRanks);
}

TEST_F(NcclProcessGroupTest, CoalescedCallsOnTwoStreamsAreRefused) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> other, group.device()->CreateStream("other"));
    FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, 7));
    {
      const CoalescedCalls coalesced(group);
      group.AllReduce(t, ReduceOp::kSum, stream);
      group.AllReduce(t, ReduceOp::kSum, *other);
    }
    return stream.Synchronize();
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("coalesced calls on streams \"test\" and \"other\": expected one")));
  }
}

// Collectives in graphs: each rank captures some on two streams.
class NcclGraphTest : public NcclProcessGroupTest {
 protected:
  static constexpr int64_t kNumel = 1000;

  struct Captured {
    Tensor sum, gathered;  // [kNumel], [kRanks * kNumel]
    std::unique_ptr<Stream> other;
    std::unique_ptr<WorkGraph> graph;  // sum = the sum of sums; gathered = the ranks' sums, if `gathers`
  };

  static absl::StatusOr<Captured> Capture(ProcessGroup& group, Stream& stream, bool gathers = true) {
    Captured captured;
    FSDP_ASSIGN_OR_RETURN(captured.sum, NewTensor(group, Placement::kShared, DType::kFloat32, kNumel));
    FSDP_ASSIGN_OR_RETURN(captured.gathered, NewTensor(group, Placement::kPrivate, DType::kFloat32, kRanks * kNumel));
    FSDP_ASSIGN_OR_RETURN(captured.other, group.device()->CreateStream("other"));
    FSDP_ASSIGN_OR_RETURN(captured.graph, CaptureWork(stream, [&] {
                            group.AllReduce(captured.sum, ReduceOp::kSum, stream);
                            captured.other->Wait(stream.Record());
                            if (gathers) group.AllGather(captured.sum, captured.gathered, *captured.other);
                            return absl::OkStatus();
                          }));
    return captured;
  }
};

TEST_F(NcclGraphTest, ReplaysCommunicateInTheOrderOfTheGroup) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_RETURN_IF_ERROR(AllReduceOnce(group, stream));
    FSDP_ASSIGN_OR_RETURN(const Captured captured, Capture(group, stream));
    for (int step = 0; step < 3; ++step) {
      Fill(group, captured.sum, [&](int64_t) { return step + group.rank(); });
      captured.graph->Replay();
      group.AllReduce(captured.gathered, ReduceOp::kSum, *captured.other);
      FSDP_RETURN_IF_ERROR(captured.other->Synchronize());
      FSDP_RETURN_IF_ERROR(ExpectElements(group, captured.sum, [&](int64_t) { return 3 * step + 3; }));
      FSDP_RETURN_IF_ERROR(ExpectElements(group, captured.gathered, [&](int64_t) { return 3 * (3 * step + 3); }));
    }
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    return AllReduceOnce(group, stream);
  });
  for (const absl::Status& result : results) EXPECT_OK(result);
}

TEST_F(NcclGraphTest, ARankThatDoesNotReplayIsNamedAtTheDeadline) {
  const std::vector<absl::Status> results = Run(
      [](ProcessGroup& group, Stream& stream) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const Captured captured, Capture(group, stream));
        if (group.rank() != 2) captured.graph->Replay();
        // Rank 2, which does not replay, gets the error at its next call.
        if (group.rank() == 2) return group.AllGatherObject("").status();
        return stream.Synchronize();
      },
      absl::Milliseconds(300));
  for (int r = 0; r < 2; ++r) {
    EXPECT_FALSE(results[r].ok());
    EXPECT_THAT(results[r].message(), HasSubstr("#1"));
  }
  EXPECT_FALSE(results[2].ok());
}

TEST_F(NcclGraphTest, GraphsThatDifferAreNamed) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Captured captured, Capture(group, stream, /*gathers=*/group.rank() != 1));
    captured.graph->Replay();
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    FSDP_RETURN_IF_ERROR(captured.other->Synchronize());
    return group.AllGatherObject("").status();  // rank 1's replay may end before the others report theirs
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("replay #1: rank 1 of 3 has of 1 collectives, rank 0 has of 2")));
  }
}

TEST_F(NcclGraphTest, ABrokenGroupsGraphIsNotReplayed) {
  const std::vector<absl::Status> results = Run([](ProcessGroup& group, Stream& stream) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Captured captured, Capture(group, stream));
    FSDP_RETURN_IF_ERROR(group.AllGatherObject("").status());
    group.Abort(absl::DataLossError("had enough"));
    captured.graph->Replay();
    return stream.Synchronize();
  });
  for (const absl::Status& result : results) {
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("had enough")));
  }
}

// Two hosts of two ranks, with blobs and heartbeats between the hosts.
TEST_F(NcclProcessGroupTest, AHostThatIsLostIsNamedAndTheCommunicatorsOfTheOtherAreAborted) {
  constexpr int kTwoHosts = 4;
  ThreadNetwork network(kTwoHosts);
  std::atomic<bool> lost = false;
  const PeerWatch watch = [&](absl::Duration) -> absl::Status {
    return lost ? absl::UnavailableError("host-b (ranks 2, 3) is gone") : absl::OkStatus();
  };
  std::vector<absl::Status> results(kTwoHosts);
  std::promise<void> survivors_are_done;
  const std::shared_future<void> done = survivors_are_done.get_future().share();
  std::atomic<int> survivors = 2;
  EXPECT_OK(RunRanks(kTwoHosts, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    const int rank = meeting->rank();
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(rank));
    auto net = std::make_unique<NetCollectives>(network.Join(rank), meeting->device(),
                                                NetOptions{.timeout = absl::Minutes(1), .watch = watch});
    FSDP_ASSIGN_OR_RETURN(
        std::unique_ptr<BlockingCollectives> collectives,
        CreateLayeredCollectives(std::move(net), HostLayout::Of({"host-a", "host-a", "host-b", "host-b"}),
                                 [&](std::string_view blob) { return meeting->AllGatherObject(blob); }));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                          CreateNcclGroup(std::make_unique<HostProcessGroup>(std::move(collectives)), std::move(device),
                                          absl::Minutes(1), /*hosts=*/2));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    FSDP_RETURN_IF_ERROR(AllReduceOnce(*group, *stream));
    FSDP_RETURN_IF_ERROR(meeting->AllGatherObject("").status());
    if (rank >= 2) {
      lost = true;
      network.Lose(rank);
      done.wait_for(std::chrono::minutes(2));
      return absl::OkStatus();
    }
    results[rank] = AllReduceOnce(*group, *stream);
    if (--survivors == 0) survivors_are_done.set_value();
    return absl::OkStatus();
  }));
  for (const int r : {0, 1}) {
    EXPECT_THAT(results[r], StatusIs(absl::StatusCode::kUnavailable,
                                     AllOf(HasSubstr("all_reduce #"), HasSubstr("host-b (ranks 2, 3) is gone"))));
  }
  EXPECT_EQ(CountFakeNccl().communicators, 0);
}

// A control group that counts this rank's rounds of heartbeats, which use a part of it.
class CountedRounds final : public ForwardingProcessGroup {
 public:
  CountedRounds(std::shared_ptr<ProcessGroup> inner, std::atomic<int>* rounds, bool is_part = false)
      : ForwardingProcessGroup(std::move(inner)), rounds_(rounds), is_part_(is_part) {}

  absl::StatusOr<std::vector<std::string>> AllGatherObject(std::string_view blob) override {
    if (is_part_) ++*rounds_;
    return inner().AllGatherObject(blob);
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> part, inner().Split(color, key));
    return std::make_unique<CountedRounds>(std::move(part), rounds_, /*is_part=*/true);
  }

 private:
  std::atomic<int>* const rounds_;
  const bool is_part_;
};

// The rounds of two ranks in 100 ms; the larger of the two counts.
int RoundsOnHosts(int hosts) {
  std::atomic<int> most = 0;
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    std::atomic<int> rounds = 0;
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
    FSDP_ASSIGN_OR_RETURN(
        const std::unique_ptr<ProcessGroup> group,
        CreateNcclGroup(std::make_unique<CountedRounds>(meeting, &rounds), std::move(device), absl::Minutes(1), hosts));
    const absl::Time end = absl::Now() + absl::Milliseconds(100);
    bool is_over = false;
    while (!is_over) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            group->AllGatherObject(absl::Now() < end ? "on" : "over"));
      is_over = all[0] == "over" || all[1] == "over";
    }
    most = std::max(most.load(), rounds.load());
    return absl::OkStatus();
  }));
  return most;
}

TEST_F(NcclProcessGroupTest, TheRanksOfManyHostsExchangeFewerHeartbeats) {
  EXPECT_EQ(RoundsOnHosts(100000), 0) << "the first would come after 500 s";
  EXPECT_GE(RoundsOnHosts(1), 1);
}

TEST_F(NcclProcessGroupTest, AHostDeviceIsRefused) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
    EXPECT_THAT(CreateNcclGroup(std::move(control), meeting->device(), absl::Minutes(1)).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wanted a GPU, the device is cpu")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Backend "net" between processes of this machine that are configured as several hosts: UCX over loopback. Tests the
// data and the bits, and the errors of survivors when one of the processes is killed, is stopped, or ends.
#include <signal.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/conformance/local_reference.h"
#include "fsdp/collectives/conformance/process_ranks.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/collectives/job/job_store.h"
#include "fsdp/collectives/net/ucx_library.h"
#include "fsdp/collectives/net/ucx_transport.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;

using RankFunction = std::function<absl::Status(ProcessGroup& group, Stream& stream)>;

// A process for each host id, as ranks of one group. Returns the results by rank.
std::vector<RankResult> RunOnHosts(const std::vector<std::string>& hosts, absl::Duration timeout,
                                   const RankFunction& rank_main) {
  const Rendezvous job = NewJob(static_cast<int>(hosts.size()));
  return RunProcesses(job.world_size, [&](int rank) -> absl::Status {
    Rendezvous rendezvous = job;
    rendezvous.rank = rank;
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                          InitProcessGroup(rendezvous, {.timeout = timeout, .backend = "net", .host_id = hosts[rank]}));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    return rank_main(*group, *stream);
  });
}

class NetProcessesTest : public testing::TestWithParam<std::vector<std::string>> {
 protected:
  void SetUp() override {
    if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  }
};

INSTANTIATE_TEST_SUITE_P(Hosts, NetProcessesTest,
                         testing::Values(std::vector<std::string>{"a", "a", "b", "b"},
                                         std::vector<std::string>{"a", "a", "b"},
                                         std::vector<std::string>{"a", "b", "a", "b"}),
                         [](const auto& info) {
                           std::string name;
                           for (const std::string& host : info.param) name += host;
                           return name;
                         });

TEST_P(NetProcessesTest, ReductionsAreBitForBitThoseOfThreads) {
  for (const RankResult& result : RunOnHosts(GetParam(), absl::Minutes(1), [](ProcessGroup&group, Stream&) {
         return CompareReductionsWithLocal(group, 5003);
       })) {
    EXPECT_OK(result.status);
  }
}

TEST_P(NetProcessesTest, DataBlobsAndSubgroupsArrive) {
  for (const RankResult& result :
       RunOnHosts(GetParam(), absl::Minutes(1), [](ProcessGroup&group, Stream&stream) -> absl::Status {
         const int64_t n = 700001;  // more than one message
         FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, n * group.size()));
         const Tensor own = t.Slice({group.rank() * n, (group.rank() + 1) * n});
         for (int step = 0; step < 3; ++step) {
           Fill(group, own, [&](int64_t i) { return ValueOf(group.rank(), i + step); });
           group.AllGather(own, t, stream);
           group.Broadcast(own, 0, stream);  // from one part; all ranks have equal tensors
           FSDP_RETURN_IF_ERROR(stream.Synchronize());
           const int root = 0;
           FSDP_RETURN_IF_ERROR(ExpectElements(group, t, [&](int64_t i) {
             const int r = static_cast<int>(i / n);
             return ValueOf(r == group.rank() ? root : r, i % n + step);
           }));
         }
         FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> half, group.Split(group.rank() % 2, 0));
         FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> blobs, half->AllGatherObject(absl::StrCat(group.rank())));
         const std::string second = blobs.size() > 1 ? absl::StrCat(group.rank() % 2 + 2) : "none";
         if (second != "none" && blobs[1] != second) return absl::DataLossError(absl::StrCat("blob ", blobs[1]));
         half->AllReduce(own, ReduceOp::kMax, stream);
         return stream.Synchronize();
       })) {
    EXPECT_OK(result.status);
  }
}

constexpr int kVictim = 2;

// Matches the victim with its process number, and any other text in its name.
constexpr char kVictimsName[] = "rank 2 \\([^)]*pid [0-9]+";

// All-gathers on hosts a, a, b, b; in the middle of them the victim runs `victim` instead of its share.
std::vector<RankResult> RunWithVictim(absl::Duration timeout, const std::function<void()>& victim) {
  return RunOnHosts({"a", "a", "b", "b"}, timeout, [&](ProcessGroup& group, Stream& stream) -> absl::Status {
    const int64_t n = 100000;
    FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, n * group.size()));
    for (int step = 0; step < 10; ++step) {
      if (step == 5 && group.rank() == kVictim) {
        FSDP_RETURN_IF_ERROR(stream.Synchronize());
        victim();
        return absl::OkStatus();
      }
      group.AllGather(t.Slice({group.rank() * n, (group.rank() + 1) * n}), t, stream);
    }
    return stream.Synchronize();
  });
}

class NetFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::Status ucx = LoadUcp().status(); !ucx.ok()) GTEST_SKIP() << ucx;
  }
};

TEST_F(NetFaultsTest, AKilledRankIsNamedByEverySurvivorOnBothHosts) {
  const absl::Time start = absl::Now();
  const std::vector<RankResult> results = RunWithVictim(absl::Minutes(5), [] { raise(SIGKILL); });
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(results[r].status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("all_gather #6")));
    EXPECT_THAT(std::string(results[r].status.message()), ContainsRegex(kVictimsName));
  }
  EXPECT_LT(absl::Now() - start, absl::Minutes(1));  // noticed by the connection, and not at the deadline
}

TEST_F(NetFaultsTest, ARankThatExitsInMidJobIsNamed) {
  const std::vector<RankResult> results = RunWithVictim(absl::Minutes(5), [] { _exit(0); });
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(results[r].status, StatusIs(absl::StatusCode::kUnavailable, ContainsRegex(kVictimsName)));
  }
}

TEST_F(NetFaultsTest, AStoppedRankIsNamedAtTheDeadline) {
  const std::vector<RankResult> results = RunWithVictim(absl::Seconds(5), [] { raise(SIGSTOP); });
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(results[r].status,
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("all_gather #6 waited 5s; missing ranks: 2")));
  }
}

// Protects the ranks that share memory with the stopped one: it is alive, so they learn of it from the watch only.
TEST_F(NetFaultsTest, AStoppedRankEndsTheWaitsOfBothHostsWithin12Seconds) {
  const absl::Time start = absl::Now();
  const std::vector<RankResult> results = RunWithVictim(absl::Minutes(5), [] { raise(SIGSTOP); });
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(results[r].status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("does not answer")));
    EXPECT_THAT(std::string(results[r].status.message()), ContainsRegex(kVictimsName));
    EXPECT_LT(results[r].at - start, absl::Seconds(12) + absl::Seconds(8)) << "joining and a busy machine add to it";
  }
}

// All-gathers of 32 MiB; in the middle of one, the victim's main thread sends `signal` to its process.
std::vector<RankResult> RunWithVictimInMidMessage(absl::Duration timeout, int signal) {
  return RunOnHosts({"a", "a", "b", "b"}, timeout, [&](ProcessGroup& group, Stream& stream) -> absl::Status {
    const int64_t n = 2 << 20;
    FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, n * group.size()));
    const Tensor own = t.Slice({group.rank() * n, (group.rank() + 1) * n});
    group.AllGather(own, t, stream);
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    for (int i = 0; i < 50; ++i) group.AllGather(own, t, stream);
    if (group.rank() == kVictim) raise(signal);
    return stream.Synchronize();
  });
}

TEST_F(NetFaultsTest, ARankKilledInTheMiddleOfAMessageIsNamed) {
  const std::vector<RankResult> results = RunWithVictimInMidMessage(absl::Minutes(5), SIGKILL);
  for (const int r : {0, 1, 3}) {
    EXPECT_THAT(results[r].status, StatusIs(absl::StatusCode::kUnavailable, ContainsRegex(kVictimsName)));
  }
}

// For a message of which a part has arrived, UCX ends the receive neither with the connection nor by itself.
TEST_F(NetFaultsTest, AReceiveOfWhichAPartHasArrivedEndsWhenItsSenderIsKilled) {
  const Rendezvous job = NewJob(2);
  const std::vector<RankResult> results = RunProcesses(2, [&](int rank) -> absl::Status {
    Rendezvous rendezvous = job;
    rendezvous.rank = rank;
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<JobStore> store, JobStore::Open(rendezvous, absl::Minutes(1)));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Transport> transport,
                          CreateUcxTransport(rank, 2, {.timeout = absl::Minutes(1)},
                                             [&](std::string_view blob) { return store->AllGatherObject(blob); }));
    const CollectiveId what = {.op = CollectiveOp::kAllGather, .sequence = 1};
    std::vector<std::byte> bytes(64 << 20);  // more than sockets hold
    const auto nbytes = static_cast<int64_t>(bytes.size());
    if (rank == 1) {
      std::thread([] {
        absl::SleepFor(absl::Milliseconds(300));
        raise(SIGKILL);
      }).detach();
      return transport->Exchange({{{0, bytes.data(), nbytes}}}, {}, what, absl::Minutes(1));
    }
    absl::SleepFor(absl::Milliseconds(600));  // the sockets are full, and the writer is dead
    const absl::Status lost = transport->Exchange({}, {{{1, bytes.data(), nbytes}}}, what, absl::Minutes(1));
    transport->AwaitSends();
    return lost;
  });
  EXPECT_THAT(results[0].status, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1")));
  EXPECT_EQ(results[0].wait_status, 1 << 8);  // it ended by itself
}

// The survivors' messages to it are under way when they give up, and must not be read afterwards.
TEST_F(NetFaultsTest, ARankStoppedInTheMiddleOfAMessageIsNamedAtTheDeadline) {
  const std::vector<RankResult> results = RunWithVictimInMidMessage(absl::Seconds(5), SIGSTOP);
  // A rank may wait for one of its own host that waits for the stopped one: all reach the deadline, and some name it.
  int named = 0;
  for (const int r : {0, 1, 3}) {
    EXPECT_EQ(results[r].status.code(), absl::StatusCode::kDeadlineExceeded) << results[r].status;
    if (std::string(results[r].status.message()).find("missing ranks: 2") != std::string::npos) ++named;
  }
  EXPECT_GT(named, 0);
}

}  // namespace
}  // namespace fsdp

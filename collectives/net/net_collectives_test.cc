// SPDX-License-Identifier: Apache-2.0
//
// Faults of networks, simulated over the threads' network. The conformance suite shows that the data are right.
#include "fsdp/collectives/net/net_collectives.h"

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr CollectiveSpec kBarrier = {.op = CollectiveOp::kBarrier};

// Runs `rank_main` on every rank of the network, each on its own thread. Returns the results by rank.
std::vector<absl::Status> OnRanks(ThreadNetwork& network, int size, const NetOptions& options,
                                  const std::function<absl::Status(NetCollectives&)>& rank_main) {
  std::vector<absl::Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      NetCollectives collectives(network.Join(r), CreateHostDevice(), options);
      results[r] = rank_main(collectives);
      if (!results[r].ok()) collectives.GiveUp(results[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

// 1000 floats from each of three ranks.
absl::Status GatherFloats(NetCollectives& collectives, uint64_t sequence) {
  std::vector<float> output(3000);
  auto* const bytes = reinterpret_cast<std::byte*>(output.data());
  return collectives.Run(sequence, {.spec = {.op = CollectiveOp::kAllGather, .dtype = DType::kFloat32, .count = 1000},
                                    .input = bytes + collectives.rank() * 4000,
                                    .output = bytes});
}

TEST(NetCollectivesTest, ALostRankIsNamedByAllOthers) {
  ThreadNetwork network(3);
  const std::vector<absl::Status> results = OnRanks(network, 3, {}, [&](NetCollectives& collectives) -> absl::Status {
    absl::Status status = GatherFloats(collectives, 1);
    if (!status.ok() || collectives.rank() == 1) {
      network.Lose(1);
      return status;
    }
    return GatherFloats(collectives, 2);
  });
  EXPECT_OK(results[1]);
  for (const int r : {0, 2}) {
    EXPECT_THAT(results[r], StatusIs(absl::StatusCode::kUnavailable,
                                     HasSubstr("all_gather #2: rank 1 died, or the network to it broke")));
  }
}

TEST(NetCollectivesTest, TheVerdictOfTheWatchIsPreferred) {
  ThreadNetwork network(2);
  network.Lose(1);
  NetOptions options;
  options.watch = [](absl::Duration wait) {
    EXPECT_EQ(wait, absl::Milliseconds(250));
    return absl::UnavailableError("rank 7 (host-c, pid 12) is gone");
  };
  NetCollectives collectives(network.Join(0), CreateHostDevice(), options);
  EXPECT_THAT(collectives.Run(1, {.spec = kBarrier}),
              StatusIs(absl::StatusCode::kUnavailable, "rank 0 of 2: barrier #1: rank 7 (host-c, pid 12) is gone"));
}

TEST(NetCollectivesTest, WithoutAVerdictTheTransportsErrorStays) {
  ThreadNetwork network(2);
  network.Lose(1);
  NetOptions options;
  options.watch = [](absl::Duration) { return absl::OkStatus(); };
  NetCollectives collectives(network.Join(0), CreateHostDevice(), options);
  EXPECT_THAT(collectives.Run(1, {.spec = kBarrier}),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 died, or the network to it broke")));
}

TEST(NetCollectivesTest, AMessageThatIsCutShortIsAnErrorOfAllRanks) {
  ThreadNetwork network(3);
  const std::vector<absl::Status> results = OnRanks(network, 3, {}, [&](NetCollectives& collectives) -> absl::Status {
    const absl::Status status = GatherFloats(collectives, 1);
    if (!status.ok()) return status;
    if (collectives.rank() == 2) network.CutNextMessage(2, 0);
    return GatherFloats(collectives, 2);
  });
  EXPECT_THAT(results[0], StatusIs(absl::StatusCode::kDataLoss,
                                   HasSubstr("rank 0 of 3: all_gather #2: rank 2 sent 31 bytes, wanted 32")));
}

TEST(NetCollectivesTest, AFailedRankIsNotedBeforeTheNextCollective) {
  ThreadNetwork network(2);
  NetCollectives first(network.Join(0), CreateHostDevice(), {});
  NetCollectives second(network.Join(1), CreateHostDevice(), {});
  first.GiveUp(absl::InternalError("no more"));
  EXPECT_THAT(second.Run(1, {.spec = kBarrier}),
              StatusIs(absl::StatusCode::kInternal, AllOf(HasSubstr("barrier #1: rank 0 gave up: no more"))));
  EXPECT_EQ(second.first_rank_to_give_up(), 0);
}

// Each rank receives (n - 1)/n of the output, and sends as much; the rest are headers.
TEST(NetCollectivesTest, AnAllGatherSendsEachShardOnceToEachRank) {
  ThreadNetwork network(3);
  for (const absl::Status& result :
       OnRanks(network, 3, {}, [](NetCollectives& collectives) { return GatherFloats(collectives, 1); })) {
    EXPECT_OK(result);
  }
  EXPECT_EQ(network.BytesBetweenHosts({0, 1, 2}), 6 * (4000 + 32));
}

}  // namespace
}  // namespace fsdp

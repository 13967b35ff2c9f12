// SPDX-License-Identifier: Apache-2.0
//
// What goes between hosts. That the data are right is the conformance suite's to show.
#include "fsdp/collectives/net/layered_collectives.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kCount = 10000;
constexpr int64_t kShard = kCount * 4;
constexpr int64_t kHeader = 32;

using RankFunction = std::function<absl::Status(BlockingCollectives& collectives)>;

// The bytes that ranks on hosts with these identities send to other hosts while each runs `rank_main`.
absl::StatusOr<int64_t> BytesBetweenHosts(const std::vector<std::string>& identities, const RankFunction& rank_main) {
  const HostLayout layout = HostLayout::Of(identities);
  ThreadNetwork network(layout.size());
  FSDP_RETURN_IF_ERROR(RunRanks(layout.size(), [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    auto net = std::make_unique<NetCollectives>(network.Join(meeting->rank()), meeting->device(), NetOptions());
    FSDP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BlockingCollectives> collectives,
        CreateLayeredCollectives(std::move(net), layout, [&](std::string_view b) { return meeting->GatherBlobs(b); }));
    return rank_main(*collectives);
  }));
  std::vector<int> hosts;
  for (int r = 0; r < layout.size(); ++r) hosts.push_back(layout.host_of(r));
  return network.BytesBetweenHosts(hosts);
}

absl::Status AllGather(BlockingCollectives& collectives) {
  FSDP_ASSIGN_OR_RETURN(const Buffer output, collectives.Allocate(kShard * collectives.size()));
  return collectives.Run(1, {.spec = {.op = CollectiveOp::kAllGather, .dtype = DType::kFloat32, .count = kCount},
                             .input = output.data() + kShard * collectives.rank(),
                             .output = output.data()});
}

TEST(LayeredCollectivesTest, AnAllGatherSendsEveryByteToEachHostOnce) {
  // Of six shards, each host lacks four; of other hosts' ranks each rank meets four.
  ASSERT_OK_AND_ASSIGN(const int64_t nbytes, BytesBetweenHosts({"a", "a", "b", "b", "c", "c"}, AllGather));
  EXPECT_EQ(nbytes, 3 * 4 * kShard + 6 * 4 * kHeader);
}

TEST(LayeredCollectivesTest, RanksThatAlternateAreAsIfOnHostsOfTheirOwn) {
  ASSERT_OK_AND_ASSIGN(const int64_t nbytes, BytesBetweenHosts({"a", "b", "a", "b"}, AllGather));
  EXPECT_EQ(nbytes, 4 * 2 * (kShard + kHeader));
}

TEST(LayeredCollectivesTest, ABroadcastSendsEveryByteToEachHostOnce) {
  ASSERT_OK_AND_ASSIGN(
      const int64_t nbytes,
      BytesBetweenHosts({"a", "a", "b", "b"}, [](BlockingCollectives& collectives) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const Buffer t, collectives.Allocate(kShard));
        return collectives.Run(
            1, {.spec = {.op = CollectiveOp::kBroadcast, .dtype = DType::kFloat32, .root = 1, .count = kCount},
                .input = t.data(),
                .output = t.data()});
      }));
  EXPECT_EQ(nbytes, kShard + 4 * 2 * kHeader);
}

TEST(LayeredCollectivesTest, PartsAreWhatTheirHostsAllow) {
  EXPECT_OK(BytesBetweenHosts({"a", "a", "b", "b"}, [](BlockingCollectives& collectives) -> absl::Status {
    const int rank = collectives.rank();
    uint64_t sequence = 0;
    const BlobGather gather = [&](std::string_view blob) { return collectives.GatherBlobs(++sequence, blob); };
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<BlockingCollectives> host,
                          collectives.Split(rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3}, gather));
    EXPECT_EQ(host->backend(), "shm");
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<BlockingCollectives> column,
                          collectives.Split({rank % 2, rank % 2 + 2}, gather));
    EXPECT_EQ(column->backend(), "net");
    FSDP_RETURN_IF_ERROR(AllGather(*host));
    FSDP_RETURN_IF_ERROR(AllGather(*column));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

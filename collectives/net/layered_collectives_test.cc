// SPDX-License-Identifier: Apache-2.0
//
// The bytes between hosts. The conformance suite shows that the data are right.
#include "fsdp/collectives/net/layered_collectives.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/net/thread_transport.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kCount = 10000;
constexpr int64_t kShard = kCount * 4;
constexpr int64_t kHeader = 32;

using RankFunction = std::function<absl::Status(BlockingCollectives& collectives)>;

// The bytes that ranks on hosts with these identities send to other hosts while each runs `rank_main`.
absl::StatusOr<int64_t> BytesBetweenHosts(const std::vector<std::string>& identities, const RankFunction& rank_main,
                                          std::optional<ReductionRoute> route = std::nullopt,
                                          absl::Duration timeout = NetOptions().timeout) {
  const HostLayout layout = HostLayout::Of(identities);
  ThreadNetwork network(layout.size());
  FSDP_RETURN_IF_ERROR(RunRanks(layout.size(), [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    auto net = std::make_unique<NetCollectives>(network.Join(meeting->rank()), meeting->device(),
                                                NetOptions{.timeout = timeout});
    FSDP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BlockingCollectives> collectives,
        CreateLayeredCollectives(
            std::move(net), layout, [&](std::string_view b) { return meeting->AllGatherObject(b); }, route));
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
  // Of six shards, each host lacks four; of other hosts' ranks each rank meets the two of its column.
  ASSERT_OK_AND_ASSIGN(const int64_t nbytes, BytesBetweenHosts({"a", "a", "b", "b", "c", "c"}, AllGather));
  EXPECT_EQ(nbytes, 3 * 4 * kShard + 6 * 2 * kHeader);
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
  EXPECT_EQ(nbytes, kShard + 4 * kHeader);
}

// For 2 x 2 ranks, with `count` elements.
absl::StatusOr<int64_t> BytesOfSmall(CollectiveOp op, int64_t count) {
  return BytesBetweenHosts({"a", "a", "b", "b"}, [&](BlockingCollectives& collectives) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Buffer t, collectives.Allocate(kShard * collectives.size()));
    const CollectiveSpec spec = {.op = op, .dtype = DType::kFloat32, .root = 1, .count = count};
    return collectives.Run(1, {.spec = spec, .input = t.data(), .output = t.data()});
  });
}

TEST(LayeredCollectivesTest, SmallDataGoOnceToEachHostWithTheHeaders) {
  constexpr int64_t kFew = 8;
  ASSERT_OK_AND_ASSIGN(const int64_t gathered, BytesOfSmall(CollectiveOp::kAllGather, kFew));
  EXPECT_EQ(gathered, 4 * (kFew * 4 + kHeader));
  ASSERT_OK_AND_ASSIGN(const int64_t reduced, BytesOfSmall(CollectiveOp::kAllReduce, kFew));
  EXPECT_EQ(reduced, 4 * (kFew * 4 + kHeader));
  ASSERT_OK_AND_ASSIGN(const int64_t slices, BytesOfSmall(CollectiveOp::kReduceScatter, kFew));
  EXPECT_EQ(slices, 4 * (2 * kFew * 4 + kHeader));  // the slices of the other host's two ranks
  ASSERT_OK_AND_ASSIGN(const int64_t sent, BytesOfSmall(CollectiveOp::kBroadcast, kFew));
  EXPECT_EQ(sent, kFew * 4 + 4 * kHeader);
  ASSERT_OK_AND_ASSIGN(const int64_t met, BytesOfSmall(CollectiveOp::kBarrier, 0));
  EXPECT_EQ(met, 4 * kHeader);
}

// The results of the ranks of hosts a, a, b, b, of which rank 3 does `last` while the others run a small all_reduce.
std::vector<absl::Status> WhenTheLastRankDiffers(const RankFunction& last) {
  std::vector<absl::Status> statuses(4);
  absl::BlockingCounter others(3);
  EXPECT_OK(BytesBetweenHosts(
      {"a", "a", "b", "b"},
      [&](BlockingCollectives& collectives) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const Buffer t, collectives.Allocate(kShard));
        const CollectiveSpec spec = {.op = CollectiveOp::kAllReduce, .dtype = DType::kFloat32, .count = 8};
        absl::Status& mine = statuses[collectives.rank()];
        if (collectives.rank() == 3) {
          mine = last(collectives);
          if (!mine.ok()) collectives.GiveUp(mine);
          others.Wait();
          return absl::OkStatus();
        }
        mine = collectives.Run(1, {.spec = spec, .input = t.data(), .output = t.data()});
        collectives.GiveUp(mine);
        others.DecrementCount();
        return absl::OkStatus();
      },
      std::nullopt, absl::Milliseconds(300)));
  return statuses;
}

TEST(LayeredCollectivesTest, ARankThatDoesNotComeIsNamedByTheRanksOfAllColumns) {
  const std::vector<absl::Status> statuses =
      WhenTheLastRankDiffers([](BlockingCollectives&) { return absl::OkStatus(); });
  for (int r = 0; r < 3; ++r) {
    EXPECT_THAT(statuses[r], StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("missing ranks: 3"))) << r;
  }
}

TEST(LayeredCollectivesTest, ARankThatRunsSomethingElseGetsTheErrorThatAllOthersGet) {
  const std::vector<absl::Status> statuses = WhenTheLastRankDiffers([](BlockingCollectives& collectives) {
    const Buffer t = *collectives.Allocate(kShard);
    const CollectiveSpec spec = {.op = CollectiveOp::kAllReduce, .dtype = DType::kFloat32, .count = kCount};
    return collectives.Run(1, {.spec = spec, .input = t.data(), .output = t.data()});
  });
  EXPECT_THAT(statuses[0], StatusIs(absl::StatusCode::kFailedPrecondition,
                                    "all_reduce #1: rank 3 of 4 has sum float32[10000], rank 0 has sum float32[8]"));
  for (const absl::Status& status : statuses) EXPECT_EQ(status, statuses[0]);
}

absl::Status ReduceScatter(BlockingCollectives& collectives) {
  FSDP_ASSIGN_OR_RETURN(const Buffer input, collectives.Allocate(kShard * collectives.size()));
  FSDP_ASSIGN_OR_RETURN(const Buffer output, collectives.Allocate(kShard));
  return collectives.Run(1, {.spec = {.op = CollectiveOp::kReduceScatter, .dtype = DType::kFloat32, .count = kCount},
                             .input = input.data(),
                             .output = output.data()});
}

TEST(LayeredCollectivesTest, AChainPassesTheSumsOfAllSlicesFromHostToHost) {
  ASSERT_OK_AND_ASSIGN(const int64_t chain,
                       BytesBetweenHosts({"a", "a", "b", "b", "c", "c"}, ReduceScatter, ReductionRoute::kChain));
  // Six slices over two links, and the four slices that the last host does not own.
  EXPECT_EQ(chain, (2 * 6 + 4) * kShard + 6 * 2 * kHeader);
  ASSERT_OK_AND_ASSIGN(const int64_t flat,
                       BytesBetweenHosts({"a", "a", "b", "b", "c", "c"}, ReduceScatter, ReductionRoute::kFlat));
  EXPECT_EQ(flat, 6 * 4 * kShard + 6 * 2 * kHeader);
}

TEST(LayeredCollectivesTest, OnTheMixedRouteTheHostsSendEachOtherEquallyMuch) {
  ASSERT_OK_AND_ASSIGN(const int64_t mixed, BytesBetweenHosts({"a", "a", "b", "b"}, ReduceScatter));
  // Sums of the second host's two slices and of half of the first host's; the results of the latter, and two ranks'
  // rows for the other half.
  EXPECT_EQ(mixed, (2 + 1 + 1 + 2) * kShard + 4 * kHeader);
  ASSERT_OK_AND_ASSIGN(const int64_t flat,
                       BytesBetweenHosts({"a", "a", "b", "b"}, ReduceScatter, ReductionRoute::kFlat));
  EXPECT_EQ(flat, 4 * 2 * kShard + 4 * kHeader);
}

// The results of all ranks, concatenated, for slices of `count` elements that are several items of a chain.
absl::StatusOr<std::vector<std::string>> ReduceMuch(const std::vector<std::string>& hosts, ReductionRoute route,
                                                    DType dtype, bool in_place) {
  constexpr int64_t kMuch = 600001;
  const int64_t nbytes = kMuch * SizeOf(dtype);
  const auto ranks = static_cast<int64_t>(hosts.size());
  std::vector<std::string> results(hosts.size());
  FSDP_RETURN_IF_ERROR(
      BytesBetweenHosts(
          hosts,
          [&](BlockingCollectives& collectives) -> absl::Status {
            FSDP_ASSIGN_OR_RETURN(const Buffer input, collectives.Allocate(nbytes * ranks));
            auto* const halves = reinterpret_cast<uint16_t*>(input.data());
            for (int64_t i = 0; i < nbytes * ranks / 2; ++i) {  // finite in float32, bfloat16 and float16
              halves[i] = static_cast<uint16_t>((i * 7919 + collectives.rank() * 331) % 0x3fff + 0x2000);
            }
            FSDP_ASSIGN_OR_RETURN(const Buffer apart, collectives.Allocate(nbytes));
            std::byte* const output = in_place ? input.data() + collectives.rank() * nbytes : apart.data();
            FSDP_RETURN_IF_ERROR(collectives.Run(1, {.spec = {.op = CollectiveOp::kReduceScatter,
                                                              .dtype = dtype,
                                                              .reduce_op = ReduceOp::kAvg,
                                                              .count = kMuch},
                                                     .input = input.data(),
                                                     .output = output}));
            results[collectives.rank()].assign(reinterpret_cast<const char*>(output), nbytes);
            return absl::OkStatus();
          },
          route)
          .status());
  return results;
}

// On these hosts, in place and out of place.
void ExpectTheBitsOfTheFlatRoute(const std::vector<std::string>& hosts, ReductionRoute route, DType dtype) {
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> flat, ReduceMuch(hosts, ReductionRoute::kFlat, dtype, false));
  for (const bool in_place : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<std::string> found, ReduceMuch(hosts, route, dtype, in_place));
    EXPECT_TRUE(found == flat) << hosts.size() << " ranks, " << DTypeName(dtype) << (in_place ? " in place" : "");
  }
}

TEST(LayeredCollectivesTest, AChainOfManyItemsGivesTheBitsOfTheFlatRoute) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ExpectTheBitsOfTheFlatRoute({"a", "a", "b", "b", "c", "c"}, ReductionRoute::kChain, dtype);
  }
}

TEST(LayeredCollectivesTest, TheMixedRouteGivesTheBitsOfTheFlatRoute) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    ExpectTheBitsOfTheFlatRoute({"a", "a", "b", "b"}, ReductionRoute::kMixed, dtype);
    ExpectTheBitsOfTheFlatRoute({"a", "a", "a", "b", "b", "b"}, ReductionRoute::kMixed, dtype);
    ExpectTheBitsOfTheFlatRoute({"a", "a", "b", "b", "c", "c"}, ReductionRoute::kMixed, dtype);
  }
}

TEST(LayeredCollectivesTest, PartsAreWhatTheirHostsAllow) {
  EXPECT_OK(BytesBetweenHosts({"a", "a", "b", "b"}, [](BlockingCollectives& collectives) -> absl::Status {
    const int rank = collectives.rank();
    uint64_t sequence = 0;
    const BlobGather gather = [&](std::string_view blob) { return collectives.AllGatherObject(++sequence, blob); };
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

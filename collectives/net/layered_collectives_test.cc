// SPDX-License-Identifier: Apache-2.0
//
// What goes between hosts. That the data are right is the conformance suite's to show.
#include "fsdp/collectives/net/layered_collectives.h"

#include <functional>
#include <memory>
#include <optional>
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
absl::StatusOr<int64_t> BytesBetweenHosts(const std::vector<std::string>& identities, const RankFunction& rank_main,
                                          std::optional<ReductionRoute> route = std::nullopt) {
  const HostLayout layout = HostLayout::Of(identities);
  ThreadNetwork network(layout.size());
  FSDP_RETURN_IF_ERROR(RunRanks(layout.size(), [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    auto net = std::make_unique<NetCollectives>(network.Join(meeting->rank()), meeting->device(), NetOptions());
    FSDP_ASSIGN_OR_RETURN(
        const std::unique_ptr<BlockingCollectives> collectives,
        CreateLayeredCollectives(
            std::move(net), layout, [&](std::string_view b) { return meeting->GatherBlobs(b); }, route));
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
  // Six slices over two links, and the four that the last host does not own.
  EXPECT_EQ(chain, (2 * 6 + 4) * kShard + 6 * 4 * kHeader);
  ASSERT_OK_AND_ASSIGN(const int64_t flat,
                       BytesBetweenHosts({"a", "a", "b", "b", "c", "c"}, ReduceScatter, ReductionRoute::kFlat));
  EXPECT_EQ(flat, 6 * 4 * (kShard + kHeader));
}

TEST(LayeredCollectivesTest, OnTheMixedRouteTheHostsSendEachOtherEquallyMuch) {
  ASSERT_OK_AND_ASSIGN(const int64_t mixed, BytesBetweenHosts({"a", "a", "b", "b"}, ReduceScatter));
  // Sums of the second host's two slices and of half of the first host's; the results of the latter, and of the other
  // half the rows of two ranks.
  EXPECT_EQ(mixed, (2 + 1 + 1 + 2) * kShard + 4 * 2 * kHeader);
  ASSERT_OK_AND_ASSIGN(const int64_t flat,
                       BytesBetweenHosts({"a", "a", "b", "b"}, ReduceScatter, ReductionRoute::kFlat));
  EXPECT_EQ(flat, 4 * 2 * (kShard + kHeader));
}

// What all ranks get, one after the other, of slices of `count` elements that are several items of a chain.
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

// On these hosts, in place and not.
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

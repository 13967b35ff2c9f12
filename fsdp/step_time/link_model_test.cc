// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/step_time/link_model.h"

#include <limits>

#include "fsdp/base/status_matchers.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

// Powers of two, so that times are exact.
constexpr LinkModel kLinks = {.local_bandwidth = 1024,
                              .host_bandwidth = 256,
                              .local_latency = 1,
                              .host_latency = 8,
                              .base_latency = 32,
                              .all_reduce = AllReduceAlgorithm::kRing};

TEST(LinkModelTest, AGroupOfOneRankNeedsNoTime) {
  EXPECT_EQ(AllGatherSeconds(kLinks, {}, 4096), 0);
  EXPECT_EQ(ReduceScatterSeconds(kLinks, {}, 4096), 0);
  EXPECT_EQ(AllReduceSeconds(kLinks, {}, 4096), 0);
}

TEST(LinkModelTest, ARingWithinAHostGoesAtTheSpeedOfItsRanks) {
  const GroupSpan group = {.ranks = 4, .hosts = 1};
  EXPECT_EQ(AllGatherSeconds(kLinks, group, 4096), 32 + 3 * 1 + 4096 * 3 / 4 / 1024);
  EXPECT_EQ(ReduceScatterSeconds(kLinks, group, 4096), AllGatherSeconds(kLinks, group, 4096));
  EXPECT_EQ(AllReduceSeconds(kLinks, group, 4096), 32 + 2 * (3 * 1 + 4096 * 3 / 4 / 1024));
}

TEST(LinkModelTest, ARingOverHostsGoesAtTheSpeedOfTheHostsLinks) {
  const GroupSpan group = {.ranks = 4, .hosts = 2};
  EXPECT_EQ(AllGatherSeconds(kLinks, group, 4096), 32 + 2 * 1 + 1 * 8 + 4096 * 3 / 4 / 256);
}

TEST(LinkModelTest, ASlowerLinkWithinTheHostsLimitsARingOverThem) {
  LinkModel links = kLinks;
  links.local_bandwidth = 128;
  EXPECT_EQ(AllGatherSeconds(links, {.ranks = 4, .hosts = 2}, 4096), 32 + 2 * 1 + 1 * 8 + 4096 * 3 / 4 / 128);
  // With one rank a host no byte goes between ranks of a host.
  EXPECT_EQ(AllGatherSeconds(links, {.ranks = 2, .hosts = 2}, 4096), 32 + 8 + 4096 / 2 / 256);
}

TEST(LinkModelTest, GroupsOfOneHostShareItsLinks) {
  EXPECT_EQ(AllReduceSeconds(kLinks, {.ranks = 2, .hosts = 2, .groups_on_host = 4}, 4096),
            32 + 2 * (8 + 4096 / 2 / (256 / 4)));
}

TEST(LinkModelTest, ATreeNeedsStepsByTheLogarithmOfTheHosts) {
  LinkModel links = kLinks;
  links.all_reduce = AllReduceAlgorithm::kTree;
  const GroupSpan group = {.ranks = 64, .hosts = 16};
  EXPECT_DOUBLE_EQ(AllReduceSeconds(links, group, 4096), 32 + 2 * (3 * 1 + 4 * 8) + 2 * 4096 / (0.92 * 256));
}

TEST(LinkModelTest, TheFastestAllReduceIsATreeForFewBytesAndARingForMany) {
  LinkModel fastest = kLinks, tree = kLinks;
  fastest.all_reduce = AllReduceAlgorithm::kFastest;
  tree.all_reduce = AllReduceAlgorithm::kTree;
  const GroupSpan group = {.ranks = 64, .hosts = 16};
  EXPECT_EQ(AllReduceSeconds(fastest, group, 16), AllReduceSeconds(tree, group, 16));
  EXPECT_EQ(AllReduceSeconds(fastest, group, 1 << 30), AllReduceSeconds(kLinks, group, 1 << 30));
}

TEST(LinkModelTest, LinksThatCannotBeAreNamed) {
  EXPECT_OK(Validate(kLinks));
  LinkModel links = kLinks;
  links.host_bandwidth = 0;
  EXPECT_THAT(Validate(links), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("LinkModel::host_bandwidth is 0, wanted a finite number above 0")));
  links = kLinks;
  links.local_latency = -1;
  EXPECT_THAT(Validate(links), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_latency is -1")));
  links = kLinks;
  links.local_bandwidth = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(Validate(links), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("local_bandwidth is nan")));
}

TEST(LinkModelTest, AlgorithmsAreParsedByName) {
  EXPECT_EQ(ParseAllReduceAlgorithm("tree").value(), AllReduceAlgorithm::kTree);
  EXPECT_THAT(ParseAllReduceAlgorithm("star"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"star\": expected auto, ring or tree")));
}

}  // namespace
}  // namespace fsdp

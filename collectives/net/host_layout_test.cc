// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/host_layout.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

TEST(HostLayoutTest, RanksWithOneIdentityAreOnOneHost) {
  const HostLayout layout = HostLayout::Of({"b", "b", "a", "a", "c", "c"});
  EXPECT_EQ(layout.hosts(), 3);
  EXPECT_EQ(layout.host_of(3), 1);
  EXPECT_THAT(layout.ranks_on(2), ElementsAre(4, 5));
  EXPECT_TRUE(layout.is_regular());
  EXPECT_EQ(layout.ranks_per_host(), 2);
  EXPECT_THAT(layout.Column(3), ElementsAre(1, 3, 5));
  EXPECT_EQ(layout.ToString(), "3 hosts with 2 ranks each");
}

TEST(HostLayoutTest, OneHostAndOneRankAHostAreRegular) {
  EXPECT_TRUE(HostLayout::Of({"a"}).is_regular());
  EXPECT_TRUE(HostLayout::Of({"a", "a", "a"}).is_regular());
  EXPECT_TRUE(HostLayout::Of({"a", "b", "c"}).is_regular());
  EXPECT_EQ(HostLayout::Of({"a", "a"}).ToString(), "1 host with 2 ranks");
}

TEST(HostLayoutTest, UnevenAndCyclicPlacementsAreNotRegular) {
  EXPECT_FALSE(HostLayout::Of({"a", "a", "b"}).is_regular());
  EXPECT_FALSE(HostLayout::Of({"a", "b", "a", "b"}).is_regular());
  EXPECT_FALSE(HostLayout::Of({"a", "b", "b", "a"}).is_regular());
  EXPECT_EQ(HostLayout::Of({"a", "a", "b"}).ToString(), "2 hosts with 2, 1 ranks");
  EXPECT_EQ(HostLayout::Of({"a", "b", "a", "b"}).ToString(), "2 hosts whose ranks alternate");
}

TEST(HostLayoutTest, APartHasTheHostsOfItsMembersInTheirOrder) {
  const HostLayout layout = HostLayout::Of({"a", "a", "b", "b"});
  EXPECT_EQ(layout.Part({2, 3}).hosts(), 1);
  EXPECT_EQ(layout.Part({1, 3}), HostLayout::Of({"x", "y"}));
  EXPECT_EQ(layout.Part({3, 1, 0}), HostLayout::Of({"b", "a", "a"}));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/reduction_route.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The table of docs/collectives.md.
TEST(ReductionRouteTest, TheRouteWithTheLessBusyLinkIsTaken) {
  struct Row {
    int hosts;
    int ranks_per_host;
    DType dtype;
    double flat;
    double chain;
    double mixed;
    ReductionRoute taken;
  };
  const std::vector<Row> rows = {
      {2, 1, DType::kFloat32, 0.50, 1.00, 0.50, ReductionRoute::kFlat},
      {2, 2, DType::kFloat32, 1.00, 1.00, 0.75, ReductionRoute::kMixed},
      {2, 4, DType::kFloat32, 2.00, 1.00, 0.875, ReductionRoute::kMixed},
      {2, 8, DType::kFloat32, 4.00, 1.00, 0.9375, ReductionRoute::kMixed},
      {4, 8, DType::kFloat32, 6.00, 1.25, 1.25, ReductionRoute::kChain},
      {8, 8, DType::kFloat32, 7.00, 1.125, 1.125, ReductionRoute::kChain},
      {64, 8, DType::kFloat32, 7.875, 1.015625, 1.015625, ReductionRoute::kChain},
      {2, 1, DType::kBFloat16, 0.50, 2.00, 1.00, ReductionRoute::kFlat},
      {2, 2, DType::kBFloat16, 1.00, 2.00, 1.00, ReductionRoute::kFlat},
      {2, 4, DType::kBFloat16, 2.00, 2.00, 1.50, ReductionRoute::kMixed},
      {2, 8, DType::kBFloat16, 4.00, 2.00, 1.75, ReductionRoute::kMixed},
      {8, 2, DType::kFloat16, 1.75, 2.125, 2.125, ReductionRoute::kFlat},
      {8, 8, DType::kBFloat16, 7.00, 2.125, 2.125, ReductionRoute::kChain},
      {64, 1, DType::kFloat32, 0.984375, 1.015625, 1.015625, ReductionRoute::kFlat},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(absl::StrCat(row.hosts, " x ", row.ranks_per_host, " ", std::string(DTypeName(row.dtype))));
    EXPECT_DOUBLE_EQ(BusiestLinkShare(ReductionRoute::kFlat, row.hosts, row.ranks_per_host, row.dtype), row.flat);
    EXPECT_DOUBLE_EQ(BusiestLinkShare(ReductionRoute::kChain, row.hosts, row.ranks_per_host, row.dtype), row.chain);
    EXPECT_DOUBLE_EQ(BusiestLinkShare(ReductionRoute::kMixed, row.hosts, row.ranks_per_host, row.dtype), row.mixed);
    EXPECT_EQ(ReductionRouteName(ChooseReductionRoute(row.hosts, row.ranks_per_host, row.dtype)),
              ReductionRouteName(row.taken));
  }
}

TEST(ReductionRouteTest, TheDirectPartOfASliceIsOfTwoHostsAlone) {
  EXPECT_EQ(DirectCount(2, 2, DType::kFloat32, 1001), 500);
  EXPECT_EQ(DirectCount(2, 8, DType::kBFloat16, 1001), 250);
  EXPECT_EQ(DirectCount(2, 1, DType::kBFloat16, 1001), 1001);  // all of it
  EXPECT_EQ(DirectCount(4, 8, DType::kFloat32, 1001), 0);
}

TEST(ReductionRouteTest, OneHostHasNoLink) {
  EXPECT_EQ(BusiestLinkShare(ReductionRoute::kFlat, 1, 8, DType::kFloat32), 0);
  EXPECT_EQ(ChooseReductionRoute(1, 8, DType::kFloat32), ReductionRoute::kFlat);
}

}  // namespace
}  // namespace fsdp

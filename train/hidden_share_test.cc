// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/hidden_share.h"

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(HiddenShareTest, CountsTheTimeInCollectivesDuringWhichAnotherStreamComputes) {
  EXPECT_EQ(HiddenShare({{"unshard", "all_gather h.1", 0, 10},
                         {"compute", "forward h.0", 5, 8},
                         {"compute", "forward h.1", 8, 20},
                         {"post_backward", "reduce_scatter h.1", 30, 40}}),
            0.25);  // 5 of 20
}

TEST(HiddenShareTest, ASpanThatHoldsOthersDoesNotCompute) {
  EXPECT_EQ(HiddenShare({{"unshard", "all_gather h.1", 2, 12},
                         {"compute", "forward h.0", 0, 4},
                         {"compute", "forward root", 0, 20},
                         {"compute", "forward h.1", 12, 18}}),
            0.2);
}

TEST(HiddenShareTest, NothingIsCountedTwiceThatTwoStreamsCompute) {
  EXPECT_EQ(
      HiddenShare(
          {{"unshard", "all_gather h.1", 0, 10}, {"compute", "forward h.0", 0, 4}, {"post_backward", "cast", 2, 5}}),
      0.5);
}

TEST(HiddenShareTest, WithoutCollectivesThereIsNoShare) {
  EXPECT_EQ(HiddenShare({}), std::nullopt);
  EXPECT_EQ(HiddenShare({{"compute", "forward root", 0, 10}}), std::nullopt);
}

}  // namespace
}  // namespace fsdp

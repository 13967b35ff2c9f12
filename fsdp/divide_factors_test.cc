// SPDX-License-Identifier: Apache-2.0
#include "fsdp/divide_factors.h"

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(DivideFactorsTest, AreThoseOfPyTorch) {
  struct Row {
    int world_size;
    double pre, post;
  };
  for (const Row& row : {Row{1, 1, 1},
                         {2, 2, 1},
                         {3, 2, 1.5},
                         {4, 2, 2},
                         {6, 4, 1.5},
                         {8, 4, 2},
                         {12, 4, 3},
                         {16, 4, 4},
                         {32, 8, 4},
                         {64, 8, 8}}) {
    const DivideFactors factors = GradientDivideFactors(row.world_size);
    EXPECT_EQ(factors.pre, row.pre) << row.world_size;
    EXPECT_EQ(factors.post, row.post) << row.world_size;
  }
}

}  // namespace
}  // namespace fsdp

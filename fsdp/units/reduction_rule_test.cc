// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/reduction_rule.h"

#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(ReductionRuleTest, DivideFactorsAreThoseOfPyTorch) {
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

void ExpectRule(const ReductionRule& rule, const ReductionRule& expected) {
  EXPECT_EQ(rule.pre, expected.pre);
  EXPECT_EQ(rule.reduce_scatter, expected.reduce_scatter);
  EXPECT_EQ(rule.all_reduce, expected.all_reduce);
  EXPECT_EQ(rule.post, expected.post);
}

constexpr ReductionRule kAverages{.reduce_scatter = ReduceOp::kAvg, .all_reduce = ReduceOp::kAvg};

TEST(ReductionRuleTest, Fsdp1SumsAndDividesByAllRanks) {
  ExpectRule(Fsdp1ReductionRule(6), {.pre = 4, .post = 1.5});
  ExpectRule(Fsdp1ReductionRule(1), {});
}

TEST(ReductionRuleTest, Fsdp2AveragesInFloat32AndBFloat16) {
  ExpectRule(Fsdp2ReductionRule({.shard_size = 4, .replicas = 2}), kAverages);
  ExpectRule(Fsdp2ReductionRule({.shard_size = 3, .reduce_dtype = DType::kBFloat16}), kAverages);
  ExpectRule(Fsdp2ReductionRule({}), {});
}

TEST(ReductionRuleTest, Fsdp2DividesFloat16InTwoParts) {
  ExpectRule(Fsdp2ReductionRule({.shard_size = 4, .reduce_dtype = DType::kFloat16}), {.pre = 2, .post = 2});
  ExpectRule(Fsdp2ReductionRule({.shard_size = 4, .reduce_dtype = DType::kFloat16, .divide_factor = 6}),
             {.pre = 4, .post = 1.5});
}

TEST(ReductionRuleTest, Fsdp2DivideFactorReplacesTheNumberOfRanks) {
  ExpectRule(Fsdp2ReductionRule({.shard_size = 4, .divide_factor = 4}), {.reduce_scatter = ReduceOp::kAvg});
  ExpectRule(Fsdp2ReductionRule({.shard_size = 4, .divide_factor = 1}), {.pre = 1});
  ExpectRule(Fsdp2ReductionRule({.shard_size = 2, .replicas = 2, .divide_factor = 8}), {.pre = 8});
}

TEST(ReductionRuleTest, Fsdp2ForcedSumsDivideAfterwards) {
  ExpectRule(Fsdp2ReductionRule({.shard_size = 2, .replicas = 2, .force_sum = true}), {.post = 4});
  ExpectRule(Fsdp2ReductionRule({.shard_size = 2, .divide_factor = 3, .force_sum = true}), {.post = 3});
}

}  // namespace
}  // namespace fsdp

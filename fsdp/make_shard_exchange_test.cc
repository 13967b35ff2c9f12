// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/make_shard_exchange.h"

#include <cstddef>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Element i of every parameter is i: a rank gives its slice and gets all of it. `ranks` share each parameter.
absl::Status ExpectExchanges(const std::vector<ShardedParameter*>& parameters, ShardExchange& exchange, int ranks) {
  for (const ShardedParameter* parameter : parameters) {
    std::vector<float> expected(parameter->shape.numel()), whole;
    std::iota(expected.begin(), expected.end(), 0.0f);
    const auto begin = expected.begin() + parameter->interval.begin;
    const std::vector<float> slice(begin, begin + parameter->interval.size());
    FSDP_RETURN_IF_ERROR(exchange.Gather(*parameter, slice, whole));
    EXPECT_EQ(whole, expected) << parameter->fqn;
  }
  // The slices cover each parameter once, whatever else is summed with it.
  std::vector<const ShardedParameter*> all(parameters.begin(), parameters.end());
  std::vector<std::vector<double>> sums;
  for (const ShardedParameter* parameter : parameters) {
    sums.push_back({static_cast<double>(parameter->interval.size()), 1});
  }
  FSDP_RETURN_IF_ERROR(exchange.Sum(all, absl::MakeSpan(sums)));
  for (size_t k = 0; k < all.size(); ++k) {
    EXPECT_THAT(sums[k], ElementsAre(all[k]->shape.numel(), ranks)) << all[k]->fqn;
  }
  return absl::OkStatus();
}

absl::Status ExpectModelExchanges(std::shared_ptr<ProcessGroup> group, const FsdpOptions& options, int ranks) {
  FSDP_ASSIGN_OR_RETURN(const TestModel made, MakeTestModel(std::move(group), options));
  return ExpectExchanges(made.model->parameters(), *MakeShardExchange(*made.model), ranks);
}

TEST(ShardExchangeTest, FlatSlicesAreSummedAndGathered) {
  for (const bool aligned : {false, true}) {
    FsdpOptions options = BlockOptions();
    options.use_orig_params = aligned;
    ASSERT_OK(RunRanks(
        3, [&](std::shared_ptr<ProcessGroup> group) { return ExpectModelExchanges(std::move(group), options, 3); }));
  }
}

TEST(ShardExchangeTest, WholeParametersAreNotExchanged) {
  FsdpOptions options = BlockOptions();
  options.sharding_strategy = ShardingStrategy::kNoShard;
  ASSERT_OK(RunRanks(
      2, [&](std::shared_ptr<ProcessGroup> group) { return ExpectModelExchanges(std::move(group), options, 1); }));
}

TEST(ShardExchangeTest, HybridModelsExchangeWithinAReplica) {
  FsdpOptions options = BlockOptions();
  options.sharding_strategy = ShardingStrategy::kHybridShard;
  options.shard_group_size = 2;
  ASSERT_OK(RunRanks(
      4, [&](std::shared_ptr<ProcessGroup> group) { return ExpectModelExchanges(std::move(group), options, 2); }));
}

TEST(ShardExchangeTest, RowsOfFullyShardAreSummedAndGathered) {
  for (const int replicas : {1, 2}) {
    ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard made, TestFullyShard::Make(std::move(group), {}, replicas));
      FSDP_ASSIGN_OR_RETURN(const auto parameters, made.root->parameters());
      FSDP_ASSIGN_OR_RETURN(const auto exchange, MakeShardExchange(*made.root));
      return ExpectExchanges(parameters, *exchange, 4 / replicas);
    }));
  }
}

TEST(ShardExchangeTest, AParameterOfAnotherModelIsNamed) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestModel made, MakeTestModel(std::move(group), BlockOptions()));
    ShardedParameter other;
    other.fqn = "other";
    other.shape = {4};
    std::vector<float> whole;
    EXPECT_THAT(MakeShardExchange(*made.model)->Gather(other, {1, 2}, whole),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("parameter \"other\" is not of this model: its 2 elements of 4")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

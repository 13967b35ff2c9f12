// SPDX-License-Identifier: Apache-2.0
//
// The state dicts of FsdpModule: live rows, whole tensors gathered or from rank 0, strict and partial loads; on
// 3 ranks.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/optim/adamw.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;

TEST(FsdpModuleStateTest, TheStateDictIsTheLiveMemoryInRowsWithoutCommunication) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    test.log->clear();
    FSDP_ASSIGN_OR_RETURN(const StateDict state, test.root->GetStateDict());
    EXPECT_THAT(*test.log, IsEmpty());
    EXPECT_EQ(state.type, StateDictType::kSharded);
    for (const ShardedParameter* parameter : parameters) {
      const ShardedTensor* tensor = state.FindTensor(StateKey::Model(parameter->fqn));
      EXPECT_NE(tensor, nullptr) << parameter->fqn;
      if (tensor == nullptr) continue;
      EXPECT_EQ(tensor->shape, parameter->shape);
      EXPECT_EQ(tensor->shards.empty(), parameter->interval.empty());
      if (tensor->shards.empty()) continue;
      EXPECT_EQ(tensor->shards[0].data.data(), parameter->data.data());
    }
    return absl::OkStatus();
  }));
}

// The values of whole tensors, by name, on this rank.
absl::StatusOr<Gradients> WholeValues(FsdpModule& root) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state, root.GetFullStateDict());
  Gradients whole;
  for (const auto& [key, value] : state.entries()) {
    for (const ShardedTensor::Shard& shard : std::get<ShardedTensor>(value).shards) {
      whole[key.fqn].assign(shard.data.data_as<float>(), shard.data.data_as<float>() + shard.data.numel());
    }
  }
  return whole;
}

TEST(FsdpModuleStateTest, AFullStateIsGatheredAndLoadedAndMayComeFromRank0Alone) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard source, TestFullyShard::Make(group, {.init_seed = 3}));
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, WholeValues(*source.root));
    EXPECT_EQ(wanted.size(), 8u);
    EXPECT_EQ(wanted.at("0.1.weight").size(), 25u);
    for (const bool broadcast : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard target, TestFullyShard::Make(group, {.init_seed = 4}));
      FSDP_ASSIGN_OR_RETURN(const Gradients before, WholeValues(*target.root));
      EXPECT_NE(before, wanted);
      FSDP_ASSIGN_OR_RETURN(const StateDict state, source.root->GetFullStateDict({.rank0_only = broadcast}));
      EXPECT_EQ(state.empty(), broadcast && group->rank() != 0);
      FSDP_RETURN_IF_ERROR(target.root->LoadStateDict(state, {.broadcast_from_rank0 = broadcast}).status());
      FSDP_ASSIGN_OR_RETURN(const Gradients after, WholeValues(*target.root));
      EXPECT_EQ(after, wanted);
    }
    return absl::OkStatus();
  }));
}

// A mesh whose shard dimension has one rank only replicates: every rank has all rows, and they load as they are.
TEST(FsdpModuleStateTest, TheLiveRowsOfAModelThatIsOnlyReplicatedLoadAgain) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard source, TestFullyShard::Make(group, {.init_seed = 3}, kRanks));
    FSDP_ASSIGN_OR_RETURN(TestFullyShard target, TestFullyShard::Make(group, {.init_seed = 4}, kRanks));
    std::vector<std::unique_ptr<AdamW>> optimizers;
    for (TestFullyShard* one : {&source, &target}) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, one->root->parameters());
      optimizers.push_back(std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 0.1}));
    }
    FSDP_RETURN_IF_ERROR(source.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Tape tape, source.root->NewTape());
    FSDP_RETURN_IF_ERROR(optimizers[0]->Step(tape.stream()));
    FSDP_ASSIGN_OR_RETURN(StateDict state, source.root->GetStateDict());
    FSDP_RETURN_IF_ERROR(source.root->AddOptimStateDict(*optimizers[0], state));
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      EXPECT_EQ(tensor->replica, group->rank()) << key.ToString();
      EXPECT_EQ(tensor->shards.size(), 1u) << key.ToString();
      if (tensor->shards.empty()) continue;
      EXPECT_EQ(tensor->shards[0].interval, Interval(0, tensor->shape.numel())) << key.ToString();
    }
    FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, target.root->LoadStateDict(state));
    EXPECT_THAT(keys.missing_keys, IsEmpty());
    EXPECT_THAT(target.root->LoadOptimStateDict(state, *optimizers[1]), IsOkAndHolds(IsEmpty()));
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, WholeValues(*source.root));
    FSDP_ASSIGN_OR_RETURN(const Gradients after, WholeValues(*target.root));
    EXPECT_EQ(after, wanted);
    for (size_t i = 0; i < optimizers[0]->parameters().size(); ++i) {
      EXPECT_EQ(optimizers[1]->step_count(i), 1);
      FSDP_ASSIGN_OR_RETURN(const Tensor from, optimizers[0]->State(i, "exp_avg"));
      FSDP_ASSIGN_OR_RETURN(const Tensor to, optimizers[1]->State(i, "exp_avg"));
      EXPECT_EQ(std::memcmp(from.data(), to.data(), from.nbytes()), 0) << optimizers[0]->parameters()[i]->fqn;
    }
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleStateTest, AShardedStateIsLoadedStrictlyOrInPart) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard source, TestFullyShard::Make(group, {.init_seed = 3}));
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard target, TestFullyShard::Make(group, {.init_seed = 4}));
    FSDP_ASSIGN_OR_RETURN(const StateDict all, source.root->GetStateDict());
    StateDict part;
    part.type = StateDictType::kSharded;
    for (const auto& [key, value] : all.entries()) {
      if (key.fqn != "0.1.weight") part.Set(key, value);
    }
    EXPECT_THAT(target.root->LoadStateDict(part).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0.1.weight")));
    FSDP_ASSIGN_OR_RETURN(const Gradients before, WholeValues(*target.root));
    FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, target.root->LoadStateDict(part, {.strict = false}));
    EXPECT_THAT(keys.missing_keys, ElementsAre("0.1.weight"));
    EXPECT_THAT(keys.unexpected_keys, IsEmpty());
    FSDP_ASSIGN_OR_RETURN(Gradients wanted, WholeValues(*source.root));
    wanted["0.1.weight"] = before.at("0.1.weight");
    FSDP_ASSIGN_OR_RETURN(const Gradients after, WholeValues(*target.root));
    EXPECT_EQ(after, wanted);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

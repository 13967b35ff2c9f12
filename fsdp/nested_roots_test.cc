// SPDX-License-Identifier: Apache-2.0
//
// Several FSDP roots below a plain module: its forward runs each, and the calls of the model are for all of them.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/nesting_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kSeed = 11;

using ModelOr = absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>>;

// Roots 0, with a unit inside, and 1. `rest`, 2, is a third one, or plain.
ModelOr WrapRoots(std::shared_ptr<ProcessGroup> group, bool rest, const FsdpOptions& options = {.init_seed = kSeed}) {
  std::unique_ptr<TestSequence> root = MakeTestBlocks();
  FSDP_RETURN_IF_ERROR(WrapAll(*root, {{"0.1", {}}, {"0", {}}, {"1", {}}}));
  if (rest) FSDP_RETURN_IF_ERROR(WrapAll(*root, {{"2", {}}}));
  if (!rest) FSDP_RETURN_IF_ERROR(ModuleAt(*root, "2")->Materialize(*group->device(), kSeed));
  return FullyShardedDataParallel::WrapRootsBelow(std::move(root), std::move(group), options);
}

TEST(NestedRootsTest, TrainToTheBitsOfOneRootAroundThem) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        const FsdpOptions options{.sharding_strategy = strategy, .init_seed = kSeed};
        FSDP_ASSIGN_OR_RETURN(const auto roots, WrapRoots(group, /*rest=*/true, options));
        FSDP_ASSIGN_OR_RETURN(const auto one,
                              WrapBlocks(group, {{"0.1", {}}, {"0", {}}, {"1", {}}, {"2", {}}}, options));
        FSDP_ASSIGN_OR_RETURN(const Gradients mine, TrainedValues(*roots));  // clips, so its norm is of all roots
        FSDP_ASSIGN_OR_RETURN(const Gradients expected, TrainedValues(*one));
        EXPECT_EQ(mine.size(), 8u);
        EXPECT_EQ(mine, expected);
        return absl::OkStatus();
      }));
    }
  }
}

// Units: 0 "0", 1 "0.1", 2 "1", 3 "2".
TEST(NestedRootsTest, EachRootIsKeptFromForwardToBackwardAndUnitsInsideAreNot) {
  using Kind = ScheduleEvent::Kind;
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapRoots(group, /*rest=*/true));
    EXPECT_THAT(model->UnitNames(), ElementsAre("0", "0.1", "1", "2"));
    const Schedule step = model->StepSchedule(1);
    for (int unit = 0; unit < 4; ++unit) {
      EXPECT_EQ(std::count(step.begin(), step.end(), ScheduleEvent{Kind::kAllGather, unit}), unit == 1 ? 2 : 1);
    }
    return absl::OkStatus();
  }));
}

std::vector<std::string> NamesOf(const std::vector<Module::NamedModule>& modules) {
  std::vector<std::string> names;
  for (const auto& [name, module] : modules) names.push_back(name);
  return names;
}

TEST(NestedRootsTest, TheRootsAreFoundAndThePlainModuleIsNone) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapRoots(group, /*rest=*/false));
    EXPECT_THAT(NamesOf(model->FsdpModules()), ElementsAre("0", "0.1", "1"));
    EXPECT_THAT(NamesOf(model->FsdpModules(/*root_only=*/true)), ElementsAre("0", "1"));
    EXPECT_FALSE(model->CheckIsRoot(model->module()));
    EXPECT_TRUE(model->CheckIsRoot(*ModuleAt(model->module(), "0")));
    EXPECT_FALSE(model->CheckIsRoot(*ModuleAt(model->module(), "0.1")));
    EXPECT_FALSE(model->CheckIsRoot(*ModuleAt(model->module(), "2")));
    return absl::OkStatus();
  }));
}

TEST(NestedRootsTest, WhatIsOutsideOfThemStaysPlainAndIsInEveryStateDict) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapRoots(group, /*rest=*/false));
    const std::shared_ptr<Parameter> bias = model->module().NamedParameters().back().second;
    EXPECT_EQ(bias->fqn, "2.bias");
    const float* before = bias->data.data_as<float>();
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*model, 0));
    EXPECT_EQ(bias->data.data_as<float>(), before);  // its own memory
    EXPECT_EQ(bias->grad.data_as<float>()[0], static_cast<float>(kFullyShardRows * (group->rank() + 1)));  // and local
    for (const StateDictSettings& settings :
         {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
          StateDictSettings(LocalStateDictConfig{})}) {
      const StateDictTypeGuard guard(*model, settings);
      FSDP_ASSIGN_OR_RETURN(const StateDict state, model->GetStateDict());
      EXPECT_EQ(state.type, settings.type());
      EXPECT_EQ(state.entries().size(), 8u);
      EXPECT_EQ(state.FindTensor(StateKey::Model("2.bias"))->shards.at(0).data.numel(), 7);
    }
    return absl::OkStatus();
  }));
}

TEST(NestedRootsTest, StateOfModelAndOptimizerGoesFromOneRootToSeveralAndBack) {
  StateCollector one, several;
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto from, WrapBlocks(group, {{"0", {}}}, {.init_seed = kSeed}));
    AdamW optimizer(from->parameters(), {.lr = 1e-2});
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*from, 0));
    FSDP_RETURN_IF_ERROR(optimizer.Step(from->stream()));
    FSDP_ASSIGN_OR_RETURN(StateDict state, from->GetStateDict());
    FSDP_RETURN_IF_ERROR(from->AddOptimStateDict(optimizer, state));
    one.Add(state);
    FSDP_ASSIGN_OR_RETURN(const auto to, WrapRoots(group, /*rest=*/true, {.init_seed = kSeed + 1}));
    AdamW loaded(to->parameters(), {.lr = 1e-2});
    FSDP_RETURN_IF_ERROR(to->LoadStateDict(state));
    FSDP_RETURN_IF_ERROR(to->LoadOptimStateDict(state, loaded));
    FSDP_ASSIGN_OR_RETURN(StateDict back, to->GetStateDict());
    FSDP_RETURN_IF_ERROR(to->AddOptimStateDict(loaded, back));
    several.Add(back);
    return absl::OkStatus();
  }));
  EXPECT_EQ(one.size(), 8u * 4);
  ExpectSame(one, several);
}

TEST(NestedRootsTest, SummonFullParamsBindsTheParametersOfAllOrOfOne) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapRoots(group, /*rest=*/true));
    for (Module* of : {static_cast<Module*>(nullptr), ModuleAt(model->module(), "0")}) {
      FSDP_ASSIGN_OR_RETURN(const auto guard, model->SummonFullParams({}, of));
      for (const auto& [name, parameter] : model->module().NamedParameters()) {
        EXPECT_EQ(parameter->data.defined(), of == nullptr || name.substr(0, 2) == "0.") << name;
      }
      FSDP_RETURN_IF_ERROR(guard->Close());
    }
    return absl::OkStatus();
  }));
}

// cast_root_forward_inputs is on by default, and cast_forward_inputs off.
TEST(NestedRootsTest, EachRootCastsItsInputsAsARoot) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const FsdpOptions options{.mixed_precision = {.param_dtype = DType::kBFloat16}, .init_seed = kSeed};
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapRoots(group, /*rest=*/true, options));
    return ForwardAndBackward(*model, 0);  // matmul refuses a float32 input with bfloat16 parameters
  }));
}

// PyTorch's DistributedDataParallel around FSDP is, here, a mark with kNoShard: replicated, and all-reduced.
TEST(NestedRootsTest, AReplicatedRootBesideShardedOnesTrainsToTheSameBits) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto log = std::make_shared<RecordingProcessGroup::Log>();
    std::unique_ptr<TestSequence> root = MakeTestBlocks();
    FSDP_RETURN_IF_ERROR(
        WrapAll(*root, {{"0", {}}, {"1", {}}, {"2", {.sharding_strategy = ShardingStrategy::kNoShard}}}));
    FSDP_ASSIGN_OR_RETURN(
        const auto mixed,
        FullyShardedDataParallel::WrapRootsBelow(
            std::move(root), std::make_shared<RecordingProcessGroup>(group, "world", log), {.init_seed = kSeed}));
    FSDP_ASSIGN_OR_RETURN(const auto one, WrapBlocks(group, {{"0", {}}, {"1", {}}}, {.init_seed = kSeed}));
    log->clear();
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*mixed, 0));
    EXPECT_EQ(CountEntries(*log, "all_gather world"), 2);
    EXPECT_EQ(CountEntries(*log, "reduce_scatter world"), 2);
    EXPECT_EQ(CountEntries(*log, "all_reduce world"), 1);
    for (const ShardedParameter* parameter : mixed->parameters()) {
      if (parameter->fqn.substr(0, 2) != "2.") continue;
      EXPECT_EQ(parameter->interval, (Interval{0, parameter->shape.numel()})) << parameter->fqn;
    }
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*one, 0));
    for (const auto& [name, parameter] : mixed->module().NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor mine, mixed->GetFullGradient(name));
      FSDP_ASSIGN_OR_RETURN(const Tensor expected, one->GetFullGradient(name));
      EXPECT_TRUE(std::equal(mine.data_as<float>(), mine.data_as<float>() + mine.numel(), expected.data_as<float>()))
          << name;
    }
    return absl::OkStatus();
  }));
}

TEST(NestedRootsTest, APlainModuleWithoutMarksOrWithAPolicyIsRefused) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const auto wrap = [&](const std::vector<Mark>& marks, const FsdpOptions& options) -> absl::Status {
      std::unique_ptr<TestSequence> root = MakeTestBlocks();
      FSDP_RETURN_IF_ERROR(WrapAll(*root, marks));
      return FullyShardedDataParallel::WrapRootsBelow(std::move(root), group, options).status();
    };
    EXPECT_THAT(wrap({}, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no module below it")));
    EXPECT_THAT(wrap({{"", {}}}, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use Wrap")));
    EXPECT_THAT(wrap({{"0", {}}}, {.auto_wrap_policy = AlwaysWrapPolicy()}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with an auto_wrap_policy")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

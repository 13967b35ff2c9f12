// SPDX-License-Identifier: Apache-2.0
//
// Wrapping by hand gives the units that a policy gives, with equal bits, and each override reaches its unit.
#include "fsdp/fsdp/wrap/manual_wrap.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/nesting_testutil.h"
#include "fsdp/fsdp/sharded_model.h"
#include "fsdp/fsdp/units/unit.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr uint64_t kSeed = 11;
const std::vector<Mark>& Blocks() {
  static const std::vector<Mark>& blocks = *new std::vector<Mark>{{"0.1", {}}, {"0", {}}, {"1", {}}};
  return blocks;
}

// The same units by a policy.
WrapPolicy BlocksByPolicy() { return NameWrapPolicy({"0", "0.1", "1"}); }

TEST(ManualWrapTest, UnitsBottomUpHaveTheScheduleAndTheBitsOfThoseOfAPolicy) {
  for (const int ranks : {1, 2, 3}) {
    ASSERT_OK(RunRanks(ranks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const auto by_hand, WrapBlocks(group, Blocks(), {.init_seed = kSeed}));
      FSDP_ASSIGN_OR_RETURN(const auto by_policy,
                            WrapBlocks(group, {}, {.auto_wrap_policy = BlocksByPolicy(), .init_seed = kSeed}));
      EXPECT_THAT(by_hand->UnitNames(), ElementsAre("root", "0", "0.1", "1"));
      EXPECT_EQ(by_hand->UnitNames(), by_policy->UnitNames());
      EXPECT_EQ(by_hand->StepSchedule(2), by_policy->StepSchedule(2));
      FSDP_ASSIGN_OR_RETURN(const Gradients mine, TrainedValues(*by_hand));
      FSDP_ASSIGN_OR_RETURN(const Gradients expected, TrainedValues(*by_policy));
      EXPECT_EQ(mine.size(), 8u);
      EXPECT_EQ(mine, expected);
      return absl::OkStatus();
    }));
  }
}

// One setting of each unit of `marks`.
template <typename T>
std::vector<T> OfUnits(const FullyShardedDataParallel& model, T (*of)(const Unit& unit)) {
  std::vector<T> values;
  for (const auto& unit : ShardedModel::Of(model).units().units()) values.push_back(of(*unit));
  return values;
}

TEST(ManualWrapTest, AUnitMayHaveItsOwnStrategyPrecisionOffloadAndRecomputation) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const std::vector<Mark> marks = {
        {"0", {.sharding_strategy = ShardingStrategy::kNoShard, .activation_checkpointing = true}},
        {"0.1", {.mixed_precision = MixedPrecision{.param_dtype = DType::kBFloat16, .cast_forward_inputs = true}}},
        {"1", {.cpu_offload = CpuOffload{.offload_params = true}}}};
    // The input of unit 1 is the bfloat16 output of 0.1; the inputs of 1 and the root are cast back.
    const MixedPrecision full{.param_dtype = DType::kFloat32, .cast_forward_inputs = true};
    std::vector<Mark> with_casts = marks;
    with_casts[2].second.mixed_precision = full;
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapBlocks(group, with_casts, {.init_seed = kSeed}));
    EXPECT_THAT(OfUnits<ShardingStrategy>(*model, [](const Unit& unit) { return unit.strategy; }),
                ElementsAre(ShardingStrategy::kFullShard, ShardingStrategy::kNoShard, ShardingStrategy::kFullShard,
                            ShardingStrategy::kFullShard));
    EXPECT_THAT(OfUnits<DType>(*model, [](const Unit& unit) { return unit.compute_dtype; }),
                ElementsAre(DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kFloat32));
    EXPECT_THAT(OfUnits<bool>(*model, [](const Unit& unit) { return unit.offloaded(); }),
                ElementsAre(false, false, false, true));
    EXPECT_THAT(OfUnits<bool>(*model, [](const Unit& unit) { return unit.settings.activation_checkpointing; }),
                ElementsAre(false, true, false, false));
    return ForwardAndBackward(*model, 0);
  }));
}

// PyTorch's example: two Linears, the root in bfloat16, and `inner` in float16; both cast their inputs. Returns the
// dtype of the output.
absl::StatusOr<DType> OutputOfTwoPrecisions(std::shared_ptr<ProcessGroup> group, const std::string& inner) {
  auto root = std::make_unique<TestSequence>();
  root->Add(std::make_unique<Linear>(3, 3, Initializer::Normal(0, 0.5f)));
  root->Add(std::make_unique<Linear>(3, 3, Initializer::Normal(0, 0.5f)));
  FSDP_RETURN_IF_ERROR(
      WrapModule(*ModuleAt(*root, inner),
                 {.mixed_precision = MixedPrecision{.param_dtype = DType::kFloat16, .cast_forward_inputs = true}}));
  const MixedPrecision outer{.param_dtype = DType::kBFloat16, .cast_forward_inputs = true};
  FSDP_ASSIGN_OR_RETURN(const auto model,
                        FullyShardedDataParallel::Wrap(std::move(root), std::move(group), {.mixed_precision = outer}));
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model->device(), DType::kFloat32, {2, 3}));
  std::fill_n(x.data_as<float>(), x.numel(), 0.5f);
  Tape tape = model->NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
  FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
  FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
  return y.dtype();
}

// In the reverse case the root's Linear gets the inner unit's output dtype, in PyTorch and here.
TEST(ManualWrapTest, AnInnerUnitOfAnotherPrecisionThatRunsLastIsCastToAndOneThatRunsFirstIsNotCastFrom) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const DType output, OutputOfTwoPrecisions(group, "1"));
    EXPECT_EQ(output, DType::kFloat16);
    EXPECT_THAT(OutputOfTwoPrecisions(group, "0"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("float16")));
    return absl::OkStatus();
  }));
}

// Ranks 2 and 3 replicate 0 and 1.
TEST(ManualWrapTest, AUnitMayHaveGroupsOfItsOwn) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> world) -> absl::Status {
    const auto log = std::make_shared<RecordingProcessGroup::Log>();
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> shard, world->Split(world->rank() / 2, world->rank() % 2));
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> replicate, world->Split(world->rank() % 2, world->rank() / 2));
    const UnitProcessGroup groups{std::make_shared<RecordingProcessGroup>(shard, "shard", log),
                                  std::make_shared<RecordingProcessGroup>(replicate, "replicate", log)};
    const UnitOverrides hybrid{.sharding_strategy = ShardingStrategy::kHybridShard, .process_group = groups};
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapBlocks(world, {{"0", hybrid}, {"1", {}}}, {.init_seed = kSeed}));
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*model, 0));
    EXPECT_EQ(CountEntries(*log, "all_gather shard"), 2);
    EXPECT_EQ(CountEntries(*log, "reduce_scatter shard"), 1);
    EXPECT_EQ(CountEntries(*log, "all_reduce replicate"), 1);
    // The same units, with groups that the model makes.
    const WrapPolicy policy = CustomWrapPolicy([](Module& module) -> std::optional<UnitOverrides> {
      if (module.type_name() != "Block") return std::nullopt;
      if (module.children().size() == 1) return UnitOverrides();
      return UnitOverrides{.sharding_strategy = ShardingStrategy::kHybridShard};
    });
    FSDP_ASSIGN_OR_RETURN(
        const auto expected,
        WrapBlocks(world, {}, {.shard_group_size = 2, .auto_wrap_policy = policy, .init_seed = kSeed}));
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*expected, 0));
    for (const auto& optimizer_step : {&model, &expected}) {
      for (ShardedParameter* parameter : (*optimizer_step)->parameters()) parameter->has_grad = false;
    }
    FSDP_ASSIGN_OR_RETURN(const Gradients mine, TrainedValues(*model));
    FSDP_ASSIGN_OR_RETURN(const Gradients theirs, TrainedValues(*expected));
    EXPECT_EQ(mine, theirs);
    return absl::OkStatus();
  }));
}

TEST(ManualWrapTest, GroupsOfOtherRanksThanTheModelsAreRefusedByUnit) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> world) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> alone, world->Split(world->rank(), 0));
    EXPECT_THAT(WrapBlocks(world, {{"0", {.process_group = UnitProcessGroup{alone}}}}, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("process_group of unit 0")));
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> turned, world->Split(0, -world->rank()));
    EXPECT_THAT(WrapBlocks(world, {{"0", {.process_group = UnitProcessGroup{turned}}}}, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("in their order")));
    const UnitOverrides pair{.process_group = UnitProcessGroup{alone, world}};
    EXPECT_THAT(WrapBlocks(world, {{"0", pair}}, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("process_group of unit 0")));
    return absl::OkStatus();
  }));
}

int IndexOf(const Schedule& schedule, ScheduleEvent::Kind kind, int unit, int from = 0) {
  return static_cast<int>(std::find(schedule.begin() + from, schedule.end(), ScheduleEvent{kind, unit}) -
                          schedule.begin());
}

// Units: 0 root, 1 "0", 2 "0.1", 3 "1". Backward runs root, 1, 0, 0.1.
TEST(ManualWrapTest, AUnitMayHaveItsOwnPrefetching) {
  using Kind = ScheduleEvent::Kind;
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const std::vector<Mark> marks = {
        {"0", {.forward_prefetch = true}}, {"0.1", {}}, {"1", {.backward_prefetch = BackwardPrefetch::kNone}}};
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapBlocks(group, marks, {.init_seed = kSeed}));
    const Schedule step = model->StepSchedule(1);
    EXPECT_LT(IndexOf(step, Kind::kAllGather, 2), IndexOf(step, Kind::kForward, 1));  // ahead, by 0
    EXPECT_GT(IndexOf(step, Kind::kAllGather, 3), IndexOf(step, Kind::kForward, 2));  // not ahead, by 0.1
    const int backward = IndexOf(step, Kind::kBackward, 0);
    const int before = IndexOf(step, Kind::kAllGather, 3, IndexOf(step, Kind::kForward, 3));
    EXPECT_LT(before, backward);                                                                 // ahead, by the root
    EXPECT_GT(IndexOf(step, Kind::kAllGather, 1, backward), IndexOf(step, Kind::kBackward, 3));  // not ahead, by 1
    EXPECT_LT(IndexOf(step, Kind::kAllGather, 2, backward), IndexOf(step, Kind::kBackward, 1));  // ahead, by 0
    FSDP_ASSIGN_OR_RETURN(const auto plain, WrapBlocks(group, Blocks(), {.init_seed = kSeed}));
    FSDP_ASSIGN_OR_RETURN(const Gradients mine, TrainedValues(*model));
    FSDP_ASSIGN_OR_RETURN(const Gradients expected, TrainedValues(*plain));
    EXPECT_EQ(mine, expected);
    return absl::OkStatus();
  }));
}

TEST(ManualWrapTest, AUnitMayHaveItsOwnFirstValues) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    Device& device = *group->device();
    const ParamInitFn threes = [&](Module& module) -> absl::Status {
      for (const auto& [name, parameter] : module.own_parameters()) {
        FSDP_ASSIGN_OR_RETURN(parameter->data, Tensor::Empty(device, DType::kFloat32, parameter->shape));
        std::fill_n(parameter->data.data_as<float>(), parameter->data.numel(), 3.0f);
      }
      return absl::OkStatus();
    };
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapBlocks(group, {{"0", {.param_init_fn = threes}}, {"1", {}}}, {}));
    for (const ShardedParameter* parameter : model->parameters()) {
      const float* data = parameter->data.data_as<float>();
      const bool all_three = std::all_of(data, data + parameter->data.numel(), [](float x) { return x == 3; });
      EXPECT_EQ(all_three, parameter->fqn.substr(0, 2) == "0." || parameter->interval.empty()) << parameter->fqn;
    }
    return absl::OkStatus();
  }));
}

TEST(ManualWrapTest, AUnitBelowAnIgnoredModuleStaysManaged) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> root = MakeTestBlocks();
    FSDP_RETURN_IF_ERROR(WrapAll(*root, {{"0.1", {}}}));
    FSDP_RETURN_IF_ERROR(ModuleAt(*root, "0.0")->Materialize(*group->device(), kSeed));
    const FsdpOptions options{.ignored_modules = {ModuleAt(*root, "0")}, .init_seed = kSeed};
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(root), group, options));
    EXPECT_THAT(model->UnitNames(), ElementsAre("root", "0.1"));
    FSDP_RETURN_IF_ERROR(ForwardAndBackward(*model, 0));
    std::vector<std::string> unmanaged;
    for (const auto& [name, parameter] : ShardedModel::Of(*model).units().unmanaged()) {
      unmanaged.push_back(name);
      EXPECT_TRUE(parameter->data.defined() && parameter->grad.defined()) << name;
    }
    EXPECT_THAT(unmanaged, ElementsAre("0.0.weight", "0.0.bias"));
    for (const ShardedParameter* parameter : model->parameters()) EXPECT_TRUE(parameter->has_grad) << parameter->fqn;
    return absl::OkStatus();
  }));
}

TEST(ManualWrapTest, WhatCannotBeMarkedIsRefused) {
  std::unique_ptr<TestSequence> root = MakeTestBlocks();
  Module& block = *ModuleAt(*root, "0");
  ASSERT_OK(WrapModule(block));
  EXPECT_THAT(WrapModule(block), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrapped already")));
  EXPECT_THAT(WrapModule(*root, {.process_group = UnitProcessGroup{}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no shard group")));
  EXPECT_THAT(WrapModule(*root, {.backward_prefetch = static_cast<BackwardPrefetch>(9)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("backward_prefetch is 9")));
}

TEST(ManualWrapTest, MarksAreForModulesBelowTheRootAndNotBesideAPolicy) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    EXPECT_THAT(WrapBlocks(group, {{"", {}}}, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("below the root")));
    EXPECT_THAT(WrapBlocks(group, {{"0", {}}}, {.auto_wrap_policy = BlocksByPolicy()}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("by hand or by policy")));
    EXPECT_THAT(WrapBlocks(group, {{"0", {.sharding_strategy = ShardingStrategy::kHybridShard}}}, {}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("needs a shard group and a replicate group")));
    return absl::OkStatus();
  }));
}

TEST(ManualWrapTest, AMarkedModuleThatNoModelHasRefusesItsForward) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, WrapBlocks(group, {}, {.init_seed = kSeed}));
    std::unique_ptr<TestSequence> apart = MakeTestBlocks();
    FSDP_RETURN_IF_ERROR(WrapModule(*apart));
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model->device(), DType::kFloat32, {2, 3}));
    Tape tape = model->NewTape();
    EXPECT_THAT(apart->Forward(x, tape).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no model has")));
    return absl::OkStatus();
  }));
}

TEST(ManualWrapTest, RanksThatPrefetchUnlikeAreToldBeforeTheyDeadlock) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) {
    const UnitOverrides mine{.forward_prefetch = group->rank() == 0};
    return WrapBlocks(group, {{"0", mine}}, {.init_seed = kSeed}).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("forward_prefetch of unit 0")));
}

}  // namespace
}  // namespace fsdp

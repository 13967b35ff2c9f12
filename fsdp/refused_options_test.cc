// SPDX-License-Identifier: Apache-2.0
//
// Invalid arguments of Wrap, FullyShard and ManualUnits are refused by these calls, and the error names the argument,
// its value, and the expected values. options/options_test.cc tests the ranges of single options.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/manual_units.h"
#include "fsdp/nn/linear.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

using Groups = std::shared_ptr<ProcessGroup>;

auto IsRefused(const std::string& message) { return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)); }

absl::Status WrapBlocks(ShardGroups groups, const FsdpOptions& options = {}) {
  return FullyShardedDataParallel::Wrap(MakeTestBlocks(), std::move(groups), options).status();
}

// Each Block a unit, with these differences from the root's options.
WrapPolicy BlocksWith(const UnitOverrides& overrides) {
  return CustomWrapPolicy([overrides](Module& module) -> std::optional<UnitOverrides> {
    if (module.type_name() != "Block") return std::nullopt;
    return overrides;
  });
}

void OnRanks(int ranks, const std::function<void(const Groups& group)>& check) {
  ASSERT_OK(RunRanks(ranks, [&](Groups group) -> absl::Status {
    check(group);
    return absl::OkStatus();
  }));
}

TEST(WrapRefusalTest, AModuleThatIsNull) {
  OnRanks(2, [](const Groups& group) {
    EXPECT_THAT(FullyShardedDataParallel::Wrap(nullptr, group).status(),
                IsRefused("Wrap: the module is null: expected the root of a model"));
  });
}

TEST(WrapRefusalTest, GroupsThatAreNull) {
  OnRanks(1, [](const Groups& group) {
    EXPECT_THAT(WrapBlocks(Groups()), IsRefused("the process group is null: expected one group, a pair"));
    EXPECT_THAT(WrapBlocks(std::pair(Groups(), group)), IsRefused("the shard group is null: expected one group"));
    EXPECT_THAT(WrapBlocks(std::pair(group, Groups())), IsRefused("the replicate group is null: expected one group"));
    EXPECT_THAT(WrapBlocks(std::shared_ptr<const DeviceMesh>()), IsRefused("the device mesh is null: expected one"));
    EXPECT_THAT(ManualUnits::Create(Groups(), {{"one", {{"w", {7}}}}}, 1).status(),
                IsRefused("the process group is null"));
    EXPECT_THAT(DeviceMesh::Create(nullptr, {1}, {"shard"}).status(),
                IsRefused("device mesh: the process group is null: expected the group of all ranks of the mesh"));
  });
}

TEST(WrapRefusalTest, DtypesThatNoUnitComputesWith) {
  OnRanks(1, [](const Groups& group) {
    for (const DType dtype : {DType::kInt32, DType::kBool, DType::kFloat8E4M3FN, DType::kComplex64}) {
      const std::string is =
          " is " + std::string(DTypeName(dtype)) + ": expected float64, float32, bfloat16 or float16";
      EXPECT_THAT(WrapBlocks(group, {.mixed_precision = {.param_dtype = dtype}}),
                  IsRefused("mixed_precision.param_dtype" + is));
      EXPECT_THAT(WrapBlocks(group, {.mixed_precision = {.reduce_dtype = dtype}}),
                  IsRefused("mixed_precision.reduce_dtype" + is));
      EXPECT_THAT(WrapBlocks(group, {.mixed_precision = {.buffer_dtype = dtype}}),
                  IsRefused("mixed_precision.buffer_dtype" + is));
      EXPECT_THAT(WrapBlocks(group, {.auto_wrap_policy =
                                         BlocksWith({.mixed_precision = MixedPrecision{.reduce_dtype = dtype}})}),
                  IsRefused("unit 0: mixed_precision.reduce_dtype" + is));
      EXPECT_THAT(
          ManualUnits::Create(group, {{"one", {{"w", {7}}}}}, 1, {.mixed_precision = {.param_dtype = dtype}}).status(),
          IsRefused("mixed_precision.param_dtype" + is));
    }
  });
}

TEST(WrapRefusalTest, AShardGroupSizeThatNobodyUsesOrThatDoesNotFit) {
  OnRanks(4, [](const Groups& group) {
    FsdpOptions options;
    options.auto_wrap_policy = BlocksWith({});
    options.shard_group_size = 2;
    EXPECT_THAT(WrapBlocks(group, options), IsRefused("shard_group_size is 2, but no unit's sharding_strategy is "
                                                      "hybrid_shard or hybrid_shard_zero2"));
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    for (const int size : {0, -1}) {
      options.shard_group_size = size;
      EXPECT_THAT(WrapBlocks(group, options),
                  IsRefused("shard_group_size is " + std::to_string(size) + ": expected at least 1"));
    }
    for (const int size : {3, 8}) {
      options.shard_group_size = size;
      EXPECT_THAT(WrapBlocks(group, options),
                  IsRefused("shard_group_size " + std::to_string(size) + " does not divide the group's 4 ranks"));
    }
    options.shard_group_size = 2;
    options.auto_wrap_policy = {};
    EXPECT_THAT(WrapBlocks(group, options), IsRefused("hybrid_shard needs a shard group and a replicate group"));
    const FsdpOptions manual{.shard_group_size = 2};
    EXPECT_THAT(ManualUnits::Create(group, {{"one", {{"w", {7}}}}}, 1, manual).status(),
                IsRefused("shard_group_size is 2, but no unit's sharding_strategy is hybrid_shard"));
  });
}

// Threads of one process are on one host, whose ranks all shard. With another number, or none, of groups nothing is
// made.
TEST(WrapRefusalTest, HybridUnitsWithoutAShardGroupSizeShardInsideAHost) {
  OnRanks(4, [](const Groups& group) {
    FsdpOptions options{.sharding_strategy = ShardingStrategy::kHybridShardZero2};
    options.auto_wrap_policy = BlocksWith({});
    EXPECT_OK(WrapBlocks(group, options));
    EXPECT_OK(
        ManualUnits::Create(group, {{"one", {{"w", {7}}}}}, 1, {.sharding_strategy = ShardingStrategy::kHybridShard})
            .status());
    EXPECT_THAT(WrapBlocks(group, {.sharding_strategy = ShardingStrategy::kHybridShard}),
                IsRefused("hybrid_shard needs a shard group and a replicate group"));
  });
}

// A unit may be hybrid in a model whose root is not.
TEST(WrapRefusalTest, AShardGroupSizeForAUnitAloneIsUsed) {
  OnRanks(4, [](const Groups& group) {
    FsdpOptions options;
    options.auto_wrap_policy = BlocksWith({.sharding_strategy = ShardingStrategy::kHybridShard});
    options.shard_group_size = 2;
    EXPECT_OK(WrapBlocks(group, options));
  });
}

TEST(WrapRefusalTest, NumbersThatAreNoEnumerators) {
  OnRanks(1, [](const Groups& group) {
    EXPECT_THAT(WrapBlocks(group, {.sharding_strategy = static_cast<ShardingStrategy>(17)}),
                IsRefused("sharding_strategy is 17: expected an enumerator of ShardingStrategy"));
    EXPECT_THAT(WrapBlocks(group, {.backward_prefetch = static_cast<BackwardPrefetch>(17)}),
                IsRefused("backward_prefetch is 17: expected an enumerator of BackwardPrefetch"));
    EXPECT_THAT(StateDictSettings::Make(static_cast<StateDictType>(17)).status(),
                IsRefused("state dict type is 17: expected an enumerator of StateDictType"));
  });
}

class FullyShardRefusalTest : public testing::Test {
 protected:
  void OnMesh(const std::function<void(std::shared_ptr<const DeviceMesh> mesh)>& check) {
    OnRanks(1, [&](const Groups& group) {
      ASSERT_OK_AND_ASSIGN(auto mesh, DeviceMesh::Create(group, {1}, {"shard"}));
      check(std::move(mesh));
    });
  }
};

TEST_F(FullyShardRefusalTest, ModulesThatAreNullOrListedTwiceAreNamed) {
  OnMesh([](const std::shared_ptr<const DeviceMesh>& mesh) {
    Conv1D first(2, 2, {}), second(2, 2, {});
    EXPECT_THAT(FullyShard({&first, nullptr}, mesh).status(), IsRefused("FullyShard: modules[1] of 2 is null"));
    EXPECT_THAT(FullyShard({&first, &second, &first}, mesh).status(),
                IsRefused("FullyShard: modules[2], a Conv1D, is modules[0] again: expected each module once"));
  });
}

TEST_F(FullyShardRefusalTest, DtypesThatNoUnitComputesWith) {
  OnMesh([](const std::shared_ptr<const DeviceMesh>& mesh) {
    Conv1D module(2, 2, {});
    const std::string is = " is bool: expected float64, float32, bfloat16 or float16";
    const DType dtype = DType::kBool;
    EXPECT_THAT(FullyShard(module, mesh, {.mp_policy = {.param_dtype = dtype}}).status(),
                IsRefused("mp_policy.param_dtype" + is));
    EXPECT_THAT(FullyShard(module, mesh, {.mp_policy = {.reduce_dtype = dtype}}).status(),
                IsRefused("mp_policy.reduce_dtype" + is));
    EXPECT_THAT(FullyShard(module, mesh, {.mp_policy = {.output_dtype = dtype}}).status(),
                IsRefused("mp_policy.output_dtype" + is));
    EXPECT_EQ(FsdpModule::Of(module), nullptr);
  });
}

TEST_F(FullyShardRefusalTest, AnIgnoredParameterThatIsNull) {
  OnMesh([](const std::shared_ptr<const DeviceMesh>& mesh) {
    Conv1D module(2, 2, {});
    EXPECT_THAT(FullyShard(module, mesh, {.ignored_params = {nullptr}}).status(),
                IsRefused("ignored_params[0] is null: expected a parameter"));
  });
}

// Two models; a module of one in the prefetch list of the other.
TEST(PrefetchRefusalTest, AModuleOfAnotherModelIsNamed) {
  ASSERT_OK(RunRanks(2, [](Groups group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard other, TestFullyShard::Make(group));
    {
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard before, TestFullyShard::Make(group));
      FSDP_RETURN_IF_ERROR(before.blocks[1]->set_modules_to_backward_prefetch({before.blocks[0], other.blocks[1]}));
      EXPECT_THAT(before.root->NewTape().status(),
                  IsRefused("modules_to_backward_prefetch of module \"1\": [1], a Block, is not below the root"));
    }
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard after, TestFullyShard::Make(group));
    FSDP_RETURN_IF_ERROR(after.root->NewTape().status());
    EXPECT_THAT(after.root->set_modules_to_forward_prefetch({other.blocks[0]}),
                IsRefused("modules_to_forward_prefetch of module \"root\": [0], a Block, is not below the root"));
    return after.root->set_modules_to_forward_prefetch({after.blocks[0]});
  }));
}

TEST(ManualUnitsRefusalTest, NamesThatAreTakenAndCountsThatAreNone) {
  OnRanks(1, [](const Groups& group) {
    EXPECT_THAT(ManualUnits::Create(group, {{"a", {{"w", {7}}}}, {"a", {{"v", {7}}}}}, 1).status(),
                IsRefused("unit \"a\" is listed twice: expected names of their own"));
    EXPECT_THAT(ManualUnits::Create(group, {{"a", {{"w", {7}}}}, {"b", {{"w", {7}}}}}, 1).status(),
                IsRefused("parameter \"w\" of unit \"b\" is one of unit \"a\" already: expected names of their own"));
    EXPECT_THAT(ManualUnits::Create(group, {{"a", {{"", {7}}}}}, 1).status(),
                IsRefused("unit \"a\": parameter 0 has no name"));
    EXPECT_THAT(ManualUnits::Create(group, {{"a", {{"w", {7}}}}}, 0).status(),
                IsRefused("units_at_once is 0: expected at least 1"));
  });
}

TEST(ManualUnitsRefusalTest, OptionsThatNothingReads) {
  const std::vector<std::pair<std::string, FsdpOptions>> cases = {
      {"auto_wrap_policy", {.auto_wrap_policy = AlwaysWrapPolicy()}},
      {"activation_checkpointing", {.activation_checkpointing = true}},
      {"full_precision_in_eval", {.full_precision_in_eval = true}},
      {"check_execution_order", {.check_execution_order = true}},
      {"sync_module_states", {.sync_module_states = true}},
      {"forward_prefetch", {.forward_prefetch = true}},
      {"backward_prefetch", {.backward_prefetch = BackwardPrefetch::kNone}},
      {"limit_all_gathers", {.limit_all_gathers = false}},
      {"ignored_modules", {.ignored_modules = {nullptr}}},
      {"ignored_states", {.ignored_states = std::vector<Module*>{}}},
      {"param_init_fn", {.param_init_fn = [](Module&) { return absl::OkStatus(); }}},
      {"device_id", {.device_id = "cpu"}},
      {"trace", {.trace = Trace::Create(/*max_spans=*/1)}},
      {"mixed_precision.buffer_dtype", {.mixed_precision = {.buffer_dtype = DType::kBFloat16}}},
      {"mixed_precision.cast_forward_inputs", {.mixed_precision = {.cast_forward_inputs = true}}},
  };
  OnRanks(1, [&](const Groups& group) {
    for (const auto& [name, options] : cases) {
      EXPECT_THAT(ManualUnits::Create(group, {{"a", {{"w", {7}}}}}, 1, options).status(),
                  IsRefused(name + " is set, but ManualUnits has no modules"));
    }
  });
}

TEST(ManualUnitsRefusalTest, IndicesOutOfRange) {
  ASSERT_OK(RunRanks(1, [](Groups group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto units, ManualUnits::Create(group, {{"a", {{"w", {7}}}}}, 1));
    for (const int index : {-1, 1}) {
      const std::string message = "unit " + std::to_string(index) + ": expected an index below 1";
      EXPECT_THAT(units->Unshard(index).status(), IsRefused(message));
      EXPECT_THAT(units->Prefetch(index), IsRefused(message));
      EXPECT_THAT(units->Gradients(index).status(), IsRefused(message));
      EXPECT_THAT(units->Reduce(index), IsRefused(message));
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

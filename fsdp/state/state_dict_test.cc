// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Model and optimizer state in all forms after two steps on `world_size` ranks.
void CollectAll(int world_size, const FsdpOptions& options, StateCollector* full, StateCollector* sharded,
                StateCollector* local) {
  ASSERT_OK(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel trained, MakeTestModel(group, options));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(trained.Train(step));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.AllState());
    full->Add(whole);
    {
      StateDictTypeGuard guard(*trained.model, ShardedStateDictConfig{.offload_to_cpu = true});
      FSDP_ASSIGN_OR_RETURN(const StateDict chunks, trained.AllState());
      sharded->Add(chunks);
    }
    StateDictTypeGuard guard(*trained.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict slices, trained.AllState());
    local->Add(slices);
    return absl::OkStatus();
  }));
}

class StateDictTest : public testing::TestWithParam<int> {};

TEST_P(StateDictTest, FullShardedAndLocalAgreeInEveryBitOfEveryState) {
  FsdpOptions original = BlockOptions();
  original.use_orig_params = true;
  FsdpOptions replicated = BlockOptions();
  replicated.sharding_strategy = ShardingStrategy::kNoShard;
  for (const FsdpOptions& options : {BlockOptions(), original, replicated, MixedOptions()}) {
    StateCollector full, sharded, local;
    CollectAll(GetParam(), options, &full, &sharded, &local);
    full.ExpectCovered();
    sharded.ExpectCovered();
    local.ExpectCovered();
    EXPECT_GT(full.size(), 3 * 28u);  // a weight and three states each
    ExpectSame(full, sharded);
    ExpectSame(full, local);
  }
}

// Trains two steps, takes the state, continues to train; then loads the state into a new model and continues with that.
absl::Status LoadAndGoOn(std::shared_ptr<ProcessGroup> group, const StateDictConfig& config,
                         StateCollector* uninterrupted, StateCollector* resumed) {
  FSDP_ASSIGN_OR_RETURN(TestModel first, MakeTestModel(group, BlockOptions()));
  for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(first.Train(step));
  StateDict state;
  {
    StateDictTypeGuard guard(*first.model, config);
    FSDP_ASSIGN_OR_RETURN(state, first.AllState());
  }
  FsdpOptions other = BlockOptions();
  other.init_seed = 99;
  other.use_orig_params = true;
  other.auto_wrap_policy = WrapPolicy();
  FSDP_ASSIGN_OR_RETURN(TestModel second, MakeTestModel(group, other));
  {
    StateDictTypeGuard guard(*second.model, config);
    FSDP_RETURN_IF_ERROR(second.model->LoadStateDict(state));
    FSDP_RETURN_IF_ERROR(second.model->LoadOptimStateDict(state, *second.optimizer));
  }
  FSDP_RETURN_IF_ERROR(first.Train(2));
  FSDP_RETURN_IF_ERROR(second.Train(2));
  FSDP_ASSIGN_OR_RETURN(const StateDict a, first.AllState());
  uninterrupted->Add(a);
  FSDP_ASSIGN_OR_RETURN(const StateDict b, second.AllState());
  resumed->Add(b);
  return absl::OkStatus();
}

TEST_P(StateDictTest, LoadsUnderAnotherWrappingAndGoesOnWithEqualBits) {
  for (const StateDictConfig& config :
       {StateDictConfig(FullStateDictConfig{}), StateDictConfig(ShardedStateDictConfig{.offload_to_cpu = true})}) {
    StateCollector uninterrupted, resumed;
    ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) {
      return LoadAndGoOn(group, config, &uninterrupted, &resumed);
    }));
    ExpectSame(uninterrupted, resumed);
  }
}

TEST_P(StateDictTest, RestoreFillsLiveShardsInPlace) {
  StateCollector before, after;
  ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel source, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(source.Train(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, source.AllState());
    before.Add(whole);
    FsdpOptions other = BlockOptions();
    other.init_seed = 5;
    FSDP_ASSIGN_OR_RETURN(TestModel target, MakeTestModel(group, other));
    FSDP_RETURN_IF_ERROR(target.model->Restore(target.optimizer.get(), [&](StateDict& wanted) {
      EXPECT_EQ(wanted.type, StateDictType::kLocal);
      for (const auto& [key, value] : wanted.entries()) {
        const Tensor& from = whole.FindTensor(key)->shards.at(0).data;
        for (const auto& shard : std::get<ShardedTensor>(value).shards) {
          std::memcpy(shard.data.data(), from.View({from.numel()}).Slice(shard.interval).data(), shard.data.nbytes());
        }
      }
      return absl::OkStatus();
    }));
    FSDP_ASSIGN_OR_RETURN(const StateDict restored, target.AllState());
    after.Add(restored);
    return absl::OkStatus();
  }));
  ExpectSame(before, after);
}

// The traces of a refused restore: whether `load` was called.
struct Refused {
  absl::Status status;
  bool was_loaded = false;
};

// Restores on two ranks; `load` sets `saved` as attributes.
Refused RestoreWith(const RunMetadata& saved, const RestoreOptions& options) {
  Refused refused;
  std::atomic<bool> was_loaded = false;
  refused.status = RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel target, MakeTestModel(group, BlockOptions()));
    const auto load = [&](StateDict& wanted) {
      was_loaded = true;
      wanted.attributes = saved;
      return absl::OkStatus();
    };
    return target.model->Restore(target.optimizer.get(), load, options).status();
  });
  refused.was_loaded = was_loaded;
  return refused;
}

TEST(RestoreAttributesTest, ARequiredDifferenceIsRefusedBeforeAnythingIsLoaded) {
  const Refused refused = RestoreWith({}, {.saved = {{"model.n_head", 3}}, .required = {{"model.n_head", 4}}});
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                       HasSubstr("model.n_head was 3 when it was saved, and is 4 here")));
  EXPECT_FALSE(refused.was_loaded);
}

TEST(RestoreAttributesTest, TheAttributesThatLoadSetsAreComparedAfterIt) {
  const Refused refused = RestoreWith({{"model.n_head", 3}}, {.required = {{"model.n_head", 4}}});
  EXPECT_THAT(refused.status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("model.n_head was 3")));
  EXPECT_TRUE(refused.was_loaded);
}

TEST(RestoreAttributesTest, AListedAnAllowedAndAnUnknownDifferenceAreReturned) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel target, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const std::vector<AttributeDifference> differences,
                          target.model->Restore(/*optimizer=*/nullptr, [](StateDict&) { return absl::OkStatus(); },
                                                {.saved = {{"model.n_head", 3}, {"options.lr", 0.1}},
                                                 .required = {{"model.n_head", 4}, {"model.rope_theta", 1e4}},
                                                 .listed = {{"options.lr", 0.5}},
                                                 .allowed = {"model.n_head"}}));
    EXPECT_THAT(differences, testing::ElementsAre(AttributeDifference{"model.n_head", 3, 4},
                                                  AttributeDifference{"model.rope_theta", std::nullopt, 1e4},
                                                  AttributeDifference{"options.lr", 0.1, 0.5}));
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, StateDictTest, testing::Values(1, 2, 3, 4));

TEST(StateDictFormTest, Rank0OnlyLeavesOthersEmpty) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    StateDictTypeGuard guard(*made.model,
                             StateDictSettings{FullStateDictConfig{true, true}, FullOptimStateDictConfig{true, true}});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
    EXPECT_EQ(state.empty(), group->rank() != 0);
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, SharedParametersAppearOnceWithTheirAlias) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    EXPECT_TRUE(state.contains(StateKey::Model("transformer.wte.weight")));
    EXPECT_FALSE(state.contains(StateKey::Model("lm_head.weight")));
    EXPECT_EQ(state.aliases.at("lm_head.weight"), "transformer.wte.weight");
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, GuardRestoresTheSettings) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    {
      StateDictTypeGuard outer(*made.model, ShardedStateDictConfig{});
      EXPECT_EQ(made.model->state_dict_settings().type(), StateDictType::kSharded);
    }
    EXPECT_EQ(made.model->state_dict_settings().type(), StateDictType::kFull);
    return absl::OkStatus();
  }));
}

// The scope may be left in any way: here by an error.
absl::Status FailsUnderAGuard(FullyShardedDataParallel& model) {
  StateDictTypeGuard outer(model, ShardedStateDictConfig{});
  StateDictTypeGuard inner(model, LocalStateDictConfig{});
  return absl::InternalError("in the middle");
}

TEST(StateDictFormTest, GuardsNestAndRestoreWhenAnErrorLeavesTheScope) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    EXPECT_EQ(FailsUnderAGuard(*made.model).code(), absl::StatusCode::kInternal);
    EXPECT_EQ(made.model->state_dict_settings().type(), StateDictType::kFull);
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, SettingReturnsWhatWasSetBefore) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    const StateDictSettings first = made.model->set_state_dict_settings(LocalStateDictConfig{});
    EXPECT_EQ(first.type(), StateDictType::kFull);
    EXPECT_EQ(made.model->set_state_dict_settings(first).type(), StateDictType::kLocal);
    return absl::OkStatus();
  }));
}

// Whatever the compute dtype is, and what is done to the copies afterwards.
TEST(StateDictFormTest, FullAndShardedTensorsAreDetachedCopiesInTheOriginalDtype) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.mixed_precision.param_dtype = DType::kBFloat16;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    for (const StateDictSettings& settings :
         {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{})}) {
      StateDictTypeGuard guard(*made.model, settings);
      FSDP_ASSIGN_OR_RETURN(const StateDict first, made.model->GetStateDict());
      StateCollector before, after;
      for (const auto& [key, value] : first.entries()) {
        const auto& tensor = std::get<ShardedTensor>(value);
        EXPECT_EQ(tensor.dtype, DType::kFloat32);
        for (const auto& shard : tensor.shards) std::memset(shard.data.data(), 0xFF, shard.data.nbytes());
      }
      before.Add(first);
      FSDP_ASSIGN_OR_RETURN(const StateDict second, made.model->GetStateDict());
      after.Add(second);
      const StateKey key = StateKey::Model("transformer.wpe.weight");
      EXPECT_NE(before.BytesOf(key), after.BytesOf(key));
    }
    return absl::OkStatus();
  }));
}

// NO_SHARD follows the settings like every other strategy.
TEST(StateDictFormTest, NoShardObeysRank0Only) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = ShardingStrategy::kNoShard;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    StateDictTypeGuard guard(*made.model, FullStateDictConfig{.rank0_only = true});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    EXPECT_EQ(state.empty(), group->rank() != 0);
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, ParamGroupsAreJsonInPyTorchsForm) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
    const std::string* text = state.FindText(StateKey::ParamGroups());
    if (text == nullptr) return absl::NotFoundError("no param_groups");
    const nlohmann::json groups = nlohmann::json::parse(*text);
    EXPECT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0]["betas"].size(), 2u);
    EXPECT_EQ(groups[0]["weight_decay"].get<double>(), 0.1);
    EXPECT_EQ(groups[1]["weight_decay"].get<double>(), 0.0);
    return absl::OkStatus();
  }));
}

absl::Status LoadBroken(std::shared_ptr<ProcessGroup> group, const std::function<void(StateDict&)>& damage) {
  FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
  FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
  if (group->rank() == 1) damage(state);
  return made.model->LoadStateDict(state);
}

TEST(StateDictErrorTest, ShapeMismatchOnOneRankIsEveryRanksErrorByName) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) {
    return LoadBroken(group, [](StateDict& state) {
      ShardedTensor wrong = *state.FindTensor(StateKey::Model("transformer.h.1.ln_1.weight"));
      wrong.shape = {14};
      state.Set(StateKey::Model("transformer.h.1.ln_1.weight"), wrong);
    });
  });
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"model/transformer.h.1.ln_1.weight\": shape [14] in the state dict != [15]")));
}

TEST(StateDictErrorTest, UnexpectedKeysAreNamed) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) {
    return LoadBroken(group, [](StateDict& state) { state.Set(StateKey::Model("score.weight"), ShardedTensor()); });
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unexpected: [score.weight]")));
}

TEST(StateDictErrorTest, ChunksGivenForAFullLoadAreRefused) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    StateDict chunks;
    {
      StateDictTypeGuard guard(*made.model, ShardedStateDictConfig{});
      FSDP_ASSIGN_OR_RETURN(chunks, made.model->GetStateDict());
    }
    return made.model->LoadStateDict(chunks);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("that a full state dict has")));
}

TEST(StateDictErrorTest, APartialOptimizerStateIsNamed) {
  const absl::Status status = RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(made.Train(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
    StateDict partial;
    for (const auto& [key, value] : state.entries()) {
      if (key.ToString() != "optim/state/transformer.wpe.weight/exp_avg") partial.Set(key, value);
    }
    return made.model->LoadOptimStateDict(partial, *made.optimizer);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("optimizer state of \"transformer.wpe.weight\" lacks exp_avg")));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/run_ranks.h"
#include "fsdp/fsdp.h"
#include "fsdp/test_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::HasSubstr;

// Whole tensors put together from every rank's shards, by key; bytes, so that comparison is of bits.
class Collector {
 public:
  void Add(const StateDict& state) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, value] : state.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr) continue;
      const int64_t itemsize = SizeOf(tensor->dtype);
      Whole& whole = wholes_[key.ToString()];
      whole.bytes.resize(tensor->shape.numel() * itemsize);
      for (const ShardedTensor::Shard& shard : tensor->shards) {
        if (tensor->replica == 0) whole.held.push_back(shard.interval);
        std::memcpy(whole.bytes.data() + shard.interval.begin * itemsize, shard.data.data(), shard.data.nbytes());
      }
    }
  }

  // Every tensor is held exactly once (replicas aside).
  void ExpectCovered() const {
    for (const auto& [name, whole] : wholes_) {
      const int64_t numel = static_cast<int64_t>(whole.bytes.size()) / 4;
      EXPECT_OK(CheckCover(whole.held, numel)) << name;
    }
  }

  size_t size() const { return wholes_.size(); }

  friend void ExpectSame(const Collector& a, const Collector& b) {
    ASSERT_EQ(a.wholes_.size(), b.wholes_.size());
    for (const auto& [name, whole] : a.wholes_) {
      ASSERT_EQ(b.wholes_.count(name), 1u) << name;
      EXPECT_TRUE(whole.bytes == b.wholes_.at(name).bytes) << name;
    }
  }

 private:
  struct Whole {
    std::string bytes;
    std::vector<Interval> held;
  };
  std::mutex mutex_;
  std::map<std::string, Whole> wholes_;  // guarded by mutex_ while ranks run
};

absl::StatusOr<StateDict> AllState(TestModel& trained) {
  ASSIGN_OR_RETURN(StateDict state, trained.model->GetStateDict());
  RETURN_IF_ERROR(trained.model->AddOptimStateDict(*trained.optimizer, state));
  return state;
}

// Model and optimizer state in both forms after two steps on `world_size` ranks.
void CollectBoth(int world_size, const FsdpOptions& options, Collector* full, Collector* sharded) {
  ASSERT_OK(RunRanks(world_size, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel trained, MakeTestModel(group, options));
    for (int step = 0; step < 2; ++step) RETURN_IF_ERROR(trained.Train(step));
    ASSIGN_OR_RETURN(const StateDict whole, AllState(trained));
    full->Add(whole);
    StateDictTypeGuard guard(*trained.model, ShardedStateDictConfig{.offload_to_cpu = true});
    ASSIGN_OR_RETURN(const StateDict chunks, AllState(trained));
    sharded->Add(chunks);
    return absl::OkStatus();
  }));
}

class StateDictTest : public testing::TestWithParam<int> {};

TEST_P(StateDictTest, FullAndShardedAgreeInEveryBitOfEveryState) {
  FsdpOptions original = BlockOptions();
  original.use_orig_params = true;
  for (const FsdpOptions& options : {BlockOptions(), original}) {
    Collector full, sharded;
    CollectBoth(GetParam(), options, &full, &sharded);
    full.ExpectCovered();
    sharded.ExpectCovered();
    EXPECT_GT(full.size(), 3 * 28u);  // a weight and three states each
    ExpectSame(full, sharded);
  }
}

// Trains two steps, takes the state, trains on; then gives the state to a new model and trains that on.
absl::Status LoadAndGoOn(std::shared_ptr<ProcessGroup> group, const StateDictConfig& config, Collector* uninterrupted,
                         Collector* resumed) {
  ASSIGN_OR_RETURN(TestModel first, MakeTestModel(group, BlockOptions()));
  for (int step = 0; step < 2; ++step) RETURN_IF_ERROR(first.Train(step));
  StateDict state;
  {
    StateDictTypeGuard guard(*first.model, config);
    ASSIGN_OR_RETURN(state, AllState(first));
  }
  FsdpOptions other = BlockOptions();
  other.init_seed = 99;
  other.use_orig_params = true;
  other.auto_wrap_policy = WrapPolicy();
  ASSIGN_OR_RETURN(TestModel second, MakeTestModel(group, other));
  {
    StateDictTypeGuard guard(*second.model, config);
    RETURN_IF_ERROR(second.model->LoadStateDict(state));
    RETURN_IF_ERROR(second.model->LoadOptimStateDict(state, *second.optimizer));
  }
  RETURN_IF_ERROR(first.Train(2));
  RETURN_IF_ERROR(second.Train(2));
  ASSIGN_OR_RETURN(const StateDict a, AllState(first));
  uninterrupted->Add(a);
  ASSIGN_OR_RETURN(const StateDict b, AllState(second));
  resumed->Add(b);
  return absl::OkStatus();
}

TEST_P(StateDictTest, LoadsUnderAnotherWrappingAndGoesOnWithEqualBits) {
  for (const StateDictConfig& config :
       {StateDictConfig(FullStateDictConfig{}), StateDictConfig(ShardedStateDictConfig{.offload_to_cpu = true})}) {
    Collector uninterrupted, resumed;
    ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) {
      return LoadAndGoOn(group, config, &uninterrupted, &resumed);
    }));
    ExpectSame(uninterrupted, resumed);
  }
}

TEST_P(StateDictTest, RestoreFillsLiveShardsInPlace) {
  Collector before, after;
  ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel source, MakeTestModel(group, BlockOptions()));
    RETURN_IF_ERROR(source.Train(0));
    ASSIGN_OR_RETURN(const StateDict whole, AllState(source));
    before.Add(whole);
    FsdpOptions other = BlockOptions();
    other.init_seed = 5;
    ASSIGN_OR_RETURN(TestModel target, MakeTestModel(group, other));
    RETURN_IF_ERROR(target.model->Restore(target.optimizer.get(), [&](StateDict& wanted) {
      EXPECT_EQ(wanted.type, StateDictType::kLocal);
      for (const auto& [key, value] : wanted.entries()) {
        const Tensor& from = whole.FindTensor(key)->shards.at(0).data;
        for (const auto& shard : std::get<ShardedTensor>(value).shards) {
          std::memcpy(shard.data.data(), from.View({from.numel()}).Slice(shard.interval).data(), shard.data.nbytes());
        }
      }
      return absl::OkStatus();
    }));
    ASSIGN_OR_RETURN(const StateDict restored, AllState(target));
    after.Add(restored);
    return absl::OkStatus();
  }));
  ExpectSame(before, after);
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, StateDictTest, testing::Values(1, 2, 3, 4));

TEST(StateDictFormTest, Rank0OnlyLeavesOthersEmpty) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    RETURN_IF_ERROR(made.Train(0));
    StateDictTypeGuard guard(*made.model,
                             StateDictSettings{FullStateDictConfig{true, true}, FullOptimStateDictConfig{true, true}});
    ASSIGN_OR_RETURN(const StateDict state, AllState(made));
    EXPECT_EQ(state.empty(), group->rank() != 0);
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, SharedParametersAppearOnceWithTheirAlias) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    EXPECT_TRUE(state.contains(StateKey::Model("transformer.wte.weight")));
    EXPECT_FALSE(state.contains(StateKey::Model("lm_head.weight")));
    EXPECT_EQ(state.aliases.at("lm_head.weight"), "transformer.wte.weight");
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, GuardRestoresTheSettings) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    {
      StateDictTypeGuard outer(*made.model, ShardedStateDictConfig{});
      EXPECT_EQ(made.model->state_dict_settings().type(), StateDictType::kSharded);
    }
    EXPECT_EQ(made.model->state_dict_settings().type(), StateDictType::kFull);
    return absl::OkStatus();
  }));
}

TEST(StateDictFormTest, ParamGroupsAreJsonInPyTorchsForm) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    RETURN_IF_ERROR(made.Train(0));
    ASSIGN_OR_RETURN(const StateDict state, AllState(made));
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
  ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
  ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
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
    ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    StateDict chunks;
    {
      StateDictTypeGuard guard(*made.model, ShardedStateDictConfig{});
      ASSIGN_OR_RETURN(chunks, made.model->GetStateDict());
    }
    return made.model->LoadStateDict(chunks);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("that a full state dict has")));
}

TEST(StateDictErrorTest, APartialOptimizerStateIsNamed) {
  const absl::Status status = RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    RETURN_IF_ERROR(made.Train(0));
    ASSIGN_OR_RETURN(const StateDict state, AllState(made));
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

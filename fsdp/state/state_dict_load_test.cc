// SPDX-License-Identifier: Apache-2.0
//
// Loading a model's state dict: only from rank 0, with buffers, other dtypes, and replicas.
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/nn/linear.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A linear map with buffers: running, in bfloat16 since some forward cast it; table, of integers; and a cache that no
// state dict contains.
class Buffered final : public Module {
 public:
  explicit Buffered(Device& device) {
    inner_ = AddChild("inner", std::make_unique<Linear>(5, 3, Initializer::Normal(0, 1)));
    running_ = AddBuffer("running", *Tensor::Empty(device, DType::kFloat32, {3}));
    for (int i = 0; i < 3; ++i) running_->data.data_as<float>()[i] = 0.5f * static_cast<float>(i);
    table_ = AddBuffer("table", *Tensor::Empty(device, DType::kInt64, {2}));
    table_->data.data_as<int64_t>()[0] = 40;
    table_->data.data_as<int64_t>()[1] = 41;
    AddBuffer("cache", *Tensor::Empty(device, DType::kFloat32, {9}), BufferPersistence::kNonPersistent);
  }
  std::string_view type_name() const override { return "Buffered"; }

  // As mixed precision with a buffer_dtype leaves it.
  absl::Status CastRunning(Device& device) {
    FSDP_ASSIGN_OR_RETURN(const Tensor low, Tensor::Empty(device, DType::kBFloat16, {3}));
    const uint16_t values[] = {0, 0x3F00, 0x3F80};  // 0, 0.5, 1
    std::memcpy(low.data(), values, sizeof(values));
    running_->data = low;
    return absl::OkStatus();
  }

  const Tensor& running() const { return running_->data; }
  const Tensor& table() const { return table_->data; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& x, Tape& tape) override { return inner_->Forward(x, tape); }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad, Tape& tape) override { return inner_->Backward(grad, tape); }

  Linear* inner_;
  std::shared_ptr<ModuleBuffer> running_, table_;
};

struct BufferedModel {
  std::unique_ptr<FullyShardedDataParallel> model;
  Buffered* module = nullptr;
};

absl::StatusOr<BufferedModel> MakeBuffered(std::shared_ptr<ProcessGroup> group) {
  auto module = std::make_unique<Buffered>(*group->device());
  BufferedModel made;
  made.module = module.get();
  FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(module), std::move(group)));
  return made;
}

std::vector<std::string> Names(const StateDict& state) {
  std::vector<std::string> names;
  for (const auto& [key, value] : state.entries()) names.push_back(key.fqn);
  return names;
}

TEST(StateDictBufferTest, PersistentBuffersAreThereWholeAndLive) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(BufferedModel made, MakeBuffered(group));
    for (const StateDictSettings& settings :
         {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
          StateDictSettings(LocalStateDictConfig{})}) {
      StateDictTypeGuard guard(*made.model, settings);
      FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
      EXPECT_THAT(Names(state), ElementsAre("inner.weight", "running", "table"));
      const ShardedTensor& table = *state.FindTensor(StateKey::Model("table"));
      EXPECT_EQ(table.dtype, DType::kInt64);
      EXPECT_EQ(table.replica, group->rank());
      EXPECT_EQ(table.shards.at(0).data.data(), made.module->table().data());
    }
    return absl::OkStatus();
  }));
}

TEST(StateDictBufferTest, CastBuffersAreSavedInTheirOriginalDtypeButInLocal) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(BufferedModel made, MakeBuffered(group));
    FSDP_RETURN_IF_ERROR(made.module->CastRunning(*group->device()));
    FSDP_ASSIGN_OR_RETURN(const StateDict full, made.model->GetStateDict());
    const ShardedTensor& original = *full.FindTensor(StateKey::Model("running"));
    EXPECT_EQ(original.dtype, DType::kFloat32);
    EXPECT_EQ(original.shards.at(0).data.data_as<float>()[1], 0.5f);
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict local, made.model->GetStateDict());
    EXPECT_EQ(local.FindTensor(StateKey::Model("running"))->shards.at(0).data.data(), made.module->running().data());
    return absl::OkStatus();
  }));
}

TEST(StateDictBufferTest, OffloadedBuffersAreCopies) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(BufferedModel made, MakeBuffered(group));
    StateDictTypeGuard guard(*made.model, FullStateDictConfig{.offload_to_cpu = true});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    const Tensor& copy = state.FindTensor(StateKey::Model("table"))->shards.at(0).data;
    EXPECT_NE(copy.data(), made.module->table().data());
    EXPECT_EQ(copy.data_as<int64_t>()[1], 41);
    return absl::OkStatus();
  }));
}

TEST(StateDictBufferTest, LoadsComeBackIntoTheLiveBuffers) {
  for (const bool from_rank0 : {false, true}) {
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(BufferedModel source, MakeBuffered(group));
      source.module->table().data_as<int64_t>()[1] = 99;
      FSDP_ASSIGN_OR_RETURN(const StateDict full, source.model->GetStateDict());
      FSDP_ASSIGN_OR_RETURN(BufferedModel target, MakeBuffered(group));
      FSDP_RETURN_IF_ERROR(target.module->CastRunning(*group->device()));
      const StateDict nothing;
      const bool here = !from_rank0 || group->rank() == 0;
      FSDP_RETURN_IF_ERROR(
          target.model->LoadStateDict(here ? full : nothing, {.broadcast_from_rank0 = from_rank0}).status());
      EXPECT_EQ(target.module->table().data_as<int64_t>()[1], 99);
      EXPECT_EQ(target.module->running().data_as<uint16_t>()[2], 0x3F80);  // 1 in bfloat16
      return absl::OkStatus();
    }));
  }
}

TEST(LoadStateDictTest, ComesFromRank0AloneWhenAskedTo) {
  StateCollector before, after;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel source, MakeTestModel(group, BlockOptions()));
    FsdpOptions other = BlockOptions();
    other.init_seed = 5;
    FSDP_ASSIGN_OR_RETURN(TestModel target, MakeTestModel(group, other));
    StateDictTypeGuard guard(*source.model, FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, source.model->GetStateDict());
    EXPECT_EQ(state.empty(), group->rank() != 0);
    FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys,
                          target.model->LoadStateDict(state, {.broadcast_from_rank0 = true}));
    EXPECT_TRUE(keys.empty());
    FSDP_ASSIGN_OR_RETURN(const StateDict loaded, target.model->GetStateDict());
    after.Add(loaded);
    before.Add(state);
    return absl::OkStatus();
  }));
  ExpectSame(before, after);
}

TEST(LoadStateDictTest, OnlyAFullStateCanComeFromRank0) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    StateDictTypeGuard guard(*made.model, ShardedStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    return made.model->LoadStateDict(state, {.broadcast_from_rank0 = true}).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("broadcast_from_rank0 is for FULL")));
}

TEST(LoadStateDictTest, ConvertsFloatsAndRefusesIntegers) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(BufferedModel made, MakeBuffered(group));
    FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
    FSDP_ASSIGN_OR_RETURN(const Tensor low, Tensor::Empty(*group->device(), DType::kBFloat16, {3, 5}));
    for (int i = 0; i < 15; ++i) low.data_as<uint16_t>()[i] = 0x3F00;
    state.Set(StateKey::Model("inner.weight"), ShardedTensor::Whole(low));
    FSDP_RETURN_IF_ERROR(made.model->LoadStateDict(state));
    for (const ShardedParameter* parameter : made.model->parameters()) {
      for (int64_t i = 0; i < parameter->interval.size(); ++i) EXPECT_EQ(parameter->data.data_as<float>()[i], 0.5f);
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor whole, Tensor::Empty(*group->device(), DType::kInt32, {3, 5}));
    state.Set(StateKey::Model("inner.weight"), ShardedTensor::Whole(whole));
    EXPECT_THAT(made.model->LoadStateDict(state),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("\"model/inner.weight\": dtype int32 in the state dict cannot become float32")));
    return absl::OkStatus();
  }));
}

TEST(LoadStateDictTest, TakesASharedParameterUnderAnyOfItsNames) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    StateDict renamed;
    for (const auto& [key, value] : state.entries()) {
      renamed.Set(key.fqn == "transformer.wte.weight" ? StateKey::Model("lm_head.weight") : key, value);
    }
    return made.model->LoadStateDict(renamed);
  }));
}

// Hybrid: two shard groups of two ranks hold the same state.
class HybridStateTest : public testing::TestWithParam<bool> {
 protected:
  // On four ranks, as one group that is split, or as a pair.
  static absl::StatusOr<TestModel> Make(std::shared_ptr<ProcessGroup> group, uint64_t seed, bool as_pair) {
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.init_seed = seed;
    if (!as_pair) {
      options.shard_group_size = 2;
      return MakeTestModel(group, options);
    }
    const int block = group->rank() / 2, place = group->rank() % 2;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> shard, group->Split(block, place));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> replicate, group->Split(place, block));
    return MakeTestModel(
        std::pair(std::shared_ptr<ProcessGroup>(std::move(shard)), std::shared_ptr<ProcessGroup>(std::move(replicate))),
        options);
  }
};

TEST_P(HybridStateTest, EveryFormAgreesInEveryBitAndCopiesAreNumbered) {
  StateCollector full, sharded, local;
  ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, Make(group, 11, GetParam()));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, made.AllState());
    full.Add(whole);
    {
      StateDictTypeGuard guard(*made.model, ShardedStateDictConfig{});
      FSDP_ASSIGN_OR_RETURN(const StateDict chunks, made.AllState());
      EXPECT_EQ(chunks.FindTensor(StateKey::Model("transformer.wpe.weight"))->replica, group->rank() / 2);
      sharded.Add(chunks);
    }
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict slices, made.AllState());
    local.Add(slices);
    return absl::OkStatus();
  }));
  full.ExpectCovered();
  sharded.ExpectCovered();
  local.ExpectCovered();
  ExpectSame(full, sharded);
  ExpectSame(full, local);
}

TEST_P(HybridStateTest, LoadsEveryFormAndRank0Alone) {
  for (const StateDictSettings& settings :
       {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
        StateDictSettings(LocalStateDictConfig{}),
        StateDictSettings(FullStateDictConfig{.rank0_only = true}, FullOptimStateDictConfig{.rank0_only = true})}) {
    StateCollector before, after;
    ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel source, Make(group, 11, GetParam()));
      FSDP_RETURN_IF_ERROR(source.Train(0));
      FSDP_ASSIGN_OR_RETURN(TestModel target, Make(group, 5, GetParam()));
      StateDict state;
      {
        StateDictTypeGuard from(*source.model, settings);
        StateDictTypeGuard to(*target.model, settings);
        FSDP_ASSIGN_OR_RETURN(state, source.AllState());
        const bool alone = std::holds_alternative<FullStateDictConfig>(settings.state_dict_config()) && state.empty();
        const bool rank0_only = settings.type() == StateDictType::kFull &&
                                std::get<FullStateDictConfig>(settings.state_dict_config()).rank0_only;
        EXPECT_EQ(alone, rank0_only && group->rank() != 0);
        FSDP_RETURN_IF_ERROR(target.model->LoadStateDict(state, {.broadcast_from_rank0 = rank0_only}).status());
        FSDP_RETURN_IF_ERROR(target.model->LoadOptimStateDict(state, *target.optimizer));
      }
      FSDP_ASSIGN_OR_RETURN(const StateDict a, source.AllState());
      before.Add(a);
      FSDP_ASSIGN_OR_RETURN(const StateDict b, target.AllState());
      after.Add(b);
      return absl::OkStatus();
    }));
    ExpectSame(before, after);
  }
}

INSTANTIATE_TEST_SUITE_P(SplitAndPair, HybridStateTest, testing::Bool());

TEST(LocalOfAMeshTest, IsRefusedAsInPyTorch) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<const DeviceMesh> mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(mesh, BlockOptions()));
    StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    StateDict state;
    for (const absl::Status& status :
         {made.model->GetStateDict().status(), made.model->AddOptimStateDict(*made.optimizer, state),
          made.model->LoadStateDict(state), made.model->OptimStateDictToLoad(state, *made.optimizer).status()}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("LOCAL state dict of a model that was made with a DeviceMesh")));
    }
    return absl::OkStatus();
  });
  EXPECT_OK(status);
}

// What optim_state_dict_to_load gives for optimizer.load_state_dict is the only LOCAL state that a model of a mesh
// takes.
TEST(LocalOfAMeshTest, SlicesForTheOptimizerAreLoaded) {
  for (const std::vector<int>& sizes : {std::vector<int>{4}, std::vector<int>{2, 2}}) {
    FsdpOptions options = BlockOptions();
    if (sizes.size() == 2) options.sharding_strategy = ShardingStrategy::kHybridShard;
    for (const StateDictSettings& settings :
         {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{})}) {
      StateCollector before, after;
      ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        const std::vector<std::string> names = {"replicate", "shard"};
        FSDP_ASSIGN_OR_RETURN(
            const std::shared_ptr<const DeviceMesh> mesh,
            DeviceMesh::Create(group, sizes, std::vector<std::string>(names.end() - sizes.size(), names.end())));
        FSDP_ASSIGN_OR_RETURN(TestModel source, MakeTestModel(mesh, options));
        FSDP_RETURN_IF_ERROR(source.Train(0));
        FSDP_ASSIGN_OR_RETURN(TestModel target, MakeTestModel(mesh, options));
        StateDict state, loaded;
        const StateDictTypeGuard from(*source.model, settings);
        const StateDictTypeGuard to(*target.model, settings);
        FSDP_RETURN_IF_ERROR(source.model->AddOptimStateDict(*source.optimizer, state));
        FSDP_ASSIGN_OR_RETURN(const StateDict slices, target.model->OptimStateDictToLoad(state, *target.optimizer));
        {
          const StateDictTypeGuard local(*target.model, LocalStateDictConfig{});
          FSDP_RETURN_IF_ERROR(target.model->LoadOptimStateDict(slices, *target.optimizer));
        }
        FSDP_RETURN_IF_ERROR(target.model->AddOptimStateDict(*target.optimizer, loaded));
        before.Add(state);
        after.Add(loaded);
        return absl::OkStatus();
      }));
      before.ExpectCovered();
      ExpectSame(before, after);
    }
  }
}

// Saved under one world size, strategy, wrapping and layout of the flat parameter, loaded under another.
TEST(StateDictReshardTest, AFullStateGoesFromAnyModelIntoAnyOther) {
  FsdpOptions first = BlockOptions();
  FsdpOptions second = BlockOptions();
  second.sharding_strategy = ShardingStrategy::kShardGradOp;
  second.use_orig_params = true;
  second.auto_wrap_policy = WrapPolicy();
  FsdpOptions third = BlockOptions();
  third.sharding_strategy = ShardingStrategy::kNoShard;
  const std::pair<int, FsdpOptions> models[] = {{3, first}, {2, second}, {4, third}, {1, first}};
  StateDict whole;  // host memory outlives the ranks that made it
  StateCollector saved;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, first));
    for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(made.Train(step));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
    if (group->rank() == 0) {
      whole = state;
      saved.Add(state);
    }
    return absl::OkStatus();
  }));
  for (const auto& [world_size, options] : models) {
    StateCollector loaded;
    ASSERT_OK(RunRanks(world_size, [&, size = world_size](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      EXPECT_EQ(group->size(), size);
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      FSDP_RETURN_IF_ERROR(made.model->LoadStateDict(whole));
      FSDP_RETURN_IF_ERROR(made.model->LoadOptimStateDict(whole, *made.optimizer));
      StateDictTypeGuard guard(*made.model, ShardedStateDictConfig{});
      FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
      loaded.Add(state);
      return absl::OkStatus();
    }));
    ExpectSame(saved, loaded);
  }
}

}  // namespace
}  // namespace fsdp

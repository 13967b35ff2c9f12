// SPDX-License-Identifier: Apache-2.0
//
// Values that are loaded into a plain module before it is wrapped are the wrapped model's values.
#include "fsdp/fsdp/module_state.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

void ExpectSameTensors(const StateDict& got, const StateDict& wanted) {
  EXPECT_EQ(got.aliases, wanted.aliases);
  ASSERT_EQ(got.entries().size(), wanted.entries().size());
  for (const auto& [key, value] : wanted.entries()) {
    const ShardedTensor* found = got.FindTensor(key);
    ASSERT_NE(found, nullptr) << key.ToString();
    const Tensor &mine = found->shards.at(0).data, &theirs = std::get<ShardedTensor>(value).shards.at(0).data;
    ASSERT_EQ(mine.nbytes(), theirs.nbytes()) << key.ToString();
    EXPECT_EQ(std::memcmp(mine.data(), theirs.data(), mine.nbytes()), 0) << key.ToString();
  }
}

// A FULL state of a GPT-2 that took two steps; its embedding is also its head.
absl::StatusOr<StateDict> TrainedState(const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(TestModel trained, MakeTestModel(group, BlockOptions()));
  for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(trained.Train(step));
  return trained.model->GetStateDict();
}

TEST(ModuleStateTest, WhatEveryRankLoadsIsWhatWrapShards) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict wanted, TrainedState(group));
    for (const bool has_memory : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
      if (has_memory) FSDP_RETURN_IF_ERROR(module->Materialize(*group->device(), 5));
      FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, LoadModuleState(*module, wanted, *group->device()));
      EXPECT_TRUE(keys.empty());
      FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, BlockOptions()));
      FSDP_ASSIGN_OR_RETURN(const StateDict got, model->GetStateDict());
      ExpectSameTensors(got, wanted);
    }
    return absl::OkStatus();
  }));
}

// The example of PyTorch's FullStateDictConfig.
TEST(ModuleStateTest, WhatRank0AloneLoadsReachesAllBySyncModuleStates) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict wanted, TrainedState(group));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    if (group->rank() == 0) {
      FSDP_RETURN_IF_ERROR(LoadModuleState(*module, wanted, *group->device()).status());
    }
    FsdpOptions options = BlockOptions();
    options.sync_module_states = true;
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    FSDP_ASSIGN_OR_RETURN(const StateDict got, model->GetStateDict());
    ExpectSameTensors(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(ModuleStateTest, FullyShardTakesValuesThatAreLoadedBeforeTheRootsFirstUse) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard trained, TestFullyShard::Make(group, {.init_seed = 3}));
    FSDP_ASSIGN_OR_RETURN(const StateDict wanted, trained.root->GetFullStateDict());
    FSDP_ASSIGN_OR_RETURN(TestFullyShard made, TestFullyShard::Make(group, {}));
    FSDP_RETURN_IF_ERROR(LoadModuleState(*made.model, wanted, *group->device()).status());
    FSDP_ASSIGN_OR_RETURN(const StateDict got, made.root->GetFullStateDict());
    ExpectSameTensors(got, wanted);
    EXPECT_THAT(LoadModuleState(*made.model, wanted, *group->device()).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is sharded: expected a plain module")));
    EXPECT_THAT(GetModuleState(*made.model).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("module \"\", a Sequential, is sharded")));
    return absl::OkStatus();
  }));
}

TEST(ModuleStateTest, ACheckpointIsLoadedIntoTheMemoryThatItsStateAliases) {
  std::string pattern = testing::TempDir() + "/module-XXXXXX";
  const std::string root = mkdtemp(pattern.data());
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict wanted, TrainedState(group));
    FSDP_ASSIGN_OR_RETURN(const std::string path, SaveCheckpoint(wanted, root, 2, *group));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    FSDP_RETURN_IF_ERROR(module->Materialize(*group->device(), 5));
    FSDP_ASSIGN_OR_RETURN(StateDict live, GetModuleState(*module));
    FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, live));
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const StateDict got, model->GetStateDict());
    ExpectSameTensors(got, wanted);
    return absl::OkStatus();
  }));
}

// A layer [2, 3] with a buffer, whose values are 1.
class OnePlainLayer : public testing::Test {
 protected:
  OnePlainLayer() {
    weight_ = module_.AddUnused("weight", {2, 3});
    module_.AddSequence()->AddAlias("tied", weight_);
    Tensor counts = *Tensor::Empty(*device_, DType::kInt64, {1});
    counts.data_as<int64_t>()[0] = 1;
    module_.AddState("counts", counts);
    module_.AssignNames();
    EXPECT_OK(module_.Materialize(*device_, 0));
  }

  // Six elements of 2.5, and the integer 7.
  StateDict Twos(DType dtype = DType::kFloat32, const std::string& name = "weight", const Shape& shape = {2, 3}) {
    Tensor values = *Tensor::Empty(*device_, dtype, shape);
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (dtype == DType::kFloat32) values.data_as<float>()[i] = 2.5f;
      if (dtype == DType::kBFloat16) values.data_as<uint16_t>()[i] = 0x4020;  // 2.5
    }
    Tensor counts = *Tensor::Empty(*device_, DType::kInt64, {1});
    counts.data_as<int64_t>()[0] = 7;
    StateDict state;
    state.Set(StateKey::Model(name), ShardedTensor::Whole(values));
    state.Set(StateKey::Model("counts"), ShardedTensor::Whole(counts));
    return state;
  }

  void ExpectValues(float weight, int64_t counts) {
    for (int i = 0; i < 6; ++i) EXPECT_EQ(weight_->data.data_as<float>()[i], weight);
    EXPECT_EQ(module_.own_buffers()[0].second->data.data_as<int64_t>()[0], counts);
  }

  const std::shared_ptr<Device> device_ = CreateHostDevice();
  TestSequence module_;
  std::shared_ptr<Parameter> weight_;
};

using ModuleStateErrorTest = OnePlainLayer;
using ModuleStateNamesTest = OnePlainLayer;

TEST_F(ModuleStateNamesTest, FloatsAreConvertedAndBuffersLoaded) {
  ASSERT_OK(LoadModuleState(module_, Twos(DType::kBFloat16), *device_));
  ExpectValues(2.5f, 7);
}

TEST_F(ModuleStateNamesTest, ASharedParameterIsFoundUnderAnyOfItsNames) {
  ASSERT_OK(LoadModuleState(module_, Twos(DType::kFloat32, "0.tied"), *device_));
  ExpectValues(2.5f, 7);
}

TEST_F(ModuleStateNamesTest, NotStrictReturnsNamesAndLoadsTheRest) {
  ASSERT_OK_AND_ASSIGN(const IncompatibleKeys keys,
                       LoadModuleState(module_, Twos(DType::kFloat32, "other"), *device_, {.strict = false}));
  EXPECT_THAT(keys.missing_keys, ElementsAre("weight"));
  EXPECT_THAT(keys.unexpected_keys, ElementsAre("other"));
  ExpectValues(1, 7);
}

TEST_F(ModuleStateErrorTest, ChangesNothingAndNamesTheTensor) {
  const auto refused = [&](const StateDict& state, const std::string& message) {
    EXPECT_THAT(LoadModuleState(module_, state, *device_).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    ExpectValues(1, 1);
  };
  refused(Twos(DType::kFloat32, "other"), "other");
  refused(Twos(DType::kFloat32, "weight", {3, 2}),
          "tensor \"weight\": shape [3, 2] in the state dict != [2, 3] in the module");
  refused(Twos(DType::kInt32), "dtype int32 in the state dict cannot become float32");
  StateDict part = Twos();
  ShardedTensor half = *part.FindTensor(StateKey::Model("weight"));
  half.shards[0].interval = {0, 3};
  half.shards[0].data = half.shards[0].data.Slice({0, 3});
  part.Set(StateKey::Model("weight"), half);
  refused(part, "has not all of its elements [0, 6) in one piece");
  EXPECT_THAT(LoadModuleState(module_, Twos(), *device_, {.broadcast_from_rank0 = true}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrap with sync_module_states instead")));
  ExpectValues(1, 1);
}

TEST_F(ModuleStateErrorTest, AParameterWithoutMemoryIsInNoState) {
  weight_->data = Tensor();
  EXPECT_THAT(GetModuleState(module_).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("\"weight\" has no memory"), HasSubstr("Module::Materialize"))));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// State dicts and checkpoints of models that are cut both ways: by tensors over "tp", and by FSDP over "dp". Whole
// tensors under their own names in every form, and from one mesh to any other without a changed bit.
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/optim_forms.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/fsdp/tensor_parallel/parallel_model_testutil.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

using Bytes = std::map<std::string, std::string>;

int RanksOf(const std::vector<int>& sizes) {
  int ranks = 1;
  for (const int size : sizes) ranks *= size;
  return ranks;
}

std::string Name(const std::vector<int>& sizes) {
  std::string name;
  for (const int size : sizes) name += (name.empty() ? "" : "x") + std::to_string(size);
  return name;
}

// Whole tensors of a FULL state.
Bytes WholesOf(const StateDict& state) {
  Bytes bytes;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const ShardedTensor::Shard& shard = tensor->shards.at(0);
    EXPECT_EQ(shard.interval, (Interval{0, tensor->shape.numel()})) << key.ToString();
    bytes[key.ToString()].assign(shard.data.data_as<const char>(), shard.data.nbytes());
  }
  return bytes;
}

const FullStateDictConfig kFull;

absl::StatusOr<Bytes> WholeState(ParallelModel& made) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state, made.State({kFull, FullOptimStateDictConfig()}));
  return WholesOf(state);
}

StateDictSettings SettingsOf(StateDictType type) {
  if (type == StateDictType::kSharded) return ShardedStateDictConfig{.offload_to_cpu = true};
  return {FullStateDictConfig{.offload_to_cpu = true, .rank0_only = true},
          FullOptimStateDictConfig{.offload_to_cpu = true, .rank0_only = true}};
}

// A model on a mesh, trained for two steps.
absl::Status OnMesh(const std::vector<int>& sizes, TestApi api, int steps,
                    const std::function<absl::Status(ParallelModel& made)>& then) {
  return RunRanks(RanksOf(sizes), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(ParallelModel made, ParallelModel::Make(group, sizes, api));
    for (int step = 0; step < steps; ++step) FSDP_RETURN_IF_ERROR(made.Train(step).status());
    return then(made);
  });
}

using Mesh = std::tuple<std::vector<int>, TestApi>;
class ParallelStateTest : public testing::TestWithParam<Mesh> {};

TEST_P(ParallelStateTest, ShardedPartsAndFullTensorsAgreeInEveryBitAndCoverEachElementOnce) {
  StateCollector full, sharded;
  ASSERT_OK(OnMesh(std::get<0>(GetParam()), std::get<1>(GetParam()), 2, [&](ParallelModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, made.State(SettingsOf(StateDictType::kFull)));
    full.Add(whole);
    EXPECT_EQ(whole.entries().empty(), made.mesh->all()->rank() != 0);
    FSDP_ASSIGN_OR_RETURN(const StateDict parts, made.State(SettingsOf(StateDictType::kSharded)));
    sharded.Add(parts);
    const ShardedTensor* down = parts.FindTensor(StateKey::Model("5.weight"));
    EXPECT_TRUE(down != nullptr && down->shape == Shape({6, 24}) && down->shards.size() <= 1);
    return absl::OkStatus();
  }));
  full.ExpectCovered();
  sharded.ExpectCovered();
  EXPECT_GT(full.size(), 40u);
  ExpectSame(full, sharded);
}

TEST_P(ParallelStateTest, LoadsWhatItGaveInEveryForm) {
  for (const bool from_rank0 : {false, true}) {
    for (const StateDictType type : {StateDictType::kFull, StateDictType::kSharded}) {
      if (from_rank0 && type == StateDictType::kSharded) continue;
      ASSERT_OK(OnMesh(std::get<0>(GetParam()), std::get<1>(GetParam()), 2, [&](ParallelModel& made) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const Bytes before, WholeState(made));
        const StateDictSettings all = {kFull, FullOptimStateDictConfig()};
        const StateDictSettings settings = type == StateDictType::kSharded || from_rank0 ? SettingsOf(type) : all;
        FSDP_ASSIGN_OR_RETURN(const StateDict state, made.State(settings));
        FSDP_RETURN_IF_ERROR(made.Train(2).status());
        FSDP_ASSIGN_OR_RETURN(const Bytes trained, WholeState(made));
        EXPECT_NE(trained, before);
        const StateDictTypeGuard guard(*made.model, settings);
        const LoadStateDictOptions options = {.broadcast_from_rank0 = from_rank0};
        FSDP_RETURN_IF_ERROR(made.model->LoadStateDict(state, options).status());
        FSDP_RETURN_IF_ERROR(made.model->LoadOptimStateDict(state, *made.optimizer, options).status());
        FSDP_ASSIGN_OR_RETURN(const Bytes after, WholeState(made));
        EXPECT_EQ(after, before);
        return absl::OkStatus();
      }));
    }
  }
}

TEST_P(ParallelStateTest, StreamsTheFullStateThatItDescribes) {
  ASSERT_OK(OnMesh(std::get<0>(GetParam()), std::get<1>(GetParam()), 1, [&](ParallelModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Bytes expected, WholeState(made));
    FSDP_ASSIGN_OR_RETURN(const StateDict described, made.model->DescribeFullState(made.optimizer.get()));
    Bytes streamed;
    FSDP_RETURN_IF_ERROR(made.model->StreamFullState(made.optimizer.get(), [&](const StateDict& part) {
      for (const auto& [name, bytes] : WholesOf(part)) streamed[name] = bytes;
      for (const auto& [key, value] : part.entries()) {
        const ShardedTensor* tensor = described.FindTensor(key);
        EXPECT_TRUE(tensor != nullptr && tensor->shape == std::get<ShardedTensor>(value).shape) << key.ToString();
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(streamed, made.mesh->all()->rank() == 0 ? expected : Bytes());
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Meshes, ParallelStateTest,
                         testing::Values(Mesh({2, 2}, TestApi::kFsdp1), Mesh({2, 2}, TestApi::kFsdp2),
                                         Mesh({1, 3}, TestApi::kFsdp1), Mesh({3, 2}, TestApi::kFsdp1),
                                         Mesh({1, 2}, TestApi::kFsdp2), Mesh({2, 2, 2}, TestApi::kFsdp1),
                                         Mesh({2, 1, 2}, TestApi::kFsdp2)));

TEST(ParallelLocalStateTest, IsRefusedForModelAndOptimizer) {
  ASSERT_OK(OnMesh({2, 2}, TestApi::kFsdp1, 1, [](ParallelModel& made) -> absl::Status {
    const StateDictTypeGuard guard(*made.model, LocalStateDictConfig{});
    StateDict state;
    for (const absl::Status& status : {made.model->GetStateDict().status(), made.model->LoadStateDict(state),
                                       made.model->AddOptimStateDict(*made.optimizer, state)}) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("made with a DeviceMesh is not supported")));
    }
    EXPECT_THAT(made.model->LoadOptimStateDict(state, *made.optimizer),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with tensor parallelism is not supported")));
    return absl::OkStatus();
  }));
}

// Slices of a flat parameter would be parts of parts, which no state dict describes.
TEST(ParallelLocalStateTest, SlicesForTheOptimizerAreRefusedFromEveryForm) {
  ASSERT_OK(OnMesh({2, 2}, TestApi::kFsdp1, 1, [](ParallelModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict full, made.State({kFull, FullOptimStateDictConfig()}));
    FSDP_ASSIGN_OR_RETURN(const StateDict sharded, made.State(ShardedStateDictConfig()));
    for (const absl::Status& status :
         {ShardFullOptimStateDict(*made.model, full).status(), ScatterFullOptimStateDict(*made.model, &full).status(),
          FlattenShardedOptimStateDict(*made.model, sharded).status(),
          made.model->OptimStateDictToLoad(full, *made.optimizer).status()}) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("with tensor parallelism")));
    }
    return absl::OkStatus();
  }));
}

// The FSDP2 module's own state dict is SHARDED too, and loads back.
TEST(ParallelFsdpModuleTest, ItsShardedStateHasWholeNamesAndLoads) {
  StateCollector sharded, full;
  ASSERT_OK(OnMesh({2, 2}, TestApi::kFsdp2, 1, [&](ParallelModel& made) -> absl::Status {
    FsdpModule* root = FsdpModule::Of(made.model->module());
    FSDP_ASSIGN_OR_RETURN(const StateDict parts, root->GetStateDict());
    EXPECT_EQ(parts.type, StateDictType::kSharded);
    sharded.Add(parts);
    FSDP_ASSIGN_OR_RETURN(const StateDict wholes, root->GetFullStateDict());
    full.Add(wholes);
    FSDP_RETURN_IF_ERROR(made.Train(1).status());
    FSDP_RETURN_IF_ERROR(root->LoadStateDict(parts, {}).status());
    FSDP_ASSIGN_OR_RETURN(const StateDict after, root->GetFullStateDict());
    EXPECT_EQ(WholesOf(after), WholesOf(wholes));
    return absl::OkStatus();
  }));
  sharded.ExpectCovered();
  ExpectSame(sharded, full);
}

// A new directory under the test's own.
std::string NewRoot() {
  std::string pattern = testing::TempDir() + "/parallel-XXXXXX";
  return mkdtemp(pattern.data());
}

// Everything that the checkpoint at `path` holds, whole, as a program reads it that does not know meshes.
absl::StatusOr<Bytes> ReadWhole(const std::string& path) {
  FSDP_ASSIGN_OR_RETURN(StateDict wanted, DescribeCheckpoint(path));
  std::map<std::string, Tensor> memory;
  StateDict filled;
  static const std::shared_ptr<Device> device = CreateHostDevice();
  for (const auto& [key, value] : wanted.entries()) {
    const auto* described = std::get_if<ShardedTensor>(&value);
    if (described == nullptr) continue;
    FSDP_ASSIGN_OR_RETURN(const Tensor data, Tensor::Empty(*device, described->dtype, described->shape));
    filled.Set(key, ShardedTensor::Whole(data.View({data.numel()})));
    ShardedTensor whole = *filled.FindTensor(key);
    whole.shape = described->shape;
    filled.Set(key, whole);
  }
  FSDP_RETURN_IF_ERROR(LoadCheckpoint(path, filled));
  return WholesOf(filled);
}

// From each mesh to the next, restoring there, training nothing, and saving again.
class ParallelCheckpointTest : public testing::TestWithParam<std::tuple<StateDictType, TestApi>> {};

TEST_P(ParallelCheckpointTest, GoesFromAnyMeshToAnyOtherWithoutAChangedBit) {
  const auto& [type, api] = GetParam();
  const std::vector<std::vector<int>> meshes = {{2, 2}, {4, 1}, {1, 2}, {3, 1}, {2, 3}, {1, 2, 2}, {1, 1}, {2, 2}};
  const std::string root = NewRoot();
  std::string path;
  Bytes first;
  for (size_t i = 0; i < meshes.size(); ++i) {
    std::string saved;
    ASSERT_OK(OnMesh(meshes[i], api, i == 0 ? 3 : 0, [&](ParallelModel& made) -> absl::Status {
      if (i > 0) {
        FSDP_RETURN_IF_ERROR(
            made.model->Restore(made.optimizer.get(), [&](StateDict& wanted) { return LoadCheckpoint(path, wanted); }));
      }
      FSDP_ASSIGN_OR_RETURN(const Bytes state, WholeState(made));
      if (i == 0 && made.mesh->all()->rank() == 0) first = state;
      if (i > 0) {
        EXPECT_EQ(state, first) << Name(meshes[i]);
      }
      FSDP_ASSIGN_OR_RETURN(const StateDict part, made.State(SettingsOf(type)));
      FSDP_ASSIGN_OR_RETURN(const std::string done,
                            SaveCheckpoint(part, root, static_cast<int64_t>(i), *made.mesh->all()));
      if (made.mesh->all()->rank() == 0) saved = done;
      return absl::OkStatus();
    })) << Name(meshes[i]);
    path = saved;
    EXPECT_OK(VerifyCheckpoint(path)) << path;
    EXPECT_THAT(ReadWhole(path), IsOkAndHolds(first)) << path;  // as our format
    if (type != StateDictType::kFull) continue;
    EXPECT_THAT(ReadWhole(path + "/checkpoint.h5"), IsOkAndHolds(first)) << path;  // as any HDF5 file
  }
}

// With the same order of sums, the last restored model continues as if it had not been interrupted.
TEST_P(ParallelCheckpointTest, AResumedRunOnTheSameMeshGoesOnWithEqualBits) {
  const auto& [type, api] = GetParam();
  const std::string root = NewRoot();
  std::string path;
  float expected = 0;
  ASSERT_OK(OnMesh({2, 2}, api, 2, [&](ParallelModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const StateDict part, made.State(SettingsOf(type)));
    FSDP_ASSIGN_OR_RETURN(const std::string done, SaveCheckpoint(part, root, 2, *made.mesh->all()));
    FSDP_RETURN_IF_ERROR(made.Train(2).status());
    FSDP_ASSIGN_OR_RETURN(const float loss, made.Train(3));
    if (made.mesh->all()->rank() == 0) std::tie(path, expected) = std::tuple(done, loss);
    return absl::OkStatus();
  }));
  ASSERT_OK(OnMesh({2, 2}, api, 0, [&](ParallelModel& made) -> absl::Status {
    FSDP_RETURN_IF_ERROR(
        made.model->Restore(made.optimizer.get(), [&](StateDict& wanted) { return LoadCheckpoint(path, wanted); }));
    FSDP_RETURN_IF_ERROR(made.Train(2).status());
    FSDP_ASSIGN_OR_RETURN(const float loss, made.Train(3));
    if (made.mesh->all()->rank() == 0) {
      EXPECT_EQ(loss, expected);
    }
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, ParallelCheckpointTest,
                         testing::Combine(testing::Values(StateDictType::kFull, StateDictType::kSharded),
                                          testing::Values(TestApi::kFsdp1, TestApi::kFsdp2)));

}  // namespace
}  // namespace fsdp

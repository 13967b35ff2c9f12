// SPDX-License-Identifier: Apache-2.0
//
// First values of models with tensor parallelism: from rank 0 of each group (sync_module_states), and loaded before the
// model is wrapped.
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/tensor_parallel/parallel_model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Bytes = std::map<std::string, std::string>;

// A module before it is wrapped, on one rank of a mesh whose last dimension is tensor parallelism.
struct PlainParallel {
  std::shared_ptr<const DeviceMesh> mesh, dp;
  std::shared_ptr<ProcessGroup> tp;
  std::unique_ptr<Module> module;

  static absl::StatusOr<PlainParallel> Make(std::shared_ptr<ProcessGroup> group, const std::vector<int>& sizes) {
    PlainParallel made;
    const std::vector<std::string> names =
        sizes.size() == 3 ? std::vector<std::string>{"replicate", "shard", "tp"} : std::vector<std::string>{"dp", "tp"};
    FSDP_ASSIGN_OR_RETURN(made.mesh, DeviceMesh::Create(std::move(group), sizes, names));
    FSDP_ASSIGN_OR_RETURN(made.dp, made.mesh->Submesh({names.begin(), names.end() - 1}));
    FSDP_ASSIGN_OR_RETURN(made.tp, made.mesh->group("tp"));
    FSDP_ASSIGN_OR_RETURN(made.module, MakeParallelModule(made.tp));
    return made;
  }

  Device& device() const { return *mesh->all()->device(); }

  absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> Wrap(FsdpOptions options = {.init_seed = 11}) {
    if (mesh->ndim() == 3) options.sharding_strategy = ShardingStrategy::kHybridShard;
    return FullyShardedDataParallel::Wrap(std::move(module), dp, options);
  }
};

absl::StatusOr<Bytes> WholesOf(FullyShardedDataParallel& model) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state, model.GetStateDict());
  Bytes bytes;
  for (const auto& [key, value] : state.entries()) {
    const Tensor& data = std::get<ShardedTensor>(value).shards.at(0).data;
    bytes[key.fqn].assign(data.data_as<const char>(), data.nbytes());
  }
  return bytes;
}

// The whole tensors of the model in one process, from another seed than Wrap's.
StateDict OtherValues(Device& device) {
  static constexpr uint64_t kOtherSeed = 5;
  std::unique_ptr<Module> plain = *MakeParallelModule(nullptr);
  EXPECT_OK(plain->Materialize(device, kOtherSeed));
  for (const auto& [name, parameter] : plain->NamedParameters()) {
    float* values = parameter->data.data_as<float>();
    for (int64_t i = 0; i < parameter->data.numel(); ++i) values[i] += 0.125f * static_cast<float>(i % 7);
  }
  StateDict state = *GetModuleState(*plain);
  for (const auto& [name, parameter] : plain->NamedParameters()) EXPECT_EQ(parameter->shape, parameter->whole_shape());
  return state;
}

Bytes BytesOf(const StateDict& state) {
  Bytes bytes;
  for (const auto& [key, value] : state.entries()) {
    const Tensor& data = std::get<ShardedTensor>(value).shards.at(0).data;
    bytes[key.fqn].assign(data.data_as<const char>(), data.nbytes());
  }
  return bytes;
}

class ParallelInitTest : public testing::TestWithParam<std::vector<int>> {
 protected:
  int ranks() const {
    int product = 1;
    for (const int size : GetParam()) product *= size;
    return product;
  }
};

// Every rank counts from 1000 times its rank, so each value shows its rank of origin.
TEST_P(ParallelInitTest, SyncModuleStatesGivesEachPartOfItsFirstRankAndCopiesOfRank0) {
  ASSERT_OK(RunRanks(ranks(), [this](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(PlainParallel made, PlainParallel::Make(group, GetParam()));
    for (const auto& [name, parameter] : made.module->NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(parameter->data, Tensor::Empty(made.device(), DType::kFloat32, parameter->shape));
      for (int64_t i = 0; i < parameter->data.numel(); ++i) {
        parameter->data.data_as<float>()[i] = static_cast<float>(1000 * group->rank() + i);
      }
    }
    FSDP_ASSIGN_OR_RETURN(const auto model, made.Wrap({.sync_module_states = true}));
    for (const ShardedParameter* parameter : model->parameters()) {
      const int from = parameter->part ? made.tp->rank() : 0;
      for (int64_t i = 0; i < parameter->data.numel(); ++i) {
        EXPECT_EQ(parameter->data.data_as<float>()[i], 1000 * from + parameter->interval.begin + i) << parameter->fqn;
      }
    }
    return absl::OkStatus();
  }));
}

// Initializers of ranks with seeds of their own.
TEST_P(ParallelInitTest, SyncModuleStatesMakesCopiesEqualWhateverTheSeeds) {
  ASSERT_OK(RunRanks(ranks(), [this](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(PlainParallel made, PlainParallel::Make(group, GetParam()));
    const auto seed = static_cast<uint64_t>(group->rank());
    FSDP_ASSIGN_OR_RETURN(const auto model, made.Wrap({.init_seed = seed, .sync_module_states = true}));
    for (const ShardedParameter* parameter : model->parameters()) {
      if (parameter->part) continue;
      const std::string mine(parameter->data.data_as<const char>(), parameter->data.nbytes());
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> all, made.tp->AllGatherObject(mine));
      EXPECT_THAT(all, testing::Each(mine)) << parameter->fqn;
    }
    return absl::OkStatus();
  }));
}

TEST_P(ParallelInitTest, AWholeStateLoadsIntoTheParallelLayersBeforeWrapping) {
  ASSERT_OK(RunRanks(ranks(), [this](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(PlainParallel made, PlainParallel::Make(group, GetParam()));
    const StateDict other = OtherValues(made.device());
    FSDP_RETURN_IF_ERROR(LoadModuleState(*made.module, other, made.device()).status());
    FSDP_ASSIGN_OR_RETURN(const auto model, made.Wrap());
    FSDP_ASSIGN_OR_RETURN(const Bytes got, WholesOf(*model));
    EXPECT_EQ(got, BytesOf(other));
    return absl::OkStatus();
  }));
}

TEST_P(ParallelInitTest, ACheckpointLoadsIntoTheParallelLayersBeforeWrapping) {
  char path[] = "/tmp/parallel_init_test.XXXXXX";
  ASSERT_NE(mkdtemp(path), nullptr);
  const std::string root = path;
  ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    return SaveCheckpoint(OtherValues(*group->device()), root, 1, *group).status();
  }));
  ASSERT_OK(RunRanks(ranks(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(PlainParallel made, PlainParallel::Make(group, GetParam()));
    FSDP_RETURN_IF_ERROR(made.module->Materialize(made.device(), 3));
    FSDP_ASSIGN_OR_RETURN(StateDict wanted, GetModuleState(*made.module));
    FSDP_RETURN_IF_ERROR(LoadCheckpoint(root + "/step-00000001", wanted));
    FSDP_ASSIGN_OR_RETURN(const auto model, made.Wrap());
    FSDP_ASSIGN_OR_RETURN(const Bytes got, WholesOf(*model));
    EXPECT_EQ(got, BytesOf(OtherValues(made.device())));
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Meshes, ParallelInitTest,
                         testing::Values(std::vector<int>{2, 2}, std::vector<int>{1, 3}, std::vector<int>{2, 2, 2}));

TEST(ParallelInitErrorTest, APartGivenForTheWholeIsRefusedByBothShapes) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(PlainParallel made, PlainParallel::Make(group, {1, 2}));
    StateDict parts;
    for (const auto& [name, parameter] : made.module->NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor part, Tensor::Empty(made.device(), DType::kFloat32, parameter->shape));
      parts.Set(StateKey::Model(name), ShardedTensor::Whole(part));
    }
    EXPECT_THAT(LoadModuleState(*made.module, parts, made.device()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::ContainsRegex("shape \\[[0-9, ]+\\] in the state dict != \\[[0-9, ]+\\]")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

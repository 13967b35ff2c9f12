// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/units/parameter_init.h"

#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRanks = 3;  // divides no size below

std::unique_ptr<TestSequence> MakeModel() {
  auto root = std::make_unique<TestSequence>();
  root->AddSequence("Block")->AddLinear(3, 5);
  root->AddLinear(5, 7);
  return root;
}

FsdpOptions Options() { return {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"}))}; }

// Sets the elements of `module`'s own parameters to `first`, `first` + 1, ...
absl::Status Count(Module& module, float first) {
  for (const auto& [name, parameter] : module.own_parameters()) {
    auto memory = std::make_shared<std::vector<float>>(parameter->shape.numel());
    std::iota(memory->begin(), memory->end(), first);
    parameter->data =
        Tensor(Buffer(memory->data(), memory->size() * sizeof(float), [memory] {}), DType::kFloat32, parameter->shape);
  }
  return absl::OkStatus();
}

// True when every element that this rank holds is its index plus `first`.
bool Counts(const FullyShardedDataParallel& model, float first) {
  bool all = true;
  for (const ShardedParameter* parameter : model.parameters()) {
    for (int64_t i = 0; i < parameter->interval.size(); ++i) {
      const auto wanted = first + static_cast<float>(parameter->interval.begin + i);
      all = all && parameter->data.data_as<float>()[i] == wanted;
    }
  }
  return all;
}

TEST(ParameterInitTest, ParamInitFnIsCalledForEachModuleOfAUnitOutermostFirst) {
  std::mutex mutex;
  std::vector<std::string> seen;  // by rank 0
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = Options();
    options.param_init_fn = [&, rank = group->rank()](Module& module) {
      const std::lock_guard<std::mutex> lock(mutex);
      if (rank == 0) seen.emplace_back(module.type_name());
      return Count(module, 2);
    };
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(MakeModel(), group, options));
    EXPECT_TRUE(Counts(*model, 2));
    return absl::OkStatus();
  }));
  EXPECT_THAT(seen, ElementsAre("Sequential", "Conv1D", "Block", "Conv1D"));
}

TEST(ParameterInitTest, ParamInitFnIsNotCalledWhereEveryParameterHasMemory) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> module = MakeModel();
    for (const auto& [name, below] : module->NamedModules()) FSDP_RETURN_IF_ERROR(Count(*below, 1));
    FsdpOptions options = Options();
    options.param_init_fn = [](Module&) { return absl::InternalError("called"); };
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    EXPECT_TRUE(Counts(*model, 1));
    return absl::OkStatus();
  }));
}

TEST(ParameterInitTest, AParamInitFnThatLeavesAParameterOutIsAnError) {
  const absl::Status status = RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) {
    FsdpOptions options = Options();
    options.param_init_fn = [](Module& module) {
      return module.type_name() == "Conv1D" ? absl::OkStatus() : Count(module, 0);
    };
    return FullyShardedDataParallel::Wrap(MakeModel(), group, options).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("param_init_fn left parameter \"1.weight\" [5, 7] without memory")));
}

TEST(ParameterInitTest, AParamInitFnThatGivesAnotherShapeIsAnError) {
  const absl::Status status = RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) {
    FsdpOptions options = Options();
    options.param_init_fn = [](Module& module) {
      FSDP_RETURN_IF_ERROR(Count(module, 0));
      for (const auto& [name, parameter] : module.own_parameters()) {
        parameter->data = parameter->data.Slice({0, parameter->data.numel()});
      }
      return absl::OkStatus();
    };
    return FullyShardedDataParallel::Wrap(MakeModel(), group, options).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("param_init_fn gave parameter \"1.weight\" data [35]: expected [5, 7]")));
}

TEST(ParameterInitTest, WithoutAFunctionInitializersFillMetaParametersAlikeOnAnyNumberOfRanks) {
  std::vector<float> alone(1);
  for (const int ranks : {1, kRanks}) {
    ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions options = Options();
      options.init_seed = 5;
      FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(MakeModel(), group, options));
      for (const ShardedParameter* parameter : model->parameters()) {
        if (parameter->fqn != "1.weight") continue;
        const float* data = parameter->data.data_as<float>();
        if (group->size() == 1) alone.assign(data, data + parameter->data.numel());
        for (int64_t i = 0; i < parameter->interval.size(); ++i) {
          EXPECT_EQ(data[i], alone[parameter->interval.begin + i]);
        }
      }
      return absl::OkStatus();
    }));
  }
  EXPECT_EQ(alone.size(), 35u);
}

TEST(ParameterInitTest, SyncModuleStatesTakesRank0sParametersAndBuffers) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> module = MakeModel();
    const auto first = static_cast<float>(100 * (group->rank() + 1));
    FSDP_ASSIGN_OR_RETURN(const Tensor running, Tensor::Empty(*group->device(), DType::kFloat32, {2}));
    running.data_as<float>()[0] = first;
    running.data_as<float>()[1] = first + 1;
    module->AddState("running", running);
    // Rank 1 has no values at all: a model on the meta device.
    for (const auto& [name, below] : module->NamedModules()) {
      if (group->rank() != 1) FSDP_RETURN_IF_ERROR(Count(*below, first));
    }
    FsdpOptions options = Options();
    options.sync_module_states = true;
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    EXPECT_TRUE(Counts(*model, 100));
    EXPECT_EQ(running.data_as<float>()[0], 100);
    EXPECT_EQ(running.data_as<float>()[1], 101);
    return absl::OkStatus();
  }));
}

TEST(ParameterInitTest, SyncModuleStatesReachesEveryGroupOfAHybridModel) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> module = MakeModel();
    for (const auto& [name, below] : module->NamedModules()) {
      FSDP_RETURN_IF_ERROR(Count(*below, static_cast<float>(100 * (group->rank() + 1))));
    }
    FsdpOptions options = Options();
    options.sharding_strategy = ShardingStrategy::kHybridShard;
    options.shard_group_size = 2;
    options.sync_module_states = true;
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    EXPECT_TRUE(Counts(*model, 100));
    return absl::OkStatus();
  }));
}

TEST(ParameterInitTest, BroadcastTensorsPacksSmallOnesInBuckets) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    std::vector<Tensor> tensors;
    for (const int64_t numel : {1, 5, 2}) {
      FSDP_ASSIGN_OR_RETURN(const Tensor t, Tensor::Empty(*group->device(), DType::kFloat32, {numel}));
      for (int64_t i = 0; i < numel; ++i) t.data_as<float>()[i] = static_cast<float>(10 * group->rank() + i);
      tensors.push_back(t);
    }
    FSDP_RETURN_IF_ERROR(BroadcastTensors(tensors, {.shard = group, .replicate = nullptr}, *stream));
    for (const Tensor& t : tensors) {
      for (int64_t i = 0; i < t.numel(); ++i) EXPECT_EQ(t.data_as<float>()[i], i);
    }
    return absl::OkStatus();
  }));
}

TEST(ParameterInitTest, ADeviceIdOfAnotherDeviceIsRefused) {
  const auto wrap_on = [](const std::string& device_id) {
    return RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) {
      FsdpOptions options = Options();
      options.device_id = device_id;
      return FullyShardedDataParallel::Wrap(MakeModel(), group, options).status();
    });
  };
  EXPECT_OK(wrap_on("cpu"));
  EXPECT_THAT(wrap_on("cuda:1"), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("inconsistent compute device: device_id is \"cuda:1\", but the "
                                                    "process group's device is \"cpu\"")));
}

}  // namespace
}  // namespace fsdp

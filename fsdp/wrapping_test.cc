// SPDX-License-Identifier: Apache-2.0
//
// Steps of models with every kind of parameter: ignored, frozen, shared and unused parameters, on 3 ranks, which divide
// no size here.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/nn/parameter.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kRows = 2;

// root > 0 (Block) > 0 (3 to 5), 1 (5 to 5); root > 1 (5 to 7).
std::unique_ptr<TestSequence> MakeModel() {
  auto root = std::make_unique<TestSequence>();
  TestSequence* block = root->AddSequence("Block");
  block->AddLinear(3, 5);
  block->AddLinear(5, 5);
  root->AddLinear(5, 7);
  root->AssignNames();
  return root;
}

FsdpOptions Options(bool use_orig_params = false) {
  return {.auto_wrap_policy = LambdaWrapPolicy(HasTypeName({"Block"})), .use_orig_params = use_orig_params};
}

Module& At(Module& root, const std::string& path) {
  for (const auto& [name, module] : root.NamedModules()) {
    if (name == path) return *module;
  }
  return root;
}

void Freeze(Module& module) {
  for (const auto& [name, parameter] : module.NamedParameters()) parameter->requires_grad = false;
}

// Forward and backward; every element of the output's gradient is the rank + 1, so a bias of the last layer gets
// kRows * (rank + 1), and their mean over ranks is kRows * (kRanks + 1) / 2.
absl::Status ComputeGradients(FullyShardedDataParallel& model) {
  const int rank = model.group().rank();
  Tape tape = model.NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model.device(), DType::kFloat32, {kRows, 3}));
  for (int64_t i = 0; i < x.numel(); ++i) x.data_as<float>()[i] = 0.25f * static_cast<float>((rank + 1) * (i - 2));
  FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
  FSDP_ASSIGN_OR_RETURN(const Tensor grad, Tensor::Empty(model.device(), DType::kFloat32, y.shape()));
  std::fill_n(grad.data_as<float>(), grad.numel(), static_cast<float>(rank + 1));
  FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
  return model.stream().Synchronize();
}

std::set<std::string> WithGradients(const FullyShardedDataParallel& model) {
  std::set<std::string> names;
  for (const ShardedParameter* parameter : model.parameters()) {
    if (parameter->has_grad) names.insert(parameter->fqn);
  }
  return names;
}

TEST(WrappingTest, IgnoredParametersKeepTheirMemoryAndTheirLocalGradients) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> module = MakeModel();
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    Module& last = At(*module, "1");
    for (const auto& [name, parameter] : last.own_parameters()) {
      FSDP_RETURN_IF_ERROR(MaterializeParameter(*parameter, *group->device(), /*seed=*/1, *stream));
    }
    const std::shared_ptr<Parameter> bias = last.own_parameters()[1].second;
    const void* memory = bias->data.data();
    FsdpOptions options = Options();
    options.ignored_states = std::vector<Module*>{&last};
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    EXPECT_EQ(model->UnitNames(), std::vector<std::string>({"0"}));
    FSDP_RETURN_IF_ERROR(ComputeGradients(*model));
    EXPECT_EQ(bias->data.data(), memory);
    EXPECT_EQ(bias->grad.data_as<float>()[0], kRows * (group->rank() + 1));
    EXPECT_EQ(WithGradients(*model), std::set<std::string>({"0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"}));
    return absl::OkStatus();
  }));
}

TEST(WrappingTest, AFrozenUnitIsNotReducedAndItsGradientsStayNone) {
  for (const bool use_orig_params : {false, true}) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      std::unique_ptr<TestSequence> module = MakeModel();
      Freeze(At(*module, "0"));
      FSDP_ASSIGN_OR_RETURN(const auto model,
                            FullyShardedDataParallel::Wrap(std::move(module), group, Options(use_orig_params)));
      FSDP_RETURN_IF_ERROR(ComputeGradients(*model));
      EXPECT_EQ(WithGradients(*model), std::set<std::string>({"1.weight", "1.bias"}));
      const std::string schedule = RenderSchedule(model->StepSchedule(1), model->UnitNames());
      EXPECT_THAT(schedule, HasSubstr("all_gather 0\n"));
      EXPECT_THAT(schedule, testing::Not(HasSubstr("reduce_scatter 0\n")));
      EXPECT_THAT(schedule, HasSubstr("reduce_scatter root\n"));
      return absl::OkStatus();
    }));
  }
}

TEST(WrappingTest, UseOrigParamsReducesTheTrainableOnesOfAMixedUnit) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> module = MakeModel();
    At(*module, "1").own_parameters()[0].second->requires_grad = false;
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, Options(true)));
    EXPECT_EQ(model->warnings().size(), 0u);  // its gradients take only the memory of the bias
    FSDP_RETURN_IF_ERROR(ComputeGradients(*model));
    for (const ShardedParameter* parameter : model->parameters()) {
      EXPECT_EQ(parameter->has_grad, parameter->fqn != "1.weight");
      if (parameter->fqn != "1.bias") continue;
      for (int64_t i = 0; i < parameter->interval.size(); ++i) {
        EXPECT_EQ(parameter->grad.data_as<float>()[i], kRows * (kRanks + 1) / 2.0f);
      }
    }
    return absl::OkStatus();
  }));
}

TEST(WrappingTest, MixedRequiresGradIsRefusedOnEveryRankWithoutUseOrigParams) {
  const absl::Status status = RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) {
    std::unique_ptr<TestSequence> module = MakeModel();
    At(*module, "1").own_parameters()[0].second->requires_grad = false;
    return FullyShardedDataParallel::Wrap(std::move(module), group, Options()).status();
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               HasSubstr("unit root has parameters with and without requires_grad; with: 1.bias; "
                                         "without: 1.weight")));
}

TEST(WrappingTest, OneUnitHasOneFloatingPointDType) {
  const auto wrap_with = [](DType dtype) {
    return RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) {
      std::unique_ptr<TestSequence> module = MakeModel();
      At(*module, "1").own_parameters()[1].second->dtype = dtype;
      return FullyShardedDataParallel::Wrap(std::move(module), group, Options()).status();
    });
  };
  EXPECT_THAT(wrap_with(DType::kBFloat16), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    HasSubstr("\"1.bias\" is bfloat16 and \"1.weight\" is float32")));
  EXPECT_THAT(wrap_with(DType::kInt32),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must have one floating-point dtype, but \"1.bias\" is int32")));
}

// Views that are slices of one shard are as far apart as their elements in the unit's flat parameter.
void ExpectOneShard(const FullyShardedDataParallel& model) {
  std::map<std::string, const ShardedParameter*> by_name;
  for (const ShardedParameter* parameter : model.parameters()) by_name[parameter->fqn] = parameter;
  for (const FlatUnitLayout& unit : model.UnitLayouts()) {
    const float* shard = nullptr;  // the address that the unit's element 0 would have
    for (const auto& slot : unit.parameters) {
      const ShardedParameter& parameter = *by_name.at(slot.fqn);
      if (parameter.interval.empty()) continue;
      const float* const here = parameter.data.data_as<float>() - (slot.offset + parameter.interval.begin);
      if (shard == nullptr) shard = here;
      EXPECT_EQ(here, shard) << slot.fqn;
    }
  }
}

TEST(WrappingTest, ShardedViewsAreSlicesOfOneShardAndEmptyWhereAbsent) {
  std::vector<int64_t> held(kRanks, 0);
  int absent = 0;
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(MakeModel(), group, Options(true)));
    for (const ShardedParameter* parameter : model->parameters()) {
      EXPECT_EQ(parameter->data.shape(), Shape({parameter->interval.size()}));
      EXPECT_EQ(parameter->data.dtype(), DType::kFloat32);
      held[group->rank()] += parameter->data.numel();
      if (group->rank() == 0 && parameter->interval.empty()) ++absent;
    }
    ExpectOneShard(*model);
    return absl::OkStatus();
  }));
  EXPECT_EQ(held[0] + held[1] + held[2], 3 * 5 + 5 + 5 * 5 + 5 + 5 * 7 + 7);
  EXPECT_GT(absent, 0);
}

TEST(WrappingTest, HyperparametersAreThoseOfTheOriginalParameters) {
  for (const bool use_orig_params : {false, true}) {
    ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const auto model,
                            FullyShardedDataParallel::Wrap(MakeModel(), group, Options(use_orig_params)));
      std::vector<ShardedParameter*> biases, weights;
      for (ShardedParameter* parameter : model->parameters()) {
        (parameter->shape.rank() == 1 ? biases : weights).push_back(parameter);
      }
      std::vector<std::vector<float>> before;
      for (const ShardedParameter* weight : weights) {
        before.emplace_back(weight->data.data_as<float>(), weight->data.data_as<float>() + weight->data.numel());
      }
      Sgd optimizer({{.parameters = biases, .options = {.lr = 0.5}}, {.parameters = weights, .options = {.lr = 0}}});
      FSDP_RETURN_IF_ERROR(ComputeGradients(*model));
      FSDP_RETURN_IF_ERROR(optimizer.Step(model->stream()));
      FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
      for (size_t i = 0; i < weights.size(); ++i) {
        for (size_t j = 0; j < before[i].size(); ++j) EXPECT_EQ(weights[i]->data.data_as<float>()[j], before[i][j]);
      }
      // Biases start at 0, and the last layer's gradient is known.
      for (int64_t i = 0; i < biases[0]->data.numel(); ++i) {
        EXPECT_EQ(biases[0]->data.data_as<float>()[i], -0.5f * kRows * (kRanks + 1) / 2.0f);
      }
      return absl::OkStatus();
    }));
  }
}

}  // namespace
}  // namespace fsdp

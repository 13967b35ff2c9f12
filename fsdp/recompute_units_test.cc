// SPDX-License-Identifier: Apache-2.0
//
// Activation checkpointing of units that hold other units: their forwards run again within the outer unit's backward,
// and the plan of slots has them. Random trees of units, of which random ones recompute; both APIs.
#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kWidth = 4;

// The leaves of a tree: layers that compute, or parameters that no layer uses, so that all memory is FSDP's.
enum class Leaves { kLinear, kUnused };

// Fills `sequence` with leaves and sequences named "Unit", "Recomputed" (a unit too) and "Plain", some without leaves
// of their own.
void Grow(TestSequence& sequence, int depth, Leaves leaves, std::mt19937& random) {
  const int children = 1 + static_cast<int>(random() % 3);
  for (int child = 0; child < children; ++child) {
    const char* kinds[] = {"Unit", "Recomputed", "Recomputed", "Plain"};
    if (depth > 0 && random() % 4 != 0) {
      Grow(*sequence.AddSequence(kinds[random() % 4]), depth - 1, leaves, random);
    } else if (leaves == Leaves::kLinear) {
      sequence.AddLinear(kWidth, kWidth);
    } else {
      sequence.AddUnused(absl::StrCat("weight", child), {1 + static_cast<int64_t>(random() % 40), 3});
    }
  }
}

std::unique_ptr<TestSequence> Tree(int seed, Leaves leaves) {
  std::mt19937 random(seed);
  auto root = std::make_unique<TestSequence>("Root");
  Grow(*root, /*depth=*/3, leaves, random);
  if (leaves == Leaves::kUnused) root->AddUnused("root_weight", {11});
  if (leaves == Leaves::kLinear) root->AddLinear(kWidth, kWidth);
  return root;
}

enum class Api { kFsdp1, kShardGradOp, kFullyShard, kFullyShardRecomputedRoot };

std::string NameOf(Api api) {
  const char* names[] = {"Fsdp1", "ShardGradOp", "FullyShard", "FullyShardRecomputedRoot"};
  return names[static_cast<int>(api)];
}

bool IsUnit(const Module& module) { return module.type_name() == "Unit" || module.type_name() == "Recomputed"; }

absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> Wrap(std::unique_ptr<TestSequence> root, Api api,
                                                               bool recompute, std::shared_ptr<ProcessGroup> group) {
  const auto recomputed = [recompute](const Module& m) { return recompute && m.type_name() == "Recomputed"; };
  if (api == Api::kFsdp1 || api == Api::kShardGradOp) {
    FsdpOptions options;
    options.init_seed = 7;
    if (api == Api::kShardGradOp) options.sharding_strategy = ShardingStrategy::kShardGradOp;
    options.auto_wrap_policy = CustomWrapPolicy([&](Module& module) -> std::optional<UnitOverrides> {
      if (!IsUnit(module)) return std::nullopt;
      return UnitOverrides{.activation_checkpointing = recomputed(module)};
    });
    return FullyShardedDataParallel::Wrap(std::move(root), std::move(group), options);
  }
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  std::vector<Module::NamedModule> modules = root->NamedModules();
  std::reverse(modules.begin(), modules.end());  // innermost first
  for (const auto& [name, module] : modules) {
    FullyShardOptions options{.activation_checkpointing = recomputed(*module), .init_seed = 7};
    if (module == root.get()) {
      options.activation_checkpointing = recompute && api == Api::kFullyShardRecomputedRoot;
    } else if (!IsUnit(*module)) {
      continue;
    }
    FSDP_RETURN_IF_ERROR(FullyShard(*module, mesh, options).status());
  }
  return FullyShardedDataParallel::FromFullyShard(std::move(root));
}

// This rank's gradients of a pass without and one with synchronisation, then of another step; memory plans included.
absl::StatusOr<std::vector<std::vector<float>>> GradientsOf(int seed, Api api, bool recompute,
                                                            const std::shared_ptr<ProcessGroup>& group) {
  FSDP_ASSIGN_OR_RETURN(const auto model, Wrap(Tree(seed, Leaves::kLinear), api, recompute, group));
  const int slots = model->memory_plan().slots.unsharded;
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, kWidth}));
  std::vector<std::vector<float>> gradients;
  for (const bool sync : {true, false, true, true}) {
    for (int i = 0; i < 2 * kWidth; ++i) x.data_as<float>()[i] = 0.25f * static_cast<float>(i - 3 + group->rank());
    model->set_requires_gradient_sync(sync);
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
    FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
    if (!sync) continue;
    for (ShardedParameter* parameter : model->parameters()) {
      const float* grad = parameter->grad.data_as<float>();
      gradients.emplace_back(grad, grad + parameter->grad.numel());
      parameter->has_grad = false;
    }
  }
  EXPECT_EQ(model->memory_plan().slots.unsharded, slots) << "the slots that were planned did not suffice";
  return gradients;
}

class RecomputeUnitsTest : public testing::TestWithParam<Api> {};

TEST_P(RecomputeUnitsTest, GradientsHaveTheBitsOfTheModelThatKeepsItsActivations) {
  for (int seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const auto kept, GradientsOf(seed, GetParam(), /*recompute=*/false, group));
      FSDP_ASSIGN_OR_RETURN(const auto recomputed, GradientsOf(seed, GetParam(), /*recompute=*/true, group));
      EXPECT_EQ(recomputed, kept);
      return absl::OkStatus();
    }));
  }
}

TEST_P(RecomputeUnitsTest, ThePlannedPeakIsTheMeasuredPeak) {
  for (int seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      Device& device = *group->device();
      FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(device, DType::kInt32, {1}));
      const int64_t before = device.allocated_bytes();
      FSDP_ASSIGN_OR_RETURN(const auto model, Wrap(Tree(seed, Leaves::kUnused), GetParam(), true, group));
      const MemoryPlan plan = model->memory_plan();
      device.ResetPeak();
      for (int step = 0; step < 3; ++step) {
        Tape tape = model->NewTape();
        FSDP_RETURN_IF_ERROR(model->Forward(x, tape).status());
        FSDP_RETURN_IF_ERROR(model->Backward(x, tape).status());
        FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
      }
      EXPECT_EQ(device.peak_allocated_bytes() - before, plan.DeviceBytes(false));
      return absl::OkStatus();
    }));
  }
}

// The operations that a schedule or a log of collectives begins its lines with.
std::vector<std::string> CollectivesOf(const std::vector<std::string>& lines) {
  std::vector<std::string> collectives;
  for (const std::string& line : lines) {
    const std::string operation = line.substr(0, line.find(' '));
    if (operation == "all_gather" || operation == "reduce_scatter") collectives.push_back(operation);
  }
  return collectives;
}

// A unit that a plan lacks is gathered on demand, so only the order of collectives shows that the plan has the units
// that a recomputation runs again.
TEST_P(RecomputeUnitsTest, AStepIssuesTheCollectivesOfItsPlan) {
  for (int seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(seed);
    EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
      const auto log = std::make_shared<RecordingProcessGroup::Log>();
      const auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
      FSDP_ASSIGN_OR_RETURN(const auto model, Wrap(Tree(seed, Leaves::kLinear), GetParam(), true, group));
      FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, kWidth}));
      std::fill_n(x.data_as<float>(), x.numel(), 0.5f);
      const std::string plan = RenderSchedule(model->StepSchedule(1), model->UnitNames());
      for (int step = 0; step < 2; ++step) {
        log->clear();
        Tape tape = model->NewTape();
        FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
        FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
        FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
        EXPECT_EQ(CollectivesOf(*log), CollectivesOf(absl::StrSplit(plan, '\n'))) << plan;
      }
      return absl::OkStatus();
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Apis, RecomputeUnitsTest,
                         testing::Values(Api::kFsdp1, Api::kShardGradOp, Api::kFullyShard,
                                         Api::kFullyShardRecomputedRoot),
                         [](const auto& api) { return NameOf(api.param); });

TEST(RecomputeGpt2Test, BlocksAroundUnitsOfTheirOwnTrainToTheSameBits) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::vector<std::vector<float>> losses(2);
    for (const bool recompute : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(TestModel test,
                            MakeTestModel(group, {.auto_wrap_policy = ModuleWrapPolicy<Gpt2Block, Conv1D>(),
                                                  .activation_checkpointing = recompute}));
      for (int step = 0; step < 3; ++step) {
        FSDP_ASSIGN_OR_RETURN(const float loss, test.ComputeGradients(step));
        losses[recompute].push_back(loss);
        FSDP_RETURN_IF_ERROR(test.optimizer->Step(test.model->stream()));
        test.optimizer->ZeroGrad();
      }
    }
    EXPECT_EQ(losses[0], losses[1]);
    return absl::OkStatus();
  }));
}

// A model whose only leaves are in inner units: the outer ones have no parameters, and still recompute.
TEST(RecomputeBareModuleTest, AModuleWhoseParametersAreAllInInnerUnitsRecomputesToo) {
  for (const Api api : {Api::kFsdp1, Api::kFullyShard}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      auto root = std::make_unique<TestSequence>("Root");
      TestSequence* outer = root->AddSequence("Recomputed");
      outer->AddSequence("Unit")->AddLinear(kWidth, kWidth);
      outer->AddSequence("Unit")->AddLinear(kWidth, kWidth);
      root->AddLinear(kWidth, kWidth);
      FSDP_ASSIGN_OR_RETURN(const auto model, Wrap(std::move(root), api, /*recompute=*/true, group));
      FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {2, kWidth}));
      std::fill_n(x.data_as<float>(), x.numel(), 0.5f);
      Tape tape = model->NewTape();
      FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
      FSDP_RETURN_IF_ERROR(model->Backward(y, tape).status());
      FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
      EXPECT_THAT(RenderSchedule(model->StepSchedule(1), model->UnitNames()), testing::HasSubstr("recompute 0\n"));
      EXPECT_THAT(RenderSchedule(model->StepSchedule(1), model->UnitNames()), testing::HasSubstr("recompute 0.1\n"));
      return absl::OkStatus();
    }));
  }
}

TEST(RecomputeWarningTest, ActivationCheckpointingWithoutUnitsButTheRootSaysThatItHasNoEffect) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    auto root = std::make_unique<TestSequence>("Root");
    root->AddLinear(kWidth, kWidth);
    FSDP_ASSIGN_OR_RETURN(const auto model,
                          FullyShardedDataParallel::Wrap(std::move(root), group, {.activation_checkpointing = true}));
    EXPECT_THAT(model->warnings(), testing::Contains(testing::HasSubstr("activation_checkpointing has no effect")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Units of FullyShard with frozen and trained parameters, as in BitFit and LoRA: they reduce, and have gradient memory
// for, the trained ones, which have the gradients of a model that is trained whole.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kRanks = 3;

using IsTrained = std::function<bool(const std::string& name)>;

bool IsBias(const std::string& name) { return absl::EndsWith(name, "bias"); }
bool IsWeight(const std::string& name) { return absl::EndsWith(name, "weight"); }
bool IsAny(const std::string&) { return true; }

void Train(const TestFullyShard& test, const IsTrained& is_trained) {
  for (const auto& [name, parameter] : test.model->NamedParameters()) parameter->requires_grad = is_trained(name);
}

Gradients Only(const Gradients& gradients, const IsTrained& is_trained) {
  Gradients some;
  for (const auto& [name, values] : gradients) {
    if (is_trained(name)) some[name] = values;
  }
  return some;
}

std::vector<std::string> Reductions(const TestFullyShard& test) {
  std::vector<std::string> entries;
  for (const std::string& entry : *test.log) {
    if (absl::StartsWith(entry, "reduce_scatter")) entries.push_back(entry);
  }
  return entries;
}

TEST(PartlyFrozenTest, UnitsReduceAndHaveMemoryForWhatIsTrained) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard whole, TestFullyShard::Make(group));
    FSDP_RETURN_IF_ERROR(whole.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(group));
    Train(test, IsBias);
    for (int step = 0; step < 2; ++step) {
      test.log->clear();
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      // A third of each bias, rounded up: of [4] in the second block, two of [5] in the first, [7] in the root.
      EXPECT_THAT(Reductions(test),
                  ElementsAre("reduce_scatter avg world float32[2]", "reduce_scatter avg world float32[4]",
                              "reduce_scatter avg world float32[3]"));
      FSDP_RETURN_IF_ERROR(test.ZeroGrad());
    }
    FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
    FSDP_ASSIGN_OR_RETURN(const auto of_whole, ShardedModel::Of(*whole.root));
    const MemoryPlan& plan = model->runtime().plan();
    const MemoryPlan& all = of_whole->runtime().plan();
    constexpr int64_t kFloat = sizeof(float);
    EXPECT_EQ(plan.gradient_slot, 4 * kRanks * kFloat);
    EXPECT_EQ(plan.root_gradients, 3 * kRanks * kFloat);
    // The weights' parts of the gradient shards, [3, 5], [5, 5], [5, 4] and [4, 7], are saved.
    EXPECT_EQ(all.shards - plan.shards, (5 + 10 + 8 + 14) * kFloat);
    return absl::OkStatus();
  }));
}

TEST(PartlyFrozenTest, TrainedParametersHaveTheGradientsOfAModelThatIsTrainedWhole) {
  struct Case {
    int ranks, replicas;
    FullyShardOptions options;
  };
  const MixedPrecisionPolicy mixed{.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  const std::vector<Case> cases = {{1, 1, {}},
                                   {2, 1, {}},
                                   {3, 1, {}},
                                   {4, 2, {}},
                                   {3, 1, {.mp_policy = mixed}},
                                   {3, 1, {.offload_policy = CpuOffloadPolicy{}}},
                                   {3, 1, {.reshard_after_forward = false, .activation_checkpointing = true}}};
  for (const Case& one : cases) {
    ASSERT_OK(RunRanks(one.ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Gradients all, StepWith(group, one.options, nullptr, one.replicas));
      FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(group, one.options, one.replicas));
      // Frozen and thawed between steps.
      for (const IsTrained& is_trained : {IsBias, IsWeight, IsAny, IsBias}) {
        Train(test, is_trained);
        for (int step = 0; step < 2; ++step) {
          FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
          FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
          EXPECT_EQ(gradients, Only(all, is_trained));
          FSDP_RETURN_IF_ERROR(test.ZeroGrad());
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST(PartlyFrozenTest, GradientsThatExistStayIfOthersAreThawed) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Gradients wanted, StepWith(group, {}, nullptr));
    for (auto& [name, values] : wanted) {
      for (float& value : values) value *= IsBias(name) ? 2.0f : 1.0f;
    }
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(group));
    for (const IsTrained& is_trained : {IsBias, IsAny}) {
      Train(test, is_trained);
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    }
    FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    EXPECT_EQ(gradients, wanted);
    return absl::OkStatus();
  }));
}

// As .grad of a parameter that was frozen since: it stays until the optimizer forgets it.
TEST(PartlyFrozenTest, AGradientOfAParameterThatIsFrozenLaterStays) {
  for (const int replicas : {1, 2}) {
    ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(group, {}, replicas));
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_ASSIGN_OR_RETURN(const Gradients first, test.Gradients());
      Gradients wanted = first;
      for (auto& [name, values] : wanted) {
        for (float& value : values) value *= IsBias(name) ? 3.0f : 1.0f;
      }
      Train(test, IsBias);
      for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
      EXPECT_EQ(gradients, wanted);
      FSDP_RETURN_IF_ERROR(test.ZeroGrad());
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_ASSIGN_OR_RETURN(const Gradients afterwards, test.Gradients());
      EXPECT_EQ(afterwards, Only(first, IsBias));
      return absl::OkStatus();
    }));
  }
}

TEST(PartlyFrozenTest, FullGradientsSummonedOnesAndTheNormAreOfWhatIsTrained) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard whole, TestFullyShard::Make(group));
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(group));
    Train(test, IsBias);
    for (const TestFullyShard* one : {&whole, &test}) FSDP_RETURN_IF_ERROR(one->ForwardAndBackward());
    for (const auto& [name, parameter] : test.model->NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor wanted, whole.root->GetFullGradient(name));
      FSDP_ASSIGN_OR_RETURN(const Tensor gradient, test.root->GetFullGradient(name));
      EXPECT_EQ(gradient.defined(), IsBias(name)) << name;
      if (!gradient.defined()) continue;
      EXPECT_TRUE(
          std::equal(gradient.data_as<float>(), gradient.data_as<float>() + gradient.numel(), wanted.data_as<float>()))
          << name;
    }
    {
      SummonFullParamsOptions options;
      options.with_grads = true;
      FSDP_ASSIGN_OR_RETURN(const auto guard, test.root->SummonFullParams(options));
      for (const auto& [name, parameter] : test.model->NamedParameters()) {
        EXPECT_EQ(parameter->grad.defined(), IsBias(name)) << name;
      }
      FSDP_RETURN_IF_ERROR(guard->Close());
    }
    // The norm of the trained ones.
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, whole.root->parameters());
    for (ShardedParameter* parameter : parameters) parameter->has_grad &= IsBias(parameter->fqn);
    FSDP_ASSIGN_OR_RETURN(const float wanted, whole.root->ClipGradNorm(1));
    FSDP_ASSIGN_OR_RETURN(const float norm, test.root->ClipGradNorm(1));
    EXPECT_EQ(norm, wanted);
    return absl::OkStatus();
  }));
}

TEST(PartlyFrozenTest, AChangeWhileGradientsWaitForAReductionIsAnErrorThatNamesTheUnit) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    Train(test, IsBias);
    FSDP_RETURN_IF_ERROR(test.root->parameters().status());
    FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(false));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    Train(test, IsAny);
    EXPECT_THAT(test.ForwardAndBackward(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("unit root: requires_grad was changed while its gradients of earlier backwards")));
    Train(test, IsBias);
    FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(true));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    Train(test, IsAny);
    return test.ForwardAndBackward();
  }));
}

}  // namespace
}  // namespace fsdp

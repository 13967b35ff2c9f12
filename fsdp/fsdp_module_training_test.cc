// SPDX-License-Identifier: Apache-2.0
//
// A program that uses only FullyShard: FsdpModule clips, gathers gradients, summons, saves and loads its optimizer, and
// restores on another number of ranks.
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/optim/adamw.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;

// The model of test_fully_shard.h with an optimizer over it.
struct Trained {
  TestFullyShard test;
  std::unique_ptr<AdamW> optimizer;

  static absl::StatusOr<Trained> Make(std::shared_ptr<ProcessGroup> group, uint64_t seed) {
    Trained made;
    FSDP_ASSIGN_OR_RETURN(made.test, TestFullyShard::Make(std::move(group), {.init_seed = seed}));
    FSDP_ASSIGN_OR_RETURN(const auto parameters, made.test.root->parameters());
    made.optimizer = std::make_unique<AdamW>(parameters, AdamWOptions{.lr = 1e-2, .weight_decay = 0.1});
    return made;
  }

  FsdpModule& root() const { return *test.root; }

  absl::Status Step(int step) const {
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward(step));
    FSDP_RETURN_IF_ERROR(root().ClipGradNorm(0.5f).status());
    FSDP_ASSIGN_OR_RETURN(const Tape tape, root().NewTape());
    FSDP_RETURN_IF_ERROR(optimizer->Step(tape.stream()));
    optimizer->ZeroGrad();
    return tape.stream().Synchronize();
  }

  // Model and optimizer, each rank's rows.
  absl::StatusOr<StateDict> State() const {
    FSDP_ASSIGN_OR_RETURN(StateDict state, root().GetStateDict());
    FSDP_RETURN_IF_ERROR(root().AddOptimStateDict(*optimizer, state));
    return state;
  }
};

absl::Status RunTrained(int ranks, const std::function<absl::Status(Trained& trained)>& rank_main) {
  return RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Trained trained, Trained::Make(std::move(group), /*seed=*/3));
    return rank_main(trained);
  });
}

std::vector<float> ValuesOf(const Tensor& t) { return {t.data_as<float>(), t.data_as<float>() + t.numel()}; }

TEST(FsdpModuleTrainingTest, ClipGradNormScalesEveryGradientByTheNormOfTheWholeModel) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    FSDP_RETURN_IF_ERROR(trained.test.ForwardAndBackward());
    double squares = 0;
    for (const auto& [name, parameter] : trained.test.model->NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor whole, trained.root().GetFullGradient(name));
      EXPECT_EQ(whole.shape(), parameter->shape);
      for (const float value : ValuesOf(whole)) squares += double{value} * value;
    }
    FSDP_ASSIGN_OR_RETURN(const Gradients before, trained.test.Gradients());
    FSDP_ASSIGN_OR_RETURN(const float norm, trained.root().ClipGradNorm(1));
    EXPECT_NEAR(norm, std::sqrt(squares), 1e-5 * norm);
    EXPECT_GT(norm, 1);
    FSDP_ASSIGN_OR_RETURN(Gradients after, trained.test.Gradients());
    for (const auto& [name, values] : before) {
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(after[name][i], values[i] / norm, 1e-5 * std::abs(values[i] / norm)) << name;
      }
    }
    EXPECT_THAT(trained.root().ClipGradNorm(-1).status(), StatusIs(absl::StatusCode::kInvalidArgument));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTrainingTest, ADeferredClipGivesTheStepOfClippingBefore) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Trained now, Trained::Make(group, 3));
    FSDP_ASSIGN_OR_RETURN(const Trained deferred, Trained::Make(group, 3));
    FSDP_RETURN_IF_ERROR(now.Step(0));
    FSDP_RETURN_IF_ERROR(deferred.test.ForwardAndBackward(0));
    FSDP_ASSIGN_OR_RETURN(const GradClip clip, deferred.root().ClipGradNormAsync(0.5f));
    deferred.optimizer->set_grad_factor(clip.coefficient());
    FSDP_ASSIGN_OR_RETURN(const Tape tape, deferred.root().NewTape());
    FSDP_RETURN_IF_ERROR(deferred.optimizer->Step(tape.stream()));
    FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    FSDP_ASSIGN_OR_RETURN(const auto expected, now.root().parameters());
    FSDP_ASSIGN_OR_RETURN(const auto actual, deferred.root().parameters());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(ValuesOf(actual[i]->data), ValuesOf(expected[i]->data));
    return absl::OkStatus();
  }));
}

// Steps 0 and 1, then 2 in another model that loaded the state of `save` after 1: the same bits as all steps in one.
void ExpectResumes(const std::function<absl::StatusOr<StateDict>(const Trained& from)>& save,
                   const LoadStateDictOptions& options) {
  StateCollector straight, resumed;
  ASSERT_OK(RunTrained(kRanks, [&](Trained& trained) -> absl::Status {
    FSDP_RETURN_IF_ERROR(trained.Step(0));
    FSDP_RETURN_IF_ERROR(trained.Step(1));
    FSDP_ASSIGN_OR_RETURN(const StateDict saved, save(trained));
    FSDP_ASSIGN_OR_RETURN(const Trained other, Trained::Make(trained.test.group, /*seed=*/4));
    FSDP_RETURN_IF_ERROR(other.root().LoadStateDict(saved, options).status());
    FSDP_ASSIGN_OR_RETURN(const auto unknown, other.root().LoadOptimStateDict(saved, *other.optimizer, options));
    EXPECT_THAT(unknown, IsEmpty());
    for (const auto& [model, collector] :
         {std::pair(&std::as_const(trained), &straight), std::pair(&other, &resumed)}) {
      FSDP_RETURN_IF_ERROR(model->Step(2));
      FSDP_ASSIGN_OR_RETURN(const StateDict state, model->State());
      collector->Add(state);
    }
    return absl::OkStatus();
  }));
  straight.ExpectCovered();
  EXPECT_EQ(straight.size(), 8u * 4);  // parameter, two moments, step
  ExpectSame(straight, resumed);
}

TEST(FsdpModuleTrainingTest, AnOptimizersStateComesBackInRows) {
  ExpectResumes([](const Trained& from) { return from.State(); }, {});
}

TEST(FsdpModuleTrainingTest, AnOptimizersStateComesBackWholeFromEveryRankOrRank0Alone) {
  for (const bool rank0_only : {false, true}) {
    ExpectResumes(
        [=](const Trained& from) -> absl::StatusOr<StateDict> {
          FSDP_ASSIGN_OR_RETURN(StateDict state, from.root().GetFullStateDict({.rank0_only = rank0_only}));
          FSDP_RETURN_IF_ERROR(from.root().AddOptimStateDict(*from.optimizer, state,
                                                             FullOptimStateDictConfig{.rank0_only = rank0_only}));
          const bool is_sent = rank0_only && from.test.group->rank() != 0;
          EXPECT_EQ(state.empty(), is_sent);
          if (is_sent) return from.root().GetStateDict();  // its rows: what such a rank passes is not read
          return state;
        },
        {.broadcast_from_rank0 = rank0_only});
  }
}

TEST(FsdpModuleTrainingTest, AnOptimizersStateOfAnotherTypeThanTheModelsIsRefused) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(StateDict state, trained.root().GetFullStateDict());
    EXPECT_THAT(trained.root().AddOptimStateDict(*trained.optimizer, state),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected one type")));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTrainingTest, NamesThatTheOptimizerLacksAreRefusedOrReturned) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    FSDP_RETURN_IF_ERROR(trained.Step(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict all, trained.State());
    StateDict state;  // without the groups of all parameters
    state.type = all.type;
    for (const auto& [key, value] : all.entries()) {
      if (!(key == StateKey::ParamGroups())) state.Set(key, value);
    }
    FSDP_ASSIGN_OR_RETURN(const auto parameters, trained.root().parameters());
    AdamW fewer({parameters.begin() + 1, parameters.end()}, AdamWOptions{});
    EXPECT_THAT(trained.root().LoadOptimStateDict(state, fewer).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(parameters[0]->fqn)));
    FSDP_ASSIGN_OR_RETURN(const auto unknown, trained.root().LoadOptimStateDict(state, fewer, {.strict = false}));
    EXPECT_THAT(unknown, ElementsAre(parameters[0]->fqn));
    return absl::OkStatus();
  }));
}

// Copies the elements of `saved` into the slices of `wanted`.
absl::Status FillFrom(const StateCollector& saved, StateDict& wanted) {
  for (const auto& [key, value] : wanted.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const std::string bytes = saved.BytesOf(key);
    for (const ShardedTensor::Shard& shard : tensor->shards) {
      const int64_t size = SizeOf(tensor->dtype);
      std::memcpy(shard.data.data(), bytes.data() + shard.interval.begin * size, shard.interval.size() * size);
    }
  }
  return absl::OkStatus();
}

TEST(FsdpModuleTrainingTest, RestoreFillsModelAndOptimizerOnAnyOtherNumberOfRanks) {
  StateCollector saved;
  ASSERT_OK(RunTrained(kRanks, [&](Trained& trained) -> absl::Status {
    FSDP_RETURN_IF_ERROR(trained.Step(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict state, trained.State());
    saved.Add(state);
    return absl::OkStatus();
  }));
  for (const int ranks : {1, 2, 4}) {
    StateCollector restored;
    ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Trained trained, Trained::Make(std::move(group), /*seed=*/4));
      FSDP_RETURN_IF_ERROR(
          trained.root()
              .Restore(trained.optimizer.get(), [&](StateDict& wanted) { return FillFrom(saved, wanted); })
              .status());
      FSDP_ASSIGN_OR_RETURN(const StateDict state, trained.State());
      restored.Add(state);
      return absl::OkStatus();
    }));
    ExpectSame(saved, restored);
  }
}

TEST(FsdpModuleTrainingTest, AFullStateIsStreamedInTheOrderOfItsDescription) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    FSDP_RETURN_IF_ERROR(trained.Step(0));
    FSDP_ASSIGN_OR_RETURN(const StateDict contents, trained.root().DescribeFullState(trained.optimizer.get()));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.root().GetFullStateDict());
    size_t tensors = 0;
    FSDP_RETURN_IF_ERROR(trained.root().StreamFullState(trained.optimizer.get(), [&](const StateDict& part) {
      for (const auto& [key, value] : part.entries()) {
        EXPECT_NE(contents.FindTensor(key), nullptr);
        ++tensors;
        const ShardedTensor* expected = whole.FindTensor(key);
        if (expected == nullptr) continue;
        EXPECT_EQ(ValuesOf(std::get<ShardedTensor>(value).shards.at(0).data), ValuesOf(expected->shards.at(0).data));
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(tensors, trained.test.group->rank() == 0 ? 8u * 4 : 0u);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTrainingTest, SummonFullParamsOfAModuleBindsItsUnitsAndKeepsEdits) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    FsdpModule& block = *trained.test.blocks[0];
    {
      FSDP_ASSIGN_OR_RETURN(const auto guard, block.SummonFullParams());
      for (const auto& [name, parameter] : trained.test.model->NamedParameters()) {
        EXPECT_EQ(parameter->data.defined(), name.substr(0, 2) == "0.") << name;
        if (!parameter->data.defined()) continue;
        EXPECT_EQ(parameter->data.shape(), parameter->shape);
        for (int64_t i = 0; i < parameter->data.numel(); ++i) parameter->data.data_as<float>()[i] = 0.5f * i;
      }
      FSDP_RETURN_IF_ERROR(guard->Close());
    }
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.root().GetFullStateDict());
    for (const float value : ValuesOf(whole.FindTensor(StateKey::Model("2.bias"))->shards.at(0).data)) {
      EXPECT_EQ(value, 0);
    }
    const auto edited = ValuesOf(whole.FindTensor(StateKey::Model("0.1.weight"))->shards.at(0).data);
    for (size_t i = 0; i < edited.size(); ++i) EXPECT_EQ(edited[i], 0.5f * static_cast<float>(i));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTrainingTest, ApplyVisitsEveryModuleBelowWithItsParametersWhole) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    std::vector<std::string> visited;
    FSDP_RETURN_IF_ERROR(FsdpModule::Of(*trained.test.model)->Apply([&](Module& module) {
      visited.emplace_back(module.type_name());
      for (const auto& [name, parameter] : module.own_parameters()) {
        EXPECT_TRUE(parameter->data.defined()) << parameter->fqn;
      }
      return absl::OkStatus();
    }));
    EXPECT_THAT(visited, ElementsAre("Conv1D", "Conv1D", "Block", "Conv1D", "Block", "Conv1D", "Sequential"));
    visited.clear();
    FSDP_RETURN_IF_ERROR(trained.test.blocks[0]->Apply([&](Module& module) {
      visited.emplace_back(module.type_name());
      return absl::OkStatus();
    }));
    EXPECT_THAT(visited, ElementsAre("Conv1D", "Conv1D", "Block")) << "of a module below the root";
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTrainingTest, CallsForBetweenPassesAreRefusedWithinOne) {
  ASSERT_OK(RunTrained(kRanks, [](Trained& trained) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Tape tape, trained.root().NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor wrong, Tensor::Empty(trained.test.device(), DType::kFloat32, {1, 2}));
    EXPECT_FALSE(trained.test.model->Forward(wrong, tape).ok());  // a pass that failed stays open
    StateDict state;
    const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within a forward or backward"));
    FsdpModule& root = trained.root();
    EXPECT_THAT(root.ClipGradNorm(1).status(), refused);
    EXPECT_THAT(root.ClipGradNormAsync(1).status(), refused);
    EXPECT_THAT(root.GetFullGradient("2.bias").status(), refused);
    EXPECT_THAT(root.SummonFullParams().status(), refused);
    EXPECT_THAT(root.AddOptimStateDict(*trained.optimizer, state), refused);
    EXPECT_THAT(root.LoadOptimStateDict(state, *trained.optimizer).status(), refused);
    EXPECT_THAT(root.Restore(nullptr, [](StateDict&) { return absl::OkStatus(); }).status(), refused);
    EXPECT_THAT(root.StreamFullState(nullptr, [](const StateDict&) { return absl::OkStatus(); }), refused);
    EXPECT_THAT(root.Apply([](Module&) { return absl::OkStatus(); }), refused);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

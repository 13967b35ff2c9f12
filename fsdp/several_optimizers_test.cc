// SPDX-License-Identifier: Apache-2.0
//
// A model that several optimizers train, each with parameters of its own, as Muon for matrices and AdamW for the rest:
// their states are in one state dict, and come back from every form of it and from a checkpoint.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Three optimizers of a small GPT-2, two of one class: AdamW for embeddings, in one group, and for other matrices, in
// two, and SGD for vectors.
struct Several {
  TestModel made;
  std::unique_ptr<AdamW> embeddings, matrices;
  std::unique_ptr<Sgd> vectors;

  static absl::StatusOr<Several> Make(std::shared_ptr<ProcessGroup> group, uint64_t seed, double lr) {
    FsdpOptions options = BlockOptions();
    options.init_seed = seed;
    Several several;
    FSDP_ASSIGN_OR_RETURN(several.made, MakeTestModel(std::move(group), options));
    std::vector<ShardedParameter*> embedding, first, second, vector;
    for (ShardedParameter* parameter : several.made.model->parameters()) {
      const bool is_embedding = parameter->fqn.find(".wte.") != std::string::npos;
      const bool is_first = parameter->fqn.find(".h.0.") != std::string::npos;
      std::vector<ShardedParameter*>& matrix = is_embedding ? embedding : is_first ? first : second;
      (parameter->shape.rank() == 1 ? vector : matrix).push_back(parameter);
    }
    several.embeddings = std::make_unique<AdamW>(embedding, AdamWOptions{.lr = lr, .beta2 = 0.95});
    several.matrices = std::make_unique<AdamW>(
        std::vector<AdamW::Group>{{first, {.lr = 2 * lr}}, {second, {.lr = 3 * lr, .weight_decay = 0}}});
    several.vectors = std::make_unique<Sgd>(vector, SgdOptions{.lr = 4 * lr, .momentum = 0.5});
    return several;
  }

  std::vector<Optimizer*> all() const { return {embeddings.get(), matrices.get(), vectors.get()}; }

  absl::Status Train(int step) {
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(step).status());
    for (Optimizer* optimizer : all()) {
      FSDP_RETURN_IF_ERROR(optimizer->Step(made.model->stream()));
      optimizer->ZeroGrad();
    }
    return made.model->stream().Synchronize();
  }

  absl::StatusOr<StateDict> State() const {
    FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
    for (Optimizer* optimizer : all()) FSDP_RETURN_IF_ERROR(made.model->AddOptimStateDict(*optimizer, state));
    return state;
  }

  // The names and values of all groups of all optimizers.
  std::vector<std::vector<std::pair<std::string, double>>> Hyperparameters() const {
    std::vector<std::vector<std::pair<std::string, double>>> values;
    for (const Optimizer* optimizer : all()) {
      for (const ParamGroupState& group : optimizer->ParamGroups()) values.push_back(group.values);
    }
    return values;
  }
};

absl::StatusOr<Several> Trained(std::shared_ptr<ProcessGroup> group) {
  FSDP_ASSIGN_OR_RETURN(Several trained, Several::Make(std::move(group), /*seed=*/11, /*lr=*/0.01));
  for (int step = 0; step < 2; ++step) FSDP_RETURN_IF_ERROR(trained.Train(step));
  return trained;
}

std::vector<StateDictSettings> AllSettings() {
  return {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
          StateDictSettings(LocalStateDictConfig{}),
          StateDictSettings(FullStateDictConfig{}, FullOptimStateDictConfig{.rank0_only = true})};
}

class SeveralOptimizersTest : public testing::TestWithParam<bool> {
 protected:
  static bool strict() { return GetParam(); }
};

TEST_P(SeveralOptimizersTest, EachLoadsItsPartOfAStateDictOfEveryForm) {
  for (const StateDictSettings& settings : AllSettings()) {
    StateCollector before, after;
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(Several trained, Trained(group));
      FSDP_ASSIGN_OR_RETURN(Several fresh, Several::Make(group, /*seed=*/5, /*lr=*/0.5));
      StateDictTypeGuard from(*trained.made.model, settings);
      StateDictTypeGuard to(*fresh.made.model, settings);
      StateDict state;
      for (Optimizer* optimizer : trained.all()) {
        FSDP_RETURN_IF_ERROR(trained.made.model->AddOptimStateDict(*optimizer, state));
      }
      FSDP_ASSIGN_OR_RETURN(const StateDict model, trained.made.model->GetStateDict());
      FSDP_RETURN_IF_ERROR(fresh.made.model->LoadStateDict(model));
      for (Optimizer* optimizer : fresh.all()) {
        EXPECT_THAT(fresh.made.model->LoadOptimStateDict(state, *optimizer, {.strict = strict()}),
                    IsOkAndHolds(IsEmpty()));
      }
      EXPECT_EQ(fresh.Hyperparameters(), trained.Hyperparameters());
      for (Several* one : {&trained, &fresh}) {
        FSDP_RETURN_IF_ERROR(one->Train(2));
        StateDictTypeGuard guard(*one->made.model, FullStateDictConfig{});
        FSDP_ASSIGN_OR_RETURN(const StateDict whole, one->State());
        if (group->rank() == 0) (one == &trained ? before : after).Add(whole);
      }
      return absl::OkStatus();
    }));
    ExpectSame(before, after);
  }
}

INSTANTIATE_TEST_SUITE_P(Strict, SeveralOptimizersTest, testing::Bool());

TEST(SeveralOptimizersStateTest, TheFirstIsWithoutANameAndOthersAreNumberedOrHaveTheirs) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Several trained, Trained(group));
    trained.vectors->set_name("vectors");
    for (int times = 0; times < 2; ++times) {
      FSDP_ASSIGN_OR_RETURN(StateDict state, trained.State());
      // A second time replaces the groups and keeps the names.
      for (Optimizer* optimizer : trained.all()) {
        FSDP_RETURN_IF_ERROR(trained.made.model->AddOptimStateDict(*optimizer, state));
      }
      const nlohmann::json groups = nlohmann::json::parse(*state.FindText(StateKey::ParamGroups()));
      std::vector<std::string> names;
      for (const nlohmann::json& one : groups) names.push_back(one.value("optimizer", "none"));
      EXPECT_THAT(names, ElementsAre("none", "1", "1", "vectors"));
      EXPECT_EQ(groups[3]["momentum"], 0.5);
    }
    return absl::OkStatus();
  }));
}

TEST(SeveralOptimizersStateTest, APartOfAnotherOptimizerIsUnexpectedIfNothingSaysWhoseItIs) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Several trained, Trained(group));
    FSDP_ASSIGN_OR_RETURN(StateDict state, trained.State());
    // As PyTorch's get_optimizer_state_dict(model, [embeddings, matrices, vectors]) joins them.
    nlohmann::json groups = nlohmann::json::parse(*state.FindText(StateKey::ParamGroups()));
    for (nlohmann::json& one : groups) one.erase("optimizer");
    state.Set(StateKey::ParamGroups(), groups.dump());
    FSDP_ASSIGN_OR_RETURN(Several fresh, Several::Make(group, /*seed=*/5, /*lr=*/0.5));
    EXPECT_THAT(fresh.made.model->LoadOptimStateDict(state, *fresh.embeddings, {.strict = true}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a load that is not strict leaves them out")));
    for (Optimizer* optimizer : fresh.all()) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> unexpected,
                            fresh.made.model->LoadOptimStateDict(state, *optimizer, {.strict = false}));
      EXPECT_EQ(unexpected.size() + optimizer->parameters().size(), fresh.made.model->parameters().size());
      EXPECT_EQ(optimizer->step_count(0), 2);
    }
    EXPECT_EQ(fresh.Hyperparameters(), trained.Hyperparameters());
    return absl::OkStatus();
  }));
}

TEST(SeveralOptimizersStateTest, AParameterOfTwoOptimizersIsNamedByEveryRank) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Several trained, Trained(group));
    AdamW everything(trained.made.model->parameters(), {});
    Optimizer* const both[] = {trained.vectors.get(), &everything};
    AdamW partly({trained.vectors->parameters()[0], trained.embeddings->parameters()[0]}, {});
    const auto named = StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(trained.vectors->parameters()[0]->fqn));
    for (const StateDictSettings& settings : AllSettings()) {
      StateDictTypeGuard guard(*trained.made.model, settings);
      StateDict state;
      FSDP_RETURN_IF_ERROR(trained.made.model->AddOptimStateDict(*trained.vectors, state));
      EXPECT_THAT(trained.made.model->AddOptimStateDict(partly, state), named);
    }
    EXPECT_THAT(trained.made.model->Restore(both, [](StateDict&) { return absl::OkStatus(); }), named);
    Optimizer* const overlapping[] = {trained.vectors.get(), &partly};
    EXPECT_THAT(trained.made.model->DescribeFullState(overlapping), named);
    EXPECT_THAT(trained.made.model->StreamFullState(overlapping, [](const StateDict&) { return absl::OkStatus(); }),
                named);
    return absl::OkStatus();
  }));
}

TEST(SeveralOptimizersStateTest, AStreamVisitsTheStatesOfAll) {
  StateCollector full, streamed;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Several trained, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
    FSDP_ASSIGN_OR_RETURN(const StateDict described, trained.made.model->DescribeFullState(trained.all()));
    EXPECT_EQ(described.entries().size(), whole.entries().size());
    EXPECT_EQ(*described.FindText(StateKey::ParamGroups()), *whole.FindText(StateKey::ParamGroups()));
    if (group->rank() == 0) full.Add(whole);
    return trained.made.model->StreamFullState(trained.all(), [&](const StateDict& part) {
      streamed.Add(part);
      return absl::OkStatus();
    });
  }));
  ExpectSame(full, streamed);
}

TEST(SeveralOptimizersStateTest, ACheckpointRestoresAllOnAnotherNumberOfRanks) {
  const std::string root = testing::TempDir() + "/several_optimizers";
  StateCollector saved, loaded;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Several trained, Trained(group));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
    if (group->rank() == 0) saved.Add(whole);
    StateDictTypeGuard guard(*trained.made.model, ShardedStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(const StateDict chunks, trained.State());
    return SaveCheckpoint(chunks, root, 2, *group).status();
  }));
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Several fresh, Several::Make(group, /*seed=*/5, /*lr=*/0.01));
    FSDP_RETURN_IF_ERROR(
        fresh.made.model->Restore(fresh.all(), [&](StateDict& wanted) { return LoadCheckpoint(root, wanted, *group); })
            .status());
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, fresh.State());
    if (group->rank() == 0) loaded.Add(whole);
    return absl::OkStatus();
  }));
  ExpectSame(saved, loaded);
}

}  // namespace
}  // namespace fsdp

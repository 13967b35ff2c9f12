// SPDX-License-Identifier: Apache-2.0
//
// State dicts without frozen parameters: the adapters of a model and not its base.
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/nesting_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr StateDictOptions kTrained = {.ignore_frozen_params = true};

// One block is frozen whole, the other in part, and so is the tied embedding.
bool IsFrozen(const std::string& fqn) {
  return fqn.find(".h.0.") != std::string::npos || fqn.find(".mlp.") != std::string::npos ||
         fqn == "transformer.wte.weight";
}

void Freeze(Module& module) {
  module.AssignNames();
  for (const auto& [name, parameter] : module.NamedParameters()) {
    parameter->requires_grad = !IsFrozen(parameter->fqn);
  }
}

absl::StatusOr<TestModel> MakeFrozen(std::shared_ptr<ProcessGroup> group, uint64_t seed) {
  FsdpOptions options = BlockOptions();
  options.use_orig_params = true;
  options.init_seed = seed;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  Freeze(*module);
  TestModel made;
  FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(module), std::move(group), options));
  return made;
}

std::set<std::string> Names(const StateDict& state) {
  std::set<std::string> names;
  for (const auto& [key, value] : state.entries()) names.insert(key.fqn);
  return names;
}

std::set<std::string> Names(const std::vector<ShardedParameter*>& parameters, bool frozen) {
  std::set<std::string> names;
  for (const ShardedParameter* parameter : parameters) {
    if (IsFrozen(parameter->fqn) == frozen) names.insert(parameter->fqn);
  }
  return names;
}

class FrozenStateTest : public testing::TestWithParam<int> {
 protected:
  static StateDictSettings settings() {
    return std::vector<StateDictSettings>{StateDictSettings(FullStateDictConfig{}),
                                          StateDictSettings(ShardedStateDictConfig{}),
                                          StateDictSettings(LocalStateDictConfig{})}[GetParam()];
  }
};

TEST_P(FrozenStateTest, LeavesFrozenParametersOutAndLoadsTheOthers) {
  ASSERT_OK(RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel source, MakeFrozen(group, 11));
    FSDP_ASSIGN_OR_RETURN(TestModel target, MakeFrozen(group, 5));
    StateDictTypeGuard from(*source.model, settings());
    StateDictTypeGuard to(*target.model, settings());
    FSDP_ASSIGN_OR_RETURN(const StateDict state, source.model->GetStateDict(kTrained));
    EXPECT_EQ(Names(state), Names(source.model->parameters(), /*frozen=*/false));
    EXPECT_THAT(state.aliases, IsEmpty()) << "the tied embedding is frozen";
    std::set<std::string> in_layouts;
    for (const FlatUnitLayout& unit : state.units) {
      for (const FlatUnitLayout::Entry& entry : unit.parameters) in_layouts.insert(entry.fqn);
    }
    EXPECT_EQ(in_layouts, Names(state));

    EXPECT_FALSE(target.model->LoadStateDict(state).ok());
    FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, target.model->LoadStateDict(state, {.strict = false}));
    EXPECT_EQ(std::set<std::string>(keys.missing_keys.begin(), keys.missing_keys.end()),
              Names(source.model->parameters(), /*frozen=*/true));
    EXPECT_THAT(keys.unexpected_keys, IsEmpty());
    for (size_t i = 0; i < source.model->parameters().size(); ++i) {
      const Tensor& a = source.model->parameters()[i]->data;
      const Tensor& b = target.model->parameters()[i]->data;
      const std::string& fqn = source.model->parameters()[i]->fqn;
      if (IsFrozen(fqn) || a.numel() == 0) continue;
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.nbytes()), 0) << fqn;
    }
    FSDP_ASSIGN_OR_RETURN(const StateDict all, source.model->GetStateDict());
    EXPECT_EQ(all.entries().size(), source.model->parameters().size());
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(FullShardedLocal, FrozenStateTest, testing::Range(0, 3));

TEST_P(FrozenStateTest, LeavesOutIgnoredParametersThatAreFrozen) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::unique_ptr<TestSequence> root = MakeTestBlocks();
    Module* const ignored = ModuleAt(*root, "2");
    FSDP_RETURN_IF_ERROR(ignored->Materialize(*group->device(), /*seed=*/3));
    for (const auto& [name, parameter] : ignored->own_parameters()) parameter->requires_grad = name == "bias";
    FSDP_ASSIGN_OR_RETURN(const auto model,
                          FullyShardedDataParallel::Wrap(std::move(root), group, {.ignored_modules = {ignored}}));
    const StateDictTypeGuard guard(*model, settings());
    FSDP_ASSIGN_OR_RETURN(const StateDict state, model->GetStateDict(kTrained));
    EXPECT_TRUE(state.contains(StateKey::Model("2.bias")));
    EXPECT_FALSE(state.contains(StateKey::Model("2.weight")));
    EXPECT_EQ(state.entries().size(), model->parameters().size() + 1);
    return absl::OkStatus();
  }));
}

TEST(FrozenStateCountTest, AUnitThatIsFrozenWholeIsNotGathered) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto log = std::make_shared<RecordingProcessGroup::Log>();
    const auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeFrozen(group, 11));
    std::vector<int> gathers;
    for (const StateDictOptions& options : {StateDictOptions{}, kTrained}) {
      log->clear();
      FSDP_RETURN_IF_ERROR(made.model->GetStateDict(options).status());
      gathers.push_back(CountEntries(*log, "all_gather"));
    }
    EXPECT_THAT(gathers, ElementsAre(3, 2));
    return absl::OkStatus();
  }));
}

TEST(FrozenStateFullyShardTest, RowsAndWholeTensorsAreThoseOfTrainedParameters) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    Freeze(*module);
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*module, mesh));
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, root->parameters());
    const std::set<std::string> trained = Names(parameters, /*frozen=*/false);
    FSDP_ASSIGN_OR_RETURN(const StateDict rows, root->GetStateDict(kTrained));
    EXPECT_EQ(Names(rows), trained);
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, root->GetFullStateDict({}, kTrained));
    EXPECT_EQ(Names(whole), trained);
    FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, root->LoadStateDict(rows, {.strict = false}));
    EXPECT_EQ(keys.missing_keys.size() + trained.size(), parameters.size());
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

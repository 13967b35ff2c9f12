// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/incompatible_keys.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<StateDict> Without(const StateDict& state, const std::string& name) {
  StateDict rest;
  for (const auto& [key, value] : state.entries()) {
    if (key.fqn != name) rest.Set(key, value);
  }
  return rest;
}

TEST(LoadStateDictTest, NotStrictReturnsMissingAndUnexpectedNamesAndLoadsTheRest) {
  for (const StateDictSettings& settings :
       {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
        StateDictSettings(LocalStateDictConfig{})}) {
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel source, MakeTestModel(group, BlockOptions()));
      FsdpOptions other = BlockOptions();
      other.init_seed = 5;
      FSDP_ASSIGN_OR_RETURN(TestModel target, MakeTestModel(group, other));
      StateDictTypeGuard from(*source.model, settings);
      StateDictTypeGuard to(*target.model, settings);
      FSDP_ASSIGN_OR_RETURN(const StateDict all, source.model->GetStateDict());
      FSDP_ASSIGN_OR_RETURN(StateDict some, Without(all, "transformer.h.0.ln_1.bias"));
      some.Set(StateKey::Model("score.weight"), ShardedTensor());
      FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, target.model->LoadStateDict(some, {.strict = false}));
      EXPECT_THAT(keys.missing_keys, ElementsAre("transformer.h.0.ln_1.bias"));
      EXPECT_THAT(keys.unexpected_keys, ElementsAre("score.weight"));
      for (size_t i = 0; i < source.model->parameters().size(); ++i) {
        const ShardedParameter& a = *source.model->parameters()[i];
        const ShardedParameter& b = *target.model->parameters()[i];
        if (a.fqn.find("weight") == std::string::npos || a.interval.empty()) continue;
        EXPECT_EQ(std::memcmp(a.data.data(), b.data.data(), a.data.nbytes()), 0) << a.fqn;
      }
      return absl::OkStatus();
    }));
  }
}

// Each rank but the first lacks another name, and the first has one too many: all report all, in the order of ranks.
TEST(LoadStateDictTest, StrictNamesWhatAnyRankLacks) {
  for (const StateDictSettings& settings :
       {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{})}) {
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
      const StateDictTypeGuard guard(*made.model, settings);
      FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
      const std::vector<std::string> lost = {"", "transformer.wpe.weight", "transformer.ln_f.bias"};
      FSDP_ASSIGN_OR_RETURN(state, Without(state, lost[group->rank()]));
      if (group->rank() == 0) state.Set(StateKey::Model("score.weight"), ShardedTensor());
      EXPECT_THAT(made.model->LoadStateDict(state),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr("missing: [transformer.wpe.weight, transformer.ln_f.bias]; "
                                     "unexpected: [score.weight]")));
      FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys, made.model->LoadStateDict(state, {.strict = false}));
      EXPECT_THAT(keys.missing_keys, ElementsAre("transformer.wpe.weight", "transformer.ln_f.bias"));
      EXPECT_THAT(keys.unexpected_keys, ElementsAre("score.weight"));
      return absl::OkStatus();
    }));
  }
}

// Loads `state` without the first `missing` of its names and with `unexpected` others. The ranks exchange these names,
// so every combination of small numbers counts: two and two were once read as the members of an object.
absl::Status LoadOthers(TestModel& made, const StateDict& state, int missing, int unexpected, bool from_rank0) {
  StateDict given;
  given.type = state.type;
  std::vector<std::string> lost, added;
  for (const auto& [key, value] : state.entries()) {
    if (static_cast<int>(lost.size()) == missing) {
      given.Set(key, value);
    } else {
      lost.push_back(key.fqn);
    }
  }
  for (int i = 0; i < unexpected; ++i) added.push_back(absl::StrCat("renamed.", i));
  for (const std::string& name : added) given.Set(StateKey::Model(name), ShardedTensor());
  FSDP_ASSIGN_OR_RETURN(const IncompatibleKeys keys,
                        made.model->LoadStateDict(given, {.strict = false, .broadcast_from_rank0 = from_rank0}));
  EXPECT_EQ(keys.missing_keys, lost);
  EXPECT_EQ(keys.unexpected_keys, added);
  const absl::Status strict = made.model->LoadStateDict(given, {.broadcast_from_rank0 = from_rank0}).status();
  EXPECT_EQ(strict, keys.ToStatus("state dict"));
  return absl::OkStatus();
}

TEST(LoadStateDictTest, NamesThatDoNotFitComeBackHoweverManyThereAre) {
  const auto load_all = [](TestModel& made, const StateDictSettings& settings, bool from_rank0) -> absl::Status {
    StateDictTypeGuard guard(*made.model, settings);
    FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
    for (int missing = 0; missing <= 3; ++missing) {
      for (int unexpected = 0; unexpected <= 3; ++unexpected) {
        FSDP_RETURN_IF_ERROR(LoadOthers(made, state, missing, unexpected, from_rank0));
      }
    }
    return absl::OkStatus();
  };
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(load_all(made, FullStateDictConfig{}, /*from_rank0=*/false));
    FSDP_RETURN_IF_ERROR(load_all(made, FullStateDictConfig{}, /*from_rank0=*/true));
    FSDP_RETURN_IF_ERROR(load_all(made, ShardedStateDictConfig{}, /*from_rank0=*/false));
    return load_all(made, LocalStateDictConfig{}, /*from_rank0=*/false);
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// What every optimizer can do with sharded parameters: train as on one rank, and have a state that comes back from
// every form of a state dict and from a checkpoint, on another number of ranks. A new optimizer is one more Kind.
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/state/state_collector_testutil.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/optim/adafactor.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/lion.h"
#include "fsdp/optim/muon.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/convert_elements.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::IsEmpty;
using Parameters = std::vector<ShardedParameter*>;

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Optimizer>(FullyShardedDataParallel& model, double lr)> make;
  bool is_exact = true;    // n ranks have the bits of one, if sums over ranks are exact
  double rounding = 2e-3;  // what a rounding of the gradients or of a sum can do to a number; 0: anything

  // Of parameters and states; bfloat16 is rounded at random.
  DType dtype = DType::kFloat32;
  bool rounds_at_random() const { return dtype == DType::kBFloat16; }
};

// The parameters of two dimensions, and the others.
std::pair<Parameters, Parameters> ByDimensions(FullyShardedDataParallel& model) {
  std::pair<Parameters, Parameters> parts;
  for (ShardedParameter* p : model.parameters()) (p->shape.rank() == 2 ? parts.first : parts.second).push_back(p);
  return parts;
}

std::vector<Kind> Kinds() {
  std::vector<Kind> kinds;
  kinds.push_back({"amsgrad", [](FullyShardedDataParallel& model, double lr) -> std::unique_ptr<Optimizer> {
                     const auto [matrices, others] = ByDimensions(model);
                     // Other states in one unit.
                     return std::make_unique<AdamW>(std::vector<AdamW::Group>{
                         {matrices, {.lr = lr, .amsgrad = true}},
                         {others, {.lr = lr, .weight_decay = 0.1, .decoupled_weight_decay = false}}});
                   }});
  kinds.push_back({"lion", [](FullyShardedDataParallel& model, double lr) -> std::unique_ptr<Optimizer> {
                     return std::make_unique<Lion>(model.parameters(), LionOptions{.lr = lr, .weight_decay = 0.1});
                   }});
  kinds.push_back({"adafactor",
                   [](FullyShardedDataParallel& model, double lr) -> std::unique_ptr<Optimizer> {
                     return std::make_unique<Adafactor>(
                         model.parameters(), AdafactorOptions{.lr = lr, .weight_decay = 0.1}, MakeShardExchange(model));
                   },
                   /*is_exact=*/false,
                   /*rounding=*/5e-3});
  // Newton-Schulz rounds to bfloat16.
  kinds.push_back({"muon",
                   [](FullyShardedDataParallel& model, double lr) -> std::unique_ptr<Optimizer> {
                     return std::make_unique<Muon>(ByDimensions(model).first, MuonOptions{.lr = lr},
                                                   MakeShardExchange(model));
                   },
                   /*is_exact=*/true,
                   /*rounding=*/2e-2});
  kinds.push_back({"sgd", [](FullyShardedDataParallel& model, double lr) -> std::unique_ptr<Optimizer> {
                     return std::make_unique<Sgd>(model.parameters(),
                                                  SgdOptions{.lr = lr, .momentum = 0.9, .weight_decay = 0.1});
                   }});
  // In 16 bits a gradient that is only a rounding error is not small, so 3 ranks differ from one by whole steps.
  for (size_t k = 0; k < 5; ++k) {
    Kind low = kinds[k];
    low.name += "_bfloat16";
    low.is_exact = true;
    low.rounding = 0;
    low.dtype = DType::kBFloat16;
    kinds.push_back(std::move(low));
  }
  // Half of a gradient may be too small for float16.
  kinds.push_back({"adamw_float16",
                   [](FullyShardedDataParallel& model, double lr) -> std::unique_ptr<Optimizer> {
                     return std::make_unique<AdamW>(model.parameters(), AdamWOptions{.lr = lr, .eps = 1e-4});
                   },
                   /*is_exact=*/false,
                   /*rounding=*/0, DType::kFloat16});
  return kinds;
}

// A model and an optimizer of one kind on one rank.
struct Training {
  TestModel made;
  std::unique_ptr<Optimizer> optimizer;

  static absl::StatusOr<Training> Make(const Kind& kind, std::shared_ptr<ProcessGroup> group, FsdpOptions options,
                                       double lr = 0.01) {
    Training training;
    FSDP_ASSIGN_OR_RETURN(training.made, MakeTestModel(std::move(group), options, kind.dtype));
    training.optimizer = kind.make(*training.made.model, lr);
    // A seed of its own, as it has a learning rate of its own, so that a load shows.
    if (kind.rounds_at_random()) {
      FSDP_RETURN_IF_ERROR(training.optimizer->set_bf16_stochastic_round(lr == 0.01 ? 7 : 8));
    }
    return training;
  }

  // A step on the same batch on every rank, so that any number of ranks has the same gradients.
  absl::Status Train(int step) {
    FullyShardedDataParallel& model = *made.model;
    FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(model.device(), step, /*rank=*/0));
    Tape tape = model.NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
    FSDP_ASSIGN_OR_RETURN(CrossEntropyLoss::LossAndGradient loss,
                          CrossEntropyLoss().ForwardBackward(logits, batch.targets, 1.0f, tape));
    FSDP_RETURN_IF_ERROR(model.Backward(loss.grad_logits, tape).status());
    FSDP_RETURN_IF_ERROR(optimizer->Step(model.stream()));
    optimizer->ZeroGrad();
    return model.stream().Synchronize();
  }

  absl::StatusOr<StateDict> State() const {
    FSDP_ASSIGN_OR_RETURN(StateDict state, made.model->GetStateDict());
    FSDP_RETURN_IF_ERROR(made.model->AddOptimStateDict(*optimizer, state));
    return state;
  }
};

absl::StatusOr<Training> Trained(const Kind& kind, std::shared_ptr<ProcessGroup> group,
                                 const FsdpOptions& options = BlockOptions(), int steps = 3) {
  FSDP_ASSIGN_OR_RETURN(Training trained, Training::Make(kind, std::move(group), options));
  for (int step = 0; step < steps; ++step) FSDP_RETURN_IF_ERROR(trained.Train(step));
  return trained;
}

using Numbers = std::map<std::string, std::vector<float>>;  // by key

// All of a training's FULL state after `steps` steps on `ranks` ranks.
Numbers StateAfterTraining(const Kind& kind, int ranks, const FsdpOptions& options, int steps) {
  Numbers all;
  EXPECT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Training trained, Trained(kind, group, options, steps));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
    for (const auto& [key, value] : whole.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (group->rank() != 0 || tensor == nullptr) continue;
      const Tensor& data = tensor->shards.at(0).data;
      EXPECT_EQ(data.numel(), tensor->shape.numel()) << key.ToString();
      EXPECT_EQ(data.dtype(), key.state == "step" ? DType::kFloat32 : kind.dtype) << key.ToString();
      std::vector<float>& numbers = all[key.ToString()];
      numbers.resize(data.numel());
      FSDP_RETURN_IF_ERROR(Convert(data.dtype(), data.data(), DType::kFloat32, numbers.data(), data.numel()));
    }
    return absl::OkStatus();
  }));
  return all;
}

// Each number may differ by `allowed` of itself and of 0.01, the learning rate.
void ExpectNear(const Numbers& several, const Numbers& one, double allowed) {
  ASSERT_EQ(several.size(), one.size());
  for (const auto& [key, numbers] : one) {
    const std::vector<float>& mine = several.at(key);
    ASSERT_EQ(mine.size(), numbers.size()) << key;
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_NEAR(mine[i], numbers[i], allowed * (std::abs(numbers[i]) + 1e-2)) << key << " of element " << i;
    }
  }
}

class EveryOptimizerTest : public testing::TestWithParam<Kind> {};

// Two or four equal gradients have an exact mean. Three have not, and after a step the gradients that are only rounding
// errors, as of the biases of keys, differ: one step shows that slices of any size are updated.
// A value that is NaN is one that is not set.
void ExpectSame(const ParamGroupState& a, const ParamGroupState& b) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_EQ(a.values[i].first, b.values[i].first);
    EXPECT_THAT(a.values[i].second, testing::NanSensitiveDoubleEq(b.values[i].second)) << a.values[i].first;
  }
}

TEST_P(EveryOptimizerTest, TrainsOnAnyNumberOfRanksAsOnOne) {
  if (!GetParam().is_exact && GetParam().rounding == 0) GTEST_SKIP() << "its roundings are not bounded";
  const Numbers one = StateAfterTraining(GetParam(), 1, BlockOptions(), 3);
  const Numbers first = StateAfterTraining(GetParam(), 1, BlockOptions(), 1);
  FsdpOptions aligned = BlockOptions(), replicated = BlockOptions(), hybrid = BlockOptions();
  aligned.use_orig_params = true;
  replicated.sharding_strategy = ShardingStrategy::kNoShard;
  hybrid.sharding_strategy = ShardingStrategy::kHybridShard;
  hybrid.shard_group_size = 2;
  const double rounding = GetParam().rounding;
  for (const FsdpOptions& options : {BlockOptions(), aligned, replicated, MixedOptions()}) {
    ExpectNear(StateAfterTraining(GetParam(), 2, options, 3), one, GetParam().is_exact ? 0 : rounding);
    if (rounding > 0) ExpectNear(StateAfterTraining(GetParam(), 3, options, 1), first, rounding);
  }
  ExpectNear(StateAfterTraining(GetParam(), 4, hybrid, 3), one, GetParam().is_exact ? 0 : rounding);
}

TEST_P(EveryOptimizerTest, HasTheSameBitsInEveryRun) {
  EXPECT_EQ(StateAfterTraining(GetParam(), 3, BlockOptions(), 3), StateAfterTraining(GetParam(), 3, BlockOptions(), 3));
}

TEST_P(EveryOptimizerTest, HasOneStateInEveryFormAndInAStream) {
  StateCollector full, sharded, local, streamed;
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Training trained, Trained(GetParam(), group));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
    if (group->rank() == 0) full.Add(whole);
    for (StateCollector* collector : {&sharded, &local}) {
      StateDictTypeGuard guard(*trained.made.model, collector == &sharded ? StateDictSettings(ShardedStateDictConfig{})
                                                                          : StateDictSettings(LocalStateDictConfig{}));
      FSDP_ASSIGN_OR_RETURN(const StateDict part, trained.State());
      collector->Add(part);
    }
    Optimizer* const only[] = {trained.optimizer.get()};
    return trained.made.model->StreamFullState(only, [&](const StateDict& part) {
      streamed.Add(part);
      return absl::OkStatus();
    });
  }));
  for (const StateCollector* collector : {&sharded, &local, &streamed}) {
    collector->ExpectCovered();
    ExpectSame(full, *collector);
  }
}

TEST_P(EveryOptimizerTest, ContinuesWithTheSameBitsFromEveryForm) {
  for (const StateDictSettings& settings :
       {StateDictSettings(FullStateDictConfig{}), StateDictSettings(ShardedStateDictConfig{}),
        StateDictSettings(LocalStateDictConfig{}),
        StateDictSettings(FullStateDictConfig{}, FullOptimStateDictConfig{.rank0_only = true})}) {
    StateCollector before, after;
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(Training trained, Trained(GetParam(), group));
      FsdpOptions other = BlockOptions();
      other.init_seed = 5;
      FSDP_ASSIGN_OR_RETURN(Training fresh, Training::Make(GetParam(), group, other, /*lr=*/0.5));
      StateDictTypeGuard from(*trained.made.model, settings);
      StateDictTypeGuard to(*fresh.made.model, settings);
      StateDict state;
      FSDP_RETURN_IF_ERROR(trained.made.model->AddOptimStateDict(*trained.optimizer, state));
      FSDP_ASSIGN_OR_RETURN(const StateDict model, trained.made.model->GetStateDict());
      FSDP_RETURN_IF_ERROR(fresh.made.model->LoadStateDict(model));
      EXPECT_THAT(fresh.made.model->LoadOptimStateDict(state, *fresh.optimizer, {.strict = true}),
                  IsOkAndHolds(IsEmpty()));
      for (size_t g = 0; g < fresh.optimizer->ParamGroups().size(); ++g) {
        ExpectSame(fresh.optimizer->ParamGroups()[g], trained.optimizer->ParamGroups()[g]);
      }
      for (Training* one : {&trained, &fresh}) {
        FSDP_RETURN_IF_ERROR(one->Train(3));
        StateDictTypeGuard guard(*one->made.model, FullStateDictConfig{});
        FSDP_ASSIGN_OR_RETURN(const StateDict whole, one->State());
        if (group->rank() == 0) (one == &trained ? before : after).Add(whole);
      }
      return absl::OkStatus();
    }));
    ExpectSame(before, after);
  }
}

// As PyTorch's SGD, Muon and Lion save their states.
TEST_P(EveryOptimizerTest, LoadsAStateWithoutStepsIfPyTorchsHasNone) {
  StateCollector before, after;
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Training trained, Trained(GetParam(), group));
    FSDP_ASSIGN_OR_RETURN(Training fresh, Training::Make(GetParam(), group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
    StateDict without_steps;
    for (const auto& [key, value] : whole.entries()) {
      if (key.section != StateKey::Section::kModel && key.state != "step") without_steps.Set(key, value);
    }
    FSDP_RETURN_IF_ERROR(fresh.made.model->LoadStateDict(whole));
    const auto loaded = fresh.made.model->LoadOptimStateDict(without_steps, *fresh.optimizer, {.strict = true});
    if (fresh.optimizer->needs_step()) {
      EXPECT_THAT(loaded, StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr("lacks step")));
      return absl::OkStatus();
    }
    EXPECT_THAT(loaded, IsOkAndHolds(IsEmpty()));
    for (size_t i = 0; i < fresh.optimizer->parameters().size(); ++i) {
      EXPECT_EQ(fresh.optimizer->step_count(i), 1);
      // Random numbers are of the step.
      if (GetParam().rounds_at_random()) fresh.optimizer->set_step_count(i, trained.optimizer->step_count(i));
    }
    for (Training* one : {&trained, &fresh}) {
      FSDP_RETURN_IF_ERROR(one->Train(3));
      FSDP_ASSIGN_OR_RETURN(const StateDict state, one->State());
      StateDict rest;
      for (const auto& [key, value] : state.entries()) {
        if (key.state != "step") rest.Set(key, value);
      }
      if (group->rank() == 0) (one == &trained ? before : after).Add(rest);
    }
    return absl::OkStatus();
  }));
  ExpectSame(before, after);
}

TEST_P(EveryOptimizerTest, IsRestoredFromACheckpointOfEveryFormOnAnotherNumberOfRanks) {
  int form = 0;
  for (const StateDictSettings& settings :
       {StateDictSettings(ShardedStateDictConfig{}), StateDictSettings(LocalStateDictConfig{})}) {
    const std::string root = absl::StrCat(testing::TempDir(), "/every_optimizer_", GetParam().name, "_", form++);
    StateCollector saved, loaded;
    ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(Training trained, Trained(GetParam(), group));
      FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
      if (group->rank() == 0) saved.Add(whole);
      StateDictTypeGuard guard(*trained.made.model, settings);
      FSDP_ASSIGN_OR_RETURN(const StateDict parts, trained.State());
      return SaveCheckpoint(parts, root, 3, *group).status();
    }));
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FsdpOptions other = BlockOptions();
      other.init_seed = 5;
      FSDP_ASSIGN_OR_RETURN(Training fresh, Training::Make(GetParam(), group, other));
      Optimizer* const only[] = {fresh.optimizer.get()};
      FSDP_RETURN_IF_ERROR(
          fresh.made.model->Restore(only, [&](StateDict& wanted) { return LoadCheckpoint(root, wanted, *group); })
              .status());
      FSDP_ASSIGN_OR_RETURN(const StateDict whole, fresh.State());
      if (group->rank() == 0) loaded.Add(whole);
      return absl::OkStatus();
    }));
    ExpectSame(saved, loaded);
  }
}

// An optimizer without a step has no state: its groups say that it is there.
TEST_P(EveryOptimizerTest, IsRestoredFromACheckpointThatWasSavedBeforeItsFirstStep) {
  const std::string root = absl::StrCat(testing::TempDir(), "/before_a_step_", GetParam().name);
  StateCollector saved, loaded;
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Training fresh, Training::Make(GetParam(), group, BlockOptions()));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, fresh.State());
    if (group->rank() == 0) saved.Add(whole);
    FSDP_RETURN_IF_ERROR(SaveCheckpoint(whole, root, 0, *group).status());
    FSDP_ASSIGN_OR_RETURN(Training trained, Trained(GetParam(), group));
    Optimizer* const only[] = {trained.optimizer.get()};
    FSDP_RETURN_IF_ERROR(
        trained.made.model->Restore(only, [&](StateDict& wanted) { return LoadCheckpoint(root, wanted, *group); })
            .status());
    for (size_t i = 0; i < trained.optimizer->parameters().size(); ++i) EXPECT_EQ(trained.optimizer->step_count(i), 0);
    FSDP_ASSIGN_OR_RETURN(const StateDict again, trained.State());
    if (group->rank() == 0) loaded.Add(again);
    return absl::OkStatus();
  }));
  ExpectSame(saved, loaded);
}

// A checkpoint with such a state, as Restore reads it.
TEST_P(EveryOptimizerTest, IsRestoredFromACheckpointWithoutStepsIfPyTorchsHasNone) {
  const std::string root = absl::StrCat(testing::TempDir(), "/without_steps_", GetParam().name);
  StateCollector saved, loaded;
  const auto without_steps = [](const StateDict& all) {
    StateDict rest;
    rest.aliases = all.aliases;
    for (const auto& [key, value] : all.entries()) {
      if (key.state != "step") rest.Set(key, value);
    }
    return rest;
  };
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Training trained, Trained(GetParam(), group));
    FSDP_ASSIGN_OR_RETURN(const StateDict whole, trained.State());
    const StateDict rest = without_steps(whole);
    if (group->rank() == 0) saved.Add(rest);
    FSDP_RETURN_IF_ERROR(SaveCheckpoint(rest, root, 3, *group).status());
    FsdpOptions other = BlockOptions();
    other.init_seed = 5;
    FSDP_ASSIGN_OR_RETURN(Training fresh, Training::Make(GetParam(), group, other));
    Optimizer* const only[] = {fresh.optimizer.get()};
    const absl::Status restored =
        fresh.made.model->Restore(only, [&](StateDict& wanted) { return LoadCheckpoint(root, wanted, *group); })
            .status();
    if (fresh.optimizer->needs_step()) {
      EXPECT_THAT(restored, StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr("/step")));
      return absl::OkStatus();
    }
    FSDP_RETURN_IF_ERROR(restored);
    for (size_t i = 0; i < fresh.optimizer->parameters().size(); ++i) EXPECT_EQ(fresh.optimizer->step_count(i), 1);
    FSDP_ASSIGN_OR_RETURN(const StateDict again, fresh.State());
    if (group->rank() == 0) loaded.Add(without_steps(again));
    return absl::OkStatus();
  }));
  if (loaded.size() > 0) ExpectSame(saved, loaded);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryOptimizerTest, testing::ValuesIn(Kinds()),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Training with parameters that do not require gradients: the trained ones get the same bits as if the others had
// gradients that are ignored; the others keep their bits, and have neither reductions nor optimizer state.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/optim/adamw.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int kSteps = 3;

enum class Frozen {
  kBlock,         // a whole unit
  kHalfOfBlocks,  // parts of each unit, and the tied embedding
};

bool IsFrozen(Frozen which, const std::string& fqn) {
  if (which == Frozen::kBlock) return absl::StartsWith(fqn, "transformer.h.0.");
  return absl::StrContains(fqn, ".attn.") || fqn == "transformer.wte.weight";
}

// A model whose frozen parameters have no gradients, or have some (`for_real` off) that its optimizer does not see.
absl::StatusOr<TestModel> MakeModel(std::shared_ptr<ProcessGroup> group, Frozen which, const FsdpOptions& options,
                                    bool for_real) {
  TestModel made;
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  module->AssignNames();
  for (const auto& [name, parameter] : module->NamedParameters()) {
    if (for_real && IsFrozen(which, parameter->fqn)) parameter->requires_grad = false;
  }
  FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(module), std::move(group), options));
  std::vector<ShardedParameter*> trained;
  for (ShardedParameter* parameter : made.model->parameters()) {
    EXPECT_EQ(parameter->requires_grad, !for_real || !IsFrozen(which, parameter->fqn)) << parameter->fqn;
    if (!IsFrozen(which, parameter->fqn)) trained.push_back(parameter);
  }
  made.optimizer = std::make_unique<AdamW>(AdamW::DecayMatricesOnly(trained, {.lr = 1e-2, .weight_decay = 0.1}));
  return made;
}

using Bits = std::map<std::string, std::string>;

// This rank's slices, bit for bit.
Bits BitsOf(const FullyShardedDataParallel& model) {
  Bits bits;
  for (const ShardedParameter* parameter : model.parameters()) {
    bits[parameter->fqn].assign(parameter->data.data_as<const char>(), parameter->data.nbytes());
  }
  return bits;
}

absl::Status TrainAccumulating(TestModel& made) {
  for (int step = 0; step < kSteps; ++step) {
    {
      const NoSyncGuard guard(*made.model);
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(10 + step).status());
    }
    FSDP_RETURN_IF_ERROR(made.Train(step));
  }
  return absl::OkStatus();
}

absl::Status ExpectTrainsTheRest(std::shared_ptr<ProcessGroup> group, Frozen which, const FsdpOptions& options) {
  FSDP_ASSIGN_OR_RETURN(TestModel frozen, MakeModel(group, which, options, /*for_real=*/true));
  FSDP_ASSIGN_OR_RETURN(TestModel reference, MakeModel(group, which, options, /*for_real=*/false));
  const Bits before = BitsOf(*frozen.model);
  FSDP_RETURN_IF_ERROR(TrainAccumulating(frozen));
  FSDP_RETURN_IF_ERROR(TrainAccumulating(reference));
  const Bits after = BitsOf(*frozen.model), expected = BitsOf(*reference.model);
  for (const auto& [fqn, bits] : expected) {
    EXPECT_EQ(after.at(fqn), bits) << fqn;
    EXPECT_EQ(after.at(fqn) == before.at(fqn), IsFrozen(which, fqn) || bits.empty()) << fqn;
  }
  return absl::OkStatus();
}

TEST(FrozenTrainingTest, TheRestIsTrainedAsIfNothingWereFrozen) {
  for (const int world_size : {1, 2, 3}) {
    for (const ShardingStrategy strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
      for (const Frozen which : {Frozen::kBlock, Frozen::kHalfOfBlocks}) {
        SCOPED_TRACE(absl::StrCat(world_size, " ranks, ", std::string(ShardingStrategyName(strategy))));
        FsdpOptions options = BlockOptions();
        options.sharding_strategy = strategy;
        options.use_orig_params = which == Frozen::kHalfOfBlocks;
        EXPECT_OK(RunRanks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
          return ExpectTrainsTheRest(group, which, options);
        }));
      }
    }
  }
}

TEST(FrozenTrainingTest, MixedPrecisionOffloadAndRecomputationTrainTheRestToo) {
  FsdpOptions mixed = BlockOptions();
  mixed.use_orig_params = true;
  mixed.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  mixed.activation_checkpointing = true;
  FsdpOptions offloaded = BlockOptions();
  offloaded.use_orig_params = true;
  offloaded.cpu_offload.offload_params = true;
  for (const FsdpOptions& options : {mixed, offloaded}) {
    EXPECT_OK(RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      return ExpectTrainsTheRest(group, Frozen::kHalfOfBlocks, options);
    }));
  }
}

TEST(FrozenTrainingTest, AUnitThatIsFrozenWholeIsGatheredAndNotReduced) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto log = std::make_shared<RecordingProcessGroup::Log>();
    auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", log);
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeModel(group, Frozen::kBlock, BlockOptions(), /*for_real=*/true));
    log->clear();
    FSDP_RETURN_IF_ERROR(made.Train(0));
    EXPECT_EQ(CountEntries(*log, "reduce_scatter"), 2);  // the root and the other block
    EXPECT_EQ(CountEntries(*log, "all_gather"), 5);
    EXPECT_THAT(RenderSchedule(made.model->StepSchedule(1), made.model->UnitNames()),
                Not(HasSubstr("reduce_scatter transformer.h.0\n")));
    return absl::OkStatus();
  }));
}

// Trains a model whose block is frozen when it is wrapped, thaws the block and trains on, as a model whose optimizer
// gets the block then; in the end freezes it again.
absl::Status ExpectThaws(std::shared_ptr<ProcessGroup> group, const FsdpOptions& options) {
  FSDP_ASSIGN_OR_RETURN(TestModel frozen, MakeModel(group, Frozen::kBlock, options, /*for_real=*/true));
  FSDP_ASSIGN_OR_RETURN(TestModel reference, MakeModel(group, Frozen::kBlock, options, /*for_real=*/false));
  const auto set_frozen = [&](bool is_frozen) {
    for (const auto& [name, parameter] : frozen.model->module().NamedParameters()) {
      if (IsFrozen(Frozen::kBlock, parameter->fqn)) parameter->requires_grad = !is_frozen;
    }
  };
  FSDP_RETURN_IF_ERROR(TrainAccumulating(frozen));
  FSDP_RETURN_IF_ERROR(TrainAccumulating(reference));
  set_frozen(false);
  for (TestModel* made : {&frozen, &reference}) {
    AdamW::Group block{{}, {.lr = 2e-2}};
    for (ShardedParameter* parameter : made->model->parameters()) {
      if (IsFrozen(Frozen::kBlock, parameter->fqn)) block.parameters.push_back(parameter);
      parameter->has_grad = false;  // the reference has gradients that its optimizer did not see
    }
    FSDP_RETURN_IF_ERROR(made->optimizer->AddParamGroup(std::move(block)));
    FSDP_RETURN_IF_ERROR(TrainAccumulating(*made));
  }
  for (const ShardedParameter* parameter : frozen.model->parameters()) EXPECT_TRUE(parameter->requires_grad);
  const Bits thawed = BitsOf(*frozen.model);
  EXPECT_TRUE(thawed == BitsOf(*reference.model));
  set_frozen(true);
  FSDP_RETURN_IF_ERROR(TrainAccumulating(frozen));
  for (const auto& [fqn, bits] : BitsOf(*frozen.model)) {
    EXPECT_EQ(bits == thawed.at(fqn), IsFrozen(Frozen::kBlock, fqn) || bits.empty()) << fqn;
  }
  return absl::OkStatus();
}

TEST(FrozenTrainingTest, AUnitThatWasWrappedFrozenIsThawedAndFrozenBetweenSteps) {
  std::vector<FsdpOptions> all(5, BlockOptions());
  all[1].sharding_strategy = ShardingStrategy::kShardGradOp;
  all[2].sharding_strategy = ShardingStrategy::kNoShard;
  all[3].mixed_precision = {.param_dtype = DType::kBFloat16, .keep_low_precision_grads = true};
  all[4].cpu_offload.offload_params = true;
  for (const FsdpOptions& options : all) {
    for (const int world_size : {1, 3}) {
      EXPECT_OK(RunRanks(world_size,
                         [&](const std::shared_ptr<ProcessGroup>& group) { return ExpectThaws(group, options); }));
    }
  }
}

TEST(FrozenTrainingTest, UnitsOfFullyShardThatWereFrozenAreThawedAndFrozenBetweenSteps) {
  EXPECT_OK(RunRanks(3, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gradients all, StepWith(group, {}, nullptr));
    // The first block, the second and larger one, the root's own parameters, and both blocks.
    for (const std::string frozen : {"0", "1", "2", "01"}) {
      FSDP_ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(group));
      for (const bool is_frozen : {true, false, true}) {
        Gradients wanted = all;
        for (const auto& [name, parameter] : test.model->NamedParameters()) {
          const bool one = frozen.find(name[0]) != std::string::npos;
          parameter->requires_grad = !(one && is_frozen);
          if (!parameter->requires_grad) wanted.erase(name);
        }
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
        FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
        EXPECT_EQ(gradients, wanted) << frozen;
        FSDP_RETURN_IF_ERROR(test.ZeroGrad());
      }
    }
    return absl::OkStatus();
  }));
}

// An optimizer that gets them skips them, as PyTorch's does; gradients can still be read.
TEST(FrozenTrainingTest, FrozenParametersInAnOptimizerAreLeftAlone) {
  EXPECT_OK(RunRanks(2, [](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    options.use_orig_params = true;
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeModel(group, Frozen::kBlock, options, /*for_real=*/true));
    made.optimizer = std::make_unique<AdamW>(made.model->parameters(), AdamWOptions{.lr = 1e-2});
    const Bits before = BitsOf(*made.model);
    FSDP_RETURN_IF_ERROR(made.Train(0));
    for (const auto& [fqn, bits] : BitsOf(*made.model)) {
      EXPECT_EQ(bits == before.at(fqn), IsFrozen(Frozen::kBlock, fqn) || bits.empty()) << fqn;
    }
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(1).status());
    FSDP_RETURN_IF_ERROR(made.model->ClipGradNorm(1).status());
    SummonFullParamsOptions summon;
    summon.with_grads = true;
    FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams(summon));
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      EXPECT_EQ(parameter->grad.defined(), !IsFrozen(Frozen::kBlock, parameter->fqn)) << name;
    }
    return guard->Close();
  }));
}

// Parameters of a unit can be mixed, but not in FSDP1's flat parameter.
TEST(FrozenTrainingTest, AMixedUnitWantsOriginalParameters) {
  EXPECT_OK(RunRanks(1, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT(MakeModel(group, Frozen::kHalfOfBlocks, BlockOptions(), /*for_real=*/true).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wrap them apart or set use_orig_params")));
    return absl::OkStatus();
  }));
}

// Also in an optimizer that was given the frozen ones.
TEST(FrozenTrainingTest, TheOptimizerStateHasWhatIsTrainedInEveryForm) {
  FsdpOptions options = BlockOptions();
  options.use_orig_params = true;
  const std::vector<StateDictSettings> forms = {{FullStateDictConfig{}, FullOptimStateDictConfig{}},
                                                {ShardedStateDictConfig{}, ShardedOptimStateDictConfig{}},
                                                {LocalStateDictConfig{}, LocalOptimStateDictConfig{}}};
  for (const bool all_given : {false, true}) {
    for (const StateDictSettings& form : forms) {
      EXPECT_OK(RunRanks(3, [&](const std::shared_ptr<ProcessGroup>& group) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(TestModel made, MakeModel(group, Frozen::kHalfOfBlocks, options, /*for_real=*/true));
        if (all_given) made.optimizer = std::make_unique<AdamW>(made.model->parameters(), AdamWOptions{.lr = 1e-2});
        FSDP_RETURN_IF_ERROR(made.Train(0));
        const StateDictTypeGuard guard(*made.model, form);
        FSDP_ASSIGN_OR_RETURN(const StateDict state, made.AllState());
        for (const ShardedParameter* parameter : made.model->parameters()) {
          const std::string& fqn = parameter->fqn;
          EXPECT_TRUE(state.contains(StateKey::Model(fqn))) << fqn;
          for (const char* const name : {"exp_avg", "exp_avg_sq", "step"}) {
            EXPECT_EQ(state.contains(StateKey::OptimState(fqn, name)), parameter->requires_grad) << fqn << " " << name;
          }
        }
        return made.model->LoadOptimStateDict(state, *made.optimizer);
      }));
    }
  }
}

}  // namespace
}  // namespace fsdp

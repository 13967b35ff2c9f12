// SPDX-License-Identifier: Apache-2.0
//
// Flat parameters of FSDP1 with frozen and trained parts: they reduce, and have gradient memory for, the trained ones,
// which get the same bits as if the whole were reduced.
#include <functional>
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
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/models/gpt2.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using IsTrained = std::function<bool(const std::string& name)>;

bool IsBias(const std::string& name) { return absl::EndsWith(name, "bias"); }
bool IsProjection(const std::string& name) { return absl::EndsWith(name, "attn.c_proj.weight"); }
bool IsAny(const std::string&) { return true; }

struct FlatModel {
  std::shared_ptr<RecordingProcessGroup::Log> log = std::make_shared<RecordingProcessGroup::Log>();
  TestModel made;

  static absl::StatusOr<FlatModel> Make(std::shared_ptr<ProcessGroup> inner, const IsTrained& is_trained,
                                        const FsdpOptions& options) {
    FlatModel model;
    auto group = std::make_shared<RecordingProcessGroup>(std::move(inner), "world", model.log);
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    module->AssignNames();
    Train(*module, is_trained);
    FSDP_ASSIGN_OR_RETURN(model.made.model, FullyShardedDataParallel::Wrap(std::move(module), group, options));
    return model;
  }

  static void Train(Module& module, const IsTrained& is_trained) {
    for (const auto& [name, parameter] : module.NamedParameters()) {
      parameter->requires_grad = is_trained(parameter->fqn);
    }
  }

  std::vector<std::string> Reductions() const {
    std::vector<std::string> entries;
    for (const std::string& entry : *log) {
      if (!absl::StartsWith(entry, "all_gather")) entries.push_back(entry);
    }
    return entries;
  }

  void ZeroGrad() const {
    for (ShardedParameter* parameter : made.model->parameters()) parameter->has_grad = false;
  }
};

FsdpOptions FlatOptions() {
  FsdpOptions options = BlockOptions();
  options.use_orig_params = true;
  return options;
}

using Gradients = std::map<std::string, std::string>;

// The bits of this rank's slices, and where they begin.
Gradients GradientsOf(const FullyShardedDataParallel& model, const IsTrained& of) {
  Gradients gradients;
  for (const ShardedParameter* parameter : model.parameters()) {
    if (!parameter->has_grad || !of(parameter->fqn)) continue;
    std::string& bits = gradients[absl::StrCat(parameter->fqn, " ", parameter->interval.ToString())];
    bits.assign(parameter->grad.data_as<const char>(), parameter->grad.nbytes());
  }
  return gradients;
}

TEST(PartlyFrozenFlatTest, UnitsReduceAndHaveMemoryForWhatIsTrained) {
  for (const int ranks : {1, 3}) {
    ASSERT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(FlatModel whole, FlatModel::Make(group, IsAny, FlatOptions()));
      FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, IsBias, FlatOptions()));
      test.log->clear();
      FSDP_RETURN_IF_ERROR(test.made.ComputeGradients(0).status());
      // Biases of a block: two norms, attention in and out, MLP in and out; of the root: the last norm. Each begins at
      // a multiple of 4 elements.
      const int64_t block = 4 * 16 + 48 + 24 - 1;
      EXPECT_THAT(test.Reductions(),
                  ElementsAre(absl::StrCat("all_reduce world float32[", block, "]"),
                              absl::StrCat("all_reduce world float32[", block, "]"), "all_reduce world float32[15]"));
      const MemoryPlan& plan = test.made.model->memory_plan();
      const MemoryPlan& all = whole.made.model->memory_plan();
      constexpr int64_t kFloat = sizeof(float);
      EXPECT_EQ(plan.gradient_slot, block * kFloat);
      EXPECT_EQ(plan.root_gradients, 15 * kFloat);
      EXPECT_EQ(plan.reduce_staging, 0);
      int64_t has_memory = 0;
      for (const ShardedParameter* parameter : test.made.model->parameters()) {
        EXPECT_EQ(parameter->grad.defined(), IsBias(parameter->fqn)) << parameter->fqn;
        if (parameter->grad.defined()) has_memory += parameter->grad.nbytes();
      }
      // Half of the whole model's shards are gradients. Alignment adds at most 3 elements to each bias.
      EXPECT_LE(plan.shards, all.shards / 2 + has_memory + 13 * 3 * kFloat);
      return absl::OkStatus();
    }));
  }
}

struct Case {
  int ranks;
  FsdpOptions options;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int ranks : {1, 2, 3, 4}) cases.push_back({ranks, FlatOptions()});
  for (const ShardingStrategy strategy : {ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    cases.push_back({3, FlatOptions()});
    cases.back().options.sharding_strategy = strategy;
  }
  cases.push_back({4, FlatOptions()});
  cases.back().options.sharding_strategy = ShardingStrategy::kHybridShard;
  cases.back().options.shard_group_size = 2;
  cases.push_back({3, FlatOptions()});
  cases.back().options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  cases.push_back({3, FlatOptions()});
  cases.back().options.mixed_precision = {.param_dtype = DType::kBFloat16, .keep_low_precision_grads = true};
  cases.push_back({3, FlatOptions()});
  cases.back().options.cpu_offload.offload_params = true;
  cases.back().options.activation_checkpointing = true;
  return cases;
}

TEST(PartlyFrozenFlatTest, TrainedParametersHaveTheBitsOfReducingTheWhole) {
  for (const Case& one : Cases()) {
    ASSERT_OK(RunRanks(one.ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(FlatModel whole, FlatModel::Make(group, IsAny, one.options));
      FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, IsBias, one.options));
      // Frozen and thawed between steps; each step adds a second backward to the first.
      for (const IsTrained& is_trained : {IsBias, IsProjection, IsAny, IsBias}) {
        FlatModel::Train(test.made.model->module(), is_trained);
        for (FlatModel* model : {&whole, &test}) {
          for (const int step : {0, 1}) FSDP_RETURN_IF_ERROR(model->made.ComputeGradients(step).status());
        }
        EXPECT_EQ(GradientsOf(*test.made.model, IsAny), GradientsOf(*whole.made.model, is_trained));
        whole.ZeroGrad();
        test.ZeroGrad();
      }
      return absl::OkStatus();
    }));
  }
}

// As .grad of a parameter that was frozen since: it stays until the optimizer forgets it.
TEST(PartlyFrozenFlatTest, AGradientOfAParameterThatIsFrozenLaterStays) {
  for (const int ranks : {1, 3}) {
    ASSERT_OK(RunRanks(ranks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, IsAny, FlatOptions()));
      FSDP_RETURN_IF_ERROR(test.made.ComputeGradients(0).status());
      const Gradients first = GradientsOf(*test.made.model, IsAny);
      // Less, then more than half of each unit is trained: gradients are packed, then whole.
      for (const bool most : {false, true}) {
        const auto is_frozen = [&](const std::string& name) { return most ? IsProjection(name) : !IsBias(name); };
        FlatModel::Train(test.made.model->module(), [&](const std::string& name) { return !is_frozen(name); });
        FSDP_RETURN_IF_ERROR(test.made.ComputeGradients(1).status());
        const Gradients kept = GradientsOf(*test.made.model, is_frozen);
        EXPECT_GT(kept.size(), 0u);
        for (const auto& [slice, bits] : kept) EXPECT_TRUE(bits == first.at(slice)) << slice;
      }
      EXPECT_EQ(GradientsOf(*test.made.model, IsAny).size(), first.size());
      return absl::OkStatus();
    }));
  }
}

TEST(PartlyFrozenFlatTest, BackwardsWithoutSynchronisationAccumulateWhatIsTrained) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(FlatModel whole, FlatModel::Make(group, IsAny, FlatOptions()));
    FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, IsBias, FlatOptions()));
    for (FlatModel* model : {&whole, &test}) {
      {
        const NoSyncGuard guard(*model->made.model);
        FSDP_RETURN_IF_ERROR(model->made.ComputeGradients(0).status());
      }
      FSDP_RETURN_IF_ERROR(model->made.ComputeGradients(1).status());
    }
    EXPECT_EQ(GradientsOf(*test.made.model, IsAny), GradientsOf(*whole.made.model, IsBias));
    return absl::OkStatus();
  }));
}

TEST(PartlyFrozenFlatTest, AUnitThatIsMostlyTrainedIsReducedWhole) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const IsTrained is_trained = [](const std::string& name) { return !IsBias(name); };
    FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, is_trained, FlatOptions()));
    test.log->clear();
    FSDP_RETURN_IF_ERROR(test.made.ComputeGradients(0).status());
    EXPECT_EQ(CountEntries(*test.log, "reduce_scatter"), 3);
    EXPECT_EQ(CountEntries(*test.log, "all_reduce"), 0);
    EXPECT_EQ(test.made.model->warnings().size(), 3u);
    return absl::OkStatus();
  }));
}

TEST(PartlyFrozenFlatTest, ACommHookGetsPackedGradientsToReduceInPlace) {
  ASSERT_OK(RunRanks(3, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(FlatModel whole, FlatModel::Make(group, IsBias, FlatOptions()));
    FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, IsBias, FlatOptions()));
    FSDP_RETURN_IF_ERROR(test.made.model->RegisterCommHook(DefaultCommHook()));
    for (FlatModel* model : {&whole, &test}) FSDP_RETURN_IF_ERROR(model->made.ComputeGradients(0).status());
    EXPECT_EQ(GradientsOf(*test.made.model, IsAny), GradientsOf(*whole.made.model, IsAny));
    EXPECT_EQ(CountEntries(*test.log, "reduce_scatter"), 0);
    return absl::OkStatus();
  }));
}

TEST(PartlyFrozenFlatTest, AChangeWhileGradientsWaitForAReductionIsAnErrorThatNamesTheUnit) {
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(FlatModel test, FlatModel::Make(group, IsBias, FlatOptions()));
    {
      const NoSyncGuard guard(*test.made.model);
      FSDP_RETURN_IF_ERROR(test.made.ComputeGradients(0).status());
    }
    FlatModel::Train(test.made.model->module(), IsAny);
    EXPECT_THAT(test.made.ComputeGradients(1).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unit root: requires_grad was changed")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

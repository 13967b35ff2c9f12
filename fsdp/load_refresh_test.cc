// SPDX-License-Identifier: Apache-2.0
//
// A forward computes with the values of the shards, even if unsharded copies of older values are left: every way to
// leave copies x every way to change the shards, compared bit for bit with a fresh model with the same values.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/manual_units.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// A model of either API; `units` are the FsdpModules of FSDP2, root last.
struct Subject {
  TestModel test;
  std::vector<FsdpModule*> units;
};

using Make = std::function<absl::StatusOr<Subject>(const std::shared_ptr<ProcessGroup>& group, uint64_t seed)>;
using Act = std::function<absl::Status(Subject& subject)>;

// A way to make a model and to leave some of its units unsharded.
struct Copies {
  std::string name;
  int ranks = 2;
  Make make;
  Act leave;
};

// A way to change all shards; `other` has the values to change to.
struct Change {
  std::string name;
  std::function<absl::Status(Subject& subject, const StateDict& other)> change;
};

Make Fsdp1(const FsdpOptions& options) {
  return [options](const std::shared_ptr<ProcessGroup>& group, uint64_t seed) -> absl::StatusOr<Subject> {
    FsdpOptions seeded = options;
    seeded.auto_wrap_policy = ModuleWrapPolicy<Gpt2Block>();
    seeded.init_seed = seed;
    Subject subject;
    FSDP_ASSIGN_OR_RETURN(subject.test, MakeTestModel(group, seeded));
    return subject;
  };
}

Make Fsdp2(const FullyShardOptions& options) {
  return [options](const std::shared_ptr<ProcessGroup>& group, uint64_t seed) -> absl::StatusOr<Subject> {
    FullyShardOptions seeded = options;
    seeded.init_seed = seed;
    Subject subject;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
    for (const auto& [name, below] : module->NamedModules()) {
      if (dynamic_cast<Gpt2Block*>(below) == nullptr) continue;
      FSDP_ASSIGN_OR_RETURN(FsdpModule * unit, FullyShard(*below, mesh, seeded));
      subject.units.push_back(unit);
    }
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(*module, mesh, seeded));
    subject.units.push_back(root);
    FSDP_ASSIGN_OR_RETURN(subject.test.model, FullyShardedDataParallel::FromFullyShard(std::move(module)));
    subject.test.optimizer = std::make_unique<AdamW>(subject.test.model->parameters(), AdamWOptions{.lr = 1e-2});
    return subject;
  };
}

// The logits of a forward that keeps for backward, as bytes.
absl::StatusOr<std::vector<std::byte>> Logits(Subject& subject) {
  FullyShardedDataParallel& model = *subject.test.model;
  FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(model.device(), 5, model.group().rank()));
  Tape tape = model.NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
  FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  const auto* bytes = static_cast<const std::byte*>(logits.data());
  return std::vector<std::byte>(bytes, bytes + logits.nbytes());
}

absl::Status ForwardAlone(Subject& subject) { return Logits(subject).status(); }

absl::Status PassWithoutSync(Subject& subject) {
  const NoSyncGuard no_sync(*subject.test.model);
  return subject.test.ComputeGradients(0).status();
}

FsdpOptions Strategy(ShardingStrategy strategy, FsdpOptions options = {}) {
  options.sharding_strategy = strategy;
  return options;
}

std::vector<Copies> AllCopies() {
  const MixedPrecision bfloat16{.param_dtype = DType::kBFloat16};
  FsdpOptions casts{.mixed_precision = bfloat16};
  casts.optimizer_casts = true;
  FsdpOptions zero2 = Strategy(ShardingStrategy::kHybridShardZero2);
  zero2.shard_group_size = 2;
  const FsdpOptions offloaded = Strategy(ShardingStrategy::kShardGradOp, {.cpu_offload = {.offload_params = true}});
  const auto keep_after_backward = [](Subject& subject) -> absl::Status {
    FSDP_RETURN_IF_ERROR(subject.units.back()->set_reshard_after_backward(false));
    FSDP_RETURN_IF_ERROR(subject.units.back()->set_requires_gradient_sync(false));
    FSDP_RETURN_IF_ERROR(subject.test.ComputeGradients(0).status());
    return subject.units.back()->set_requires_gradient_sync(true);
  };
  const auto unshard = [](Subject& subject) -> absl::Status {
    for (FsdpModule* unit : subject.units) FSDP_RETURN_IF_ERROR(unit->Unshard());
    return absl::OkStatus();
  };
  return {
      {"FullShardForward", 2, Fsdp1({}), ForwardAlone},
      {"FullShardOfTwoDtypes", 2, Fsdp1({.mixed_precision = bfloat16}), ForwardAlone},
      {"FullShardOptimizerCasts", 2, Fsdp1(casts), ForwardAlone},
      {"ShardGradOpForward", 2, Fsdp1(Strategy(ShardingStrategy::kShardGradOp)), ForwardAlone},
      {"ShardGradOpNoSync", 2, Fsdp1(Strategy(ShardingStrategy::kShardGradOp)), PassWithoutSync},
      {"ShardGradOpNoSyncCasts", 2, Fsdp1(Strategy(ShardingStrategy::kShardGradOp, casts)), PassWithoutSync},
      {"ShardGradOpOffloaded", 2, Fsdp1(offloaded), PassWithoutSync},
      {"HybridZero2NoSync", 4, Fsdp1(zero2), PassWithoutSync},
      {"NoShardNoSync", 2, Fsdp1(Strategy(ShardingStrategy::kNoShard)), PassWithoutSync},
      {"NoShardOfTwoDtypesNoSync", 2, Fsdp1(Strategy(ShardingStrategy::kNoShard, {.mixed_precision = bfloat16})),
       PassWithoutSync},
      {"NoShardCastsNoSync", 2, Fsdp1(Strategy(ShardingStrategy::kNoShard, casts)), PassWithoutSync},
      {"FullyShardForward", 2, Fsdp2({}), ForwardAlone},
      {"FullyShardKeptAfterForward", 2, Fsdp2({.reshard_after_forward = false}), ForwardAlone},
      {"FullyShardInAGroup", 4, Fsdp2({.reshard_after_forward = 2}), ForwardAlone},
      {"FullyShardKeptAfterBackward", 2, Fsdp2({}), keep_after_backward},
      {"FullyShardUnsharded", 2, Fsdp2({}), unshard},
      {"FullyShardOnOneRank", 1, Fsdp2({.mp_policy = {.param_dtype = DType::kBFloat16}}), ForwardAlone},
  };
}

// Fills live slices as a checkpoint's reader does.
absl::Status FillFrom(const StateDict& other, const StateDict& wanted) {
  for (const auto& entry : wanted.entries()) {
    const ShardedTensor* mine = wanted.FindTensor(entry.first);
    const ShardedTensor* source = other.FindTensor(entry.first);
    if (mine == nullptr || source == nullptr) return absl::NotFoundError("no tensor to fill from");
    for (const ShardedTensor::Shard& shard : mine->shards) {
      const Tensor from = source->shards[0].data.Slice(shard.interval);
      std::memcpy(shard.data.data(), from.data(), from.nbytes());
    }
  }
  return absl::OkStatus();
}

std::vector<Change> AllChanges() {
  return {
      {"LoadStateDict",
       [](Subject& subject, const StateDict& other) { return subject.test.model->LoadStateDict(other); }},
      {"FsdpModuleLoadStateDict",
       [](Subject& subject, const StateDict& other) -> absl::Status {
         if (subject.units.empty()) return subject.test.model->LoadStateDict(other);
         return subject.units.back()->LoadStateDict(other).status();
       }},
      {"Restore",
       [](Subject& subject, const StateDict& other) {
         return subject.test.model->Restore(nullptr, [&](StateDict& wanted) { return FillFrom(other, wanted); });
       }},
      {"LiveStateDict",
       [](Subject& subject, const StateDict& other) -> absl::Status {
         StateDict live;
         if (subject.units.empty()) {
           const StateDictTypeGuard local(*subject.test.model, StateDictSettings{LocalStateDictConfig()});
           FSDP_ASSIGN_OR_RETURN(live, subject.test.model->GetStateDict());
         } else {
           FSDP_ASSIGN_OR_RETURN(live, subject.units.back()->GetStateDict());
         }
         return FillFrom(other, live);
       }},
      {"SummonFullParams",
       [](Subject& subject, const StateDict&) -> absl::Status {
         FSDP_ASSIGN_OR_RETURN(auto guard, subject.test.model->SummonFullParams());
         for (const auto& [name, parameter] : subject.test.model->module().NamedParameters()) {
           std::fill_n(parameter->data.data_as<float>(), parameter->shape.numel(), 0.03f);
         }
         return guard->Close();
       }},
      {"Apply",
       [](Subject& subject, const StateDict&) {
         return subject.test.model->Apply([](Module& module) {
           for (const auto& [name, parameter] : module.own_parameters()) {
             std::fill_n(parameter->data.data_as<float>(), parameter->shape.numel(), -0.02f);
           }
           return absl::OkStatus();
         });
       }},
      {"OptimizerStep",
       [](Subject& subject, const StateDict&) -> absl::Status {
         for (ShardedParameter* parameter : subject.test.model->parameters()) {
           std::memset(parameter->grad.data(), 0x3c, parameter->grad.nbytes());
           parameter->has_grad = true;
         }
         FSDP_RETURN_IF_ERROR(subject.test.optimizer->Step(subject.test.model->stream()));
         subject.test.optimizer->ZeroGrad();
         return subject.test.model->stream().Synchronize();
       }},
  };
}

absl::Status ForwardSeesTheChange(const std::shared_ptr<ProcessGroup>& group, const Copies& copies,
                                  const Change& change) {
  FSDP_ASSIGN_OR_RETURN(Subject other, copies.make(group, /*seed=*/23));
  FSDP_ASSIGN_OR_RETURN(const StateDict values, other.test.model->GetStateDict());
  FSDP_ASSIGN_OR_RETURN(Subject subject, copies.make(group, /*seed=*/11));
  FSDP_RETURN_IF_ERROR(copies.leave(subject));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> before, Logits(subject));
  FSDP_RETURN_IF_ERROR(change.change(subject, values));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> after, Logits(subject));
  EXPECT_NE(after, before) << "the next forward computed with the old values";

  FSDP_ASSIGN_OR_RETURN(const StateDict now, subject.test.model->GetStateDict());
  FSDP_ASSIGN_OR_RETURN(Subject fresh, copies.make(group, /*seed=*/31));
  FSDP_RETURN_IF_ERROR(fresh.test.model->LoadStateDict(now));
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::byte> wanted, Logits(fresh));
  EXPECT_EQ(after, wanted);
  return absl::OkStatus();
}

class LoadRefreshTest : public testing::TestWithParam<Copies> {};

TEST_P(LoadRefreshTest, TheNextForwardComputesWithTheChangedValues) {
  for (const Change& change : AllChanges()) {
    SCOPED_TRACE(change.name);
    EXPECT_OK(RunRanks(GetParam().ranks, [&](std::shared_ptr<ProcessGroup> group) {
      return ForwardSeesTheChange(group, GetParam(), change);
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Copies, LoadRefreshTest, testing::ValuesIn(AllCopies()),
                         [](const auto& copies) { return copies.param.name; });

TEST(LoadRefreshBackwardTest, ABackwardAfterALoadComputesWithTheLoadedValuesInEveryUnit) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::vector<std::vector<float>> gradients;
    for (const auto strategy : {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      const Make make = Fsdp1(Strategy(strategy));
      FSDP_ASSIGN_OR_RETURN(Subject other, make(group, 23));
      FSDP_ASSIGN_OR_RETURN(const StateDict values, other.test.model->GetStateDict());
      FSDP_ASSIGN_OR_RETURN(Subject subject, make(group, 11));
      FullyShardedDataParallel& model = *subject.test.model;
      FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(model.device(), 5, group->rank()));
      Tape tape = model.NewTape();
      FSDP_ASSIGN_OR_RETURN(const Tensor logits, model.Forward(batch.tokens, tape));
      FSDP_RETURN_IF_ERROR(model.LoadStateDict(values));
      FSDP_RETURN_IF_ERROR(model.Backward(logits, tape).status());
      FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
      gradients.emplace_back();
      for (const ShardedParameter* p : model.parameters()) {
        gradients.back().insert(gradients.back().end(), p->grad.data_as<float>(),
                                p->grad.data_as<float>() + p->grad.numel());
      }
    }
    EXPECT_EQ(gradients[0], gradients[1]);
    return absl::OkStatus();
  }));
}

TEST(LoadRefreshReplacedDataTest, ReplacedDataOfAUnitThatIsUnshardedIsAnErrorAndNotIgnored) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(Subject subject, Fsdp1(Strategy(ShardingStrategy::kShardGradOp))(group, 11));
    FSDP_RETURN_IF_ERROR(ForwardAlone(subject));
    ShardedParameter& parameter = *subject.test.model->parameters().back();
    FSDP_ASSIGN_OR_RETURN(parameter.data,
                          Tensor::Empty(subject.test.model->device(), DType::kFloat32, parameter.data.shape()));
    return ForwardAlone(subject);
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("was replaced while its unit")));
}

TEST(LoadRefreshManualUnitsTest, AnUnshardAfterAnOptimizerStepHasTheNewValues) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto units, ManualUnits::Create(group, {{"unit", {{"weight", {6}}}}}, 1));
    AdamW optimizer(units->parameters(), {.lr = 1});
    FSDP_ASSIGN_OR_RETURN(std::vector<Tensor> whole, units->Unshard(0));
    FSDP_RETURN_IF_ERROR(units->stream().Synchronize());
    const float before = whole[0].data_as<float>()[0];
    for (ShardedParameter* parameter : units->parameters()) {
      std::fill_n(parameter->grad.data_as<float>(), parameter->grad.numel(), 1.0f);
      parameter->has_grad = true;
    }
    FSDP_RETURN_IF_ERROR(optimizer.Step(units->stream()));
    FSDP_RETURN_IF_ERROR(units->FinishStep());
    FSDP_ASSIGN_OR_RETURN(whole, units->Unshard(0));
    FSDP_RETURN_IF_ERROR(units->stream().Synchronize());
    EXPECT_NE(whole[0].data_as<float>()[0], before);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

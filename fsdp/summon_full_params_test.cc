// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/summon_full_params.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

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

using Values = std::map<std::string, std::vector<float>>;

std::vector<float> ValuesOf(const Tensor& t) { return {t.data_as<float>(), t.data_as<float>() + t.numel()}; }

// Whole parameters by a FULL state dict.
absl::StatusOr<Values> FullValues(TestModel& made) {
  FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
  Values values;
  for (const auto& [key, value] : state.entries()) {
    values[key.fqn] = ValuesOf(std::get<ShardedTensor>(value).shards.at(0).data);
  }
  return values;
}

FsdpOptions OriginalOptions(ShardingStrategy strategy = ShardingStrategy::kFullShard) {
  FsdpOptions options = BlockOptions();
  options.use_orig_params = true;
  options.sharding_strategy = strategy;
  return options;
}

class SummonFullParamsTest : public testing::TestWithParam<int> {
 protected:
  void Run(const FsdpOptions& options, const std::function<absl::Status(TestModel&)>& check) {
    ASSERT_OK(RunRanks(GetParam(), [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
      return check(made);
    }));
  }
};

TEST_P(SummonFullParamsTest, BindsWholeParametersUnderCleanNamesWhileItLives) {
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Values full, FullValues(made));
    {
      FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
      for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
        FSDP_ASSIGN_OR_RETURN(const Tensor data, parameter->Data());
        EXPECT_EQ(data.shape(), parameter->shape) << name;
        EXPECT_EQ(ValuesOf(data), full.at(parameter->fqn)) << name;
        EXPECT_FALSE(parameter->grad.defined());
      }
    }
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      EXPECT_FALSE(parameter->data.defined()) << name;
    }
    return absl::OkStatus();
  });
}

TEST_P(SummonFullParamsTest, KeepsEditsWithWriteback) {
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      for (int64_t i = 0; i < parameter->data.numel(); ++i) parameter->data.data_as<float>()[i] = static_cast<float>(i);
    }
    FSDP_RETURN_IF_ERROR(guard->Close());
    FSDP_ASSIGN_OR_RETURN(const Values after, FullValues(made));
    for (const auto& [name, values] : after) {
      for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<float>(i)) << name;
    }
    return absl::OkStatus();
  });
}

// As PyTorch documents: without sharding the storage is lent, so edits are kept.
TEST_P(SummonFullParamsTest, DropsEditsWithoutWritebackWhereStorageIsSharded) {
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Values before, FullValues(made));
    {
      FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams({.writeback = false}));
      for (const auto& [name, parameter] : made.model->module().NamedParameters())
        parameter->data.data_as<float>()[0] = 7;
    }
    FSDP_ASSIGN_OR_RETURN(const Values after, FullValues(made));
    const bool kept = made.model->group().size() == 1;
    for (const auto& [name, values] : after) EXPECT_EQ(values[0] == 7, kept || before.at(name)[0] == 7) << name;
    return absl::OkStatus();
  });
}

TEST_P(SummonFullParamsTest, GivesThemToRank0AloneWithRank0Only) {
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Values full, FullValues(made));
    FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams({.writeback = false, .rank0_only = true}));
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      EXPECT_EQ(parameter->data.defined(), made.model->group().rank() == 0);
      if (!parameter->data.defined()) continue;
      EXPECT_EQ(ValuesOf(parameter->data), full.at(parameter->fqn));
    }
    return guard->Close();
  });
}

TEST_P(SummonFullParamsTest, WithoutRecurseTakesTheModulesOwnUnitAlone) {
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    for (const auto& [path, module] : made.model->FsdpModules()) {
      FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams({.recurse = false}, module));
      for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
        const bool in_block = parameter->fqn.find(".h.") != std::string::npos;
        const bool expected = path.empty() ? !in_block : parameter->fqn.rfind(path + ".", 0) == 0;
        EXPECT_EQ(parameter->data.defined(), expected) << parameter->fqn;
      }
    }
    // A module that is not a unit has no own ones.
    Module* const inside = made.model->FsdpModules()[1].second->children()[0].second.get();
    FSDP_ASSIGN_OR_RETURN(const auto nothing, made.model->SummonFullParams({.recurse = false}, inside));
    for (const auto& [name, parameter] : made.model->module().NamedParameters())
      EXPECT_FALSE(parameter->data.defined());
    return nothing->Close();
  });
}

TEST_P(SummonFullParamsTest, OffloadsToHostMemoryOfItsOwn) {
  if (GetParam() == 1) GTEST_SKIP() << "one rank is not sharded";
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Values full, FullValues(made));
    FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams(
                                                {.writeback = false, .rank0_only = true, .offload_to_cpu = true}));
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      if (!parameter->data.defined()) continue;
      EXPECT_EQ(ValuesOf(parameter->data), full.at(parameter->fqn));
    }
    return guard->Close();
  });
}

// Gradients are whole too, and edits of them are what the optimizer sees.
TEST_P(SummonFullParamsTest, WithGradsGathersAndWritesBackGradients) {
  Run(OriginalOptions(), [](TestModel& made) -> absl::Status {
    FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
    FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams({.with_grads = true}));
    for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
      FSDP_ASSIGN_OR_RETURN(const Tensor grad, parameter->Grad());
      EXPECT_EQ(grad.shape(), parameter->shape);
      for (int64_t i = 0; i < grad.numel(); ++i) grad.data_as<float>()[i] = static_cast<float>(i);
    }
    FSDP_RETURN_IF_ERROR(guard->Close());
    for (const ShardedParameter* parameter : made.model->parameters()) {
      for (int64_t i = 0; i < parameter->interval.size(); ++i) {
        EXPECT_EQ(parameter->grad.data_as<float>()[i], static_cast<float>(parameter->interval.begin + i));
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(SummonFullParamsTest, OneGradientAloneIsGatheredWithTheSameBits) {
  for (const FsdpOptions& options : {OriginalOptions(), BlockOptions()}) {
    Run(options, [](TestModel& made) -> absl::Status {
      EXPECT_THAT(made.model->GetFullGradient(made.model->parameters()[0]->fqn),
                  IsOkAndHolds(testing::Property(&Tensor::defined, false)));
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(0).status());
      for (const ShardedParameter* parameter : made.model->parameters()) {
        FSDP_ASSIGN_OR_RETURN(const Tensor whole, made.model->GetFullGradient(parameter->fqn));
        EXPECT_EQ(whole.shape(), parameter->shape);
        const Interval& mine = parameter->interval;
        const float* const of_whole = whole.data_as<float>() + mine.begin;
        EXPECT_TRUE(std::equal(of_whole, of_whole + mine.size(), parameter->grad.data_as<float>())) << parameter->fqn;
      }
      return absl::OkStatus();
    });
  }
}

TEST_P(SummonFullParamsTest, AParameterWithoutAGradientOnEveryRankHasNone) {
  Run(OriginalOptions(), [](TestModel& made) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams({.with_grads = true}));
    for (const auto& [name, parameter] : made.model->module().NamedParameters())
      EXPECT_FALSE(parameter->grad.defined());
    return guard->Close();
  });
}

// Edits between forward and backward reach the backward, whether or not a unit stays unsharded in between.
TEST_P(SummonFullParamsTest, EditsBetweenForwardAndBackwardReachTheBackward) {
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    Run(OriginalOptions(strategy), [](TestModel& made) -> absl::Status {
      Tape tape = made.model->NewTape();
      FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(made.model->device(), DType::kInt32, {1, 3}));
      for (int i = 0; i < 3; ++i) tokens.data_as<int32_t>()[i] = i;
      FSDP_ASSIGN_OR_RETURN(const Tensor logits, made.model->Forward(tokens, tape));
      {
        FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
        for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
          std::memset(parameter->data.data(), 0, parameter->data.nbytes());
        }
        FSDP_RETURN_IF_ERROR(guard->Close());
      }
      FSDP_RETURN_IF_ERROR(made.model->Backward(logits, tape).status());
      FSDP_RETURN_IF_ERROR(made.model->stream().Synchronize());
      // With every weight zero, nothing passes below the head.
      for (const ShardedParameter* parameter : made.model->parameters()) {
        if (parameter->fqn.find(".h.0.") == std::string::npos) continue;
        for (int64_t i = 0; i < parameter->interval.size(); ++i) {
          EXPECT_EQ(parameter->grad.data_as<float>()[i], 0.0f) << parameter->fqn;
        }
      }
      return absl::OkStatus();
    });
  }
}

// Whatever stays unsharded: values that reshard would drop cannot be accessed.
TEST_P(SummonFullParamsTest, ParametersAreUnboundBetweenForwardAndBackward) {
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp, ShardingStrategy::kNoShard}) {
    Run(OriginalOptions(strategy), [](TestModel& made) -> absl::Status {
      Tape tape = made.model->NewTape();
      FSDP_ASSIGN_OR_RETURN(const Tensor tokens, Tensor::Empty(made.model->device(), DType::kInt32, {1, 3}));
      for (int i = 0; i < 3; ++i) tokens.data_as<int32_t>()[i] = i;
      FSDP_ASSIGN_OR_RETURN(const Tensor logits, made.model->Forward(tokens, tape));
      for (const auto& [name, parameter] : made.model->module().NamedParameters()) {
        EXPECT_THAT(parameter->Data(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(parameter->fqn)));
      }
      FSDP_RETURN_IF_ERROR(made.model->Backward(logits, tape).status());
      return made.model->stream().Synchronize();
    });
  }
}

TEST_P(SummonFullParamsTest, ApplyVisitsEveryModuleWithItsParametersWhole) {
  Run(BlockOptions(), [](TestModel& made) -> absl::Status {
    std::vector<std::string> visited;
    FSDP_RETURN_IF_ERROR(made.model->Apply([&](Module& module) -> absl::Status {
      visited.emplace_back(module.type_name());
      for (const auto& [name, parameter] : module.own_parameters()) {
        FSDP_ASSIGN_OR_RETURN(const Tensor data, parameter->Data());
        for (int64_t i = 0; i < data.numel(); ++i) data.data_as<float>()[i] = 0.5f;
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(visited.size(), made.model->module().NamedModules().size());
    EXPECT_EQ(visited.back(), std::string(made.model->module().type_name()));
    FSDP_ASSIGN_OR_RETURN(const Values after, FullValues(made));
    for (const auto& [name, values] : after) {
      for (const float value : values) EXPECT_EQ(value, 0.5f) << name;
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(WorldSizes, SummonFullParamsTest, testing::Values(1, 2, 3));

// The result of `call` on each of two ranks.
absl::Status OnTwoRanks(const FsdpOptions& options, const std::function<absl::Status(TestModel&)>& call) {
  return RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    return call(made);
  });
}

absl::Status Summon(const FsdpOptions& options, const SummonFullParamsOptions& flags) {
  return OnTwoRanks(options, [&](TestModel& made) { return made.model->SummonFullParams(flags).status(); });
}

TEST(SummonFullParamsErrorTest, FlagsThatExcludeEachOtherAreRefused) {
  FsdpOptions no_shard = BlockOptions();
  no_shard.sharding_strategy = ShardingStrategy::kNoShard;
  EXPECT_THAT(Summon(BlockOptions(), {.rank0_only = true}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("writeback with rank0_only")));
  EXPECT_THAT(Summon(OriginalOptions(), {.offload_to_cpu = true, .with_grads = true}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("with_grads with offload_to_cpu")));
  EXPECT_THAT(Summon(BlockOptions(), {.with_grads = true}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("with_grads wants use_orig_params")));
  EXPECT_THAT(Summon(no_shard, {.offload_to_cpu = true}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("offload_to_cpu is not supported for unit root")));
}

TEST(SummonFullParamsWarningTest, ACopyForEachRankInHostMemoryIsWarnedOfOnce) {
  const auto warnings = [](const SummonFullParamsOptions& flags) {
    int warned = 0;
    EXPECT_OK(OnTwoRanks(BlockOptions(), [&](TestModel& made) -> absl::Status {
      for (int i = 0; i < 2; ++i) FSDP_RETURN_IF_ERROR(made.model->SummonFullParams(flags).status());
      if (made.model->group().rank() != 0) return absl::OkStatus();
      for (const std::string& warning : made.model->warnings()) {
        if (warning.find("offload_to_cpu without rank0_only") != std::string::npos) ++warned;
      }
      return absl::OkStatus();
    }));
    return warned;
  };
  EXPECT_EQ(warnings({.writeback = false, .offload_to_cpu = true}), 1);
  EXPECT_EQ(warnings({.writeback = false, .rank0_only = true, .offload_to_cpu = true}), 0);
  EXPECT_EQ(warnings({}), 0);
}

TEST(SummonFullParamsErrorTest, WithinAForwardItIsRefused) {
  ASSERT_OK(OnTwoRanks(BlockOptions(), [](TestModel& made) -> absl::Status {
    Tape tape = made.model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor no_tokens, Tensor::Empty(made.model->device(), DType::kFloat32, {1, 2}));
    EXPECT_FALSE(made.model->Forward(no_tokens, tape).ok());  // a pass that failed stays open
    const auto refused = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within a forward or backward"));
    EXPECT_THAT(made.model->SummonFullParams().status(), refused);
    EXPECT_THAT(made.model->Apply([](Module&) { return absl::OkStatus(); }), refused);
    return absl::OkStatus();
  }));
}

TEST(SummonFullParamsErrorTest, AUnitIsSummonedOnceAtATime) {
  EXPECT_THAT(OnTwoRanks(BlockOptions(),
                         [](TestModel& made) -> absl::Status {
                           FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
                           return made.model->SummonFullParams().status();
                         }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("unit root is summoned already")));
  EXPECT_THAT(OnTwoRanks(BlockOptions(),
                         [](TestModel& made) -> absl::Status {
                           FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
                           return made.model->Apply([](Module&) { return absl::OkStatus(); });
                         }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is summoned already")));
}

TEST(SummonFullParamsErrorTest, ForwardWaitsForItsEnd) {
  EXPECT_THAT(OnTwoRanks(BlockOptions(),
                         [](TestModel& made) -> absl::Status {
                           FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
                           return made.ComputeGradients(0).status();
                         }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("forward while a SummonFullParamsGuard has unit root")));
}

TEST(SummonFullParamsErrorTest, AParameterBoundToAnotherShapeCannotBeWrittenBack) {
  EXPECT_THAT(OnTwoRanks(BlockOptions(),
                         [](TestModel& made) -> absl::Status {
                           FSDP_ASSIGN_OR_RETURN(const auto guard, made.model->SummonFullParams());
                           const auto first = made.model->module().NamedParameters()[0].second;
                           FSDP_ASSIGN_OR_RETURN(first->data,
                                                 Tensor::Empty(made.model->device(), DType::kFloat32, {3}));
                           return guard->Close();
                         }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("cannot write back parameter \"transformer.wte.weight\": its shape or dtype changed "
                                 "from [29, 15] float32 to [3] float32")));
}

TEST(SummonFullParamsErrorTest, TheFirstErrorOfApplyIsEveryRanks) {
  EXPECT_THAT(OnTwoRanks(BlockOptions(),
                         [](TestModel& made) {
                           return made.model->Apply([&](Module&) {
                             return made.model->group().rank() == 1 ? absl::InternalError("no seed") : absl::OkStatus();
                           });
                         }),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("no seed")));
}

TEST(FsdpModulesTest, AreTheUnitsWithTheRootFirst) {
  ASSERT_OK(OnTwoRanks(BlockOptions(), [](TestModel& made) -> absl::Status {
    std::vector<std::string> names;
    for (const auto& [name, module] : made.model->FsdpModules()) {
      names.push_back(name);
      EXPECT_EQ(made.model->CheckIsRoot(*module), name.empty());
    }
    EXPECT_THAT(names, ElementsAre("", "transformer.h.0", "transformer.h.1"));
    EXPECT_EQ(made.model->FsdpModules(/*root_only=*/true).size(), 1u);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

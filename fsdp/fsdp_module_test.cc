// SPDX-License-Identifier: Apache-2.0
//
// The settings of FsdpModule, each by what it does to gradients, to the schedule, or to what collectives see; on 3
// ranks, which divide no size here.
#include "fsdp/fsdp_module.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "fsdp/test_fully_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/sgd.h"
#include "tensor/ops.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kRanks = 3;

using Gradients = std::map<std::string, std::vector<float>>;

// This rank's gradients of one step from the same start.
absl::StatusOr<Gradients> StepWith(std::shared_ptr<ProcessGroup> group, const FullyShardOptions& options,
                                   const std::function<absl::Status(TestFullyShard&)>& set, int replicas = 1) {
  ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(std::move(group), options, replicas));
  if (set != nullptr) RETURN_IF_ERROR(set(test));
  RETURN_IF_ERROR(test.ForwardAndBackward());
  return test.Gradients();
}

Gradients Times(Gradients gradients, float factor) {
  for (auto& [name, values] : gradients) {
    for (float& value : values) value *= factor;
  }
  return gradients;
}

TEST(FsdpModuleTest, BackwardsWithoutSyncAccumulateIntoTheNextWithIt) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients once, test.Gradients());
    RETURN_IF_ERROR(test.ZeroGrad());
    RETURN_IF_ERROR(test.root->set_requires_gradient_sync(false));
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients none, test.Gradients());
    EXPECT_THAT(none, IsEmpty());
    RETURN_IF_ERROR(test.root->set_requires_gradient_sync(true));
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients twice, test.Gradients());
    EXPECT_EQ(twice, Times(once, 2));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, SyncedBackwardsAddUp) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    RETURN_IF_ERROR(test.root->set_is_last_backward(false));
    RETURN_IF_ERROR(test.ForwardAndBackward());
    RETURN_IF_ERROR(test.root->set_is_last_backward(true));
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients twice, test.Gradients());
    RETURN_IF_ERROR(test.ZeroGrad());
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients once, test.Gradients());
    EXPECT_EQ(twice, Times(once, 2));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, ReduceScattersWithoutAllReduceAccumulateUntilOneWithIt) {
  ASSERT_OK(RunFullyShard(
      4, {},
      [](TestFullyShard& test) -> absl::Status {
        RETURN_IF_ERROR(test.ForwardAndBackward());
        ASSIGN_OR_RETURN(const Gradients once, test.Gradients());
        RETURN_IF_ERROR(test.ZeroGrad());
        RETURN_IF_ERROR(test.root->set_requires_all_reduce(false));
        for (int i = 0; i < 3; ++i) RETURN_IF_ERROR(test.ForwardAndBackward());
        ASSIGN_OR_RETURN(const Gradients none, test.Gradients());
        EXPECT_THAT(none, IsEmpty());
        RETURN_IF_ERROR(test.root->set_requires_all_reduce(true));
        RETURN_IF_ERROR(test.ForwardAndBackward());
        ASSIGN_OR_RETURN(const Gradients four, test.Gradients());
        EXPECT_EQ(four, Times(once, 4));
        return absl::OkStatus();
      },
      /*replicas=*/2));
}

TEST(FsdpModuleTest, TheDivideFactorIsOfOneUnitAndNotOfThoseBelow) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const Gradients mean, StepWith(group, {}, nullptr));
    ASSIGN_OR_RETURN(const Gradients sum, StepWith(group, {}, [](TestFullyShard& test) {  //
                       return test.root->set_gradient_divide_factor(1);
                     }));
    for (const auto& [name, values] : mean) {
      const bool of_root = name == "2.weight" || name == "2.bias";
      EXPECT_EQ(sum.at(name), of_root ? Times(mean, 4).at(name) : values) << name;
    }
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, ADivideFactorIsAboveZero) {
  ASSERT_OK(RunFullyShard(1, {}, [](TestFullyShard& test) -> absl::Status {
    EXPECT_THAT(test.root->set_gradient_divide_factor(0),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("gradient_divide_factor=0")));
    return absl::OkStatus();
  }));
}

// Count calls, and forward them to the group.
struct ForwardingAllGather final : AllGatherComm {
  absl::StatusOr<Buffer> Allocate(int64_t nbytes, ProcessGroup& group) override {
    ++allocations;
    return group.Allocate(nbytes);
  }
  void AllGather(const Tensor& input, const Tensor& output, ProcessGroup& group, Stream& stream) override {
    ++runs;
    // The input is this rank's slot of the output.
    EXPECT_EQ(input.data(), output.data_as<float>() + group.rank() * input.numel());
    group.AllGather(input, output, stream);
  }
  int allocations = 0, runs = 0;
};

struct ForwardingReduceScatter final : ReduceScatterComm {
  absl::StatusOr<Buffer> Allocate(int64_t nbytes, ProcessGroup& group) override {
    ++allocations;
    return group.Allocate(nbytes);
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, ProcessGroup& group,
                     Stream& stream) override {
    ops.push_back(op);
    group.ReduceScatter(input, output, op, stream);
  }
  int allocations = 0;
  std::vector<ReduceOp> ops;
};

TEST(FsdpModuleTest, CustomCommsAllocateAndRunInPlaceOfTheGroups) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const Gradients wanted, StepWith(group, {}, nullptr));
    auto all_gather = std::make_shared<ForwardingAllGather>();
    auto reduce_scatter = std::make_shared<ForwardingReduceScatter>();
    ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, [&](TestFullyShard& test) -> absl::Status {
                       RETURN_IF_ERROR(test.root->set_custom_all_gather(all_gather));
                       return test.root->set_custom_reduce_scatter(reduce_scatter);
                     }));
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(all_gather->runs, 5);         // three units forward, two backward: the setting is recursive
    EXPECT_EQ(all_gather->allocations, 3);  // once a unit
    EXPECT_THAT(reduce_scatter->ops, ElementsAre(ReduceOp::kAvg));  // the root's alone
    EXPECT_EQ(reduce_scatter->allocations, 1);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, ForcedSumsReachTheCollectivesAndDivideAfterwards) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const Gradients wanted, StepWith(group, {}, nullptr));
    auto reduce_scatter = std::make_shared<ForwardingReduceScatter>();
    ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, [&](TestFullyShard& test) -> absl::Status {
                       RETURN_IF_ERROR(test.root->set_force_sum_reduction_for_comms(true));
                       return test.root->set_custom_reduce_scatter(reduce_scatter);
                     }));
    EXPECT_EQ(got, wanted);  // 4 divides exactly
    EXPECT_THAT(reduce_scatter->ops, ElementsAre(ReduceOp::kSum));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, TheAllReduceHookSeesTheReducedGradientBeforeTheLastDivision) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TensorOps& ops = group->device()->ops();
    for (const int replicas : {1, 2}) {
      std::vector<int64_t> seen;
      const auto zero = [&](const Tensor& gradient, Stream& stream) {
        seen.push_back(gradient.numel());
        ops.Zero(gradient, stream);
        return absl::OkStatus();
      };
      const auto set = [&](TestFullyShard& test) { return test.root->set_all_reduce_hook(zero); };
      ASSIGN_OR_RETURN(const Gradients got, StepWith(group, {}, set, replicas));
      // One rank's rows of the root: weight [4, 7] and bias [7].
      EXPECT_THAT(seen, ElementsAre(replicas == 1 ? 1 * 7 + 2 : 2 * 7 + 4));
      EXPECT_EQ(got.at("2.bias"), std::vector<float>(got.at("2.bias").size(), 0));
      EXPECT_NE(got.at("1.0.bias"), std::vector<float>(got.at("1.0.bias").size(), 0));
    }
    return absl::OkStatus();
  }));
}

absl::StatusOr<std::string> ScheduleOf(TestFullyShard& test) {
  ASSIGN_OR_RETURN(const FsdpRoot* root, test.root->Root());
  return RenderSchedule(root->StepSchedule(1), root->UnitNames());
}

TEST(FsdpModuleTest, PrefetchListsSayWhatIsGatheredRightAfterAUnit) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    RETURN_IF_ERROR(test.root->set_modules_to_forward_prefetch({test.blocks[1], test.blocks[0]}));
    RETURN_IF_ERROR(test.root->set_modules_to_backward_prefetch({}));
    RETURN_IF_ERROR(test.blocks[1]->set_modules_to_backward_prefetch({test.blocks[0]}));
    ASSIGN_OR_RETURN(const std::string schedule, ScheduleOf(test));
    EXPECT_THAT(schedule, HasSubstr("all_gather root\nall_gather 1\nall_gather 0\nforward root\nforward 0\n"));
    EXPECT_THAT(schedule, HasSubstr("reshard 1\nbackward root\nall_gather 1\nall_gather 0\nbackward 1\n"));
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients with_lists, test.Gradients());
    ASSIGN_OR_RETURN(const Gradients without, StepWith(test.group, {}, nullptr));
    EXPECT_EQ(with_lists, without);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, APrefetchListWithANullIsRefused) {
  ASSERT_OK(RunFullyShard(1, {}, [](TestFullyShard& test) -> absl::Status {
    EXPECT_THAT(test.root->set_modules_to_forward_prefetch({nullptr}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("modules_to_forward_prefetch has a null")));
    EXPECT_THAT(test.root->set_modules_to_backward_prefetch({nullptr}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("modules_to_backward_prefetch has a null")));
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, UnshardBindsWholeParametersAndReshardUnbindsThem) {
  ASSERT_OK(RunFullyShard(kRanks, {.init_seed = 3}, [](TestFullyShard& test) -> absl::Status {
    RETURN_IF_ERROR(test.root->parameters().status());
    RETURN_IF_ERROR(test.blocks[0]->Unshard());
    RETURN_IF_ERROR(test.blocks[0]->Unshard());  // does nothing
    ASSIGN_OR_RETURN(UnshardHandle handle, test.blocks[1]->UnshardAsync());
    RETURN_IF_ERROR(handle.Wait());
    RETURN_IF_ERROR(handle.Wait());  // likewise
    ASSIGN_OR_RETURN(const FsdpRoot* root, test.root->Root());
    RETURN_IF_ERROR(root->executor().runtime().Synchronize());
    EXPECT_EQ(test.Count("all_gather"), 2);
    for (const auto& [name, parameter] : test.model->NamedParameters()) {
      if (name[0] == '2') {
        EXPECT_FALSE(parameter->data.defined()) << name;  // the root's: not recursive
        continue;
      }
      std::vector<float> wanted(parameter->shape.numel());
      parameter->initializer.Fill(3, name, {0, parameter->shape.numel()}, wanted.data());
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(parameter->data.data_as<float>()[i], wanted[i]) << name;
      parameter->data.data_as<float>()[0] = 1e6f;  // lost at Reshard
    }
    for (FsdpModule* block : test.blocks) RETURN_IF_ERROR(block->Reshard());
    for (const auto& [name, parameter] : test.model->NamedParameters()) EXPECT_FALSE(parameter->data.defined()) << name;
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients after, test.Gradients());
    ASSIGN_OR_RETURN(const Gradients wanted, StepWith(test.group, {.init_seed = 3}, nullptr));
    EXPECT_EQ(after, wanted);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, ForwardUsesWhatUnshardGathered) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    RETURN_IF_ERROR(test.root->parameters().status());
    for (FsdpModule* block : test.blocks) RETURN_IF_ERROR(block->UnshardAsync().status());
    RETURN_IF_ERROR(test.ForwardAndBackward());
    EXPECT_EQ(test.Count("all_gather"), 5);
    ASSIGN_OR_RETURN(const Gradients got, test.Gradients());
    ASSIGN_OR_RETURN(const Gradients wanted, StepWith(test.group, {}, nullptr));
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, UnshardOfAModuleWithoutParametersDoesNothing) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(std::move(group), {kRanks}, {"shard"}));
    TestSequence model;
    RETURN_IF_ERROR(FullyShard(*model.AddLinear(3, 5), mesh).status());
    ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
    RETURN_IF_ERROR(root->Unshard());
    return root->Reshard();
  }));
}

TEST(FsdpModuleTest, APostOptimEventTakesThePlaceOfTheComputeStreamOnce) {
  const auto train = [](TestFullyShard& test, bool with_event) -> absl::StatusOr<Gradients> {
    ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    Sgd optimizer(parameters, {.lr = 0.125});
    for (int step = 0; step < 3; ++step) {
      ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
      ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape, step));
      RETURN_IF_ERROR(test.Backward(y, tape));
      if (step == 2) break;
      RETURN_IF_ERROR(optimizer.Step(tape.stream()));
      if (with_event) RETURN_IF_ERROR(test.root->set_post_optim_event(tape.stream().Record()));
      optimizer.ZeroGrad();
    }
    return test.Gradients();
  };
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestFullyShard without, TestFullyShard::Make(group));
    ASSIGN_OR_RETURN(TestFullyShard with, TestFullyShard::Make(group));
    ASSIGN_OR_RETURN(const Gradients wanted, train(without, false));
    ASSIGN_OR_RETURN(const Gradients got, train(with, true));
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, MixedPrecisionCastsInputsParametersAndOutputs) {
  const FullyShardOptions blocks{.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}};
  FullyShardOptions options = blocks;
  options.mp_policy.output_dtype = DType::kFloat32;
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(std::move(group), options, blocks));
    ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
    ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
    EXPECT_EQ(y.dtype(), DType::kFloat32);
    RETURN_IF_ERROR(test.Backward(y, tape));
    ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    for (const ShardedParameter* parameter : parameters) EXPECT_EQ(parameter->data.dtype(), DType::kFloat32);
    // Every output gradient is the rank + 1, so each of the last bias's is exact: 2 rows * (1 + 2 + 3) / 3.
    ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    for (const float value : gradients.at("2.bias")) EXPECT_EQ(value, 4);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, WithoutAnOutputDTypeOutputsStayInTheParametersDType) {
  ASSERT_OK(
      RunFullyShard(kRanks, {.mp_policy = {.param_dtype = DType::kBFloat16}}, [](TestFullyShard& test) -> absl::Status {
        ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
        ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
        EXPECT_EQ(y.dtype(), DType::kBFloat16);
        return test.Backward(y, tape);
      }));
}

TEST(FsdpModuleTest, WithoutSyncGradientsAccumulateInTheReduceDType) {
  const FullyShardOptions options{.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}};
  ASSERT_OK(RunFullyShard(kRanks, options, [](TestFullyShard& test) -> absl::Status {
    // 130 backwards of 2, 4 and 6 in a bias: bfloat16 would stop counting at 256 of the first rank's 2.
    constexpr int kBackwards = 130;
    RETURN_IF_ERROR(test.root->set_requires_gradient_sync(false));
    for (int i = 1; i < kBackwards; ++i) RETURN_IF_ERROR(test.ForwardAndBackward());
    RETURN_IF_ERROR(test.root->set_requires_gradient_sync(true));
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    for (const float value : gradients.at("2.bias")) EXPECT_EQ(value, kBackwards * 4);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, FrozenParametersAreGatheredAndNotReduced) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(std::move(group)));
    for (const auto& [name, parameter] : test.model->NamedParameters()) {
      if (name[0] == '0' || name == "1.0.bias") parameter->requires_grad = false;
    }
    RETURN_IF_ERROR(test.ForwardAndBackward());
    ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    EXPECT_EQ(gradients.size(), 3u);
    EXPECT_EQ(gradients.count("1.0.weight"), 1u);
    EXPECT_EQ(test.Count("reduce_scatter"), 2);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, TheStateDictIsTheLiveMemoryInRowsWithoutCommunication) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    test.log->clear();
    ASSIGN_OR_RETURN(const StateDict state, test.root->GetStateDict());
    EXPECT_THAT(*test.log, IsEmpty());
    EXPECT_EQ(state.type, StateDictType::kSharded);
    for (const ShardedParameter* parameter : parameters) {
      const ShardedTensor* tensor = state.FindTensor(StateKey::Model(parameter->fqn));
      EXPECT_NE(tensor, nullptr) << parameter->fqn;
      if (tensor == nullptr) continue;
      EXPECT_EQ(tensor->shape, parameter->shape);
      EXPECT_EQ(tensor->shards.empty(), parameter->interval.empty());
      if (tensor->shards.empty()) continue;
      EXPECT_EQ(tensor->shards[0].data.data(), parameter->data.data());
    }
    return absl::OkStatus();
  }));
}

// What a whole tensor is, by name, on this rank.
absl::StatusOr<Gradients> WholeValues(FsdpModule& root) {
  ASSIGN_OR_RETURN(const StateDict state, root.GetFullStateDict());
  Gradients whole;
  for (const auto& [key, value] : state.entries()) {
    for (const ShardedTensor::Shard& shard : std::get<ShardedTensor>(value).shards) {
      whole[key.fqn].assign(shard.data.data_as<float>(), shard.data.data_as<float>() + shard.data.numel());
    }
  }
  return whole;
}

TEST(FsdpModuleTest, AFullStateIsGatheredAndLoadedAndMayComeFromRank0Alone) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const TestFullyShard source, TestFullyShard::Make(group, {.init_seed = 3}));
    ASSIGN_OR_RETURN(const Gradients wanted, WholeValues(*source.root));
    EXPECT_EQ(wanted.size(), 8u);
    EXPECT_EQ(wanted.at("0.1.weight").size(), 25u);
    for (const bool broadcast : {false, true}) {
      ASSIGN_OR_RETURN(const TestFullyShard target, TestFullyShard::Make(group, {.init_seed = 4}));
      ASSIGN_OR_RETURN(const Gradients before, WholeValues(*target.root));
      EXPECT_NE(before, wanted);
      ASSIGN_OR_RETURN(const StateDict state, source.root->GetFullStateDict({.rank0_only = broadcast}));
      EXPECT_EQ(state.empty(), broadcast && group->rank() != 0);
      RETURN_IF_ERROR(target.root->LoadStateDict(state, {.broadcast_from_rank0 = broadcast}).status());
      ASSIGN_OR_RETURN(const Gradients after, WholeValues(*target.root));
      EXPECT_EQ(after, wanted);
    }
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, AShardedStateIsLoadedStrictlyOrInPart) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    ASSIGN_OR_RETURN(const TestFullyShard source, TestFullyShard::Make(group, {.init_seed = 3}));
    ASSIGN_OR_RETURN(const TestFullyShard target, TestFullyShard::Make(group, {.init_seed = 4}));
    ASSIGN_OR_RETURN(const StateDict all, source.root->GetStateDict());
    StateDict part;
    part.type = StateDictType::kSharded;
    for (const auto& [key, value] : all.entries()) {
      if (key.fqn != "0.1.weight") part.Set(key, value);
    }
    EXPECT_THAT(target.root->LoadStateDict(part).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0.1.weight")));
    ASSIGN_OR_RETURN(const Gradients before, WholeValues(*target.root));
    ASSIGN_OR_RETURN(const IncompatibleKeys keys, target.root->LoadStateDict(part, {.strict = false}));
    EXPECT_THAT(keys.missing_keys, ElementsAre("0.1.weight"));
    EXPECT_THAT(keys.unexpected_keys, IsEmpty());
    ASSIGN_OR_RETURN(Gradients wanted, WholeValues(*source.root));
    wanted["0.1.weight"] = before.at("0.1.weight");
    ASSIGN_OR_RETURN(const Gradients after, WholeValues(*target.root));
    EXPECT_EQ(after, wanted);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The settings of FsdpModule, each by its effect on gradients, on the schedule, or on collectives; on 3 ranks, which
// divide no size here.
#include "fsdp/fsdp/fsdp_module.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kRanks = 3;

absl::StatusOr<std::string> ScheduleOf(TestFullyShard& test) {
  FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
  return RenderSchedule(model->StepSchedule(1), model->UnitNames());
}

TEST(FsdpModuleTest, PrefetchListsSayWhatIsGatheredRightAfterAUnit) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.root->set_modules_to_forward_prefetch({test.blocks[1], test.blocks[0]}));
    FSDP_RETURN_IF_ERROR(test.root->set_modules_to_backward_prefetch({}));
    FSDP_RETURN_IF_ERROR(test.blocks[1]->set_modules_to_backward_prefetch({test.blocks[0]}));
    FSDP_ASSIGN_OR_RETURN(const std::string schedule, ScheduleOf(test));
    EXPECT_THAT(schedule, HasSubstr("all_gather root\nall_gather 1\nall_gather 0\nforward root\nforward 0\n"));
    EXPECT_THAT(schedule, HasSubstr("reshard 1\nbackward root\nall_gather 1\nall_gather 0\nbackward 1\n"));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients with_lists, test.Gradients());
    FSDP_ASSIGN_OR_RETURN(const Gradients without, StepWith(test.group, {}, nullptr));
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
    FSDP_RETURN_IF_ERROR(test.root->parameters().status());
    FSDP_RETURN_IF_ERROR(test.blocks[0]->Unshard());
    FSDP_RETURN_IF_ERROR(test.blocks[0]->Unshard());  // does nothing
    FSDP_ASSIGN_OR_RETURN(UnshardHandle handle, test.blocks[1]->UnshardAsync());
    FSDP_RETURN_IF_ERROR(handle.Wait());
    FSDP_RETURN_IF_ERROR(handle.Wait());  // likewise
    FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
    FSDP_RETURN_IF_ERROR(model->runtime().Synchronize());
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
    for (FsdpModule* block : test.blocks) FSDP_RETURN_IF_ERROR(block->Reshard());
    for (const auto& [name, parameter] : test.model->NamedParameters()) EXPECT_FALSE(parameter->data.defined()) << name;
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients after, test.Gradients());
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, StepWith(test.group, {.init_seed = 3}, nullptr));
    EXPECT_EQ(after, wanted);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, ForwardUsesWhatUnshardGathered) {
  ASSERT_OK(RunFullyShard(kRanks, {}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(test.root->parameters().status());
    for (FsdpModule* block : test.blocks) FSDP_RETURN_IF_ERROR(block->UnshardAsync().status());
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    EXPECT_EQ(test.Count("all_gather"), 5);
    FSDP_ASSIGN_OR_RETURN(const Gradients got, test.Gradients());
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, StepWith(test.group, {}, nullptr));
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, UnshardOfAModuleWithoutParametersDoesNothing) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(std::move(group), {kRanks}, {"shard"}));
    TestSequence model;
    FSDP_RETURN_IF_ERROR(FullyShard(*model.AddLinear(3, 5), mesh).status());
    FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh));
    FSDP_RETURN_IF_ERROR(root->Unshard());
    return root->Reshard();
  }));
}

TEST(FsdpModuleTest, APostOptimEventTakesThePlaceOfTheComputeStreamOnce) {
  const auto train = [](TestFullyShard& test, bool with_event) -> absl::StatusOr<Gradients> {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    Sgd optimizer(parameters, {.lr = 0.125});
    for (int step = 0; step < 3; ++step) {
      FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
      FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape, step));
      FSDP_RETURN_IF_ERROR(test.Backward(y, tape));
      if (step == 2) break;
      FSDP_RETURN_IF_ERROR(optimizer.Step(tape.stream()));
      if (with_event) FSDP_RETURN_IF_ERROR(test.root->set_post_optim_event(tape.stream().Record()));
      optimizer.ZeroGrad();
    }
    return test.Gradients();
  };
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard without, TestFullyShard::Make(group));
    FSDP_ASSIGN_OR_RETURN(TestFullyShard with, TestFullyShard::Make(group));
    FSDP_ASSIGN_OR_RETURN(const Gradients wanted, train(without, false));
    FSDP_ASSIGN_OR_RETURN(const Gradients got, train(with, true));
    EXPECT_EQ(got, wanted);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, MixedPrecisionCastsInputsParametersAndOutputs) {
  const FullyShardOptions blocks{.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}};
  FullyShardOptions options = blocks;
  options.mp_policy.output_dtype = DType::kFloat32;
  ASSERT_OK(RunRanks(kRanks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const TestFullyShard test, TestFullyShard::Make(std::move(group), options, blocks));
    FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
    EXPECT_EQ(y.dtype(), DType::kFloat32);
    FSDP_RETURN_IF_ERROR(test.Backward(y, tape));
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    for (const ShardedParameter* parameter : parameters) EXPECT_EQ(parameter->data.dtype(), DType::kFloat32);
    // Every output gradient is the rank + 1, so each of the last bias's is exact: 2 rows * (1 + 2 + 3) / 3.
    FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    for (const float value : gradients.at("2.bias")) EXPECT_EQ(value, 4);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, WithoutAnOutputDTypeOutputsStayInTheParametersDType) {
  ASSERT_OK(
      RunFullyShard(kRanks, {.mp_policy = {.param_dtype = DType::kBFloat16}}, [](TestFullyShard& test) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
        FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
        EXPECT_EQ(y.dtype(), DType::kBFloat16);
        return test.Backward(y, tape);
      }));
}

TEST(FsdpModuleTest, WithoutSyncGradientsAccumulateInTheReduceDType) {
  const FullyShardOptions options{.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32}};
  ASSERT_OK(RunFullyShard(kRanks, options, [](TestFullyShard& test) -> absl::Status {
    // 130 backwards of 2, 4 and 6 in a bias: bfloat16 would stop counting at 256 of the first rank's 2.
    constexpr int kBackwards = 130;
    FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(false));
    for (int i = 1; i < kBackwards; ++i) FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_RETURN_IF_ERROR(test.root->set_requires_gradient_sync(true));
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    for (const float value : gradients.at("2.bias")) EXPECT_EQ(value, kBackwards * 4);
    return absl::OkStatus();
  }));
}

TEST(FsdpModuleTest, FrozenParametersAreGatheredAndNotReduced) {
  ASSERT_OK(RunRanks(kRanks, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(std::move(group)));
    for (const auto& [name, parameter] : test.model->NamedParameters()) {
      if (name[0] == '0' || name == "1.0.bias") parameter->requires_grad = false;
    }
    FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
    FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
    EXPECT_EQ(gradients.size(), 3u);
    EXPECT_EQ(gradients.count("1.0.weight"), 1u);
    EXPECT_EQ(test.Count("reduce_scatter"), 2);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

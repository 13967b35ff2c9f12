// SPDX-License-Identifier: Apache-2.0
//
// The modules that a program may wrap, and when: modules without own parameters, a world of one rank, and calls within
// a pass.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kWidth = 4;

absl::StatusOr<std::vector<float>> GradientsOf(FullyShardedDataParallel& model) {
  FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model.device(), DType::kFloat32, {2, kWidth}));
  std::fill_n(x.data_as<float>(), x.numel(), 0.5f);
  Tape tape = model.NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
  FSDP_RETURN_IF_ERROR(model.Backward(y, tape).status());
  FSDP_RETURN_IF_ERROR(model.stream().Synchronize());
  std::vector<float> gradients;
  for (const ShardedParameter* p : model.parameters()) {
    EXPECT_TRUE(p->has_grad) << p->fqn;
    gradients.insert(gradients.end(), p->grad.data_as<float>(), p->grad.data_as<float>() + p->grad.numel());
  }
  return gradients;
}

// Calls a function in the middle of its forward, and notes the dtype of its input.
class Probe final : public Module {
 public:
  std::string_view type_name() const override { return "Probe"; }
  std::function<void()> call = [] {};
  DType seen = DType::kFloat64;

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape&) override {
    call();
    seen = input.dtype();
    return input;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape&) override { return grad_output; }
};

// root > 0 (A) > 0 (linear); root > 1 (empty A); root > 2 (linear).
std::unique_ptr<TestSequence> Nest() {
  auto root = std::make_unique<TestSequence>();
  root->AddSequence("A")->AddLinear(kWidth, kWidth);
  root->AddSequence("A");
  root->AddLinear(kWidth, kWidth);
  return root;
}

TEST(BareModuleTest, FullyShardOfModulesWithoutParametersOfTheirOwnChangesNoGradient) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    std::vector<std::vector<float>> gradients;
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    for (const bool bare : {false, true}) {
      auto root = Nest();
      FSDP_RETURN_IF_ERROR(FullyShard(*root->children()[0].second->children()[0].second, mesh).status());
      for (const int i : {0, 1}) {
        if (bare) FSDP_RETURN_IF_ERROR(FullyShard(*root->children()[i].second, mesh).status());
      }
      FSDP_RETURN_IF_ERROR(FullyShard(*root, mesh, {.init_seed = 5}).status());
      FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::FromFullyShard(std::move(root)));
      FSDP_ASSIGN_OR_RETURN(std::vector<float> mine, GradientsOf(*model));
      gradients.push_back(std::move(mine));
    }
    EXPECT_EQ(gradients[0], gradients[1]);
    return absl::OkStatus();
  }));
}

// PyTorch's FSDPState casts inputs and outputs by its policy, whether it has a parameter group or not.
TEST(BareModuleTest, AModuleWithoutParametersCastsByItsPolicy) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    auto root = std::make_unique<TestSequence>();
    TestSequence* bare = root->AddSequence("A");
    const Probe* inside = bare->Add(std::make_unique<Probe>());
    const Probe* after = root->Add(std::make_unique<Probe>());
    root->AddLinear(kWidth, kWidth);
    const FullyShardOptions low{.mp_policy = {.param_dtype = DType::kBFloat16, .output_dtype = DType::kFloat32}};
    FSDP_RETURN_IF_ERROR(FullyShard(*bare, mesh, low).status());
    FSDP_RETURN_IF_ERROR(FullyShard(*root, mesh, {.init_seed = 5}).status());
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::FromFullyShard(std::move(root)));
    FSDP_RETURN_IF_ERROR(GradientsOf(*model).status());
    EXPECT_EQ(inside->seen, DType::kBFloat16);
    EXPECT_EQ(after->seen, DType::kFloat32);
    return absl::OkStatus();
  }));
}

TEST(WorldOfOneTest, FullyShardIssuesNoCollective) {
  for (const bool mixed : {false, true}) {
    FullyShardOptions options{.init_seed = 3};
    if (mixed) options.mp_policy = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
    ASSERT_OK(RunFullyShard(1, options, [](TestFullyShard& test) -> absl::Status {
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      FSDP_ASSIGN_OR_RETURN(const Gradients first, test.Gradients());
      FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());  // adds the same
      FSDP_ASSIGN_OR_RETURN(Gradients second, test.Gradients());
      EXPECT_EQ(*test.log, RecordingProcessGroup::Log());
      EXPECT_EQ(first.size(), 8u);
      EXPECT_EQ(first.at("2.bias"), std::vector<float>(7, kFullyShardRows));
      for (auto& [name, values] : second) {
        for (float& value : values) value /= 2;
      }
      EXPECT_EQ(second, first);
      FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
      const std::string schedule = RenderSchedule(model->StepSchedule(1), model->UnitNames());
      for (const char* collective : {"all_gather", "reduce_scatter", "all_reduce"}) {
        EXPECT_THAT(schedule, testing::Not(HasSubstr(collective)));
      }
      return absl::OkStatus();
    }));
  }
}

TEST(WorldOfOneTest, Fsdp1SaysThatItBecomesNoShard) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel sharded, MakeTestModel(group, BlockOptions()));
    EXPECT_THAT(sharded.model->warnings(),
                testing::ElementsAre(HasSubstr("no_shard instead of full_shard, since the world size is 1")));
    FsdpOptions options = BlockOptions();
    options.sharding_strategy = ShardingStrategy::kNoShard;
    FSDP_ASSIGN_OR_RETURN(TestModel whole, MakeTestModel(group, options));
    EXPECT_EQ(whole.model->warnings(), std::vector<std::string>());
    return absl::OkStatus();
  }));
}

TEST(WithinAPassTest, SettersAndGetStateDictOfFsdpModuleAreRefused) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {2}, {"shard"}));
    auto root = std::make_unique<TestSequence>();
    root->AddLinear(kWidth, kWidth);
    Probe* probe = root->Add(std::make_unique<Probe>());
    FSDP_ASSIGN_OR_RETURN(FsdpModule * module, FullyShard(*root, mesh));
    std::vector<absl::Status> within;
    const auto call_all = [&] {
      within = {module->GetStateDict().status(),
                module->set_requires_gradient_sync(true),
                module->set_requires_all_reduce(true),
                module->set_reshard_after_forward(true),
                module->set_reshard_after_backward(true),
                module->set_unshard_in_backward(true),
                module->set_is_last_backward(true),
                module->set_gradient_divide_factor(2),
                module->set_force_sum_reduction_for_comms(false),
                module->set_all_reduce_hook(nullptr),
                module->set_custom_all_gather(nullptr),
                module->set_custom_reduce_scatter(nullptr),
                module->set_modules_to_forward_prefetch({}),
                module->set_modules_to_backward_prefetch({}),
                module->set_post_optim_event(Event())};
    };
    probe->call = call_all;
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(*group->device(), DType::kFloat32, {1, kWidth}));
    FSDP_ASSIGN_OR_RETURN(Tape tape, module->NewTape());
    FSDP_RETURN_IF_ERROR(root->Forward(x, tape).status());
    EXPECT_EQ(within.size(), 15u);
    for (size_t i = 0; i < within.size(); ++i) {
      EXPECT_THAT(within[i], StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within a forward or backward")))
          << i;
    }
    EXPECT_FALSE(module->controls().gradient_divide_factor.has_value());
    call_all();  // between forward and backward
    for (size_t i = 0; i < within.size(); ++i) EXPECT_OK(within[i]) << i;
    return absl::OkStatus();
  }));
}

TEST(CommHookOrderTest, AHookAfterABackwardIsRefused) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel test, MakeTestModel(group, BlockOptions()));
    FSDP_RETURN_IF_ERROR(test.ComputeGradients(0).status());
    EXPECT_THAT(test.model->RegisterCommHook(DefaultCommHook()),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("after a backward")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// A forward or backward that fails: its traces are not part of a later step, and calls between passes wait for the next
// forward.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/nn/linear.h"
#include "fsdp/optim/adamw.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::TestWithParam;
using ::testing::Values;

constexpr int kWidth = 4;

// A linear layer whose forward or backward fails on request.
class Breakable final : public Module {
 public:
  Breakable() : linear_(AddChild("linear", std::make_unique<Conv1D>(kWidth, kWidth, Initializer::Normal(0, 0.5f)))) {}
  std::string_view type_name() const override { return "Unit"; }

  bool break_forward = false;
  bool break_backward = false;

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    if (break_forward) return absl::DataLossError("forward broke");
    return linear_->Forward(input, tape);
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(Tensor grad, linear_->Backward(grad_output, tape));
    if (break_backward) return absl::DataLossError("backward broke");
    return grad;
  }

  Conv1D* linear_;
};

struct Settings {
  std::string name;
  bool fsdp2 = false;
  bool recompute = false;
  bool offload = false;
  MixedPrecision mixed_precision = {};
};

// root > 0 (linear), 1 (breakable), 2 (breakable), 3 (linear): the breakable layers are units. Two ranks.
struct Breaking {
  Breakable* first = nullptr;
  Breakable* second = nullptr;
  std::unique_ptr<FullyShardedDataParallel> model;
  std::unique_ptr<AdamW> optimizer;

  static absl::StatusOr<Breaking> Make(const std::shared_ptr<ProcessGroup>& group, const Settings& settings) {
    Breaking made;
    auto root = std::make_unique<TestSequence>();
    root->AddLinear(kWidth, kWidth);
    made.first = root->Add(std::make_unique<Breakable>());
    made.second = root->Add(std::make_unique<Breakable>());
    root->AddLinear(kWidth, kWidth);
    if (settings.fsdp2) {
      FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
      FullyShardOptions options{.init_seed = 3};
      options.mp_policy.reduce_dtype = settings.mixed_precision.reduce_dtype;
      options.mp_policy.param_dtype = settings.mixed_precision.param_dtype;
      options.activation_checkpointing = settings.recompute;
      if (settings.offload) options.offload_policy = CpuOffloadPolicy();
      for (Breakable* layer : {made.first, made.second}) {
        FSDP_RETURN_IF_ERROR(FullyShard(*layer, mesh, options).status());
      }
      FSDP_RETURN_IF_ERROR(FullyShard(*root, mesh, options).status());
      FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::FromFullyShard(std::move(root)));
    } else {
      FsdpOptions options{.use_orig_params = true, .init_seed = 3};
      options.mixed_precision = settings.mixed_precision;
      options.cpu_offload.offload_params = settings.offload;
      options.auto_wrap_policy = CustomWrapPolicy([&](Module& module) -> std::optional<UnitOverrides> {
        if (module.type_name() != "Unit") return std::nullopt;
        return UnitOverrides{.activation_checkpointing = settings.recompute};
      });
      FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(root), group, options));
    }
    made.optimizer = std::make_unique<AdamW>(made.model->parameters(), AdamWOptions{.lr = 1e-2});
    return made;
  }

  absl::StatusOr<Tensor> Filled(Shape shape, float scale) const {
    FSDP_ASSIGN_OR_RETURN(Tensor x, Tensor::Empty(model->device(), DType::kFloat32, std::move(shape)));
    for (int i = 0; i < x.numel(); ++i) x.data_as<float>()[i] = scale * static_cast<float>(i - 2);
    return x;
  }

  absl::Status Gradients(float scale) const {
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Filled({2, kWidth}, scale));
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, Filled(y.shape(), 0.25f));
    FSDP_RETURN_IF_ERROR(model->Backward(grad, tape).status());
    return model->stream().Synchronize();
  }

  absl::Status Step() const {
    FSDP_RETURN_IF_ERROR(optimizer->Step(model->stream()));
    optimizer->ZeroGrad();
    return model->stream().Synchronize();
  }

  std::vector<float> Values() const {
    std::vector<float> values;
    for (const ShardedParameter* p : model->parameters()) {
      values.insert(values.end(), p->data.data_as<float>(), p->data.data_as<float>() + p->data.numel());
    }
    return values;
  }
};

// Two steps, the second of two backwards of which one keeps its gradients local.
absl::Status TrainAsIfNothingFailed(const Breaking& made, float scale) {
  {
    const NoSyncGuard guard(*made.model);
    FSDP_RETURN_IF_ERROR(made.Gradients(scale));
  }
  FSDP_RETURN_IF_ERROR(made.Gradients(2 * scale));
  return made.Step();
}

class FailedPassTest : public TestWithParam<Settings> {};

TEST_P(FailedPassTest, LeavesNothingInALaterStep) {
  std::vector<std::vector<float>> undisturbed(2);
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Breaking made, Breaking::Make(group, GetParam()));
    for (const float scale : {0.5f, 0.75f}) FSDP_RETURN_IF_ERROR(TrainAsIfNothingFailed(made, scale));
    undisturbed[group->rank()] = made.Values();
    return absl::OkStatus();
  }));
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Breaking made, Breaking::Make(group, GetParam()));
    FSDP_RETURN_IF_ERROR(TrainAsIfNothingFailed(made, 0.5f));
    const auto fail = [&](bool& what, bool keep_local) -> absl::Status {
      what = true;
      std::optional<NoSyncGuard> guard;
      if (keep_local) guard.emplace(*made.model);
      EXPECT_THAT(made.Gradients(1), StatusIs(absl::StatusCode::kDataLoss));
      what = false;
      return absl::OkStatus();
    };
    FSDP_RETURN_IF_ERROR(fail(made.first->break_forward, false));
    FSDP_RETURN_IF_ERROR(fail(made.first->break_backward, false));
    FSDP_RETURN_IF_ERROR(fail(made.second->break_backward, true));
    // After a backward that succeeded, of a step that was never made.
    FSDP_RETURN_IF_ERROR(made.Gradients(3));
    FSDP_RETURN_IF_ERROR(fail(made.second->break_backward, false));
    FSDP_RETURN_IF_ERROR(TrainAsIfNothingFailed(made, 0.75f));
    EXPECT_EQ(made.Values(), undisturbed[group->rank()]);
    EXPECT_THAT(made.model->warnings(), Contains(HasSubstr("a backward failed")));
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Kinds, FailedPassTest,
                         Values(Settings{"Fsdp1"}, Settings{"Fsdp1Recompute", false, true},
                                Settings{"FullyShard", true}, Settings{"FullyShardRecompute", true, true},
                                Settings{"FullyShardOffloaded", true, false, true},
                                Settings{"FullyShardMixed", true, false, false, {.param_dtype = DType::kBFloat16}}),
                         [](const testing::TestParamInfo<Settings>& info) { return info.param.name; });

TEST(AfterAFailedBackwardTest, CallsBetweenPassesWaitForTheNextForward) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Breaking made, Breaking::Make(group, {"Fsdp1"}));
    FSDP_ASSIGN_OR_RETURN(const Tensor x, made.Filled({2, kWidth}, 1));
    Tape tape = made.model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor y, made.model->Forward(x, tape));
    made.second->break_backward = true;
    EXPECT_THAT(made.model->Backward(y, tape).status(), StatusIs(absl::StatusCode::kDataLoss));
    made.second->break_backward = false;
    EXPECT_THAT(made.model->Backward(y, tape).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("run a forward first")));
    EXPECT_THAT(made.model->GetStateDict().status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("run a forward first")));
    Tape forgetful = made.model->NewTape(/*training=*/false);
    FSDP_RETURN_IF_ERROR(made.model->Forward(x, forgetful).status());
    return made.model->GetStateDict().status();
  }));
}

// The next step is as if the pass had not been, also with gradients that earlier backwards kept local.
TEST(AfterAFailedPassTest, ResetIterStateLetsCallsBetweenPassesThrough) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const Settings settings{"FullyShard", true};
    FSDP_ASSIGN_OR_RETURN(const Breaking undisturbed, Breaking::Make(group, settings));
    FSDP_RETURN_IF_ERROR(TrainAsIfNothingFailed(undisturbed, 0.5f));
    for (const bool in_backward : {false, true}) {
      FSDP_ASSIGN_OR_RETURN(const Breaking made, Breaking::Make(group, settings));
      FsdpModule& root = *FsdpModule::Of(made.model->module());
      {
        const NoSyncGuard guard(*made.model);
        FSDP_RETURN_IF_ERROR(made.Gradients(3));
      }
      bool& broken = in_backward ? made.first->break_backward : made.second->break_forward;
      broken = true;
      EXPECT_THAT(made.Gradients(1), StatusIs(absl::StatusCode::kDataLoss));
      broken = false;
      EXPECT_THAT(root.GetStateDict().status(), StatusIs(absl::StatusCode::kFailedPrecondition));
      EXPECT_THAT(FsdpModule::Of(*made.first)->ResetIterState(),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not the root")));
      FSDP_RETURN_IF_ERROR(root.ResetIterState());
      FSDP_RETURN_IF_ERROR(root.GetStateDict().status());
      FSDP_RETURN_IF_ERROR(TrainAsIfNothingFailed(made, 0.5f));
      EXPECT_EQ(made.Values(), undisturbed.Values()) << in_backward;
    }
    return absl::OkStatus();
  }));
}

TEST(AfterAFailedBackwardTest, TheWarningComesOnceForEachAndNotAfterAForwardThatFailed) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Breaking made, Breaking::Make(group, {"FullyShard", true}));
    made.second->break_forward = true;
    EXPECT_THAT(made.Gradients(1), StatusIs(absl::StatusCode::kDataLoss));
    made.second->break_forward = false;
    FSDP_RETURN_IF_ERROR(made.Gradients(1));
    EXPECT_THAT(made.model->warnings(), ElementsAre());
    made.second->break_backward = true;
    EXPECT_THAT(made.Gradients(1), StatusIs(absl::StatusCode::kDataLoss));
    made.second->break_backward = false;
    FSDP_RETURN_IF_ERROR(made.Gradients(1));
    EXPECT_THAT(made.model->warnings(), ElementsAre(HasSubstr("a backward failed")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

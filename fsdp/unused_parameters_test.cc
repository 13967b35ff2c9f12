// SPDX-License-Identifier: Apache-2.0
//
// FSDP2: a parameter that no rank used in a step has no gradient, so an optimizer does not change it; one that some
// rank used has the mean over all ranks.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/nn/linear.h"
#include "fsdp/optim/adamw.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kWidth = 4;

// A layer that this rank uses or skips.
class Gate final : public Module {
 public:
  Gate() : linear_(AddChild("linear", std::make_unique<Conv1D>(kWidth, kWidth, Initializer::Normal(0, 0.5f)))) {}
  std::string_view type_name() const override { return "Gate"; }
  void set_open(bool open) { open_ = open; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    return open_ ? linear_->Forward(input, tape) : absl::StatusOr<Tensor>(input);
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    return open_ ? linear_->Backward(grad_output, tape) : absl::StatusOr<Tensor>(grad_output);
  }

  Conv1D* linear_;
  bool open_ = true;
};

// root > 0 (linear), 1 (gate): one unit, or three.
struct Gated {
  Gate* gate = nullptr;
  std::unique_ptr<FullyShardedDataParallel> model;
  std::unique_ptr<AdamW> optimizer;

  static absl::StatusOr<Gated> Make(const std::shared_ptr<ProcessGroup>& group, bool fsdp2 = true,
                                    const FullyShardOptions& options = {.init_seed = 3}, int replicas = 1) {
    Gated made;
    auto root = std::make_unique<TestSequence>();
    root->AddLinear(kWidth, kWidth);
    made.gate = root->Add(std::make_unique<Gate>());
    if (fsdp2) {
      std::shared_ptr<const DeviceMesh> mesh;
      if (replicas == 1) {
        FSDP_ASSIGN_OR_RETURN(mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
      } else {
        FSDP_ASSIGN_OR_RETURN(mesh,
                              DeviceMesh::Create(group, {replicas, group->size() / replicas}, {"replicate", "shard"}));
      }
      FSDP_RETURN_IF_ERROR(FullyShard(*root, mesh, options).status());
      FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::FromFullyShard(std::move(root)));
    } else {
      FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(root), group,
                                                                       {.use_orig_params = true, .init_seed = 3}));
    }
    made.optimizer = std::make_unique<AdamW>(made.model->parameters(), AdamWOptions{.lr = 1e-2, .weight_decay = 0.5});
    return made;
  }

  // `rank` chooses the input.
  absl::Status ForwardAndBackward(int rank) const {
    FSDP_ASSIGN_OR_RETURN(const Tensor x, Tensor::Empty(model->device(), DType::kFloat32, {2, kWidth}));
    for (int i = 0; i < x.numel(); ++i) x.data_as<float>()[i] = 0.5f * static_cast<float>(i - 2 + rank);
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model->Forward(x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor ones, Tensor::Empty(model->device(), DType::kFloat32, y.shape()));
    std::fill_n(ones.data_as<float>(), ones.numel(), 1.0f);
    FSDP_RETURN_IF_ERROR(model->Backward(ones, tape).status());
    return model->stream().Synchronize();
  }

  absl::Status Step() const {
    FSDP_RETURN_IF_ERROR(optimizer->Step(model->stream()));
    optimizer->ZeroGrad();
    return model->stream().Synchronize();
  }
};

bool OfGate(const ShardedParameter& parameter) { return parameter.fqn.rfind("1.", 0) == 0; }

std::vector<float> Values(const Tensor& t) { return {t.data_as<float>(), t.data_as<float>() + t.numel()}; }

TEST(UnusedParametersTest, AdamWLeavesAnUnusedParameterAsItIsAndGivesItNoState) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group));
    gated.gate->set_open(false);
    std::vector<std::vector<float>> before;
    for (const ShardedParameter* p : gated.model->parameters()) before.push_back(Values(p->data));
    for (int step = 0; step < 3; ++step) {
      FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
      for (const ShardedParameter* p : gated.model->parameters()) EXPECT_EQ(p->has_grad, !OfGate(*p)) << p->fqn;
      FSDP_RETURN_IF_ERROR(gated.model->ClipGradNorm(0.1f).status());
      FSDP_RETURN_IF_ERROR(gated.Step());
    }
    for (size_t i = 0; i < before.size(); ++i) {
      const ShardedParameter& p = *gated.model->parameters()[i];
      EXPECT_EQ(Values(p.data) == before[i], OfGate(p)) << p.fqn;
    }
    StateDict state;
    FSDP_RETURN_IF_ERROR(gated.model->AddOptimStateDict(*gated.optimizer, state));
    EXPECT_NE(state.FindTensor(StateKey::OptimState("0.weight", "exp_avg")), nullptr);
    EXPECT_EQ(state.FindTensor(StateKey::OptimState("1.linear.weight", "exp_avg")), nullptr);

    FSDP_ASSIGN_OR_RETURN(const Gated fresh, Gated::Make(group));
    FSDP_RETURN_IF_ERROR(fresh.model->LoadOptimStateDict(state, *fresh.optimizer));
    fresh.gate->set_open(false);
    FSDP_RETURN_IF_ERROR(fresh.ForwardAndBackward(group->rank()));
    FSDP_RETURN_IF_ERROR(fresh.Step());
    for (size_t i = 0; i < before.size(); ++i) {
      const ShardedParameter& p = *fresh.model->parameters()[i];
      EXPECT_EQ(Values(p.data) == before[i], OfGate(p)) << p.fqn;
    }
    return absl::OkStatus();
  }));
}

// The ranks whose gates are open, and the passes: without synchronisation, then with.
TEST(UnusedParametersTest, AParameterThatOneRankUsedHasTheMeanOnAllRanks) {
  std::vector<std::vector<float>> alone;
  ASSERT_OK(RunRanks(1, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group));
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(/*rank=*/1));
    for (const ShardedParameter* p : gated.model->parameters()) alone.push_back(Values(p->grad));
    return absl::OkStatus();
  }));
  for (const int replicas : {1, 2}) {
    ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group, /*fsdp2=*/true, {.init_seed = 3}, replicas));
      gated.gate->set_open(group->rank() == 1);
      FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
      const auto parameters = gated.model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(parameters[i]->has_grad) << parameters[i]->fqn;
        if (!OfGate(*parameters[i])) continue;
        std::vector<float> wanted(alone[i].begin() + parameters[i]->interval.begin,
                                  alone[i].begin() + parameters[i]->interval.end);
        for (float& g : wanted) g /= 2;
        EXPECT_EQ(Values(parameters[i]->grad), wanted) << parameters[i]->fqn;
      }
      return absl::OkStatus();
    }));
  }
}

TEST(UnusedParametersTest, AParameterUsedInAPassWithoutSynchronisationCountsInTheNext) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group));
    gated.model->set_requires_gradient_sync(false);
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    for (const ShardedParameter* p : gated.model->parameters()) EXPECT_FALSE(p->has_grad) << p->fqn;
    gated.model->set_requires_gradient_sync(true);
    gated.gate->set_open(false);
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    for (const ShardedParameter* p : gated.model->parameters()) EXPECT_TRUE(p->has_grad) << p->fqn;
    FSDP_RETURN_IF_ERROR(gated.Step());
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    for (const ShardedParameter* p : gated.model->parameters()) EXPECT_EQ(p->has_grad, !OfGate(*p)) << p->fqn;
    return absl::OkStatus();
  }));
}

// A backward that did not use the parameter keeps the gradient of an earlier one, as .grad does.
TEST(UnusedParametersTest, AGradientOfAnEarlierBackwardStays) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group));
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    std::vector<std::vector<float>> first;
    for (const ShardedParameter* p : gated.model->parameters()) first.push_back(Values(p->grad));
    gated.gate->set_open(false);
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    for (size_t i = 0; i < first.size(); ++i) {
      const ShardedParameter& p = *gated.model->parameters()[i];
      EXPECT_TRUE(p.has_grad) << p.fqn;
      if (OfGate(p)) {
        EXPECT_EQ(Values(p.grad), first[i]) << p.fqn;
      }
    }
    return absl::OkStatus();
  }));
}

TEST(UnusedParametersTest, TheScalerSkipsThem) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group));
    gated.gate->set_open(false);
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    // Not a gradient: it must be neither read nor used.
    for (ShardedParameter* p : gated.model->parameters()) {
      if (OfGate(*p) && !p->interval.empty()) std::memset(p->grad.data(), 0xff, p->grad.nbytes());
    }
    ShardedGradScaler scaler(*group, {});
    FSDP_RETURN_IF_ERROR(scaler.Unscale(*gated.optimizer, gated.model->stream()));
    FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(*gated.optimizer, gated.model->stream()));
    EXPECT_TRUE(stepped);
    return absl::OkStatus();
  }));
}

// A flat parameter has one gradient, so the gradient of an unused part is zero: FSDP1 in PyTorch, also with
// use_orig_params.
TEST(UnusedParametersTest, AFlatParameterGivesThemAGradientOfZeros) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const Gated gated, Gated::Make(group, /*fsdp2=*/false));
    gated.gate->set_open(false);
    FSDP_RETURN_IF_ERROR(gated.ForwardAndBackward(group->rank()));
    for (const ShardedParameter* p : gated.model->parameters()) {
      EXPECT_TRUE(p->has_grad) << p->fqn;
      if (OfGate(*p)) {
        EXPECT_EQ(Values(p->grad), std::vector<float>(p->grad.numel(), 0.0f)) << p->fqn;
      }
    }
    return absl::OkStatus();
  }));
}

// Runs its layer twice in each forward.
class Twice final : public Module {
 public:
  Twice() : linear_(AddChild("linear", std::make_unique<Conv1D>(kWidth, kWidth, Initializer::Normal(0, 0.5f)))) {}
  std::string_view type_name() const override { return "Twice"; }
  Module& linear() { return *linear_; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor once, linear_->Forward(input, tape));
    return linear_->Forward(once, tape);
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor once, linear_->Backward(grad_output, tape));
    return linear_->Backward(once, tape);
  }

  Conv1D* linear_;
};

// The unit was stored twice, and the second gradient replaced the first.
TEST(RepeatedUnitTest, AUnitThatRunsTwiceInAForwardHasTheSumOfItsGradientsUnderBothApis) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    float norms[2];
    for (const bool fsdp2 : {false, true}) {
      Gated made;
      auto root = std::make_unique<TestSequence>();
      root->AddLinear(kWidth, kWidth);
      Twice* const twice = root->Add(std::make_unique<Twice>());
      if (fsdp2) {
        FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
        const FullyShardOptions options = {.init_seed = 3};
        FSDP_RETURN_IF_ERROR(FullyShard(twice->linear(), mesh, options).status());
        FSDP_RETURN_IF_ERROR(FullyShard(*root, mesh, options).status());
        FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::FromFullyShard(std::move(root)));
      } else {
        const FsdpOptions options = {.auto_wrap_policy = ModuleWrapPolicy<Conv1D>(), .init_seed = 3};
        FSDP_ASSIGN_OR_RETURN(made.model, FullyShardedDataParallel::Wrap(std::move(root), group, options));
      }
      for (int step = 0; step < 2; ++step) {
        for (ShardedParameter* parameter : made.model->parameters()) parameter->has_grad = false;
        FSDP_RETURN_IF_ERROR(made.ForwardAndBackward(group->rank()));
      }
      FSDP_ASSIGN_OR_RETURN(norms[fsdp2 ? 1 : 0], made.model->ClipGradNorm(1e9f));
      for (const ShardedParameter* parameter : made.model->parameters()) EXPECT_TRUE(parameter->has_grad);
    }
    EXPECT_NEAR(norms[1], norms[0], 1e-5f * norms[0]);
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

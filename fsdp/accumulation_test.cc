// SPDX-License-Identifier: Apache-2.0
//
// Gradients of several passes: any mixture of backwards with and without synchronisation, several forwards before a
// backward, units that a step does not use, and recomputation add up to the gradient of the whole batch.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/units/units_testutil.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using Strategy = ShardingStrategy;

constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard,
                                    Strategy::kHybridShard, Strategy::kHybridShardZero2};

FsdpOptions Options(Strategy strategy) {
  FsdpOptions options = BlockOptions();
  options.sharding_strategy = strategy;
  if (IsHybrid(strategy)) options.shard_group_size = 2;
  return options;
}

// The gradient after one backward a letter: 's' with synchronisation, 'u' without.
absl::StatusOr<WholeTensors> GradientsOf(const FsdpOptions& options, const std::string& pattern) {
  WholeTensors gradients;
  FSDP_RETURN_IF_ERROR(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, options));
    for (size_t step = 0; step < pattern.size(); ++step) {
      made.model->set_requires_gradient_sync(pattern[step] == 's');
      FSDP_RETURN_IF_ERROR(made.ComputeGradients(static_cast<int>(step)).status());
    }
    gradients.AddGradients(made.model->parameters());
    return absl::OkStatus();
  }));
  return gradients;
}

// Sums in another order: as close as the largest element of a tensor is rounded, since small elements are sums of large
// terms.
void ExpectNear(const WholeTensors& a, const WholeTensors& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, values] : b.tensors()) {
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_NEAR(a.tensors().at(name)[i], values[i], 1e-5 * largest) << name << " " << i;
    }
  }
}

TEST(AccumulationTest, AnyInterleavingOfSyncedAndUnsyncedBackwardsIsTheBigBatchsGradient) {
  ASSERT_OK_AND_ASSIGN(const WholeTensors whole, GradientsOf(Options(Strategy::kFullShard), "ssss"));
  for (const Strategy strategy : kStrategies) {
    for (const std::string pattern : {"ssss", "uuus", "suus", "usus"}) {
      SCOPED_TRACE(std::string(ShardingStrategyName(strategy)) + " " + pattern);
      ASSERT_OK_AND_ASSIGN(const WholeTensors gradients, GradientsOf(Options(strategy), pattern));
      ExpectNear(gradients, whole);
    }
  }
}

TEST(AccumulationTest, SeveralForwardsMayPrecedeTheirBackwards) {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    WholeTensors gradients;
    ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(group, Options(strategy)));
      std::vector<Tape> tapes;
      std::vector<Tensor> grads;
      for (int step = 0; step < 2; ++step) {
        FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(made.model->device(), step, group->rank()));
        tapes.push_back(made.model->NewTape());
        CrossEntropyLoss loss;
        FSDP_ASSIGN_OR_RETURN(const Tensor logits, made.model->Forward(batch.tokens, tapes.back()));
        FSDP_RETURN_IF_ERROR(loss.Forward(logits, batch.targets, tapes.back()).status());
        FSDP_ASSIGN_OR_RETURN(const Tensor grad, loss.Backward(1.0f, tapes.back()));
        grads.push_back(grad);
      }
      for (int step = 1; step >= 0; --step) {
        FSDP_RETURN_IF_ERROR(made.model->Backward(grads[step], tapes[step]).status());
      }
      FSDP_RETURN_IF_ERROR(made.model->stream().Synchronize());
      gradients.AddGradients(made.model->parameters());
      return absl::OkStatus();
    }));
    ASSERT_OK_AND_ASSIGN(const WholeTensors one_by_one, GradientsOf(Options(strategy), "ss"));
    ExpectNear(gradients, one_by_one);
  }
}

TEST(AccumulationTest, RecomputingActivationsChangesNoBit) {
  for (const Strategy strategy : kStrategies) {
    FsdpOptions options = Options(strategy);
    ASSERT_OK_AND_ASSIGN(const WholeTensors kept, GradientsOf(options, "us"));
    options.activation_checkpointing = true;
    ASSERT_OK_AND_ASSIGN(const WholeTensors recomputed, GradientsOf(options, "us"));
    EXPECT_TRUE(recomputed == kept) << ShardingStrategyName(strategy);
  }
}

// Children that may be left out of a pass.
class Skipping final : public Module {
 public:
  explicit Skipping(int children) {
    for (int i = 0; i < children; ++i) {
      layers_.push_back(AddChild(std::to_string(i), std::make_unique<Conv1D>(3, 3, Initializer::Constant(0.5f))));
    }
  }
  std::string_view type_name() const override { return "Skipping"; }

  std::vector<int> order;  // of the children that run

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    Tensor x = input;
    for (const int i : order) {
      FSDP_ASSIGN_OR_RETURN(x, layers_[i]->Forward(x, tape));
    }
    return x;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    Tensor grad = grad_output;
    for (auto i = order.rbegin(); i != order.rend(); ++i) {
      FSDP_ASSIGN_OR_RETURN(grad, layers_[*i]->Backward(grad, tape));
    }
    return grad;
  }

  std::vector<Conv1D*> layers_;
};

FsdpOptions LayerOptions() {
  FsdpOptions options;
  options.auto_wrap_policy = ModuleWrapPolicy<Conv1D>();
  return options;
}

absl::Status RunOrder(FullyShardedDataParallel& model, std::vector<int> order) {
  dynamic_cast<Skipping&>(model.module()).order = std::move(order);
  Tape tape = model.NewTape();
  FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(DType::kFloat32, {2, 3}));
  model.device().ops().Zero(x, model.stream());
  FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
  FSDP_RETURN_IF_ERROR(model.Backward(y, tape).status());
  return model.stream().Synchronize();
}

TEST(AccumulationTest, UnitsThatAStepDoesNotUseHaveNoGradientAndStopNothing) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(auto model,
                          FullyShardedDataParallel::Wrap(std::make_unique<Skipping>(5), group, LayerOptions()));
    for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 1, 2, 3, 4}, {0, 4}, {3, 2, 1}, {1}}) {
      for (ShardedParameter* p : model->parameters()) p->has_grad = false;
      FSDP_RETURN_IF_ERROR(RunOrder(*model, order));
      for (const ShardedParameter* p : model->parameters()) {
        const bool used = std::find(order.begin(), order.end(), p->fqn[0] - '0') != order.end();
        EXPECT_EQ(p->has_grad, used) << p->fqn;
      }
    }
    return absl::OkStatus();
  }));
}

TEST(ExecutionOrderTest, RanksThatRunDifferentUnitsGetAnErrorInsteadOfMixedParameters) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = LayerOptions();
    options.check_execution_order = true;
    FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::make_unique<Skipping>(3), group, options));
    return RunOrder(*model, group->rank() == 0 ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 2, 1});
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                               testing::AllOf(testing::HasSubstr("forward order differs across ranks"),
                                              testing::HasSubstr("the next unit of rank 0:\n1\nof rank 1:\n2"))));
}

TEST(ExecutionOrderTest, ALaterChangeIsAWarningOnce) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = LayerOptions();
    options.check_execution_order = true;
    FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::make_unique<Skipping>(3), group, options));
    FSDP_RETURN_IF_ERROR(RunOrder(*model, {0, 1, 2}));
    FSDP_RETURN_IF_ERROR(RunOrder(*model, {0, 1, 2}));
    EXPECT_THAT(model->warnings(), testing::IsEmpty());
    FSDP_RETURN_IF_ERROR(RunOrder(*model, {0, 2}));
    FSDP_RETURN_IF_ERROR(RunOrder(*model, {2}));
    EXPECT_THAT(model->warnings(), testing::ElementsAre(testing::HasSubstr("unit 2 ran instead of 1")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

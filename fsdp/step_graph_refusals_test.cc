// SPDX-License-Identifier: Apache-2.0
//
// The calls around a captured step that are refused.
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/step_graph_testutil.h"
#include "fsdp/nn/dropout.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/optim/sgd.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

TEST_F(StepGraphTest, AStepThatIsCapturedInOneWayIsRefusedInTheOther) {
  for (const bool two_graphs : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
    ASSERT_OK(rig->Capture());
    if (two_graphs) rig->DivideSteps();
    ASSERT_OK(rig->Steps(0, kCaptured + 1));
    EXPECT_THAT(two_graphs ? rig->graph().Run(kMaxNorm) : rig->graph().ComputeGradients(kMaxNorm),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr(two_graphs ? "Run after a step that was captured as two graphs"
                                              : "ComputeGradients after a step that was captured as one graph")));
    EXPECT_OK(rig->Step(kCaptured + 1));
  }
}

TEST_F(StepGraphTest, AUnitThatIsUnshardedIsRefusedByNameUnlessByAnEvaluation) {
  OnRanks(2, std::nullopt, [](Rig& rig) -> absl::Status {
    FSDP_RETURN_IF_ERROR(rig.Capture());
    for (int step = 0; step <= kCaptured; ++step) {
      FSDP_RETURN_IF_ERROR(rig.Step(step));
      FSDP_RETURN_IF_ERROR(rig.Evaluate());
    }
    FSDP_RETURN_IF_ERROR(rig.fully_sharded()->Unshard());
    EXPECT_THAT(rig.Step(kCaptured + 1),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("unit root is unsharded before a captured step, which all-gathers it")));
    FSDP_RETURN_IF_ERROR(rig.fully_sharded()->Reshard());
    return rig.Step(kCaptured + 1);
  });
}

TEST_F(StepGraphTest, AnOptimizerOtherThanAdamWIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  Sgd sgd(rig->model().parameters(), SgdOptions{.lr = 1});
  EXPECT_THAT(StepGraph::Create(rig->model(), sgd, [] { return absl::OkStatus(); }).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("this optimizer's steps cannot be captured")));
}

TEST_F(StepGraphTest, GradientsThatAreLeftAreRefusedByName) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  ASSERT_OK(rig->Capture());
  ASSERT_OK(rig->Steps(0, kCaptured + 1));
  ASSERT_OK(rig->ForwardBackward());
  EXPECT_THAT(
      rig->Step(kCaptured + 1),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("parameter \"transformer.wte.weight\" has a gradient before a captured step, which does "
                         "not add to it: call the optimizer's ZeroGrad first")));
  rig->optimizer().ZeroGrad();
  EXPECT_OK(rig->Step(kCaptured + 1));
}

TEST_F(StepGraphTest, AnotherLimitOfTheNormIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  ASSERT_OK(rig->Capture());
  ASSERT_OK(rig->Steps(0, kCaptured + 1));
  EXPECT_THAT(
      rig->graph().Run(2 * kMaxNorm),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_grad_norm 1 of a step that was captured with 0.5")));
}

TEST_F(StepGraphTest, ADecisionOfTheHostWithinTheStepIsRefused) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  ASSERT_OK_AND_ASSIGN(const auto graph, StepGraph::Create(rig->model(), rig->optimizer(), [&]() -> absl::Status {
                         FSDP_RETURN_IF_ERROR(rig->ForwardBackward());
                         return rig->model().stream().Synchronize();
                       }));
  ASSERT_OK(rig->FillBatch(0));
  for (int step = 0; step < kCaptured; ++step) ASSERT_OK(graph->Run(kMaxNorm));
  EXPECT_THAT(graph->Run(kMaxNorm),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("stream \"compute\": cannot be waited for by the host while its work is captured")));
}

TEST_F(StepGraphTest, DropoutIsRefusedSinceEveryReplayWouldDropTheSameElements) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  Dropout dropout(0.5f);
  ASSERT_OK_AND_ASSIGN(const auto graph, StepGraph::Create(rig->model(), rig->optimizer(), [&]() -> absl::Status {
                         FSDP_RETURN_IF_ERROR(rig->ForwardBackward());
                         Tape tape = rig->model().NewTape();
                         FSDP_RETURN_IF_ERROR(tape.set_random_state({.seed = 1, .samples = 1}));
                         FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(DType::kFloat32, {64}));
                         return dropout.Forward(x, tape).status();
                       }));
  ASSERT_OK(rig->FillBatch(0));
  for (int step = 0; step < kCaptured; ++step) ASSERT_OK(graph->Run(kMaxNorm));
  EXPECT_THAT(graph->Run(kMaxNorm), StatusIs(absl::StatusCode::kFailedPrecondition,
                                             HasSubstr("stream \"compute\": dropout cannot be captured, since each "
                                                       "replay would drop the same elements")));
}

TEST_F(StepGraphTest, ParametersThatNoUnitHasAreRefusedByName) {
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<Device> device, CreateCudaDevice(0));
  ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({device}));
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  FsdpOptions options = BlockOptions();
  for (const auto& [name, below] : module->NamedModules()) {
    if (name == "transformer.ln_f") options.ignored_modules.push_back(below);
  }
  ASSERT_EQ(options.ignored_modules.size(), 1u);
  ASSERT_OK(options.ignored_modules[0]->Materialize(*device, /*seed=*/1));
  ASSERT_OK_AND_ASSIGN(
      const auto model,
      FullyShardedDataParallel::Wrap(std::move(module), std::shared_ptr<ProcessGroup>(std::move(groups[0])), options));
  AdamW optimizer(model->parameters(), {});
  EXPECT_THAT(StepGraph::Create(*model, optimizer, [] { return absl::OkStatus(); }).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("parameter \"transformer.ln_f.weight\" is ignored by FSDP")));
}

}  // namespace
}  // namespace fsdp

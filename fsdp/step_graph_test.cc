// SPDX-License-Identifier: Apache-2.0
//
// Captured steps, as one graph and as two: changes between replays have the same effect as without capture.
// train/graph_training_test.cc tests whole runs.
#include "fsdp/fsdp/step_graph.h"

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/stream_hold_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/step_graph_testutil.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/tensor/work_graph.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

FsdpOptions WithCastsOfTheOptimizer() {
  FsdpOptions options = BlockOptions();
  options.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  options.optimizer_casts = true;
  return options;
}

// Weights and optimizer state return to earlier values between two replays; the copies in bfloat16 that all-gathers
// start from must follow.
TEST_F(StepGraphTest, ValuesLoadedBetweenReplaysAreTrainedOn) {
  const auto train = [](Rig& rig) -> absl::Status {
    FSDP_RETURN_IF_ERROR(rig.Steps(0, 1));
    const StateDictTypeGuard guard(rig.model(), ShardedStateDictConfig{});
    FSDP_ASSIGN_OR_RETURN(StateDict state, rig.model().GetStateDict());
    FSDP_RETURN_IF_ERROR(rig.model().AddOptimStateDict(rig.optimizer(), state));
    FSDP_RETURN_IF_ERROR(rig.Steps(1, kCaptured + 1));
    FSDP_RETURN_IF_ERROR(rig.model().LoadStateDict(state));
    FSDP_RETURN_IF_ERROR(rig.model().LoadOptimStateDict(state, rig.optimizer()));
    return rig.Steps(1, 3);
  };
  for (const int ranks : {1, 2}) {
    std::vector<std::vector<float>> wanted(ranks), seen(ranks);
    OnRanks(ranks, WithCastsOfTheOptimizer(), [&](Rig& eager) -> absl::Status {
      FSDP_RETURN_IF_ERROR(train(eager));
      wanted[eager.model().group().rank()] = eager.seen();
      return absl::OkStatus();
    });
    for (const bool two_graphs : {false, true}) {
      OnRanks(ranks, WithCastsOfTheOptimizer(), [&](Rig& captured) -> absl::Status {
        FSDP_RETURN_IF_ERROR(captured.Capture());
        if (two_graphs) captured.DivideSteps();
        FSDP_RETURN_IF_ERROR(train(captured));
        seen[captured.model().group().rank()] = captured.seen();
        return absl::OkStatus();
      });
      EXPECT_EQ(seen, wanted) << ranks << two_graphs;
    }
  }
}

TEST_F(StepGraphTest, AStepAsOneGraphAndAsTwoHasTheBitsOfAStepWithoutCapture) {
  constexpr int kRanks = 2, kSteps = kCaptured + 4;
  const auto train = [&](const std::function<absl::Status(Rig & rig)>& prepare) {
    std::vector<std::vector<float>> results(kRanks);
    OnRanks(kRanks, WithCastsOfTheOptimizer(), [&](Rig& rig) -> absl::Status {
      FSDP_RETURN_IF_ERROR(prepare(rig));
      FSDP_RETURN_IF_ERROR(rig.Steps(0, kSteps));
      FSDP_ASSIGN_OR_RETURN(std::vector<float> weights, rig.Weights());
      weights.insert(weights.end(), rig.seen().begin(), rig.seen().end());
      weights.push_back(static_cast<float>(rig.optimizer().step_count(0)));
      results[rig.model().group().rank()] = std::move(weights);
      return absl::OkStatus();
    });
    return results;
  };
  const auto eager = train([](Rig&) { return absl::OkStatus(); });
  const auto one = train([](Rig& rig) { return rig.Capture(); });
  const auto two = train([](Rig& rig) {
    rig.DivideSteps();
    return rig.Capture();
  });
  EXPECT_TRUE(one == eager);
  EXPECT_TRUE(two == eager);
}

// For example an event that lets all-gathers run ahead: a graph still contains them.
TEST_F(StepGraphTest, AnEventForTheNextForwardKeepsNothingOutOfTheGraph) {
  std::vector<float> wanted, seen;
  OnRanks(2, std::nullopt, [&](Rig& eager) -> absl::Status {
    FSDP_RETURN_IF_ERROR(eager.Steps(0, kCaptured + 2));
    if (eager.model().group().rank() == 0) wanted = eager.seen();
    return absl::OkStatus();
  });
  OnRanks(2, std::nullopt, [&](Rig& captured) -> absl::Status {
    FSDP_RETURN_IF_ERROR(captured.Capture());
    FSDP_RETURN_IF_ERROR(captured.Steps(0, kCaptured + 2));
    if (captured.model().group().rank() == 0) seen = captured.seen();
    return absl::OkStatus();
  });
  EXPECT_EQ(seen, wanted);
}

// More than a tape lets the host run ahead.
TEST_F(StepGraphTest, ATapeDoesNotWaitForWorkThatIsCaptured) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Device> device, CreateCudaDevice(0));
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const LayerOps> ops, LayerOpsFor(*device));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> stream, device->CreateStream("compute"));
  EXPECT_OK(CaptureWork(*stream, [&]() -> absl::Status {
              Tape tape(*stream, *ops);
              for (int i = 0; i < 3; ++i)
                FSDP_RETURN_IF_ERROR(tape.Empty(DType::kFloat32, {int64_t{9} << 20}).status());
              return absl::OkStatus();
            }).status());
}

TEST_F(StepGraphTest, TheHostPutsNothingOnTheStreamsAfterTheCapture) {
  OnRanks(2, BlockOptions(), [](Rig& rig) -> absl::Status {
    FSDP_RETURN_IF_ERROR(rig.Capture());
    FSDP_RETURN_IF_ERROR(rig.Steps(0, kCaptured + 3));
    EXPECT_EQ(rig.forward_backwards(), kCaptured + 1);
    EXPECT_EQ(rig.optimizer().step_count(0), kCaptured + 3);
    return absl::OkStatus();
  });
}

// Steps of any kind may follow each other.
TEST_F(StepGraphTest, StepsThatAreNotCapturedGoBetweenReplays) {
  OnRanks(2, BlockOptions(), [](Rig& rig) -> absl::Status {
    FSDP_RETURN_IF_ERROR(rig.Capture());
    FSDP_RETURN_IF_ERROR(rig.Steps(0, kCaptured + 2));
    const auto eager_step = [&]() -> absl::Status {
      FSDP_RETURN_IF_ERROR(rig.ForwardBackward());
      FSDP_ASSIGN_OR_RETURN(const GradClip clip, rig.model().ClipGradNormAsync(kMaxNorm));
      rig.optimizer().set_grad_factor(clip.coefficient());
      FSDP_RETURN_IF_ERROR(rig.optimizer().Step(rig.model().stream()));
      rig.optimizer().ZeroGrad();
      return clip.Norm().status();
    };
    FSDP_RETURN_IF_ERROR(eager_step());
    FSDP_RETURN_IF_ERROR(rig.Steps(kCaptured + 2, kCaptured + 3));
    EXPECT_EQ(rig.optimizer().step_count(0), kCaptured + 4);
    return absl::OkStatus();
  });
}

// Gradients whose norm overflows are multiplied by 0, as by ClipGradNorm, so weights decay and stay finite; a limit of
// 0 does the same to every norm. Replays are among the steps.
TEST_F(StepGraphTest, ANormThatIsNotFiniteAndALimitOf0GiveTheStepOfClipGradNorm) {
  struct Case {
    float loss_factor, max_norm;
  };
  for (const Case& c : {Case{1e25f, kMaxNorm}, Case{1.0f, 0.0f}}) {
    std::vector<float> initial, clipped, replayed;
    for (std::vector<float>* weights : {&clipped, &replayed}) {
      ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
      rig->Clip(c.loss_factor, c.max_norm);
      ASSERT_OK_AND_ASSIGN(initial, rig->Weights());
      const bool graph = weights == &replayed;
      ASSERT_OK(graph ? rig->Capture() : absl::OkStatus());
      for (int step = 0; step < kCaptured + 2; ++step) {
        ASSERT_OK(graph ? rig->Step(step) : rig->StepAfterClipping(step));
      }
      ASSERT_OK_AND_ASSIGN(*weights, rig->Weights());
    }
    EXPECT_EQ(replayed, clipped) << c.loss_factor;
    EXPECT_NE(clipped, initial) << "weights decay";
  }
}

// As a checkpoint that is still being copied does. The host has the norm meanwhile.
TEST_F(StepGraphTest, OnlyTheUpdateWaitsForTheEventOfUpdateAfter) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  ASSERT_OK(rig->Capture());
  ASSERT_OK(rig->Steps(0, kCaptured + 1));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Stream> other, rig->device().CreateStream("other"));
  const Tensor& weight = rig->model().parameters()[0]->data;
  ASSERT_OK_AND_ASSIGN(const Buffer copied, rig->device().AllocatePinned(weight.nbytes()));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> before, rig->Weights());
  ASSERT_OK(rig->FillBatch(kCaptured + 1));
  StreamHold hold;
  hold.Stop(*other);
  other->CopyAsync(copied.data(), weight.data(), weight.nbytes());
  rig->graph().UpdateAfter(other->Record());
  ASSERT_OK(rig->graph().Run(kMaxNorm));
  const Event done = rig->model().stream().Record();
  EXPECT_OK(rig->graph().clip().Norm().status());
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_FALSE(done.Query());
  hold.Release();
  ASSERT_OK_AND_ASSIGN(const std::vector<float> after, rig->Weights());
  EXPECT_NE(after, before);
  EXPECT_EQ(std::memcmp(copied.data(), before.data(), weight.nbytes()), 0);
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The calls around a captured step: refusals, and that changes between replays have the same effect as without capture.
// train/graph_training_test.cc tests whole runs.
#include "fsdp/fsdp/step_graph.h"

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/stream_hold_testutil.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/sgd.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/work_graph.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr float kMaxNorm = 0.5f;
constexpr int kCaptured = StepGraph::kEagerSteps;  // the step that is captured; the next is a replay

// A model on this rank's GPU, with inputs at fixed addresses.
class Rig {
 public:
  // Without options the model is FullyShard's: one unit, whose forwards wait for an event that the program gives.
  static absl::StatusOr<std::unique_ptr<Rig>> Create(std::shared_ptr<ProcessGroup> group,
                                                     const std::optional<FsdpOptions>& options) {
    std::unique_ptr<Rig> rig(new Rig);
    rig->group_ = std::move(group);
    rig->host_ = CreateHostDevice();
    // One block, since an emulated GPU is slow.
    Gpt2Config config = OddGpt2Config();
    config.n_layer = 1;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(config));
    FSDP_ASSIGN_OR_RETURN(rig->model_, options.has_value()
                                           ? FullyShardedDataParallel::Wrap(std::move(module), rig->group_, *options)
                                           : FullySharded(std::move(module), rig->group_));
    rig->optimizer_ =
        std::make_unique<AdamW>(AdamW::DecayMatricesOnly(rig->model_->parameters(), {.lr = 1e-2, .weight_decay = 0.1}));
    FSDP_ASSIGN_OR_RETURN(rig->batch_, TestBatchOf(*rig->host_, 0, 0));
    for (Tensor* t : {&rig->batch_.tokens, &rig->batch_.targets}) {
      FSDP_ASSIGN_OR_RETURN(*t, Tensor::Empty(rig->device(), t->dtype(), t->shape()));
    }
    FSDP_ASSIGN_OR_RETURN(rig->host_loss_, rig->device().AllocatePinned(sizeof(float)));
    return rig;
  }

  FullyShardedDataParallel& model() { return *model_; }
  AdamW& optimizer() { return *optimizer_; }
  Device& device() { return *group_->device(); }

  FsdpModule* fully_sharded() { return FsdpModule::Of(model().module()); }

  absl::Status ForwardBackward() {
    ++forward_backwards_;
    if (reached_.state() != nullptr) FSDP_RETURN_IF_ERROR(fully_sharded()->set_post_optim_event(reached_));
    Tape tape = model().NewTape();
    CrossEntropyLoss loss;
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model().Forward(batch_.tokens, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor value, loss.Forward(logits, batch_.targets, tape));
    model().stream().CopyAsync(host_loss_.data(), value.data(), sizeof(float));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, loss.Backward(loss_factor_, tape));
    return model().Backward(grad, tape).status();
  }

  absl::Status Evaluate() {
    Tape tape = model().NewTape(/*training=*/false);
    FSDP_RETURN_IF_ERROR(model().Forward(batch_.tokens, tape).status());
    return model().stream().Synchronize();
  }

  // From the next step on, losses are multiplied by `loss_factor` and gradients clipped to `max_norm`.
  void Clip(float loss_factor, float max_norm) {
    loss_factor_ = loss_factor;
    max_norm_ = max_norm;
  }

  absl::Status Capture() {
    FSDP_ASSIGN_OR_RETURN(graph_, StepGraph::Create(model(), optimizer(), [this] { return ForwardBackward(); }));
    return absl::OkStatus();
  }

  // From the next step on, a captured step is two graphs.
  void DivideSteps() { two_graphs_ = true; }

  // One step, captured if Capture was called; appends its loss and the norm of its gradients to seen().
  absl::Status Step(int step) {
    FSDP_RETURN_IF_ERROR(FillBatch(step));
    if (fully_sharded() != nullptr) {
      reached_ = model().stream().Record();
      FSDP_RETURN_IF_ERROR(fully_sharded()->set_post_optim_event(reached_));
    }
    FSDP_RETURN_IF_ERROR(optimizer().SetHyperparameter("lr", 1e-2 / (step + 1)));
    if (graph_ != nullptr && two_graphs_) {
      FSDP_RETURN_IF_ERROR(graph_->ComputeGradients(max_norm_));
      FSDP_RETURN_IF_ERROR(graph_->Update());
      return See(graph_->clip());
    }
    if (graph_ != nullptr) {
      FSDP_RETURN_IF_ERROR(graph_->Run(max_norm_));
      return See(graph_->clip());
    }
    FSDP_RETURN_IF_ERROR(ForwardBackward());
    FSDP_ASSIGN_OR_RETURN(const GradClip clip, model().ClipGradNormAsync(max_norm_));
    optimizer().set_grad_factor(clip.coefficient());
    FSDP_RETURN_IF_ERROR(optimizer().Step(model().stream()));
    optimizer().ZeroGrad();
    return See(clip);
  }

  // A step of a model that is not FullyShard's, not captured, whose gradients are clipped before it.
  absl::Status StepAfterClipping(int step) {
    FSDP_RETURN_IF_ERROR(FillBatch(step));
    FSDP_RETURN_IF_ERROR(optimizer().SetHyperparameter("lr", 1e-2 / (step + 1)));
    FSDP_RETURN_IF_ERROR(ForwardBackward());
    FSDP_RETURN_IF_ERROR(model().ClipGradNorm(max_norm_).status());
    FSDP_RETURN_IF_ERROR(optimizer().Step(model().stream()));
    optimizer().ZeroGrad();
    return model().stream().Synchronize();
  }

  // This rank's parameters, one after the other.
  absl::StatusOr<std::vector<float>> Weights() {
    std::vector<float> weights;
    for (const ShardedParameter* parameter : model().parameters()) {
      FSDP_ASSIGN_OR_RETURN(const Buffer host, device().AllocatePinned(parameter->data.nbytes()));
      model().stream().CopyAsync(host.data(), parameter->data.data(), parameter->data.nbytes());
      FSDP_RETURN_IF_ERROR(model().stream().Synchronize());
      const auto* values = reinterpret_cast<const float*>(host.data());
      weights.insert(weights.end(), values, values + parameter->data.numel());
    }
    return weights;
  }

  absl::Status Steps(int begin, int end) {
    for (int step = begin; step < end; ++step) FSDP_RETURN_IF_ERROR(Step(step));
    return absl::OkStatus();
  }

  absl::Status FillBatch(int step) {
    FSDP_ASSIGN_OR_RETURN(const TestBatch made, TestBatchOf(*host_, step, group_->rank()));
    model().stream().CopyAsync(batch_.tokens.data(), made.tokens.data(), made.tokens.nbytes());
    model().stream().CopyAsync(batch_.targets.data(), made.targets.data(), made.targets.nbytes());
    return model().stream().Synchronize();
  }

  StepGraph& graph() { return *graph_; }
  int forward_backwards() const { return forward_backwards_; }
  const std::vector<float>& seen() const { return seen_; }

 private:
  static absl::StatusOr<std::unique_ptr<FullyShardedDataParallel>> FullySharded(
      std::unique_ptr<Module> module, const std::shared_ptr<ProcessGroup>& group) {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<const DeviceMesh> mesh,
                          DeviceMesh::Create(group, {group->size()}, {"shard"}));
    FSDP_RETURN_IF_ERROR(FullyShard(*module, std::move(mesh), {.init_seed = 11}).status());
    return FullyShardedDataParallel::FromFullyShard(std::move(module));
  }

  absl::Status See(const GradClip& clip) {
    FSDP_ASSIGN_OR_RETURN(const float norm, clip.Norm());
    FSDP_RETURN_IF_ERROR(model().stream().Synchronize());
    seen_.insert(seen_.end(), {*reinterpret_cast<const float*>(host_loss_.data()), norm});
    return absl::OkStatus();
  }

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<Device> host_;
  std::unique_ptr<FullyShardedDataParallel> model_;
  std::unique_ptr<AdamW> optimizer_;
  TestBatch batch_;
  Buffer host_loss_;
  std::unique_ptr<StepGraph> graph_;
  bool two_graphs_ = false;
  std::vector<float> seen_;
  float loss_factor_ = 1;
  float max_norm_ = kMaxNorm;
  int forward_backwards_ = 0;  // put on the stream by the host
  Event reached_;              // of FullyShard's model: its next forward waits for this
};

class StepGraphTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CudaDeviceCount();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
    gpus_ = *gpus;
  }

  static absl::StatusOr<std::unique_ptr<Rig>> OneRank(const FsdpOptions& options = BlockOptions()) {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(0));
    FSDP_ASSIGN_OR_RETURN(auto groups, CreateLocalCudaGroups({device}));
    return Rig::Create(std::shared_ptr<ProcessGroup>(std::move(groups[0])), options);
  }

  // `rank_main` on a rig of each of `ranks` ranks.
  void OnRanks(int ranks, const std::optional<FsdpOptions>& options,
               const std::function<absl::Status(Rig& rig)>& rank_main) {
    if (gpus_ < ranks) GTEST_SKIP() << "nccl wants " << ranks << " GPUs, there are " << gpus_;
    EXPECT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
      FSDP_ASSIGN_OR_RETURN(std::shared_ptr<ProcessGroup> group,
                            CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(5)));
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Rig> rig, Rig::Create(group, options));
      const absl::Status status = rank_main(*rig);
      if (!status.ok()) group->Abort(status);
      return status;
    }));
  }

  int gpus_ = 0;
};

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

// SPDX-License-Identifier: Apache-2.0
//
// For tests of captured steps: a small GPT-2 on each rank's GPU, trained with and without capture.
#ifndef FSDP_FSDP_STEP_GRAPH_TESTUTIL_H_
#define FSDP_FSDP_STEP_GRAPH_TESTUTIL_H_

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/fully_shard.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/step_graph.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {

inline constexpr float kMaxNorm = 0.5f;
inline constexpr int kCaptured = StepGraph::kEagerSteps;  // the step that is captured; the next is a replay

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

}  // namespace fsdp

#endif  // FSDP_FSDP_STEP_GRAPH_TESTUTIL_H_

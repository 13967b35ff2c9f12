// SPDX-License-Identifier: Apache-2.0
//
// A scaler whose decisions are the device's, compared with the host's scaler on the same model and device: the same
// steps are left out, and scales, weights and states of the optimizer have the same bits.
#include "fsdp/fsdp/device_grad_scaler.h"

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/found_inf.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/fsdp/step_graph.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

// The first two steps overflow, so the optimizer has no state when the third begins; growth and backoff are no powers
// of two, so a factor that is computed otherwise has other bits.
constexpr GradScalerOptions kOptions = {
    .init_scale = 50000, .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 2};
constexpr int kSteps = 9;
bool Overflows(int step) { return step < 2 || step == 5; }

enum class Way { kHost, kDevice, kGraph, kTwoGraphs };

// A model of float16 on a GPU that ranks share.
class Rig {
 public:
  static absl::StatusOr<std::unique_ptr<Rig>> Create(std::shared_ptr<ProcessGroup> group, FsdpOptions options) {
    std::unique_ptr<Rig> rig(new Rig);
    rig->group_ = std::move(group);
    rig->host_ = CreateHostDevice();
    Gpt2Config config = OddGpt2Config();
    config.n_layer = 1;
    config.attention = AttentionKind::kOnline;
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(config));
    FSDP_ASSIGN_OR_RETURN(rig->model_, FullyShardedDataParallel::Wrap(std::move(module), rig->group_, options));
    rig->optimizer_ = std::make_unique<AdamW>(rig->model_->parameters(), AdamWOptions{.lr = 1e-2});
    rig->scaler_ = std::make_unique<ShardedGradScaler>(*rig->group_, kOptions);
    FSDP_ASSIGN_OR_RETURN(rig->batch_, TestBatchOf(*rig->host_, 0, 0));
    for (Tensor* t : {&rig->batch_.tokens, &rig->batch_.targets}) {
      FSDP_ASSIGN_OR_RETURN(*t, Tensor::Empty(rig->device(), t->dtype(), t->shape()));
    }
    FSDP_ASSIGN_OR_RETURN(rig->poison_, Tensor::Empty(rig->device(), DType::kFloat32, {1}));
    FSDP_ASSIGN_OR_RETURN(rig->found_inf_, FoundInf::Create(*rig->group_));
    return rig;
  }

  Device& device() { return *group_->device(); }
  FullyShardedDataParallel& model() { return *model_; }
  ShardedGradScaler& scaler() { return *scaler_; }

  // Runs the steps; returns the scale after each.
  absl::StatusOr<std::vector<float>> Run(Way way, int begin, int end) {
    std::vector<float> scales;
    FSDP_RETURN_IF_ERROR(Prepare(way));
    for (int step = begin; step < end; ++step) {
      FSDP_RETURN_IF_ERROR(FillBatch(step));
      FSDP_RETURN_IF_ERROR(way == Way::kHost ? StepByHost() : StepByDevice(way));
      scales.push_back(scaler_->scale());
    }
    return scales;
  }

  absl::StatusOr<std::vector<float>> WeightsAndState() {
    std::vector<float> values;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      FSDP_RETURN_IF_ERROR(Append(model_->parameters()[i]->data, values));
      for (const std::string& name : optimizer_->state_names()) {
        FSDP_ASSIGN_OR_RETURN(const Tensor state, optimizer_->State(i, name));
        if (state.defined()) FSDP_RETURN_IF_ERROR(Append(state, values));
      }
      values.push_back(static_cast<float>(optimizer_->step_count(i)));
    }
    return values;
  }

 private:
  absl::Status Prepare(Way way) {
    if (way == Way::kHost || device_scaler_ != nullptr) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(device_scaler_, DeviceGradScaler::Create(*model_, *scaler_));
    if (way == Way::kDevice) return absl::OkStatus();
    FSDP_ASSIGN_OR_RETURN(graph_, StepGraph::Create(
                                      *model_, *optimizer_, [this] { return ForwardBackward(/*by_device=*/true); },
                                      found_inf_.get(), device_scaler_.get()));
    return absl::OkStatus();
  }

  // A step that overflows has an infinite gradient on the last rank only.
  absl::Status FillBatch(int step) {
    FSDP_ASSIGN_OR_RETURN(const TestBatch made, TestBatchOf(*host_, step, group_->rank()));
    Stream& stream = model_->stream();
    stream.CopyAsync(batch_.tokens.data(), made.tokens.data(), made.tokens.nbytes());
    stream.CopyAsync(batch_.targets.data(), made.targets.data(), made.targets.nbytes());
    const bool poisoned = Overflows(step) && group_->rank() + 1 == group_->size();
    const float factor = poisoned ? std::numeric_limits<float>::infinity() : 1;
    stream.CopyAsync(poison_.data(), &factor, sizeof(factor));
    return stream.Synchronize();
  }

  absl::Status ForwardBackward(bool by_device) {
    Stream& stream = model_->stream();
    found_inf_->Begin(stream);
    Tape tape = model_->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model_->Forward(batch_.tokens, tape));
    FSDP_ASSIGN_OR_RETURN(
        const CrossEntropyLoss::LossAndGradient made,
        by_device ? CrossEntropyLoss().ForwardBackward(
                        logits, batch_.targets, DeviceScale{.scale = device_scaler_->scale(), .divisor = 3}, tape)
                  : CrossEntropyLoss().ForwardBackward(logits, batch_.targets, scaler_->scale() / 3, tape));
    FSDP_RETURN_IF_ERROR(model_->Backward(made.grad_logits, tape).status());
    device().ops().ScaleBy({model_->parameters()[0]->grad}, poison_, stream);
    return absl::OkStatus();
  }

  absl::Status StepByHost() {
    FSDP_RETURN_IF_ERROR(ForwardBackward(/*by_device=*/false));
    FSDP_RETURN_IF_ERROR(scaler_->Unscale(*optimizer_, model_->stream()));
    FSDP_ASSIGN_OR_RETURN(const GradClip clip, model_->ClipGradNormAsync(0.5f));
    optimizer_->set_grad_factor(clip.coefficient());
    FSDP_RETURN_IF_ERROR(scaler_->Step(*optimizer_, model_->stream()).status());
    optimizer_->ZeroGrad();
    return scaler_->Update();
  }

  absl::Status StepByDevice(Way way) {
    FSDP_RETURN_IF_ERROR(device_scaler_->BeginStep());
    if (way == Way::kGraph) {
      FSDP_RETURN_IF_ERROR(graph_->Run(0.5f));
    } else if (way == Way::kTwoGraphs) {
      FSDP_RETURN_IF_ERROR(graph_->ComputeGradients(0.5f));
      FSDP_RETURN_IF_ERROR(graph_->Update());
    } else {
      FSDP_RETURN_IF_ERROR(ForwardBackward(/*by_device=*/true));
      device_scaler_->Unscale();
      FSDP_ASSIGN_OR_RETURN(const GradClip clip, model_->ClipGradNormAsync(0.5f));
      found_inf_->CheckOnAllRanks(clip.norm_on_device(), model_->stream());
      device_scaler_->Update(found_inf_->flag());
      optimizer_->set_grad_factor(clip.coefficient());
      optimizer_->set_found_inf(found_inf_->flag());
      FSDP_RETURN_IF_ERROR(optimizer_->Step(model_->stream()));
      optimizer_->ZeroGrad();
    }
    FSDP_ASSIGN_OR_RETURN(const bool skipped, device_scaler_->EndStep());
    if (skipped) graph_ != nullptr ? graph_->TakeBackUpdate() : optimizer_->TakeBackStep();
    return absl::OkStatus();
  }

  absl::Status Append(const Tensor& t, std::vector<float>& values) {
    FSDP_ASSIGN_OR_RETURN(const Buffer host, device().AllocatePinned(t.nbytes()));
    model_->stream().CopyAsync(host.data(), t.data(), t.nbytes());
    FSDP_RETURN_IF_ERROR(model_->stream().Synchronize());
    const auto* floats = reinterpret_cast<const float*>(host.data());
    values.insert(values.end(), floats, floats + t.numel());
    return absl::OkStatus();
  }

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<Device> host_;
  std::unique_ptr<FullyShardedDataParallel> model_;
  std::unique_ptr<AdamW> optimizer_;
  std::unique_ptr<ShardedGradScaler> scaler_;
  std::unique_ptr<FoundInf> found_inf_;
  std::unique_ptr<DeviceGradScaler> device_scaler_;
  std::unique_ptr<StepGraph> graph_;
  TestBatch batch_;
  Tensor poison_;  // by which a gradient is multiplied
};

struct Outcome {
  std::vector<float> scales, values;
};

class DeviceGradScalerTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto gpus = CudaDeviceCount(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
  }

  static FsdpOptions Float16Options() {
    FsdpOptions options = BlockOptions();
    options.mixed_precision = {.param_dtype = DType::kFloat16, .reduce_dtype = DType::kFloat32};
    return options;
  }

  static absl::StatusOr<std::unique_ptr<Rig>> OneRank(const FsdpOptions& options = Float16Options()) {
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(0));
    FSDP_ASSIGN_OR_RETURN(auto groups, CreateLocalCudaGroups({device}));
    return Rig::Create(std::shared_ptr<ProcessGroup>(std::move(groups[0])), options);
  }

  // By rank.
  static absl::StatusOr<std::vector<Outcome>> Train(Way way, int ranks) {
    std::vector<std::shared_ptr<Device>> devices(ranks);
    for (auto& device : devices) {
      FSDP_ASSIGN_OR_RETURN(device, CreateCudaDevice(0));
    }
    FSDP_ASSIGN_OR_RETURN(auto groups, CreateLocalCudaGroups(devices));
    std::vector<Outcome> outcomes(ranks);
    FSDP_RETURN_IF_ERROR(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      const int rank = meeting->rank();
      FSDP_ASSIGN_OR_RETURN(const auto rig,
                            Rig::Create(std::shared_ptr<ProcessGroup>(std::move(groups[rank])), Float16Options()));
      FSDP_ASSIGN_OR_RETURN(outcomes[rank].scales, rig->Run(way, 0, kSteps));
      FSDP_ASSIGN_OR_RETURN(outcomes[rank].values, rig->WeightsAndState());
      return absl::OkStatus();
    }));
    return outcomes;
  }
};

TEST_F(DeviceGradScalerTest, LeavesOutTheStepsOfTheHostsScalerWithTheSameBits) {
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    ASSERT_OK_AND_ASSIGN(const std::vector<Outcome> host, Train(Way::kHost, ranks));
    ASSERT_OK_AND_ASSIGN(const std::vector<Outcome> device, Train(Way::kDevice, ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(host[rank].scales[1], static_cast<float>(50000 * 0.3 * 0.3));
      EXPECT_GT(host[rank].scales[3], host[rank].scales[2]) << "did not grow";
      EXPECT_LT(host[rank].scales[5], host[rank].scales[4]) << "did not back off";
      EXPECT_EQ(device[rank].scales, host[rank].scales) << rank;
      EXPECT_TRUE(device[rank].values == host[rank].values) << rank;
    }
  }
}

TEST_F(DeviceGradScalerTest, DecidesWithinAGraphThatTheHostReplays) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Outcome> host, Train(Way::kHost, 1));
  for (const Way way : {Way::kGraph, Way::kTwoGraphs}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Outcome> graph, Train(way, 1));
    EXPECT_EQ(graph[0].scales, host[0].scales);
    EXPECT_TRUE(graph[0].values == host[0].values);
  }
}

TEST_F(DeviceGradScalerTest, TakesOverAStateThatAProgramLoads) {
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank());
  ASSERT_OK(rig->Run(Way::kGraph, 2, 5).status());
  StateDict state;
  rig->scaler().AddStateDict(state);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> first, rig->Run(Way::kGraph, 5, kSteps));
  ASSERT_OK(rig->scaler().LoadStateDict(state));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> again, rig->Run(Way::kGraph, 5, kSteps));
  EXPECT_EQ(again, first);
}

TEST_F(DeviceGradScalerTest, LeavesToTheHostWhatItCannotDecideAndSaysWhy) {
  FsdpOptions offloaded = Float16Options();
  offloaded.cpu_offload.offload_params = true;
  ASSERT_OK_AND_ASSIGN(const auto rig, OneRank(offloaded));
  EXPECT_THAT(DeviceGradScaler::Create(rig->model(), rig->scaler()).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("is on cpu, not on cuda:0")));

  ASSERT_OK_AND_ASSIGN(const auto other, OneRank());
  ShardedGradScaler disabled(other->model().group(), {.enabled = false});
  EXPECT_THAT(DeviceGradScaler::Create(other->model(), disabled).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("it is not enabled")));
  ShardedGradScaler invalid(other->model().group(), {.growth_interval = 0});
  EXPECT_THAT(DeviceGradScaler::Create(other->model(), invalid).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("grad scaler: growth_interval")));
}

TEST(DeviceGradScalerOnHostTest, IsRefusedByTheNameOfTheDevice) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
    ShardedGradScaler scaler(*group);
    FSDP_ASSIGN_OR_RETURN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group, BlockOptions()));
    EXPECT_THAT(DeviceGradScaler::Create(*model, scaler).status(),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("cpu has no kernel for it")));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

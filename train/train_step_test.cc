// SPDX-License-Identifier: Apache-2.0
//
// A loss of one rank, or a norm, that is not finite: it stops all ranks, whose parameters and optimizer are as before
// the step, on the host, on a GPU and with steps that are graphs.
#include "fsdp/train/train_step.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/models/causal_lm.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/ops.h"
#include "fsdp/train/sharded_language_model.h"
#include "fsdp/train/train_options.h"
#include "fsdp/train/training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;
using testing::Values;

constexpr int kGoodSteps = StepGraph::kEagerSteps + 2;  // the last of them is a replay
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A language model that adds numbers, at first 0, to the logits of its first row and to their gradients.
class Spoiled final : public Module {
 public:
  explicit Spoiled(std::unique_ptr<Module> model) : model_(AddChild("model", std::move(model))) {}
  std::string_view type_name() const override { return "Spoiled"; }

  absl::Status Allocate(Device& device, int64_t vocabulary) {
    for (Addend* addend : {&logits_, &gradients_}) {
      FSDP_ASSIGN_OR_RETURN(addend->host, device.AllocatePinned(vocabulary * sizeof(float)));
      FSDP_ASSIGN_OR_RETURN(addend->tensor, Tensor::Empty(device, DType::kFloat32, {vocabulary}));
      std::memset(addend->host.data(), 0, addend->host.nbytes());
    }
    return absl::OkStatus();
  }

  // From the third token on, since the first target is one of those.
  void AddToLogits(float value) { logits_.Set(value); }
  void AddToGradients(float value) { gradients_.Set(value); }

 private:
  struct Addend {
    Buffer host;
    Tensor tensor;

    void Set(float value) const {
      auto* values = reinterpret_cast<float*>(host.data());
      for (int64_t i = 2; i < tensor.numel(); ++i) values[i] = value;
    }
    Tensor AddTo(const Tensor& rows, Tape& tape) const {
      tape.stream().CopyAsync(tensor.data(), host.data(), tensor.nbytes());
      // The first row, also if rows are padded.
      const Tensor row(rows.buffer(), rows.dtype(), {tensor.numel()});
      tape.device().ops().Accumulate(tensor, row, tape.stream());
      return rows;
    }
  };

  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model_->Forward(input, tape));
    return logits_.AddTo(logits, tape);
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    return model_->Backward(gradients_.AddTo(grad_output, tape), tape);
  }

  Module* model_;
  Addend logits_, gradients_;
};

struct Rig {
  Spoiled* spoiled = nullptr;
  std::unique_ptr<FullyShardedDataParallel> model;
  std::unique_ptr<AdamW> optimizer;
  std::unique_ptr<BatchLoader> batches;
  std::unique_ptr<TrainStep> step;

  static absl::StatusOr<std::unique_ptr<Rig>> Create(const TrainOptions& options,
                                                     const std::shared_ptr<ProcessGroup>& group, bool graph) {
    auto rig = std::make_unique<Rig>();
    FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config, ReadModelConfig(options, nullptr));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<Module> module, MakeCausalLm(config));
    auto spoiled = std::make_unique<Spoiled>(std::move(module));
    rig->spoiled = spoiled.get();
    FSDP_RETURN_IF_ERROR(spoiled->Allocate(*group->device(), VocabSize(config)));
    FSDP_ASSIGN_OR_RETURN(rig->model,
                          FullyShardedDataParallel::Wrap(std::move(spoiled), group, FsdpOptions(options.fsdp)));
    rig->optimizer = std::make_unique<AdamW>(AdamW::DecayMatricesOnly(rig->model->parameters(), options.adamw));
    FSDP_ASSIGN_OR_RETURN(TokenData data, TokenData::FromTokenFile(options.tokens));
    rig->batches = std::make_unique<BatchLoader>(std::move(data), BatchShape{.batch_size = options.batch_size,
                                                                             .seq_len = options.seq_len,
                                                                             .grad_accum = 2,
                                                                             .rank = group->rank(),
                                                                             .world_size = group->size()});
    FSDP_ASSIGN_OR_RETURN(rig->step,
                          graph ? TrainStep::CreateCaptured(*rig->model, *rig->optimizer, *rig->batches)
                                : TrainStep::Create(*rig->model, {rig->optimizer.get()}, *rig->batches, nullptr));
    return rig;
  }

  // The bytes of this rank's parameters and of their optimizer state.
  absl::StatusOr<std::string> State() {
    std::string state;
    for (size_t i = 0; i < optimizer->parameters().size(); ++i) {
      FSDP_RETURN_IF_ERROR(Append(optimizer->parameters()[i]->data, state));
      for (const std::string& name : optimizer->state_names()) {
        FSDP_ASSIGN_OR_RETURN(const Tensor value, optimizer->State(i, name));
        FSDP_RETURN_IF_ERROR(Append(value, state));
      }
      state += std::to_string(optimizer->step_count(i));
    }
    return state;
  }

  absl::Status Append(const Tensor& t, std::string& bytes) {
    FSDP_ASSIGN_OR_RETURN(const Buffer host, model->device().AllocatePinned(t.nbytes()));
    model->stream().CopyAsync(host.data(), t.data(), t.nbytes());
    FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
    bytes.append(reinterpret_cast<const char*>(host.data()), t.nbytes());
    return absl::OkStatus();
  }
};

struct Kind {
  std::string name;
  bool gpu = false;
  bool graph = false;
};

class TrainStepTest : public TrainingFixture, public testing::WithParamInterface<Kind> {
 protected:
  void SetUp() override {
    if (const absl::StatusOr<int> gpus = CudaDeviceCount(); GetParam().gpu) {
      if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
      gpus_ = *gpus;
    }
    TrainingFixture::SetUp();
  }

  // Runs `rank_main` on a rig for each of `ranks` ranks.
  void OnRanks(int ranks, const std::function<absl::Status(Rig& rig)>& rank_main) {
    if (GetParam().gpu && gpus_ < ranks) GTEST_SKIP() << "nccl wants " << ranks << " GPUs, there are " << gpus_;
    EXPECT_OK(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
      if (GetParam().gpu) {
        FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(group->rank()));
        FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, group->Split(0, group->rank()));
        FSDP_ASSIGN_OR_RETURN(group, CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(5)));
      }
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Rig> rig, Rig::Create(Options(9), group, GetParam().graph));
      const absl::Status status = rank_main(*rig);
      if (!status.ok()) group->Abort(status);
      return status;
    }));
  }

  // The losses and norms of steps [begin, end).
  static absl::Status Train(Rig& rig, int begin, int end, std::vector<double>& seen) {
    for (int step = begin; step < end; ++step) {
      FSDP_ASSIGN_OR_RETURN(const StepOutcome outcome, rig.step->Run(step, 1));
      seen.insert(seen.end(), {outcome.loss, outcome.grad_norm});
    }
    return absl::OkStatus();
  }

  int gpus_ = 0;
};

// A step on the last of two ranks is spoiled; the run then continues as if that step had not happened.
TEST_P(TrainStepTest, ALossOrNormThatIsNotFiniteLeavesEverythingAsItWasOnAllRanks) {
  struct Case {
    float logits, gradients;
    std::string error;
  };
  std::vector<double> undisturbed;
  OnRanks(2, [&](Rig& rig) -> absl::Status {
    std::vector<double> seen;
    FSDP_RETURN_IF_ERROR(Train(rig, 0, kGoodSteps + 2, seen));
    if (rig.model->group().rank() == 0) undisturbed = std::move(seen);
    return absl::OkStatus();
  });
  // On the host: an infinite loss with finite gradients; a loss that is NaN; finite losses with gradients that are not.
  for (const Case& c : {Case{-kInfinity, 0, "the loss of rank 1 is "}, Case{kNan, 0, "the loss of rank 1 is nan"},
                        Case{0, kNan, "the norm of the gradients is nan"}}) {
    OnRanks(2, [&](Rig& rig) -> absl::Status {
      const bool last = rig.model->group().rank() == 1;
      std::vector<double> seen;
      FSDP_RETURN_IF_ERROR(Train(rig, 0, kGoodSteps, seen));
      FSDP_ASSIGN_OR_RETURN(const std::string before, rig.State());
      if (last) rig.spoiled->AddToLogits(c.logits);
      if (last) rig.spoiled->AddToGradients(c.gradients);
      EXPECT_THAT(rig.step->Run(kGoodSteps, 1), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(c.error)));
      FSDP_ASSIGN_OR_RETURN(const std::string after, rig.State());
      EXPECT_TRUE(after == before) << c.error;
      rig.spoiled->AddToLogits(0);
      rig.spoiled->AddToGradients(0);
      FSDP_RETURN_IF_ERROR(Train(rig, kGoodSteps, kGoodSteps + 2, seen));
      EXPECT_EQ(seen, undisturbed) << c.error;
      return absl::OkStatus();
    });
  }
}

TEST_P(TrainStepTest, AFirstStepThatIsNotFiniteLeavesNoOptimizerState) {
  OnRanks(1, [](Rig& rig) -> absl::Status {
    rig.spoiled->AddToLogits(kNan);
    EXPECT_THAT(rig.step->Run(0, 1),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("step 0: the loss of rank 0 is nan")));
    for (size_t i = 0; i < rig.optimizer->parameters().size(); ++i) {
      EXPECT_FALSE(rig.optimizer->State(i, "exp_avg")->defined());
      EXPECT_EQ(rig.optimizer->step_count(i), 0);
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainStepTest, Values(Kind{"Host"}, Kind{"Gpu", true}, Kind{"GpuGraph", true, true}),
                         [](const testing::TestParamInfo<Kind>& param) { return param.param.name; });

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// GPT-2 trained by our modules and AdamW in one process against Hugging Face's model and torch.optim.AdamW: 50 steps.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/models/golden_data_testutil.h"
#include "fsdp/models/gpt2.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tensor/host_device.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSteps = 50;
constexpr int64_t kRows = 2;
constexpr int64_t kSeqLen = 32;

// The number of samples of a step, and how their gradients are made.
struct Case {
  const char* name;
  int micro_steps;        // of kRows samples each
  DType compute_dtype;    // of the parameters in forward and backward
  bool sum_in_master;     // micro-steps are ranks: gradients are cast to float32, then averaged
  double loss_tolerance;  // relative
  double grad_norm_tolerance;
};

class Training {
 public:
  explicit Training(const Case& c) : case_(c), tokens_(ReadTokens("models/testdata/tokens.u16")) {}

  absl::Status Start() {
    FSDP_ASSIGN_OR_RETURN(const Gpt2Config config,
                          ParseGpt2Config(ReadTestFile("models/testdata/gpt2_tiny/config.json"), nullptr));
    FSDP_ASSIGN_OR_RETURN(model_, MakeGpt2(config));
    FSDP_RETURN_IF_ERROR(model_->Materialize(*device_, /*seed=*/0));
    FSDP_ASSIGN_OR_RETURN(parameters_, UnshardedParameters(*model_, *device_));
    FSDP_ASSIGN_OR_RETURN(layer_ops_, LayerOpsFor(*device_));
    FSDP_ASSIGN_OR_RETURN(stream_, device_->CreateStream("compute"));
    const std::map<std::string, std::vector<float>> weights =
        ReadWeights("models/testdata/gpt2_tiny/model.safetensors");
    std::vector<ShardedParameter*> pointers;
    for (const auto& parameter : parameters_) {
      const std::vector<float>& values = weights.at(parameter->fqn);
      std::memcpy(parameter->data.data(), values.data(), values.size() * sizeof(float));
      pointers.push_back(parameter.get());
    }
    optimizer_ = std::make_unique<AdamW>(AdamW::DecayMatricesOnly(
        pointers, {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}));
    return case_.compute_dtype == DType::kFloat32 ? absl::OkStatus() : BindComputeCopies();
  }

  // One step; the mean loss and the norm of the gradient.
  absl::Status Step(int step, double* loss, double* grad_norm) {
    *loss = 0;
    for (const auto& parameter : parameters_) device_->ops().Zero(parameter->grad, *stream_);
    for (int micro = 0; micro < case_.micro_steps; ++micro) {
      if (case_.sum_in_master) CastParameters();
      FSDP_ASSIGN_OR_RETURN(const float micro_loss, MicroStep(step * case_.micro_steps + micro));
      *loss += micro_loss / case_.micro_steps;
      if (case_.sum_in_master) AddComputeGrads();
    }
    FSDP_ASSIGN_OR_RETURN(const Tensor squared, Tensor::Empty(*device_, DType::kFloat32, {1}));
    device_->ops().Zero(squared, *stream_);
    for (const auto& parameter : parameters_)
      device_->ops().AccumulateSquaredNorm({parameter->grad}, squared, *stream_);
    FSDP_RETURN_IF_ERROR(optimizer_->Step(*stream_));
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    *grad_norm = std::sqrt(*squared.data_as<float>());
    return absl::OkStatus();
  }

 private:
  // Low-precision parameters for compute, in addition to the float32 ones that the optimizer updates.
  absl::Status BindComputeCopies() {
    for (const auto& [name, parameter] : model_->NamedParameters()) {
      if (parameter->data.dtype() == case_.compute_dtype) continue;  // tied: bound by its first name
      FSDP_ASSIGN_OR_RETURN(parameter->data, Tensor::Empty(*device_, case_.compute_dtype, parameter->shape));
      FSDP_ASSIGN_OR_RETURN(parameter->grad, Tensor::Empty(*device_, case_.compute_dtype, parameter->shape));
      compute_.push_back(parameter);
    }
    return absl::OkStatus();
  }

  void CastParameters() {
    for (size_t i = 0; i < compute_.size(); ++i) {
      device_->ops().CastDivide(parameters_[i]->data, compute_[i]->data, 1, *stream_);
      device_->ops().Zero(compute_[i]->grad, *stream_);
    }
  }

  void AddComputeGrads() {
    for (size_t i = 0; i < compute_.size(); ++i) {
      Tensor wide = *Tensor::Empty(*device_, DType::kFloat32, parameters_[i]->grad.shape());
      device_->ops().CastDivide(compute_[i]->grad, wide, case_.micro_steps, *stream_);
      device_->ops().Accumulate(wide, parameters_[i]->grad, *stream_);
    }
  }

  absl::StatusOr<float> MicroStep(int index) {
    FSDP_ASSIGN_OR_RETURN(const Tensor inputs, Tensor::Empty(*device_, DType::kInt32, {kRows, kSeqLen}));
    FSDP_ASSIGN_OR_RETURN(const Tensor targets, Tensor::Empty(*device_, DType::kInt32, {kRows, kSeqLen}));
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t start = (index * kRows + row) * kSeqLen % (static_cast<int64_t>(tokens_.size()) - kSeqLen);
      std::copy_n(&tokens_[start], kSeqLen, inputs.data_as<int32_t>() + row * kSeqLen);
      std::copy_n(&tokens_[start + 1], kSeqLen, targets.data_as<int32_t>() + row * kSeqLen);
    }
    Tape tape(*stream_, *layer_ops_);
    const CrossEntropyLoss criterion;
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model_->Forward(inputs, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor loss, criterion.Forward(logits, targets, tape));
    const float scale = case_.sum_in_master ? 1.0f : 1.0f / static_cast<float>(case_.micro_steps);
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_logits, criterion.Backward(scale, tape));
    FSDP_RETURN_IF_ERROR(model_->Backward(grad_logits, tape).status());
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return *loss.data_as<float>();
  }

  const Case case_;
  const std::vector<int32_t> tokens_;
  const std::shared_ptr<Device> device_ = CreateHostDevice();
  std::shared_ptr<const LayerOps> layer_ops_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Module> model_;
  std::vector<std::unique_ptr<ShardedParameter>> parameters_;
  std::vector<std::shared_ptr<Parameter>> compute_;  // in the order of parameters_
  std::unique_ptr<AdamW> optimizer_;
};

class Gpt2GoldenTest : public testing::TestWithParam<Case> {};

TEST_P(Gpt2GoldenTest, EveryStepMatchesPyTorch) {
  const Case& c = GetParam();
  const GoldenLosses golden = ReadLosses(std::string("models/testdata/losses/") + c.name + ".json");
  Training training(c);
  ASSERT_OK(training.Start());
  double worst_loss = 0, worst_norm = 0;
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0, grad_norm = 0;
    ASSERT_OK(training.Step(step, &loss, &grad_norm));
    const double loss_error = std::abs(loss - golden.loss[step]) / golden.loss[step];
    const double norm_error = std::abs(grad_norm - golden.grad_norm[step]) / golden.grad_norm[step];
    EXPECT_LE(loss_error, c.loss_tolerance) << "step " << step;
    EXPECT_LE(norm_error, c.grad_norm_tolerance) << "step " << step;
    worst_loss = std::max(worst_loss, loss_error);
    worst_norm = std::max(worst_norm, norm_error);
  }
  std::printf("%s: loss within %.1e, grad_norm within %.1e\n", c.name, worst_loss, worst_norm);
}

INSTANTIATE_TEST_SUITE_P(Cases, Gpt2GoldenTest,
                         testing::Values(Case{"gpt2_bare_a4", 4, DType::kFloat32, false, 1e-6, 1e-4},
                                         Case{"gpt2_full_shard_w3", 3, DType::kFloat32, false, 1e-6, 1e-4},
                                         Case{"gpt2_bf16_w2", 2, DType::kBFloat16, true, 3e-4, 1e-3}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp

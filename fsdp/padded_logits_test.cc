// SPDX-License-Identifier: Apache-2.0
//
// Logits on a GPU, whose rows are padded, through a cast of the root's outputs and back.
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The vocabulary of OddGpt2Config is not a multiple of 8.
class PaddedLogitsTest : public testing::Test {
 protected:
  struct Pass {
    float loss = 0;
    std::vector<float> gradient;  // of the tied embedding
  };

  void SetUp() override {
    const absl::StatusOr<int> gpus = CudaDeviceCount();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
    ASSERT_OK_AND_ASSIGN(device_, CreateCudaDevice(0));
    ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({device_}));
    const std::shared_ptr<ProcessGroup> group = std::move(groups[0]);
    ASSERT_OK_AND_ASSIGN(model_, MakeGpt2(OddGpt2Config()));
    ASSERT_OK_AND_ASSIGN(const auto mesh, DeviceMesh::Create(group, {1}, {"shard"}));
    FullyShardOptions options;
    options.mp_policy.param_dtype = DType::kBFloat16;
    options.mp_policy.output_dtype = DType::kFloat32;
    ASSERT_OK_AND_ASSIGN(root_, FullyShard(*model_, mesh, options));
  }

  // With `copies`, the loss gets a contiguous copy of the logits, and backward its gradient.
  absl::StatusOr<Pass> Run(bool copies) {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root_->NewTape());
    Stream& stream = tape.stream();
    const std::shared_ptr<Device> host = CreateHostDevice();
    FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(*host, 0, 0));
    FSDP_ASSIGN_OR_RETURN(Tensor targets, tape.Empty(DType::kInt32, batch.targets.shape()));
    stream.CopyAsync(targets.data(), batch.targets.data(), targets.nbytes());
    FSDP_ASSIGN_OR_RETURN(Tensor logits, model_->Forward(batch.tokens, tape));
    EXPECT_EQ(logits.dtype(), DType::kFloat32);
    EXPECT_FALSE(logits.is_contiguous());
    if (copies) {
      FSDP_ASSIGN_OR_RETURN(logits, tape.Contiguous(logits));
    }
    FSDP_ASSIGN_OR_RETURN(const auto made, CrossEntropyLoss().ForwardBackward(logits, targets, 1, tape));
    FSDP_RETURN_IF_ERROR(model_->Backward(made.grad_logits, tape).status());
    Pass pass;
    stream.CopyAsync(&pass.loss, made.loss.data(), sizeof(float));
    FSDP_ASSIGN_OR_RETURN(const auto parameters, root_->parameters());
    const Tensor& gradient = parameters.at(0)->grad;
    pass.gradient.resize(gradient.numel());
    stream.CopyAsync(pass.gradient.data(), gradient.data(), gradient.nbytes());
    FSDP_RETURN_IF_ERROR(stream.Synchronize());
    for (ShardedParameter* parameter : parameters) parameter->has_grad = false;
    return pass;
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Module> model_;
  FsdpModule* root_ = nullptr;
};

TEST_F(PaddedLogitsTest, CastToFloat32TheyGiveTheLossAndGradientsOfContiguousOnes) {
  ASSERT_OK_AND_ASSIGN(const Pass padded, Run(/*copies=*/false));
  ASSERT_OK_AND_ASSIGN(const Pass contiguous, Run(/*copies=*/true));
  EXPECT_EQ(padded.loss, contiguous.loss);
  ASSERT_EQ(padded.gradient.size(), contiguous.gradient.size());
  double largest = 0;
  for (const float value : contiguous.gradient) largest = std::max<double>(largest, std::abs(value));
  EXPECT_GT(largest, 0);
  // A product of contiguous rows may have another algorithm, and so another order of its sums.
  for (size_t i = 0; i < padded.gradient.size(); ++i) {
    ASSERT_NEAR(padded.gradient[i], contiguous.gradient[i], largest / 64) << i;
  }
}

}  // namespace
}  // namespace fsdp

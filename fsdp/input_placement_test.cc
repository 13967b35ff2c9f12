// SPDX-License-Identifier: Apache-2.0
//
// Inputs in host memory of a model on a GPU: they are moved there, as PyTorch's FSDP moves them. Other host tensors
// that reach layers are refused by name.
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

class InputPlacementTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CudaDeviceCount();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
    ASSERT_OK_AND_ASSIGN(std::shared_ptr<Device> device, CreateCudaDevice(0));
    ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({device}));
    Gpt2Config config = OddGpt2Config();
    config.n_layer = 1;
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Module> module, MakeGpt2(config));
    ASSERT_OK_AND_ASSIGN(
        model_, FullyShardedDataParallel::Wrap(std::move(module), std::shared_ptr<ProcessGroup>(std::move(groups[0]))));
    ASSERT_OK_AND_ASSIGN(batch_, TestBatchOf(*host_, 0, 0));
  }

  absl::StatusOr<Tensor> OnDevice(const Tensor& host) {
    FSDP_ASSIGN_OR_RETURN(Tensor t, Tensor::Empty(model_->device(), host.dtype(), host.shape()));
    model_->stream().CopyAsync(t.data(), host.data(), host.nbytes());
    FSDP_RETURN_IF_ERROR(model_->stream().Synchronize());
    return t;
  }

  absl::StatusOr<float> LossOf(const Tensor& tokens, const Tensor& targets) {
    Tape tape = model_->NewTape(/*training=*/false);
    CrossEntropyLoss loss;
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, model_->Forward(tokens, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor value, loss.Forward(logits, targets, tape));
    float host_loss = 0;
    model_->stream().CopyAsync(&host_loss, value.data(), sizeof(float));
    FSDP_RETURN_IF_ERROR(model_->stream().Synchronize());
    return host_loss;
  }

  const std::shared_ptr<Device> host_ = CreateHostDevice();
  std::unique_ptr<FullyShardedDataParallel> model_;
  TestBatch batch_;
};

TEST_F(InputPlacementTest, AnInputInHostMemoryIsMovedToTheDevice) {
  ASSERT_OK_AND_ASSIGN(const Tensor tokens, OnDevice(batch_.tokens));
  ASSERT_OK_AND_ASSIGN(const Tensor targets, OnDevice(batch_.targets));
  EXPECT_EQ(tokens.device(), model_->device().id());
  EXPECT_EQ(batch_.tokens.device(), host_->id());
  ASSERT_OK_AND_ASSIGN(const float there, LossOf(tokens, targets));
  ASSERT_OK_AND_ASSIGN(const float moved, LossOf(batch_.tokens, targets));
  EXPECT_EQ(moved, there);
}

TEST_F(InputPlacementTest, TargetsInHostMemoryAreRefusedByName) {
  EXPECT_THAT(LossOf(batch_.tokens, batch_.targets),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("targets is on cpu, wanted cuda:0, the device of the stream")));
}

}  // namespace
}  // namespace fsdp

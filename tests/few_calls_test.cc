// SPDX-License-Identifier: Apache-2.0
//
// Work on many tensors takes few calls of CUDA, whose number the emulated GPU counts: a call costs a GPU's host
// microseconds, which many small tensors would multiply.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/async_saver.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/cuda/emulator/runtime.h"
#include "fsdp/fsdp/device_grad_scaler.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/tensor/host_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSmallTensors = 1000;
constexpr int64_t kSmall = 1024, kLarge = int64_t{1} << 18;  // float32: 4 KiB and 1 MiB

class FewCallsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(device_, CreateCudaDevice(0));
    ASSERT_OK_AND_ASSIGN(stream_, device_->CreateStream("test"));
    ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({device_}));
    group_ = std::move(groups[0]);
  }

  // Small tensors with a large one after each hundred; element k of tensor i is i + k + `shift`.
  absl::StatusOr<StateDict> MakeState(float shift) {
    StateDict state;
    for (int i = 0; i < kSmallTensors; ++i) {
      FSDP_RETURN_IF_ERROR(AddTensor(absl::StrCat("small.", i), i, kSmall, shift, state));
      if (i % 100 == 99) FSDP_RETURN_IF_ERROR(AddTensor(absl::StrCat("large.", i), i, kLarge, shift, state));
    }
    return state;
  }

  absl::Status AddTensor(const std::string& name, int i, int64_t numel, float shift, StateDict& state) {
    std::vector<float> values(numel);
    for (int64_t k = 0; k < numel; ++k) values[k] = static_cast<float>(i + k) + shift;
    FSDP_ASSIGN_OR_RETURN(const Tensor data, Tensor::Empty(*device_, DType::kFloat32, {numel}));
    stream_->CopyAsync(data.data(), values.data(), data.nbytes());
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    ShardedTensor tensor;
    tensor.dtype = DType::kFloat32;
    tensor.shape = {numel};
    tensor.shards.push_back({{0, numel}, data});
    state.Set(StateKey::Model(name), std::move(tensor));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> Values(const StateDict& state) {
    std::vector<float> all;
    for (const auto& [key, value] : state.entries()) {
      FSDP_ASSIGN_OR_RETURN(const std::vector<float> values, ValuesOf(std::get<ShardedTensor>(value).shards[0].data));
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  }

  absl::StatusOr<std::vector<float>> ValuesOf(const Tensor& t) {
    std::vector<float> values(t.numel());
    stream_->CopyAsync(values.data(), t.data(), t.nbytes());
    FSDP_RETURN_IF_ERROR(stream_->Synchronize());
    return values;
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::shared_ptr<ProcessGroup> group_;
};

TEST_F(FewCallsTest, ASaveAndALoadMoveAThousandSmallTensorsByOneCopyEach) {
  constexpr int64_t kLargeTensors = kSmallTensors / 100;
  const std::string root = NewTestDirectory();
  ASSERT_OK_AND_ASSIGN(const StateDict state, MakeState(0));
  ASSERT_OK_AND_ASSIGN(const auto saver, AsyncSaver::Create(root, *group_));
  int64_t copies = EmulatedCopies();
  ASSERT_OK(saver->Save(state, 1, stream_.get()));
  EXPECT_EQ(EmulatedCopies() - copies, kLargeTensors + 1);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Wait());

  ASSERT_OK_AND_ASSIGN(StateDict wanted, MakeState(-1));
  copies = EmulatedCopies();
  ASSERT_OK(LoadCheckpoint(path, wanted, {.device = device_.get()}));
  EXPECT_EQ(EmulatedCopies() - copies, kLargeTensors + 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> loaded, Values(wanted));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> saved, Values(state));
  EXPECT_TRUE(loaded == saved);
}

// A synchronous save takes its state from such a state dict.
TEST_F(FewCallsTest, AStateDictInHostMemoryTakesFewCopiesForManySmallTensors) {
  constexpr int kLayers = 50, kWidth = 8;
  auto root = std::make_unique<TestSequence>();
  for (int i = 0; i < kLayers; ++i) root->AddLinear(kWidth, kWidth);
  ASSERT_OK_AND_ASSIGN(const auto model, FullyShardedDataParallel::Wrap(std::move(root), group_, {.init_seed = 3}));
  AdamW optimizer(model->parameters(), AdamWOptions{.lr = 0.5});
  ASSERT_OK_AND_ASSIGN(const Tensor x, Tensor::Empty(*device_, DType::kFloat32, {2, kWidth}));
  const std::vector<float> ones(x.numel(), 1.0f);
  model->stream().CopyAsync(x.data(), ones.data(), x.nbytes());
  Tape tape = model->NewTape();
  ASSERT_OK_AND_ASSIGN(const Tensor y, model->Forward(x, tape));
  ASSERT_OK(model->Backward(y, tape).status());
  ASSERT_OK(optimizer.Step(model->stream()));
  ASSERT_OK(model->stream().Synchronize());

  const auto state_of = [&](const StateDictSettings& settings) -> absl::StatusOr<StateDict> {
    const StateDictTypeGuard guard(*model, settings);
    FSDP_ASSIGN_OR_RETURN(StateDict state, model->GetStateDict());
    FSDP_RETURN_IF_ERROR(model->AddOptimStateDict(optimizer, state));
    return state;
  };
  ASSERT_OK_AND_ASSIGN(const StateDict live, state_of({LocalStateDictConfig{false}, LocalOptimStateDictConfig{false}}));
  const std::pair<std::string, StateDictSettings> forms[] = {
      {"local", {LocalStateDictConfig{true}, LocalOptimStateDictConfig{true}}},
      {"sharded", {ShardedStateDictConfig{true}, ShardedOptimStateDictConfig{true}}},
      {"full", {FullStateDictConfig{true, false}, FullOptimStateDictConfig{true, false}}}};
  for (const auto& [name, settings] : forms) {
    SCOPED_TRACE(name);
    const int64_t copies = EmulatedCopies();
    ASSERT_OK_AND_ASSIGN(const StateDict state, state_of(settings));
    EXPECT_LE(EmulatedCopies() - copies, 8) << "parameters and two states of each, gathered and copied";
    int tensors = 0;
    for (const auto& [key, value] : live.entries()) {
      const auto* const tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr || tensor->shape.rank() == 0) continue;
      ASSERT_NE(state.FindTensor(key), nullptr) << key.fqn;
      ASSERT_OK_AND_ASSIGN(const std::vector<float> wanted, ValuesOf(tensor->shards[0].data));
      ASSERT_OK_AND_ASSIGN(const std::vector<float> values, ValuesOf(state.FindTensor(key)->shards[0].data));
      EXPECT_EQ(values, wanted) << key.fqn;
      ++tensors;
    }
    EXPECT_EQ(tensors, 3 * 2 * kLayers);
  }
}

// Also a rank that streams the whole state to a file, unit by unit.
TEST_F(FewCallsTest, AStreamedStateTakesFewCopiesForTheSmallTensorsOfAUnit) {
  auto root = std::make_unique<TestSequence>();
  for (int i = 0; i < 100; ++i) root->AddLinear(8, 8);
  ASSERT_OK_AND_ASSIGN(const auto model, FullyShardedDataParallel::Wrap(std::move(root), group_, {.init_seed = 3}));
  const int64_t copies = EmulatedCopies();
  size_t tensors = 0;
  ASSERT_OK(model->StreamFullState(absl::Span<Optimizer* const>(), [&](const StateDict& part) {
    tensors += part.entries().size();
    return absl::OkStatus();
  }));
  EXPECT_EQ(tensors, 200u);
  EXPECT_LE(EmulatedCopies() - copies, 3);
}

TEST_F(FewCallsTest, AScalerUnscalesAllGradientsByOneLaunch) {
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<Module> module, MakeGpt2(OddGpt2Config()));
  ASSERT_OK_AND_ASSIGN(const auto model, FullyShardedDataParallel::Wrap(std::move(module), group_, BlockOptions()));
  const std::shared_ptr<Device> host = CreateHostDevice();
  ASSERT_OK_AND_ASSIGN(TestBatch batch, TestBatchOf(*host, 0, 0));
  for (Tensor* t : {&batch.tokens, &batch.targets}) {
    ASSERT_OK_AND_ASSIGN(const Tensor copy, Tensor::Empty(*device_, t->dtype(), t->shape()));
    model->stream().CopyAsync(copy.data(), t->data(), t->nbytes());
    ASSERT_OK(model->stream().Synchronize());
    *t = copy;
  }
  Tape tape = model->NewTape();
  ASSERT_OK_AND_ASSIGN(const Tensor logits, model->Forward(batch.tokens, tape));
  ASSERT_OK_AND_ASSIGN(const auto made, CrossEntropyLoss().ForwardBackward(logits, batch.targets, 1, tape));
  ASSERT_OK(model->Backward(made.grad_logits, tape));
  ASSERT_GT(model->parameters().size(), 10);

  ShardedGradScaler scaler(*group_);
  ASSERT_OK_AND_ASSIGN(const auto device_scaler, DeviceGradScaler::Create(*model, scaler));
  ASSERT_OK(device_scaler->BeginStep());
  const int64_t launches = EmulatedLaunches();
  device_scaler->Unscale();
  ASSERT_OK(model->stream().Synchronize());
  EXPECT_EQ(EmulatedLaunches() - launches, 1);
}

}  // namespace
}  // namespace fsdp

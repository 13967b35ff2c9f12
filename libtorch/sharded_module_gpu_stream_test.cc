// SPDX-License-Identifier: Apache-2.0
//
// Sharded modules of LibTorch on streams of a GPU that are not the default one. Each stage has much work queued before
// it, so an operation out of order reads memory that is not written yet.
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <optional>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/libtorch/gpu_ranks_testutil.h"
#include "fsdp/libtorch/models_testutil.h"
#include "fsdp/libtorch/torch_training_testutil.h"
#include "fsdp/optim/sgd.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSteps = 3;

c10::Stream Current() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(TestGpu()); }
c10::Stream Another() { return c10::impl::VirtualGuardImpl(c10::kCUDA).getNewStream(TestGpu()); }

void MakeWait(const c10::Stream& waits, const c10::Stream& done) {
  c10::Event event(c10::kCUDA);
  event.record(done);
  event.block(waits);
}

// Keeps the current stream busy for some 10 ms, while the host continues.
void Delay() {
  const at::NoGradGuard no_grad;
  const at::Tensor large = at::ones({4096, 4096}, at::TensorOptions().device(TestGpu()));
  for (int i = 0; i < 4; ++i) at::mm(large, large);
}

// The streams of a training.
struct Streams {
  bool shard_on_other = false;    // Shard
  bool forward_on_other = false;  // Forward, and so backward
  bool backward_called = false;   // backward() is called on another stream than Forward's
  bool changes_within = false;    // a part of the forward
  bool optimizer_on_other = false;
};

// A training of "mlp" by SGD with momentum, with gradients clipped by LibTorch: plain, or on the streams that `streams`
// selects, which the program orders as CUDA requires.
class StreamTraining final {
 public:
  explicit StreamTraining(const Streams& streams) : streams_(streams), model_(MakeTestModel("mlp", TestGpu())) {}

  absl::Status Shard(std::shared_ptr<ProcessGroup> group, bool fsdp2) {
    const std::optional<c10::StreamGuard> guard = On(streams_.shard_on_other);
    // The last initial value is written late.
    for (const at::Tensor& parameter : model_.parameters()) {
      const at::NoGradGuard no_grad;
      const at::Tensor values = parameter.clone();
      parameter.zero_();
      Delay();
      parameter.copy_(values);
    }
    FSDP_ASSIGN_OR_RETURN(sharded_, ShardTestModel(model_, std::move(group), {.use_fsdp2 = fsdp2}));
    return absl::OkStatus();
  }

  absl::Status Train() {
    const c10::Stream main = Current();
    torch::optim::SGD optimizer(sharded_ ? sharded_->LocalParameters() : model_.parameters(),
                                torch::optim::SGDOptions(1e-1).momentum(0.9));
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor loss;
      {
        const auto guard = On(streams_.forward_on_other);
        const at::Tensor x = model_.input(step);
        Delay();
        loss = Run(x).square().mean();
        if (!streams_.backward_called) loss.backward();
      }
      MakeWait(main, other_);
      if (streams_.backward_called) {
        Delay();
        loss.backward();
      }
      {
        const auto guard = On(streams_.optimizer_on_other);
        Delay();
        optimizer.step();
        optimizer.zero_grad();
      }
      MakeWait(main, other_);
      MakeWait(other_, main);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TorchValues> Values() {
    if (sharded_ != nullptr) return FullValues(*sharded_);
    TorchValues values;
    for (const auto& item : model_.module->named_parameters()) values[item.key()] = item.value().detach().cpu();
    return values;
  }

 private:
  std::optional<c10::StreamGuard> On(bool other) {
    if (!other) return std::nullopt;
    MakeWait(other_, Current());
    return std::optional<c10::StreamGuard>(std::in_place, other_);
  }

  at::Tensor Run(const at::Tensor& x) {
    const auto forward = [this](const at::Tensor& in) {
      if (!streams_.changes_within) return model_.forward(in);
      const c10::Stream before = Current();
      at::Tensor out;
      {
        MakeWait(third_, before);
        const c10::StreamGuard guard(third_);
        Delay();
        out = model_.forward(in);
      }
      MakeWait(before, third_);
      return out;
    };
    return sharded_ != nullptr ? sharded_->Forward(forward, x) : forward(x);
  }

  const Streams streams_;
  const TestModel model_;
  const c10::Stream other_ = Another(), third_ = Another();
  std::unique_ptr<ShardedModule> sharded_;
};

class ShardedModuleGpuStreamTest : public GpuRanksTest {
 protected:
  static void ExpectSameBits(const Streams& streams) {
    StreamTraining plain({});
    ASSERT_OK(plain.Train());
    const absl::StatusOr<TorchValues> wanted = plain.Values();
    ASSERT_OK(wanted.status());
    for (const int ranks : {1, 2}) {
      for (const bool fsdp2 : {false, true}) {
        SCOPED_TRACE(testing::Message() << ranks << " ranks, FSDP" << (fsdp2 ? 2 : 1));
        ASSERT_OK(RunGpuRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
          StreamTraining training(streams);
          FSDP_RETURN_IF_ERROR(training.Shard(group, fsdp2));
          FSDP_RETURN_IF_ERROR(Caught([&] { return training.Train(); }));
          FSDP_ASSIGN_OR_RETURN(const TorchValues values, training.Values());
          EXPECT_EQ(LargestDifference(*wanted, values), 0);
          return absl::OkStatus();
        }));
      }
    }
  }
};

TEST_F(ShardedModuleGpuStreamTest, TheDefaultStreamWithMuchToDo) { ExpectSameBits({}); }

TEST_F(ShardedModuleGpuStreamTest, AllOnAnotherStream) {
  ExpectSameBits({.shard_on_other = true, .forward_on_other = true, .optimizer_on_other = true});
}

TEST_F(ShardedModuleGpuStreamTest, ForwardAndBackwardOnAnotherStreamThanShard) {
  ExpectSameBits({.forward_on_other = true});
}

TEST_F(ShardedModuleGpuStreamTest, BackwardCalledOnAnotherStreamThanForward) {
  ExpectSameBits({.forward_on_other = true, .backward_called = true});
}

TEST_F(ShardedModuleGpuStreamTest, AForwardThatChangesItsStream) { ExpectSameBits({.changes_within = true}); }

TEST_F(ShardedModuleGpuStreamTest, AnOptimizerOnAnotherStream) { ExpectSameBits({.optimizer_on_other = true}); }

// Our optimizer runs on our stream, and LibTorch's tensors show its result to LibTorch's.
TEST_F(ShardedModuleGpuStreamTest, WhatOurStreamHasToDoIsDoneBeforeLibTorchReadsIt) {
  ASSERT_OK(RunGpuRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TestModel model = MakeTestModel("mlp", TestGpu());
    FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardTestModel(model, group, {}));
    Sgd optimizer(sharded->parameters(), {.lr = 0.1, .momentum = 0});
    constexpr int64_t kLarge = int64_t{1} << 31;
    FSDP_ASSIGN_OR_RETURN(const Tensor large, Tensor::Empty(*group->device(), DType::kUInt8, {kLarge}));
    return Caught([&]() -> absl::Status {
      const char* const half = static_cast<const char*>(large.data()) + kLarge / 2;
      std::vector<at::Tensor> wanted;
      sharded->Forward(model.forward, model.input(0)).square().mean().backward();
      for (const at::Tensor& tensor : sharded->LocalParameters()) {
        wanted.push_back((tensor.detach() - tensor.grad() * 0.1f).cpu());
      }
      for (int i = 0; i < 32; ++i) sharded->stream().CopyAsync(large.data(), half, kLarge / 2);  // some 10 ms
      FSDP_RETURN_IF_ERROR(optimizer.Step(sharded->stream()));
      const std::vector<at::Tensor>& now = sharded->LocalParameters();
      for (size_t i = 0; i < now.size(); ++i) {
        if (now[i].numel() == 0) continue;  // the other rank has it
        EXPECT_LE((now[i].detach().cpu() - wanted[i]).abs().max().item<double>(), 1e-7) << i;
      }
      return absl::OkStatus();
    });
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Communication overlaps with compute: layers whose compute does not end before the all-gather of the next
// unit has. Without overlap they would wait for ever, so they give up at a deadline.
#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/forwarding_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/nn/module.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kLayers = 3;

// A rank's group that counts the all-gathers and reduce-scatters that have run, not those that were issued.
class CountingGroup final : public ForwardingProcessGroup {
 public:
  using ForwardingProcessGroup::ForwardingProcessGroup;

  int all_gathers() const { return all_gathers_; }
  int reduce_scatters() const { return reduce_scatters_; }

  void AllGather(const Tensor& input, const Tensor& output, Stream& stream) override {
    inner().AllGather(input, output, stream);
    CountAfter(all_gathers_, stream);
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, Stream& stream) override {
    inner().ReduceScatter(input, output, op, stream);
    CountAfter(reduce_scatters_, stream);
  }

 private:
  static void CountAfter(std::atomic<int>& count, Stream& stream) {
    stream.Run([&count] {
      ++count;
      return absl::OkStatus();
    });
  }

  std::atomic<int> all_gathers_{0};
  std::atomic<int> reduce_scatters_{0};
};

// One parameter; its compute ends when the rank's all-gathers have reached a number.
class Layer final : public Module {
 public:
  Layer(int index, const CountingGroup& group, absl::Duration patience)
      : index_(index), group_(group), patience_(patience) {
    AddParameter("weight", {5}, Initializer::Constant(1));
  }
  std::string_view type_name() const override { return "Layer"; }

 private:
  // Forward of layer i overlaps the all-gather of layer i + 1; backward gathers the last layer again, and of layer i
  // overlaps the all-gather of layer i - 1.
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    WaitForGathers(std::min(index_ + 2, kLayers), tape);
    return input;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    const int done = kLayers - index_;  // backwards begun
    WaitForGathers(kLayers + std::min(done + 1, kLayers), tape);
    return grad_output;
  }

  void WaitForGathers(int wanted, Tape& tape) const {
    tape.stream().Run([this, wanted]() -> absl::Status {
      const absl::Time deadline = absl::Now() + patience_;
      while (group_.all_gathers() < wanted) {
        if (absl::Now() > deadline) return absl::DeadlineExceededError("no all-gather overlaps this compute");
        std::this_thread::yield();
      }
      return absl::OkStatus();
    });
  }

  const int index_;
  const CountingGroup& group_;
  const absl::Duration patience_;
};

class Layers final : public Module {
 public:
  Layers(const CountingGroup& group, absl::Duration patience) {
    for (int i = 0; i < kLayers; ++i) {
      AddChild("layer" + std::to_string(i), std::make_unique<Layer>(i, group, patience));
    }
  }
  std::string_view type_name() const override { return "Layers"; }

 private:
  absl::StatusOr<Tensor> DoForward(const Tensor& input, Tape& tape) override {
    Tensor x = input;
    for (const auto& [name, child] : children()) {
      FSDP_ASSIGN_OR_RETURN(x, child->Forward(x, tape));
    }
    return x;
  }
  absl::StatusOr<Tensor> DoBackward(const Tensor& grad_output, Tape& tape) override {
    Tensor grad = grad_output;
    for (auto child = children().rbegin(); child != children().rend(); ++child) {
      FSDP_ASSIGN_OR_RETURN(grad, child->second->Backward(grad, tape));
    }
    return grad;
  }
};

absl::Status OneStep(BackwardPrefetch prefetch, absl::Duration patience) {
  return RunRanks(2, [=](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto group = std::make_shared<CountingGroup>(std::move(inner));
    const FsdpOptions options{.auto_wrap_policy = ModuleWrapPolicy<Layer>(), .backward_prefetch = prefetch};
    FSDP_ASSIGN_OR_RETURN(auto model,
                          FullyShardedDataParallel::Wrap(std::make_unique<Layers>(*group, patience), group, options));
    Tape tape = model->NewTape();
    FSDP_ASSIGN_OR_RETURN(const Tensor x, tape.Empty(DType::kFloat32, {1}));
    FSDP_RETURN_IF_ERROR(model->Forward(x, tape).status());
    FSDP_RETURN_IF_ERROR(model->Backward(x, tape).status());
    FSDP_RETURN_IF_ERROR(model->stream().Synchronize());
    EXPECT_EQ(group->all_gathers(), 2 * kLayers);
    EXPECT_EQ(group->reduce_scatters(), kLayers);
    return absl::OkStatus();
  });
}

TEST(OverlapTest, AllGathersOverlapForwardAndBackwardUnderBackwardPre) {
  EXPECT_OK(OneStep(BackwardPrefetch::kBackwardPre, absl::Seconds(30)));
}

TEST(OverlapTest, ForwardPrefetchIsInTheScheduleOfAModelThatAsksForIt) {
  ASSERT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> inner) -> absl::Status {
    auto group = std::make_shared<CountingGroup>(std::move(inner));
    for (const bool ahead : {false, true}) {
      const FsdpOptions options{.auto_wrap_policy = ModuleWrapPolicy<Layer>(), .forward_prefetch = ahead};
      auto layers = std::make_unique<Layers>(*group, absl::ZeroDuration());
      FSDP_ASSIGN_OR_RETURN(auto model, FullyShardedDataParallel::Wrap(std::move(layers), group, options));
      const std::string schedule = RenderSchedule(model->StepSchedule(1), model->UnitNames());
      const std::string gathered_ahead = "all_gather layer0\nall_gather layer1\nforward layer0\n";
      EXPECT_EQ(schedule.find(gathered_ahead) != std::string::npos, ahead) << schedule;
    }
    return absl::OkStatus();
  }));
}

TEST(OverlapTest, WithoutPrefetchNoAllGatherOverlapsBackward) {
  EXPECT_THAT(OneStep(BackwardPrefetch::kNone, absl::Milliseconds(300)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, testing::HasSubstr("no all-gather overlaps this compute")));
}

}  // namespace
}  // namespace fsdp

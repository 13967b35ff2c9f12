// SPDX-License-Identifier: Apache-2.0
//
// The settings of FsdpModule that change no number and no collective, only the waits between streams: each is tested by
// work that cannot end before the other side has run. If the setting is ignored that never happens, so the test gives
// up at a deadline.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/fsdp/fsdp_module.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// Work for a stream: ends when `reached` is true, or with an error after `patience`.
std::function<absl::Status()> Until(std::function<bool()> reached, absl::Duration patience) {
  return [reached = std::move(reached), patience] {
    const absl::Time deadline = absl::Now() + patience;
    while (!reached()) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("what this work waits for did not run");
      std::this_thread::yield();
    }
    return absl::OkStatus();
  };
}

// Reduce-scatters that end only when they are released.
class HeldReduceScatter final : public ReduceScatterComm {
 public:
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    return Tensor::Empty(*group.device(), dtype, {numel});
  }
  void ReduceScatter(const Tensor& input, const Tensor& output, ReduceOp op, ProcessGroup& group,
                     Stream& stream) override {
    group.ReduceScatter(input, output, op, stream);
    stream.Run(Until([this] { return let_go_.load(); }, absl::Seconds(30)));
  }
  void LetGo() { let_go_ = true; }

 private:
  std::atomic<bool> let_go_{false};
};

// Counts the all-gathers that have run.
class CountedAllGather final : public AllGatherComm {
 public:
  absl::StatusOr<Tensor> Allocate(int64_t numel, DType dtype, ProcessGroup& group) override {
    return Tensor::Empty(*group.device(), dtype, {numel});
  }
  void AllGather(const Tensor& input, const Tensor& output, ProcessGroup& group, Stream& stream) override {
    group.AllGather(input, output, stream);
    stream.Run([this] {
      ++count_;
      return absl::OkStatus();
    });
  }
  int count() const { return count_; }

 private:
  std::atomic<int> count_{0};
};

// A backward whose root's reduction, the last of the step, is held; true if compute still ended.
absl::StatusOr<bool> ComputeEndsBeforeTheReduction(TestFullyShard& test, bool is_last_backward) {
  auto held = std::make_shared<HeldReduceScatter>();
  FSDP_RETURN_IF_ERROR(test.root->set_custom_reduce_scatter(held));
  FSDP_RETURN_IF_ERROR(test.root->set_is_last_backward(is_last_backward));
  FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
  FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
  FSDP_RETURN_IF_ERROR(test.model->Backward(y, tape).status());
  const Event computed = tape.stream().Record();
  // Waits the whole time only if compute waits for the reduction.
  const bool ended =
      Until([&] { return computed.Query(); }, absl::Milliseconds(is_last_backward ? 200 : 30'000))().ok();
  held->LetGo();
  FSDP_ASSIGN_OR_RETURN(const auto model, ShardedModel::Of(*test.root));
  FSDP_RETURN_IF_ERROR(model->runtime().Synchronize());
  return ended;
}

TEST(FsdpModuleStreamsTest, ComputeWaitsForReductionsOnlyAfterTheLastBackward) {
  for (const bool is_last_backward : {false, true}) {
    ASSERT_OK(RunFullyShard(2, {}, [&](TestFullyShard& test) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const bool ended, ComputeEndsBeforeTheReduction(test, is_last_backward));
      EXPECT_EQ(ended, !is_last_backward);
      FSDP_ASSIGN_OR_RETURN(const Gradients gradients, test.Gradients());
      EXPECT_EQ(gradients.count("2.bias"), 1u);
      return absl::OkStatus();
    }));
  }
}

// The optimizer's work is done at the event; other work on compute comes after it and must not hold up the all-gather.
TEST(FsdpModuleStreamsTest, AllGathersWaitForThePostOptimEventAloneAndOnce) {
  ASSERT_OK(RunFullyShard(2, {}, [](TestFullyShard& test) -> absl::Status {
    auto gathers = std::make_shared<CountedAllGather>();
    FSDP_RETURN_IF_ERROR(test.root->set_custom_all_gather(gathers, Recurse::kNo));
    FSDP_ASSIGN_OR_RETURN(Tape with_event, test.root->NewTape());
    FSDP_RETURN_IF_ERROR(test.root->set_post_optim_event(with_event.stream().Record()));
    with_event.stream().Run(Until([=] { return gathers->count() >= 1; }, absl::Seconds(30)));
    FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(with_event));
    FSDP_RETURN_IF_ERROR(test.Backward(y, with_event));
    EXPECT_EQ(gathers->count(), 1);
    // The next forward's all-gather waits for all of compute again, so this work waits in vain.
    FSDP_ASSIGN_OR_RETURN(Tape without, test.root->NewTape());
    without.stream().Run(Until([=] { return gathers->count() >= 2; }, absl::Milliseconds(200)));
    FSDP_RETURN_IF_ERROR(test.Forward(without).status());
    EXPECT_THAT(without.stream().Synchronize(), StatusIs(absl::StatusCode::kDeadlineExceeded));
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

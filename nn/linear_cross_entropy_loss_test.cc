// SPDX-License-Identifier: Apache-2.0
//
// The head and its loss over chunks of rows against the head and CrossEntropyLoss on all rows.
#include "fsdp/nn/linear_cross_entropy_loss.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/cross_entropy_loss.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/linear.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Sizes that no number of chunks divides.
constexpr int64_t kBatch = 1, kRows = 23, kIn = 12, kClasses = 51;

enum class HeadKind { kPlain, kBias, kFrozen, kAdapter };

Tensor Targets(int64_t rows, int64_t classes) {
  std::vector<int32_t> targets(rows);
  for (int64_t r = 0; r < rows; ++r) targets[r] = static_cast<int32_t>(r * 7 % classes);
  return TokenTensor(targets, {kBatch, rows});
}

class LinearCrossEntropyLossTest : public testing::TestWithParam<DType> {
 protected:
  struct Results {
    Doubles loss, grad_x;
    std::vector<Doubles> grads;  // of the parameters that require one
  };

  std::unique_ptr<Linear> MakeHead(HeadKind kind, int64_t in = kIn, int64_t classes = kClasses) {
    auto head = std::make_unique<Linear>(in, classes, Initializer::Normal(0, 0.5f), kind == HeadKind::kBias);
    if (kind == HeadKind::kAdapter) head->AddLora(/*rank=*/3, /*alpha=*/6);
    if (kind == HeadKind::kFrozen) head->own_parameters()[0].second->requires_grad = false;
    head->AssignNames();
    head->PadOutputRows();
    for (const auto& [name, parameter] : head->NamedParameters()) {
      parameter->dtype = GetParam();
      // B, too, so that A has a gradient.
      if (name == "lora_B.weight") parameter->initializer = Initializer::Normal(0, 0.5f);
    }
    EXPECT_OK(head->Materialize(*device_, /*seed=*/1));
    return head;
  }

  static Tensor Hidden(int64_t rows = kRows, int64_t in = kIn) {
    return TestTensor(GetParam(), {kBatch, rows, in}, RandomValues(GetParam(), rows * in, 1));
  }

  Results Finish(Linear& head, const Tensor& loss, const Tensor& grad_x) {
    EXPECT_OK(stream_->Synchronize());
    Results results = {ValuesOf(loss), ValuesOf(grad_x), {}};
    for (const auto& [name, parameter] : head.NamedParameters()) {
      if (parameter->requires_grad) results.grads.push_back(ValuesOf(parameter->grad));
    }
    return results;
  }

  // Logits of all rows; the gradients are added to those of the head.
  absl::StatusOr<Results> RunWhole(Linear& head, const Tensor& x, const Tensor& targets, float scale) {
    Tape tape(*stream_, *ops_);
    FSDP_ASSIGN_OR_RETURN(const Tensor logits, head.Forward(x, tape));
    const Tensor rows = logits.View({targets.numel(), logits.shape().dim(2)});
    FSDP_ASSIGN_OR_RETURN(const auto made, CrossEntropyLoss().ForwardBackward(rows, targets, scale, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_x, head.Backward(made.grad_logits.View(logits.shape()), tape));
    return Finish(head, made.loss, grad_x);
  }

  absl::StatusOr<Results> RunChunks(int64_t num_chunks, Linear& head, const Tensor& x, const Tensor& targets,
                                    LossScale scale) {
    Tape tape(*stream_, *ops_);
    tape.set_loss_scale(std::move(scale));
    const LinearCrossEntropyLoss criterion(num_chunks);
    FSDP_ASSIGN_OR_RETURN(const Tensor loss, criterion.Forward(head, x, targets, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad_x, criterion.Backward(head, tape));
    EXPECT_EQ(grad_x.shape(), x.shape());
    EXPECT_FALSE(tape.Restore().ok()) << "something is left on the tape";
    return Finish(head, loss, grad_x);
  }

  static void ExpectNear(const Results& actual, const Results& expected, double relative) {
    const auto tensor = [](const Doubles& values) {
      return TestTensor(DType::kFloat32, {static_cast<int64_t>(values.size())}, values);
    };
    ExpectClose(tensor(actual.loss), expected.loss, relative);
    ExpectClose(tensor(actual.grad_x), expected.grad_x, relative);
    ASSERT_EQ(actual.grads.size(), expected.grads.size());
    for (size_t i = 0; i < actual.grads.size(); ++i) {
      SCOPED_TRACE(i);
      ExpectClose(tensor(actual.grads[i]), expected.grads[i], relative);
    }
  }

  // One rounding in 16 bits, and the order of a sum of a few dozen terms in float32.
  static double Tolerance() { return GetParam() == DType::kFloat32 ? 3e-6 : 1.0 / 128; }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_P(LinearCrossEntropyLossTest, EveryHeadHasTheLossAndGradientsOfAllRowsTogetherInAnyNumberOfChunks) {
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  for (const HeadKind kind : {HeadKind::kPlain, HeadKind::kBias, HeadKind::kFrozen, HeadKind::kAdapter}) {
    SCOPED_TRACE(static_cast<int>(kind));
    const auto whole = MakeHead(kind);
    ASSERT_OK_AND_ASSIGN(const Results expected, RunWhole(*whole, x, targets, 0.25f));
    ASSERT_EQ(expected.grads.size(), kind == HeadKind::kPlain ? 1u : kind == HeadKind::kFrozen ? 0u : 2u);
    for (const int64_t num_chunks : {0, 1, 2, 5, 22, 23, 1000}) {
      SCOPED_TRACE(num_chunks);
      const auto head = MakeHead(kind);
      ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(num_chunks, *head, x, targets, 0.25f));
      ExpectNear(actual, expected, Tolerance());
    }
  }
}

TEST_P(LinearCrossEntropyLossTest, OneRowIsOneChunk) {
  const auto whole = MakeHead(HeadKind::kPlain), head = MakeHead(HeadKind::kPlain);
  const Tensor x = Hidden(1), targets = Targets(1, kClasses);
  ASSERT_OK_AND_ASSIGN(const Results expected, RunWhole(*whole, x, targets, 1));
  ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(8, *head, x, targets, 1.0f));
  ExpectNear(actual, expected, Tolerance());
}

TEST_P(LinearCrossEntropyLossTest, OneChunkInFloat32HasTheBitsOfAllRowsTogether) {
  if (GetParam() != DType::kFloat32) GTEST_SKIP() << "16-bit products may have other kernels for float32 results";
  const auto whole = MakeHead(HeadKind::kBias), head = MakeHead(HeadKind::kBias);
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  ASSERT_OK_AND_ASSIGN(const Results expected, RunWhole(*whole, x, targets, 0.5f));
  ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(1, *head, x, targets, 0.5f));
  EXPECT_EQ(actual.loss, expected.loss);
  EXPECT_EQ(actual.grad_x, expected.grad_x);
  EXPECT_EQ(actual.grads, expected.grads);
}

TEST_P(LinearCrossEntropyLossTest, RepeatedPassesHaveTheSameBits) {
  const auto first = MakeHead(HeadKind::kBias), second = MakeHead(HeadKind::kBias);
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  ASSERT_OK_AND_ASSIGN(const Results one, RunChunks(5, *first, x, targets, 1.0f));
  ASSERT_OK_AND_ASSIGN(const Results other, RunChunks(5, *second, x, targets, 1.0f));
  EXPECT_EQ(one.loss, other.loss);
  EXPECT_EQ(one.grad_x, other.grad_x);
  EXPECT_EQ(one.grads, other.grads);
}

// 600 equal contributions: a sum that is rounded to 16 bits at each of them would stop growing on the way.
TEST_P(LinearCrossEntropyLossTest, GradientOfTheWeightIsRoundedOnceAndNotAtEachChunk) {
  constexpr int64_t kMany = 600, kFew = 4;
  const Tensor x = TestTensor(GetParam(), {kBatch, kMany, kFew}, Doubles(kMany * kFew, 1.0));
  const Tensor targets = TokenTensor(std::vector<int32_t>(kMany, 3), {kMany});
  const auto whole = MakeHead(HeadKind::kBias, kFew, kFew), head = MakeHead(HeadKind::kBias, kFew, kFew);
  ASSERT_OK_AND_ASSIGN(const Results expected, RunWhole(*whole, x, targets, kMany));
  ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(kMany, *head, x, targets, static_cast<float>(kMany)));
  ExpectNear(actual, expected, GetParam() == DType::kFloat32 ? 2e-5 : 1.0 / 128);
}

TEST_P(LinearCrossEntropyLossTest, PassesAddToTheGradients) {
  const auto whole = MakeHead(HeadKind::kBias), head = MakeHead(HeadKind::kBias);
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  for (int pass = 0; pass < 3; ++pass) {
    SCOPED_TRACE(pass);
    ASSERT_OK_AND_ASSIGN(const Results expected, RunWhole(*whole, x, targets, 0.5f));
    ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(4, *head, x, targets, 0.5f));
    ExpectNear(actual, expected, 2 * Tolerance());
  }
}

// As FSDP binds it: memory that holds anything, which the first gradient of a backward replaces.
TEST_P(LinearCrossEntropyLossTest, FirstGradientReplacesMemoryThatHoldsAnything) {
  const auto zeroed = MakeHead(HeadKind::kPlain), head = MakeHead(HeadKind::kPlain);
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  ASSERT_OK_AND_ASSIGN(const Results expected, RunChunks(4, *zeroed, x, targets, 1.0f));
  Parameter& weight = *head->own_parameters()[0].second;
  weight.grad = NanTensor(GetParam(), weight.shape);
  weight.zero_grad_stream = stream_.get();
  weight.grad_used = false;
  ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(4, *head, x, targets, 1.0f));
  EXPECT_EQ(actual.grads, expected.grads);
  EXPECT_TRUE(weight.grad_used);
}

TEST_P(LinearCrossEntropyLossTest, ScaleInTheMemoryOfAGpuIsReadInStreamOrder) {
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  const DeviceScale scale = {TestTensor(DType::kFloat32, {1}, {8}), 2};
  const auto head = MakeHead(HeadKind::kPlain), same = MakeHead(HeadKind::kPlain);
  if (device_->type() == DeviceType::kCpu) {
    EXPECT_THAT(RunChunks(4, *head, x, targets, scale).status(),
                StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("pass the scale as a number")));
    return;
  }
  ASSERT_OK_AND_ASSIGN(const Results actual, RunChunks(4, *head, x, targets, scale));
  ASSERT_OK_AND_ASSIGN(const Results expected, RunChunks(4, *same, x, targets, 4.0f));
  ExpectNear(actual, expected, GetParam() == DType::kFloat32 ? 1e-6 : 1.0 / 128);
}

TEST_P(LinearCrossEntropyLossTest, EvaluationHasTheLossOfTrainingAndNoGradients) {
  const auto head = MakeHead(HeadKind::kBias);
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  const LinearCrossEntropyLoss criterion(5);
  Tape evaluation(*stream_, *ops_, /*keep_for_backward=*/false);
  ASSERT_OK_AND_ASSIGN(const Tensor loss, criterion.Forward(*head, x, targets, evaluation));
  ASSERT_OK(stream_->Synchronize());
  const Doubles evaluated = ValuesOf(loss);
  for (const auto& [name, parameter] : head->NamedParameters()) {
    EXPECT_EQ(ValuesOf(parameter->grad), Doubles(parameter->shape.numel(), 0.0));
    EXPECT_FALSE(parameter->grad_used);
  }
  EXPECT_THAT(criterion.Backward(*head, evaluation).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nothing is saved")));
  ASSERT_OK_AND_ASSIGN(const Results trained, RunChunks(5, *head, x, targets, 1.0f));
  EXPECT_EQ(evaluated, trained.loss);
}

TEST_P(LinearCrossEntropyLossTest, MemoryIsThatOfOneChunkAndOfTheGradientsInFloat32) {
  constexpr int64_t kMany = 512, kWide = 2048, kFew = 8;
  const Tensor x = Hidden(kMany, kFew), targets = Targets(kMany, kWide);
  const auto peak = [&](const auto& run) {
    const auto head = MakeHead(HeadKind::kPlain, kFew, kWide);
    EXPECT_OK(stream_->Synchronize());
    const int64_t before = device_->allocated_bytes();
    device_->ResetPeak();
    EXPECT_OK(run(*head).status());
    return device_->peak_allocated_bytes() - before;
  };
  const int64_t element = SizeOf(GetParam()), logits = kMany * kWide * element;
  EXPECT_GE(peak([&](Linear& head) { return RunWhole(head, x, targets, 1); }), logits);
  // Also the gradient of x, the statistics of a chunk, and a second chunk that waits for the first one's memory.
  const int64_t grads = kWide * kFew * static_cast<int64_t>(sizeof(float));
  EXPECT_LT(peak([&](Linear& head) { return RunChunks(16, head, x, targets, 1.0f); }), grads + logits / 4);
}

TEST_P(LinearCrossEntropyLossTest, WrongOperandsAreRefusedByName) {
  const auto head = MakeHead(HeadKind::kPlain);
  const LinearCrossEntropyLoss criterion(4);
  Tape tape(*stream_, *ops_);
  EXPECT_THAT(criterion.Forward(*head, Hidden(kRows, kIn + 1), Targets(kRows, kClasses), tape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wanted [..., 12]")));
  EXPECT_THAT(criterion.Forward(*head, Hidden(), Targets(kRows - 1, kClasses), tape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("targets int32 [1, 22]"), HasSubstr("expected int32 with 23 elements"))));
  EXPECT_THAT(criterion.Forward(*head, Hidden(), Tensor(), tape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("targets undefined")));
}

class Derived final : public Linear {
 public:
  Derived() : Linear(kIn, kClasses, Initializer::Constant(0)) {}
  std::string_view type_name() const override { return "Derived"; }
};

class NoHooks final : public ModuleHooks {
  absl::Status PreForward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PostForward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PreBackward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
  absl::Status PostBackward(Module&, absl::Span<Tensor>, Tape&) override { return absl::OkStatus(); }
};

TEST_P(LinearCrossEntropyLossTest, HeadsThatCannotRunInChunksAreRefusedByName) {
  const Tensor x = Hidden(), targets = Targets(kRows, kClasses);
  const LinearCrossEntropyLoss criterion(4);
  Tape tape(*stream_, *ops_);
  Derived derived;
  EXPECT_THAT(criterion.Forward(derived, x, targets, tape).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the head is a Derived, expected a Linear")));
  const auto head = MakeHead(HeadKind::kAdapter);
  NoHooks hooks;
  head->children()[1].second->set_hooks(&hooks);
  EXPECT_THAT(criterion.Forward(*head, x, targets, tape).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("lora_B of the head is a unit of its own, expected it in the head's unit")));
}

TEST_P(LinearCrossEntropyLossTest, BackwardAfterAnotherForwardIsRefused) {
  const auto head = MakeHead(HeadKind::kPlain);
  Tape tape(*stream_, *ops_);
  ASSERT_OK(head->Forward(Hidden(), tape).status());
  EXPECT_THAT(LinearCrossEntropyLoss(4).Backward(*head, tape).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("after another forward than its own")));
}

TEST_P(LinearCrossEntropyLossTest, GradientsThatWereBoundAreBoundAgainAfterAnError) {
  const auto head = MakeHead(HeadKind::kPlain);
  const Parameter& weight = *head->own_parameters()[0].second;
  const void* const bound = weight.grad.data();
  Tape tape(*stream_, *ops_);
  // Out of range: the stream fails, on a host during the first chunk.
  const Tensor targets = TokenTensor(std::vector<int32_t>(kRows, kClasses), {kRows});
  const absl::Status failed = LinearCrossEntropyLoss(4).Forward(*head, Hidden(), targets, tape).status();
  EXPECT_FALSE((failed.ok() ? stream_->Synchronize() : failed).ok());
  EXPECT_EQ(weight.grad.data(), bound);
  EXPECT_EQ(weight.grad.dtype(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(DTypes, LinearCrossEntropyLossTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace fsdp

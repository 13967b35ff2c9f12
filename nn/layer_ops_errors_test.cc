// SPDX-License-Identifier: Apache-2.0
//
// The operands that kernels refuse, and the messages. Each failure is returned by the stream.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "fsdp/tensor/ops.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr DType kF32 = DType::kFloat32;

class LayerOpsErrorsTest : public testing::Test {
 protected:
  static Tensor Zeros(DType dtype, const Shape& shape) { return TestTensor(dtype, shape, Doubles(shape.numel(), 0.0)); }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(LayerOpsErrorsTest, TokenBeyondTheVocabularyIsNamedWithItsPlace) {
  ops_->Embedding(TokenTensor({1, 2, 257, 0}, {2, 2}), Zeros(kF32, {257, 3}), Zeros(kF32, {2, 2, 3}), *stream_);
  EXPECT_THAT(stream_->Synchronize(), StatusIs(absl::StatusCode::kOutOfRange,
                                               HasSubstr("token 257 at index 2 of 4 is beyond the vocabulary of 257")));
}

TEST_F(LayerOpsErrorsTest, NegativeTokenIsRefused) {
  ops_->Embedding(TokenTensor({-1}, {1}), Zeros(kF32, {257, 3}), Zeros(kF32, {1, 3}), *stream_);
  EXPECT_THAT(stream_->Synchronize(), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("token -1 at index 0")));
}

TEST_F(LayerOpsErrorsTest, TargetBeyondTheClassesIsNamedWithItsPlace) {
  ops_->CrossEntropy(Zeros(kF32, {3, 5}), TokenTensor({4, 5, 0}, {3}), Zeros(kF32, {1}), Zeros(kF32, {3, 2}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("target 5 at index 1 of 3 is not in [0, 5)")));
}

TEST_F(LayerOpsErrorsTest, MixedDtypesAreRefused) {
  ops_->Add(Zeros(kF32, {3}), Zeros(DType::kBFloat16, {3}), Zeros(kF32, {3}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("add: operands of dtype float32 and bfloat16")));
}

TEST_F(LayerOpsErrorsTest, Float16AttentionWithRoundedProbabilitiesIsNoError) {
  constexpr DType kF16 = DType::kFloat16;
  const AttentionShape shape = {.batch = 1, .seq_len = 2, .num_heads = 1, .head_dim = 8};
  ops_->CausalAttention(Zeros(kF16, {2, 24}), shape, Zeros(kF16, {2, 8}), Zeros(kF32, {2, 2}), *stream_);
  EXPECT_OK(stream_->Synchronize());
}

TEST_F(LayerOpsErrorsTest, Float64HasNoKernels) {
  ops_->Activate(ActivationKind::kRelu, Zeros(DType::kFloat64, {3}), Zeros(DType::kFloat64, {3}), *stream_);
  EXPECT_THAT(stream_->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("activation: ")));
}

TEST_F(LayerOpsErrorsTest, OperandsOfOtherSizesAreRefused) {
  ops_->Matmul(Zeros(kF32, {2, 3}), Zeros(kF32, {4, 5}), Tensor(), Zeros(kF32, {2, 5}), {}, *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("matmul: b [4, 5], wanted 15 elements")));
}

TEST_F(LayerOpsErrorsTest, PaddedRowsAreRefusedByKernelsThatReadARunOfElements) {
  const Tensor padded = PaddedTensor(kF32, {2, 3}, Doubles(6, 0.0), 8), plain = Zeros(kF32, {2, 3});
  const auto refusal = [this](const std::function<void(Stream&)>& run) {
    const std::unique_ptr<Stream> stream = *device_->CreateStream("refusal");
    run(*stream);
    return stream->Synchronize();
  };
  const auto refused = [](const std::string& operand) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(operand + " [2, 3] has rows 8 elements apart, wanted contiguous"));
  };
  EXPECT_THAT(refusal([&](Stream& s) { ops_->Add(plain, padded, plain, s); }), refused("add: b"));
  EXPECT_THAT(refusal([&](Stream& s) { ops_->Add(plain, plain, padded, s); }), refused("add: out"));
  EXPECT_THAT(refusal([&](Stream& s) { ops_->Activate(ActivationKind::kRelu, padded, plain, s); }),
              refused("activation: x"));
  EXPECT_THAT(refusal([&](Stream& s) { ops_->ActivateGated(ActivationKind::kRelu, padded, plain, plain, s); }),
              refused("gated activation: gate"));
  EXPECT_THAT(refusal([&](Stream& s) { ops_->Dropout(padded, {}, plain, s); }), refused("dropout: x"));
  EXPECT_THAT(refusal([&](Stream& s) { device_->ops().CastDivide(padded, plain, 1, s); }),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cast_divide: source has padded rows")));
}

// The host's products are of contiguous rows.
TEST_F(LayerOpsErrorsTest, PaddedRowsAreRefusedByProductsOnHosts) {
  if (device_->type() != DeviceType::kCpu) GTEST_SKIP() << "products on GPUs take them (PaddedRowsTest)";
  const Tensor padded = PaddedTensor(kF32, {2, 3}, Doubles(6, 0.0), 8);
  ops_->Matmul(padded, Zeros(kF32, {3, 2}), Tensor(), Zeros(kF32, {2, 2}), {}, *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("matmul: a [2, 3] has rows 8 elements apart")));
}

TEST_F(LayerOpsErrorsTest, ProductsIntoFloat32HaveNoBiasAndOperandsOfOneDtype) {
  constexpr DType kB16 = DType::kBFloat16;
  const Tensor a = Zeros(kB16, {2, 3}), b = Zeros(kB16, {3, 5});
  ops_->Matmul(a, b, Zeros(kB16, {5}), Zeros(kF32, {2, 5}), {}, *stream_);
  EXPECT_THAT(stream_->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("matmul: operands of dtype bfloat16 and float32")));
  const std::unique_ptr<Stream> other = *device_->CreateStream("other");
  ops_->Matmul(Zeros(kF32, {2, 3}), b, Tensor(), Zeros(kF32, {2, 5}), {}, *other);
  EXPECT_THAT(other->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                             HasSubstr("matmul: operands of dtype float32 and bfloat16")));
}

TEST_F(LayerOpsErrorsTest, TransposedOperandIsNotTakenForPlain) {
  ops_->Matmul(Zeros(kF32, {2, 3}), Zeros(kF32, {5, 3}), Tensor(), Zeros(kF32, {2, 5}), {}, *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("matmul: b [5, 3], wanted 5 columns")));
}

TEST_F(LayerOpsErrorsTest, TooFewStatisticsAreRefused) {
  const AttentionShape shape = {.batch = 1, .seq_len = 2, .num_heads = 1, .head_dim = 4, .scale = 1};
  ops_->CausalAttention(Zeros(kF32, {2, 12}), shape, Zeros(kF32, {2, 4}), Zeros(kF32, {2}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("attention: statistics [2], wanted 4 elements")));
}

TEST_F(LayerOpsErrorsTest, HeadsThatFormNoGroupsAreRefused) {
  const AttentionShape shape = {.batch = 1, .seq_len = 2, .num_heads = 3, .num_kv_heads = 2, .head_dim = 4, .scale = 1};
  ops_->CausalAttention(Zeros(kF32, {2, 28}), shape, Zeros(kF32, {2, 12}), Zeros(kF32, {6, 2}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("attention: num_heads 3 is not a multiple of num_kv_heads 2")));
}

// A shape that was never filled in; the check of groups divided by its number of heads.
TEST_F(LayerOpsErrorsTest, AttentionWithoutHeadsIsRefused) {
  const Tensor any = Zeros(kF32, {2, 4});
  const CrossAttentionOperands operands = {any, any, any, Tensor()};
  const std::function<void(Stream&)> calls[] = {
      [&](Stream& stream) { ops_->CausalAttention(any, {}, any, any, stream); },
      [&](Stream& stream) { ops_->CausalAttentionBackward(any, any, any, any, {}, any, stream); },
      [&](Stream& stream) { ops_->CrossAttention(operands, {}, any, any, stream); },
      [&](Stream& stream) { ops_->CrossAttentionBackward(any, operands, any, {}, {}, stream); },
  };
  for (const auto& call : calls) {
    const std::unique_ptr<Stream> stream = *device_->CreateStream("refusal");
    call(*stream);
    EXPECT_THAT(stream->Synchronize(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                HasSubstr("num_heads 0 is not a multiple of num_kv_heads 0")));
  }
}

TEST_F(LayerOpsErrorsTest, OddHeadsAndShortTablesCannotBeRotated) {
  const auto rotate = [this](const AttentionShape& shape, int64_t positions) {
    const int64_t rows = shape.batch * shape.seq_len, d = shape.head_dim;
    const std::unique_ptr<Stream> stream = *device_->CreateStream("rotate");
    ops_->RotateQkv(Zeros(kF32, {rows, d}), Zeros(kF32, {rows, d}), Zeros(kF32, {rows, d}), Zeros(kF32, {positions, d}),
                    shape, Zeros(kF32, {rows, 3 * d}), *stream);
    return stream->Synchronize();
  };
  EXPECT_THAT(rotate({.batch = 1, .seq_len = 2, .num_heads = 1, .head_dim = 3}, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rotation: head_dim 3 is odd")));
  EXPECT_THAT(
      rotate({.batch = 1, .seq_len = 3, .num_heads = 1, .head_dim = 4}, 2),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rotation: rotation [2, 4], wanted at least 3 rows")));
}

}  // namespace
}  // namespace fsdp

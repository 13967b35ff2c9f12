// SPDX-License-Identifier: Apache-2.0
//
// Causal attention against float64, within one block of queries and over several, and its independence of later
// positions and of the addresses of its tensors.
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

struct Variant {
  DType dtype;
  AttentionShape shape;
};

class AttentionTest : public testing::TestWithParam<Variant> {
 protected:
  struct Result {
    Tensor out, statistics, grad_qkv;
  };

  int64_t tokens() const { return shape().batch * shape().seq_len; }
  int64_t width() const { return shape().q_width(); }
  int64_t qkv_width() const { return shape().qkv_width(); }
  const AttentionShape& shape() const { return GetParam().shape; }
  DType dtype() const { return GetParam().dtype; }

  Result Run(const Doubles& qkv_values, const Doubles& grad_values, int64_t offset) {
    const Tensor qkv = TestTensor(dtype(), {tokens(), qkv_width()}, qkv_values, offset);
    const Tensor grad_out = TestTensor(dtype(), {tokens(), width()}, grad_values, offset);
    const Result result = {NanTensor(dtype(), {tokens(), width()}, offset),
                           NanTensor(DType::kFloat32, {shape().statistics_numel()}, offset),
                           NanTensor(dtype(), {tokens(), qkv_width()}, offset)};
    ops_->CausalAttention(qkv, shape(), result.out, result.statistics, *stream_);
    ops_->CausalAttentionBackward(grad_out, qkv, result.out, result.statistics, shape(), result.grad_qkv, *stream_);
    EXPECT_OK(stream_->Synchronize());
    return result;
  }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_P(AttentionTest, EqualsFloat64) {
  const Doubles qkv = RandomValues(dtype(), tokens() * qkv_width(), 1);
  const Doubles grad_out = RandomValues(dtype(), tokens() * width(), 2);
  // Float32 sums of some hundred terms, most of which cancel.
  const double tolerance = dtype() == DType::kFloat32 ? 8e-6 : dtype() == DType::kFloat16 ? 1.0 / 512 : 1.0 / 64;
  ForEachInstructionSet([&] {
    const Result result = Run(qkv, grad_out, /*offset=*/0);
    ExpectClose(result.out, ReferenceAttention(qkv, shape()), tolerance);
    // Under kOnline the rounding of out also reaches every gradient of a score, through the row sums.
    const bool online = shape().rounding == AttentionRounding::kOnline;
    ExpectClose(result.grad_qkv, ReferenceAttentionBackward(grad_out, qkv, shape()),
                online ? 2 * tolerance : tolerance);
    if (online) {
      ExpectClose(result.statistics, ReferenceAttentionLogSumExp(qkv, shape()), 1e-5);
    }
  });
}

TEST_P(AttentionTest, BitsDoNotDependOnAlignment) {
  const Doubles qkv = RandomValues(dtype(), tokens() * qkv_width(), 1);
  const Doubles grad_out = RandomValues(dtype(), tokens() * width(), 2);
  const Result aligned = Run(qkv, grad_out, /*offset=*/0);
  for (const int64_t offset : {1, 5, 8}) {
    const Result moved = Run(qkv, grad_out, offset);
    ExpectSameBytes(moved.out, aligned.out);
    ExpectSameBytes(moved.grad_qkv, aligned.grad_qkv);
  }
}

TEST_P(AttentionTest, TheFutureIsNotSeen) {
  const Doubles grad_out = RandomValues(dtype(), tokens() * width(), 2);
  Doubles qkv = RandomValues(dtype(), tokens() * qkv_width(), 1);
  const Doubles before = ValuesOf(Run(qkv, grad_out, 0).out);
  // Another key and value at the last position of each sequence.
  for (int64_t b = 0; b < shape().batch; ++b) {
    const int64_t row = (b * shape().seq_len + shape().seq_len - 1) * qkv_width();
    for (int64_t j = width(); j < qkv_width(); ++j) qkv[row + j] = 2;
  }
  const Doubles after = ValuesOf(Run(qkv, grad_out, 0).out);
  for (int64_t i = 0; i < tokens() * width(); ++i) {
    const bool last = i / width() % shape().seq_len == shape().seq_len - 1;
    if (!last) {
      ASSERT_EQ(before[i], after[i]) << "element " << i;
    }
  }
}

constexpr AttentionShape kOneToken = {.batch = 1, .seq_len = 1, .num_heads = 2, .head_dim = 3, .scale = 0.5f};
constexpr AttentionShape kSmall = {.batch = 3, .seq_len = 7, .num_heads = 3, .head_dim = 5, .scale = 0.44721360f};
constexpr AttentionShape kGroups = {
    .batch = 1, .seq_len = 131, .num_heads = 6, .num_kv_heads = 2, .head_dim = 7, .scale = 0.37796447f};
constexpr AttentionShape kOneKey = {
    .batch = 2, .seq_len = 9, .num_heads = 5, .num_kv_heads = 1, .head_dim = 4, .scale = 0.5f};
constexpr AttentionShape Online(AttentionShape shape) {
  shape.rounding = AttentionRounding::kOnline;
  return shape;
}
// Heads and lengths that fill tiles of 64 and that do not, and groups; 128 queries are two tiles of keys.
constexpr AttentionShape kTiles = {
    .batch = 2, .seq_len = 192, .num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .scale = 0.125f};
constexpr AttentionShape kWide = {
    .batch = 1, .seq_len = 130, .num_heads = 4, .num_kv_heads = 2, .head_dim = 128, .scale = 0.08838835f};
constexpr AttentionShape kPadded = {.batch = 1, .seq_len = 129, .num_heads = 2, .head_dim = 80, .scale = 0.11180340f};
constexpr AttentionShape kWidest = {
    .batch = 1, .seq_len = 65, .num_heads = 2, .num_kv_heads = 1, .head_dim = 256, .scale = 0.0625f};
constexpr AttentionShape kNarrow = {.batch = 2, .seq_len = 70, .num_heads = 3, .head_dim = 8, .scale = 0.35355339f};
constexpr AttentionShape kOneTokenOnly = {.batch = 3, .seq_len = 1, .num_heads = 2, .head_dim = 64, .scale = 0.125f};
constexpr AttentionShape kBlocks = {.batch = 1, .seq_len = 201, .num_heads = 2, .head_dim = 20, .scale = 0.22360680f};
TEST(LongHeadsTest, AHeadThatAGpuHasNoKernelForIsRefusedByName) {
  const std::shared_ptr<Device> device = TestDevice();
  if (device->type() == DeviceType::kCpu) GTEST_SKIP() << "the host has kernels for every head_dim";
  const AttentionShape shape = {.batch = 1, .seq_len = 2, .num_heads = 1, .head_dim = 264, .scale = 1};
  const std::unique_ptr<Stream> stream = *device->CreateStream("test");
  (*LayerOpsFor(*device))
      ->CausalAttention(NanTensor(DType::kFloat32, {2, 792}), shape, NanTensor(DType::kFloat32, {2, 264}),
                        NanTensor(DType::kFloat32, {2, 2}), *stream);
  EXPECT_THAT(stream->Synchronize(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       testing::HasSubstr("attention: head_dim 264: a CUDA device has kernels up to 256")));
}

// Heads of more dimensions than one tile has on a GPU: slightly more than one tile, almost two, two.
constexpr AttentionShape kLong = {.batch = 1, .seq_len = 67, .num_heads = 1, .head_dim = 72, .scale = 0.11785113f};
constexpr AttentionShape kLonger = {
    .batch = 2, .seq_len = 6, .num_heads = 2, .num_kv_heads = 1, .head_dim = 136, .scale = 0.08574929f};
constexpr AttentionShape kOddLong = {.batch = 1, .seq_len = 5, .num_heads = 2, .head_dim = 251, .scale = 0.06311944f};
constexpr AttentionShape kLongest = {.batch = 1, .seq_len = 65, .num_heads = 1, .head_dim = 256, .scale = 0.0625f};

INSTANTIATE_TEST_SUITE_P(LongHeads, AttentionTest,
                         testing::Values(Variant{DType::kFloat32, kLong}, Variant{DType::kFloat32, kLonger},
                                         Variant{DType::kFloat32, kOddLong}, Variant{DType::kFloat32, kLongest},
                                         Variant{DType::kBFloat16, kLong}, Variant{DType::kBFloat16, kLonger},
                                         Variant{DType::kBFloat16, kOddLong}, Variant{DType::kBFloat16, kLongest},
                                         Variant{DType::kFloat16, kOddLong}, Variant{DType::kFloat16, kLongest}),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.dtype)) + "_" +
                                  std::to_string(info.param.shape.head_dim);
                         });

std::vector<Variant> OnlineVariants() {
  std::vector<Variant> variants = {{DType::kFloat32, Online(kOneToken)}, {DType::kFloat32, Online(kGroups)}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const AttentionShape& shape :
         {kOneToken, kSmall, kGroups, kBlocks, kOneTokenOnly, kNarrow, kTiles, kPadded, kWide, kWidest}) {
      variants.push_back({dtype, Online(shape)});
    }
  }
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Online, AttentionTest, testing::ValuesIn(OnlineVariants()), [](const auto& info) {
  return std::string(DTypeName(info.param.dtype)) + "_" + std::to_string(info.param.shape.seq_len) + "_" +
         std::to_string(info.param.shape.head_dim);
});

INSTANTIATE_TEST_SUITE_P(Variants, AttentionTest,
                         testing::Values(Variant{DType::kFloat32, kOneToken}, Variant{DType::kFloat32, kSmall},
                                         Variant{DType::kFloat32, kBlocks}, Variant{DType::kFloat32, kGroups},
                                         Variant{DType::kFloat32, kOneKey}, Variant{DType::kBFloat16, kOneToken},
                                         Variant{DType::kBFloat16, kSmall}, Variant{DType::kBFloat16, kBlocks},
                                         Variant{DType::kBFloat16, kGroups}, Variant{DType::kBFloat16, kOneKey},
                                         Variant{DType::kFloat16, kOneToken}, Variant{DType::kFloat16, kSmall},
                                         Variant{DType::kFloat16, kBlocks}, Variant{DType::kFloat16, kGroups},
                                         Variant{DType::kFloat16, kOneKey}),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.dtype)) + "_" +
                                  std::to_string(info.param.shape.seq_len);
                         });

}  // namespace
}  // namespace fsdp

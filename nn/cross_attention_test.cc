// SPDX-License-Identifier: Apache-2.0
//
// Cross attention against plain loops in float64, and its gradients against their finite differences.
#include "fsdp/nn/cross_attention.h"

#include <algorithm>
#include <cmath>
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

using testing::HasSubstr;

struct Operands {
  Doubles q, k, v;
  std::vector<int32_t> mask;  // empty: none
};

Doubles Reference(const Operands& o, const CrossAttentionShape& s) {
  Doubles out(s.batch * s.q_len * s.q_width(), 0.0);
  for (int64_t row = 0; row < s.batch * s.q_len; ++row) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const int64_t first = row / s.q_len * s.kv_len, q = row * s.q_width() + h * s.head_dim;
      const auto key = [&](int64_t at) { return (first + at) * s.kv_width() + h / s.group() * s.head_dim; };
      Doubles p(s.kv_len, 0.0);
      double sum = 0;
      for (int64_t at = 0; at < s.kv_len; ++at) {
        if (!o.mask.empty() && o.mask[first + at] == 0) continue;
        double score = 0;
        for (int64_t d = 0; d < s.head_dim; ++d) score += o.q[q + d] * o.k[key(at) + d];
        sum += p[at] = std::exp(s.scale * score);
      }
      for (int64_t at = 0; at < s.kv_len && sum > 0; ++at) {
        for (int64_t d = 0; d < s.head_dim; ++d) out[q + d] += p[at] / sum * o.v[key(at) + d];
      }
    }
  }
  return out;
}

// The derivative of sum(grad_out * out) by each element of `values`, which is a part of `o`.
Doubles Differences(Operands& o, Doubles& values, const CrossAttentionShape& shape, const Doubles& grad_out) {
  constexpr double kStep = 1e-5;
  const auto loss = [&] {
    const Doubles out = Reference(o, shape);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += grad_out[i] * out[i];
    return sum;
  };
  Doubles differences(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    values[i] = value + kStep;
    const double above = loss();
    values[i] = value - kStep;
    differences[i] = (above - loss()) / (2 * kStep);
    values[i] = value;
  }
  return differences;
}

class CrossAttentionTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const std::vector<DType> dtypes = ActivationDTypes();
    if (std::find(dtypes.begin(), dtypes.end(), GetParam()) == dtypes.end()) GTEST_SKIP() << "not on this device";
  }
  double tolerance() const { return GetParam() == DType::kFloat32 ? 5e-6 : 0.02; }
  Tensor Place(const Doubles& values) const {
    return TestTensor(GetParam(), {static_cast<int64_t>(values.size())}, values, 1);
  }
  Tensor Output(size_t numel) const { return NanTensor(GetParam(), {static_cast<int64_t>(numel)}, 3); }

  Operands Random(const CrossAttentionShape& s) const {
    return {RandomValues(GetParam(), s.batch * s.q_len * s.q_width(), 1),
            RandomValues(GetParam(), s.batch * s.kv_len * s.kv_width(), 2),
            RandomValues(GetParam(), s.batch * s.kv_len * s.kv_width(), 3),
            {}};
  }
  CrossAttentionOperands PlaceAll(const Operands& o, const CrossAttentionShape& s) const {
    return {Place(o.q), Place(o.k), Place(o.v), o.mask.empty() ? Tensor() : TokenTensor(o.mask, {s.batch, s.kv_len})};
  }

  void ExpectReference(Operands o, const CrossAttentionShape& s) {
    const CrossAttentionOperands placed = PlaceAll(o, s);
    const Tensor out = Output(o.q.size());
    const Tensor statistics = NanTensor(DType::kFloat32, {s.batch * s.num_heads * s.q_len, 2}, 1);
    const Doubles grad_out = RandomValues(GetParam(), o.q.size(), 4);
    const CrossAttentionGrads grads = {Output(o.q.size()), Output(o.k.size()), Output(o.v.size())};
    ops_->CrossAttention(placed, s, out, statistics, *stream_);
    ops_->CrossAttentionBackward(Place(grad_out), placed, statistics, s, grads, *stream_);
    ASSERT_OK(stream_->Synchronize());
    ExpectClose(out, Reference(o, s), tolerance());
    ExpectClose(grads.q, Differences(o, o.q, s, grad_out), tolerance());
    ExpectClose(grads.k, Differences(o, o.k, s, grad_out), tolerance());
    ExpectClose(grads.v, Differences(o, o.v, s, grad_out), tolerance());
  }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

INSTANTIATE_TEST_SUITE_P(DTypes, CrossAttentionTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

TEST_P(CrossAttentionTest, SeesAllKeysWithoutAMask) {
  const CrossAttentionShape shape = {.batch = 2, .q_len = 3, .kv_len = 5, .num_heads = 2, .head_dim = 3, .scale = 0.6f};
  ExpectReference(Random(shape), shape);
}

TEST_P(CrossAttentionTest, AGroupOfHeadsReadsOneHeadOfKeys) {
  const CrossAttentionShape shape = {
      .batch = 1, .q_len = 4, .kv_len = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 2, .scale = 0.7f};
  ExpectReference(Random(shape), shape);
}

TEST_P(CrossAttentionTest, MaskedKeysAreNotSeenAndAQueryWithoutKeysGetsZero) {
  const CrossAttentionShape shape = {.batch = 3, .q_len = 2, .kv_len = 4, .num_heads = 2, .head_dim = 2, .scale = 0.7f};
  Operands operands = Random(shape);
  operands.mask = {1, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1};
  ExpectReference(operands, shape);
}

TEST_P(CrossAttentionTest, MoreQueriesThanABlockHas) {
  const CrossAttentionShape shape = {
      .batch = 1, .q_len = 131, .kv_len = 2, .num_heads = 1, .head_dim = 2, .scale = 0.7f};
  ExpectReference(Random(shape), shape);
}

TEST_P(CrossAttentionTest, OperandsThatDoNotFitAreNamed) {
  const CrossAttentionShape shape = {.batch = 1, .q_len = 2, .kv_len = 3, .num_heads = 1, .head_dim = 2};
  Operands operands = Random(shape);
  operands.k.pop_back();
  ops_->CrossAttention(PlaceAll(operands, shape), shape, Output(4), NanTensor(DType::kFloat32, {2, 2}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cross attention: k [5], wanted 6 elements")));
}

class CrossAttentionLayerTest : public testing::Test {
 protected:
  // C = M = 4 in two heads, with identity projections.
  void MakeIdentity(CrossAttention& layer) {
    for (const auto& [name, parameter] : layer.NamedParameters()) {
      Doubles values(parameter->shape.numel(), 0.0);
      for (int i = 0; i < 4 && parameter->shape.rank() == 2; ++i) values[5 * i] = 1;
      parameter->data = TestTensor(DType::kFloat32, parameter->shape, values);
      parameter->grad = TestTensor(DType::kFloat32, parameter->shape, Doubles(values.size(), 0.0));
    }
  }

  absl::Status Forward(const CrossAttentionOptions& options, const TensorList& inputs) {
    CrossAttention layer(options);
    Tape tape(*stream_, *ops_);
    return layer.Forward(inputs, tape).status();
  }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_F(CrossAttentionLayerTest, AttendsFromXToMemoryAndBackToBoth) {
  CrossAttention layer({.embed_dim = 4, .num_heads = 2});
  EXPECT_EQ(layer.NamedParameters()[0].first, "q_proj.weight");
  EXPECT_EQ(layer.NamedParameters().size(), 8u);
  MakeIdentity(layer);
  const CrossAttentionShape shape = {
      .batch = 2, .q_len = 3, .kv_len = 5, .num_heads = 2, .head_dim = 2, .scale = 1 / std::sqrt(2.0f)};
  Operands o = {
      RandomValues(DType::kFloat32, 24, 1), RandomValues(DType::kFloat32, 40, 2), {}, {1, 0, 1, 1, 1, 1, 1, 1, 0, 1}};
  o.v = o.k;
  Tape tape(*stream_, *ops_);
  const absl::StatusOr<TensorList> out =
      layer.Forward({TestTensor(DType::kFloat32, {2, 3, 4}, o.q), TestTensor(DType::kFloat32, {2, 5, 4}, o.k),
                     TokenTensor(o.mask, {2, 5})},
                    tape);
  ASSERT_OK(out);
  const Doubles grad_out = RandomValues(DType::kFloat32, 24, 3);
  const absl::StatusOr<TensorList> grads =
      layer.Backward(TensorList{TestTensor(DType::kFloat32, {2, 3, 4}, grad_out)}, tape);
  ASSERT_OK(grads);
  ASSERT_OK(stream_->Synchronize());
  ExpectClose((*out)[0], Reference(o, shape), 1e-5);
  ExpectClose((*grads)[0], Differences(o, o.q, shape, grad_out), 1e-5);
  Doubles memory = Differences(o, o.k, shape, grad_out);
  const Doubles by_v = Differences(o, o.v, shape, grad_out);
  for (size_t i = 0; i < memory.size(); ++i) memory[i] += by_v[i];
  ExpectClose((*grads)[1], memory, 1e-5);
  EXPECT_FALSE((*grads)[2].defined());
}

TEST_F(CrossAttentionLayerTest, OptionsAndInputsThatAreWrongAreNamed) {
  const Tensor x = TestTensor(DType::kFloat32, {1, 2, 4}, Doubles(8, 1));
  const Tensor memory = TestTensor(DType::kFloat32, {1, 3, 6}, Doubles(18, 1));
  EXPECT_THAT(Forward({.embed_dim = 4, .num_heads = 3}, {x, x, Tensor()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("embed_dim 4 in 3 heads")));
  EXPECT_THAT(Forward({.embed_dim = 4, .num_heads = 2}, {x, memory, Tensor()}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("x [1, 2, 4] and memory [1, 3, 6] != wanted [B, T, 4] and [B, S, 4]")));
  EXPECT_THAT(Forward({.embed_dim = 4, .num_heads = 2}, {x, x}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 inputs, expected x, memory and key_mask")));
  EXPECT_THAT(Forward({.embed_dim = 4, .memory_dim = 6, .num_heads = 2}, {x, memory, TokenTensor({1, 1}, {1, 2})}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("key_mask [1, 2] != wanted [1, 3]")));
}

}  // namespace
}  // namespace fsdp

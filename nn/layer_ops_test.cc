// SPDX-License-Identifier: Apache-2.0
//
// A device's kernels against float64: every dtype, odd sizes, memory at odd offsets, outputs full of NaN at first, and,
// on the host, each instruction set.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

struct Variant {
  DType dtype;
  int64_t offset;  // of every tensor, from a cache line
};

class LayerOpsTest : public testing::TestWithParam<Variant> {
 protected:
  DType dtype() const { return GetParam().dtype; }
  double tolerance() const {
    if (dtype() == DType::kFloat16) return 1.0 / 2048;
    return dtype() == DType::kBFloat16 ? 1.0 / 256 : 2e-6;
  }

  Doubles Random(int64_t n, int seed) const { return RandomValues(dtype(), n, seed); }
  Tensor Place(const Shape& shape, const Doubles& values) const {
    return TestTensor(dtype(), shape, values, GetParam().offset);
  }
  Tensor Output(const Shape& shape) const { return NanTensor(dtype(), shape, GetParam().offset); }
  Tensor RowStatistics(const Shape& shape) const { return NanTensor(DType::kFloat64, shape, GetParam().offset); }
  Tensor Statistics(const Shape& shape) const { return NanTensor(DType::kFloat32, shape, GetParam().offset); }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

Doubles Sum(Doubles a, const Doubles& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST_P(LayerOpsTest, EmbeddingCopiesRows) {
  const std::vector<int32_t> tokens = {4, 0, 4, 2, 1, 4};
  const Doubles table = Random(5 * 19, 1);
  const Tensor out = Output({2, 3, 19});
  ops_->Embedding(TokenTensor(tokens, {2, 3}), Place({5, 19}, table), out, *stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(ValuesOf(out), ReferenceEmbedding(tokens, table, 19));
}

TEST_P(LayerOpsTest, EmbeddingBackwardAdds) {
  const std::vector<int32_t> tokens = {4, 0, 4, 2, 1, 4};
  ForEachInstructionSet([&] {
    const Doubles grad_out = Random(6 * 19, 1), before = Random(5 * 19, 2);
    const Tensor grad_table = Place({5, 19}, before);
    ops_->EmbeddingBackward(TokenTensor(tokens, {2, 3}), Place({2, 3, 19}, grad_out), std::nullopt, grad_table,
                            *stream_);
    ASSERT_OK(stream_->Synchronize());
    ExpectClose(grad_table, Sum(before, ReferenceEmbeddingBackward(tokens, grad_out, 5, 19)), tolerance());
  });
}

TEST_P(LayerOpsTest, EmbeddingBackwardLeavesThePaddingRow) {
  const std::vector<int32_t> tokens = {4, 0, 4, 2, 1, 4};
  const Doubles grad_out = Random(6 * 19, 1), before = Random(5 * 19, 2);
  const Tensor grad_table = Place({5, 19}, before);
  ops_->EmbeddingBackward(TokenTensor(tokens, {2, 3}), Place({2, 3, 19}, grad_out), 4, grad_table, *stream_);
  ASSERT_OK(stream_->Synchronize());
  Doubles expected = Sum(before, ReferenceEmbeddingBackward(tokens, grad_out, 5, 19));
  std::copy_n(before.begin() + 4 * 19, 19, expected.begin() + 4 * 19);
  ExpectClose(grad_table, expected, tolerance());
}

// Segments of one row, of several, and of more than a run, over several tiles of the sort; sums of small integers are
// exact in every dtype and order.
TEST_P(LayerOpsTest, EmbeddingBackwardOfManyTokensAddsEachRowOnce) {
  std::vector<int32_t> tokens(5000);
  Doubles grad_out(5000 * 9);
  for (size_t n = 0; n < tokens.size(); ++n) tokens[n] = static_cast<int32_t>(n % 3 == 0 ? 7 : n * n % 331);
  for (size_t i = 0; i < grad_out.size(); ++i) grad_out[i] = static_cast<double>(i * i * 31 % 7 % 3) - 1;
  const Tensor grad_table = Place({400, 9}, Doubles(400 * 9, 1.0));
  ops_->EmbeddingBackward(TokenTensor(tokens, {5000}), Place({5000, 9}, grad_out), 5, grad_table, *stream_);
  ASSERT_OK(stream_->Synchronize());
  Doubles expected = Sum(Doubles(400 * 9, 1.0), ReferenceEmbeddingBackward(tokens, grad_out, 400, 9));
  std::fill_n(expected.begin() + 5 * 9, 9, 1.0);
  EXPECT_EQ(ValuesOf(grad_table), ValuesOf(Place({400, 9}, expected)));
}

// 256 + 1 is 256 in bfloat16: without runs of rows the sum would stay there.
TEST_P(LayerOpsTest, EmbeddingBackwardSumsInRuns) {
  const Tensor grad_table = Place({2, 8}, Doubles(16, 0.0));
  ops_->EmbeddingBackward(TokenTensor(std::vector<int32_t>(300, 1), {300}), Place({300, 8}, Doubles(2400, 1.0)),
                          std::nullopt, grad_table, *stream_);
  ASSERT_OK(stream_->Synchronize());
  Doubles expected(16, 0.0);
  std::fill_n(expected.begin() + 8, 8, 300.0);
  EXPECT_EQ(ValuesOf(grad_table), expected);
}

// As PyTorch adds on a CPU: each sum is rounded. In bfloat16 256 + 1 is 256, twice.
TEST_P(LayerOpsTest, EmbeddingBackwardRoundsEachSumOfARun) {
  const Tensor grad_table = Place({1, 1}, {0});
  ops_->EmbeddingBackward(TokenTensor({0, 0, 0}, {3}), Place({3, 1}, {256, 1, 1}), std::nullopt, grad_table, *stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(ValuesOf(grad_table), Doubles({dtype() == DType::kBFloat16 ? 256.0 : 258.0}));
}

TEST_P(LayerOpsTest, MatmulAddsBias) {
  const Doubles a = Random(6 * 11, 1), b = Random(11 * 13, 2), bias = Random(13, 3);
  const Tensor c = Output({6, 13});
  ops_->Matmul(Place({6, 11}, a), Place({11, 13}, b), Place({13}, bias), c, {}, *stream_);
  ASSERT_OK(stream_->Synchronize());
  Doubles expected = ReferenceMatmul(a, b, {6, 13, 11}, {});
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 13];
  ExpectClose(c, expected, tolerance());
}

// As the gradient of a weight over chunks of rows: sums that float32 has and the operands' dtype does not.
TEST_P(LayerOpsTest, ProductsAndSumsIntoFloat32AreNotRoundedToTheDtypeOfTheirOperands) {
  const Doubles a = Random(11 * 6, 1), b = Random(11 * 13, 2);
  const Tensor c = NanTensor(DType::kFloat32, {6, 13}, GetParam().offset);
  ops_->Matmul(Place({11, 6}, a), Place({11, 13}, b), Tensor(), c, {.transpose_a = true}, *stream_);
  ops_->Matmul(Place({11, 6}, a), Place({11, 13}, b), Tensor(), c, {.transpose_a = true, .accumulate = true}, *stream_);
  const Tensor sums = NanTensor(DType::kFloat32, {13}, GetParam().offset);
  ops_->BiasBackward(Place({11, 13}, b), {sums, /*accumulates=*/false}, *stream_);
  ops_->BiasBackward(Place({11, 13}, b), sums, *stream_);
  ASSERT_OK(stream_->Synchronize());
  const Doubles product = ReferenceMatmul(a, b, {6, 13, 11}, {.transpose_a = true});
  ExpectClose(c, Sum(product, product), 2e-6);
  const Doubles column_sums = ReferenceColumnSums(b, 13);
  ExpectClose(sums, Sum(column_sums, column_sums), 2e-6);
}

TEST_P(LayerOpsTest, BiasBackwardAddsColumnSums) {
  ForEachInstructionSet([&] {
    const Doubles grad_out = Random(100 * 37, 1), before = Random(37, 2);
    const Tensor grad_bias = Place({37}, before);
    ops_->BiasBackward(Place({100, 37}, grad_out), grad_bias, *stream_);
    ASSERT_OK(stream_->Synchronize());
    ExpectClose(grad_bias, Sum(before, ReferenceColumnSums(grad_out, 37)), tolerance());
  });
}

// Several runs of rows, and the last not full; sums of small integers are exact in every dtype and order.
TEST_P(LayerOpsTest, BiasBackwardAddsManyRows) {
  for (const int64_t columns : {5, 16}) {
    Doubles grad_out(8707 * columns);
    for (size_t i = 0; i < grad_out.size(); ++i) grad_out[i] = static_cast<double>(i * i * 31 % 7 % 3) - 1;
    const Doubles before(columns, 2.0);
    const Tensor grad_bias = Place({columns}, before);
    ops_->BiasBackward(Place({8707, columns}, grad_out), grad_bias, *stream_);
    ASSERT_OK(stream_->Synchronize());
    EXPECT_EQ(ValuesOf(grad_bias), ValuesOf(Place({columns}, Sum(before, ReferenceColumnSums(grad_out, columns)))));
  }
}

// Also of no rows.
TEST_P(LayerOpsTest, BiasBackwardThatReplacesHasTheBitsOfASumWithZero) {
  ForEachInstructionSet([&] {
    for (const int64_t rows : {100, 0}) {
      const Tensor grad_out = Place({rows, 37}, Random(rows * 37, 1));
      const Tensor added = Place({37}, Doubles(37, 0.0)), replaced = Output({37});
      ops_->BiasBackward(grad_out, added, *stream_);
      ops_->BiasBackward(grad_out, {replaced, /*accumulates=*/false}, *stream_);
      ASSERT_OK(stream_->Synchronize());
      ExpectSameBytes(replaced, added);
    }
  });
}

TEST_P(LayerOpsTest, AddMayBeInPlace) {
  ForEachInstructionSet([&] {
    const Doubles a = Random(75, 1), b = Random(75, 2);
    const Tensor x = Place({75}, a), y = Place({75}, b), out = Output({75});
    ops_->Add(x, y, out, *stream_);
    ops_->Add(x, y, x, *stream_);
    ASSERT_OK(stream_->Synchronize());
    ExpectClose(out, Sum(a, b), tolerance());
    ExpectSameBytes(x, out);
  });
}

TEST_P(LayerOpsTest, LayerNorm) {
  ForEachInstructionSet([&] {
    // Far from 0, so that a one-pass variance would cancel.
    Doubles x = Random(7 * 45, 1);
    for (double& value : x) value = 64 + value;
    x = ValuesOf(Place({7 * 45}, x));
    const Doubles weight = Random(45, 2), bias = Random(45, 3);
    const Tensor out = Output({7, 45}), mean = RowStatistics({7}), rstd = RowStatistics({7});
    ops_->LayerNorm(Place({7, 45}, x), Place({45}, weight), Place({45}, bias), 1e-5f, out, mean, rstd, *stream_);
    ASSERT_OK(stream_->Synchronize());
    ExpectClose(out, ReferenceLayerNorm(x, weight, bias, 1e-5f), 10 * tolerance());
  });
}

TEST_P(LayerOpsTest, LayerNormBackwardAddsToParameters) {
  ForEachInstructionSet([&] {
    const Doubles x = Random(70 * 45, 1), weight = Random(45, 2), bias = Random(45, 3), grad_out = Random(70 * 45, 4);
    const Doubles before = Random(45, 5);
    const Tensor mean = RowStatistics({70}), rstd = RowStatistics({70}), grad_x = Output({70, 45});
    const Tensor grad_weight = Place({45}, before), grad_bias = Place({45}, before);
    ops_->LayerNorm(Place({70, 45}, x), Place({45}, weight), Place({45}, bias), 1e-5f, Output({70, 45}), mean, rstd,
                    *stream_);
    ops_->LayerNormBackward(Place({70, 45}, grad_out), Place({70, 45}, x), Place({45}, weight), mean, rstd, grad_x,
                            grad_weight, grad_bias, *stream_);
    ASSERT_OK(stream_->Synchronize());
    const LayerNormGrads expected = ReferenceLayerNormBackward(grad_out, x, weight, 1e-5f);
    ExpectClose(grad_x, expected.x, 2 * tolerance());
    ExpectClose(grad_weight, Sum(before, expected.weight), tolerance());
    ExpectClose(grad_bias, Sum(before, expected.bias), tolerance());
  });
}

TEST_P(LayerOpsTest, RmsNorm) {
  ForEachInstructionSet([&] {
    const Doubles x = Random(7 * 45, 1), weight = Random(45, 2);
    const Tensor out = Output({7, 45}), rstd = RowStatistics({7});
    ops_->RmsNorm(Place({7, 45}, x), Place({45}, weight), 1e-2f, out, rstd, *stream_);
    ASSERT_OK(stream_->Synchronize());
    ExpectClose(out, ReferenceRmsNorm(x, weight, 1e-2f), 2 * tolerance());
  });
}

TEST_P(LayerOpsTest, RmsNormBackwardAddsToItsWeight) {
  ForEachInstructionSet([&] {
    const Doubles x = Random(70 * 45, 1), weight = Random(45, 2), grad_out = Random(70 * 45, 4), before = Random(45, 5);
    const Tensor rstd = RowStatistics({70}), grad_x = Output({70, 45}), grad_weight = Place({45}, before);
    ops_->RmsNorm(Place({70, 45}, x), Place({45}, weight), 1e-2f, Output({70, 45}), rstd, *stream_);
    ops_->RmsNormBackward(Place({70, 45}, grad_out), Place({70, 45}, x), Place({45}, weight), rstd, grad_x, grad_weight,
                          *stream_);
    ASSERT_OK(stream_->Synchronize());
    const RmsNormGrads expected = ReferenceRmsNormBackward(grad_out, x, weight, 1e-2f);
    ExpectClose(grad_x, expected.x, 2 * tolerance());
    ExpectClose(grad_weight, Sum(before, expected.weight), 2 * tolerance());
  });
}

// As Hugging Face does: the rounded norm is multiplied by the weight, so with weights of 1 the output is the norm, bit
// for bit.
TEST_P(LayerOpsTest, RmsNormRoundsBeforeTheWeight) {
  if (dtype() != DType::kBFloat16) GTEST_SKIP() << "its numbers are for bfloat16";
  const Doubles x = Random(64 * 3, 1), weight = Random(3, 2);
  const Tensor out = Output({64, 3}), plain = Output({64, 3}), rstd = RowStatistics({64});
  ops_->RmsNorm(Place({64, 3}, x), Place({3}, {1, 1, 1}), 1e-6f, plain, rstd, *stream_);
  ops_->RmsNorm(Place({64, 3}, x), Place({3}, weight), 1e-6f, out, rstd, *stream_);
  ASSERT_OK(stream_->Synchronize());
  Doubles expected = ValuesOf(plain);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] *= weight[i % 3];
  ExpectSameBytes(out, Place({64, 3}, expected));
}

TEST_P(LayerOpsTest, GatedActivationsAndTheirBackward) {
  for (const ActivationKind kind :
       {ActivationKind::kGeluTanh, ActivationKind::kGeluErf, ActivationKind::kRelu, ActivationKind::kSilu}) {
    SCOPED_TRACE(static_cast<int>(kind));
    ForEachInstructionSet([&] {
      const Doubles gate = Random(339, 1), up = Random(339, 2), grad_out = Random(339, 3);
      const Tensor out = Output({339}), grad_gate = Output({339}), grad_up = Output({339});
      ops_->ActivateGated(kind, Place({339}, gate), Place({339}, up), out, *stream_);
      ops_->ActivateGatedBackward(kind, Place({339}, grad_out), Place({339}, gate), Place({339}, up), grad_gate,
                                  grad_up, *stream_);
      ASSERT_OK(stream_->Synchronize());
      const GatedGrads expected = ReferenceActivateGatedBackward(kind, grad_out, gate, up);
      ExpectClose(out, ReferenceActivateGated(kind, gate, up), 2 * tolerance());
      ExpectClose(grad_gate, expected.gate, 2 * tolerance());
      ExpectClose(grad_up, expected.up, 2 * tolerance());
    });
  }
}

TEST_P(LayerOpsTest, RotationPutsQueriesKeysAndValuesSideBySide) {
  const AttentionShape shape = {.batch = 2, .seq_len = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 38};
  ForEachInstructionSet([&] {
    const QkvParts parts = {Random(6 * 152, 1), Random(6 * 76, 2), Random(6 * 76, 3)};
    const Doubles rotation = Random(5 * 38, 4), grad = Random(6 * 304, 5);  // a table for more positions
    const Tensor qkv = Output({6, 304}), q = Output({6, 152}), k = Output({6, 76}), v = Output({6, 76});
    ops_->RotateQkv(Place({6, 152}, parts.q), Place({6, 76}, parts.k), Place({6, 76}, parts.v),
                    Place({5, 38}, rotation), shape, qkv, *stream_);
    ops_->RotateQkvBackward(Place({6, 304}, grad), Place({5, 38}, rotation), shape, q, k, v, *stream_);
    ASSERT_OK(stream_->Synchronize());
    const QkvParts expected = ReferenceRotateQkvBackward(grad, rotation, shape);
    ExpectClose(qkv, ReferenceRotateQkv(parts, rotation, shape), 3 * tolerance());
    ExpectClose(q, expected.q, 3 * tolerance());
    ExpectClose(k, expected.k, 3 * tolerance());
    EXPECT_EQ(ValuesOf(v), expected.v);
  });
}

TEST_P(LayerOpsTest, ActivationsAndTheirBackward) {
  for (const ActivationKind kind :
       {ActivationKind::kGeluTanh, ActivationKind::kGeluErf, ActivationKind::kRelu, ActivationKind::kSilu}) {
    SCOPED_TRACE(static_cast<int>(kind));
    ForEachInstructionSet([&] {
      Doubles x = Random(333, 1);
      for (double& value : x) value *= 3;
      x.insert(x.end(), {0, -0.0, 30, -30, 300, -300});
      x = ValuesOf(Place({339}, x));
      const Doubles grad_out = Random(339, 2);
      const Tensor out = Output({339}), grad_x = Output({339});
      ops_->Activate(kind, Place({339}, x), out, *stream_);
      ops_->ActivateBackward(kind, Place({339}, grad_out), Place({339}, x), grad_x, *stream_);
      ASSERT_OK(stream_->Synchronize());
      ExpectClose(out, ReferenceActivate(kind, x), tolerance());
      ExpectClose(grad_x, ReferenceActivateBackward(kind, grad_out, x), tolerance());
    });
  }
}

TEST_P(LayerOpsTest, CrossEntropy) {
  ForEachInstructionSet([&] {
    const std::vector<int32_t> targets = {0, 50, 17, 3, 3};
    Doubles values = Random(5 * 51, 1);
    for (double& value : values) value *= 8;
    const Doubles logits = ValuesOf(Place({5 * 51}, values));
    const Tensor loss = Statistics({1}), statistics = Statistics({5, 2}), grad = Place({5, 51}, logits);
    ops_->CrossEntropy(grad, TokenTensor(targets, {5}), loss, statistics, *stream_);
    ops_->CrossEntropyBackward(grad, TokenTensor(targets, {5}), statistics, 0.25f, grad, *stream_);  // in place
    ASSERT_OK(stream_->Synchronize());
    // The loss is float32 whatever the logits are.
    EXPECT_NEAR(ValuesOf(loss)[0], ReferenceCrossEntropy(logits, targets),
                2e-7 * ReferenceCrossEntropy(logits, targets));
    ExpectClose(grad, ReferenceCrossEntropyBackward(logits, targets, 0.25), tolerance());
  });
}

TEST_P(LayerOpsTest, NanReachesTheLossAndEveryOutput) {
  const Tensor nan = Output({4, 21});
  for (const ActivationKind kind : {ActivationKind::kGeluTanh, ActivationKind::kGeluErf, ActivationKind::kSilu}) {
    const Tensor out = Place({84}, Doubles(84, 1.0));
    ops_->Activate(kind, nan, out, *stream_);
    ASSERT_OK(stream_->Synchronize());
    for (const double value : ValuesOf(out)) EXPECT_TRUE(std::isnan(value));
  }
  for (const int64_t place : {0, 5, 20}) {
    ForEachInstructionSet([&] {
      Doubles logits(4 * 21, 1.0);
      logits[2 * 21 + place] = std::numeric_limits<double>::quiet_NaN();
      const Tensor loss = Place({1}, {0}), out = TestTensor(DType::kFloat32, {1}, {0});
      ops_->CrossEntropy(Place({4, 21}, logits), TokenTensor({1, 1, 1, 1}, {4}), out, Statistics({4, 2}), *stream_);
      ASSERT_OK(stream_->Synchronize());
      EXPECT_TRUE(std::isnan(ValuesOf(out)[0])) << "at " << place;
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, LayerOpsTest,
                         testing::Values(Variant{DType::kFloat32, 0}, Variant{DType::kFloat32, 3},
                                         Variant{DType::kBFloat16, 0}, Variant{DType::kBFloat16, 1},
                                         Variant{DType::kFloat16, 0}, Variant{DType::kFloat16, 1}),
                         [](const auto& info) {
                           return std::string(DTypeName(info.param.dtype)) + "_" + std::to_string(info.param.offset);
                         });

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Checks the reference first: each backward against central differences of its forward, in float64.
#include "fsdp/nn/ops/reference_ops.h"

#include <cmath>
#include <functional>
#include <random>

#include "gtest/gtest.h"

namespace fsdp {
namespace {

Doubles Random(size_t n, int seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Doubles values(n);
  for (double& value : values) value = normal(generator);
  return values;
}

double Dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// d f(x) / d x[i] for every i, by central differences, against `grad`.
void ExpectIsGradient(const std::function<double(const Doubles&)>& f, const Doubles& x, const Doubles& grad) {
  ASSERT_EQ(x.size(), grad.size());
  constexpr double kStep = 1e-5;  // truncation and rounding errors are both near 1e-10 here
  for (size_t i = 0; i < x.size(); ++i) {
    Doubles up = x, down = x;
    up[i] += kStep;
    down[i] -= kStep;
    EXPECT_NEAR((f(up) - f(down)) / (2 * kStep), grad[i], 1e-8 * (1 + std::abs(grad[i]))) << "element " << i;
  }
}

TEST(ReferenceOpsTest, MatmulBackwardIsTwoMatmuls) {
  const MatmulSizes sizes = {3, 5, 4};
  const Doubles a = Random(12, 1), b = Random(20, 2), g = Random(15, 3);
  const auto loss_of_a = [&](const Doubles& x) { return Dot(ReferenceMatmul(x, b, sizes, {}), g); };
  const auto loss_of_b = [&](const Doubles& x) { return Dot(ReferenceMatmul(a, x, sizes, {}), g); };
  ExpectIsGradient(loss_of_a, a, ReferenceMatmul(g, b, {3, 4, 5}, {.transpose_b = true}));
  ExpectIsGradient(loss_of_b, b, ReferenceMatmul(a, g, {4, 5, 3}, {.transpose_a = true}));
}

TEST(ReferenceOpsTest, ActivationBackward) {
  const Doubles x = Random(40, 4), g = Random(40, 5);
  for (const ActivationKind kind :
       {ActivationKind::kGeluTanh, ActivationKind::kGeluErf, ActivationKind::kRelu, ActivationKind::kSilu}) {
    ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceActivate(kind, v), g); }, x,
                     ReferenceActivateBackward(kind, g, x));
  }
}

TEST(ReferenceOpsTest, LayerNormBackward) {
  constexpr double kEps = 1e-5;
  const Doubles x = Random(21, 6), weight = Random(7, 7), bias = Random(7, 8), g = Random(21, 9);
  const LayerNormGrads grads = ReferenceLayerNormBackward(g, x, weight, kEps);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceLayerNorm(v, weight, bias, kEps), g); }, x, grads.x);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceLayerNorm(x, v, bias, kEps), g); }, weight,
                   grads.weight);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceLayerNorm(x, weight, v, kEps), g); }, bias, grads.bias);
}

TEST(ReferenceOpsTest, RmsNormBackward) {
  constexpr double kEps = 1e-2;
  const Doubles x = Random(21, 6), weight = Random(7, 7), g = Random(21, 9);
  const RmsNormGrads grads = ReferenceRmsNormBackward(g, x, weight, kEps);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceRmsNorm(v, weight, kEps), g); }, x, grads.x);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceRmsNorm(x, v, kEps), g); }, weight, grads.weight);
}

TEST(ReferenceOpsTest, GatedActivationBackward) {
  const Doubles gate = Random(20, 4), up = Random(20, 5), g = Random(20, 6);
  for (const ActivationKind kind : {ActivationKind::kGeluErf, ActivationKind::kSilu}) {
    const GatedGrads grads = ReferenceActivateGatedBackward(kind, g, gate, up);
    ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceActivateGated(kind, v, up), g); }, gate, grads.gate);
    ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceActivateGated(kind, gate, v), g); }, up, grads.up);
  }
}

TEST(ReferenceOpsTest, RotationBackward) {
  const AttentionShape shape = {.batch = 2, .seq_len = 3, .num_heads = 4, .num_kv_heads = 2, .head_dim = 6};
  const QkvParts parts = {Random(6 * 24, 1), Random(6 * 12, 2), Random(6 * 12, 3)};
  const Doubles rotation = Random(3 * 6, 4), g = Random(6 * 48, 5);
  const auto loss = [&](const QkvParts& p) { return Dot(ReferenceRotateQkv(p, rotation, shape), g); };
  const QkvParts grads = ReferenceRotateQkvBackward(g, rotation, shape);
  ExpectIsGradient([&](const Doubles& v) { return loss({v, parts.k, parts.v}); }, parts.q, grads.q);
  ExpectIsGradient([&](const Doubles& v) { return loss({parts.q, v, parts.v}); }, parts.k, grads.k);
  ExpectIsGradient([&](const Doubles& v) { return loss({parts.q, parts.k, v}); }, parts.v, grads.v);
}

TEST(ReferenceOpsTest, EmbeddingBackwardSumsRepeatedTokens) {
  const std::vector<int32_t> tokens = {3, 0, 3, 1};
  const Doubles table = Random(20, 10), g = Random(16, 11);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceEmbedding(tokens, v, 4), g); }, table,
                   ReferenceEmbeddingBackward(tokens, g, 5, 4));
}

TEST(ReferenceOpsTest, AttentionBackward) {
  const AttentionShape shape = {.batch = 2, .seq_len = 5, .num_heads = 2, .head_dim = 3, .scale = 0.6f};
  const Doubles qkv = Random(2 * 5 * 3 * 6, 12), g = Random(2 * 5 * 6, 13);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceAttention(v, shape), g); }, qkv,
                   ReferenceAttentionBackward(g, qkv, shape));
}

TEST(ReferenceOpsTest, GroupedAttentionBackward) {
  const AttentionShape shape = {
      .batch = 2, .seq_len = 4, .num_heads = 6, .num_kv_heads = 2, .head_dim = 3, .scale = 0.6f};
  const Doubles qkv = Random(2 * 4 * 3 * 10, 12), g = Random(2 * 4 * 3 * 6, 13);
  ExpectIsGradient([&](const Doubles& v) { return Dot(ReferenceAttention(v, shape), g); }, qkv,
                   ReferenceAttentionBackward(g, qkv, shape));
}

TEST(ReferenceOpsTest, CrossEntropyBackward) {
  const std::vector<int32_t> targets = {2, 0, 6};
  const Doubles logits = Random(21, 14);
  ExpectIsGradient([&](const Doubles& v) { return 0.25 * ReferenceCrossEntropy(v, targets); }, logits,
                   ReferenceCrossEntropyBackward(logits, targets, 0.25));
}

}  // namespace
}  // namespace fsdp

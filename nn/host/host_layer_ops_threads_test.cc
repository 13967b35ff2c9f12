// SPDX-License-Identifier: Apache-2.0
//
// The kernels on three threads against the same on one: the same bits, except for sums over rows, which are cut into
// pieces.
#include <cmath>
#include <memory>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/host/host_layer_ops.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kRows = 203, kColumns = 307;  // several grains, and no multiple of one

class HostLayerOpsThreadsTest : public testing::TestWithParam<DType> {
 protected:
  // Tensors that a kernel writes, first on one thread and then on three.
  template <typename Call>
  std::vector<Tensor> OnOneAndOnThree(const Call& call) {
    std::vector<Tensor> outputs;
    for (const LayerOps* ops : {one_.get(), three_.get()}) {
      for (const Tensor& output : call(*ops)) outputs.push_back(output);
    }
    EXPECT_OK(stream_->Synchronize());
    return outputs;
  }

  // The first half of OnOneAndOnThree's tensors has the bits of the second.
  template <typename Call>
  void ExpectSameBits(const Call& call) {
    const std::vector<Tensor> outputs = OnOneAndOnThree(call);
    for (size_t i = 0; i < outputs.size() / 2; ++i) ExpectSameBytes(outputs[i], outputs[i + outputs.size() / 2]);
  }

  Tensor Random(const Shape& shape, int seed) const {
    return TestTensor(GetParam(), shape, RandomValues(GetParam(), shape.numel(), seed));
  }
  Tensor Output(const Shape& shape) const { return NanTensor(GetParam(), shape); }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::unique_ptr<const LayerOps> one_ = NewHostLayerOps(1), three_ = NewHostLayerOps(3);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");
};

TEST_P(HostLayerOpsThreadsTest, ElementwiseKernelsHaveTheSameBits) {
  const Tensor a = Random({kRows, kColumns}, 1), b = Random({kRows, kColumns}, 2), c = Random({kRows, kColumns}, 3);
  const auto output = [&] { return Output({kRows, kColumns}); };
  ExpectSameBits([&](const LayerOps& ops) {
    const std::vector<Tensor> out = {output(), output(), output(), output(), output(), output(), output()};
    const ActivationKind kind = ActivationKind::kGeluTanh;
    ops.Add(a, b, out[0], *stream_);
    ops.Activate(kind, a, out[1], *stream_);
    ops.ActivateBackward(kind, b, a, out[2], *stream_);
    ops.ActivateGated(kind, a, b, out[3], *stream_);
    ops.ActivateGatedBackward(kind, c, a, b, out[4], out[5], *stream_);
    ops.Dropout(a, {.seed = 5, .sequence = 2, .first = 77, .p = 0.3f}, out[6], *stream_);
    return out;
  });
}

TEST_P(HostLayerOpsThreadsTest, NormsHaveTheSameBitsForward) {
  const Tensor x = Random({kRows, kColumns}, 1), weight = Random({kColumns}, 2), bias = Random({kColumns}, 3);
  ExpectSameBits([&](const LayerOps& ops) {
    const Tensor out = Output({kRows, kColumns}), rms = Output({kRows, kColumns});
    const Tensor mean = NanTensor(DType::kFloat64, {kRows}), rstd = NanTensor(DType::kFloat64, {kRows});
    const Tensor rms_rstd = NanTensor(DType::kFloat64, {kRows});
    ops.LayerNorm(x, weight, bias, 1e-5f, out, mean, rstd, *stream_);
    ops.RmsNorm(x, weight, 1e-5f, rms, rms_rstd, *stream_);
    return std::vector<Tensor>{out, mean, rstd, rms, rms_rstd};
  });
}

TEST_P(HostLayerOpsThreadsTest, SumsOverRowsAreThoseOfOneThreadToRounding) {
  const Tensor x = Random({kRows, kColumns}, 1), weight = Random({kColumns}, 2), grad = Random({kRows, kColumns}, 3);
  const Doubles zeros(kColumns, 0.0);
  const Tensor mean = TestTensor(DType::kFloat64, {kRows}, Doubles(kRows, 0.01));
  const Tensor rstd = TestTensor(DType::kFloat64, {kRows}, Doubles(kRows, 0.9));
  const std::vector<Tensor> outputs = OnOneAndOnThree([&](const LayerOps& ops) {
    const auto sums = [&] { return TestTensor(GetParam(), {kColumns}, zeros); };
    const std::vector<Tensor> out = {
        Output({kRows, kColumns}), Output({kRows, kColumns}), sums(), sums(), sums(), sums(),
        Output({kRows, kColumns})};
    ops.LayerNormBackward(grad, x, weight, mean, rstd, out[0], out[2], out[3], *stream_);
    ops.RmsNormBackward(grad, x, weight, rstd, out[1], out[4], *stream_);
    ops.BiasBackward(grad, out[5], *stream_);
    ops.LayerNormBackward(grad, x, weight, mean, rstd, out[6], Tensor(), Tensor(), *stream_);
    return out;
  });
  const size_t n = outputs.size() / 2;
  for (const size_t rows : {0, 1, 6}) ExpectSameBytes(outputs[rows], outputs[n + rows]);
  ExpectSameBytes(outputs[0], outputs[6]);
  for (const size_t sums : {2, 3, 4, 5}) {
    ExpectClose(outputs[n + sums], ValuesOf(outputs[sums]), GetParam() == DType::kFloat32 ? 1e-6 : 1.0 / 128);
  }
}

TEST_P(HostLayerOpsThreadsTest, RotationAndAttentionHaveTheSameBits) {
  const AttentionShape shape = {
      .batch = 5, .seq_len = 140, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .scale = 0.3f};
  const int64_t rows = shape.batch * shape.seq_len;
  const Tensor q = Random({rows, shape.q_width()}, 1), k = Random({rows, shape.kv_width()}, 2);
  const Tensor v = Random({rows, shape.kv_width()}, 3), rotation = Random({shape.seq_len, shape.head_dim}, 4);
  const Tensor grad = Random({rows, shape.q_width()}, 5);
  ExpectSameBits([&](const LayerOps& ops) {
    const Tensor qkv = Output({rows, shape.qkv_width()}), out = Output({rows, shape.q_width()});
    const Tensor grad_qkv = Output({rows, shape.qkv_width()}), grad_q = Output({rows, shape.q_width()});
    const Tensor grad_k = Output({rows, shape.kv_width()}), grad_v = Output({rows, shape.kv_width()});
    const Tensor statistics = NanTensor(DType::kFloat32, {shape.statistics_numel()});
    ops.RotateQkv(q, k, v, rotation, shape, qkv, *stream_);
    ops.CausalAttention(qkv, shape, out, statistics, *stream_);
    ops.CausalAttentionBackward(grad, qkv, out, statistics, shape, grad_qkv, *stream_);
    ops.RotateQkvBackward(grad_qkv, rotation, shape, grad_q, grad_k, grad_v, *stream_);
    return std::vector<Tensor>{qkv, out, statistics, grad_qkv, grad_q, grad_k, grad_v};
  });
}

TEST_P(HostLayerOpsThreadsTest, CrossAttentionHasTheSameBits) {
  const CrossAttentionShape shape = {
      .batch = 3, .q_len = 130, .kv_len = 20, .num_heads = 4, .num_kv_heads = 2, .head_dim = 8, .scale = 0.3f};
  const int64_t queries = shape.batch * shape.q_len, keys = shape.batch * shape.kv_len;
  const CrossAttentionOperands operands = {Random({queries, shape.q_width()}, 1), Random({keys, shape.kv_width()}, 2),
                                           Random({keys, shape.kv_width()}, 3), Tensor()};
  const Tensor grad = Random({queries, shape.q_width()}, 4);
  ExpectSameBits([&](const LayerOps& ops) {
    const Tensor out = Output({queries, shape.q_width()});
    const CrossAttentionGrads grads = {Output({queries, shape.q_width()}), Output({keys, shape.kv_width()}),
                                       Output({keys, shape.kv_width()})};
    const Tensor statistics = NanTensor(DType::kFloat32, {queries * shape.num_heads, 2});
    ops.CrossAttention(operands, shape, out, statistics, *stream_);
    ops.CrossAttentionBackward(grad, operands, statistics, shape, grads, *stream_);
    return std::vector<Tensor>{out, statistics, grads.q, grads.k, grads.v};
  });
}

TEST_P(HostLayerOpsThreadsTest, CrossEntropyIsThatOfOneThread) {
  const Tensor logits = Random({kRows, kColumns}, 1);
  std::vector<int32_t> classes(kRows);
  for (int64_t r = 0; r < kRows; ++r) classes[r] = static_cast<int32_t>(r * 31 % kColumns);
  const Tensor targets = TokenTensor(classes, {kRows});
  const std::vector<Tensor> outputs = OnOneAndOnThree([&](const LayerOps& ops) {
    const std::vector<Tensor> out = {NanTensor(DType::kFloat32, {1}), NanTensor(DType::kFloat32, {kRows, 2}),
                                     Output({kRows, kColumns})};
    ops.CrossEntropy(logits, targets, out[0], out[1], *stream_);
    ops.CrossEntropyBackward(logits, targets, out[1], 0.5f, out[2], *stream_);
    return out;
  });
  ExpectClose(outputs[3], ValuesOf(outputs[0]), 1e-6);
  ExpectSameBytes(outputs[1], outputs[4]);
  ExpectSameBytes(outputs[2], outputs[5]);
}

INSTANTIATE_TEST_SUITE_P(DTypes, HostLayerOpsThreadsTest,
                         testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16));

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Kernels move several elements at a time if all operands begin at a multiple of 16 bytes. So each operand in turn
// begins one element after it, and the results have the bits of the call in which none does.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

class OperandAlignmentTest : public testing::TestWithParam<DType> {
 protected:
  Tensor In(const Shape& shape, int seed) {
    return TestTensor(GetParam(), shape, RandomValues(GetParam(), shape.numel(), seed), NextOffset());
  }
  Tensor Out(const Shape& shape) {
    outputs_.push_back(NanTensor(GetParam(), shape, NextOffset()));
    return outputs_.back();
  }

  // `call` makes its operands by In and Out, in the same order each time.
  void ExpectSameBitsWhereverOperandsBegin(const std::function<void()>& call) {
    const std::vector<Tensor> expected = Outputs(call, std::nullopt);
    const int operands = operands_;
    for (int shifted = 0; shifted < operands; ++shifted) {
      SCOPED_TRACE(shifted);
      const std::vector<Tensor> outputs = Outputs(call, shifted);
      for (size_t i = 0; i < outputs.size(); ++i) ExpectSameBytes(outputs[i], expected[i]);
    }
  }

  const std::shared_ptr<Device> device_ = TestDevice();
  const std::shared_ptr<const LayerOps> ops_ = *LayerOpsFor(*device_);
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("test");

 private:
  int64_t NextOffset() { return operands_++ == shifted_ ? 1 : 0; }

  std::vector<Tensor> Outputs(const std::function<void()>& call, std::optional<int> shifted) {
    operands_ = 0;
    shifted_ = shifted;
    outputs_.clear();
    call();
    EXPECT_OK(stream_->Synchronize());
    return outputs_;
  }

  int operands_ = 0;
  std::optional<int> shifted_;
  std::vector<Tensor> outputs_;
};

TEST_P(OperandAlignmentTest, SumsAndActivations) {
  const Shape shape = {339};
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor a = In(shape, 1), b = In(shape, 2);
    ops_->Add(a, b, Out(shape), *stream_);
  });
  const ActivationKind kind = ActivationKind::kSilu;
  ExpectSameBitsWhereverOperandsBegin([&] { ops_->Activate(kind, In(shape, 1), Out(shape), *stream_); });
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor grad = In(shape, 1), x = In(shape, 2);
    ops_->ActivateBackward(kind, grad, x, Out(shape), *stream_);
  });
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor gate = In(shape, 1), up = In(shape, 2);
    ops_->ActivateGated(kind, gate, up, Out(shape), *stream_);
  });
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor grad = In(shape, 1), gate = In(shape, 2), up = In(shape, 3);
    const Tensor grad_gate = Out(shape), grad_up = Out(shape);
    ops_->ActivateGatedBackward(kind, grad, gate, up, grad_gate, grad_up, *stream_);
  });
}

TEST_P(OperandAlignmentTest, Rotation) {
  const AttentionShape shape = {.batch = 1, .seq_len = 3, .num_heads = 2, .num_kv_heads = 1, .head_dim = 32};
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor q = In({3, 64}, 1), k = In({3, 32}, 2), v = In({3, 32}, 3), rotation = In({3, 32}, 4);
    ops_->RotateQkv(q, k, v, rotation, shape, Out({3, 128}), *stream_);
  });
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor grad = In({3, 128}, 1), rotation = In({3, 32}, 2);
    const Tensor q = Out({3, 64}), k = Out({3, 32}), v = Out({3, 32});
    ops_->RotateQkvBackward(grad, rotation, shape, q, k, v, *stream_);
  });
}

TEST_P(OperandAlignmentTest, EmbeddingsAndSumsOfColumns) {
  const Tensor tokens = TokenTensor({2, 0, 2, 1}, {4});
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor table = In({3, 32}, 1);
    ops_->Embedding(tokens, table, Out({4, 32}), *stream_);
  });
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor grad = In({4, 32}, 1), table = In({3, 32}, 2), sum = Out({3, 32});
    ops_->EmbeddingBackward(tokens, grad, std::nullopt, table, *stream_);
    ops_->CopyRows(table, sum, *stream_);
  });
  ExpectSameBitsWhereverOperandsBegin([&] {
    const Tensor grad = In({70, 32}, 1);
    ops_->BiasBackward(grad, {Out({32}), /*accumulates=*/false}, *stream_);
  });
}

INSTANTIATE_TEST_SUITE_P(DTypes, OperandAlignmentTest, testing::ValuesIn(ActivationDTypes()),
                         [](const auto& info) { return std::string(DTypeName(info.param)); });

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// cuDNN's attention as LayerOps calls it, with fake_cudnn on the emulated GPU: numbers against float64, which calls
// cuDNN serves and which our own kernels serve, captures, and errors.
#include "fsdp/nn/cuda/cuda_fused_attention.h"

#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/nn/cudnn/fake_cudnn.h"
#include "fsdp/nn/device_layer_ops.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/ops/layer_ops.h"
#include "fsdp/nn/tensor_testutil.h"
#include "fsdp/tensor/work_graph.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::HasSubstr;

constexpr AttentionShape kShape = {
    .batch = 2, .seq_len = 11, .num_heads = 3, .head_dim = 16, .scale = 0.25f, .rounding = AttentionRounding::kOnline};
constexpr AttentionShape kGroups = {.batch = 3,
                                    .seq_len = 9,
                                    .num_heads = 6,
                                    .num_kv_heads = 2,
                                    .head_dim = 8,
                                    .scale = 0.35355339f,
                                    .rounding = AttentionRounding::kOnline};

// Operands and results of one call forward and one backward.
struct Call {
  Call(const AttentionShape& of, DType type, int64_t offset = 0)
      : shape(of),
        dtype(type),
        qkv_values(RandomValues(type, of.batch * of.seq_len * of.qkv_width(), 1)),
        grad_values(RandomValues(type, of.batch * of.seq_len * of.q_width(), 2)),
        qkv(TestTensor(type, {of.batch * of.seq_len, of.qkv_width()}, qkv_values, offset)),
        grad_out(TestTensor(type, {of.batch * of.seq_len, of.q_width()}, grad_values, offset)),
        out(NanTensor(type, {of.batch * of.seq_len, of.q_width()})),
        statistics(NanTensor(DType::kFloat32, {of.statistics_numel()})),
        grad_qkv(NanTensor(type, {of.batch * of.seq_len, of.qkv_width()})) {}

  bool Forward(CudaFusedAttention& attention, Stream& stream) const {
    return attention.Forward(qkv, shape, out, statistics, CudaStream::Of(stream));
  }
  bool Backward(CudaFusedAttention& attention, Stream& stream) const {
    return attention.Backward({grad_out, qkv, out, statistics, grad_qkv}, shape, CudaStream::Of(stream));
  }

  void ExpectRight() const {
    const double tolerance = dtype == DType::kFloat16 ? 1.0 / 512 : 1.0 / 64;
    ExpectClose(out, ReferenceAttention(qkv_values, shape), tolerance);
    ExpectClose(statistics, ReferenceAttentionLogSumExp(qkv_values, shape), 1e-5);
    ExpectClose(grad_qkv, ReferenceAttentionBackward(grad_values, qkv_values, shape), 2 * tolerance);
  }

  AttentionShape shape;
  DType dtype;
  Doubles qkv_values, grad_values;
  Tensor qkv, grad_out, out, statistics, grad_qkv;
};

class CudaFusedAttentionTest : public testing::Test {
 protected:
  void SetUp() override { InstallFakeCudnn(true); }
  void TearDown() override {
    SetFakeCudnnFaults({});
    InstallFakeCudnn(false);
  }

  const std::unique_ptr<Stream> stream_ = *TestDevice()->CreateStream("test");
  CudaFusedAttention attention_;
};

TEST_F(CudaFusedAttentionTest, EqualsFloat64) {
  for (const AttentionShape& shape : {kShape, kGroups}) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
      const Call call(shape, dtype);
      ASSERT_TRUE(call.Forward(attention_, *stream_));
      ASSERT_TRUE(call.Backward(attention_, *stream_));
      ASSERT_OK(stream_->Synchronize());
      call.ExpectRight();
    }
  }
}

TEST_F(CudaFusedAttentionTest, LayerOpsCallIt) {
  const Call call(kShape, DType::kBFloat16);
  const std::shared_ptr<const LayerOps> ops = *LayerOpsFor(*TestDevice());
  const int before = CountFakeCudnn().executions;
  ops->CausalAttention(call.qkv, call.shape, call.out, call.statistics, *stream_);
  ops->CausalAttentionBackward(call.grad_out, call.qkv, call.out, call.statistics, call.shape, call.grad_qkv, *stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(CountFakeCudnn().executions, before + 2);
  call.ExpectRight();
  EXPECT_EQ(ops->AttentionKernels(call.shape, call.dtype), "cuDNN 9.19.0");
}

TEST_F(CudaFusedAttentionTest, APlanIsMadeOncePerShape) {
  const int before = CountFakeCudnn().plans;
  for (int i = 0; i < 3; ++i) {
    const Call call(kShape, DType::kBFloat16);
    ASSERT_TRUE(call.Forward(attention_, *stream_));
    ASSERT_TRUE(call.Backward(attention_, *stream_));
  }
  ASSERT_OK(stream_->Synchronize());
  EXPECT_EQ(CountFakeCudnn().plans, before + 2);
}

TEST_F(CudaFusedAttentionTest, CallsThatCudnnCannotServeAreLeftToOwnKernels) {
  AttentionShape eager = kShape;
  eager.rounding = AttentionRounding::kEager;
  AttentionShape odd_head = kShape;
  odd_head.head_dim = 12;
  AttentionShape one_token = kShape;
  one_token.seq_len = 1;
  EXPECT_FALSE(Call(eager, DType::kBFloat16).Forward(attention_, *stream_));
  EXPECT_FALSE(Call(odd_head, DType::kBFloat16).Forward(attention_, *stream_));
  EXPECT_FALSE(Call(one_token, DType::kBFloat16).Backward(attention_, *stream_));
  EXPECT_FALSE(Call(kShape, DType::kFloat32).Forward(attention_, *stream_));
  EXPECT_FALSE(Call(kShape, DType::kBFloat16, /*offset=*/1).Forward(attention_, *stream_));
  EXPECT_FALSE(Call(kShape, DType::kBFloat16, /*offset=*/1).Backward(attention_, *stream_));
  EXPECT_TRUE(Call(kShape, DType::kBFloat16).Forward(attention_, *stream_));
  EXPECT_OK(stream_->Synchronize());
}

TEST_F(CudaFusedAttentionTest, WithoutADeterministicEngineOwnKernelsServe) {
  SetFakeCudnnFaults({.is_nondeterministic = true});
  EXPECT_FALSE(Call(kShape, DType::kBFloat16).Forward(attention_, *stream_));
  EXPECT_FALSE(Call(kShape, DType::kBFloat16).Backward(attention_, *stream_));
  EXPECT_OK(stream_->Synchronize());
}

TEST_F(CudaFusedAttentionTest, AnEngineThatMakesNoPlanIsSkipped) {
  SetFakeCudnnFaults({.broken_engines = 1});
  const Call call(kShape, DType::kBFloat16);
  ASSERT_TRUE(call.Forward(attention_, *stream_));
  ASSERT_TRUE(call.Backward(attention_, *stream_));
  ASSERT_OK(stream_->Synchronize());
  call.ExpectRight();
}

TEST_F(CudaFusedAttentionTest, WithoutAnyPlanOwnKernelsServe) {
  SetFakeCudnnFaults({.broken_engines = 2});
  EXPECT_FALSE(Call(kShape, DType::kBFloat16).Forward(attention_, *stream_));
}

TEST_F(CudaFusedAttentionTest, WithoutCudnnOwnKernelsServeAndSayWhy) {
  InstallFakeCudnn(false);
  EXPECT_FALSE(Call(kShape, DType::kBFloat16).Forward(attention_, *stream_));
  EXPECT_EQ(attention_.Describe(kShape, DType::kBFloat16, 0), "own kernels (no fake cuDNN is installed)");
}

TEST_F(CudaFusedAttentionTest, ACudnnThatDoesNotStartIsNotUsed) {
  SetFakeCudnnFaults({.has_no_driver = true});
  EXPECT_FALSE(Call(kShape, DType::kBFloat16).Forward(attention_, *stream_));
  EXPECT_THAT(attention_.Describe(kShape, DType::kBFloat16, 0),
              HasSubstr("own kernels (cuDNN 9.19.0: cudnnCreate: CUDNN_STATUS_NOT_INIT"));
}

TEST_F(CudaFusedAttentionTest, AShapeThatIsNotServedIsDescribedWithTheReason) {
  AttentionShape eager = kShape;
  eager.rounding = AttentionRounding::kEager;
  EXPECT_EQ(attention_.Describe(eager, DType::kBFloat16, 0), "own kernels");
  EXPECT_THAT(attention_.Describe(kShape, DType::kFloat32, 0),
              HasSubstr("own kernels (attention of 2 x 11 tokens, 3 heads (3 of keys) of 16, float32: cuDNN wants 16"));
  AttentionShape long_groups = kShape;
  long_groups.batch = 1;
  long_groups.seq_len = 8192;
  long_groups.num_kv_heads = 1;
  EXPECT_THAT(attention_.Describe(long_groups, DType::kBFloat16, 0),
              HasSubstr("cuDNN 9.19.0 forward; backward own kernels (attention backward of 1 x 8192 tokens"));
}

TEST_F(CudaFusedAttentionTest, AFailureInARunNamesTheCallAndHasCudnnsMessage) {
  const Call call(kGroups, DType::kBFloat16);
  SetFakeCudnnFaults({.execution_failure = "the GPU is on fire"});
  ASSERT_TRUE(call.Forward(attention_, *stream_));
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("attention of 3 x 9 tokens, 6 heads (2 of keys) of 8, bfloat16: cuDNN 9.19.0: "
                                 "cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED: the GPU is on fire")));
}

TEST_F(CudaFusedAttentionTest, ACapturedCallReplaysWithTheSameBits) {
  const Call eager(kGroups, DType::kBFloat16);
  ASSERT_TRUE(eager.Forward(attention_, *stream_));
  ASSERT_TRUE(eager.Backward(attention_, *stream_));
  ASSERT_OK(stream_->Synchronize());
  const Call call(kGroups, DType::kBFloat16);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<WorkGraph> graph, CaptureWork(*stream_, [&] {
                         EXPECT_TRUE(call.Forward(attention_, *stream_));
                         EXPECT_TRUE(call.Backward(attention_, *stream_));
                         return absl::OkStatus();
                       }));
  for (int i = 0; i < 2; ++i) {
    graph->Replay();
    ASSERT_OK(stream_->Synchronize());
    ExpectSameBytes(call.out, eager.out);
    ExpectSameBytes(call.statistics, eager.statistics);
    ExpectSameBytes(call.grad_qkv, eager.grad_qkv);
  }
}

TEST_F(CudaFusedAttentionTest, APlanMayBeMadeDuringACapture) {
  const Call call(kShape, DType::kBFloat16);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<WorkGraph> graph, CaptureWork(*stream_, [&] {
                         EXPECT_TRUE(call.Forward(attention_, *stream_));
                         EXPECT_TRUE(call.Backward(attention_, *stream_));
                         return absl::OkStatus();
                       }));
  graph->Replay();
  ASSERT_OK(stream_->Synchronize());
  call.ExpectRight();
}

TEST_F(CudaFusedAttentionTest, AGraphKeepsThePlansThatItReplays) {
  const int before = CountFakeCudnn().handles;
  auto attention = std::make_unique<CudaFusedAttention>();
  const Call call(kShape, DType::kBFloat16);
  ASSERT_OK_AND_ASSIGN(std::unique_ptr<WorkGraph> graph, CaptureWork(*stream_, [&] {
                         EXPECT_TRUE(call.Forward(*attention, *stream_));
                         return absl::OkStatus();
                       }));
  attention.reset();
  EXPECT_EQ(CountFakeCudnn().handles, before + 1);
  graph->Replay();
  ASSERT_OK(stream_->Synchronize());
  graph.reset();
  EXPECT_EQ(CountFakeCudnn().handles, before);
}

TEST_F(CudaFusedAttentionTest, NothingIsLeftBehind) {
  const FakeCudnnCounts before = CountFakeCudnn();
  {
    CudaFusedAttention attention;
    const Call call(kShape, DType::kBFloat16);
    ASSERT_TRUE(call.Forward(attention, *stream_));
    ASSERT_TRUE(call.Backward(attention, *stream_));
    ASSERT_OK(stream_->Synchronize());
  }
  EXPECT_EQ(CountFakeCudnn().handles, before.handles);
  EXPECT_EQ(CountFakeCudnn().descriptors, before.descriptors);
}

}  // namespace
}  // namespace fsdp

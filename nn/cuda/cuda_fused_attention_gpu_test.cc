// SPDX-License-Identifier: Apache-2.0
//
// cuDNN itself, if it is installed and the GPU has compute capability 9: its attention against float64, and its bits
// from run to run and in a graph. Skipped elsewhere.
#include <cuda_runtime_api.h>

#include <memory>
#include <string>

#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/nn/cuda/cuda_fused_attention.h"
#include "fsdp/nn/cudnn/installed_cudnn.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "fsdp/tensor/work_graph.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

struct Variant {
  const char* name;
  DType dtype;
  AttentionShape shape;
};

constexpr AttentionShape Online(int64_t batch, int64_t seq_len, int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {.batch = batch,
          .seq_len = seq_len,
          .num_heads = heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim,
          .scale = head_dim == 128 ? 0.08838835f : 0.125f,
          .rounding = AttentionRounding::kOnline};
}

class CudnnGpuTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (!InstalledCudnn().ok()) GTEST_SKIP() << "no cuDNN: " << InstalledCudnn().status();
    int major = 0;
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    if (major != 9) GTEST_SKIP() << "cuDNN is not used on compute capability " << major;
  }

  struct Results {
    Tensor out, statistics, grad_qkv;
  };

  const AttentionShape& shape() const { return GetParam().shape; }
  DType dtype() const { return GetParam().dtype; }
  int64_t tokens() const { return shape().batch * shape().seq_len; }

  Results Empty() const {
    return {NanTensor(dtype(), {tokens(), shape().q_width()}), NanTensor(DType::kFloat32, {shape().statistics_numel()}),
            NanTensor(dtype(), {tokens(), shape().qkv_width()})};
  }

  void Call(const Results& results) {
    CudaStream& stream = CudaStream::Of(*stream_);
    EXPECT_TRUE(attention_.Forward(qkv_, shape(), results.out, results.statistics, stream)) << WhyNot();
    EXPECT_TRUE(
        attention_.Backward({grad_out_, qkv_, results.out, results.statistics, results.grad_qkv}, shape(), stream))
        << WhyNot();
  }

  std::string WhyNot() { return attention_.Describe(shape(), dtype(), 0); }

  void ExpectSame(const Results& a, const Results& b) const {
    ExpectSameBytes(a.out, b.out);
    ExpectSameBytes(a.statistics, b.statistics);
    ExpectSameBytes(a.grad_qkv, b.grad_qkv);
  }

  const std::unique_ptr<Stream> stream_ = *TestDevice()->CreateStream("test");
  CudaFusedAttention attention_;
  const Doubles qkv_values_ = RandomValues(dtype(), tokens() * shape().qkv_width(), 1);
  const Doubles grad_values_ = RandomValues(dtype(), tokens() * shape().q_width(), 2);
  const Tensor qkv_ = TestTensor(dtype(), {tokens(), shape().qkv_width()}, qkv_values_);
  const Tensor grad_out_ = TestTensor(dtype(), {tokens(), shape().q_width()}, grad_values_);
};

TEST_P(CudnnGpuTest, EqualsFloat64) {
  const Results results = Empty();
  Call(results);
  ASSERT_OK(stream_->Synchronize());
  // Gradients are sums of terms that cancel: on an H200 the error exceeded twice the tolerance by up to 15 %.
  const double tolerance = dtype() == DType::kFloat16 ? 1.0 / 512 : 1.0 / 64;
  ExpectClose(results.out, ReferenceAttention(qkv_values_, shape()), tolerance);
  ExpectClose(results.statistics, ReferenceAttentionLogSumExp(qkv_values_, shape()), 1e-4);
  ExpectClose(results.grad_qkv, ReferenceAttentionBackward(grad_values_, qkv_values_, shape()), 3 * tolerance);
}

TEST_P(CudnnGpuTest, EveryRunHasTheSameBits) {
  const Results first = Empty();
  Call(first);
  ASSERT_OK(stream_->Synchronize());
  for (int i = 0; i < 50; ++i) {
    const Results again = Empty();
    Call(again);
    ASSERT_OK(stream_->Synchronize());
    ExpectSame(again, first);
    if (HasFailure()) return;
  }
}

TEST_P(CudnnGpuTest, AReplayHasTheSameBits) {
  const Results first = Empty();
  Call(first);
  ASSERT_OK(stream_->Synchronize());
  const Results captured = Empty();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<WorkGraph> graph, CaptureWork(*stream_, [&] {
                         Call(captured);
                         return absl::OkStatus();
                       }));
  for (int i = 0; i < 3; ++i) {
    graph->Replay();
    ASSERT_OK(stream_->Synchronize());
    ExpectSame(captured, first);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudnnGpuTest,
                         testing::Values(Variant{"Gpt2", DType::kBFloat16, Online(2, 256, 12, 12, 64)},
                                         Variant{"Gpt2Float16", DType::kFloat16, Online(2, 256, 12, 12, 64)},
                                         Variant{"LlamaGroups", DType::kBFloat16, Online(1, 320, 8, 2, 64)},
                                         Variant{"LongHeads", DType::kBFloat16, Online(2, 129, 4, 1, 128)},
                                         Variant{"OddLength", DType::kBFloat16, Online(3, 201, 4, 4, 64)},
                                         Variant{"OddHeads", DType::kBFloat16, Online(2, 201, 6, 2, 80)},
                                         Variant{"ShortHeads", DType::kBFloat16, Online(2, 64, 2, 2, 8)},
                                         Variant{"TwoTokens", DType::kBFloat16, Online(2, 2, 2, 2, 64)}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The pieces of backward, with fake_cudnn on the emulated GPU: a piece's workspace is bounded, and results do not
// depend on how a call is cut.
#include "fsdp/nn/cudnn/cudnn_attention.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/nn/cudnn/fake_cudnn.h"
#include "fsdp/nn/device_testutil.h"
#include "fsdp/nn/tensor_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;

constexpr AttentionShape kShape = {.batch = 5,
                                   .seq_len = 10,
                                   .num_heads = 6,
                                   .num_kv_heads = 3,
                                   .head_dim = 8,
                                   .scale = 0.35355339f,
                                   .rounding = AttentionRounding::kOnline};
constexpr int64_t kHeadBytes = 2 * 10 * 10 * 2;  // of a key-value head: two query heads
constexpr int64_t kSampleBytes = 3 * kHeadBytes;

struct Results {
  Tensor out, statistics, grad_qkv;
  std::vector<int64_t> workspaces;  // of the plans that it made, forward's first
};

// Forward and backward in pieces of at most `most_bytes`.
Results RunInPieces(int64_t most_bytes) {
  const std::unique_ptr<Stream> stream = *TestDevice()->CreateStream("test");
  const int64_t tokens = kShape.batch * kShape.seq_len;
  const DType dtype = DType::kBFloat16;
  const Tensor qkv =
      TestTensor(dtype, {tokens, kShape.qkv_width()}, RandomValues(dtype, tokens * kShape.qkv_width(), 1));
  const Tensor grad = TestTensor(dtype, {tokens, kShape.q_width()}, RandomValues(dtype, tokens * kShape.q_width(), 2));
  Results run = {NanTensor(dtype, {tokens, kShape.q_width()}),
                 NanTensor(DType::kFloat32, {kShape.statistics_numel()}),
                 NanTensor(dtype, {tokens, kShape.qkv_width()}),
                 {}};
  const size_t plans = CountFakeCudnn().workspace_bytes.size();
  const std::unique_ptr<CudnnAttention> attention = *CudnnAttention::Create(FakeCudnn(), most_bytes);
  const int64_t forward_bytes = *attention->ForwardBytes(kShape, dtype);
  const int64_t nbytes = std::max(forward_bytes, *attention->BackwardBytes(kShape, dtype));
  const Buffer workspace = *TestDevice()->Allocate(nbytes);
  CudaStream::Of(*stream).Issue({}, [&](CUstream_st* s) {
    absl::Status status = attention->Forward({qkv.data(), run.out.data(), run.statistics.data_as<float>()}, kShape,
                                             dtype, workspace.data(), s);
    if (!status.ok()) return status;
    return attention->Backward(
        {grad.data(), qkv.data(), run.out.data(), run.statistics.data_as<float>(), run.grad_qkv.data()}, kShape, dtype,
        workspace.data(), s);
  });
  EXPECT_OK(stream->Synchronize());
  const std::vector<int64_t> all = CountFakeCudnn().workspace_bytes;
  run.workspaces.assign(all.begin() + static_cast<std::ptrdiff_t>(plans), all.end());
  return run;
}

TEST(CudnnAttentionTest, ResultsDoNotDependOnThePieces) {
  const Results whole = RunInPieces(CudnnAttention::kMaxGradScoresBytes);
  EXPECT_EQ(whole.workspaces.size(), 2u);
  EXPECT_EQ(whole.workspaces.back(), kShape.batch * kSampleBytes);
  for (const int64_t most : {2 * kSampleBytes, kSampleBytes, 2 * kHeadBytes, kHeadBytes}) {
    const Results pieces = RunInPieces(most);
    ExpectSameBytes(pieces.out, whole.out);
    ExpectSameBytes(pieces.statistics, whole.statistics);
    ExpectSameBytes(pieces.grad_qkv, whole.grad_qkv);
    EXPECT_THAT(std::vector<int64_t>(pieces.workspaces.begin() + 1, pieces.workspaces.end()), Each(Le(most)));
  }
}

TEST(CudnnAttentionTest, PiecesAreAsEqualAsTheyCanBe) {
  // Five samples of which four fit are cut into three and two, not four and one; heads 2 and 1.
  EXPECT_THAT(RunInPieces(4 * kSampleBytes).workspaces, testing::ElementsAre(512, 3 * kSampleBytes, 2 * kSampleBytes));
  EXPECT_THAT(RunInPieces(2 * kHeadBytes).workspaces, testing::ElementsAre(512, 2 * kHeadBytes, kHeadBytes));
}

TEST(CudnnAttentionTest, AHeadThatIsTooLargeForTheWorkspaceIsRefused) {
  const std::unique_ptr<CudnnAttention> attention = *CudnnAttention::Create(FakeCudnn(), kHeadBytes - 1);
  EXPECT_THAT(attention->BackwardBytes(kShape, DType::kBFloat16),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("attention backward of 5 x 10 tokens, 6 heads (3 of keys) of 8, bfloat16: cuDNN would "
                                 "want 400 bytes of workspace for a head of keys, more than 399")));
  EXPECT_OK(attention->ForwardBytes(kShape, DType::kBFloat16).status());
}

TEST(CudnnAttentionTest, AnEmptyBatchNeedsNothing) {
  const std::unique_ptr<CudnnAttention> attention = *CudnnAttention::Create(FakeCudnn());
  AttentionShape empty = kShape;
  empty.batch = 0;
  EXPECT_EQ(*attention->ForwardBytes(empty, DType::kBFloat16), 0);
  EXPECT_EQ(*attention->BackwardBytes(empty, DType::kBFloat16), 0);
  EXPECT_OK(attention->Forward({}, empty, DType::kBFloat16, nullptr, nullptr));
  EXPECT_OK(attention->Backward({}, empty, DType::kBFloat16, nullptr, nullptr));
}

}  // namespace
}  // namespace fsdp

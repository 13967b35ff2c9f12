// SPDX-License-Identifier: Apache-2.0
//
// train_gpt's whole run on a GPU, with ranks that are threads and share it: its losses follow the run on the host, and
// its checkpoints continue on either.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kSteps = 3;

// Losses of two runs that differ only in the order of their float32 sums: the longest is over some hundred terms, each
// of which rounds by 2^-24, and the loss is of order 1. In bfloat16 a rounding in the other direction is 2^-9 of one
// activation among thousands.
double ToleranceOf(DType param_dtype) { return param_dtype == DType::kFloat32 ? 1e-5 : 4e-3; }

class GpuTrainingTest : public TrainingFixture {
 protected:
  void SetUp() override {
    if (const auto gpus = CudaDeviceCount(); !gpus.ok()) GTEST_SKIP() << gpus.status().message();
    TrainingFixture::SetUp();
  }

  TrainOptions Options() const { return TrainingFixture::Options(kSteps); }

  // The metrics of the steps that the run trained.
  absl::StatusOr<std::vector<StepMetrics>> Train(TrainOptions options, int ranks, bool on_gpu) {
    options.metrics = NewRunPath() + ".jsonl";
    if (!on_gpu) {
      FSDP_RETURN_IF_ERROR(
          RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) { return TrainRank(options, group); }));
      return ReadMetrics(options.metrics);
    }
    std::vector<std::shared_ptr<Device>> devices;
    for (int r = 0; r < ranks; ++r) {
      FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(0));
      devices.push_back(std::move(device));
    }
    FSDP_ASSIGN_OR_RETURN(auto groups, CreateLocalCudaGroups(devices));
    FSDP_RETURN_IF_ERROR(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> meeting) {
      return TrainRank(options, std::shared_ptr<ProcessGroup>(std::move(groups[meeting->rank()])));
    }));
    return ReadMetrics(options.metrics);
  }

  void ExpectFollowsTheHost(const TrainOptions& options, int ranks) {
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> host, Train(options, ranks, /*on_gpu=*/false));
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> gpu, Train(options, ranks, /*on_gpu=*/true));
    ASSERT_EQ(gpu.size(), static_cast<size_t>(kSteps));
    ASSERT_EQ(host.size(), gpu.size());
    const double tolerance = ToleranceOf(options.fsdp.mixed_precision.param_dtype.value_or(DType::kFloat32));
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(gpu[step].loss, host[step].loss, tolerance * host[step].loss) << step;
      EXPECT_NEAR(gpu[step].grad_norm, host[step].grad_norm, 20 * tolerance * host[step].grad_norm) << step;
      EXPECT_EQ(gpu[step].scale, host[step].scale) << step;
    }
  }
};

TEST_F(GpuTrainingTest, FullShardFollowsTheHost) { ExpectFollowsTheHost(Options(), 2); }

TEST_F(GpuTrainingTest, OffloadAndRecomputeFollowTheHost) {
  TrainOptions options = Options();
  options.fsdp.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.fsdp.cpu_offload.offload_params = true;
  options.fsdp.activation_checkpointing = true;
  options.grad_accum = 2;
  ExpectFollowsTheHost(options, 2);
}

TEST_F(GpuTrainingTest, FullyShardInBFloat16FollowsTheHost) {
  TrainOptions options = Options();
  options.api = TrainApi::kFsdp2;
  options.fsdp.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  options.attention = AttentionKind::kOnline;
  options.fsdp.cpu_offload.offload_params = true;
  options.pin_memory = true;
  ExpectFollowsTheHost(options, 2);
}

TEST_F(GpuTrainingTest, CastsOfTheOptimizerFollowTheHost) {
  TrainOptions options = Options();
  options.fsdp.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  options.attention = AttentionKind::kEager;
  options.fsdp.optimizer_casts = true;
  ExpectFollowsTheHost(options, 1);
}

// Every kernel of both attentions in float16; the scale, which the device keeps, is the host's in each step.
TEST_F(GpuTrainingTest, Float16WithAScalerFollowsTheHost) {
  for (const AttentionKind attention : {AttentionKind::kEager, AttentionKind::kOnline}) {
    TrainOptions options = Options();
    options.fsdp.mixed_precision = {.param_dtype = DType::kFloat16, .reduce_dtype = DType::kFloat32};
    options.attention = attention;
    options.grad_scaler = GradScalerOptions{.init_scale = 1024, .growth_interval = 1};
    ExpectFollowsTheHost(options, 1);
  }
}

// In each dtype, with what changes how often the head runs and what it adds to; no number of chunks divides the rows.
TEST_F(GpuTrainingTest, LossesInChunksFollowTheHostAndTheLossesOfAllLogits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    SCOPED_TRACE(DTypeName(dtype));
    TrainOptions options = Options();
    options.fsdp.mixed_precision = {.param_dtype = dtype, .reduce_dtype = DType::kFloat32};
    options.attention = AttentionKind::kEager;
    if (dtype == DType::kFloat16) options.grad_scaler = GradScalerOptions{.init_scale = 1024, .growth_interval = 1};
    options.fsdp.activation_checkpointing = dtype == DType::kBFloat16;
    options.grad_accum = 2;
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> all, Train(options, 1, /*on_gpu=*/false));
    options.loss_chunks = 5;
    ExpectFollowsTheHost(options, 1);
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> chunks, Train(options, 1, /*on_gpu=*/false));
    ASSERT_EQ(chunks.size(), all.size());
    for (size_t step = 0; step < all.size(); ++step) {
      EXPECT_NEAR(chunks[step].loss, all[step].loss, ToleranceOf(dtype) * all[step].loss) << step;
      EXPECT_NEAR(chunks[step].grad_norm, all[step].grad_norm, 20 * ToleranceOf(dtype) * all[step].grad_norm) << step;
      EXPECT_EQ(chunks[step].scale, all[step].scale) << step;
    }
  }
}

TEST_F(GpuTrainingTest, TheRunSaysWhoseKernelsAttentionUses) {
  TrainOptions options = Options();
  options.fsdp.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  testing::internal::CaptureStdout();
  const absl::Status trained = Train(options, 1, /*on_gpu=*/true).status();
  const std::string output = testing::internal::GetCapturedStdout();
  ASSERT_OK(trained);
  EXPECT_THAT(output, AnyOf(HasSubstr("\nattention: cuDNN 9."), HasSubstr("\nattention: own kernels (")));
}

TEST_F(GpuTrainingTest, HybridShardOfFourRanksFollowsTheHost) {
  TrainOptions options = Options();
  options.fsdp.sharding_strategy = ShardingStrategy::kHybridShard;
  options.fsdp.shard_group_size = 2;
  options.batch_size = 1;
  ExpectFollowsTheHost(options, 4);
}

TEST_F(GpuTrainingTest, CheckpointsOfEveryKindContinueOnTheGpuBitForBitAndOnTheHost) {
  struct Form {
    StateDictType type;
    bool rank0_only;
    bool async_checkpoint;
  };
  const std::vector<Form> forms = {{StateDictType::kSharded, false, true},
                                   {StateDictType::kLocal, false, true},
                                   {StateDictType::kFull, true, false}};
  std::vector<StepMetrics> whole;
  for (size_t i = 0; i < forms.size(); ++i) {
    TrainOptions options = Options();
    options.fsdp.auto_wrap_policy = {};  // computing the gradients' norm of each unit takes an emulated GPU seconds
    TrainOptions resumed = options;
    options.checkpoint_dir = absl::StrCat(directory_, "/checkpoints", i);
    options.checkpoint_every = 1;
    options.state_dict_type = forms[i].type;
    options.rank0_only = forms[i].rank0_only;
    options.async_checkpoint = forms[i].async_checkpoint;
    options.export_to = absl::StrCat(directory_, "/export", i);
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> saved, Train(options, 2, /*on_gpu=*/true));
    ASSERT_EQ(saved.size(), static_cast<size_t>(kSteps));
    if (whole.empty()) whole = saved;
    EXPECT_EQ(saved[2].loss, whole[2].loss) << i;
    ASSERT_OK(DescribeCheckpoint(options.export_to));

    // The last loss shows whether the optimizer's state was restored too.
    resumed.resume = {ResumeChoice::Kind::kPath, options.checkpoint_dir + "/step-00000001"};
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> on_gpu, Train(resumed, 2, /*on_gpu=*/true));
    ASSERT_EQ(on_gpu.size(), 2u);
    EXPECT_EQ(on_gpu[1].loss, whole[2].loss) << i;
    EXPECT_EQ(on_gpu[1].grad_norm, whole[2].grad_norm) << i;
    ASSERT_OK_AND_ASSIGN(const std::vector<StepMetrics> on_host, Train(resumed, 2, /*on_gpu=*/false));
    EXPECT_NEAR(on_host[1].loss, whole[2].loss, ToleranceOf(DType::kFloat32) * whole[2].loss) << i;
  }
}

}  // namespace
}  // namespace fsdp

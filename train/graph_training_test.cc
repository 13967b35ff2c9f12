// SPDX-License-Identifier: Apache-2.0
//
// train_gpt's run with --cuda_graph: replayed steps have the bits of steps without a graph, and so have the states
// saved and resumed between them.
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::HasSubstr;

constexpr int kSteps = 6;  // two eager, one captured, three replayed

absl::StatusOr<std::shared_ptr<ProcessGroup>> NcclGroup(ProcessGroup& meeting) {
  FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting.rank()));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting.Split(0, meeting.rank()));
  return CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(5));
}

class GraphTrainingTest : public TrainingFixture {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CudaDeviceCount();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
    gpus_ = *gpus;
    TrainingFixture::SetUp();
  }

  // With a rate that changes each step, and gradients that are clipped.
  TrainOptions Options() const {
    TrainOptions options = TrainingFixture::Options(kSteps);
    options.batch_size = 1;
    options.learning_rate.min_lr = 1e-3;
    options.learning_rate.warmup_steps = 2;
    options.max_grad_norm = 0.5;
    return options;
  }

  struct Run {
    std::vector<StepMetrics> steps;
    std::string weights;  // the exported file
  };

  absl::StatusOr<Run> Train(TrainOptions options, int ranks) {
    const std::string name = NewRunPath();
    options.metrics = name + ".jsonl";
    options.export_to = name + ".export";
    FSDP_RETURN_IF_ERROR(RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group, NcclGroup(*meeting));
      return TrainRank(options, group);
    }));
    Run run;
    FSDP_ASSIGN_OR_RETURN(run.steps, ReadMetrics(options.metrics));
    std::ifstream file(options.export_to + "/model.safetensors", std::ios::binary);
    run.weights = std::string(std::istreambuf_iterator<char>(file), {});
    return run;
  }

  static void ExpectSame(const Run& graph, const Run& eager) {
    ASSERT_EQ(eager.steps.size(), static_cast<size_t>(kSteps));
    ASSERT_EQ(graph.steps.size(), eager.steps.size());
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_EQ(graph.steps[step].loss, eager.steps[step].loss) << step;
      EXPECT_EQ(graph.steps[step].grad_norm, eager.steps[step].grad_norm) << step;
      EXPECT_EQ(graph.steps[step].lr, eager.steps[step].lr) << step;
      EXPECT_GT(eager.steps[step].grad_norm, 0.5) << "not clipped in step " << step;
    }
    EXPECT_NE(eager.steps[4].loss, eager.steps[3].loss);
    EXPECT_FALSE(eager.weights.empty());
    EXPECT_TRUE(graph.weights == eager.weights) << "the weights after the last step differ";
  }

  void ExpectGraphIsEager(TrainOptions options, int ranks) {
    if (gpus_ < ranks) GTEST_SKIP() << "nccl wants " << ranks << " GPUs, there are " << gpus_;
    ASSERT_OK_AND_ASSIGN(const Run eager, Train(options, ranks));
    options.cuda_graph = true;
    ASSERT_OK_AND_ASSIGN(const Run graph, Train(options, ranks));
    ExpectSame(graph, eager);
  }

  int gpus_ = 0;
};

TEST_F(GraphTrainingTest, OneRankHasTheBitsOfStepsThatAreNotCaptured) { ExpectGraphIsEager(Options(), 1); }

TEST_F(GraphTrainingTest, TwoRanksHaveTheBitsOfStepsThatAreNotCaptured) { ExpectGraphIsEager(Options(), 2); }

TEST_F(GraphTrainingTest, MicroStepsInBFloat16WithTheOptimizersCastsHaveTheSameBits) {
  TrainOptions options = Options();
  options.grad_accum = 2;
  options.fsdp.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  options.fsdp.optimizer_casts = true;
  ExpectGraphIsEager(options, 2);
}

TEST_F(GraphTrainingTest, LossesInChunksHaveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    TrainOptions options = Options();
    options.loss_chunks = 3;
    options.grad_accum = 2;
    options.fsdp.mixed_precision = {.param_dtype = dtype, .reduce_dtype = DType::kFloat32};
    ExpectGraphIsEager(options, 2);
  }
}

// Parameters of such units are cast in each step, and their gradients all-reduced.
TEST_F(GraphTrainingTest, UnitsThatAreNotShardedHaveTheSameBitsInBFloat16) {
  TrainOptions options = Options();
  options.fsdp.sharding_strategy = ShardingStrategy::kNoShard;
  options.fsdp.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  for (const int ranks : {1, 2}) ExpectGraphIsEager(options, ranks);
}

TEST_F(GraphTrainingTest, FullyShardWithRecomputeHasTheSameBits) {
  TrainOptions options = Options();
  options.api = TrainApi::kFsdp2;
  options.fsdp.mixed_precision = {.param_dtype = DType::kBFloat16, .reduce_dtype = DType::kFloat32};
  options.fsdp.activation_checkpointing = true;
  ExpectGraphIsEager(options, 2);
}

// The first scale overflows, so the scaler leaves steps out before and after the capture, and the scale grows again.
TEST_F(GraphTrainingTest, Float16WithAScalerLeavesOutTheSameSteps) {
  for (const int64_t loss_chunks : {0, 3}) {
    SCOPED_TRACE(loss_chunks);
    TrainOptions options = Options();
    options.loss_chunks = loss_chunks;
    options.fsdp.mixed_precision = {.param_dtype = DType::kFloat16, .reduce_dtype = DType::kFloat32};
    options.grad_scaler = GradScalerOptions{.init_scale = 1 << 26, .backoff_factor = 1.0 / 64, .growth_interval = 2};
    ASSERT_OK_AND_ASSIGN(const Run eager, Train(options, 1));
    options.cuda_graph = true;
    ASSERT_OK_AND_ASSIGN(const Run graph, Train(options, 1));
    ASSERT_EQ(eager.steps.size(), static_cast<size_t>(kSteps));
    ASSERT_EQ(graph.steps.size(), eager.steps.size());
    EXPECT_FALSE(std::isfinite(eager.steps[0].grad_norm)) << "the first step does not overflow";
    EXPECT_TRUE(std::isfinite(eager.steps[kSteps - 1].grad_norm));
    for (int step = 0; step < kSteps; ++step) {
      EXPECT_EQ(graph.steps[step].loss, eager.steps[step].loss) << step;
      EXPECT_EQ(graph.steps[step].scale, eager.steps[step].scale) << step;
    }
    EXPECT_TRUE(graph.weights == eager.weights) << "the weights after the last step differ";
  }
}

TEST_F(GraphTrainingTest, HybridShardOfFourRanksHasTheSameBits) {
  TrainOptions options = Options();
  options.fsdp.sharding_strategy = ShardingStrategy::kHybridShard;
  options.fsdp.shard_group_size = 2;
  ExpectGraphIsEager(options, 4);
}

TEST_F(GraphTrainingTest, CheckpointsBetweenReplaysAreThoseOfEagerStepsAndContinueEitherWay) {
  if (gpus_ < 2) GTEST_SKIP() << "nccl wants 2 GPUs, there are " << gpus_;
  TrainOptions options = Options();
  ASSERT_OK_AND_ASSIGN(const Run eager, Train(options, 2));
  TrainOptions resumed = options;
  options.cuda_graph = true;
  options.checkpoint_every = 1;
  for (const bool async : {false, true}) {
    options.checkpoint_dir = absl::StrCat(directory_, "/checkpoints", async);
    options.async_checkpoint = async;
    ASSERT_OK_AND_ASSIGN(const Run saved, Train(options, 2));
    ExpectSame(saved, eager);
  }
  // After an eager step, and after the one that was captured.
  for (const int done : {1, 3}) {
    resumed.resume = {ResumeChoice::Kind::kPath, absl::StrCat(options.checkpoint_dir, "/step-0000000", done)};
    for (const bool graph : {false, true}) {
      resumed.cuda_graph = graph;
      ASSERT_OK_AND_ASSIGN(const Run continued, Train(resumed, 2));
      ASSERT_EQ(continued.steps.size(), static_cast<size_t>(kSteps - done));
      EXPECT_EQ(continued.steps.back().loss, eager.steps.back().loss) << done << graph;
      EXPECT_TRUE(continued.weights == eager.weights) << done << graph;
    }
  }
}

// Each message has the remedy.

TEST_F(GraphTrainingTest, TheHostIsRefused) {
  TrainOptions options = Options();
  options.cuda_graph = true;
  EXPECT_THAT(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) { return TrainRank(options, group); }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--cuda_graph: the model is on cpu: a step can be captured only on a CUDA device")));
}

TEST_F(GraphTrainingTest, RanksThatAreThreadsAreRefused) {
  TrainOptions options = Options();
  options.cuda_graph = true;
  std::vector<std::shared_ptr<Device>> devices(2);
  for (std::shared_ptr<Device>& device : devices) {
    ASSERT_OK_AND_ASSIGN(device, CreateCudaDevice(0));
  }
  ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups(devices));
  EXPECT_THAT(RunRanks(2,
                       [&](std::shared_ptr<ProcessGroup> meeting) {
                         return TrainRank(options, std::shared_ptr<ProcessGroup>(std::move(groups[meeting->rank()])));
                       }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--cuda_graph: a step's collectives cannot be captured: backend local of 2 ranks "
                                 "needs its hosts in each; use backend nccl, or one rank")));
}

TEST_F(GraphTrainingTest, OffloadedParametersAreRefused) {
  TrainOptions options = Options();
  options.cuda_graph = true;
  options.fsdp.cpu_offload.offload_params = true;
  EXPECT_THAT(Train(options, 1).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("--cuda_graph: unit root: its parameters are on the host, whose optimizer step cannot "
                                 "be captured; train without CPU offload")));
}

TEST_F(GraphTrainingTest, ATraceIsRefused) {
  TrainOptions options = Options();
  options.cuda_graph = true;
  options.trace = directory_ + "/trace.json";
  EXPECT_THAT(Train(options, 1).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("--cuda_graph: a trace marks when work runs")));
}

}  // namespace
}  // namespace fsdp

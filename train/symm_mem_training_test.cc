// SPDX-License-Identifier: Apache-2.0
//
// train_gpt's run with --symm_mem_for_comm and --copy_engine_all_gather, on the emulated GPU with a fake NCCL.
#include <memory>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/fake_nccl.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/training_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kSteps = 2;

class SymmMemTrainingTest : public TrainingFixture {
 protected:
  // The losses of two ranks.
  absl::StatusOr<std::vector<double>> Train(TrainOptions options) {
    options.metrics = NewRunPath() + ".jsonl";
    FSDP_RETURN_IF_ERROR(RunRanks(2, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(meeting->rank()));
      FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, meeting->Split(0, meeting->rank()));
      FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                            CreateNcclGroup(std::move(control), std::move(device), absl::Minutes(5)));
      return TrainRank(options, group);
    }));
    FSDP_ASSIGN_OR_RETURN(const std::vector<StepMetrics> steps, ReadMetrics(options.metrics));
    std::vector<double> losses;
    for (const StepMetrics& step : steps) losses.push_back(step.loss);
    return losses;
  }
};

TEST_F(SymmMemTrainingTest, BothApisUseWindowsAndCopyEnginesIfTheyAreAskedToAndChangeNoBit) {
  for (const TrainApi api : {TrainApi::kFsdp1, TrainApi::kFsdp2}) {
    SCOPED_TRACE(api == TrainApi::kFsdp1 ? "fsdp1" : "fsdp2");
    TrainOptions options = Options(kSteps);
    options.batch_size = 1;
    options.api = api;
    const FakeNcclCounts before = CountFakeNccl();
    ASSERT_OK_AND_ASSIGN(const std::vector<double> plain, Train(options));
    EXPECT_EQ(plain.size(), static_cast<size_t>(kSteps));
    EXPECT_EQ(CountFakeNccl().symmetric, before.symmetric);

    options.fsdp.symm_mem_for_comm = true;
    ASSERT_OK_AND_ASSIGN(const std::vector<double> windows, Train(options));
    EXPECT_EQ(windows, plain);
    EXPECT_GT(CountFakeNccl().symmetric, before.symmetric);
    EXPECT_EQ(CountFakeNccl().by_copy_engines, before.by_copy_engines);

    options.fsdp.copy_engine_all_gather = true;
    ASSERT_OK_AND_ASSIGN(const std::vector<double> engines, Train(options));
    EXPECT_EQ(engines, plain);
    EXPECT_GT(CountFakeNccl().by_copy_engines, before.by_copy_engines);
  }
}

}  // namespace
}  // namespace fsdp

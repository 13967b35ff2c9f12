// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/rank_report.h"

#include <cmath>
#include <memory>

#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(RankReportTest, EveryRankReadsTheReportsOfAllByRank) {
  const absl::Status status = RunRanks(3, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<RankReports> reports, RankReports::Create(*group));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    const double rank = group->rank();
    for (int round = 0; round < 2; ++round) {
      reports->Gather([=] { return RankReport{rank + round, rank == 1 ? 1.0 : 0.0, 100 * rank}; }, *stream);
      FSDP_RETURN_IF_ERROR(stream->Synchronize());
      const std::vector<RankReport> all = reports->Read();
      EXPECT_EQ(all.size(), 3u);
      for (int r = 0; r < 3; ++r) {
        EXPECT_EQ(all[r].loss, r + round);
        EXPECT_EQ(all[r].stop_requested, r == 1 ? 1 : 0);
        EXPECT_EQ(all[r].peak_bytes, 100 * r);
      }
    }
    return absl::OkStatus();
  });
  EXPECT_OK(status);
}

// The mean of three losses, whose quotients and sums round, in every bit.
TEST(RankReportTest, WithoutTheHostTheReportsHaveTheSameBits) {
  constexpr int kMicroSteps = 3;
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<RankReports> reports, RankReports::Create(*group));
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
    for (int round = 0; round < 2; ++round) {
      double mean = 0;
      reports->SetKnown(group->rank() == 1, 1000 + round);
      for (int a = 0; a < kMicroSteps; ++a) {
        FSDP_ASSIGN_OR_RETURN(const Tensor loss, Tensor::Empty(*group->device(), DType::kFloat32, {1}));
        *loss.data_as<float>() = 10.1f + static_cast<float>(a + round) / 7 + static_cast<float>(group->rank());
        mean += static_cast<double>(*loss.data_as<float>()) / kMicroSteps;
        reports->AddLoss(loss, a, kMicroSteps, *stream);
      }
      reports->GatherOnDevice(*stream);
      FSDP_RETURN_IF_ERROR(stream->Synchronize());
      const std::vector<RankReport> all = reports->Read();
      EXPECT_EQ(all[group->rank()].loss, mean);
      EXPECT_NE(all[0].loss, all[1].loss);
      for (int r = 0; r < 2; ++r) {
        EXPECT_EQ(all[r].stop_requested, r);
        EXPECT_EQ(all[r].peak_bytes, 1000 + round);
      }
    }
    return absl::OkStatus();
  }));
}

TEST(RankReportTest, MeanLossIsTheMeanOverRanks) {
  EXPECT_THAT(MeanLoss({{.loss = 1}, {.loss = 2}, {.loss = 6}}, 0), IsOkAndHolds(3.0));
}

TEST(RankReportTest, ALossThatIsNotFiniteNamesStepAndRank) {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    EXPECT_THAT(MeanLoss({{.loss = 1}, {.loss = bad}}, 12),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("step 12"), HasSubstr("rank 1"), HasSubstr("expected a finite number"))));
  }
}

}  // namespace
}  // namespace fsdp

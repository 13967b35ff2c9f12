// SPDX-License-Identifier: Apache-2.0
//
// NCCL between processes that share GPU 0, each of which counts as its own host. Needs a GPU.
#include <stdlib.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/conformance/process_ranks.h"
#include "fsdp/collectives/cuda/nccl_process_group.h"
#include "fsdp/cuda/cuda_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int64_t kCount = 5003;

// Each collective once, and a part of the group.
absl::Status UseGroup(ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group.device()->CreateStream("test"));
  FSDP_ASSIGN_OR_RETURN(const Tensor all, NewTensor(group, Placement::kShared, DType::kInt64, kCount * group.size()));
  const Tensor own = all.Slice({group.rank() * kCount, (group.rank() + 1) * kCount});
  Fill(group, own, [&](int64_t i) { return ValueOf(group.rank(), i); });
  group.AllGather(own, all, *stream);
  const auto gathered = [](int64_t i) { return ValueOf(static_cast<int>(i / kCount), i % kCount); };
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  FSDP_RETURN_IF_ERROR(ExpectElements(group, all, gathered));
  group.ReduceScatter(all, own, ReduceOp::kSum, *stream);
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  FSDP_RETURN_IF_ERROR(ExpectElements(group, own, [&](int64_t i) { return group.size() * ValueOf(group.rank(), i); }));
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> part, group.Split(group.rank() % 2, 0));
  Fill(group, all, [](int64_t) { return 1; });
  part->AllReduce(all, ReduceOp::kSum, *stream);
  part->Broadcast(all, 0, *stream);
  group.Barrier(*stream);
  FSDP_RETURN_IF_ERROR(stream->Synchronize());
  return ExpectElements(group, all, [&](int64_t) { return part->size(); });
}

std::vector<RankResult> RunOnOneGpu(int ranks, absl::Duration timeout, const RankMain& rank_main) {
  return RunProcessRanks(ranks, absl::Minutes(2), [&](std::shared_ptr<ProcessGroup> on_host) -> absl::Status {
    setenv("NCCL_HOSTID", absl::StrCat("rank-", on_host->rank()).c_str(), 1);
    FSDP_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, CreateCudaDevice(0));
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> control, on_host->Split(0, on_host->rank()));
    FSDP_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                          CreateNcclGroup(std::move(control), std::move(device), timeout));
    return rank_main(group);
  });
}

bool NoGpu(const std::vector<RankResult>& results) {
  return std::any_of(results.begin(), results.end(), [](const RankResult& result) {
    return result.status.message().find("no usable GPU") != absl::string_view::npos;
  });
}

TEST(NcclSharedGpuTest, RanksThatPassForHostsOfTheirOwnShareOneGpu) {
  for (const int ranks : {2, 3}) {
    const std::vector<RankResult> results =
        RunOnOneGpu(ranks, absl::Minutes(1), [](std::shared_ptr<ProcessGroup> group) { return UseGroup(*group); });
    if (NoGpu(results)) GTEST_SKIP() << results[0].status.message();
    for (const RankResult& result : results) EXPECT_OK(result.status);
  }
}

// Rank 0's kernel spins, because rank 1 makes another call.
TEST(NcclSharedGpuTest, AKernelThatSpinsIsAbortedWhenRanksDiffer) {
  const std::vector<RankResult> results =
      RunOnOneGpu(2, absl::Seconds(3), [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
        FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group->device()->CreateStream("test"));
        FSDP_RETURN_IF_ERROR(UseGroup(*group));
        if (group->rank() == 1) return group->AllGatherObject("").status();
        group->Barrier(*stream);
        return stream->Synchronize();
      });
  if (NoGpu(results)) GTEST_SKIP() << results[0].status.message();
  for (const RankResult& result : results) EXPECT_FALSE(result.status.ok());
  EXPECT_THAT(results[0].status.message(), testing::HasSubstr("rank 0 has barrier"));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The whole job, at any size and on any hosts: the bits of the sums, messages of some megabytes.
#include "fsdp/collectives/conformance/mpi_job.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/conformance/conformance.h"
#include "fsdp/collectives/conformance/local_reference.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(MpiJobTest, ReductionsAreBitForBitThoseOfThreads) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> job, MpiJob());
  EXPECT_EQ(job->backend(), "mpi");
  EXPECT_OK(CompareReductionsWithLocal(*job, 5003));
}

absl::Status GatherMegabytes(ProcessGroup& group) {
  const int64_t n = 700001;
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, group.device()->CreateStream("test"));
  FSDP_ASSIGN_OR_RETURN(const Tensor t, NewTensor(group, Placement::kShared, DType::kFloat32, n * group.size()));
  const Tensor own = t.Slice({group.rank() * n, (group.rank() + 1) * n});
  for (int step = 0; step < 3; ++step) {
    Fill(group, own, [&](int64_t i) { return ValueOf(group.rank(), i + step); });
    group.AllGather(own, t, *stream);
    FSDP_RETURN_IF_ERROR(stream->Synchronize());
    FSDP_RETURN_IF_ERROR(
        ExpectElements(group, t, [&](int64_t i) { return ValueOf(static_cast<int>(i / n), i % n + step); }));
  }
  return absl::OkStatus();
}

TEST(MpiJobTest, LongMessagesArrive) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> job, MpiJob());
  EXPECT_OK(GatherMegabytes(*job));
}

}  // namespace
}  // namespace fsdp

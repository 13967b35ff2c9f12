// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/fake_process_group.h"

#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/init_process_group.h"
#include "fsdp/tensor/host_device.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// int32 tensors, so that values are exact.
class FakeProcessGroupTest : public testing::Test {
 protected:
  void Open(FakeGroupOptions options) {
    device_ = CreateHostDevice();
    options.device = device_;
    absl::StatusOr<std::unique_ptr<ProcessGroup>> group = CreateFakeGroup(std::move(options));
    ASSERT_OK(group.status());
    group_ = *std::move(group);
    absl::StatusOr<std::unique_ptr<Stream>> stream = device_->CreateStream("test");
    ASSERT_OK(stream.status());
    stream_ = *std::move(stream);
  }

  Tensor Of(const std::vector<int32_t>& values) {
    Tensor tensor = Tensor::Empty(*device_, DType::kInt32, {static_cast<int64_t>(values.size())}).value();
    std::copy(values.begin(), values.end(), tensor.data_as<int32_t>());
    return tensor;
  }

  static std::vector<int32_t> ValuesOf(const Tensor& tensor) {
    const auto* data = tensor.data_as<int32_t>();
    return {data, data + tensor.numel()};
  }

  std::shared_ptr<Device> device_;
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(FakeProcessGroupTest, IsAnyRankOfAnyWorld) {
  Open({.rank = 17, .size = 16384});
  EXPECT_EQ(group_->rank(), 17);
  EXPECT_EQ(group_->size(), 16384);
  EXPECT_EQ(group_->backend(), "fake");
  EXPECT_EQ(group_->device(), device_);
}

TEST_F(FakeProcessGroupTest, AnAllGatherMovesThisRanksPartAlone) {
  Open({.rank = 1, .size = 3});
  const Tensor output = Of({-1, -1, -1, -1, -1, -1});
  group_->AllGather(Of({7, 8}), output, *stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_THAT(ValuesOf(output), ElementsAre(-1, -1, 7, 8, -1, -1));
  group_->AllGather(output.Slice({2, 4}), output, *stream_);  // in place
  ASSERT_OK(stream_->Synchronize());
  EXPECT_THAT(ValuesOf(output), ElementsAre(-1, -1, 7, 8, -1, -1));
}

TEST_F(FakeProcessGroupTest, AReductionIsThisRanksContribution) {
  Open({.rank = 2, .size = 3});
  const Tensor output = Of({0, 0}), all = Of({5, 6});
  group_->ReduceScatter(Of({1, 2, 3, 4, 5, 6}), output, ReduceOp::kSum, *stream_);
  group_->AllReduce(all, ReduceOp::kMax, *stream_);
  group_->Broadcast(all, /*root=*/0, *stream_);
  group_->Barrier(*stream_);
  ASSERT_OK(stream_->Synchronize());
  EXPECT_THAT(ValuesOf(output), ElementsAre(5, 6));
  EXPECT_THAT(ValuesOf(all), ElementsAre(5, 6));
}

TEST_F(FakeProcessGroupTest, EveryPeerAgrees) {
  Open({.rank = 3, .size = 1000});
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> blobs, group_->AllGatherObject("mine"));
  EXPECT_THAT(blobs, AllOf(SizeIs(1000), Each("mine")));
  EXPECT_OK(AllReduceStatus(*group_, absl::OkStatus()));
  EXPECT_THAT(AllReduceStatus(*group_, absl::DataLossError("bad")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bad")));
}

TEST_F(FakeProcessGroupTest, SizesAreCheckedAsByARealGroup) {
  Open({.rank = 0, .size = 3});
  group_->AllGather(Of({1, 2}), Of({0, 0, 0}), *stream_);
  EXPECT_THAT(stream_->Synchronize(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("output is int32[3], wanted int32[6]")));
  // A group is broken after its first error.
  std::unique_ptr<Stream> other = device_->CreateStream("other").value();
  group_->Barrier(*other);
  EXPECT_FALSE(other->Synchronize().ok());
}

TEST_F(FakeProcessGroupTest, ARankThatGaveUpCollectsNoMore) {
  Open({.rank = 4, .size = 8});
  group_->Abort(absl::CancelledError("enough"));
  EXPECT_THAT(group_->AllGatherObject("x"), StatusIs(absl::StatusCode::kCancelled, HasSubstr("enough")));
}

TEST_F(FakeProcessGroupTest, APartHasTheSizeThatWasNamedForIt) {
  Open({.rank = 13, .size = 64, .split_sizes = {8, 8}});
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ProcessGroup> shard, group_->Split(/*color=*/13 / 8, /*key=*/13 % 8));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ProcessGroup> replicas, group_->Split(/*color=*/13 % 8, /*key=*/13 / 8));
  EXPECT_EQ(shard->rank(), 5);
  EXPECT_EQ(shard->size(), 8);
  EXPECT_EQ(replicas->rank(), 1);
  EXPECT_THAT(group_->Split(0, 0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            HasSubstr("split number 3 of a fake group of 64 ranks, color 0, key 0")));
  EXPECT_THAT(shard->Split(0, 0), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("split_sizes")));
}

TEST_F(FakeProcessGroupTest, AWorldThatCannotBeIsRefused) {
  EXPECT_THAT(CreateFakeGroup({.rank = 3, .size = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 3 of a fake group of 3 ranks")));
  EXPECT_THAT(CreateFakeGroup({.rank = 0, .size = 0}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("of 0")));
  EXPECT_THAT(CreateFakeGroup({.size = 8, .split_sizes = {3}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("has 3, wanted a divisor of 8 ranks")));
}

TEST_F(FakeProcessGroupTest, AJobGetsOneByTheNameOfTheBackendWithoutMeetingAnybody) {
  Rendezvous job;
  job.rank = 17;
  job.local_rank = 1;
  job.world_size = 16384;
  job.local_world_size = 8;
  job.local_ranks_are_known = true;
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<ProcessGroup> group, InitProcessGroup(job, {.backend = "fake"}));
  EXPECT_EQ(group->backend(), "fake");
  EXPECT_EQ(group->rank(), 17);
  EXPECT_EQ(group->size(), 16384);
}

}  // namespace
}  // namespace fsdp

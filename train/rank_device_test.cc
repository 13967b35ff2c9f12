// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/rank_device.h"

#include <stdlib.h>

#include "fsdp/base/status_matchers.h"
#include "fsdp/cuda/cuda_device.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The number of the emulator's GPUs.
constexpr int kGpus = 4;

Rendezvous RankOf(int rank, int world_size) {
  Rendezvous job;
  job.rank = job.local_rank = rank;
  job.world_size = job.local_world_size = world_size;
  return job;
}

TEST(RankDeviceTest, ARankHasTheGpuOfItsLocalRank) {
  ASSERT_OK_AND_ASSIGN(const int gpus, CudaDeviceCount());
  ASSERT_EQ(gpus, kGpus);
  for (const DeviceChoice choice : {DeviceChoice::kAuto, DeviceChoice::kCuda}) {
    ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Device> device, CreateRankDevice(RankOf(3, 4), {.device = choice}));
    EXPECT_EQ(device->name(), "cuda:3");
    ASSERT_OK_AND_ASSIGN(const int counted, CountGpus(choice));
    EXPECT_EQ(counted, kGpus);
  }
}

TEST(RankDeviceTest, TheCpuIsChosenWhereItIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Device> device,
                       CreateRankDevice(RankOf(0, 9), {.device = DeviceChoice::kCpu}));
  EXPECT_EQ(device->name(), "cpu");
  ASSERT_OK_AND_ASSIGN(const int counted, CountGpus(DeviceChoice::kCpu));
  EXPECT_EQ(counted, 0);
}

TEST(RankDeviceTest, RanksShareAGpuOnlyWhereTheyMay) {
  unsetenv("NCCL_HOSTID");
  EXPECT_THAT(CreateRankDevice(RankOf(5, 6), {}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("6 ranks on this host, which has 4 GPUs"), HasSubstr("--share_gpu"))));
  EXPECT_EQ(getenv("NCCL_HOSTID"), nullptr);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Device> device, CreateRankDevice(RankOf(5, 6), {.share_gpu = true}));
  EXPECT_EQ(device->name(), "cuda:1");
  EXPECT_STREQ(getenv("NCCL_HOSTID"), "rank-5");
}

}  // namespace
}  // namespace fsdp

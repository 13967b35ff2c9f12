// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/unit_follower.h"

#include <torch/nn.h>

#include <memory>
#include <utility>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fully_sharded_data_parallel.h"
#include "fsdp/libtorch/torch_module_trees.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

TEST(UnitFollowerTest, AForwardIsAbandonedAlsoWhereLibTorchCannotBeWaitedFor) {
  ASSERT_OK(RunRanks(1, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    torch::nn::Linear linear(2, 3);
    FSDP_ASSIGN_OR_RETURN(std::unique_ptr<MirrorModule> mirror, MirrorModule::Create(TreeOf(*linear)));
    mirror->AssignNames();
    const MirrorModule& original = *mirror;
    FSDP_ASSIGN_OR_RETURN(const auto fsdp, FullyShardedDataParallel::Wrap(std::move(mirror), group));
    const std::shared_ptr<UnitFollower> follower = UnitFollower::Create(ShardedModel::Of(*fsdp), original);
    const TorchStreams before = follower->streams();
    follower->BeginForward();
    EXPECT_TRUE(follower->in_forward());
    // LibTorch does not have such a device.
    follower->streams() = TorchStreams(fsdp->stream(), c10::Device(c10::DeviceType::FPGA, 0));
    follower->AbandonForward();
    EXPECT_FALSE(follower->in_pass());
    follower->streams() = before;
    follower->BeginForward();  // and it continues
    EXPECT_TRUE(follower->leaves().leaves()[0].storage->bound());
    follower->AbandonForward();
    EXPECT_EQ(follower->leaves().bound_bytes(), 0);
    follower->Close();
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// offload_to_cpu, by the bytes that are left on the device: host memory takes no memory of a GPU. On the host's own
// device the two memories are one, so the test cannot distinguish them.
#include <functional>
#include <memory>
#include <variant>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/model_testutil.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

// The bytes of all tensors of a state dict on this rank.
int64_t BytesOf(const StateDict& state) {
  int64_t nbytes = 0;
  for (const auto& [key, value] : state.entries()) {
    const auto* tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    for (const ShardedTensor::Shard& shard : tensor->shards) nbytes += shard.data.nbytes();
  }
  return nbytes;
}

// The bytes on the device that a state dict of these settings holds on to, and checks them against `offloaded`.
absl::Status ExpectPlacement(TestModel& made, const StateDictSettings& settings, bool offloaded) {
  const StateDictTypeGuard guard(*made.model, settings);
  const Device& device = made.model->device();
  const int64_t before = device.allocated_bytes();
  FSDP_ASSIGN_OR_RETURN(const StateDict state, made.model->GetStateDict());
  EXPECT_GT(BytesOf(state), 0);
  EXPECT_EQ(device.allocated_bytes() - before, offloaded ? 0 : BytesOf(state));
  return absl::OkStatus();
}

// The bytes on the device while the parameters are summoned.
absl::StatusOr<int64_t> BytesWhileSummoned(TestModel& made, bool offload_to_cpu) {
  const int64_t before = made.model->device().allocated_bytes();
  FSDP_ASSIGN_OR_RETURN(const auto guard,
                        made.model->SummonFullParams({.writeback = false, .offload_to_cpu = offload_to_cpu}));
  const int64_t during = made.model->device().allocated_bytes() - before;
  FSDP_RETURN_IF_ERROR(guard->Close());
  return during;
}

class OffloadPlacementTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CudaDeviceCount();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
  }

  // Two ranks, threads on one GPU.
  void OnTwoRanks(const std::function<absl::Status(TestModel& made)>& rank_main) {
    ASSERT_OK_AND_ASSIGN(std::shared_ptr<Device> first, CreateCudaDevice(0));
    ASSERT_OK_AND_ASSIGN(std::shared_ptr<Device> second, CreateCudaDevice(0));
    ASSERT_OK_AND_ASSIGN(auto made_groups, CreateLocalCudaGroups({first, second}));
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    for (auto& group : made_groups) groups.push_back(std::move(group));
    EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(TestModel made, MakeTestModel(groups[meeting->rank()], BlockOptions()));
      return rank_main(made);
    }));
  }
};

TEST_F(OffloadPlacementTest, AFullStateDictIsInHostMemoryIfAskedTo) {
  OnTwoRanks([](TestModel& made) -> absl::Status {
    FSDP_RETURN_IF_ERROR(ExpectPlacement(made, FullStateDictConfig{}, false));
    return ExpectPlacement(made, FullStateDictConfig{.offload_to_cpu = true}, true);
  });
}

TEST_F(OffloadPlacementTest, AShardedStateDictIsInHostMemoryIfAskedTo) {
  OnTwoRanks([](TestModel& made) -> absl::Status {
    FSDP_RETURN_IF_ERROR(ExpectPlacement(made, ShardedStateDictConfig{}, false));
    return ExpectPlacement(made, ShardedStateDictConfig{.offload_to_cpu = true}, true);
  });
}

// In both cases the guard also has the buffer that it gathers in.
TEST_F(OffloadPlacementTest, SummonedParametersAreInHostMemoryIfAskedTo) {
  OnTwoRanks([](TestModel& made) -> absl::Status {
    int64_t parameters = 0;
    for (const ShardedParameter* p : made.model->parameters()) parameters += p->shape.numel() * SizeOf(DType::kFloat32);
    FSDP_ASSIGN_OR_RETURN(const int64_t on_device, BytesWhileSummoned(made, false));
    FSDP_ASSIGN_OR_RETURN(const int64_t on_host, BytesWhileSummoned(made, true));
    EXPECT_EQ(on_device - on_host, parameters);
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace fsdp

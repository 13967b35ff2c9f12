// SPDX-License-Identifier: Apache-2.0
//
// shard_placement_fn on a GPU, whose kernels move the pieces of a cut on another dimension than 0.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/cuda/local_cuda_communicator.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/cuda/cuda_device.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/sequence_testutil.h"
#include "fsdp/optim/adamw.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

constexpr int kRows = 3;
constexpr int64_t kIn = 4, kHidden = 6;

using Bytes = std::map<std::string, std::string>;

absl::StatusOr<Tensor> OnDevice(Tape& tape, const Shape& shape, float scale) {
  std::vector<float> values(shape.numel());
  for (int64_t i = 0; i < shape.numel(); ++i) values[i] = scale * static_cast<float>(i * i % 7 - 3);
  FSDP_ASSIGN_OR_RETURN(const Tensor t, tape.Empty(DType::kFloat32, shape));
  tape.stream().CopyAsync(t.data(), values.data(), t.nbytes());
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  return t;
}

// Whole parameters after two steps of AdamW, with every matrix cut on `dim`.
absl::StatusOr<Bytes> Train(const std::shared_ptr<ProcessGroup>& group, int dim, bool bfloat16) {
  TestSequence model;
  TestSequence* block = model.AddSequence("Block");
  block->AddLinear(kIn, kHidden);
  block->AddLinear(kHidden, kHidden);
  model.AddLinear(kHidden, kIn);
  FullyShardOptions options;
  options.shard_placement_fn = [dim](const Parameter& parameter) -> std::optional<int> {
    return parameter.shape.rank() > dim ? dim : 0;
  };
  if (bfloat16) options.mp_policy.param_dtype = DType::kBFloat16;
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_RETURN_IF_ERROR(FullyShard(*block, mesh, options).status());
  options.mp_policy.output_dtype = DType::kFloat32;
  FSDP_ASSIGN_OR_RETURN(FsdpModule * root, FullyShard(model, mesh, options));
  FSDP_ASSIGN_OR_RETURN(const auto parameters, root->parameters());
  AdamW optimizer(parameters, {.lr = 1e-2});
  for (int step = 0; step < 2; ++step) {
    FSDP_ASSIGN_OR_RETURN(Tape tape, root->NewTape());
    FSDP_ASSIGN_OR_RETURN(const Tensor x, OnDevice(tape, {kRows, kIn}, static_cast<float>(group->rank() + step + 1)));
    FSDP_ASSIGN_OR_RETURN(const Tensor y, model.Forward(x, tape));
    FSDP_ASSIGN_OR_RETURN(const Tensor grad, OnDevice(tape, y.shape(), 0.25f));
    FSDP_RETURN_IF_ERROR(model.Backward(grad, tape).status());
    FSDP_RETURN_IF_ERROR(optimizer.Step(tape.stream()));
    FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
    optimizer.ZeroGrad();
  }
  FSDP_ASSIGN_OR_RETURN(const StateDict state, root->GetFullStateDict({.offload_to_cpu = true}));
  Bytes bytes;
  for (const auto& [key, value] : state.entries()) {
    const Tensor& data = std::get<ShardedTensor>(value).shards.at(0).data;
    bytes[key.fqn].assign(data.data_as<const char>(), data.nbytes());
  }
  return bytes;
}

// In float32 and bfloat16.
class ShardPlacementOnGpuTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    const absl::StatusOr<int> gpus = CudaDeviceCount();
    if (!gpus.ok()) GTEST_SKIP() << gpus.status().message();
  }
};

TEST_P(ShardPlacementOnGpuTest, AnotherDimensionTrainsToTheBitsOfDimension0) {
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<Device> first, CreateCudaDevice(0));
  ASSERT_OK_AND_ASSIGN(std::shared_ptr<Device> second, CreateCudaDevice(0));
  ASSERT_OK_AND_ASSIGN(auto groups, CreateLocalCudaGroups({first, second}));
  EXPECT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> meeting) -> absl::Status {
    const std::shared_ptr<ProcessGroup> group = std::move(groups[meeting->rank()]);
    FSDP_ASSIGN_OR_RETURN(const Bytes rows, Train(group, 0, GetParam()));
    FSDP_ASSIGN_OR_RETURN(const Bytes columns, Train(group, 1, GetParam()));
    EXPECT_EQ(rows.size(), 6u);
    EXPECT_EQ(columns, rows);
    return absl::OkStatus();
  }));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ShardPlacementOnGpuTest, testing::Bool());

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The losses of PyTorch's fully_shard in mixed precision (make_golden.py, mixed.json): of units in bfloat16 that return
// float32 within a root in float32, and of whole models in bfloat16, except batch norms.
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/tests/libtorch/models.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

const std::string kTestData = "tests/libtorch/testdata/";

nlohmann::json Golden() {
  std::ifstream stream(kTestData + "mixed.json");
  return nlohmann::json::parse(stream);
}

// Kernels for other instructions sum in another order; a sum that is rounded to bfloat16 then differs by 2^-8 of itself
// in single elements. Casts at other places differ by 1e-4 in these losses.
double ToleranceOf(const nlohmann::json& golden) {
  return at::get_cpu_capability() == golden["cpu_capability"] ? 1e-6 : 2e-3;
}

absl::StatusOr<std::unique_ptr<ShardedModule>> ShardMixed(TestModel& model, std::shared_ptr<ProcessGroup> group,
                                                          bool whole) {
  MixedPrecisionPolicy low;
  low.param_dtype = DType::kBFloat16;
  low.reduce_dtype = DType::kFloat32;
  FullyShardOptions of_units{.mp_policy = low}, of_root;
  if (whole) of_root.mp_policy = low;
  (whole ? of_root : of_units).mp_policy.output_dtype = DType::kFloat32;
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  FSDP_ASSIGN_OR_RETURN(auto mirror, MirrorModule::Create(TreeOf(model)));
  for (const std::string& unit : model.low_units()) {
    FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror->Find(unit)), mesh, of_units).status());
  }
  for (const std::string& unit : model.full_units()) {
    FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror->Find(unit)), mesh, FullyShardOptions()).status());
  }
  FSDP_RETURN_IF_ERROR(FullyShard(static_cast<Module&>(*mirror), mesh, of_root).status());
  return ShardedModule::FromFullyShard(std::move(mirror));
}

absl::Status TrainAsPython(const std::string& name, bool whole, std::shared_ptr<ProcessGroup> group) {
  at::set_num_threads(1);
  const nlohmann::json golden = Golden();
  const std::vector<double> losses = golden[whole ? "whole" : "units"][name];
  const std::shared_ptr<TestModel> model = MakeTestModel(name);
  FSDP_ASSIGN_OR_RETURN(const auto sharded, ShardMixed(*model, group, whole));
  FSDP_RETURN_IF_ERROR(sharded->fsdp().Restore(
      nullptr, [&](StateDict& wanted) { return LoadCheckpoint(kTestData + name + ".pt", wanted); }));
  torch::optim::SGD optimizer(sharded->LocalParameters(),
                              torch::optim::SGDOptions(double{golden["learning_rate"]}).momentum(0.9));
  EXPECT_FALSE(losses.empty());
  for (size_t step = 0; step < losses.size(); ++step) {
    const Batch batch = model->BatchOf(step).Of(group->rank(), group->size());
    const at::Tensor logits = sharded->Forward([&] { return model->Output(step, batch.x); });
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    const at::Tensor loss = TestModel::LossOf(logits, batch.y);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
    FSDP_ASSIGN_OR_RETURN(const auto all, group->AllGatherObject(absl::StrFormat("%.17g", loss.item<double>())));
    double sum = 0;
    for (const std::string& one : all) sum += std::strtod(one.c_str(), nullptr);
    EXPECT_NEAR(sum / all.size(), losses[step], ToleranceOf(golden) * losses[step]) << name << ", step " << step;
  }
  return absl::OkStatus();
}

class MixedLossesTest : public testing::TestWithParam<const char*> {};

TEST_P(MixedLossesTest, UnitsInBfloat16ThatReturnFloat32HavePythons) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) { return TrainAsPython(GetParam(), false, group); }));
}

TEST_P(MixedLossesTest, AModelInBfloat16HasPythons) {
  EXPECT_OK(RunRanks(2, [](std::shared_ptr<ProcessGroup> group) { return TrainAsPython(GetParam(), true, group); }));
}

INSTANTIATE_TEST_SUITE_P(Models, MixedLossesTest, testing::Values("mlp", "transformer", "conv_net", "lstm", "mixture"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The losses of PyTorch's fully_shard, from the weights that Python saved: testdata/ is made by make_golden.py from the
// models of models.py, and models.h has the same models.
#include <torch/torch.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/device_mesh.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/libtorch/sharded_module.h"
#include "fsdp/libtorch/torch_optimizer.h"
#include "fsdp/optim/adamw.h"
#include "fsdp/tests/libtorch/models.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

const std::string kTestData = "tests/libtorch/testdata/";

struct Golden {
  double learning_rate = 0, weight_decay = 0;
  int64_t resumed_at = 0;
  nlohmann::json losses;

  static Golden Read() {
    std::ifstream stream(kTestData + "losses.json");
    const nlohmann::json json = nlohmann::json::parse(stream);
    return {json["learning_rate"], json["weight_decay"], json["resumed_at"], json["losses"]};
  }
};

enum class Api { kShard, kFullyShard };
enum class Update { kOurs, kTorch };

struct Case {
  std::string model;
  int ranks = 2;
  Api api = Api::kFullyShard;
  Update update = Update::kTorch;
  std::string checkpoint = {};  // with an optimizer; empty: the initial weights
};

absl::StatusOr<std::unique_ptr<ShardedModule>> Wrap(TestModel& model, std::shared_ptr<ProcessGroup> group, Api api) {
  std::set<const torch::nn::Module*> units;
  for (const std::string& name : model.units()) units.insert(model.named_modules()[name].get());
  const auto is_unit = [units](const Module& module) {
    const auto* mirror = dynamic_cast<const MirrorModule*>(&module);
    return mirror != nullptr && units.count(mirror->original()) != 0;
  };
  if (api == Api::kShard) return Shard(model, group, FsdpOptions{.auto_wrap_policy = LambdaWrapPolicy(is_unit)});
  FSDP_ASSIGN_OR_RETURN(const auto mesh, DeviceMesh::Create(group, {group->size()}, {"shard"}));
  return FullyShard(model, mesh, is_unit);
}

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(ShardedModule& sharded, Update update, const Golden& golden) {
  if (update == Update::kOurs) {
    return std::make_unique<AdamW>(sharded.parameters(),
                                   AdamWOptions{.lr = static_cast<float>(golden.learning_rate),
                                                .weight_decay = static_cast<float>(golden.weight_decay)});
  }
  const auto options = torch::optim::AdamWOptions(golden.learning_rate).weight_decay(golden.weight_decay);
  return TorchOptimizer::Create(sharded, std::make_unique<torch::optim::AdamW>(sharded.LocalParameters(), options));
}

absl::StatusOr<double> MeanOverRanks(const at::Tensor& loss, ProcessGroup& group) {
  FSDP_ASSIGN_OR_RETURN(const auto all, group.AllGatherObject(absl::StrFormat("%.17g", loss.item<double>())));
  double sum = 0;
  for (const std::string& one : all) sum += std::strtod(one.c_str(), nullptr);
  return sum / all.size();
}

// Checks each step's loss.
absl::Status TrainAsPython(const Case& c, const Golden& golden, std::shared_ptr<ProcessGroup> group) {
  at::set_num_threads(1);
  const std::shared_ptr<TestModel> model = MakeTestModel(c.model);
  FSDP_ASSIGN_OR_RETURN(const auto sharded, Wrap(*model, group, c.api));
  FSDP_ASSIGN_OR_RETURN(const auto optimizer, MakeOptimizer(*sharded, c.update, golden));
  const bool resumes = !c.checkpoint.empty();
  const std::string path = kTestData + (resumes ? c.checkpoint : c.model + ".pt");
  FSDP_RETURN_IF_ERROR(sharded->fsdp().Restore(resumes ? optimizer.get() : nullptr,
                                               [&](StateDict& wanted) { return LoadCheckpoint(path, wanted); }));
  const std::vector<double> losses = golden.losses[c.model];
  for (size_t step = resumes ? golden.resumed_at : 0; step < losses.size(); ++step) {
    const Batch batch = model->BatchOf(step).Of(group->rank(), group->size());
    const at::Tensor loss = sharded->Forward([&] { return model->Loss(step, batch); });
    loss.backward();
    FSDP_RETURN_IF_ERROR(optimizer->Step(sharded->stream()));
    optimizer->ZeroGrad();
    FSDP_ASSIGN_OR_RETURN(const double mean, MeanOverRanks(loss, *group));
    EXPECT_NEAR(mean, losses[step], 1e-6 * losses[step]) << c.model << ", step " << step;
  }
  return absl::OkStatus();
}

void ExpectPythonsLosses(const Case& c) {
  const Golden golden = Golden::Read();
  EXPECT_OK(RunRanks(c.ranks, [&](std::shared_ptr<ProcessGroup> group) { return TrainAsPython(c, golden, group); }));
}

class FullyShardLossesTest : public testing::TestWithParam<const char*> {};

TEST_P(FullyShardLossesTest, TwoRanksOfFullyShardHavePythons) { ExpectPythonsLosses({.model = GetParam()}); }

TEST_P(FullyShardLossesTest, TwoRanksOfFullyShardWithOurAdamWHavePythons) {
  ExpectPythonsLosses({.model = GetParam(), .update = Update::kOurs});
}

std::string NameOf(const testing::TestParamInfo<const char*>& info) { return info.param; }

INSTANTIATE_TEST_SUITE_P(Models, FullyShardLossesTest,
                         testing::Values("mlp", "transformer", "conv_net", "lstm", "mixture"), NameOf);

class ShardLossesTest : public testing::TestWithParam<const char*> {};

TEST_P(ShardLossesTest, TwoRanksOfShardHavePythons) { ExpectPythonsLosses({.model = GetParam(), .api = Api::kShard}); }

// Without the mixture: FSDP1 gives an unused parameter a gradient of zeros, and AdamW then moves it; FSDP2 gives it no
// gradient.
INSTANTIATE_TEST_SUITE_P(Models, ShardLossesTest, testing::Values("mlp", "transformer", "conv_net", "lstm"), NameOf);

// Python's two ranks after some steps, weights and torch.optim's state, must continue here with Python's losses.
TEST(PythonCheckpointTest, ADirectoryOfTwoRanksOfPythonGoesOnOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 4}) {
    for (const Update update : {Update::kTorch, Update::kOurs}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks"));
      ExpectPythonsLosses({.model = "transformer", .ranks = ranks, .update = update, .checkpoint = "resumed"});
    }
  }
}

TEST(PythonCheckpointTest, OfAnotherModelIsRefusedByName) {
  const absl::Status status = RunRanks(2, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const std::shared_ptr<TestModel> model = MakeTestModel("lstm");
    FSDP_ASSIGN_OR_RETURN(const auto sharded, Wrap(*model, group, Api::kFullyShard));
    return sharded->fsdp().Restore(nullptr,
                                   [](StateDict& wanted) { return LoadCheckpoint(kTestData + "conv_net.pt", wanted); });
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                               testing::HasSubstr("\"model/head.weight\": stored shape [5, 17] != wanted [29, 23] in " +
                                                  kTestData + "conv_net.pt")));
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Runs with each optimizer of --optimizer: they learn, continue from their checkpoints, and refuse the state of
// another.
#include "fsdp/train/run_optimizers.h"

#include <cstddef>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/train/metrics.h"
#include "fsdp/train/sharded_language_model.h"
#include "fsdp/train/training_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class RunOptimizersTest : public TrainingFixture {
 protected:
  TrainOptions OptionsOf(OptimizerKind kind, int64_t steps) const {
    TrainOptions options = Options(steps);
    options.optimizer = kind;
    options.adamw.decoupled_weight_decay = kind != OptimizerKind::kAdam;
    if (kind == OptimizerKind::kSgd || kind == OptimizerKind::kMuon) options.momentum = 0.9;
    return options;
  }

  absl::StatusOr<std::vector<StepMetrics>> Train(TrainOptions options, int ranks) {
    options.metrics = NewRunPath() + ".jsonl";
    FSDP_RETURN_IF_ERROR(
        RunRanks(ranks, [&](std::shared_ptr<ProcessGroup> group) { return TrainRank(options, group); }));
    return ReadMetrics(options.metrics);
  }
};

// In 16 bits bfloat16 is rounded at random, float16 has a scaler.
struct LowRun {
  OptimizerKind kind;
  DType dtype;
};

constexpr OptimizerKind kKinds[] = {OptimizerKind::kAdamW, OptimizerKind::kAdam,      OptimizerKind::kSgd,
                                    OptimizerKind::kLion,  OptimizerKind::kAdafactor, OptimizerKind::kMuon};

TEST_F(RunOptimizersTest, ARunContinuesWithTheLossesThatItWouldHaveHad) {
  for (const OptimizerKind kind : kKinds) {
    SCOPED_TRACE(std::string(OptimizerKindName(kind)));
    ASSERT_OK_AND_ASSIGN(const auto whole, Train(OptionsOf(kind, 5), 2));
    TrainOptions first = OptionsOf(kind, 2);
    first.checkpoint_dir = NewRunPath();
    ASSERT_OK(Train(first, 2));
    TrainOptions rest = OptionsOf(kind, 5);
    rest.checkpoint_dir = first.checkpoint_dir;
    ASSERT_OK_AND_ASSIGN(const auto continued, Train(rest, 2));
    ASSERT_EQ(whole.size(), 5u);
    ASSERT_EQ(continued.size(), 3u);
    for (size_t step = 0; step < continued.size(); ++step) EXPECT_EQ(continued[step].loss, whole[step + 2].loss);
    ASSERT_OK_AND_ASSIGN(const StateDict saved, DescribeCheckpoint(first.checkpoint_dir + "/step-00000005"));
    const auto optimizer = saved.attributes.find("options.optimizer");
    ASSERT_EQ(optimizer == saved.attributes.end(), kind == OptimizerKind::kAdamW) << "the bytes of before";
    if (kind == OptimizerKind::kAdamW) continue;
    EXPECT_EQ(optimizer->second, AttributeValue(std::string(OptimizerKindName(kind))));
  }
}

TEST_F(RunOptimizersTest, ARunIn16BitsContinuesToo) {
  std::vector<LowRun> runs;
  for (const OptimizerKind kind : kKinds) {
    runs.push_back({kind, DType::kBFloat16});
    if (kind != OptimizerKind::kMuon) runs.push_back({kind, DType::kFloat16});  // two optimizers have no scaler
  }
  for (const LowRun& run : runs) {
    SCOPED_TRACE(std::string(OptimizerKindName(run.kind)) + " in " + std::string(DTypeName(run.dtype)));
    const auto options_of = [&](int64_t steps) {
      TrainOptions options = OptionsOf(run.kind, steps);
      options.dtype = run.dtype;
      options.bf16_stochastic_round = run.dtype == DType::kBFloat16;
      options.adamw.eps = 1e-4;
      if (run.dtype == DType::kFloat16) options.grad_scaler = GradScalerOptions{.init_scale = 64};
      return options;
    };
    ASSERT_OK_AND_ASSIGN(const auto whole, Train(options_of(4), 2));
    TrainOptions first = options_of(2), rest = options_of(4);
    first.checkpoint_dir = rest.checkpoint_dir = NewRunPath();
    ASSERT_OK(Train(first, 2));
    ASSERT_OK_AND_ASSIGN(const auto continued, Train(rest, 2));
    ASSERT_EQ(continued.size(), 2u);
    for (size_t step = 0; step < continued.size(); ++step) EXPECT_EQ(continued[step].loss, whole[step + 2].loss);
    ASSERT_OK_AND_ASSIGN(const StateDict saved, DescribeCheckpoint(first.checkpoint_dir + "/step-00000004"));
    EXPECT_EQ(saved.attributes.at("options.dtype"), AttributeValue(std::string(DTypeName(run.dtype))));
    int states = 0;
    for (const auto& [key, value] : saved.entries()) {
      const auto* tensor = std::get_if<ShardedTensor>(&value);
      if (tensor == nullptr || key.state == "step") continue;
      EXPECT_EQ(tensor->dtype, run.dtype) << key.ToString();
      states += key.section == StateKey::Section::kOptimState;
    }
    EXPECT_GT(states, 0);
  }
}

TEST_F(RunOptimizersTest, MuonTrainsTheMatricesOfBlocksAndAdamWTheRest) {
  ASSERT_OK(RunRanks(2, [this](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    const TrainOptions options = OptionsOf(OptimizerKind::kMuon, 1);
    FSDP_ASSIGN_OR_RETURN(const CausalLmConfig config, ReadModelConfig(options, nullptr));
    FSDP_ASSIGN_OR_RETURN(const auto model, MakeShardedModel(config, options, group, nullptr));
    FSDP_ASSIGN_OR_RETURN(const auto optimizers, MakeOptimizers(options, *model));
    EXPECT_EQ(optimizers.size(), 2u);
    std::vector<std::string> hidden;
    for (const ShardedParameter* parameter : optimizers[0]->parameters()) hidden.push_back(parameter->fqn);
    EXPECT_THAT(hidden, testing::UnorderedElementsAre(
                            "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight",
                            "transformer.h.0.mlp.c_fc.weight", "transformer.h.0.mlp.c_proj.weight"));
    EXPECT_EQ(optimizers[0]->parameters().size() + optimizers[1]->parameters().size(), model->parameters().size());
    return absl::OkStatus();
  }));
}

TEST_F(RunOptimizersTest, AnotherOptimizersStateIsRefusedUnlessAllowNamesIt) {
  TrainOptions first = OptionsOf(OptimizerKind::kAdamW, 2);
  first.checkpoint_dir = NewRunPath();
  ASSERT_OK(Train(first, 2));
  TrainOptions other = OptionsOf(OptimizerKind::kSgd, 4);
  other.checkpoint_dir = first.checkpoint_dir;
  EXPECT_THAT(Train(other, 2),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("options.optimizer was \"adamw\" when it was saved, and is \"sgd\" here"),
                             HasSubstr("--allow=options.optimizer"))));
  other.allow = {"options.optimizer"};
  testing::internal::CaptureStdout();
  EXPECT_OK(Train(other, 2));
  EXPECT_THAT(testing::internal::GetCapturedStdout(), HasSubstr("the optimizer begins anew"));
  TrainOptions amsgrad = OptionsOf(OptimizerKind::kAdamW, 4);
  amsgrad.adamw.amsgrad = true;
  amsgrad.resume = {ResumeChoice::Kind::kPath, first.checkpoint_dir + "/step-00000002"};
  EXPECT_THAT(Train(amsgrad, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("options.amsgrad was false when it was saved")));
}

}  // namespace
}  // namespace fsdp

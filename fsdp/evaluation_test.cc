// SPDX-License-Identifier: Apache-2.0
//
// Forwards without a backward: what they keep unsharded, for the next one or for the next step, and the values that
// they compute with. The counts are PyTorch's, of three units on gloo.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/collectives/group/recording_process_group.h"
#include "fsdp/collectives/run_ranks.h"
#include "fsdp/fsdp/fsdp.h"
#include "fsdp/fsdp/fully_shard_testutil.h"
#include "fsdp/fsdp/model_testutil.h"
#include "fsdp/optim/adamw.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;

constexpr int kUnits = 3;

// All-gathers since the last call.
int TakeGathers(RecordingProcessGroup::Log& log) {
  const int gathers = CountEntries(log, "all_gather");
  log.clear();
  return gathers;
}

absl::Status Evaluate(TestModel& made) {
  Tape tape = made.model->NewTape(/*training=*/false);
  FSDP_ASSIGN_OR_RETURN(const TestBatch batch, TestBatchOf(made.model->device(), 0, 0));
  FSDP_RETURN_IF_ERROR(made.model->Forward(batch.tokens, tape).status());
  return made.model->stream().Synchronize();
}

// The all-gathers of two evaluations and a step, twice.
absl::StatusOr<std::vector<int>> GathersUnder(const std::shared_ptr<ProcessGroup>& inner, const FsdpOptions& options) {
  auto log = std::make_shared<RecordingProcessGroup::Log>();
  FSDP_ASSIGN_OR_RETURN(TestModel made,
                        MakeTestModel(std::make_shared<RecordingProcessGroup>(inner, "world", log), options));
  log->clear();
  std::vector<int> gathers;
  for (int round = 0; round < 2; ++round) {
    for (int evaluation = 0; evaluation < 2; ++evaluation) {
      FSDP_RETURN_IF_ERROR(Evaluate(made));
      gathers.push_back(TakeGathers(*log));
    }
    FSDP_RETURN_IF_ERROR(made.Train(round));
    gathers.push_back(TakeGathers(*log));
  }
  return gathers;
}

TEST(EvaluationTest, KeepsWhatTheStrategyKeepsAfterForward) {
  ASSERT_OK(RunRanks(4, [](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FsdpOptions options = BlockOptions();
    FSDP_ASSIGN_OR_RETURN(std::vector<int> gathers, GathersUnder(group, options));
    EXPECT_THAT(gathers, ElementsAre(3, 2, 4, 3, 2, 4)) << "the root is kept";
    options.sharding_strategy = ShardingStrategy::kShardGradOp;
    FSDP_ASSIGN_OR_RETURN(gathers, GathersUnder(group, options));
    EXPECT_THAT(gathers, ElementsAre(3, 0, 0, 3, 0, 0));
    options.sharding_strategy = ShardingStrategy::kHybridShardZero2;
    options.shard_group_size = 2;
    FSDP_ASSIGN_OR_RETURN(gathers, GathersUnder(group, options));
    EXPECT_THAT(gathers, ElementsAre(3, 0, 0, 3, 0, 0));
    return absl::OkStatus();
  }));
}

// A copy in the dtype of an evaluation does not serve a step, and the reverse.
TEST(EvaluationTest, InFullPrecisionKeepsNothing) {
  FsdpOptions options = BlockOptions();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.mixed_precision.param_dtype = DType::kBFloat16;
  options.full_precision_in_eval = true;
  ASSERT_OK(RunRanks(2, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::vector<int> gathers, GathersUnder(group, options));
    EXPECT_THAT(gathers, ElementsAre(3, 3, 3, 3, 3, 3));
    FSDP_ASSIGN_OR_RETURN(TestModel plain, MakeTestModel(group, options));
    FSDP_ASSIGN_OR_RETURN(TestModel evaluated, MakeTestModel(group, options));
    for (int step = 0; step < 3; ++step) {
      FSDP_RETURN_IF_ERROR(Evaluate(evaluated));
      FSDP_ASSIGN_OR_RETURN(const float wanted, plain.ComputeGradients(step));
      FSDP_ASSIGN_OR_RETURN(const float loss, evaluated.ComputeGradients(step));
      EXPECT_EQ(loss, wanted);
    }
    return absl::OkStatus();
  }));
}

absl::StatusOr<std::vector<float>> Evaluate(TestFullyShard& test) {
  FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape(/*training=*/false));
  FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape));
  FSDP_RETURN_IF_ERROR(tape.stream().Synchronize());
  return std::vector<float>(y.data_as<float>(), y.data_as<float>() + y.numel());
}

TEST(EvaluationTest, ObeysReshardAfterForward) {
  struct Case {
    FullyShardOptions options;
    int again;  // all-gathers of an evaluation after another one
  };
  for (const Case& one : {Case{{}, kUnits - 1}, Case{{.reshard_after_forward = true}, kUnits},
                          Case{{.reshard_after_forward = false}, 0}, Case{{.reshard_after_forward = 2}, kUnits}}) {
    ASSERT_OK(RunFullyShard(4, one.options, [&](TestFullyShard& test) -> absl::Status {
      FSDP_RETURN_IF_ERROR(test.root->parameters().status());
      for (int round = 0; round < 2; ++round) {
        test.log->clear();
        FSDP_RETURN_IF_ERROR(Evaluate(test).status());
        EXPECT_EQ(TakeGathers(*test.log), kUnits);
        FSDP_RETURN_IF_ERROR(Evaluate(test).status());
        EXPECT_EQ(TakeGathers(*test.log), one.again);
        FSDP_RETURN_IF_ERROR(test.ForwardAndBackward());
      }
      return absl::OkStatus();
    }));
  }
}

TEST(EvaluationTest, ASettingThatIsChangedCountsFromTheNextForward) {
  ASSERT_OK(RunFullyShard(3, {.reshard_after_forward = true}, [](TestFullyShard& test) -> absl::Status {
    FSDP_RETURN_IF_ERROR(Evaluate(test).status());
    std::vector<int> gathers;
    for (const bool reshard : {false, true}) {
      FSDP_RETURN_IF_ERROR(test.root->set_reshard_after_forward(reshard));
      for (int evaluation = 0; evaluation < 2; ++evaluation) {
        test.log->clear();
        FSDP_RETURN_IF_ERROR(Evaluate(test).status());
        gathers.push_back(TakeGathers(*test.log));
      }
    }
    EXPECT_THAT(gathers, ElementsAre(kUnits, 0, 0, kUnits));
    return absl::OkStatus();
  }));
}

// Units that stay unsharded are gathered again once a step or a load has changed their shards.
TEST(EvaluationTest, ComputesWithTheValuesOfTheLastStepOrLoad) {
  using Outputs = std::vector<std::vector<float>>;
  const auto run = [](TestFullyShard& test) -> absl::StatusOr<Outputs> {
    FSDP_ASSIGN_OR_RETURN(const std::vector<ShardedParameter*> parameters, test.root->parameters());
    AdamW optimizer(parameters, {.lr = 0.1});
    FSDP_ASSIGN_OR_RETURN(const StateDict first, test.root->GetFullStateDict());
    Outputs outputs;
    const auto evaluate = [&]() -> absl::Status {
      FSDP_ASSIGN_OR_RETURN(std::vector<float> output, Evaluate(test));
      outputs.push_back(std::move(output));
      return absl::OkStatus();
    };
    FSDP_RETURN_IF_ERROR(evaluate());
    for (int step = 0; step < 2; ++step) {
      FSDP_ASSIGN_OR_RETURN(Tape tape, test.root->NewTape());
      FSDP_ASSIGN_OR_RETURN(const Tensor y, test.Forward(tape, step));
      FSDP_RETURN_IF_ERROR(evaluate());  // between a forward and its backward
      FSDP_RETURN_IF_ERROR(test.Backward(y, tape));
      FSDP_RETURN_IF_ERROR(evaluate());
      FSDP_RETURN_IF_ERROR(optimizer.Step(tape.stream()));
      optimizer.ZeroGrad();
      FSDP_RETURN_IF_ERROR(evaluate());
    }
    FSDP_RETURN_IF_ERROR(test.root->LoadStateDict(first).status());
    FSDP_RETURN_IF_ERROR(evaluate());
    EXPECT_EQ(outputs.front(), outputs.back());
    EXPECT_NE(outputs[0], outputs[3]);
    return outputs;
  };
  ASSERT_OK(RunRanks(4, [&](std::shared_ptr<ProcessGroup> group) -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(TestFullyShard resharding, TestFullyShard::Make(group, {.reshard_after_forward = true}));
    FSDP_ASSIGN_OR_RETURN(const Outputs wanted, run(resharding));
    for (const FullyShardOptions& options : {FullyShardOptions{}, FullyShardOptions{.reshard_after_forward = false},
                                             FullyShardOptions{.reshard_after_forward = 2}}) {
      FSDP_ASSIGN_OR_RETURN(TestFullyShard test, TestFullyShard::Make(group, options));
      FSDP_ASSIGN_OR_RETURN(const Outputs outputs, run(test));
      EXPECT_EQ(outputs, wanted);
    }
    return absl::OkStatus();
  }));
}

}  // namespace
}  // namespace fsdp

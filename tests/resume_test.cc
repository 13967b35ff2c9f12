// SPDX-License-Identifier: Apache-2.0
//
// Runs of train_gpt that stop, in any way, and continue: on the same number of ranks with the same losses bit for bit,
// on others up to rounding.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/tests/resume_run.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class ResumeTest : public ResumeRun {};

TEST_F(ResumeTest, KilledAtAnyInstantItContinuesBitForBit) {
  constexpr int64_t kSteps = 30;
  const Flags schedule = {"--min_lr=3e-4", absl::StrCat("--steps=", kSteps)};
  const auto expected = Uninterrupted(SmallRun() + schedule);
  const Flags run = SmallRun() + schedule +
                    Flags{"--checkpoint_every=1", "--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  const char* seed = std::getenv("TEST_RANDOM_SEED");  // another one for each of --runs_per_test
  std::minstd_rand random(seed == nullptr ? 1 : std::atoi(seed));
  for (const int64_t step : {0, 5, 9, 10, 17, 24}) {
    ASSERT_OK_AND_ASSIGN(const auto child, StartTraining(run));
    ASSERT_OK(WaitForStep(metrics_, step));
    absl::SleepFor(absl::Microseconds(random() % 30000));  // into a step, a save, or between
    child->SignalGroup(SIGKILL);
    ASSERT_OK(child->Wait(absl::Seconds(10)).status());
    ASSERT_THAT(Survivors(checkpoint_dir_), IsEmpty());
    ExpectAllVerify(checkpoint_dir_);
  }
  TrainWell(run);
  ExpectSameBits(metrics_, expected);
}

TEST_F(ResumeTest, BFloat16ParametersAlsoContinueBitForBit) {
  const Flags mixed = {"--param_dtype=bfloat16", "--reduce_dtype=bfloat16", "--nproc=3"};
  Flags small = SmallRun();
  small.erase(small.begin());  // --nproc=2
  const auto expected = Uninterrupted(small + mixed + Flags{"--steps=8"});
  const Flags saved = small + mixed + Flags{"--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  TrainWell(saved + Flags{"--steps=5"});
  TrainWell(saved + Flags{"--steps=8"});
  ExpectSameBits(metrics_, expected);
}

TEST_F(ResumeTest, OptimizersInBFloat16AlsoContinueBitForBitThoughTheyRoundAtRandom) {
  for (const std::string form : {"sharded", "full", "local"}) {
    SCOPED_TRACE(form);
    const std::string metrics = NewDirectory() + "/metrics.jsonl";
    const Flags low = SmallRun() + Flags{"--dtype=bfloat16", "--bf16_stochastic_round"};
    const auto expected = Uninterrupted(low + Flags{"--steps=8"});
    const Flags saved =
        low + Flags{"--checkpoint_dir=" + NewDirectory(), "--metrics=" + metrics, "--state_dict_type=" + form};
    TrainWell(saved + Flags{"--steps=5"});
    TrainWell(saved + Flags{"--steps=8"});
    ExpectSameBits(metrics, expected);
  }
}

TEST_F(ResumeTest, ParametersInFloat16ContinueWithTheirScaler) {
  const Flags low = SmallRun() + Flags{"--dtype=float16", "--init_scale=1024", "--growth_interval=3", "--eps=1e-4"};
  const auto expected = Uninterrupted(low + Flags{"--steps=8"});
  const Flags saved = low + Flags{"--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  TrainWell(saved + Flags{"--steps=5"});
  TrainWell(saved + Flags{"--steps=8"});
  ExpectSameBits(metrics_, expected);
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics_));
  for (const auto& [step, wanted] : expected) EXPECT_EQ(actual.at(step).scale, 1024 << (step / 3)) << step;
}

// The scale doubles after steps 2 and 5: a scaler that starts afresh, or counts afresh, has another scale in steps 5 to
// 7.
TEST_F(ResumeTest, TheGradientScalerOfFloat16ContinuesWhereItWas) {
  const Flags scaled = SmallRun() + Flags{"--param_dtype=float16", "--init_scale=1024", "--growth_interval=3"};
  const auto expected = Uninterrupted(scaled + Flags{"--steps=8"});
  for (const std::string form : {"sharded", "full", "local"}) {
    SCOPED_TRACE(form);
    const std::string metrics = NewDirectory() + "/metrics.jsonl";
    const Flags saved =
        scaled + Flags{"--checkpoint_dir=" + NewDirectory(), "--metrics=" + metrics, "--state_dict_type=" + form};
    TrainWell(saved + Flags{"--steps=5"});
    TrainWell(saved + Flags{"--steps=8"});
    ExpectSameBits(metrics, expected);
    ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics));
    for (const auto& [step, wanted] : expected) {
      EXPECT_EQ(actual.at(step).scale, 1024 << (step / 3)) << step;
      EXPECT_EQ(actual.at(step).scale, wanted.scale) << step;
    }
  }
}

TEST_F(ResumeTest, AScalerWithoutAStateToContinueFromSaysSo) {
  const Flags saved = SmallRun() + Flags{"--checkpoint_dir=" + checkpoint_dir_};
  TrainWell(saved + Flags{"--steps=1"});
  ASSERT_OK_AND_ASSIGN(const ProgramResult scaled, Train(saved + Flags{"--steps=2", "--param_dtype=float16"}));
  EXPECT_EQ(scaled.exit_status, 0) << scaled.output;
  EXPECT_THAT(scaled.output, HasSubstr("has no state of a gradient scaler: losses are scaled by 65536"));
  ASSERT_OK_AND_ASSIGN(const ProgramResult plain, Train(saved + Flags{"--steps=3"}));
  EXPECT_THAT(plain.output, HasSubstr("the gradient scaler of "));
}

TEST_F(ResumeTest, OtherWorldSizesContinueTheSameCurve) {
  const Flags common = {"--seq_len=16", "--lr=3e-3", "--seed=7", "--config=" + Golden("gpt2_tiny/config.json"),
                        "--tokens=" + Golden("tokens.u16")};
  const auto expected = Uninterrupted(common + Flags{"--nproc=4", "--batch_size=3", "--steps=12"});
  const Flags saved = common + Flags{"--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  TrainWell(saved + Flags{"--nproc=4", "--batch_size=3", "--steps=3"});
  TrainWell(saved + Flags{"--nproc=3", "--batch_size=4", "--steps=6", "--wrap=none"});
  TrainWell(saved + Flags{"--nproc=1", "--batch_size=12", "--steps=9", "--sharding_strategy=no_shard"});
  TrainWell(saved + Flags{"--nproc=2", "--batch_size=3", "--grad_accum=2", "--steps=12", "--use_orig_params"});
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics_));
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [step, wanted] : expected) {
    EXPECT_NEAR(actual.at(step).loss, wanted.loss, 1e-6 * wanted.loss) << "step " << step;
    EXPECT_NEAR(actual.at(step).grad_norm, wanted.grad_norm, 1e-5 * wanted.grad_norm) << "step " << step;
  }
}

TEST_F(ResumeTest, AGlobalBatchContinuesTheSameCurveOnOtherWorldSizesWithoutAnotherFlag) {
  const Flags common = {"--seq_len=16",
                        "--lr=3e-3",
                        "--seed=7",
                        "--config=" + Golden("gpt2_tiny/config.json"),
                        "--tokens=" + Golden("tokens.u16"),
                        "--batch_size=3",
                        "--global_batch=12"};
  const auto expected = Uninterrupted(common + Flags{"--nproc=4", "--steps=8"});
  const Flags saved = common + Flags{"--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  TrainWell(saved + Flags{"--nproc=4", "--steps=3"});
  const std::string fewer = TrainWell(saved + Flags{"--nproc=2", "--steps=6"});
  EXPECT_THAT(fewer, HasSubstr("training with 2 ranks, 12 rows a step in 2 micro-steps"));
  EXPECT_THAT(fewer, HasSubstr("options.grad_accum: 1 -> 2"));
  TrainWell(saved + Flags{"--nproc=4", "--steps=8"});
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics_));
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [step, wanted] : expected) {
    EXPECT_NEAR(actual.at(step).loss, wanted.loss, 1e-6 * wanted.loss) << "step " << step;
  }
  ASSERT_OK_AND_ASSIGN(const ProgramResult refused, Train(saved + Flags{"--nproc=3", "--steps=9"}));
  EXPECT_NE(refused.exit_status, 0);
  EXPECT_THAT(refused.output, HasSubstr("--global_batch=12: expected a multiple of 9"));
}

TEST_F(ResumeTest, ASignalSavesAndExitsWithSuccess) {
  const auto expected = Uninterrupted(SmallRun() + Flags{"--steps=40", "--max_grad_norm=0.5"});
  const Flags run = Run(4000, 0) + Flags{"--max_grad_norm=0.5"};
  int64_t step = 0;
  for (const int signal : {SIGTERM, SIGUSR1}) {
    ASSERT_OK_AND_ASSIGN(const auto child, StartTraining(run));
    ASSERT_OK(WaitForStep(metrics_, step + 3));
    child->Signal(signal);
    ASSERT_THAT(child->Wait(absl::Seconds(30)), IsOkAndHolds(0)) << child->output();
    ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(metrics_));
    step = metrics.rbegin()->first;
    EXPECT_THAT(child->output(), HasSubstr(absl::StrCat("stopped by a signal after step ", step)));
    EXPECT_EQ(Checkpoints().back(), absl::StrFormat("step-%08d", step + 1));
    for (const auto& [s, wanted] : expected) {
      const auto found = metrics.find(s);
      EXPECT_EQ(found == metrics.end() ? wanted.loss : found->second.loss, wanted.loss) << "step " << s;
    }
  }
}

TEST_F(ResumeTest, StartingAnewOverCommittedStepsIsRefusedUnlessAskedFor) {
  TrainWell(Run(6, 2));
  ASSERT_OK_AND_ASSIGN(const ProgramResult refused, Train(Run(4, 2) + Flags{"--resume=none"}));
  EXPECT_EQ(refused.exit_status, 1);
  EXPECT_THAT(refused.output, HasSubstr("--overwrite"));
  EXPECT_THAT(refused.output, HasSubstr("step-00000006"));
  EXPECT_EQ(Checkpoints().size(), 3u);
  TrainWell(Run(4, 2) + Flags{"--resume=none", "--overwrite"});
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000002", "step-00000004"));  // step 6 was another run's
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(metrics_));
  EXPECT_EQ(metrics.size(), 4u);  // not appended
}

TEST_F(ResumeTest, AnyCheckpointCanBeContinuedElsewhere) {
  TrainWell(Run(6, 2));
  const std::string elsewhere = NewDirectory();
  const std::string source = checkpoint_dir_ + "/step-00000002";
  ASSERT_OK_AND_ASSIGN(const ProgramResult refused, Train(Run(6, 2) + Flags{"--resume=" + source}));
  EXPECT_EQ(refused.exit_status, 1) << "it would replace steps 4 and 6";
  TrainWell(SmallRun() + Flags{"--steps=6", "--resume=" + source, "--checkpoint_dir=" + elsewhere + "/checkpoints",
                               "--metrics=" + elsewhere + "/metrics.jsonl"});
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(elsewhere + "/metrics.jsonl"));
  ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(metrics_));
  ASSERT_EQ(metrics.size(), 4u);
  for (const auto& [step, line] : metrics) EXPECT_EQ(line.loss, expected.at(step).loss) << "step " << step;
}

TEST_F(ResumeTest, FullCheckpointsOfRankZeroContinueBitForBit) {
  const Flags full = {"--state_dict_type=full", "--rank0_only", "--offload_to_cpu"};
  TrainWell(Run(3, 0) + full);
  TrainWell(Run(6, 0) + full);
  TrainWell(Run(9, 0));  // and sharded ones after them
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=9"}));
}

TEST_F(ResumeTest, LocalCheckpointsContinueBitForBitAndOnOtherRanks) {
  TrainWell(Run(3, 0) + Flags{"--state_dict_type=local"});
  TrainWell(Run(6, 0) + Flags{"--state_dict_type=local", "--async_checkpoint"});
  ExpectAllVerify(checkpoint_dir_);
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=6"}));
  Flags elsewhere = Run(7, 0) + Flags{"--state_dict_type=local", "--nproc=3"};
  elsewhere.erase(elsewhere.begin());  // --nproc=2
  EXPECT_THAT(TrainWell(elsewhere), HasSubstr("6 of 7 steps are done"));
  ExpectAllVerify(checkpoint_dir_);
}

TEST_F(ResumeTest, FullCheckpointsOfAllRanksContinueBitForBit) {
  TrainWell(Run(3, 0) + Flags{"--state_dict_type=full"});
  TrainWell(Run(6, 0));
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=6"}));
}

// FSDP2 has no flat shards to write.
TEST_F(ResumeTest, FullCheckpointsOfFullyShardContinueBitForBit) {
  const Flags full = {"--api=fsdp2", "--state_dict_type=full"};
  TrainWell(Run(3, 0) + full);
  TrainWell(Run(6, 0) + full);
  ExpectAllVerify(checkpoint_dir_);
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=6", "--api=fsdp2"}));
}

TEST_F(ResumeTest, AsynchronousCheckpointsContinueBitForBit) {
  const Flags async = {"--async_checkpoint", "--parity=1", "--keep_last=2"};
  const std::string output = TrainWell(Run(5, 1) + async);
  EXPECT_THAT(output, HasSubstr("saving step 5 in the background; training waited "));
  EXPECT_THAT(output, HasSubstr("step-00000005"));
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000004", "step-00000005"));
  ExpectAllVerify(checkpoint_dir_);
  TrainWell(Run(9, 3) + async);
  ExpectAllVerify(checkpoint_dir_);
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=9"}));
}

TEST_F(ResumeTest, ASignalWaitsForTheCheckpointInTheBackground) {
  const Flags run = Run(4000, 0) + Flags{"--async_checkpoint"};
  ASSERT_OK_AND_ASSIGN(const auto child, StartTraining(run));
  ASSERT_OK(WaitForStep(metrics_, 3));
  child->Signal(SIGTERM);
  ASSERT_THAT(child->Wait(absl::Seconds(30)), IsOkAndHolds(0)) << child->output();
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(metrics_));
  EXPECT_THAT(Checkpoints(), ElementsAre(absl::StrFormat("step-%08d", metrics.rbegin()->first + 1)));
  ExpectAllVerify(checkpoint_dir_);
}

TEST_F(ResumeTest, TheCheckpointCarriesStepDataPositionRngAndSchedule) {
  TrainWell(Run(3, 0));
  ASSERT_OK_AND_ASSIGN(const StateDict state, DescribeCheckpoint(checkpoint_dir_ + "/step-00000003"));
  const auto text = [&](const char* name) {
    const std::string* found = state.FindText(StateKey::Extra(name));
    return found == nullptr ? "absent" : *found;
  };
  EXPECT_EQ(text("step"), "3");
  EXPECT_THAT(text("learning_rate"), HasSubstr("\"steps\": 3}"));
  EXPECT_THAT(text("data_position"), HasSubstr("{\"next_sample\": "));
  EXPECT_EQ(text("rng"), "{\"seed\": 7}");
  EXPECT_THAT(TrainWell(Run(6, 0)), HasSubstr("options.steps: 3 -> 6"));
}

TEST_F(ResumeTest, KeepLastKeepsTheNewest) {
  TrainWell(Run(10, 2) + Flags{"--keep_last=2"});
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000008", "step-00000010"));
  ExpectAllVerify(checkpoint_dir_);
}

TEST_F(ResumeTest, KeepEveryKeepsMore) {
  TrainWell(Run(10, 2) + Flags{"--keep_last=1", "--keep_every=4"});
  EXPECT_THAT(Checkpoints(), ElementsAre("step-00000004", "step-00000008", "step-00000010"));
}

// Only positions and the last norm are trained: most of each checkpoint equals the one before.
TEST_F(ResumeTest, FrozenLayersAreLinkedAndHaveNoOptimizerStateAndContinueBitForBit) {
  const Flags frozen = {"--freeze=transformer\\.(h\\.|wte)", "--use_orig_params"};
  for (const char* type : {"sharded", "local"}) {
    const std::string root = checkpoint_dir_ + type, metrics = metrics_ + type;
    const Flags run = SmallRun() + frozen +
                      Flags{absl::StrCat("--state_dict_type=", type), "--checkpoint_every=2", "--incremental",
                            "--checkpoint_dir=" + root, "--metrics=" + metrics};
    EXPECT_THAT(TrainWell(run + Flags{"--steps=4"}),
                testing::AllOf(HasSubstr("frozen: 37 of 40 parameters"),
                               HasSubstr("bytes are unchanged since step-00000002 and were not written again")));
    EXPECT_THAT(TrainWell(run + Flags{"--steps=6", "--async_checkpoint"}),
                HasSubstr("bytes are unchanged since step-00000004 and were not written again"));
    ExpectAllVerify(root);
    const std::string linked = root + "/step-00000006/rank-00000-of-00002.step-00000002.h5";
    EXPECT_EQ(std::filesystem::hard_link_count(linked), 3u);
    ASSERT_OK_AND_ASSIGN(const StateDict state, DescribeCheckpoint(root + "/step-00000006"));
    EXPECT_TRUE(state.contains(StateKey::OptimState("transformer.wpe.weight", "exp_avg")));
    EXPECT_TRUE(state.contains(StateKey::Model("transformer.wte.weight")));
    EXPECT_FALSE(state.contains(StateKey::OptimState("transformer.wte.weight", "exp_avg")));
    ExpectSameBits(metrics, Uninterrupted(SmallRun() + frozen + Flags{"--steps=6"}));
  }
}

TEST_F(ResumeTest, TheFrozenParametersMayChangeAndTheChangeIsReported) {
  TrainWell(Run(2, 0) + Flags{"--freeze=transformer\\.h\\.0"});
  const std::string thawed = TrainWell(Run(4, 0) + Flags{"--freeze=transformer\\.h\\.1"});
  EXPECT_THAT(thawed, HasSubstr("frozen in the run that saved, and trained from here on, with new optimizer state: "
                                "transformer.h.0.ln_1.weight"));
  EXPECT_THAT(thawed, HasSubstr("trained in the run that saved, and frozen from here on, without their optimizer "
                                "state: transformer.h.1.ln_1.weight"));
  ExpectAllVerify(checkpoint_dir_);
  ASSERT_OK_AND_ASSIGN(const StateDict state, DescribeCheckpoint(checkpoint_dir_ + "/step-00000004"));
  EXPECT_TRUE(state.contains(StateKey::OptimState("transformer.h.0.ln_1.weight", "exp_avg")));
  EXPECT_FALSE(state.contains(StateKey::OptimState("transformer.h.1.ln_1.weight", "exp_avg")));
  EXPECT_THAT(TrainWell(Run(6, 0)), Not(HasSubstr("frozen from here on")));
}

TEST_F(ResumeTest, AFoundCheckpointWinsOverInitFrom) {
  TrainWell(Run(2, 0));
  const std::string output = TrainWell(Run(4, 0) + Flags{"--init_from=" + Golden("gpt2_tiny")});
  EXPECT_THAT(output, HasSubstr("--init_from=" + Golden("gpt2_tiny") + " is not read: the checkpoint wins"));
  ExpectSameBits(metrics_, Uninterrupted(SmallRun() + Flags{"--steps=4"}));
}

TEST_F(ResumeTest, LlamaIsResumedOnOtherRanksAndExportedToo) {
  const Flags llama = {"--model=llama", "--config=" + Golden("llama_tiny"), "--tokens=" + Golden("tokens.u16"),
                       "--seq_len=16"};
  const auto expected = Uninterrupted(llama + Flags{"--nproc=3", "--batch_size=2", "--steps=6"});
  const Flags saved = llama + Flags{"--checkpoint_dir=" + checkpoint_dir_, "--metrics=" + metrics_};
  TrainWell(saved + Flags{"--nproc=3", "--batch_size=2", "--steps=3"});
  const std::string exported = directory_ + "/exported";
  TrainWell(saved + Flags{"--nproc=2", "--batch_size=3", "--steps=6", "--export=" + exported});
  ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics_));
  ASSERT_EQ(actual.size(), 6u);
  for (const auto& [step, wanted] : expected) {
    EXPECT_NEAR(actual.at(step).loss, wanted.loss, 1e-6 * wanted.loss) << "step " << step;
  }
  const Flags more = {
      "--model=llama", "--config=" + exported, "--tokens=" + Golden("tokens.u16"), "--seq_len=16", "--nproc=2",
      "--steps=1"};
  EXPECT_EQ(Uninterrupted(more + Flags{"--init_from=" + exported}).at(0).loss,
            Uninterrupted(more + Flags{"--init_from=" + checkpoint_dir_ + "/step-00000006"}).at(0).loss);
}

TEST_F(ResumeTest, InitFromTakesTheModelOfACheckpointOrOfAnExport) {
  const std::string exported = directory_ + "/exported";
  TrainWell(Run(4, 0) + Flags{"--export=" + exported});
  const auto from_checkpoint =
      Uninterrupted(SmallRun() + Flags{"--steps=2", "--init_from=" + checkpoint_dir_ + "/step-00000004"});
  const auto from_export = Uninterrupted(SmallRun() + Flags{"--steps=2", "--init_from=" + exported});
  const auto from_file = Uninterrupted(SmallRun() + Flags{"--steps=2", "--init_from=" + exported + "/model.safetensors",
                                                          "--sharding_strategy=shard_grad_op"});
  ASSERT_EQ(from_checkpoint.size(), 2u);
  EXPECT_EQ(from_checkpoint.at(0).loss, from_export.at(0).loss);
  EXPECT_EQ(from_checkpoint.at(1).loss, from_export.at(1).loss);
  EXPECT_EQ(from_checkpoint.at(1).loss, from_file.at(1).loss);
  EXPECT_NE(from_checkpoint.at(0).loss, Uninterrupted(SmallRun() + Flags{"--steps=1"}).at(0).loss);
}

TEST_F(ResumeTest, ACheckpointOfAnotherModelIsRefusedByConfigAndByTensor) {
  TrainWell(Run(2, 0));
  Flags other = Run(4, 0);
  for (std::string& flag : other) {
    if (absl::StartsWith(flag, "--config=")) flag = "--config=" + Golden("gpt2_uneven/config.json");
  }
  ASSERT_OK_AND_ASSIGN(const ProgramResult by_config, Train(other));
  EXPECT_EQ(by_config.exit_status, 1);
  EXPECT_THAT(by_config.output, HasSubstr("model.n_embd was 48 when it was saved, and is 36 here"));
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(other + Flags{"--allow=model"}));
  EXPECT_EQ(run.exit_status, 1);
  EXPECT_THAT(run.output, HasSubstr("transformer."));
  EXPECT_THAT(run.output, HasSubstr("[257, 48]"));
  EXPECT_THAT(run.output, HasSubstr("[263, 36]"));
}

TEST_F(ResumeTest, ARunThatIsDoneHasNothingLeftToDo) {
  TrainWell(Run(3, 0));
  const std::string output = TrainWell(Run(3, 0));
  EXPECT_THAT(output, HasSubstr("3 of 3 steps are done"));
  EXPECT_THAT(output, Not(HasSubstr("saved")));
  EXPECT_THAT(output, Not(HasSubstr("training with")));
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(metrics_));
  EXPECT_EQ(metrics.size(), 3u);
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Runs of train_gpt that start from a foreign checkpoint: PyTorch's own, and ours in every form that we write for
// PyTorch.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/convert/convert.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tests/golden_case_testutil.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// `flags` without those that begin with one of `prefixes`: a flag may be given once.
Flags Without(Flags flags, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    flags.erase(std::remove_if(flags.begin(), flags.end(),
                               [&](const std::string& flag) { return absl::StartsWith(flag, prefix); }),
                flags.end());
  }
  return flags;
}

// Runs to the end, which must succeed; returns the metrics by step.
std::map<int64_t, StepMetrics> TrainWell(const Flags& flags, const std::string& metrics) {
  const absl::StatusOr<ProgramResult> run = Train(flags + Flags{"--metrics=" + metrics});
  EXPECT_OK(run);
  if (!run.ok()) return {};
  EXPECT_EQ(run->exit_status, 0) << run->output;
  return MetricsByStep(metrics).value_or(std::map<int64_t, StepMetrics>());
}

// PyTorch's FSDP1 on 4 ranks trained 5 steps and saved; from there on 4 ranks of ours, or 2, make PyTorch's steps. (The
// data of a step depend on the number of ranks, so 2 ranks take rows of twice the number.)
TEST(ForeignResumeTest, TrainingGoesOnFromPyTorchsCheckpointAsPyTorchDid) {
  const GoldenCase golden = ReadGoldenCase("gpt2_full_shard_w4");
  for (const int nproc : {4, 2}) {
    const Flags flags = Without(golden.flags, {"--steps=", "--nproc=", "--batch_size="}) +
                        Flags{"--steps=12",
                              "--config=" + Golden("gpt2_tiny/config.json"),
                              "--tokens=" + Golden("tokens.u16"),
                              "--resume=" + Golden("gpt2_fsdp1_w4_step5.pt"),
                              absl::StrCat("--nproc=", nproc),
                              absl::StrCat("--batch_size=", 8 / nproc)};
    const auto metrics = TrainWell(flags, NewDirectory() + "/metrics.jsonl");
    ASSERT_EQ(metrics.size(), 7);
    for (const auto& [step, actual] : metrics) {
      EXPECT_NEAR(actual.loss, golden.loss[step], 1e-6 * golden.loss[step]) << "step " << step << " on " << nproc;
      EXPECT_NEAR(actual.grad_norm, golden.grad_norm[step], 1e-4 * golden.grad_norm[step]) << "step " << step;
    }
  }
}

// A converted checkpoint of ours gives the same losses, bit for bit.
TEST(ForeignResumeTest, ACheckpointInTheFormOfAnyOtherTrainerResumesInEveryBit) {
  const std::string directory = NewDirectory();
  const auto expected = TrainWell(SmallRun() + Flags{"--steps=6"}, directory + "/whole.jsonl");
  TrainWell(SmallRun() + Flags{"--steps=6", "--checkpoint_every=3", "--checkpoint_dir=" + directory + "/saved"},
            directory + "/first.jsonl");
  const std::vector<std::pair<std::string, FormatTarget>> forms = {
      {"torch", TorchTarget()}, {"dcp", DcpTarget()}, {"deepspeed", DeepSpeedTarget()}, {"megatron", MegatronTarget()}};
  for (const auto& [name, target] : forms) {
    const std::string converted = absl::StrCat(directory, "/", name);
    ConvertOptions options;
    options.target = target;
    ASSERT_OK(ConvertCheckpoint(directory + "/saved/step-00000003", converted, options).status());
    const auto resumed = TrainWell(SmallRun() + Flags{"--steps=6", "--resume=" + converted},
                                   absl::StrCat(directory, "/", name, ".jsonl"));
    ASSERT_EQ(resumed.size(), 3) << name;
    for (const auto& [step, actual] : resumed) {
      EXPECT_EQ(actual.loss, expected.at(step).loss) << name << " step " << step;
      EXPECT_EQ(actual.grad_norm, expected.at(step).grad_norm) << name << " step " << step;
    }
  }
}

TEST(ForeignResumeTest, AnExportIsReadBackInEveryFormat) {
  const std::string directory = NewDirectory();
  std::vector<double> losses;
  for (const char* format : {"safetensors", "torch", "dcp"}) {
    const std::string exported = absl::StrCat(directory, "/", format);
    for (int again = 0; again < 2; ++again) {  // an export is replaced
      TrainWell(SmallRun() + Flags{"--steps=2", "--export=" + exported, absl::StrCat("--export_format=", format)},
                absl::StrCat(directory, "/", format, ".jsonl"));
    }
    EXPECT_TRUE(std::filesystem::exists(exported + "/config.json"));
    const auto metrics =
        TrainWell(SmallRun() + Flags{"--steps=1", "--init_from=" + exported}, absl::StrCat(exported, ".init.jsonl"));
    ASSERT_EQ(metrics.size(), 1);
    losses.push_back(metrics.at(0).loss);
  }
  EXPECT_THAT(losses, testing::Each(losses[0]));
}

// FSDP1's LOCAL state dicts, saved by 3 ranks, are flat parameters that do not record their contents: the model to be
// filled determines them. They are compared with our checkpoint of the same values, made by --flat_layout.
TEST(ForeignResumeTest, FlatParametersAreReadAsTheModelIsLaidOut) {
  const std::string directory = NewDirectory();
  const std::string local = TorchTestData("gpt2_local_w3");
  const std::string layout = TorchTestData("gpt2_layout.json");
  const Flags flags =
      Without(SmallRun(), {"--config=", "--seq_len="}) + Flags{"--config=" + TorchTestData("gpt2.json"), "--seq_len=8"};
  ConvertOptions options;
  ASSERT_OK_AND_ASSIGN(options.flat_layout, ReadFlatLayout(layout));
  ASSERT_OK(ConvertCheckpoint(local, directory + "/ours", options).status());
  int runs = 0;
  for (const std::string start : {"--init_from=", "--resume="}) {
    const auto train = [&](const Flags& more) {
      return TrainWell(flags + Flags{"--steps=4"} + more, absl::StrCat(directory, "/", ++runs, ".jsonl"));
    };
    const auto expected = train({absl::StrCat(start, directory, "/ours")});
    ASSERT_EQ(expected.size(), start == "--resume=" ? 2 : 4);
    for (const Flags& more : {Flags{start + local}, Flags{start + local, "--flat_layout=" + layout}}) {
      const auto actual = train(more);
      ASSERT_EQ(actual.size(), expected.size()) << start;
      for (const auto& [step, metrics] : expected) {
        EXPECT_EQ(actual.at(step).loss, metrics.loss) << start << " step " << step;
        EXPECT_EQ(actual.at(step).grad_norm, metrics.grad_norm) << start << " step " << step;
      }
    }
  }
}

TEST(ForeignResumeTest, FlatParametersOfAnotherModelAreRefused) {
  const std::string local = TorchTestData("gpt2_local_w3");
  for (const std::string start : {"--init_from=", "--resume="}) {
    const absl::StatusOr<ProgramResult> other = Train(SmallRun() + Flags{"--steps=4", start + local});
    ASSERT_OK(other);
    EXPECT_EQ(other->exit_status, 1);
    EXPECT_THAT(other->output,
                AllOf(HasSubstr(local), HasSubstr("the flat parameter of unit"), HasSubstr("--flat_layout")));
  }
  const absl::StatusOr<ProgramResult> none =
      Train(SmallRun() + Flags{"--steps=4", "--init_from=" + local, "--flat_layout=" + local + "/none.json"});
  ASSERT_OK(none);
  EXPECT_EQ(none->exit_status, 1);
  EXPECT_THAT(none->output, HasSubstr("none.json"));
}

TEST(ForeignResumeTest, WeightsWithoutAStepAreForInitFrom) {
  const absl::StatusOr<ProgramResult> run =
      Train(SmallRun() + Flags{"--steps=2", "--resume=" + Golden("gpt2_tiny/model.safetensors")});
  ASSERT_OK(run);
  EXPECT_EQ(run->exit_status, 1);
  EXPECT_THAT(run->output, AllOf(HasSubstr("model.safetensors"), HasSubstr("does not record its step")));
}

// The file has its model and optimizer under the usual names; --map names the same, or what is not there.
TEST(ForeignResumeTest, AMapSaysWhatTheBranchesOfAFileAre) {
  const std::string directory = NewDirectory();
  TrainWell(SmallRun() + Flags{"--steps=2", "--checkpoint_dir=" + directory + "/saved"}, directory + "/first.jsonl");
  const std::string file = directory + "/state.pt";
  ASSERT_OK(ConvertCheckpoint(directory + "/saved/step-00000002", file, {}).status());
  for (const std::string start : {"--init_from=", "--resume="}) {
    const Flags run = SmallRun() + Flags{"--steps=4", start + file};
    const auto expected = TrainWell(run, directory + "/expected.jsonl");
    const auto mapped = TrainWell(run + Flags{"--map=model=model", "--map=optim=optim"}, directory + "/mapped.jsonl");
    ASSERT_EQ(mapped.size(), expected.size()) << start;
    for (const auto& [step, metrics] : expected) EXPECT_EQ(mapped.at(step).loss, metrics.loss) << start << step;
    const absl::StatusOr<ProgramResult> noted = Train(run + Flags{"--map=model=model", "--map=optim=optim"});
    ASSERT_OK(noted);
    const std::vector<std::string> between = absl::StrSplit(noted->output, file + ": model from \"model\"");
    EXPECT_EQ(between.size(), 2) << "not said once: " << noted->output;
    const absl::StatusOr<ProgramResult> unknown = Train(run + Flags{"--map=netG=model"});
    ASSERT_OK(unknown);
    EXPECT_EQ(unknown->exit_status, 1);
    EXPECT_THAT(unknown->output, AllOf(HasSubstr("--map has \"netG\""), HasSubstr("at the top are \"model\"")));
  }
  const struct {
    std::string flag, more, message;
    int exit_status;
  } kRefused[] = {
      {"--map=model", "--init_from=" + file, "--map: \"model\", expected FROM=ROLE", 2},
      {"--map=model=model", "--resume=none", "--map: expected together with --init_from or --resume=PATH", 2},
      {"--map=model=model", "--resume=" + directory + "/saved", "--map is for torch files and DCP directories", 1},
  };
  for (const auto& refused : kRefused) {
    const absl::StatusOr<ProgramResult> run = Train(SmallRun() + Flags{"--steps=4", refused.flag, refused.more});
    ASSERT_OK(run);
    EXPECT_EQ(run->exit_status, refused.exit_status) << refused.message;
    EXPECT_THAT(run->output, HasSubstr(refused.message));
  }
}

TEST(ForeignResumeTest, ADcpExportDoesNotReplaceOtherFiles) {
  const std::string directory = NewDirectory();
  std::ofstream(directory + "/thesis.txt") << "x";
  const absl::StatusOr<ProgramResult> run =
      Train(SmallRun() + Flags{"--steps=1", "--export=" + directory, "--export_format=dcp"});
  ASSERT_OK(run);
  EXPECT_EQ(run->exit_status, 1);
  EXPECT_THAT(run->output, HasSubstr("holds \"thesis.txt\""));
}

}  // namespace
}  // namespace fsdp

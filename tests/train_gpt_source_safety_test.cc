// SPDX-License-Identifier: Apache-2.0
//
// No output of train_gpt harms an input of the run, or another checkpoint: each run here is refused before its first
// step, with every byte unchanged.
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Every name below `directory`, with the bytes of files.
std::map<std::string, std::string> Snapshot(const std::string& directory) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    all[entry.path()] = entry.is_regular_file() ? ReadFile(entry.path()) : "";
  }
  return all;
}

// The inputs of a run, in a directory of the test: tokens.u16, model/ (config.json and model.safetensors) and
// saved/step-00000002, of a run of two steps.
class TrainGptSourceSafetyTest : public testing::Test {
 protected:
  TrainGptSourceSafetyTest() {
    fs::copy_file(Golden("tokens.u16"), tokens_);
    fs::create_directory(model_);
    for (const char* name : {"/config.json", "/model.safetensors"}) {
      fs::copy_file(Golden("gpt2_tiny" + std::string(name)), model_ + name);
      fs::permissions(model_ + name, fs::perms::owner_write, fs::perm_options::add);
    }
    fs::permissions(tokens_, fs::perms::owner_write, fs::perm_options::add);
  }

  Flags Run() const {
    return {"--nproc=1",          "--steps=2", "--batch_size=1", "--seq_len=16", "--config=" + model_ + "/config.json",
            "--tokens=" + tokens_};
  }

  void TrainWell(const Flags& flags) const {
    ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(flags));
    ASSERT_EQ(run.exit_status, 0) << run.output;
  }

  void ExpectRefused(const Flags& flags, const std::string& flag, const std::string& why) const {
    const auto before = Snapshot(directory_);
    ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(Run() + flags));
    EXPECT_EQ(run.exit_status, 1) << testing::PrintToString(flags) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr(flag), HasSubstr(why))) << testing::PrintToString(flags);
    EXPECT_TRUE(Snapshot(directory_) == before) << testing::PrintToString(flags) << " changed something";
  }

  const std::string directory_ = NewDirectory();
  const std::string tokens_ = directory_ + "/tokens.u16";
  const std::string model_ = directory_ + "/model";
  const std::string saved_ = directory_ + "/saved";
};

TEST_F(TrainGptSourceSafetyTest, AnOutputThatIsWhatTheRunReadsIsRefused) {
  fs::create_symlink(tokens_, directory_ + "/link");
  fs::create_hard_link(tokens_, directory_ + "/hard");
  for (const std::string& file : {tokens_, directory_ + "/link", directory_ + "/hard",
                                  directory_ + "/model/../tokens.u16", model_ + "/config.json"}) {
    ExpectRefused({"--metrics=" + file}, "--metrics=" + file, "which is read");
    ExpectRefused({"--trace=" + file}, "--trace=" + file, "which is read");
  }
  const Flags start = {"--init_from=" + model_};
  for (const std::string& path : {model_, model_ + "/sub", directory_ + "/saved/../model"}) {
    ExpectRefused(start + Flags{"--export=" + path}, "--export=" + path, "which is read");
    ExpectRefused(start + Flags{"--export=" + path, "--export_format=dcp"}, "--export=" + path, "which is read");
    ExpectRefused(start + Flags{"--checkpoint_dir=" + path}, "--checkpoint_dir=" + path, "which is read");
  }
  ExpectRefused(start + Flags{"--metrics=" + model_ + "/metrics.jsonl"}, "--metrics=", "which is read");
  ExpectRefused({"--init_from=" + model_ + "/model.safetensors", "--export=" + model_}, "--export=", "which is read");
  ExpectRefused({"--export=" + model_}, "--export=", "which is read");  // its config.json
}

TEST_F(TrainGptSourceSafetyTest, TextThatARunReadsIsNoOutput) {
  fs::create_directory(directory_ + "/texts");
  for (const char* name : {"/texts/a.txt", "/texts/b.txt"}) std::ofstream(directory_ + name) << ReadFile(tokens_);
  const auto before = Snapshot(directory_);
  ASSERT_OK_AND_ASSIGN(const ProgramResult run,
                       Train({"--nproc=1", "--steps=1", "--seq_len=16", "--data=" + directory_ + "/texts/*",
                              "--metrics=" + directory_ + "/texts/b.txt"}));
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("--metrics=" + directory_ + "/texts/b.txt"), HasSubstr("which is read")));
  EXPECT_TRUE(Snapshot(directory_) == before);
}

TEST_F(TrainGptSourceSafetyTest, NoOutputLiesInACheckpoint) {
  TrainWell(Run() + Flags{"--checkpoint_dir=" + saved_});
  const std::string step = saved_ + "/step-00000002";
  ExpectRefused({"--metrics=" + step + "/metrics.jsonl"}, "--metrics=", "is a checkpoint");
  ExpectRefused({"--trace=" + step + "/trace.json"}, "--trace=", "is a checkpoint");
  ExpectRefused({"--export=" + step}, "--export=", "name of a step");
  ExpectRefused({"--export=" + step + "/exported"}, "--export=", "is a checkpoint");
  ExpectRefused({"--checkpoint_dir=" + step}, "--checkpoint_dir=", "is a checkpoint");
  ExpectRefused({"--checkpoint_dir=" + step + "/more"}, "--checkpoint_dir=", "is a checkpoint");
  ExpectRefused({"--metrics=" + saved_ + "/step-00000003"}, "--metrics=", "name of a step");
}

TEST_F(TrainGptSourceSafetyTest, AnExportDoesNotHideTheStepsOfTheRun) {
  for (const char* format : {"--export_format=safetensors", "--export_format=torch", "--export_format=dcp"}) {
    ExpectRefused({"--checkpoint_dir=" + saved_, "--export=" + saved_, format}, "--export=", "steps");
  }
  TrainWell(Run() + Flags{"--checkpoint_dir=" + saved_, "--export=" + saved_ + "/export"});
  ExpectRefused({"--export=" + saved_}, "--export=", "readers of its steps would get that instead");
  ExpectRefused({"--checkpoint_dir=" + saved_ + "/export"}, "--checkpoint_dir=", "instead of the steps");
}

TEST_F(TrainGptSourceSafetyTest, OutputsBesideStepsAndBesideTheOwnExportAreMadeAgainAndAgain) {
  const std::string out = directory_ + "/out";
  for (const char* steps : {"--steps=2", "--steps=3"}) {
    Flags flags = Run();
    flags[1] = steps;
    fs::create_directory(out);
    TrainWell(flags + Flags{"--checkpoint_dir=" + out, "--metrics=" + out + "/metrics.jsonl",
                            "--trace=" + out + "/trace.json", "--export=" + out + "/export"});
  }
  ASSERT_OK_AND_ASSIGN(const auto metrics, MetricsByStep(out + "/metrics.jsonl"));
  EXPECT_EQ(metrics.size(), 3u);
  // A run continues from a step of the directory that it saves in.
  Flags flags = Run();
  flags[1] = "--steps=4";
  TrainWell(flags + Flags{"--checkpoint_dir=" + out, "--resume=" + out + "/step-00000003"});
}

TEST_F(TrainGptSourceSafetyTest, ADirectoryOfAnotherWithTheNameOfAStepIsLeft) {
  for (const char* name :
       {"/step-00000001", "/step-00000009", "/.step-00000001.tmp-mine", "/.step-00000001.tmp-0123456789abcdef"}) {
    fs::create_directories(saved_ + name);
    std::ofstream(saved_ + name + "/p.txt") << "somebody's";
  }
  Flags flags = Run() + Flags{"--checkpoint_dir=" + saved_, "--checkpoint_every=1", "--keep_last=1"};
  // It has the number of a step that the run would save.
  ASSERT_OK_AND_ASSIGN(const ProgramResult refused, Train(flags));
  EXPECT_EQ(refused.exit_status, 1) << refused.output;
  EXPECT_THAT(refused.output, AllOf(HasSubstr("step-00000001"), HasSubstr("not a checkpoint of this project")));
  ASSERT_OK_AND_ASSIGN(const ProgramResult forced, Train(flags + Flags{"--resume=none", "--overwrite"}));
  EXPECT_EQ(forced.exit_status, 1) << forced.output;
  EXPECT_TRUE(fs::exists(saved_ + "/step-00000001/p.txt"));
  fs::rename(saved_ + "/step-00000001", saved_ + "/step-00000000");
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(flags));
  EXPECT_EQ(run.exit_status, 0) << run.output;
  for (const char* name :
       {"/step-00000000", "/step-00000009", "/.step-00000001.tmp-mine", "/.step-00000001.tmp-0123456789abcdef"}) {
    EXPECT_EQ(ReadFile(saved_ + name + "/p.txt"), "somebody's") << name;
    EXPECT_THAT(run.output, HasSubstr(name + 1));
  }
  EXPECT_TRUE(fs::exists(saved_ + "/step-00000002/manifest.json"));
  EXPECT_FALSE(fs::exists(saved_ + "/step-00000001"));
}

TEST_F(TrainGptSourceSafetyTest, ADirectoryThatIsLeftDoesNotCommandTheTerminal) {
  fs::create_directories(saved_ + "/.step-00000001.tmp-\x1b[31m\n\xE2\x80\xAE");
  ASSERT_OK_AND_ASSIGN(const ProgramResult run, Train(Run() + Flags{"--checkpoint_dir=" + saved_, "--keep_last=1"}));
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr("/.step-00000001.tmp-\\033[31m\\n\\u202e is left in place"));
}

TEST_F(TrainGptSourceSafetyTest, AStepWhoseWeightsTheRunStartsFromIsNotReplaced) {
  TrainWell(Run() + Flags{"--checkpoint_dir=" + saved_});
  ExpectRefused(
      {"--init_from=" + saved_ + "/step-00000002", "--checkpoint_dir=" + saved_, "--resume=none", "--overwrite"},
      "step-00000002", "which is read");
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// Runs of train_gpt that continue from a checkpoint of another model, other data or other options. The model must be
// the same unless --allow names the difference; every other difference is printed.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/checkpoint.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

void Write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string NameOf(const std::string& flag) { return flag.substr(0, flag.find('=')); }

// `flags` with `changes` in place of the flags of the same names.
Flags With(Flags flags, const Flags& changes) {
  for (const std::string& change : changes) {
    const std::string name = NameOf(change);
    flags.erase(
        std::remove_if(flags.begin(), flags.end(), [&](const std::string& flag) { return NameOf(flag) == name; }),
        flags.end());
  }
  return flags + changes;
}

// A run of three steps that saved its state, from which the tests continue.
class ResumeOptionsTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new std::string(NewDirectory());
    const ProgramResult run = Run({"--steps=3", "--checkpoint_dir=" + *directory_});
    ASSERT_EQ(run.exit_status, 0) << run.output;
  }

  static std::string Checkpoint() { return *directory_ + "/step-00000003"; }

  static ProgramResult Run(const Flags& changes) {
    absl::StatusOr<ProgramResult> run = Train(With(SmallRun(), changes));
    EXPECT_OK(run);
    return run.ok() ? *std::move(run) : ProgramResult();
  }

  static ProgramResult Resume(const Flags& changes) {
    return Run(With({"--steps=4", "--resume=" + Checkpoint()}, changes));
  }

  // The config of the run with `from` replaced by `to`, as a flag.
  static std::string Config(const std::string& from, const std::string& to) {
    const std::string text = ReadFile(Golden("gpt2_tiny/config.json"));
    EXPECT_NE(text.find(from), std::string::npos) << from;
    const std::string path = NewDirectory() + "/config.json";
    Write(path, absl::StrReplaceAll(text, {{from, to}}));
    return "--config=" + path;
  }

  static std::string Heads() { return Config("\"n_head\": 4", "\"n_head\": 6"); }

  // The checkpoint as an early release, without attributes, would have saved it.
  static std::string WithoutAttributes() {
    const std::string path = NewDirectory() + "/step-00000003";
    std::filesystem::copy(Checkpoint(), path);
    const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
    EXPECT_OK(manifest);
    Manifest before = manifest.value_or(Manifest());
    EXPECT_FALSE(before.save.attributes.empty());
    before.save.attributes.clear();
    Write(path + "/manifest.json", EncodeManifest(before));
    return path;
  }

  static std::string* directory_;
};

std::string* ResumeOptionsTest::directory_ = nullptr;

TEST_F(ResumeOptionsTest, AModelThatItsShapesDoNotShowIsRefusedByNameWithBothValues) {
  const struct {
    std::string from, to, words;
  } kCases[] = {
      {"\"n_head\": 4", "\"n_head\": 6", "model.n_head was 4 when it was saved, and is 6 here"},
      {"gelu_new", "relu", "model.activation_function was \"gelu_new\" when it was saved, and is \"relu\" here"},
      {"\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": 0.1",
       "model.layer_norm_epsilon was 1e-05 when it was saved, and is 0.1 here"},
      {"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false",
       "model.tie_word_embeddings was true when it was saved, and is false here"},
      {"\"scale_attn_weights\": true", "\"scale_attn_weights\": false", "model.scale_attn_weights was true"},
  };
  for (const auto& test : kCases) {
    const ProgramResult run = Resume({Config(test.from, test.to)});
    EXPECT_EQ(run.exit_status, 1) << run.output;
    EXPECT_THAT(run.output, AllOf(HasSubstr(test.words), HasSubstr("--allow")));
    EXPECT_THAT(run.output, Not(HasSubstr("training with")));
  }
}

TEST_F(ResumeOptionsTest, TheRopeOfALlamaIsPartOfTheModel) {
  const std::string directory = NewDirectory();
  const Flags llama = {"--model=llama", "--config=" + Golden("llama_tiny/config.json"),
                       "--checkpoint_dir=" + directory};
  const ProgramResult first = Run(llama + Flags{"--steps=1"});
  ASSERT_EQ(first.exit_status, 0) << first.output;
  const std::string text = ReadFile(Golden("llama_tiny/config.json"));
  const size_t theta = text.find("\"rope_theta\": ");
  ASSERT_NE(theta, std::string::npos);
  const std::string path = NewDirectory() + "/config.json";
  Write(path,
        absl::StrCat(text.substr(0, theta), "\"rope_theta\": 123.0", text.substr(text.find_first_of(",\n}", theta))));
  const ProgramResult run = Run(With(llama, {"--config=" + path, "--steps=2"}));
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("model.rope_theta was "), HasSubstr("and is 123.0 here")));
}

TEST_F(ResumeOptionsTest, AModelDifferenceThatAllowNamesIsSaidAndTrained) {
  const ProgramResult run = Resume({Heads(), "--allow=model.n_head"});
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("allowed to differ from " + Checkpoint() + ": model.n_head: 4 -> 6"),
                                HasSubstr("3 of 4 steps are done")));
  EXPECT_EQ(Resume({Heads(), "--allow=lr"}).exit_status, 1) << "another name does not allow it";
}

TEST_F(ResumeOptionsTest, OtherOptionsAreListedOneLineEach) {
  const ProgramResult run =
      Resume({"--batch_size=2", "--seq_len=8", "--lr=0.001", "--warmup_steps=2", "--weight_decay=0.3", "--beta1=0.8",
              "--beta2=0.9", "--eps=1e-6", "--max_grad_norm=0.5", "--param_dtype=bfloat16", "--nproc=1", "--seed=8",
              "--grad_accum=2", "--wrap=none", "--sharding_strategy=no_shard", "--use_orig_params"});
  EXPECT_EQ(run.exit_status, 0) << run.output;
  for (const char* difference :
       {"batch_size: 1 -> 2", "seq_len: 16 -> 8", "lr: 0.003 -> 0.001", "min_lr: 0.003 -> 0.001",
        "warmup_steps: 3 -> 2", "weight_decay: 0.1 -> 0.3", "beta1: 0.9 -> 0.8", "beta2: 0.95 -> 0.9",
        "eps: 1e-08 -> 1e-06", "max_grad_norm: 1.0 -> 0.5", "param_dtype: \"float32\" -> \"bfloat16\"", "nproc: 2 -> 1",
        "seed: 7 -> 8", "grad_accum: 1 -> 2", "wrap: \"block\" -> \"none\"",
        "sharding_strategy: \"full_shard\" -> \"no_shard\"", "use_orig_params: false -> true", "steps: 3 -> 4"}) {
    EXPECT_THAT(run.output, HasSubstr(absl::StrCat("differs from ", Checkpoint(), ": options.", difference, "\n")));
  }
}

TEST_F(ResumeOptionsTest, AnotherScheduleOfTheLearningRateIsListedByItsFlags) {
  const ProgramResult run = Resume({"--lr_schedule=wsd", "--lr_decay_steps=1"});
  EXPECT_EQ(run.exit_status, 0) << run.output;
  for (const char* difference :
       {"lr_schedule: \"constant\" -> \"wsd\"", "lr_decay_steps: 0 -> 1", "min_lr: 0.003 -> 0.0"}) {
    EXPECT_THAT(run.output, HasSubstr(absl::StrCat("differs from ", Checkpoint(), ": options.", difference, "\n")));
  }
}

TEST_F(ResumeOptionsTest, AResumeOffTheCurveSaysBothLearningRates) {
  const std::string directory = NewDirectory();
  const Flags linear = {"--lr_schedule=linear", "--warmup_steps=0", "--checkpoint_dir=" + directory};
  ASSERT_EQ(Run(With(linear, {"--steps=2"})).exit_status, 0);
  const ProgramResult longer = Run(With(linear, {"--steps=4"}));
  EXPECT_THAT(longer.output, HasSubstr("step 2 has the learning rate 0.0015, and would have had 0: --lr_schedule"));
  const ProgramResult same = Run(With(linear, {"--steps=4"}));
  EXPECT_THAT(same.output, Not(HasSubstr("would have had")));
}

TEST_F(ResumeOptionsTest, AnUnchangedRunListsNothing) {
  const ProgramResult run = Resume({"--steps=3"});
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("3 of 3 steps are done"), Not(HasSubstr("differs from"))));
}

TEST_F(ResumeOptionsTest, OtherTokensAreSaidUnlessAllowNamesTheData) {
  std::string tokens = ReadFile(Golden("tokens.u16"));
  tokens[tokens.size() / 2] ^= 1;
  const std::string path = NewDirectory() + "/tokens.u16";
  Write(path, tokens);
  const std::string said = "these are other tokens than " + Checkpoint() + " was trained on";
  const ProgramResult run = Resume({"--tokens=" + path});
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("data.digest: \"xxh3-128:"), HasSubstr("data.path: "), HasSubstr(said)));
  EXPECT_THAT(Resume({"--tokens=" + path, "--allow=data"}).output,
              AllOf(Not(HasSubstr("data.")), Not(HasSubstr(said)), HasSubstr("options.steps: 3 -> 4")));
}

TEST_F(ResumeOptionsTest, AFileOfBeforeIsReadAndSaysWhatItDoesNotKnow) {
  const std::string before = WithoutAttributes();
  const ProgramResult run = Resume({"--resume=" + before, Heads()});
  EXPECT_EQ(run.exit_status, 0) << run.output;
  EXPECT_THAT(run.output, HasSubstr(before + " does not record the config, the data and the options"));
  EXPECT_THAT(run.output, HasSubstr("the learning rate continues as "));
}

TEST_F(ResumeOptionsTest, AnInitialModelIsComparedToo) {
  const ProgramResult run = Run({"--steps=1", "--init_from=" + Checkpoint(), Heads(), "--lr=0.1"});
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("model.n_head was 4 when it was saved, and is 6"), HasSubstr("--allow")));
  const ProgramResult allowed =
      Run({"--steps=1", "--init_from=" + Checkpoint(), Heads(), "--lr=0.1", "--allow=n_head"});
  EXPECT_EQ(allowed.exit_status, 0) << allowed.output;
  EXPECT_THAT(allowed.output, AllOf(HasSubstr("model.n_head: 4 -> 6"), Not(HasSubstr("options."))));
}

TEST_F(ResumeOptionsTest, AnUnknownNameToAllowIsAWrongCommandLine) {
  const ProgramResult run = Resume({"--allow=n_heads"});
  EXPECT_EQ(run.exit_status, 2) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("--allow=n_heads: expected "), HasSubstr("model.n_head")));
}

TEST_F(ResumeOptionsTest, FewerStepsThanTheCheckpointHoldsAreRefused) {
  const ProgramResult run = Resume({"--steps=2"});
  EXPECT_EQ(run.exit_status, 1) << run.output;
  EXPECT_THAT(run.output, AllOf(HasSubstr("--steps=2: " + Checkpoint() + " holds the state after 3 steps"),
                                HasSubstr("expected at least --steps=3"), Not(HasSubstr("steps are done"))));
}

TEST_F(ResumeOptionsTest, EveryKindOfSaveRecordsTheRun) {
  for (const Flags& kind : {Flags{"--state_dict_type=full"}, Flags{"--state_dict_type=full", "--rank0_only"},
                            Flags{"--state_dict_type=local"}, Flags{"--state_dict_type=sharded", "--async_checkpoint"},
                            Flags{"--incremental", "--checkpoint_every=1"}}) {
    const std::string directory = NewDirectory();
    const ProgramResult run = Run(kind + Flags{"--steps=2", "--checkpoint_dir=" + directory});
    ASSERT_EQ(run.exit_status, 0) << run.output;
    ASSERT_OK_AND_ASSIGN(StateDict state, DescribeCheckpoint(directory + "/step-00000002"));
    EXPECT_EQ(state.attributes["model.n_head"], AttributeValue(4)) << testing::PrintToString(kind);
    EXPECT_EQ(state.attributes["options.lr"], AttributeValue(3e-3));
    EXPECT_EQ(state.attributes["data.path"], AttributeValue(Golden("tokens.u16")));
    EXPECT_EQ(state.attributes.count("data.digest"), 1);
  }
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// What people type who know other command lines, and what they then see.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/environment_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::vector<std::string>& Names() {
  static const auto* names = new std::vector<std::string>{"inspect", "verify", "convert", "merge", "view",
                                                          "diff",    "prune",  "repair",  "push",  "pull"};
  return *names;
}

TEST_F(CkptTest, HelpIsAskedForInEverySpelling) {
  const std::string help = MustCkpt({"--help"});
  for (const char* spelling : {"-h", "help", "-help"}) EXPECT_EQ(MustCkpt({spelling}), help) << spelling;
  for (const std::string& name : Names()) {
    const std::string of_one = MustCkpt({name, "--help"});
    EXPECT_EQ(MustCkpt({"help", name}), of_one) << name;
    EXPECT_EQ(MustCkpt({name, "-h"}), of_one) << name;
  }
  EXPECT_EQ(MustCkpt({"convert", "help"}), MustCkpt({"convert", "--help"}));
  const Outcome unknown = Ckpt({"help", "inspct"});
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean inspect?"));
}

TEST_F(CkptTest, AFlagOfOthersIsRefusedWithTheirNamesAndNeverSuggested) {
  const std::string model = TestData("all_dtypes.safetensors");
  EXPECT_THAT(Ckpt({"verify", model, "--keep-last=1"}).err, HasSubstr("has no flag --keep_last, which is for prune;"));
  EXPECT_THAT(Ckpt({"verify", model, "--tensors"}).err, HasSubstr("has no flag --tensors, which is for inspect;"));
  EXPECT_THAT(Ckpt({"convert", model, "x", "--forc"}).err, HasSubstr("unknown flag --forc (did you mean --force?)"));
  EXPECT_THAT(Ckpt({"verify", model, "--forc"}).err, HasSubstr("unknown flag --forc;"));
}

TEST_F(CkptTest, TheReleaseIsAskedForInEverySpelling) {
  const std::string version = MustCkpt({"--version"});
  for (const char* spelling : {"-V", "version"}) EXPECT_EQ(MustCkpt({spelling}), version) << spelling;
}

TEST_F(CkptTest, HelpFitsTheTerminalAndHasTwoExamples) {
  ScopedVariable columns("COLUMNS", "80");
  for (const std::string& name : Names()) {
    const std::string help = MustCkpt({name, "--help"});
    for (const absl::string_view line : absl::StrSplit(help, '\n')) EXPECT_LE(line.size(), 80u) << name << ": " << line;
    EXPECT_THAT(help, AllOf(HasSubstr("\nexamples:\n  ckpt " + name + " "), HasSubstr("\nexit status: 0 done;")));
  }
  columns.Set("50");
  for (const absl::string_view line : absl::StrSplit(MustCkpt({"help"}), '\n')) EXPECT_LE(line.size(), 50u) << line;
}

TEST_F(CkptTest, DashesAreUnderscores) {
  const std::string model = TestData("all_dtypes.safetensors");
  MustCkpt({"convert", model, Path("a"), "--state-dict-type=sharded", "--world-size=2", "--model-only"});
  EXPECT_THAT(MustCkpt({"inspect", Path("a")}), HasSubstr("world size 2"));
}

TEST_F(CkptTest, AWrongCommandLineIsAnObjectTooIfJsonIsAskedFor) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspct", "x", "--json"},
                                                    {"inspect", "--json"},
                                                    {"inspct", "x", "--json=true"},
                                                    {"help", "inspct", "--json"},
                                                    {"convert", "a", "b", "--world_size=two", "--json=1"},
                                                    {"inspect", "x", "--json", "--colour"}}) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 2);
    const nlohmann::json json = nlohmann::json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(json.is_object()) << outcome.out;
    EXPECT_EQ(json["problems"], nlohmann::json::array({json["problem"]}));
  }
}

TEST_F(CkptTest, AUrlThatIsNotReadIsRefusedWithWhatToDo) {
  const std::vector<std::pair<std::string, std::string>> urls = {
      {"hf://openai/gpt2", "`hf download openai/gpt2` makes files of it"},
      {"gs://bucket/model", "gs://bucket/model is a URL, expected a path or s3://BUCKET/PREFIX: download it first"},
      {"https://name:secret@host/model.pt", "https://***@host/model.pt is a URL"},
      {"file:///tmp/model.pt", "give the path: /tmp/model.pt"},
      {"", "an argument is empty, expected a path"}};
  for (const auto& [url, what] : urls) {
    const Outcome outcome = Ckpt({"inspect", url, "--json"});
    EXPECT_EQ(outcome.status, 1) << url;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr(what), Not(HasSubstr("secret"))));
    EXPECT_THAT(std::string(nlohmann::json::parse(outcome.out)["problem"]), HasSubstr(what));
  }
}

TEST_F(CkptTest, TensorsAreListedByPattern) {
  const std::string model = TestData("all_dtypes.safetensors");
  const std::string all = MustCkpt({"inspect", model, "--tensors"});
  const std::string some = MustCkpt({"inspect", model, "--tensors=float8"});
  EXPECT_THAT(all, AllOf(HasSubstr(".float8_e5m2 "), HasSubstr(".int64 ")));
  EXPECT_THAT(some, AllOf(HasSubstr(".float8_e5m2 "), HasSubstr("\nof these  "), Not(HasSubstr(".int64 "))));
  const nlohmann::json json = nlohmann::json::parse(MustCkpt({"inspect", model, "--tensors=float8", "--json"}));
  for (const auto& tensor : json["tensors"]) EXPECT_THAT(std::string(tensor["name"]), HasSubstr("float8"));
  EXPECT_EQ(Ckpt({"inspect", model, "--tensors=("}).status, 2);
}

TEST_F(CkptTest, ASuffixOfAFormatThatIsNotWrittenIsRefused) {
  const std::string model = TestData("all_dtypes.safetensors");
  for (const char* name : {"x.ggml", "x.onnx", "x.tar.gz", "x.ckpt"}) {
    const Outcome outcome = Ckpt({"convert", model, Path(name)});
    EXPECT_EQ(outcome.status, 2) << name;
    EXPECT_THAT(outcome.err, HasSubstr("has the suffix of no format that is written here; expected --to=hdf5, "));
  }
  EXPECT_THAT(Ckpt({"convert", model, Path("x.h5"), "--to=safetensors"}).err, HasSubstr("names an HDF5 file"));
  EXPECT_THAT(Ckpt({"convert", model, Path("x.h5"), "--state_dict_type=sharded"}).err, HasSubstr("is one file"));
  EXPECT_THAT(NamesIn(Path("")), testing::IsEmpty());
  MustCkpt({"convert", model, Path("x.ckpt"), "--to=torch"});
}

TEST_F(CkptTest, AFullStdoutIsAFailure) {
  const std::string model = TestData("all_dtypes.safetensors");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"inspect", model}, {"inspect", model, "--json"}, {"verify", model}, {"--help"}}) {
    std::vector<std::string> words = {std::filesystem::absolute("tools/ckpt")};
    words.insert(words.end(), arguments.begin(), arguments.end());
    ASSERT_OK_AND_ASSIGN(
        const ProgramResult run,
        RunProgram(words, absl::Minutes(1), {.output = ChildOutput::File("/dev/full"), .errors = ChildOutput::Text()}));
    EXPECT_EQ(run.exit_status, 1) << arguments[0];
    EXPECT_THAT(run.errors, HasSubstr("ckpt: stdout: No space left on device"));
  }
}

TEST_F(CkptTest, DamageEndsWithTheCommandThatRepairs) {
  MustCkpt({"convert", TestData("all_dtypes.safetensors"), Path("c"), "--state_dict_type=sharded", "--world_size=2"});
  std::filesystem::remove(Path("c/rank-00001-of-00002.h5"));
  EXPECT_THAT(Ckpt({"verify", Path("c")}).err, HasSubstr("\"ckpt repair " + Path("c") + " --dry_run\""));
  std::filesystem::rename(Path("c"), Path("my c"));
  EXPECT_THAT(Ckpt({"verify", Path("my c")}).err, HasSubstr("\"ckpt repair '" + Path("my c") + "' --dry_run\""));
}

TEST_F(CkptTest, ALostManifestIsReportedWithTheCommandThatMakesItAgain) {
  MustCkpt({"convert", TestData("all_dtypes.safetensors"), Path("c"), "--state_dict_type=sharded", "--world_size=2"});
  std::filesystem::remove(Path("c/manifest.json"));
  EXPECT_THAT(Ckpt({"inspect", Path("c")}).err, HasSubstr("; `ckpt repair " + Path("c") + " --dry_run` says whether"));
  MustCkpt({"convert", TestData("all_dtypes.safetensors"), Path("full")});
  std::filesystem::remove(Path("full/manifest.json"));
  EXPECT_THAT(Ckpt({"inspect", Path("full")}).err,
              HasSubstr("without it give that file, " + Path("full/checkpoint.h5")));
  MustCkpt({"inspect", Path("full/checkpoint.h5")});
}

TEST_F(CkptTest, ACommandThatIsSuggestedWorksAsItIsTyped) {
  std::filesystem::copy(TestData("all_dtypes.safetensors"), Path("it's a $HOME.safetensors"));
  const std::string text = MustCkpt({"inspect", Path("it's a $HOME.safetensors")});
  const std::string command = text.substr(text.find("  ckpt convert ") + 6);
  ASSERT_OK_AND_ASSIGN(
      const ProgramResult run,
      RunProgram(
          {"/bin/sh", "-c", "cd " + Path("") + " && " + std::filesystem::absolute("tools/ckpt").string() + command},
          absl::Minutes(1)));
  EXPECT_EQ(run.exit_status, 0) << command << run.output;
}

}  // namespace
}  // namespace fsdp

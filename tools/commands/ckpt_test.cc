// SPDX-License-Identifier: Apache-2.0
//
// The contract of the command line: exit status, what is printed to which stream, and what each subcommand refuses.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

using Json = nlohmann::json;

TEST_F(CkptTest, WrongCommandLinesExitWithTwoAndSayWhy) {
  const std::string model = TestData("all_dtypes.safetensors");
  const std::string dst = Path("dst");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "a subcommand is missing"},
      {{"frobnicate", model},
       "\"frobnicate\" is not a subcommand; expected inspect, verify, convert, merge, view, diff, prune, repair"},
      {{"inspct", model}, "\"inspct\" is not a subcommand (did you mean inspect?)"},
      {{"inspect", model, "--tensor"},
       "ckpt inspect: unknown flag --tensor (did you mean --tensors?); ckpt inspect --help"},
      {{"inspect"}, "PATH is missing"},
      {{"inspect", model, model}, "unexpected argument"},
      {{"inspect", model, "--colour"}, "unknown flag --colour"},
      {{"inspect", model, "--force"}, "ckpt inspect has no flag --force"},
      {{"inspect", model, "--json=perhaps"}, "--json"},
      {{"verify", model, "--tensors"}, "ckpt verify has no flag --tensors"},
      {{"convert", model}, "DST is missing"},
      {{"diff", model}, "B is missing"},
      {{"prune", dst}, "--keep_last: expected a number of steps"},
      {{"prune", dst, "--keep_last=0"}, "--keep_last: expected a number of steps, 1 or more"},
      {{"prune", dst, "--keep_last=1", "--keep_every=-2"}, "--keep_every=-2, expected 0 or more"},
      {{"diff", model, model, "--atol=-1"}, "--atol=-1 --rtol=0, expected numbers of 0 and more"},
      {{"diff", model, model, "--rtol=nan"}, "--rtol=nan"},
      {{"diff", model, model, "--tensors"}, "ckpt diff has no flag --tensors"},
      {{"convert", model, dst, "--tensors"}, "ckpt convert has no flag --tensors"},
      {{"convert", model, dst, "--to=zip"},
       "--to=zip, expected hdf5, safetensors, torch, dcp, npz, gguf, deepspeed or megatron"},
      {{"convert", model, dst, "--to=hdf5", "--to=hdf5"}, "--to is given 2 times"},
      {{"convert", model, dst, "--dtype=float31"}, "--dtype=float31, expected a floating-point dtype: float32 ("},
      {{"convert", model, dst, "--dtype=int8"}, "--dtype=int8, expected a floating-point dtype: float32 ("},
      {{"convert", model, dst, "--state_dict_type=sharded", "--world_size=two"}, "--world_size"},
      {{"convert", model, dst, "--state_dict_type=sharded", "--world_size=-1"},
       "--world_size=-1, expected 1 to 99999, or 0 for the source's"},
      {{"convert", model, dst, "--world_size=2"},
       "--world_size is for --state_dict_type=sharded or local, and a full checkpoint, the default"},
      {{"convert", model, dst, "--state_dict_type=most"}, "unknown state dict type"},
      {{"convert", model, dst, "--max_shard_size=1GB"}, "--max_shard_size is for a directory of safetensors files"},
      {{"convert", model, dst, "--parity=1"}, "--parity=1, expected at least 0; it is for --state_dict_type=sharded"},
      {{"convert", model, dst, "--parity=-1", "--state_dict_type=local"}, "--parity=-1, expected at least 0"},
      {{"convert", model, dst + ".safetensors", "--parity=1"}, "safetensors has no rank files"},
      {{"convert", model, dst, "--max_memory=lots"}, "expected a number of bytes such as 1048576, 512MiB"},
      {{"convert", model, dst, "--max_memory=1MiB"}, "expected at least 64MiB"},
      {{"convert", model, dst, "--include=("}, "\"(\" is not a regular expression"},
      {{"convert", model, dst, "--exclude=["}, "\"[\" is not a regular expression"},
      {{"convert", model, dst, "--rename=("}, "--rename=(, expected FROM=TO"},
      {{"convert", model, dst, "--rename=a=b=c"}, "has more than one '='"},
      {{"convert", model, dst + ".safetensors", "--max_shard_size=1GB"}, "is one file"},
      {{"convert", model, dst + ".safetensors", "--to=hdf5"}, "names a safetensors file"},
      {{"convert", model, dst + ".safetensors", "--state_dict_type=sharded"}, "safetensors files hold whole tensors"},
      {{"convert", model, dst, "--to=safetensors", "--world_size=2"}, "safetensors files belong to no rank"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("ckpt"), HasSubstr(message), HasSubstr("--help")));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
  EXPECT_THAT(NamesIn(Path("")), IsEmpty());
}

// Exit status 2 is only for the command line: a bad file that a flag names is found later, when it is read.
TEST_F(CkptTest, ABadFileThatAFlagNamesExitsWithOne) {
  const std::string model = TestData("all_dtypes.safetensors");
  WriteFile(Path("layout.json"), "{\"parameters\": 3}");
  const std::vector<std::vector<std::string>> commands = {{"inspect", model},
                                                          {"verify", model},
                                                          {"convert", model, Path("x")},
                                                          {"view", model, Path("x.h5")},
                                                          {"diff", model, model}};
  for (const std::vector<std::string>& command : commands) {
    for (const std::string name : {"layout.json", "none.json"}) {
      std::vector<std::string> arguments = command;
      arguments.push_back("--flat_layout=" + Path(name));
      const Outcome outcome = Ckpt(arguments);
      EXPECT_EQ(outcome.status, 1) << command[0] << " " << name;
      EXPECT_THAT(outcome.err, AllOf(HasSubstr(Path(name)), Not(HasSubstr("--help")), Not(HasSubstr("damaged"))));
    }
  }
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("layout.json"));
}

TEST_F(CkptTest, HelpListsAllSubcommands) {
  const std::string help = MustCkpt({"--help"});
  EXPECT_THAT(help,
              AllOf(HasSubstr("ckpt inspect PATH"), HasSubstr("ckpt verify PATH"), HasSubstr("ckpt convert SRC DST"),
                    HasSubstr("ckpt diff A B"), HasSubstr("ckpt prune DIR"), HasSubstr("ckpt repair PATH")));
  EXPECT_THAT(MustCkpt({"--helpfull"}),
              AllOf(HasSubstr("--tensors"), HasSubstr("--max_memory=VALUE: "), HasSubstr("512MiB")));
  EXPECT_THAT(MustCkpt({"convert", "--help"}), AllOf(HasSubstr("--rename=VALUE: "), Not(HasSubstr("--tensors"))));
}

TEST_F(CkptTest, FlagsStandAnywhere) {
  const std::string model = TestData("all_dtypes.safetensors");
  const std::string expected = MustCkpt({"inspect", model, "--tensors"});
  EXPECT_EQ(MustCkpt({"inspect", "--tensors", model}), expected);
  EXPECT_EQ(MustCkpt({"--tensors", "inspect", model}), expected);
  EXPECT_EQ(MustCkpt({"inspect", "--tensors=true", "--nojson", "--", model}), expected);
}

TEST_F(CkptTest, APartOfACheckpointIsTheWrongThingToVerifyAndNoDamage) {
  MustCkpt({"convert", TestData("all_dtypes.safetensors"), Path("c"), "--state_dict_type=sharded", "--world_size=2"});
  for (const char* name : {"c/checkpoint.h5", "c/rank-00001-of-00002.h5"}) {
    const Outcome outcome = Ckpt({"verify", Path(name)});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("give the checkpoint directory that holds"), Not(HasSubstr("damaged"))));
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

// A model that has diverged does not flood the terminal.
TEST_F(CkptTest, VerifyNamesTheFirstTensorsThatAreNotFiniteAndJsonAll) {
  Json header;
  for (int i = 0; i < 18; ++i) {
    header["t" + std::to_string(10 + i)] = {{"dtype", "F32"}, {"shape", {1}}, {"data_offsets", {4 * i, 4 * i + 4}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  bytes += text;
  const std::vector<float> values(18, std::nanf(""));
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  WriteFile(Path("nan.safetensors"), bytes);
  const std::string report = MustCkpt({"verify", Path("nan.safetensors")});
  EXPECT_THAT(report,
              AllOf(HasSubstr("not finite: model/t25: 1 NaN, 0 infinite\n"),
                    HasSubstr("not finite: 2 more tensors; in all 18 NaN, 0 infinite\n"), Not(HasSubstr("t26"))));
  const Json json = Json::parse(MustCkpt({"verify", Path("nan.safetensors"), "--json"}));
  EXPECT_EQ(json["nonfinite"].size(), 18u);
}

TEST_F(CkptTest, RelativePathsAreThoseOfBazelRun) {
  std::filesystem::copy(TestData("all_dtypes.safetensors"), Path("model.safetensors"));
  setenv("BUILD_WORKING_DIRECTORY", Path("").c_str(), 1);
  MustCkpt({"inspect", "model.safetensors"});
  MustCkpt({"convert", "model.safetensors", "copy.safetensors"});
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("copy.safetensors", "model.safetensors"));
}

TEST_F(CkptTest, InspectShowsASafetensorsFile) {
  const std::string text = MustCkpt({"inspect", TestData("all_dtypes.safetensors"), "--tensors"});
  EXPECT_THAT(text, AllOf(HasSubstr("a model in safetensors"), HasSubstr("15 tensors"),
                          HasSubstr("metadata  purpose = one tensor of each dtype"),
                          testing::ContainsRegex("model/b.bool +bool .11.")));
}

TEST_F(CkptTest, InspectPrintsOneJsonObject) {
  const Json json = Json::parse(MustCkpt({"inspect", TestData("hf_sharded"), "--json", "--tensors"}));
  EXPECT_EQ(json["format"], "safetensors");
  EXPECT_EQ(json["step"], nullptr);
  EXPECT_EQ(json["tensor_count"], 12);
  EXPECT_EQ(json["files"].size(), 2);
  EXPECT_EQ(json["metadata"]["format"], "pt");
  EXPECT_EQ(json["tensors"].size(), 12);
  EXPECT_EQ(json["tensors"][0]["dtype"], "float32");
  EXPECT_EQ(json["tensors"][0]["shards"][0]["file"], "model-00001-of-00002.safetensors");
}

TEST_F(CkptTest, InspectMakesAPage) {
  const std::string page = Path("page.html");
  MustCkpt({"inspect", TestData("hf_sharded"), "--html=" + page});
  EXPECT_THAT(ReadFile(page), AllOf(HasSubstr("<!doctype html>"), HasSubstr("Values of the weights")));
  MustCkpt({"inspect", TestData("all_dtypes.safetensors"), "--html=" + page});  // replaces it
  EXPECT_THAT(ReadFile(page), HasSubstr("model/b.bool"));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("page.html"));
}

TEST_F(CkptTest, AnUnreadableCheckpointMakesNoPage) {
  std::string bytes = ReadFile(TestData("all_dtypes.safetensors"));
  bytes.back() = 2;  // the last bool
  WriteFile(Path("a.safetensors"), bytes);
  const Outcome outcome = Ckpt({"inspect", Path("a.safetensors"), "--html=" + Path("page.html"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("tensor \"b.bool\""));
  EXPECT_THAT(std::string(Json::parse(outcome.out)["problem"]), HasSubstr("tensor \"b.bool\""));
  EXPECT_THAT(Ckpt({"inspect", TestData("hf_sharded"), "--html=" + Path("none/page.html")}).err,
              HasSubstr("does not exist; make it first"));
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("a.safetensors"));
}

TEST_F(CkptTest, APathWithoutACheckpointIsAnErrorOfExitStatusOne) {
  WriteFile(Path("text"), "a text");
  std::filesystem::create_directory(Path("empty"));
  std::filesystem::create_directory(Path("ranks"));
  WriteFile(Path("ranks/rank-00000-of-00002.h5"), "");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"none", "does not exist"},
      {"text", "is not a checkpoint: expected an HDF5 file, a safetensors file, a torch file, "},
      {"empty", "is not a checkpoint: expected manifest.json, model.safetensors"},
      {"ranks", "manifest.json is missing in"},
  };
  for (const auto& [name, message] : cases) {
    for (const std::vector<std::string>& arguments : {std::vector<std::string>{"inspect", Path(name)},
                                                      {"verify", Path(name)},
                                                      {"convert", Path(name), Path("dst")}}) {
      if (arguments[0] == "verify" && name == "ranks") continue;  // below
      const Outcome outcome = Ckpt(arguments);
      EXPECT_EQ(outcome.status, 1) << arguments[0];
      EXPECT_THAT(outcome.err, AllOf(HasSubstr("ckpt " + arguments[0]), HasSubstr(message), HasSubstr(name)));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(Path("dst")));
  // Damage like any other.
  const Outcome lost = Ckpt({"verify", Path("ranks"), "--json"});
  EXPECT_EQ(lost.status, 1);
  const Json json = Json::parse(lost.out);
  EXPECT_EQ(json["problems"][0], "manifest.json: the file is missing");
  EXPECT_EQ(json["damage"][0]["file"], "manifest.json");
}

TEST_F(CkptTest, VerifySaysThatSafetensorsHasNoDigests) {
  EXPECT_THAT(MustCkpt({"verify", TestData("all_dtypes.safetensors")}),
              AllOf(HasSubstr("the structure is sound"), HasSubstr("no digests")));
  const Json json = Json::parse(MustCkpt({"verify", TestData("all_dtypes.safetensors"), "--json"}));
  EXPECT_EQ(json["ok"], true);
  EXPECT_EQ(json["digests"], false);
  EXPECT_EQ(json["tensors"], 15);
  EXPECT_EQ(json["bytes"], 573);
}

TEST_F(CkptTest, VerifyNamesAnHdf5FileThatCannotBeParsed) {
  WriteFile(Path("file.h5"), "\x89HDF\r\n\x1a\n and so on");
  const Outcome outcome = Ckpt({"verify", Path("file.h5")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out, HasSubstr("damaged: " + Path("file.h5") + ": HDF5 cannot open"));
  EXPECT_THAT(Ckpt({"inspect", Path("file.h5")}).err, HasSubstr(Path("file.h5") + ": HDF5 cannot open"));
}

TEST_F(CkptTest, VerifyNamesTheDamageOfASafetensorsFile) {
  std::string bytes = ReadFile(TestData("all_dtypes.safetensors"));
  WriteFile(Path("a.safetensors"), bytes.substr(0, bytes.size() - 1));
  Outcome outcome = Ckpt({"verify", Path("a.safetensors")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("damaged: tensor \"b.bool\""), HasSubstr("truncated"), HasSubstr("a.safetensors")));
  EXPECT_THAT(outcome.err, HasSubstr("1 problem"));
  bytes.back() = 2;  // the last bool
  WriteFile(Path("a.safetensors"), bytes);
  outcome = Ckpt({"verify", Path("a.safetensors"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["ok"], false);
  EXPECT_THAT(json["problems"][0], HasSubstr("element 10 is 2, expected 0 or 1"));
}

TEST_F(CkptTest, JsonIsPrintedForAPathThatCannotBeOpened) {
  Outcome outcome = Ckpt({"verify", Path("none"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(Json::parse(outcome.out)["ok"], false);
  outcome = Ckpt({"inspect", Path("none"), "--json"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(Json::parse(outcome.out)["problem"], Path("none") + " does not exist");
}

TEST_F(CkptTest, AUrlOfAnObjectStoreIsRefusedWithWhatToType) {
  const std::string model = TestData("hf_sharded");
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"repair", "s3://models/run"},
                                             {"prune", "s3://models/run", "--keep_last=1"},
                                             {"merge", model, "s3://models/run", Path("a")},
                                             {"convert", model, "s3://models/run"},
                                             {"push", "s3://models/run", "s3://models/run"},
                                             {"view", "s3://models/run", Path("a.h5")}}) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err,
                HasSubstr("s3://models/run is in an object store, expected a path: copy it with ckpt pull"));
  }
  EXPECT_THAT(Ckpt({"verify", "s3://me:secret@models/run", "--json"}).out,
              AllOf(HasSubstr("\"problem\""), Not(HasSubstr("secret"))));
}

TEST_F(CkptTest, AViewThatExistsIsReplacedOnlyByForceAndThisIsSaid) {
  MustCkpt({"view", TestData("hf_sharded"), Path("look.h5")});
  const Outcome outcome = Ckpt({"view", TestData("hf_sharded"), Path("look.h5")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr(Path("look.h5") + " exists; --force replaces it"));
  MustCkpt({"view", TestData("hf_sharded"), Path("look.h5"), "--force"});
}

TEST_F(CkptTest, AWorldSizeOf0IsTheSources) {
  const std::vector<std::string> sharded = {"convert", TestData("hf_sharded"), Path("a"), "--state_dict_type=sharded"};
  std::vector<std::string> two = sharded;
  two.push_back("--world_size=2");
  MustCkpt(two);
  MustCkpt({"convert", Path("a"), Path("b"), "--state_dict_type=sharded", "--world_size=0"});
  EXPECT_THAT(MustCkpt({"inspect", Path("b")}), HasSubstr("world size 2"));
}

// Regression: a converted checkpoint was of step 0, and moved to a directory of steps it was not one of them.
TEST_F(CkptTest, AConvertedCheckpointIsOfTheStepThatIsGiven) {
  const std::string model = TestData("hf_sharded");
  std::filesystem::create_directory(Path("root"));
  EXPECT_THAT(MustCkpt({"convert", model, Path("root/step-00000002")}),
              HasSubstr("is of an unknown step, so a directory of checkpoints will not take it for a step: --step=2 "
                        "makes it one"));
  EXPECT_THAT(MustCkpt({"convert", model, Path("root/step-00000002"), "--step=2", "--force"}), Not(HasSubstr("note")));
  EXPECT_THAT(MustCkpt({"inspect", Path("root")}), HasSubstr("checkpoint of step 2"));
  const Outcome torch = Ckpt({"convert", model, Path("a.pt"), "--step=2"});
  EXPECT_EQ(torch.status, 2);
  EXPECT_THAT(torch.err, HasSubstr("--step is for --to=hdf5; torch has no place for it"));
  EXPECT_EQ(Ckpt({"convert", model, Path("b"), "--step=-1"}).status, 2);
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// PyTorch's checkpoints through the ckpt program: into each of our kinds and back, with every tensor equal to
// PyTorch's; and damaged ones, which are refused without output.
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/checkpoint/formats/formats.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::vector<std::string>& WholeStates() {
  static const auto* const names =
      new std::vector<std::string>{"full.pt", "by_id.pth", "fsdp1_w2", "fsdp2_w3", "hybrid_w4", "tensor_parallel_w4"};
  return *names;
}

using CkptForeignTest = CkptTest;

void ExpectGolden(const std::string& path, const std::string& name, GoldenParts parts = GoldenParts::kAll) {
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(path));
  EXPECT_OK(CheckGolden(*source, name, parts)) << path;
}

TEST_F(CkptForeignTest, EachFormatBecomesEachOfOurKindsAndEveryOtherFormatWithoutLoss) {
  for (const std::string& name : WholeStates()) {
    const std::vector<std::vector<std::string>> targets = {
        {"full"},
        {"sharded", "--state_dict_type=sharded", "--world_size=3"},
        {"local", "--state_dict_type=local", "--world_size=2"},
        {"torch.pt"},
        {"dcp", "--to=dcp", "--world_size=3"},
    };
    for (const std::vector<std::string>& target : targets) {
      const std::string path = Path(absl::StrCat(name, ".", target[0]));
      std::vector<std::string> arguments = {"convert", TorchTestData(name), path};
      arguments.insert(arguments.end(), target.begin() + 1, target.end());
      MustCkpt(arguments);
      ExpectGolden(path, name);
      // And back to a format that PyTorch reads.
      MustCkpt({"convert", path, path + ".back.pt"});
      ExpectGolden(path + ".back.pt", name);
      MustCkpt({"convert", path, path + ".safetensors"});
      ASSERT_OK_AND_ASSIGN(const auto model, OpenTensorSource(path + ".safetensors"));
      EXPECT_EQ(*ReadWhole(*model, StateKey::Model("embed.weight")),
                *ReadWhole(**OpenTensorSource(TorchTestData(name)), StateKey::Model("embed.weight")));
    }
  }
}

TEST_F(CkptForeignTest, ComplexAndRareFloatsGoThroughEveryKindWithoutLoss) {
  const std::string name = "rare_dtypes.pt";
  const std::vector<std::vector<std::string>> targets = {
      {"full"},
      {"sharded", "--state_dict_type=sharded", "--world_size=3"},
      {"torch.pt"},
      {"dcp", "--to=dcp", "--world_size=2"},
  };
  for (const std::vector<std::string>& target : targets) {
    std::vector<std::string> arguments = {"convert", TorchTestData(name), Path(target[0])};
    arguments.insert(arguments.end(), target.begin() + 1, target.end());
    MustCkpt(arguments);
    ExpectGolden(Path(target[0]), name);
    MustCkpt({"verify", Path(target[0])});
    MustCkpt({"diff", TorchTestData(name), Path(target[0])});
  }
  // safetensors has complex64 and the float8 formats, but not the other two.
  const Outcome refused = Ckpt({"convert", Path("full"), Path("x.safetensors")});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.err, HasSubstr("safetensors has no dtype complex"));
  MustCkpt({"convert", Path("full"), Path("x.safetensors"), "--exclude=complex32|complex128"});
  EXPECT_EQ(*ReadWhole(**OpenTensorSource(Path("x.safetensors")), StateKey::Model("complex64.transposed")),
            *ReadWhole(**OpenTensorSource(Path("full")), StateKey::Model("complex64.transposed")));
}

TEST_F(CkptForeignTest, EqualInputGivesEqualBytes) {
  for (const char* name : {"a", "b"}) {
    MustCkpt({"convert", TorchTestData("full.pt"), Path(absl::StrCat(name, ".pt"))});
    MustCkpt({"convert", TorchTestData("full.pt"), Path(name), "--to=dcp", "--world_size=2"});
  }
  EXPECT_EQ(ReadFile(Path("a.pt")), ReadFile(Path("b.pt")));
  for (const std::string& name : NamesIn(Path("a")))
    EXPECT_EQ(ReadFile(Path("a/" + name)), ReadFile(Path("b/" + name)));
}

TEST_F(CkptForeignTest, RenamesAndFiltersHoldForTheOptimizerToo) {
  MustCkpt({"convert", TorchTestData("fsdp2_w3"), Path("x.pt"), "--rename=^body=net", "--exclude=^count$"});
  ASSERT_OK_AND_ASSIGN(const auto source, OpenTensorSource(Path("x.pt")));
  EXPECT_TRUE(source->contents().contains(StateKey::OptimState("net.0.weight", "exp_avg")));
  EXPECT_FALSE(source->contents().contains(StateKey::Model("count")));
  EXPECT_THAT(*source->contents().FindText(StateKey::ParamGroups()),
              AllOf(HasSubstr("net.0.weight"), Not(HasSubstr("body"))));
}

TEST_F(CkptForeignTest, InspectAndVerifyNameTheFormat) {
  EXPECT_THAT(MustCkpt({"inspect", TorchTestData("fsdp2_w3"), "--tensors"}),
              AllOf(HasSubstr("a DCP directory of step 3, written by 3 ranks"), HasSubstr("optim/param_groups"),
                    HasSubstr("__0_0.distcp[0, 24) __1_0.distcp[24, 48)")));
  EXPECT_THAT(MustCkpt({"inspect", TorchTestData("full.pt")}),
              AllOf(HasSubstr("a torch checkpoint of step 3"), HasSubstr("alias  head.weight is embed.weight")));
  const auto json = nlohmann::json::parse(MustCkpt({"inspect", TorchTestData("tensor_parallel_w4"), "--json"}));
  EXPECT_EQ(json["format"], "dcp");
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_THAT(MustCkpt({"verify", TorchTestData("hybrid_w4")}), HasSubstr("the structure is sound"));
  EXPECT_EQ(Ckpt({"verify", TorchTestData("hostile/system.pt")}).status, 1);
}

// Flips a bit of entry `entry` of the archive `path`; it must be the last entry of that name.
void DamageEntry(const std::string& path, const std::string& entry) {
  std::string bytes = ReadFile(path);
  const size_t name = bytes.find(entry + "FB");  // in the local header; the padding follows, to a multiple of 64
  ASSERT_NE(name, bytes.npos);
  const size_t payload = (name + entry.size() + 4 + 63) / 64 * 64;
  bytes[payload + 1] = static_cast<char>(bytes[payload + 1] ^ 4);
  WriteFile(path, bytes);
}

TEST_F(CkptForeignTest, ADamagedEntryIsNamedByVerifyAndConvertedToNothing) {
  const std::string file = Path("damaged.pt");
  WriteFile(file, ReadFile(TorchTestData("full.pt")));
  EXPECT_THAT(MustCkpt({"verify", file}), HasSubstr("every CRC-32 matches"));
  DamageEntry(file, "full/data/0");
  const Outcome verify = Ckpt({"verify", file});
  EXPECT_EQ(verify.status, 1);
  EXPECT_THAT(verify.out, AllOf(HasSubstr("damaged: tensor \"model/embed.weight\", data/0 of " + file),
                                HasSubstr("entry \"data/0\", bytes "), HasSubstr("!= recorded")));
  for (const std::string target : {"x.pt", "x.safetensors", "x", "dcp"}) {
    std::vector<std::string> convert = {"convert", file, Path(target)};
    if (target == "dcp") convert.push_back("--to=dcp");
    const Outcome outcome = Ckpt(convert);
    EXPECT_EQ(outcome.status, 1) << target;
    EXPECT_THAT(outcome.err, HasSubstr("CRC-32"));
  }
  EXPECT_THAT(NamesIn(Path("")), ElementsAre("damaged.pt"));
}

// Its tensors are views with gaps, so no read covers the entry: the rest is read for its checksum.
TEST_F(CkptForeignTest, AnEntryOfViewsIsComparedWhole) {
  const std::string file = Path("views.pt");
  WriteFile(file, ReadFile(TorchTestData("views.pt")));
  MustCkpt({"convert", file, Path("rows.pt"), "--include=^rows$"});
  DamageEntry(file, "views/data/0");  // in the first row, which `rows` does not show
  EXPECT_EQ(Ckpt({"verify", file}).status, 1);
  const Outcome outcome = Ckpt({"convert", file, Path("rows2.pt"), "--include=^rows$"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(file), HasSubstr("entry \"data/0\"")));
}

TEST_F(CkptForeignTest, ADamagedChunkOfADcpDirectoryIsNamed) {
  fs::copy(TorchTestData("fsdp2_w3"), Path("dcp"));
  const std::string file = Path("dcp/__1_0.distcp");
  fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  std::string bytes = ReadFile(file);
  const size_t name = bytes.rfind("archive/data/0FB");
  bytes[name + 100] = static_cast<char>(bytes[name + 100] ^ 1);
  WriteFile(file, bytes);
  const Outcome verify = Ckpt({"verify", Path("dcp")});
  EXPECT_EQ(verify.status, 1);
  EXPECT_THAT(verify.out, AllOf(HasSubstr(file), HasSubstr("entry \"data/0\""), HasSubstr("!= recorded")));
}

TEST_F(CkptForeignTest, HostileFilesMakeNothing) {
  for (const auto& entry : fs::directory_iterator(TorchTestData("hostile"))) {
    const Outcome outcome = Ckpt({"convert", entry.path(), Path("out")});
    EXPECT_EQ(outcome.status, 1) << entry.path();
    EXPECT_THAT(outcome.err, HasSubstr(entry.path().filename()));
  }
  EXPECT_THAT(NamesIn(Path("")), IsEmpty());
  EXPECT_FALSE(fs::exists("hostile_pickle_was_executed"));
}

TEST_F(CkptForeignTest, ObjectsOfClassesAreNamedByEveryCommandAndDoNotLockTheWeights) {
  for (const std::string name : {"objects.pt", "objects_legacy.pt", "objects_dcp"}) {
    const std::string file = TorchTestData(name);
    const auto names_it = AllOf(HasSubstr("_io.BytesIO"), HasSubstr("nothing was executed"), HasSubstr("getvalue()"),
                                HasSubstr("--skip_links"), HasSubstr("--model_only"));
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"inspect", file}, {"verify", file}, {"convert", file, Path("x.pt")}}) {
      const Outcome outcome = Ckpt(arguments);
      EXPECT_EQ(outcome.status, 1) << arguments[0];
      EXPECT_THAT(outcome.err + outcome.out, names_it) << arguments[0];
    }
    const std::string out = Path(absl::StrCat(name, ".safetensors"));
    EXPECT_THAT(MustCkpt({"convert", file, out, "--model_only"}), HasSubstr("_io.BytesIO"));
    ExpectGolden(out, name, GoldenParts::kModel);
    const std::string whole = Path(absl::StrCat(name, ".whole.pt"));
    EXPECT_THAT(MustCkpt({"convert", file, whole, "--skip_links"}), HasSubstr("_io.BytesIO"));
    ExpectGolden(whole, name);
    EXPECT_THAT(MustCkpt({"inspect", file, "--skip_links"}), HasSubstr("left out  "));
  }
}

TEST_F(CkptForeignTest, OptionsThatDoNotApplyAreRefused) {
  const std::string model = TorchTestData("full.pt");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"convert", model, Path("x.pt"), "--world_size=2"}, "a torch file is one"},
      {{"convert", model, Path("x.pt"), "--to=dcp"}, "names a torch file, but the format to write is dcp"},
      {{"convert", model, Path("x"), "--to=dcp", "--state_dict_type=sharded"}, "--state_dict_type is for --to=hdf5"},
      {{"convert", model, Path("x.bin"), "--max_shard_size=1GB"}, "--max_shard_size"},
      {{"convert", model, Path("x.safetensors"), "--to=torch"}, "names a safetensors file"},
      {{"convert", model, Path("x"), "--to=pickle"},
       "expected hdf5, safetensors, torch, dcp, npz, gguf, deepspeed or megatron"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
  }
  EXPECT_THAT(NamesIn(Path("")), IsEmpty());
}

// Debian's interpreter, which has python3-h5py; otherwise the one in PATH.
std::string Python() { return fs::exists("/usr/bin/python3") ? "/usr/bin/python3" : "python3"; }

TEST_F(CkptForeignTest, APointerOfGitLfsIsNamedByEveryCommand) {
  fs::create_directory(Path("model"));
  WriteFile(Path("model/config.json"), "{}");
  WriteFile(Path("model/model.safetensors"), "version https://git-lfs.github.com/spec/v1\noid sha256:3f\nsize 7\n");
  for (const std::string path : {"model", "model/model.safetensors"}) {
    for (const std::vector<std::string>& command : {std::vector<std::string>{"inspect", Path(path)},
                                                    {"verify", Path(path)},
                                                    {"convert", Path(path), Path("x")}}) {
      const Outcome outcome = Ckpt(command);
      EXPECT_EQ(outcome.status, 1);
      EXPECT_THAT(outcome.err,
                  AllOf(HasSubstr("is a Git LFS pointer to a file of 7 bytes"), HasSubstr("git lfs pull")));
    }
  }
}

TEST_F(CkptForeignTest, AViewIsRefusedWithTheFileWhoseViewItIs) {
  MustCkpt({"view", TorchTestData("full.pt"), Path("look.h5")});
  const Outcome outcome = Ckpt({"inspect", Path("look.h5")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("this is a view"), HasSubstr("full.pt\", which has its values")));
}

TEST_F(CkptForeignTest, AViewShowsEveryTensorToH5pyWhereItLies) {
  for (const std::string name :
       {"full.pt", "views.pt", "rare_dtypes.pt", "legacy.pt", "indexed", "fsdp2_w3", "tensor_parallel_w4"}) {
    const std::string view = Path(name + ".h5");
    const std::string said = MustCkpt({"view", TorchTestData(name), view});
    EXPECT_LT(fs::file_size(view), 100'000) << name;
    if (name == "views.pt") {
      EXPECT_THAT(said, AllOf(HasSubstr("\"model/transposed\" is not shown: it is a view with strides [1, 8]"),
                              HasSubstr("\"model/expanded\" is not shown")));
    }
    const std::string command = absl::StrCat(Python(), " checkpoint/foreign/torch/testdata/check_view.py ", view, " ",
                                             TorchTestData("expected.json"), " ", name);
    const int result = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(result));
    if (WEXITSTATUS(result) == 77 || WEXITSTATUS(result) == 127) GTEST_SKIP() << "needs python3-h5py";
    EXPECT_EQ(WEXITSTATUS(result), 0) << name;
  }
}

TEST_F(CkptForeignTest, ARelativeViewMovesWithItsCheckpoint) {
  for (const std::string name : {"full.pt", "indexed", "tensor_parallel_w4"}) {
    for (const bool relative : {true, false}) {
      fs::remove_all(Path("here"));
      fs::remove_all(Path("moved"));
      fs::create_directories(Path("here/below"));
      fs::copy(TorchTestData(name), Path("here/" + name), fs::copy_options::recursive);
      std::vector<std::string> words = {"view", Path("here/" + name), Path("here/below/look.h5")};
      if (relative) words.push_back("--relative");
      EXPECT_THAT(MustCkpt(words), HasSubstr(relative ? "HDF5_EXTFILE_PREFIX='${ORIGIN}'" : "by absolute paths"));
      fs::rename(Path("here"), Path("moved"));
      const std::string command = absl::StrCat(
          "HDF5_EXTFILE_PREFIX='${ORIGIN}' ", Python(), " checkpoint/foreign/torch/testdata/check_view.py ",
          Path("moved/below/look.h5"), " ", TorchTestData("expected.json"), " ", name, " 2>/dev/null");
      const int result = std::system(command.c_str());
      ASSERT_TRUE(WIFEXITED(result));
      if (WEXITSTATUS(result) == 77 || WEXITSTATUS(result) == 127) GTEST_SKIP() << "needs python3-h5py";
      EXPECT_EQ(WEXITSTATUS(result) == 0, relative) << name;
    }
  }
}

TEST_F(CkptForeignTest, TensorsThatAViewDoesNotShowAreListedWithTheReason) {
  const auto json = nlohmann::json::parse(MustCkpt({"view", TorchTestData("views.pt"), Path("views.h5"), "--json"}));
  EXPECT_EQ(json["source"], TorchTestData("views.pt"));
  EXPECT_EQ(json["destination"], Path("views.h5"));
  EXPECT_EQ(json["bytes"], fs::file_size(Path("views.h5")));
  std::map<std::string, std::string> reasons;
  for (const auto& item : json["not_shown"]) reasons[item["tensor"]] = item["reason"];
  EXPECT_EQ(reasons["model/transposed"], "it is a view with strides [1, 8], whose elements are not contiguous");
  EXPECT_EQ(reasons.count("model/rows"), 0);
  const size_t all = ExpectedOfAll()["views.pt"]["model"].size();
  EXPECT_EQ(json["tensors"].get<size_t>() + reasons.size(), all);
  const Outcome refused = Ckpt({"view", TorchTestData("hostile/compressed.pt"), Path("x.h5"), "--json"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(refused.out, HasSubstr("is compressed (method 8)"));
  // A part of a flat parameter is a range of it; shards in the files of several ranks are not in one place.
  MustCkpt({"view", TorchTestData("flat.pt"), Path("flat.h5")});
  EXPECT_THAT(MustCkpt({"view", TorchTestData("flat_ranks_w3"), Path("ranks.h5")}),
              HasSubstr("its elements are in the files of several ranks"));
}

TEST_F(CkptForeignTest, FlatParametersAreTakenApart) {
  for (const std::string name : {"flat.pt", "flat_ranks_w3", "flat_orig_ranks_w2"}) {
    MustCkpt({"convert", TorchTestData(name), Path(name + ".ours")});
    ExpectGolden(Path(name + ".ours"), name);
    MustCkpt({"convert", Path(name + ".ours"), Path(name + ".dcp"), "--to=dcp", "--world_size=2"});
    ExpectGolden(Path(name + ".dcp"), name);
  }
  const std::string layout = "--flat_layout=" + TorchTestData("flat_layout.json");
  for (const std::string name : {"flat_local_w3", "flat_local_orig_w2"}) {
    MustCkpt({"convert", TorchTestData(name), Path(name + ".pt"), layout});
    ExpectGolden(Path(name + ".pt"), name, GoldenParts::kModel);
    const Outcome without = Ckpt({"convert", TorchTestData(name), Path("x.pt")});
    EXPECT_EQ(without.status, 1);
    EXPECT_THAT(without.err, AllOf(HasSubstr("is a flat parameter of FSDP1"), HasSubstr("--flat_layout provides it")));
    const Outcome json = Ckpt({"verify", TorchTestData(name), "--json"});
    EXPECT_THAT(json.out, AllOf(HasSubstr("--flat_layout provides it"), Not(HasSubstr("Options::"))));
  }
}

TEST_F(CkptForeignTest, AViewOfOursIsRefusedAndAnOldFileKept) {
  MustCkpt({"convert", TorchTestData("full.pt"), Path("ours")});
  const Outcome outcome = Ckpt({"view", Path("ours"), Path("x.h5")});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("it is HDF5 already: open its checkpoint.h5"));
  MustCkpt({"convert", TorchTestData("full.pt"), Path("one.h5")});
  EXPECT_THAT(Ckpt({"view", Path("one.h5"), Path("x.h5")}).err, HasSubstr("it is HDF5 already: open it as it is"));
  WriteFile(Path("x.h5"), "mine");
  EXPECT_EQ(Ckpt({"view", TorchTestData("full.pt"), Path("x.h5")}).status, 1);
  EXPECT_EQ(ReadFile(Path("x.h5")), "mine");
  MustCkpt({"view", TorchTestData("full.pt"), Path("x.h5"), "--force"});
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// No subcommand harms its input, or any other checkpoint: after each refusal here every byte is compared with the state
// before it.
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/foreign/torch/golden_testutil.h"
#include "fsdp/tools/commands/ckpt_testutil.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Words = std::vector<std::string>;

// Sources of every form, each in a directory of its own:
//
//   a.safetensors, full.pt      files
//   hf, indexed, dcp, ranks     directories of others
//   root/step-00000000          ours: two rank files and one of parity
class SourceSafetyTest : public CkptTest {
 protected:
  SourceSafetyTest() {
    Copy(TestData("all_dtypes.safetensors"), "a.safetensors");
    Copy(TorchTestData("full.pt"), "full.pt");
    Copy(TestData("hf_sharded"), "hf");
    Copy(TorchTestData("indexed"), "indexed");
    Copy(TorchTestData("fsdp2_w3"), "dcp");
    Copy(TorchTestData("flat_ranks_w3"), "ranks");
    fs::create_directory(Path("root"));
    MustCkpt({"convert", Path("hf"), Path("root/step-00000000"), "--step=0", "--state_dict_type=sharded",
              "--world_size=2", "--parity=1"});
  }

  void Copy(const std::string& from, const std::string& name) const {
    fs::copy(from, Path(name), fs::copy_options::recursive);
    fs::permissions(Path(name), fs::perms::owner_all, fs::perm_options::add);
    if (!fs::is_directory(Path(name))) return;
    for (const auto& entry : fs::directory_iterator(Path(name))) {
      fs::permissions(entry.path(), fs::perms::owner_all, fs::perm_options::add);
    }
  }

  // Every name below the test's directory, with the bytes of files and the targets of links.
  std::map<std::string, std::string> Snapshot() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(Path(""))) {
      all[entry.path()] = entry.is_symlink()        ? "-> " + fs::read_symlink(entry.path()).string()
                          : entry.is_regular_file() ? ReadFile(entry.path())
                                                    : "";
    }
    return all;
  }

  // Exit status 1, an error with `words`, and nothing is changed.
  void ExpectRefused(const Words& arguments, const Words& words) const {
    const auto before = Snapshot();
    const Outcome outcome = Ckpt(arguments);
    EXPECT_EQ(outcome.status, 1) << testing::PrintToString(arguments) << outcome.out;
    for (const std::string& word : words)
      EXPECT_THAT(outcome.err, HasSubstr(word)) << testing::PrintToString(arguments);
    EXPECT_TRUE(Snapshot() == before) << testing::PrintToString(arguments) << " changed something";
  }

  // For each subcommand that makes a file, with and without the flag that lets it replace one.
  void ExpectNoToolWrites(const std::string& source, const std::string& destination, const Words& words) const {
    const bool is_safetensors = fs::path(destination).extension() == ".safetensors";
    for (const Words& more : {Words{}, Words{"--force"}}) {
      Words view = {"view", source, destination};
      Words convert = {"convert", source, destination, is_safetensors ? "--to=safetensors" : "--to=torch"};
      view.insert(view.end(), more.begin(), more.end());
      convert.insert(convert.end(), more.begin(), more.end());
      ExpectRefused(view, words);
      ExpectRefused(convert, words);
    }
    ExpectRefused({"inspect", source, "--html=" + destination}, words);
  }
};

TEST_F(SourceSafetyTest, AnOutputThatIsTheSourceIsRefused) {
  for (const std::string name : {"a.safetensors", "full.pt"}) {
    const std::string file = Path(name);
    ExpectRefused({"view", file, file, "--force"}, {file, "which is read"});
    ExpectRefused({"convert", file, file, "--force"}, {file, "which is read"});
    ExpectRefused({"convert", file, file}, {file, "which is read"});
    ExpectRefused({"inspect", file, "--html=" + file}, {file, "which is read"});
  }
}

TEST_F(SourceSafetyTest, NoSpellingOrLinkHidesThatTheOutputIsTheSource) {
  fs::create_symlink("a.safetensors", Path("symbolic.h5"));
  fs::create_symlink("symbolic.h5", Path("symbolic_twice.h5"));
  fs::create_hard_link(Path("a.safetensors"), Path("hard.h5"));
  fs::create_directory_symlink(Path(""), Path("hf/../here"));
  for (const std::string name : {"./a.safetensors", "hf/../a.safetensors", "here/a.safetensors", "symbolic.h5",
                                 "symbolic_twice.h5", "hard.h5"}) {
    const std::string file = Path("a.safetensors");
    ExpectRefused({"view", file, Path(name), "--force"}, {file, "which is read"});
    ExpectRefused({"view", Path(name), file, "--force"}, {file, "which is read"});
    ExpectRefused({"inspect", file, "--html=" + Path(name)}, {file, "which is read"});
  }
}

TEST_F(SourceSafetyTest, AnOutputThatIsAMemberOfTheSourceIsRefused) {
  const std::vector<std::pair<std::string, std::string>> members = {
      {"hf", "model-00001-of-00002.safetensors"},
      {"hf", "model.safetensors.index.json"},
      {"indexed", "pytorch_model-00001-of-00002.bin"},
      {"dcp", "__0_0.distcp"},
      {"dcp", ".metadata"},
      {"ranks", "rank1.pt"},
      {"root/step-00000000", "rank-00000-of-00002.h5"},
      {"root/step-00000000", "parity-00000-of-00001.bin"},
      {"root/step-00000000", "checkpoint.h5"},
      {"root", "step-00000000/manifest.json"},
  };
  for (const auto& [source, member] : members) {
    ExpectNoToolWrites(Path(source), Path(source + "/" + member), {member, "which is read"});
  }
}

TEST_F(SourceSafetyTest, AnOutputInsideOfTheSourceIsRefused) {
  fs::create_directory_symlink("hf", Path("linked"));
  fs::create_directory(Path("hf/sub"));
  for (const std::string destination :
       {"hf/out.h5", "hf/sub/out.h5", "linked/out.h5", "linked/sub/../out.h5", "hf/sub/none/../../out.h5"}) {
    ExpectNoToolWrites(Path("hf"), Path(destination), {"hf", "which is read"});
    ExpectNoToolWrites(Path("linked"), Path(destination), {"linked", "which is read"});
  }
  for (const std::string source : {"indexed", "dcp", "ranks", "root/step-00000000"}) {
    ExpectNoToolWrites(Path(source), Path(source + "/out.h5"), {source, "which is read"});
    ExpectRefused({"convert", Path(source), Path(source + "/out")}, {source, "which is read"});
    ExpectRefused({"convert", Path(source), Path(source + "/out"), "--to=dcp"}, {source, "which is read"});
    ExpectRefused({"convert", Path(source), Path(source + "/out"), "--to=safetensors"}, {source, "which is read"});
  }
}

// As in a cache of Hugging Face's hub, whose snapshots consist of links to blobs.
TEST_F(SourceSafetyTest, TheFileThatAMemberIsALinkToIsRefused) {
  fs::create_directory(Path("blobs"));
  for (const std::string& name : NamesIn(Path("hf"))) {
    fs::rename(Path("hf/" + name), Path("blobs/" + name));
    fs::create_symlink("../blobs/" + name, Path("hf/" + name));
  }
  MustCkpt({"verify", Path("hf")});
  ExpectNoToolWrites(Path("hf"), Path("blobs/model-00002-of-00002.safetensors"), {"blobs", "which is read"});
}

TEST_F(SourceSafetyTest, ADirectoryThatHoldsTheSourceIsNotReplaced) {
  fs::create_directory(Path("outer"));
  fs::rename(Path("a.safetensors"), Path("outer/model.safetensors"));
  for (const char* to : {"--to=hdf5", "--to=dcp", "--to=safetensors"}) {
    ExpectRefused({"convert", Path("outer/model.safetensors"), Path("outer"), "--force", to},
                  {Path("outer"), "which is read"});
    ExpectRefused({"convert", Path("root/step-00000000/checkpoint.h5"), Path("root/step-00000000"), "--force", to},
                  {Path("root/step-00000000"), "which is read"});
  }
  ExpectRefused({"convert", Path("root/step-00000000"), Path("root/step-00000000"), "--force"},
                {Path("root/step-00000000"), "which is read"});
  ExpectRefused({"convert", Path("dcp"), Path("dcp"), "--force", "--to=dcp"}, {Path("dcp"), "which is read"});
}

TEST_F(SourceSafetyTest, NothingIsWrittenIntoAnotherCheckpoint) {
  for (const std::string other : {"hf", "indexed", "dcp", "root/step-00000000"}) {
    ExpectNoToolWrites(Path("a.safetensors"), Path(other + "/out.h5"), {Path(other), "is a checkpoint"});
    ExpectRefused({"convert", Path("a.safetensors"), Path(other + "/out")}, {Path(other), "is a checkpoint"});
  }
  ExpectRefused(
      {"convert", Path("a.safetensors"), Path("root/step-00000000/rank-00000-of-00002.h5"), "--to=torch", "--force"},
      {"is a checkpoint"});
  // Leftovers of an interrupted save or deletion, and a save in progress.
  for (const std::string name : {".step-00000007.tmp-0123456789abcdef", ".step-00000005.deleted-0123456789abcdef"}) {
    fs::create_directory(Path("root/" + name));
    ExpectNoToolWrites(Path("a.safetensors"), Path("root/" + name + "/out.h5"), {name, "save"});
    ExpectNoToolWrites(Path("a.safetensors"), Path("root/" + name), {name, "save"});
  }
  fs::rename(Path("root/step-00000000"), Path("root/step-00000000.damaged"));
  ExpectNoToolWrites(Path("a.safetensors"), Path("root/step-00000000.damaged/out.h5"), {"is a checkpoint"});
}

TEST_F(SourceSafetyTest, AnExportBesideStepsIsMadeButNotUnderTheNameOfOne) {
  for (const std::string source : {"root/step-00000000", "root"}) {
    MustCkpt({"convert", Path(source), Path("root/export.safetensors"), "--force"});
    MustCkpt({"convert", Path(source), Path("root/export"), "--force"});
    MustCkpt({"inspect", Path(source), "--html=" + Path("root/page.html")});
  }
  MustCkpt({"verify", Path("root/step-00000000")});
  ExpectNoToolWrites(Path("a.safetensors"), Path("root/step-00000007"), {"step-00000007", "name of a step"});
  ExpectRefused({"convert", Path("root"), Path("root/step-00000007"), "--to=dcp"}, {"name of a step"});
  MustCkpt({"convert", Path("a.safetensors"), Path("root/step-00000007")});  // a checkpoint of ours is a step
  // The name is free elsewhere.
  fs::create_directory(Path("others"));
  MustCkpt({"convert", Path("root"), Path("others/step-00000000"), "--to=dcp"});
  MustCkpt({"convert", Path("root"), Path("others/step-00000007"), "--to=dcp"});
}

// A file that happens to have a member's name does not make the directory around it a checkpoint.
TEST_F(SourceSafetyTest, ADirectoryWithAModelAmongOtherFilesIsWrittenTo) {
  fs::create_directory(Path("work"));
  fs::rename(Path("a.safetensors"), Path("work/model.safetensors"));
  WriteFile(Path("work/manifest.json"), R"({"name": "a page", "start_url": "."})");
  MustCkpt({"convert", Path("work/model.safetensors"), Path("work/model.pt")});
  MustCkpt({"convert", Path("work/model.pt"), Path("work/model.safetensors"), "--force"});
  MustCkpt({"view", Path("work/model.safetensors"), Path("work/view.h5")});
  MustCkpt({"inspect", Path("work/model.pt"), "--html=" + Path("work/page.html")});
}

// A destination is first written as a hidden sibling, and a crash's leftover under that name is removed.
TEST_F(SourceSafetyTest, ASourceWithTheNameOfADestinationThatIsBeingWrittenIsKept) {
  fs::rename(Path("a.safetensors"), Path(".x.pt.new"));
  ExpectRefused({"convert", Path(".x.pt.new"), Path("x.pt")}, {".x.pt.new", "which is read"});
}

TEST_F(SourceSafetyTest, RepairWritesThroughNoLinkOutOfTheCheckpoint) {
  const std::string name = "rank-00000-of-00002.h5";
  const std::string whole = ReadFile(Path("root/step-00000000/" + name));
  fs::create_directory(Path("outside"));
  WriteFile(Path("outside/file.h5"), "somebody's");
  fs::create_directory(Path("root/step-00000000/.repair-notes"));
  fs::remove(Path("root/step-00000000/" + name));
  fs::create_symlink(Path("outside/file.h5"), Path("root/step-00000000/" + name));
  MustCkpt({"repair", Path("root/step-00000000")});
  EXPECT_EQ(ReadFile(Path("outside/file.h5")), "somebody's");
  EXPECT_EQ(ReadFile(Path("root/step-00000000/" + name)), whole);
  EXPECT_TRUE(fs::exists(Path("root/step-00000000/.repair-notes"))) << "a name that no repair gives was removed";
  fs::remove(Path("root/step-00000000/" + name));
  fs::create_directory_symlink(Path("outside"), Path("root/step-00000000/" + name));
  MustCkpt({"repair", Path("root/step-00000000")});
  EXPECT_EQ(NamesIn(Path("outside")), std::vector<std::string>{"file.h5"});
  EXPECT_EQ(ReadFile(Path("root/step-00000000/" + name)), whole);
}

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointProofTest : public testing::Test {
 protected:
  CheckpointProofTest() {
    const StateDict state = FullState({{StateKey::Model("wte.weight"), DType::kFloat32, {4}}});
    EXPECT_OK(WriteCheckpointDirectory(path_, state, ReadFromMemory(state),
                                       {.type = StateDictType::kSharded, .world_size = 2}));
  }

  void ExpectUnproven(const std::string& path, const std::string& why) const {
    EXPECT_THAT(CheckIsOurCheckpoint(files_, path), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(why)));
  }

  std::string MakeDirectory(const std::string& name, const std::vector<std::pair<std::string, std::string>>& files) {
    const std::string path = root_ + "/" + name;
    fs::create_directory(path);
    for (const auto& [file, bytes] : files) WriteAll(path + "/" + file, bytes);
    return path;
  }

  FileSystem& files_ = PosixFileSystem();
  const std::string root_ = NewTestDirectory();
  const std::string path_ = root_ + "/step-00000001";
};

TEST_F(CheckpointProofTest, AManifestProvesItUndamagedOrNot) {
  EXPECT_OK(CheckIsOurCheckpoint(files_, path_));
  const std::string manifest = ReadFile(path_ + "/manifest.json");
  for (const char* name : {"rank-00000-of-00002.h5", "rank-00001-of-00002.h5"}) fs::remove(path_ + "/" + name);
  WriteAll(path_ + "/manifest.json", manifest.substr(0, 200));
  EXPECT_OK(CheckIsOurCheckpoint(files_, path_));
  WriteAll(path_ + "/manifest.json", manifest.substr(0, 20));
  ExpectUnproven(path_, "neither its manifest.json nor a record in a rank file is one of this project");
}

TEST_F(CheckpointProofTest, ARecordProvesItWithoutAManifest) {
  fs::remove(path_ + "/manifest.json");
  fs::remove(path_ + "/rank-00000-of-00002.h5");
  EXPECT_OK(CheckIsOurCheckpoint(files_, path_));
  WriteAll(path_ + "/rank-00001-of-00002.h5", std::string(100'000, '\0'));
  ExpectUnproven(path_, "neither its manifest.json nor a record");
}

TEST_F(CheckpointProofTest, ARankFileCountsByItsExactNameAndHdf5sSignature) {
  fs::remove(path_ + "/manifest.json");
  fs::remove(path_ + "/rank-00000-of-00002.h5");
  const std::string file = path_ + "/rank-00001-of-00002.h5";
  std::string bytes = ReadFile(file);
  for (const std::string name : {"rank-1.h5", "rank-00001-of-00002.old.h5", "rank-00002-of-00002.h5"}) {
    fs::rename(file, path_ + "/" + name);
    ExpectUnproven(path_, "it holds " + name + " and no manifest.json of this project");
    fs::rename(path_ + "/" + name, file);
  }
  fs::rename(file, path_ + "/rank-00001-of-00002.step-00000007.h5");  // as an incremental save links it
  EXPECT_OK(CheckIsOurCheckpoint(files_, path_));
  fs::rename(path_ + "/rank-00001-of-00002.step-00000007.h5", file);
  bytes[0] = 'x';
  WriteAll(file, bytes);
  ExpectUnproven(path_, "neither its manifest.json nor a record");
}

TEST_F(CheckpointProofTest, NeitherLinksNorFilesNorOthersDirectoriesAreProven) {
  fs::create_directory_symlink(path_, root_ + "/link");
  ExpectUnproven(root_ + "/link", "it is a symbolic link");
  WriteAll(root_ + "/file", "x");
  ExpectUnproven(root_ + "/file", "it is not a directory");
  ExpectUnproven(root_ + "/none", "it is not a directory");
  ExpectUnproven(MakeDirectory("empty", {}), "it is empty");
  ExpectUnproven(MakeDirectory("dcp", {{".metadata", "x"}, {"__0_0.distcp", "x"}}), "it holds .metadata and no");
  ExpectUnproven(MakeDirectory("page", {{"manifest.json", R"({"name": "a page"})"}, {"index.html", ""}}),
                 "it holds index.html and no manifest.json of this project");
  const std::string linked = MakeDirectory("linked", {});
  fs::create_symlink(path_ + "/manifest.json", linked + "/manifest.json");
  ExpectUnproven(linked, "neither its manifest.json");
}

TEST_F(CheckpointProofTest, ALeftoverIsProvenByTheNamesInItToo) {
  const std::string name = ".step-00000001.tmp-0123456789abcdef";
  EXPECT_OK(ProveLeftover(files_, MakeDirectory(name, {})));
  MakeDirectory(name, {{"manifest.json", ""}, {"rank-00000-of-00002.h5", "torn"}, {"parity-00000-of-00001.bin", ""}});
  fs::create_directory(root_ + "/" + name + "/exchange");
  EXPECT_OK(ProveLeftover(files_, root_ + "/" + name));
  MakeDirectory(name, {{"thesis.tex", ""}});
  fs::remove(root_ + "/" + name + "/exchange");
  EXPECT_THAT(ProveLeftover(files_, root_ + "/" + name),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("it holds thesis.tex")));
}

TEST_F(CheckpointProofTest, FilesThatTheFileSystemLeftDoNotKeepALeftover) {
  const std::string name = ".step-00000001.tmp-0123456789abcdef";
  MakeDirectory(name, {{"rank-00000-of-00002.h5", "torn"}, {".nfs000000000001", ""}, {".fuse_hidden00000001", ""}});
  EXPECT_OK(ProveLeftover(files_, root_ + "/" + name));
  EXPECT_FALSE(CheckIsOurCheckpoint(files_, root_ + "/" + name).ok());
  fs::create_directory(root_ + "/" + name + "/.nfs000000000002");  // not a file
  EXPECT_FALSE(ProveLeftover(files_, root_ + "/" + name).ok());
  fs::remove(root_ + "/" + name + "/.nfs000000000002");
  MakeDirectory(name, {{"notes.txt", ""}});
  EXPECT_FALSE(ProveLeftover(files_, root_ + "/" + name).ok());
}

TEST_F(CheckpointProofTest, DeletionAsksForIt) {
  MakeDirectory("step-00000002", {{"p.txt", "mine"}});
  EXPECT_THAT(DeleteCheckpointDirectory(files_, root_, "step-00000002"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("step-00000002 is not deleted: it holds p.txt and no manifest.json of this project")));
  EXPECT_OK(DeleteCheckpointDirectory(files_, root_, "step-00000001"));
  EXPECT_OK(DeleteCheckpointDirectory(files_, root_, "step-00000001"));  // no longer exists
  EXPECT_THAT(ListNames(root_), ElementsAre("step-00000002"));
}

TEST(StagedCheckpointTest, AManifestThatNoReaderReadsIsNotCommitted) {
  EXPECT_OK(CheckManifestSize("root/step-00000001", kMaxManifestBytes));
  EXPECT_THAT(CheckManifestSize("root/step-00000001", kMaxManifestBytes + 1),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("root/step-00000001/manifest.json would have 1073741825 bytes, and none of more than "
                                 "1073741824 is read; ")));
}

}  // namespace
}  // namespace fsdp

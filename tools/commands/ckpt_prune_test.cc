// SPDX-License-Identifier: Apache-2.0
//
// The output, deletions and refusals of ckpt prune; checkpoint/native/retention_test.cc tests which steps stay.
#include <filesystem>

#include "absl/strings/str_format.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/source/zero_payload_testutil.h"
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

using Json = nlohmann::json;

class CkptPruneTest : public CkptTest {
 protected:
  // Path("root") with steps 1 to `steps` and a leftover.
  void MakeRoot(int steps) {
    fs::create_directory(Path("root"));
    StateDict state;
    ShardedTensor tensor;
    tensor.shape = {4};
    state.Set(StateKey::Model("w"), tensor);
    for (int step = 1; step <= steps; ++step) {
      CheckpointDirectoryOptions options;
      options.step = step;
      ASSERT_OK(WriteCheckpointDirectory(Path(absl::StrFormat("root/step-%08d", step)), state, ZeroPayload(), options));
    }
    fs::create_directory(Path("root/.step-00000009.tmp-0123456789abcdef"));
  }

  void Damage(const std::string& step) {
    const std::string file = Path("root/" + step + "/checkpoint.h5");
    std::string bytes = ReadFile(file);
    bytes.back() ^= 1;
    WriteFile(file, bytes);
  }
};

TEST_F(CkptPruneTest, DeletesOldStepsAndLeftoversOfCrashes) {
  MakeRoot(4);
  const std::string planned = MustCkpt({"prune", Path("root"), "--keep_last=1", "--keep_every=2", "--dry_run"});
  EXPECT_THAT(planned, AllOf(HasSubstr("would delete  step-00000001"), HasSubstr("kept          step-00000002"),
                             HasSubstr("keep_every"), HasSubstr(".step-00000009.tmp-0123456789abcdef"),
                             HasSubstr("left by a crash "), HasSubstr("would free ")));
  EXPECT_EQ(NamesIn(Path("root")).size(), 5);
  const std::string done = MustCkpt({"prune", Path("root"), "--keep_last=1", "--keep_every=2"});
  EXPECT_THAT(done, AllOf(HasSubstr("deleted       step-00000001"), HasSubstr("freed ")));
  EXPECT_THAT(NamesIn(Path("root")), ElementsAre("step-00000002", "step-00000004"));
}

TEST_F(CkptPruneTest, PrintsOneJsonObject) {
  MakeRoot(3);
  const Json json = Json::parse(MustCkpt({"prune", Path("root"), "--keep_last=2", "--json"}));
  EXPECT_EQ(json["dry_run"], false);
  EXPECT_EQ(json["steps"][0]["kept"], false);
  EXPECT_EQ(json["steps"][1]["reason"], "keep_last");
  EXPECT_EQ(json["leftovers"][0]["in_use"], false);
  EXPECT_EQ(json["freed_bytes"], json["steps"][0]["bytes"]);
  EXPECT_THAT(NamesIn(Path("root")), ElementsAre("step-00000002", "step-00000003"));
}

TEST_F(CkptPruneTest, TheLastStepThatVerifiesStays) {
  MakeRoot(3);
  Damage("step-00000003");
  EXPECT_THAT(MustCkpt({"prune", Path("root"), "--keep_last=1"}),
              AllOf(HasSubstr("does not verify: checkpoint.h5"), HasSubstr("the newest that verifies")));
  EXPECT_THAT(NamesIn(Path("root")), ElementsAre("step-00000002", "step-00000003"));
  Damage("step-00000002");
  const Outcome outcome = Ckpt({"prune", Path("root"), "--keep_last=1"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no step of " + Path("root") + " verifies"));
  const Json json = Json::parse(Ckpt({"prune", Path("root"), "--keep_last=1", "--json"}).out);
  EXPECT_EQ(json["problem"], "no step of " + Path("root") + " verifies");
  EXPECT_EQ(json["problems"], Json::array({json["problem"]}));
  EXPECT_THAT(NamesIn(Path("root")), ElementsAre("step-00000002", "step-00000003"));
}

TEST_F(CkptPruneTest, StepsThatTrainingSetAsideAreShownAndKept) {
  MakeRoot(2);
  fs::rename(Path("root/step-00000002"), Path("root/step-00000002.damaged"));
  const auto bytes = static_cast<int64_t>(fs::file_size(Path("root/step-00000002.damaged/checkpoint.h5")) +
                                          fs::file_size(Path("root/step-00000002.damaged/manifest.json")));
  const Json json = Json::parse(MustCkpt({"prune", Path("root"), "--keep_last=1", "--dry_run", "--json"}));
  EXPECT_EQ(json["set_aside"],
            Json::parse(absl::StrFormat(R"([{"name": "step-00000002.damaged", "bytes": %d}])", bytes)));
  EXPECT_EQ(json["steps"].size(), 1);
  EXPECT_THAT(MustCkpt({"prune", Path("root"), "--keep_last=1"}),
              AllOf(HasSubstr("kept          step-00000002.damaged"),
                    HasSubstr("set aside, since it did not verify; repair it or delete it")));
  EXPECT_THAT(NamesIn(Path("root")), ElementsAre("step-00000001", "step-00000002.damaged"));
}

// The names that `ckpt prune` reports in "left", each with a word of the reason.
TEST_F(CkptPruneTest, WhatIsNotProvenToBeACheckpointOfThisProjectIsLeftAndNamed) {
  MakeRoot(3);
  const auto make = [&](const std::string& name, const std::string& file) {
    fs::create_directory(Path("root/" + name));
    if (!file.empty()) WriteFile(Path("root/" + name + "/" + file), "somebody's");
  };
  make("step-00000000", "p.txt");
  make("step-00000004", ".metadata");
  make("step-00000005", "manifest.json");
  make("step-6", "p.txt");
  make(".step-00000002.tmp-mine", "");
  make(".step-00000002.tmp-0123456789abcdef", "p.txt");
  make(".step-00000003.deleted-0123456789abcdef", "thesis.tex");
  make(".step-00000003.deleted-0123456789ABCDEF", "");
  fs::create_directory_symlink("step-00000001", Path("root/step-00000007"));
  fs::create_directory_symlink("step-00000001", Path("root/.step-00000008.deleted-0123456789abcdef"));
  WriteFile(Path("root/step-00000009"), "a file");
  const std::vector<std::pair<std::string, std::string>> left = {
      {".step-00000002.tmp-0123456789abcdef", "p.txt"},
      {".step-00000002.tmp-mine", "nonce"},
      {".step-00000003.deleted-0123456789ABCDEF", "nonce"},
      {".step-00000003.deleted-0123456789abcdef", "thesis.tex"},
      {".step-00000008.deleted-0123456789abcdef", "symbolic link"},
      {"step-00000000", "p.txt"},
      {"step-00000004", ".metadata"},
      {"step-00000005", "manifest.json"},
      {"step-00000007", "symbolic link"},
      {"step-00000009", "not a directory"},
      {"step-6", "name"},
  };
  const Json planned = Json::parse(MustCkpt({"prune", Path("root"), "--keep_last=1", "--dry_run", "--json"}));
  ASSERT_EQ(planned["left"].size(), left.size()) << planned;
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(planned["left"][i]["name"], left[i].first);
    EXPECT_THAT(std::string(planned["left"][i]["reason"]), HasSubstr(left[i].second));
  }
  ASSERT_EQ(planned["steps"].size(), 3);  // the others do not count: step 3 is the newest
  const std::string text = MustCkpt({"prune", Path("root"), "--keep_last=1"});
  for (const auto& [name, reason] : left) {
    EXPECT_THAT(text, HasSubstr("left          " + name + "  "));
    EXPECT_TRUE(fs::exists(fs::symlink_status(Path("root/" + name)))) << name;
  }
  EXPECT_EQ(ReadFile(Path("root/step-00000000/p.txt")), "somebody's");
  EXPECT_TRUE(fs::exists(Path("root/step-00000003/manifest.json")));
  EXPECT_FALSE(fs::exists(Path("root/step-00000002")));
  EXPECT_EQ(NamesIn(Path("root/.step-00000002.tmp-0123456789abcdef")), std::vector<std::string>{"p.txt"});
}

// Freed bytes count a file only if its last name is deleted.
TEST_F(CkptPruneTest, FreedBytesAreThoseOfFilesThatLoseTheirLastName) {
  MakeRoot(3);
  fs::remove(Path("root/step-00000002/checkpoint.h5"));
  fs::create_hard_link(Path("root/step-00000001/checkpoint.h5"), Path("root/step-00000002/checkpoint.h5"));
  const auto size = [&](const char* file) { return fs::file_size(Path(std::string("root/") + file)); };
  const auto manifests = size("step-00000001/manifest.json") + size("step-00000002/manifest.json");
  const auto checkpoint = size("step-00000001/checkpoint.h5");
  const auto freed = [&](const char* keep_last) {
    return Json::parse(MustCkpt({"prune", Path("root"), keep_last, "--dry_run", "--json"}))["freed_bytes"];
  };
  EXPECT_EQ(freed("--keep_last=1"), manifests + checkpoint);               // both names of the file go
  EXPECT_EQ(freed("--keep_last=2"), size("step-00000001/manifest.json"));  // step 2 keeps the file
  fs::create_hard_link(Path("root/step-00000001/checkpoint.h5"), Path("mine.h5"));
  EXPECT_EQ(freed("--keep_last=1"), manifests);
}

TEST_F(CkptPruneTest, RefusesAPathThatIsNoRoot) {
  MakeRoot(1);
  fs::create_directory(Path("empty"));
  WriteFile(Path("file"), "x");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Path("file"), "is a file; give a directory that holds step-* directories"},
      {Path("root/step-00000001"), "is itself a checkpoint"},
      {Path("empty"), "holds no checkpoint: expected step-* directories"},
      {Path("none"), "none"},
  };
  for (const auto& [path, message] : cases) {
    const Outcome outcome = Ckpt({"prune", path, "--keep_last=1", "--json"});
    EXPECT_EQ(outcome.status, 1);
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(std::string(Json::parse(outcome.out)["problem"]), HasSubstr(message));
  }
  EXPECT_EQ(NamesIn(Path("root")).size(), 2);
}

}  // namespace
}  // namespace fsdp

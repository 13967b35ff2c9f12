// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/megatron/megatron_paths.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(MegatronPathsTest, NamesOfIterationsAndRanks) {
  EXPECT_EQ(MegatronIterationName(7), "iter_0000007");
  EXPECT_EQ(MegatronIterationName(12345678), "iter_12345678");
  EXPECT_EQ(MegatronIteration("iter_0000007"), 7);
  for (const char* name : {"iter_", "iter_7x", "iter_-7", "step_7", "iter_9999999999999999999"}) {
    EXPECT_EQ(MegatronIteration(name), std::nullopt) << name;
  }
  EXPECT_EQ(MegatronRankNumbers("mp_rank_01"), std::vector<int>({1}));
  EXPECT_EQ(MegatronRankNumbers("mp_rank_01_002_003"), std::vector<int>({1, 2, 3}));
  for (const char* name : {"mp_rank_", "mp_rank_00_model_states.pt", "mp_rank_0_0_0_0", "mp_rank_1234567", "rank_0"}) {
    EXPECT_EQ(MegatronRankNumbers(name), std::nullopt) << name;
  }
}

class MegatronDirectoryTest : public testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    WriteAll(absl::StrCat(directory_, "/", name), text);
  }

  MegatronForm Form() const { return *MegatronFormOf(directory_); }

  const std::string directory_ = NewTestDirectory();
};

TEST_F(MegatronDirectoryTest, TheFormFollowsFromTheNames) {
  EXPECT_EQ(Form(), MegatronForm::kNone);
  Write(".metadata", "");
  EXPECT_EQ(Form(), MegatronForm::kNone);  // plain DCP
  Write("metadata.json", "{}");
  EXPECT_EQ(Form(), MegatronForm::kNone);  // with another program's JSON
  Write("metadata.json", R"({"sharded_backend": "zarr"})");
  EXPECT_EQ(Form(), MegatronForm::kDist);
  Write("metadata.json", "damaged");
  EXPECT_EQ(Form(), MegatronForm::kNone);
  Write("common.pt", "");
  EXPECT_EQ(Form(), MegatronForm::kDist);
  fs::remove(directory_ + "/metadata.json");
  EXPECT_EQ(Form(), MegatronForm::kDist);
  fs::remove(directory_ + "/.metadata");
  EXPECT_EQ(Form(), MegatronForm::kNone);
  Write("mp_rank_00", "");
  EXPECT_EQ(Form(), MegatronForm::kNone);  // a file
  fs::create_directory(directory_ + "/mp_rank_01");
  EXPECT_EQ(Form(), MegatronForm::kRanks);
  Write("latest_checkpointed_iteration.txt", "");
  EXPECT_EQ(Form(), MegatronForm::kRoot);
}

TEST_F(MegatronDirectoryTest, TheLatestIterationIsFollowed) {
  fs::create_directory(directory_ + "/iter_0000012");
  Write("latest_checkpointed_iteration.txt", "12\n");
  EXPECT_THAT(MegatronLatest(directory_), IsOkAndHolds(directory_ + "/iter_0000012"));
  Write("latest_checkpointed_iteration.txt", "13");
  EXPECT_THAT(MegatronLatest(directory_), StatusIs(absl::StatusCode::kDataLoss,
                                                   HasSubstr("there is no directory " + directory_ + "/iter_0000013")));
  Write("latest_checkpointed_iteration.txt", "../12");
  EXPECT_THAT(MegatronLatest(directory_),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("has \"../12\", expected the number of an iteration")));
  Write("latest_checkpointed_iteration.txt", "release");
  fs::create_directory(directory_ + "/release");
  EXPECT_THAT(MegatronLatest(directory_), IsOkAndHolds(directory_ + "/release"));
}

TEST_F(MegatronDirectoryTest, OtherBackendsAndVersionsAreRefused) {
  const std::vector<std::pair<std::string, std::string>> texts = {
      {R"({"sharded_backend": "zarr"})", "the backend \"zarr\" is not read"},
      {R"({"sharded_backend": "torch_dist", "sharded_backend_version": 2})", "sharded_backend_version is 2"},
      {R"({"sharded_backend": "torch_dist", "common_backend": "msgpack"})", "the common backend is \"msgpack\""},
      {R"({"sharded_backend": 1})", "sharded_backend"},
      {"{}", "sharded_backend"},
      {"[", "metadata.json"},
  };
  for (const auto& [text, message] : texts) {
    Write("metadata.json", text);
    EXPECT_THAT(std::string(CheckMegatronMetadata(directory_).message()), HasSubstr(message));
  }
  Write("metadata.json", R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",
                             "common_backend_version": 1})");
  EXPECT_OK(CheckMegatronMetadata(directory_));
}

TEST_F(MegatronDirectoryTest, TheStepIsTheIterationAndAgreesWithTheName) {
  EXPECT_THAT(MegatronStep("run/iter_0000007", 7), IsOkAndHolds(7));
  EXPECT_THAT(MegatronStep("run/copy", 7), IsOkAndHolds(7));
  EXPECT_THAT(MegatronStep("run/release", 0), IsOkAndHolds(-1));
  EXPECT_THAT(MegatronStep("run/iter_0000007", std::nullopt), IsOkAndHolds(-1));
  EXPECT_THAT(MegatronStep("run/iter_0000008/", 7), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("of iteration 7")));
}

}  // namespace
}  // namespace fsdp

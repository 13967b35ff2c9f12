// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/verify/latest.h"

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A ROOT with these steps.
std::string RootWith(const std::vector<int64_t>& steps) {
  const std::string root = NewTestDirectory();
  const StateDict state = FullState({{StateKey::Model("wte.weight"), DType::kFloat32, {4}}});
  for (const int64_t step : steps) {
    EXPECT_OK(WriteCheckpointDirectory(JoinPath(root, StepName(step)), state, ReadFromMemory(state), {.step = step}));
  }
  return root;
}

void Damage(const std::string& root, int64_t step) {
  const std::string file = JoinPath(JoinPath(root, StepName(step)), "checkpoint.h5");
  std::string bytes = ReadFile(file);
  bytes.back() ^= 1;
  WriteAll(file, bytes);
}

TEST(LatestTest, TakesTheNewestByNumberAndNotByName) {
  const std::string root = RootWith({2, 99999999, 100000000});
  EXPECT_THAT(ListCheckpoints(root), IsOkAndHolds(ElementsAre("step-00000002", "step-99999999", "step-100000000")));
  EXPECT_THAT(LatestCheckpoint(root), IsOkAndHolds(root + "/step-100000000"));
}

TEST(LatestTest, SkipsWhatDoesNotVerifyAndSaysWhy) {
  const std::string root = RootWith({1, 2, 3, 4});
  Damage(root, 4);
  fs::remove(root + "/step-00000003/manifest.json");
  std::vector<std::string> skipped;
  EXPECT_THAT(LatestCheckpoint(root, &skipped), IsOkAndHolds(root + "/step-00000002"));
  EXPECT_THAT(skipped,
              ElementsAre(AllOf(HasSubstr("step-00000004 does not verify: checkpoint.h5, "), HasSubstr("digest")),
                          "step-00000003 does not verify: manifest.json: the file is missing"));
}

TEST(LatestTest, AStepUnderAnotherStepsNameIsSkipped) {
  const std::string root = RootWith({1});
  fs::copy(root + "/step-00000001", root + "/step-00000009");
  std::vector<std::string> skipped;
  EXPECT_THAT(LatestCheckpoint(root, &skipped), IsOkAndHolds(root + "/step-00000001"));
  EXPECT_THAT(skipped, ElementsAre("step-00000009 does not verify: its manifest is of step 1"));
}

TEST(LatestTest, NothingThatVerifiesIsNotFoundWithAllReasons) {
  const std::string root = RootWith({1, 2});
  Damage(root, 1);
  Damage(root, 2);
  EXPECT_THAT(LatestCheckpoint(root),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("step-00000001"), HasSubstr("step-00000002"))));
  EXPECT_THAT(LatestCheckpoint(root + "/absent"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("holds no checkpoint")));
  EXPECT_THAT(ListCheckpoints(root + "/absent"), IsOkAndHolds(IsEmpty()));
}

TEST(LatestTest, OtherNamesAreNotSteps) {
  const std::string root = RootWith({5});
  for (const char* name : {"step-6", "step-000000007", "step-0000000x", "step-00000008.bak", "step--0000009",
                           ".step-00000010.tmp-0123", ".step-00000011.deleted-0123"}) {
    fs::copy(root + "/step-00000005", JoinPath(root, name));
  }
  EXPECT_THAT(ListCheckpoints(root), IsOkAndHolds(ElementsAre("step-00000005")));
}

TEST(LatestTest, ADirectoryThatIsACheckpointIsReturnedOnceVerified) {
  const std::string root = RootWith({3});
  const std::string path = root + "/step-00000003";
  EXPECT_THAT(LatestCheckpoint(path), IsOkAndHolds(path));
  Damage(root, 3);
  EXPECT_THAT(LatestCheckpoint(path), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("does not verify")));
}

}  // namespace
}  // namespace fsdp

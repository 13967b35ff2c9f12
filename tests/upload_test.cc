// SPDX-License-Identifier: Apache-2.0
//
// Runs of train_gpt that copy their checkpoints to an object store, an S3 server in this process, and that continue
// from it on a machine without them.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/object/curl_library.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/fake_s3_server.h"
#include "fsdp/tests/train_gpt_run.h"
#include "gmock/gmock-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kManifest4[] = "runs/gpt2/step-00000004/manifest.json";

class UploadTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const absl::StatusOr<const CurlLibrary*> curl = CurlLibrary::Load(); !curl.ok()) {
      GTEST_SKIP() << curl.status().message();
    }
    ASSERT_OK_AND_ASSIGN(server_, FakeS3Server::Start(bucket_));
    const AwsConfig& config = server_->config();
    setenv("AWS_ACCESS_KEY_ID", config.credentials.access_key_id.c_str(), 1);
    setenv("AWS_SECRET_ACCESS_KEY", config.credentials.secret_access_key.c_str(), 1);
    setenv("AWS_SESSION_TOKEN", config.credentials.session_token.c_str(), 1);
    setenv("AWS_REGION", config.region.c_str(), 1);
    setenv("AWS_ENDPOINT_URL", config.endpoint.c_str(), 1);
    setenv("HOME", NewDirectory().c_str(), 1);
    for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "http_proxy"}) unsetenv(name);
  }

  static ProgramResult Run(const std::string& directory, const Flags& flags) {
    absl::StatusOr<ProgramResult> run =
        Train(SmallRun() + Flags{"--checkpoint_dir=" + directory, "--upload=s3://models/runs/gpt2"} + flags);
    EXPECT_OK(run);
    return run.ok() ? *std::move(run) : ProgramResult();
  }

  // A run of one rank that is refused: with several, the launcher may end the rank that prints the reason.
  static ProgramResult Refused(const std::string& directory, const Flags& flags, int status = 1) {
    Flags run = SmallRun();
    EXPECT_EQ(run[0], "--nproc=2");
    run[0] = "--nproc=1";
    absl::StatusOr<ProgramResult> refused =
        Train(run + Flags{"--checkpoint_dir=" + directory, "--upload=s3://models/runs/gpt2"} + flags);
    EXPECT_OK(refused);
    if (!refused.ok()) return {};
    EXPECT_EQ(refused->exit_status, status);
    return *std::move(refused);
  }

  // Four steps, saved and uploaded after the second and the fourth. The second may be skipped if the fourth comes
  // before its turn, so a run of two steps comes first.
  void RunFourSteps() {
    const std::string directory = NewDirectory();
    for (const char* steps : {"--steps=2", "--steps=4"}) {
      const ProgramResult run = Run(directory, {steps});
      ASSERT_EQ(run.exit_status, 0) << run.output;
    }
    ASSERT_EQ(bucket_.objects().count("runs/gpt2/step-00000002/manifest.json"), 1u);
    ASSERT_EQ(bucket_.objects().count(kManifest4), 1u);
  }

  FakeObjectStore bucket_{/*part_bytes=*/int64_t{1} << 40};
  std::unique_ptr<FakeS3Server> server_;
};

TEST_F(UploadTest, AnotherMachineContinuesFromTheStoreWithTheSameLosses) {
  const std::string whole = NewDirectory() + "/metrics";
  ASSERT_OK(Train(SmallRun() + Flags{"--steps=6", "--metrics=" + whole}).status());
  ASSERT_OK_AND_ASSIGN(const auto expected, MetricsByStep(whole));
  for (const Flags& how : {Flags{}, Flags{"--async_checkpoint"}}) {
    for (const auto& [key, bytes] : bucket_.objects()) ASSERT_OK(bucket_.Delete(key));
    const ProgramResult first = Run(NewDirectory(), how + Flags{"--steps=4", "--keep_last=1", "--checkpoint_every=1"});
    ASSERT_EQ(first.exit_status, 0) << first.output;
    EXPECT_THAT(first.output, HasSubstr("uploaded s3://models/runs/gpt2/step-00000004, "));
    ASSERT_EQ(bucket_.objects().count(kManifest4), 1u);

    const std::string metrics = NewDirectory() + "/metrics";
    const std::string directory = NewDirectory() + "/made/here";
    const ProgramResult second = Run(directory, how + Flags{"--steps=6", "--metrics=" + metrics});
    ASSERT_EQ(second.exit_status, 0) << second.output;
    EXPECT_THAT(second.output, AllOf(HasSubstr("s3://models/runs/gpt2/step-00000004 was downloaded to " + directory),
                                     HasSubstr("resuming from " + directory + "/step-00000004: 4 of 6 steps")));
    ASSERT_OK_AND_ASSIGN(const auto actual, MetricsByStep(metrics));
    for (const int64_t step : {4, 5}) {
      ASSERT_EQ(actual.count(step), 1u);
      EXPECT_EQ(actual.at(step).loss, expected.at(step).loss);
    }
    EXPECT_EQ(bucket_.objects().count("runs/gpt2/step-00000006/manifest.json"), 1u);
    EXPECT_EQ(bucket_.uploads().size(), 0u);
  }
  EXPECT_EQ(server_->refused(), 0);
}

TEST_F(UploadTest, ALocalStepThatIsAsNewIsNotDownloaded) {
  const std::string directory = NewDirectory();
  ASSERT_EQ(Run(directory, {"--steps=2"}).exit_status, 0);
  const ProgramResult second = Run(directory, {"--steps=3"});
  EXPECT_EQ(second.exit_status, 0) << second.output;
  EXPECT_THAT(second.output,
              AllOf(HasSubstr("resuming from " + directory + "/step-00000002"), Not(HasSubstr("was downloaded"))));
}

TEST_F(UploadTest, StepsOfTheStoreAreReplacedOnlyByOverwrite) {
  ASSERT_NO_FATAL_FAILURE(RunFourSteps());
  const std::string before = bucket_.objects().at(kManifest4);
  const ProgramResult refused = Refused(NewDirectory(), {"--steps=4", "--resume=none"});
  EXPECT_THAT(refused.output, AllOf(HasSubstr("--upload=s3://models/runs/gpt2 holds step-00000004, beyond step 0"),
                                    HasSubstr("--overwrite")));
  EXPECT_EQ(bucket_.objects().at(kManifest4), before);
  const ProgramResult replaced = Run(NewDirectory(), {"--steps=4", "--resume=none", "--overwrite"});
  EXPECT_EQ(replaced.exit_status, 0) << replaced.output;
  EXPECT_NE(bucket_.objects().at(kManifest4), before);
}

TEST_F(UploadTest, ADamagedStepOfTheStoreIsSkippedAndKeptUnlessItIsToBeReplaced) {
  ASSERT_NO_FATAL_FAILURE(RunFourSteps());
  for (const auto& [key, bytes] : bucket_.objects()) {
    if (!absl::StrContains(key, "step-00000004/") || !absl::StrContains(key, "rank-00001")) continue;
    std::string damaged = bytes;
    damaged.back() = static_cast<char>(damaged.back() ^ 1);
    bucket_.SetObject(key, damaged);
  }
  const std::string before = bucket_.objects().at(kManifest4);
  const ProgramResult refused = Refused(NewDirectory(), {"--steps=5"});
  EXPECT_THAT(refused.output, HasSubstr("holds step-00000004, beyond step 2"));
  EXPECT_EQ(bucket_.objects().at(kManifest4), before);
  const ProgramResult replaced = Run(NewDirectory(), {"--steps=5", "--overwrite"});
  EXPECT_EQ(replaced.exit_status, 0) << replaced.output;
  EXPECT_THAT(replaced.output,
              AllOf(HasSubstr("rank-00001-of-00002.h5"), HasSubstr("so it is skipped"), HasSubstr("2 of 5 steps")));
}

TEST_F(UploadTest, ALastCheckpointThatDoesNotArriveIsUploadedByARestart) {
  // The first two requests that the store itself counts are from the start; from the fourth on it is down.
  bucket_.InjectFault(FakeObjectStore::Fault::kKill, 4);
  const std::string directory = NewDirectory();
  const ProgramResult run = Refused(directory, {"--steps=2"}, /*status=*/75);
  EXPECT_THAT(run.output, AllOf(HasSubstr("saved " + directory + "/step-00000002"),
                                HasSubstr("the upload of " + directory + "/step-00000002 failed"),
                                HasSubstr("s3://models/runs/gpt2/step-00000002"), HasSubstr("attempts")));
  EXPECT_EQ(bucket_.objects().count("runs/gpt2/step-00000002/manifest.json"), 0u);
  EXPECT_TRUE(std::filesystem::exists(directory + "/step-00000002/manifest.json"));
  bucket_.Restart();
  const ProgramResult again = Run(directory, {"--steps=2"});
  EXPECT_EQ(again.exit_status, 0) << again.output;
  EXPECT_EQ(bucket_.objects().count("runs/gpt2/step-00000002/manifest.json"), 1u);
}

TEST_F(UploadTest, KeysThatTheStoreRefusesEndTheRunBeforeItTrains) {
  setenv("AWS_SECRET_ACCESS_KEY", "squeamish", 1);
  const std::string directory = NewDirectory();
  const ProgramResult run = Refused(directory, {"--steps=2"});
  EXPECT_THAT(run.output, AllOf(HasSubstr("SignatureDoesNotMatch"), HasSubstr("AWS_PROFILE"),
                                Not(HasSubstr("squeamish")), Not(HasSubstr("step 0 of"))));
  EXPECT_TRUE(std::filesystem::is_empty(directory));
}

}  // namespace
}  // namespace fsdp

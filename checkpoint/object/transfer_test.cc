// SPDX-License-Identifier: Apache-2.0
//
// Copies checkpoints to an object store and back, with a fault at every request in turn.
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/object/background_uploader.h"
#include "fsdp/checkpoint/object/curl_library.h"
#include "fsdp/checkpoint/object/download.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/fake_s3_server.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/s3_store.h"
#include "fsdp/checkpoint/object/upload.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/path.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Fault = FakeObjectStore::Fault;

constexpr char kRun[] = "runs/gpt2";

std::string NameOf(Fault fault) {
  static constexpr const char* kNames[] = {"error", "lost reply", "kill", "kill after"};
  return kNames[static_cast<int>(fault)];
}

class TransferTest : public testing::Test {
 protected:
  // A sharded checkpoint of two ranks, with parity: each call makes another save.
  std::string Save(int64_t step) {
    const std::string path = JoinPath(NewTestDirectory(), step < 0 ? "unknown" : StepName(step));
    StateDict state = FullState({{StateKey::Model("w"), DType::kFloat32, {60, 100}},
                                 {StateKey::OptimState("w", "exp_avg"), DType::kFloat32, {60, 100}},
                                 {StateKey::Extra("count"), DType::kInt64, {}}});
    state.aliases.clear();
    CheckpointDirectoryOptions options;
    options.type = StateDictType::kSharded;
    options.world_size = 2;
    options.step = step;
    options.parity = 1;
    EXPECT_OK(WriteCheckpointDirectory(path, state, ReadFromMemory(state), options));
    return path;
  }

  absl::StatusOr<UploadReport> Upload(const std::string& path, bool overwrite = false) {
    return UploadCheckpoint(PosixFileSystem(), path, store_, kRun, {.overwrite = overwrite, .threads = 1});
  }

  // Downloads the newest checkpoint, which must verify, and returns its save id; "" without one.
  std::string NewestSave() {
    const absl::StatusOr<std::string> step = FindRemoteCheckpoint(store_, kRun);
    if (absl::IsNotFound(step.status())) return "";
    EXPECT_OK(step.status());
    if (!step.ok()) return "an error";
    const std::string root = NewTestDirectory();
    const std::string name = step->substr(step->rfind('/') + 1);
    EXPECT_OK(DownloadCheckpoint(store_, *step, PosixFileSystem(), JoinPath(root, name), {.threads = 1}));
    EXPECT_OK(CheckStep(root, name));
    return SaveIdOf(JoinPath(root, name));
  }

  // The save id of the newest checkpoint, all of whose files exist.
  std::string NewestComplete() {
    const absl::StatusOr<std::string> step = FindRemoteCheckpoint(store_, kRun);
    EXPECT_OK(step.status());
    const absl::StatusOr<RemoteManifest> remote = ReadRemoteManifest(store_, step.value_or(""));
    EXPECT_OK(remote.status());
    if (!remote.ok()) return "an error";
    EXPECT_OK(CheckRemoteFiles(store_, *step, remote->manifest));
    return remote->manifest.save.id;
  }

  static std::string SaveIdOf(const std::string& path) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
    EXPECT_OK(manifest.status());
    return manifest.ok() ? manifest->save.id : "";
  }

  // Expects only the files of the checkpoints `paths` in the bucket, and no upload in progress.
  void ExpectNothingElse(const std::vector<std::string>& paths) {
    size_t expected = 0;
    for (const std::string& path : paths) expected += ListNames(path).size();
    EXPECT_EQ(store_.objects().size(), expected);
    EXPECT_THAT(store_.uploads(), IsEmpty());
  }

  FakeObjectStore store_{/*part_bytes=*/20'000};
};

TEST_F(TransferTest, ACheckpointOfAnUnknownStepHasNoNameInARun) {
  const std::string path = Save(-1);
  EXPECT_THAT(Upload(path), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(path + " does not record its step, which would be its name in ")));
}

TEST_F(TransferTest, WhatIsUploadedComesBackByteForByte) {
  const std::string path = Save(7);
  ASSERT_OK_AND_ASSIGN(const UploadReport report, Upload(path));
  EXPECT_EQ(report.step, "runs/gpt2/step-00000007");
  EXPECT_EQ(report.files, 4);
  EXPECT_EQ(report.sent_files, 4);
  EXPECT_EQ(report.sent_bytes, report.bytes);
  const std::string id = SaveIdOf(path);
  EXPECT_EQ(store_.objects().count("runs/gpt2/step-00000007/" + id + "/rank-00001-of-00002.h5"), 1u);
  EXPECT_EQ(store_.objects().count("runs/gpt2/step-00000007/" + id + "/parity-00000-of-00001.bin"), 1u);
  ExpectNothingElse({path});

  const std::string copy = JoinPath(NewTestDirectory(), "copy");
  ASSERT_OK_AND_ASSIGN(const DownloadReport down, DownloadCheckpoint(store_, report.step, PosixFileSystem(), copy));
  EXPECT_EQ(down.step, 7);
  EXPECT_EQ(down.files, 4);
  EXPECT_EQ(down.bytes, report.bytes);
  EXPECT_EQ(ListNames(copy), ListNames(path));
  for (const std::string& name : ListNames(path)) {
    EXPECT_EQ(ReadFile(JoinPath(copy, name)), ReadFile(JoinPath(path, name))) << name;
  }
}

TEST_F(TransferTest, ASecondUploadSendsNothing) {
  const std::string path = Save(7);
  ASSERT_OK(Upload(path).status());
  const auto objects = store_.objects();
  ASSERT_OK_AND_ASSIGN(const UploadReport again, Upload(path));
  EXPECT_EQ(again.sent_files, 0);
  EXPECT_EQ(store_.objects(), objects);
}

TEST_F(TransferTest, AnotherSaveOfAStepIsRefusedUnlessItIsToReplaceIt) {
  const std::string first = Save(7);
  const std::string second = Save(7);
  ASSERT_OK(Upload(first).status());
  EXPECT_THAT(Upload(second), StatusIs(absl::StatusCode::kAlreadyExists,
                                       AllOf(HasSubstr("s3://fake/runs/gpt2/step-00000007/manifest.json"),
                                             HasSubstr(SaveIdOf(first)), HasSubstr(SaveIdOf(second)))));
  ExpectNothingElse({first});
  ASSERT_OK_AND_ASSIGN(const UploadReport report, Upload(second, /*overwrite=*/true));
  EXPECT_EQ(report.swept_files, 4);
  EXPECT_EQ(NewestSave(), SaveIdOf(second));
  ExpectNothingElse({second});
}

TEST_F(TransferTest, AFaultAtAnyRequestOfANewStepLeavesTheOldOneOrTheNew) {
  const std::string old_path = Save(1);
  const std::string new_path = Save(2);
  ASSERT_OK(Upload(old_path).status());
  const auto prepared = store_.objects();
  store_.Restart();
  ASSERT_OK(Upload(new_path).status());
  const int64_t requests = store_.requests();
  ASSERT_GT(requests, 12);
  for (const Fault fault : {Fault::kError, Fault::kLostReply, Fault::kKill, Fault::kKillAfter}) {
    for (int64_t request = 1; request <= requests; ++request) {
      SCOPED_TRACE(absl::StrCat(NameOf(fault), " at request ", request, " of ", requests));
      for (const auto& [key, bytes] : store_.objects()) {
        if (prepared.count(key) != 0) continue;
        ASSERT_OK(store_.Delete(key));
      }
      store_.Restart();
      store_.InjectFault(fault, request);
      const absl::Status status = Upload(new_path).status();
      store_.Restart();
      const std::string save = NewestSave();
      EXPECT_TRUE(save == SaveIdOf(old_path) || save == SaveIdOf(new_path)) << save;
      if (status.ok()) {
        EXPECT_EQ(save, SaveIdOf(new_path));
      }
      // The next attempt completes the upload, and nothing else remains.
      EXPECT_OK(Upload(new_path).status());
      EXPECT_EQ(NewestComplete(), SaveIdOf(new_path));
      ExpectNothingElse({old_path, new_path});
      store_.Restart();
    }
  }
}

TEST_F(TransferTest, AFaultAtAnyRequestOfAReplacementLeavesTheOldSaveOrTheNew) {
  const std::string old_path = Save(1);
  const std::string new_path = Save(1);
  ASSERT_OK(Upload(old_path).status());
  const auto prepared = store_.objects();
  store_.Restart();
  ASSERT_OK(Upload(new_path, /*overwrite=*/true).status());
  const int64_t requests = store_.requests();
  for (const Fault fault : {Fault::kError, Fault::kLostReply, Fault::kKill, Fault::kKillAfter}) {
    for (int64_t request = 1; request <= requests; ++request) {
      SCOPED_TRACE(absl::StrCat(NameOf(fault), " at request ", request, " of ", requests));
      for (const auto& [key, bytes] : store_.objects()) ASSERT_OK(store_.Delete(key));
      for (const auto& [key, bytes] : prepared) store_.SetObject(key, bytes);
      store_.Restart();
      store_.InjectFault(fault, request);
      (void)Upload(new_path, /*overwrite=*/true);
      store_.Restart();
      const std::string save = NewestSave();
      EXPECT_TRUE(save == SaveIdOf(old_path) || save == SaveIdOf(new_path)) << save;
      EXPECT_OK(Upload(new_path, /*overwrite=*/true).status());
      EXPECT_EQ(NewestComplete(), SaveIdOf(new_path));
      ExpectNothingElse({new_path});
      store_.Restart();
    }
  }
}

TEST_F(TransferTest, AFaultAtAnyRequestOfADownloadLeavesNothing) {
  const std::string path = Save(7);
  ASSERT_OK(Upload(path).status());
  const std::string root = NewTestDirectory();
  const std::string copy = JoinPath(root, "copy");
  const auto download = [&] {
    return DownloadCheckpoint(store_, "runs/gpt2/step-00000007", PosixFileSystem(), copy, {.threads = 1}).status();
  };
  store_.Restart();
  ASSERT_OK(download());
  const int64_t requests = store_.requests();
  ASSERT_GT(requests, 5);
  fs::remove_all(copy);
  for (int64_t request = 1; request <= requests; ++request) {
    SCOPED_TRACE(request);
    store_.InjectFault(Fault::kError, request);
    EXPECT_THAT(download(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("injected fault")));
    EXPECT_THAT(ListNames(root), IsEmpty());
    store_.Restart();
  }
  EXPECT_OK(download());
}

TEST_F(TransferTest, AFlippedByteOfAnyFileIsNamedAndNothingIsLeft) {
  const std::string path = Save(7);
  ASSERT_OK_AND_ASSIGN(const UploadReport report, Upload(path));
  const std::string root = NewTestDirectory();
  for (const auto& [key, bytes] : store_.objects()) {
    for (const size_t at : {size_t{3}, bytes.size() / 2, bytes.size() - 1}) {
      SCOPED_TRACE(absl::StrCat(key, " at ", at));
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 1);
      store_.SetObject(key, damaged);
      const std::string file = key.substr(key.rfind('/') + 1);
      EXPECT_THAT(DownloadCheckpoint(store_, report.step, PosixFileSystem(), JoinPath(root, "copy")),
                  StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)));
      EXPECT_THAT(ListNames(root), IsEmpty());
    }
    store_.SetObject(key, bytes);
  }
}

TEST_F(TransferTest, AMissingOrShortFileIsNamedBeforeAnyByteIsRead) {
  const std::string path = Save(7);
  ASSERT_OK_AND_ASSIGN(const UploadReport report, Upload(path));
  const std::string key = RemoteFileKey(report.step, SaveIdOf(path), "rank-00001-of-00002.h5");
  const std::string bytes = store_.objects().at(key);
  const std::string copy = JoinPath(NewTestDirectory(), "copy");
  store_.SetObject(key, bytes.substr(1));
  EXPECT_THAT(DownloadCheckpoint(store_, report.step, PosixFileSystem(), copy),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("rank-00001-of-00002.h5"), HasSubstr(absl::StrCat("expected ", bytes.size())))));
  ASSERT_OK(store_.Delete(key));
  EXPECT_THAT(DownloadCheckpoint(store_, report.step, PosixFileSystem(), copy),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank-00001-of-00002.h5 is missing")));
  EXPECT_FALSE(fs::exists(copy));
}

TEST_F(TransferTest, ADestinationThatExistsStaysUnlessItIsToBeReplaced) {
  const std::string path = Save(7);
  ASSERT_OK_AND_ASSIGN(const UploadReport report, Upload(path));
  const std::string other = Save(8);
  const std::string id = SaveIdOf(other);
  EXPECT_THAT(DownloadCheckpoint(store_, report.step, PosixFileSystem(), other),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(other)));
  EXPECT_EQ(SaveIdOf(other), id);
  EXPECT_OK(DownloadCheckpoint(store_, report.step, PosixFileSystem(), other, {.overwrite = true}));
  EXPECT_EQ(SaveIdOf(other), SaveIdOf(path));
}

TEST_F(TransferTest, AManifestUnderAnotherStepsNameIsRefused) {
  const std::string path = Save(7);
  ASSERT_OK(Upload(path).status());
  store_.SetObject("runs/gpt2/step-00000009/manifest.json",
                   store_.objects().at("runs/gpt2/step-00000007/manifest.json"));
  EXPECT_THAT(ReadRemoteManifest(store_, "runs/gpt2/step-00000009"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("the manifest is of step 7")));
}

TEST_F(TransferTest, TheNewestStepIsThatOfTheLargestNumberWithAManifest) {
  EXPECT_THAT(FindRemoteCheckpoint(store_, kRun),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("s3://fake/runs/gpt2 holds no checkpoint")));
  for (const int64_t step : {99'999'999, 100'000'000}) ASSERT_OK(Upload(Save(step)).status());
  store_.SetObject("runs/gpt2/step-100000001/0123456789abcdef0123456789abcdef/checkpoint.h5", "begun");
  store_.SetObject("runs/gpt2/step-x/manifest.json", "no step");
  ASSERT_OK_AND_ASSIGN(const std::string newest, FindRemoteCheckpoint(store_, kRun));
  EXPECT_EQ(newest, "runs/gpt2/step-100000000");
  ASSERT_OK_AND_ASSIGN(const std::string itself, FindRemoteCheckpoint(store_, "runs/gpt2/step-99999999"));
  EXPECT_EQ(itself, "runs/gpt2/step-99999999");
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, ListRemoteSteps(store_, kRun));
  EXPECT_THAT(names, ElementsAre("step-99999999", "step-100000000", "step-100000001"));
}

TEST_F(TransferTest, TheSweepLeavesWhatNoSaveHasMade) {
  const std::string path = Save(7);
  for (const char* name : {"notes.txt", "0123456789abcdef0123456789abcdef/notes.txt", "mine/checkpoint.h5"}) {
    store_.SetObject(absl::StrCat("runs/gpt2/step-00000007/", name), "mine");
  }
  store_.SetObject("runs/gpt2/step-00000007/0123456789abcdef0123456789abcdef/checkpoint.h5", "left");
  ASSERT_OK(store_.CreateUpload("runs/gpt2/step-00000007/0123456789abcdef0123456789abcdef/x").status());
  ASSERT_OK_AND_ASSIGN(const UploadReport report, Upload(path));
  EXPECT_EQ(report.swept_files, 1);
  EXPECT_EQ(store_.objects().size(), 5u + 3u);
  EXPECT_THAT(store_.uploads(), IsEmpty());
}

TEST_F(TransferTest, ADirectoryThatAnotherProcessChangesIsNotUploaded) {
  const std::string path = Save(7);
  ASSERT_OK_AND_ASSIGN(const DirectoryLock lock, DirectoryLock::Take(path));
  EXPECT_THAT(Upload(path), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(path)));
  EXPECT_THAT(store_.objects(), IsEmpty());
}

TEST_F(TransferTest, ABackgroundUploaderUploadsTheNewestAndSaysWhatItLeavesOut) {
  std::mutex mutex;
  std::vector<std::string> said;
  std::promise<void> first_is_up;
  std::promise<void> go_on;
  BackgroundUploader::Options options;
  options.say = [&](const std::string& sentence) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      said.push_back(sentence);
    }
    if (!absl::StartsWith(sentence, "uploaded s3://fake/runs/gpt2/step-00000001, ")) return;
    first_is_up.set_value();
    go_on.get_future().wait();
  };
  auto owned = std::make_unique<FakeObjectStore>(int64_t{1} << 30);
  const FakeObjectStore& store = *owned;
  const std::vector<std::string> paths = {Save(1), Save(2), Save(3)};
  BackgroundUploader uploader(std::move(owned), kRun, options);
  EXPECT_OK(uploader.Finish());
  uploader.Add(paths[0]);
  first_is_up.get_future().wait();
  uploader.Add(paths[1]);
  uploader.Add(paths[2]);
  go_on.set_value();
  EXPECT_OK(uploader.Finish());
  ASSERT_EQ(said.size(), 3u);
  EXPECT_THAT(said[1], HasSubstr(paths[1] + " is not uploaded"));
  EXPECT_THAT(said[2], HasSubstr("uploaded s3://fake/runs/gpt2/step-00000003, "));
  EXPECT_EQ(store.objects().size(), ListNames(paths[0]).size() + ListNames(paths[2]).size());
}

TEST_F(TransferTest, AFailedUploadIsSaidAndTheNextStepIsTried) {
  std::vector<std::string> said;
  BackgroundUploader::Options options;
  options.say = [&](const std::string& sentence) { said.push_back(sentence); };
  auto owned = std::make_unique<FakeObjectStore>(int64_t{1} << 30);
  FakeObjectStore& store = *owned;
  const std::string path = Save(1);
  BackgroundUploader uploader(std::move(owned), kRun, options);
  store.InjectFault(Fault::kError, 3);
  uploader.Add(path);
  EXPECT_THAT(uploader.Finish(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("injected fault")));
  uploader.Add(path);
  EXPECT_OK(uploader.Finish());
  ASSERT_EQ(said.size(), 2u);
  EXPECT_THAT(said[0], AllOf(HasSubstr("the upload of " + path + " failed"), HasSubstr("injected fault")));
  EXPECT_THAT(said[1], HasSubstr("uploaded s3://fake/runs/gpt2/step-00000001, "));
}

TEST_F(TransferTest, AnUploadThatIsCancelledEndsSoonAndCommitsNothing) {
  const std::string path = Save(7);
  int asked = 0;
  const absl::StatusOr<UploadReport> report = UploadCheckpoint(
      PosixFileSystem(), path, store_, kRun, {.is_cancelled = [&] { return ++asked == 3; }, .threads = 1});
  EXPECT_THAT(report, StatusIs(absl::StatusCode::kCancelled, HasSubstr("cancelled")));
  EXPECT_EQ(asked, 3);
  EXPECT_THAT(FindRemoteCheckpoint(store_, kRun), StatusIs(absl::StatusCode::kNotFound, HasSubstr("not complete")));
}

// The whole path through HTTP, with curl's own signatures and threads.
TEST_F(TransferTest, ACheckpointGoesThroughS3AndBack) {
  if (const absl::StatusOr<const CurlLibrary*> curl = CurlLibrary::Load(); !curl.ok()) {
    GTEST_SKIP() << curl.status().message();
  }
  FakeObjectStore bucket(/*part_bytes=*/int64_t{1} << 40);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<FakeS3Server> server, FakeS3Server::Start(bucket));
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<ObjectStore> store,
      OpenS3Store("models", server->config(), {.first_pause = absl::Milliseconds(1), .part_bytes = 20'000}));
  const std::string path = Save(7);
  server->InjectFaults({FakeS3Server::Fault::kDrop, FakeS3Server::Fault::kNone, FakeS3Server::Fault::kSlowDown});
  ASSERT_OK_AND_ASSIGN(const UploadReport report, UploadCheckpoint(PosixFileSystem(), path, *store, kRun));
  const std::string copy = JoinPath(NewTestDirectory(), "copy");
  server->InjectFaults({FakeS3Server::Fault::kNone, FakeS3Server::Fault::kCutReply});
  ASSERT_OK(DownloadCheckpoint(*store, report.step, PosixFileSystem(), copy).status());
  for (const std::string& name : ListNames(path)) {
    EXPECT_EQ(ReadFile(JoinPath(copy, name)), ReadFile(JoinPath(path, name))) << name;
  }
  EXPECT_EQ(server->refused(), 0);
}

}  // namespace
}  // namespace fsdp

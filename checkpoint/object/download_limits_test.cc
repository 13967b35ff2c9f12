// SPDX-License-Identifier: Apache-2.0
//
// Stores and manifests that claim more than there is.
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/object/download.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kStep[] = "run/step-00000007";

// Lists the objects of another store with sizes that it makes up.
class LyingStore final : public ObjectStore {
 public:
  LyingStore(FakeObjectStore& store, std::map<std::string, int64_t> sizes) : store_(store), sizes_(std::move(sizes)) {}

  absl::Status Put(const std::string& key, const ObjectBody& body) override { return store_.Put(key, body); }
  absl::Status PutIfAbsent(const std::string& key, absl::string_view bytes) override {
    return store_.PutIfAbsent(key, bytes);
  }
  absl::Status Get(const std::string& key, const ByteRange& range,
                   absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) override {
    return store_.Get(key, range, sink);
  }
  absl::StatusOr<int64_t> Size(const std::string& key) override { return store_.Size(key); }
  absl::StatusOr<ObjectListing> List(const std::string& prefix, bool one_level) override {
    absl::StatusOr<ObjectListing> listing = store_.List(prefix, one_level);
    for (const auto& [key, nbytes] : sizes_) listing->objects.push_back({key, nbytes});
    return listing;
  }
  absl::Status Delete(const std::string& key) override { return store_.Delete(key); }
  absl::Status AbortUploads(const std::string& prefix) override { return store_.AbortUploads(prefix); }
  std::string UrlOf(const std::string& key) const override { return store_.UrlOf(key); }

 private:
  FakeObjectStore& store_;
  const std::map<std::string, int64_t> sizes_;
};

Manifest OneFile(int64_t nbytes) {
  Manifest manifest;
  manifest.save.id = std::string(32, 'a');
  manifest.save.step = 7;
  manifest.save.producer = kProducer;
  manifest.files = {{"checkpoint.h5", nbytes, {}, {}, std::nullopt, ""}};
  return manifest;
}

TEST(DownloadLimitsTest, ADownloadAsksTheDiskForRoomBeforeItBegins) {
  constexpr int64_t kBytes = int64_t{1} << 60;
  const Manifest manifest = OneFile(kBytes);
  FakeObjectStore objects;
  objects.SetObject(RemoteManifestKey(kStep), EncodeManifest(manifest));
  LyingStore store(objects, {{RemoteFileKey(kStep, manifest.save.id, "checkpoint.h5"), kBytes}});
  const std::string root = NewTestDirectory();
  EXPECT_THAT(DownloadCheckpoint(store, kStep, PosixFileSystem(), JoinPath(root, "copy")),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the files of s3://fake/run/step-00000007 take 1152921504606846976 bytes"),
                             HasSubstr("but the disk has room for"))));
  EXPECT_THAT(ListNames(root), IsEmpty());
}

TEST(DownloadLimitsTest, AFileOfAnotherSizeInTheStoreIsRefused) {
  const Manifest manifest = OneFile(1000);
  FakeObjectStore objects;
  objects.SetObject(RemoteManifestKey(kStep), EncodeManifest(manifest));
  const std::string key = RemoteFileKey(kStep, manifest.save.id, "checkpoint.h5");
  LyingStore store(objects, {{key, 999}, {key + "-other", 5}});
  EXPECT_THAT(CheckRemoteFiles(store, kStep, manifest),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checkpoint.h5: 999 bytes, expected 1000")));
  LyingStore absent(objects, {{key + "-other", 5}});
  EXPECT_THAT(CheckRemoteFiles(absent, kStep, manifest),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checkpoint.h5 is missing")));
}

// A hostile store lists a million steps, each of which would cost a request.
TEST(DownloadLimitsTest, TheSearchForACompleteStepEnds) {
  FakeObjectStore store;
  for (int step = 1; step <= 1500; ++step) store.SetObject(absl::StrFormat("run/step-%08d/id/file", step), "");
  store.SetObject("run/step-00000001/manifest.json", "{}");
  EXPECT_THAT(FindRemoteCheckpoint(store, "run"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("the newest 1000 steps are not complete; name a step")));
  EXPECT_LT(store.requests(), 1010);
}

}  // namespace
}  // namespace fsdp

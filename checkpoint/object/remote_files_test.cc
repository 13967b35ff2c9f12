// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/remote_files.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "fsdp/base/file_testutil.h"
#include "fsdp/base/status_matchers.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/read/native_source.h"
#include "fsdp/checkpoint/native/save/hdf5_sink.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/object/fake_object_store.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/upload.h"
#include "fsdp/checkpoint/object/window_cache.h"
#include "fsdp/checkpoint/source/payload_reader.h"
#include "fsdp/checkpoint/state_testutil.h"
#include "fsdp/checkpoint/storage/path.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"

namespace fsdp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kStep[] = "run/step-00000007";
constexpr int kLayers = 40;

// A checkpoint of two ranks on the disk and in a store: a large tensor, and many small ones.
class RemoteFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = JoinPath(NewTestDirectory(), StepName(7));
    std::vector<TestTensor> tensors = {{StateKey::Model("large"), DType::kFloat32, {1200, 1000}}};
    for (int i = 0; i < kLayers; ++i) {
      tensors.push_back({StateKey::Model("h." + std::to_string(i)), DType::kFloat32, {64, 3}});
    }
    StateDict state = FullState(tensors);
    state.aliases.clear();
    CheckpointDirectoryOptions options;
    options.type = StateDictType::kSharded;
    options.world_size = 2;
    options.step = 7;
    ASSERT_OK(WriteCheckpointDirectory(path_, state, ReadFromMemory(state), options));
    store_ = std::make_unique<FakeObjectStore>();
    bucket_ = store_.get();
    ASSERT_OK(UploadCheckpoint(PosixFileSystem(), path_, *bucket_, "run", {}).status());
    bucket_->Restart();
  }

  // The key of the object whose key has `part`.
  std::string KeyOf(const std::string& part) const {
    for (const auto& [key, bytes] : bucket_->objects()) {
      if (absl::StrContains(key, part)) return key;
    }
    ADD_FAILURE() << part << " is in no key";
    return "";
  }

  std::string path_;
  std::unique_ptr<FakeObjectStore> store_;
  FakeObjectStore* bucket_ = nullptr;
};

TEST_F(RemoteFilesTest, EveryValueIsThatOfTheDirectory) {
  ASSERT_OK_AND_ASSIGN(const auto here, OpenNativeSource(path_));
  ASSERT_OK_AND_ASSIGN(const auto there, OpenRemoteSource(std::move(store_), kStep));
  EXPECT_EQ(there->step(), 7);
  for (const auto& [key, value] : here->contents().entries()) {
    const auto* const tensor = std::get_if<ShardedTensor>(&value);
    if (tensor == nullptr) continue;
    const int64_t numel = tensor->shape.numel();
    std::vector<float> wanted(numel), got(numel);
    ASSERT_OK(here->Read(key, {0, numel}, wanted.data()));
    ASSERT_OK(there->Read(key, {0, numel}, got.data()));
    EXPECT_EQ(got, wanted) << key.ToString();
  }
}

// Without windows each small tensor is a request.
TEST_F(RemoteFilesTest, NeighboursShareARequest) {
  FakeObjectStore* const bucket = bucket_;
  ASSERT_OK_AND_ASSIGN(const auto source, OpenRemoteSource(std::move(store_), kStep));
  std::vector<float> values(64 * 3);
  for (int i = 0; i < kLayers; ++i) {
    ASSERT_OK(source->Read(StateKey::Model("h." + std::to_string(i)), {0, 192}, values.data()));
  }
  EXPECT_LT(bucket->requests(), 20);
}

TEST_F(RemoteFilesTest, VerifyReadsEveryByteAndNamesDamage) {
  const std::string key = KeyOf("rank-00001");
  std::string bytes = bucket_->objects()[key];
  FakeObjectStore* const bucket = bucket_;
  ASSERT_OK_AND_ASSIGN(const auto files, RemoteFiles::Open(std::move(store_), kStep));
  EXPECT_EQ(files->directory(), "s3://fake/run/step-00000007");
  ASSERT_OK_AND_ASSIGN(const VerifyReport whole, VerifyCheckpoint(files->directory(), {.file_system = files.get()}));
  EXPECT_THAT(whole.problems, IsEmpty());
  EXPECT_EQ(whole.tensors, kLayers + 1);
  bytes[bytes.size() / 2] ^= 1;
  bucket->SetObject(key, bytes);
  ASSERT_OK_AND_ASSIGN(const VerifyReport damaged, VerifyCheckpoint(files->directory(), {.file_system = files.get()}));
  EXPECT_THAT(damaged.problems, ElementsAre(AllOf(HasSubstr("rank-00001-of-00002.h5"), HasSubstr("digest"))));
}

TEST_F(RemoteFilesTest, AMissingFileIsDamageAndASilentStoreIsNot) {
  const std::string key = KeyOf("rank-00001");
  const std::string bytes = bucket_->objects()[key];
  FakeObjectStore* const bucket = bucket_;
  ASSERT_OK_AND_ASSIGN(const auto files, RemoteFiles::Open(std::move(store_), kStep));
  ASSERT_OK(bucket->Delete(key));
  ASSERT_OK_AND_ASSIGN(const VerifyReport lost, VerifyCheckpoint(files->directory(), {.file_system = files.get()}));
  EXPECT_TRUE(lost.is_damaged());
  EXPECT_THAT(lost.problems, ElementsAre(HasSubstr("rank-00001-of-00002.h5: the file is missing")));
  bucket->SetObject(key, bytes.substr(0, bytes.size() - 5));
  ASSERT_OK_AND_ASSIGN(const VerifyReport cut, VerifyCheckpoint(files->directory(), {.file_system = files.get()}));
  EXPECT_TRUE(cut.is_damaged());
  bucket->SetObject(key, bytes);
  bucket->InjectFault(FakeObjectStore::Fault::kKill, 1);
  ASSERT_OK_AND_ASSIGN(const VerifyReport silent, VerifyCheckpoint(files->directory(), {.file_system = files.get()}));
  EXPECT_FALSE(silent.is_damaged());
  EXPECT_GT(silent.unread.size(), 0u);
}

TEST_F(RemoteFilesTest, AWindowThatFailedIsAskedForAgain) {
  const std::string key = KeyOf("rank-00000");
  const std::string bytes = bucket_->objects()[key];
  const auto nbytes = static_cast<int64_t>(bytes.size());
  ASSERT_GT(nbytes, WindowCache::kWindowBytes + 100);
  WindowCache windows(*bucket_);
  std::string read(200, '\0');
  const auto out = absl::MakeSpan(reinterpret_cast<std::byte*>(read.data()), read.size());
  bucket_->InjectFault(FakeObjectStore::Fault::kError, 2);
  const int64_t offset = WindowCache::kWindowBytes - 100;  // in two windows
  EXPECT_FALSE(windows.Read(key, nbytes, offset, out).ok());
  EXPECT_OK(windows.Read(key, nbytes, offset, out));
  EXPECT_EQ(read, bytes.substr(offset, 200));
  EXPECT_EQ(bucket_->requests(), 3);
}

TEST_F(RemoteFilesTest, NothingIsChanged) {
  const std::map<std::string, std::string> before = bucket_->objects();
  FakeObjectStore* const bucket = bucket_;
  ASSERT_OK_AND_ASSIGN(const auto files, RemoteFiles::Open(std::move(store_), kStep));
  const std::string path = JoinPath(files->directory(), "manifest.json");
  EXPECT_TRUE(files->Exists(path));
  EXPECT_FALSE(files->Exists(JoinPath(files->directory(), "other")));
  EXPECT_FALSE(files->Exists("s3://fake/elsewhere"));
  ASSERT_OK_AND_ASSIGN(const auto file, files->Open(path));
  const std::byte byte = {};
  for (const absl::Status& status :
       {files->Create(path).status(), files->OpenToWrite(path).status(), files->OpenLocked(path).status(),
        files->MakeDirectory(path), files->RemoveDirectory(path), files->Unlink(path), files->SyncDirectory(path),
        files->Link(path, path), files->Rename(path, path), files->Replace(path, path), files->Exchange(path, path),
        file->Write(0, absl::MakeConstSpan(&byte, 1)), file->Reserve(1), file->Sync()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("ckpt pull makes a copy to change")));
  }
  EXPECT_EQ(bucket->objects(), before);
}

}  // namespace
}  // namespace fsdp

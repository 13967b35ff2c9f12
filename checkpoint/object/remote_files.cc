// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/remote_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/read/native_source.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/object/window_cache.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// A longer read is a request of its own: it would need most of its windows.
constexpr size_t kLongBytes = WindowCache::kWindowBytes / 2;

absl::Status ReadOnly(const std::string& path) {
  return absl::UnimplementedError(
      absl::StrCat(path, ": files of an object store are only read here: ckpt pull makes a copy to change"));
}

// OK if the range is inside of `nbytes` bytes.
absl::Status CheckRange(const std::string& path, int64_t offset, size_t size, int64_t nbytes) {
  if (offset >= 0 && offset <= nbytes && static_cast<int64_t>(size) <= nbytes - offset) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": ", size, " bytes from ", offset, " on are wanted, and it has ", nbytes));
}

// A file that cannot be changed.
class ReadOnlyFile : public File {
 public:
  ReadOnlyFile(std::string path, int64_t nbytes) : path_(std::move(path)), nbytes_(nbytes) {}

  const std::string& path() const override { return path_; }
  absl::StatusOr<int64_t> Size() const override { return nbytes_; }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override { return ReadOnly(path_); }
  absl::Status Reserve(int64_t) override { return ReadOnly(path_); }
  std::unique_ptr<WriteQueue> NewWriteQueue(int) override {
    return NewSynchronousWriteQueue([path = path_](int64_t, absl::Span<const std::byte>) { return ReadOnly(path); });
  }
  absl::Status Sync() override { return ReadOnly(path_); }
  bool locked() const override { return false; }

 protected:
  const std::string path_;
  const int64_t nbytes_;
};

class TextFile final : public ReadOnlyFile {
 public:
  TextFile(std::string path, const std::string& text)
      : ReadOnlyFile(std::move(path), static_cast<int64_t>(text.size())), text_(text) {}

  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    FSDP_RETURN_IF_ERROR(CheckRange(path_, offset, out.size(), nbytes_));
    std::memcpy(out.data(), text_.data() + offset, out.size());
    return absl::OkStatus();
  }

 private:
  const std::string text_;
};

class ObjectFile final : public ReadOnlyFile {
 public:
  ObjectFile(std::string path, int64_t nbytes, ObjectStore& store, std::string key,
             std::shared_ptr<WindowCache> windows)
      : ReadOnlyFile(std::move(path), nbytes), store_(store), key_(std::move(key)), windows_(std::move(windows)) {}

  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    FSDP_RETURN_IF_ERROR(CheckRange(path_, offset, out.size(), nbytes_));
    if (out.empty()) return absl::OkStatus();
    return out.size() > kLongBytes ? GetBytes(store_, key_, offset, out) : windows_->Read(key_, nbytes_, offset, out);
  }

 private:
  ObjectStore& store_;
  const std::string key_;
  const std::shared_ptr<WindowCache> windows_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RemoteFiles>> RemoteFiles::Open(std::unique_ptr<ObjectStore> store,
                                                               const std::string& step) {
  FSDP_ASSIGN_OR_RETURN(RemoteManifest remote, ReadRemoteManifest(*store, step));
  return std::unique_ptr<RemoteFiles>(
      new RemoteFiles(std::move(store), step, remote.manifest.save.id, std::move(remote.text)));
}

RemoteFiles::RemoteFiles(std::unique_ptr<ObjectStore> store, const std::string& step, const std::string& save_id,
                         std::string manifest)
    : store_(std::move(store)),
      prefix_(RemoteFileKey(step, save_id, "")),
      manifest_(std::move(manifest)),
      directory_(store_->UrlOf(step)),
      windows_(std::make_shared<WindowCache>(*store_)) {}

RemoteFiles::~RemoteFiles() = default;

absl::StatusOr<std::unique_ptr<File>> RemoteFiles::Open(const std::string& path) {
  if (path == JoinPath(directory_, kManifestName)) return std::make_unique<TextFile>(path, manifest_);
  absl::string_view name = path;
  if (!absl::ConsumePrefix(&name, directory_) || !absl::ConsumePrefix(&name, "/")) {
    return absl::NotFoundError(absl::StrCat(path, " is not in ", directory_));
  }
  const std::string key = absl::StrCat(prefix_, name);
  FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, store_->Size(key));
  return std::make_unique<ObjectFile>(path, nbytes, *store_, key, windows_);
}

absl::StatusOr<std::vector<std::string>> RemoteFiles::List(const std::string& path) {
  if (path != directory_) return absl::NotFoundError(absl::StrCat(path, " is not ", directory_));
  FSDP_ASSIGN_OR_RETURN(const ObjectListing listing, store_->List(prefix_, /*one_level=*/true));
  std::vector<std::string> names = {kManifestName};
  for (const ObjectEntry& object : listing.objects) names.emplace_back(absl::StripPrefix(object.key, prefix_));
  std::sort(names.begin(), names.end());
  return names;
}

bool RemoteFiles::Exists(const std::string& path) { return Open(path).ok(); }

absl::StatusOr<std::unique_ptr<File>> RemoteFiles::Create(const std::string& path) { return ReadOnly(path); }
absl::StatusOr<std::unique_ptr<File>> RemoteFiles::OpenToWrite(const std::string& path) { return ReadOnly(path); }
absl::StatusOr<std::unique_ptr<File>> RemoteFiles::OpenLocked(const std::string& path) { return ReadOnly(path); }
absl::Status RemoteFiles::MakeDirectory(const std::string& path) { return ReadOnly(path); }
absl::Status RemoteFiles::RemoveDirectory(const std::string& path) { return ReadOnly(path); }
absl::Status RemoteFiles::Unlink(const std::string& path) { return ReadOnly(path); }
absl::Status RemoteFiles::SyncDirectory(const std::string& path) { return ReadOnly(path); }
absl::Status RemoteFiles::Link(const std::string& from, const std::string&) { return ReadOnly(from); }
absl::Status RemoteFiles::Rename(const std::string& from, const std::string&) { return ReadOnly(from); }
absl::Status RemoteFiles::Replace(const std::string& from, const std::string&) { return ReadOnly(from); }
absl::Status RemoteFiles::Exchange(const std::string& a, const std::string&) { return ReadOnly(a); }

absl::StatusOr<std::unique_ptr<TensorSource>> OpenRemoteSource(std::unique_ptr<ObjectStore> store,
                                                               const std::string& step,
                                                               const TensorSourceOptions& options) {
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<RemoteFiles> files, RemoteFiles::Open(std::move(store), step));
  const std::string directory = files->directory();
  return OpenNativeSource(directory, options, std::move(files));
}

}  // namespace fsdp

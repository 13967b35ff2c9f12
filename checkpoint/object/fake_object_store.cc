// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/fake_object_store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"

namespace fsdp {
namespace {

absl::StatusOr<std::string> BytesOf(const ObjectBody& body, const ByteRange& range) {
  std::string bytes(range.nbytes, '\0');
  if (range.nbytes > 0) {
    FSDP_RETURN_IF_ERROR(
        body.read(range.offset, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
  }
  return bytes;
}

}  // namespace

void FakeObjectStore::InjectFault(Fault fault, int64_t request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fault_ = fault;
  faulty_request_ = requests_ + request;
}

void FakeObjectStore::Restart() {
  const std::lock_guard<std::mutex> lock(mutex_);
  requests_ = 0;
  faulty_request_ = 0;
}

int64_t FakeObjectStore::requests() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return requests_;
}

// Every public request calls Begin once under mutex_, does its work, and returns `lost`. So a fault before the work
// (the returned error) and a lost reply after it (`lost`) are both one error for the caller, who cannot distinguish
// them. Requests that only read return `lost` early: they have no work that could persist.
absl::Status FakeObjectStore::Begin(absl::Status& lost) {
  ++requests_;
  if (faulty_request_ == 0 || requests_ < faulty_request_) return absl::OkStatus();
  const absl::Status error = absl::UnavailableError(absl::StrCat("injected fault at request ", requests_));
  const bool is_dead = fault_ == Fault::kKill || fault_ == Fault::kKillAfter;
  // A dead process sends no more requests; after a single fault the connection works again.
  if (requests_ > faulty_request_) return is_dead ? error : absl::OkStatus();
  if (fault_ == Fault::kError || fault_ == Fault::kKill) return error;
  lost = error;
  return absl::OkStatus();
}

absl::Status FakeObjectStore::Put(const std::string& key, const ObjectBody& body) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
  // Like S3Store: create, parts, complete, each a request that can fail. There is no abort on failure, which leaves an
  // unfinished upload for AbortUploads, as a killed process does.
  if (body.nbytes > part_bytes_) {
    FSDP_ASSIGN_OR_RETURN(const std::string id, CreateUpload(key));
    for (int64_t begin = 0; begin < body.nbytes; begin += part_bytes_) {
      FSDP_ASSIGN_OR_RETURN(std::string bytes, BytesOf(body, {begin, std::min(part_bytes_, body.nbytes - begin)}));
      FSDP_RETURN_IF_ERROR(PutPart(id, static_cast<int>(begin / part_bytes_) + 1, std::move(bytes)));
    }
    return CompleteUpload(id);
  }
  // The body is read without the lock: its `read` may call the store or fail.
  FSDP_ASSIGN_OR_RETURN(std::string bytes, BytesOf(body, {0, body.nbytes}));
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  objects_[key] = std::move(bytes);
  return lost;
}

absl::Status FakeObjectStore::PutIfAbsent(const std::string& key, absl::string_view bytes) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  // One critical section, so that of two writers exactly one succeeds, as with If-None-Match.
  if (!objects_.emplace(key, std::string(bytes)).second) {
    return absl::AlreadyExistsError(absl::StrCat(UrlOf(key), " exists"));
  }
  return lost;
}

absl::Status FakeObjectStore::Get(const std::string& key, const ByteRange& range,
                                  absl::FunctionRef<absl::Status(absl::Span<const std::byte>)> sink) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
  std::string bytes;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    absl::Status lost;
    FSDP_RETURN_IF_ERROR(Begin(lost));
    FSDP_RETURN_IF_ERROR(lost);
    const auto object = objects_.find(key);
    if (object == objects_.end()) return absl::NotFoundError(absl::StrCat(UrlOf(key), " does not exist"));
    if (range.end() > static_cast<int64_t>(object->second.size())) {
      return absl::OutOfRangeError(absl::StrCat(UrlOf(key), " has ", object->second.size(), " bytes"));
    }
    bytes = object->second.substr(range.offset, range.nbytes);
  }
  // In pieces of an odd size, so that no caller can rely on blocks.
  constexpr size_t kPiece = 999;
  for (size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const size_t nbytes = std::min(kPiece, bytes.size() - begin);
    FSDP_RETURN_IF_ERROR(sink(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(bytes.data()) + begin, nbytes)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> FakeObjectStore::Size(const std::string& key) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  FSDP_RETURN_IF_ERROR(lost);
  const auto object = objects_.find(key);
  if (object == objects_.end()) return absl::NotFoundError(absl::StrCat(UrlOf(key), " does not exist"));
  return static_cast<int64_t>(object->second.size());
}

absl::StatusOr<ObjectListing> FakeObjectStore::List(const std::string& prefix, bool one_level) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(prefix));
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  FSDP_RETURN_IF_ERROR(lost);
  ObjectListing listing;
  for (const auto& [key, bytes] : objects_) {
    if (!absl::StartsWith(key, prefix)) continue;
    const size_t slash = one_level ? key.find('/', prefix.size()) : std::string::npos;
    if (slash == std::string::npos) {
      listing.objects.push_back({key, static_cast<int64_t>(bytes.size())});
      // Keys are sorted, so equal folders follow each other.
    } else if (const std::string folder = key.substr(0, slash + 1);
               listing.folders.empty() || listing.folders.back() != folder) {
      listing.folders.push_back(folder);
    }
  }
  return listing;
}

absl::Status FakeObjectStore::Delete(const std::string& key) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(key));
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  objects_.erase(key);
  return lost;
}

absl::Status FakeObjectStore::AbortUploads(const std::string& prefix) {
  FSDP_RETURN_IF_ERROR(CheckObjectKey(prefix));
  std::vector<std::string> ids;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    absl::Status lost;
    FSDP_RETURN_IF_ERROR(Begin(lost));
    FSDP_RETURN_IF_ERROR(lost);
    for (const auto& [id, upload] : uploads_) {
      if (absl::StartsWith(upload.key, prefix)) ids.push_back(id);
    }
  }
  // Each abort is a request of its own, with its own fault. It takes the lock itself.
  for (const std::string& id : ids) FSDP_RETURN_IF_ERROR(AbortUpload(id));
  return absl::OkStatus();
}

std::string FakeObjectStore::UrlOf(const std::string& key) const { return absl::StrCat("s3://fake/", key); }

absl::StatusOr<std::string> FakeObjectStore::CreateUpload(const std::string& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  std::string id = absl::StrCat("upload-", next_upload_++);
  uploads_[id].key = key;
  FSDP_RETURN_IF_ERROR(lost);
  return id;
}

absl::Status FakeObjectStore::PutPart(const std::string& id, int part, std::string bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  const auto upload = uploads_.find(id);
  if (upload == uploads_.end()) return absl::NotFoundError(absl::StrCat(id, " does not exist"));
  upload->second.parts[part] = std::move(bytes);
  return lost;
}

absl::Status FakeObjectStore::CompleteUpload(const std::string& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  const auto upload = uploads_.find(id);
  if (upload == uploads_.end()) return absl::NotFoundError(absl::StrCat(id, " does not exist"));
  std::string& object = objects_[upload->second.key];
  object.clear();
  // By part number, since parts may arrive in any order.
  for (const auto& [part, bytes] : upload->second.parts) object += bytes;
  uploads_.erase(upload);
  return lost;
}

absl::Status FakeObjectStore::AbortUpload(const std::string& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  absl::Status lost;
  FSDP_RETURN_IF_ERROR(Begin(lost));
  if (uploads_.erase(id) == 0) return absl::NotFoundError(absl::StrCat(id, " does not exist"));
  return lost;
}

std::map<std::string, std::string> FakeObjectStore::objects() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return objects_;
}

void FakeObjectStore::SetObject(const std::string& key, std::string bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  objects_[key] = std::move(bytes);
}

std::map<std::string, std::string> FakeObjectStore::uploads() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::map<std::string, std::string> uploads;
  for (const auto& [id, upload] : uploads_) uploads[id] = upload.key;
  return uploads;
}

}  // namespace fsdp

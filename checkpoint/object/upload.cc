// SPDX-License-Identifier: Apache-2.0
//
// The steps of an upload of save S of step N:
//
//   1. Lock the directory; read its manifest.
//   2. Look for a manifest at run/step-N. If it is the same, the upload is complete: continue with 6. If it is of
//      another save, return kAlreadyExists, unless it is to be replaced.
//   3. Abort the unfinished puts of an interrupted upload of S below run/step-N/S/, and list the completed ones.
//   4. Put the files that do not exist with their size. An object appears complete, and S identifies these bytes, so an
//      object of that size has the right bytes.
//   5. List again: every file must exist with its size. Then put the manifest with If-None-Match: *. This is the
//      commit. If it already exists, that may be the result of our own repeated request: compare that manifest.
//   6. Delete the objects below run/step-N/ that the manifest does not name. Only now: before the commit, another
//      process may be uploading another save of the step, and the second of the two is refused in 2 or 5.
//
// If the process dies before step 5, readers still see the old step; after step 5, the new one. Orphaned objects cost
// money until the next upload of the same step.
#include "fsdp/checkpoint/object/upload.h"

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/manifest_json.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

class Upload {
 public:
  Upload(FileSystem& files, const std::string& path, ObjectStore& store, const UploadOptions& options)
      : files_(files), path_(path), store_(store), options_(options) {}

  absl::StatusOr<UploadReport> Run(const std::string& run) {
    // 1.
    FSDP_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(path_));
    FSDP_ASSIGN_OR_RETURN(manifest_, ReadManifest(files_, path_));
    FSDP_ASSIGN_OR_RETURN(text_, ReadFile(files_, JoinPath(path_, kManifestName), kMaxManifestBytes));
    if (!manifest_.save.has_step) {
      return absl::InvalidArgumentError(absl::StrCat(path_, " does not record its step, which would be its name in ",
                                                     store_.UrlOf(run),
                                                     ": convert it with ConvertOptions::step, and upload the result"));
    }
    report_.step = RemoteStep(run, StepName(manifest_.save.step));
    for (const StoredFile& file : manifest_.files) report_.bytes += file.nbytes;
    report_.files = static_cast<int64_t>(manifest_.files.size());
    // 2.
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsSameThere());
    if (!is_there) {
      FSDP_RETURN_IF_ERROR(PutFiles());
      FSDP_RETURN_IF_ERROR(Commit());
    }
    FSDP_RETURN_IF_ERROR(Sweep());
    return std::move(report_);
  }

 private:
  std::string KeyOf(const std::string& file) const { return RemoteFileKey(report_.step, manifest_.save.id, file); }

  // True if the existing manifest is ours; false without one, or for another one that is to be replaced.
  absl::StatusOr<bool> IsSameThere() {
    const std::string key = RemoteManifestKey(report_.step);
    const absl::StatusOr<std::string> there = GetObject(store_, key, kMaxManifestBytes);
    if (absl::IsNotFound(there.status())) return false;
    FSDP_RETURN_IF_ERROR(there.status());
    if (*there == text_) return true;
    if (options_.overwrite) return false;
    const absl::StatusOr<Manifest> other = DecodeManifest(*there);
    return absl::AlreadyExistsError(
        absl::StrCat(store_.UrlOf(key), " is of ", other.ok() ? absl::StrCat("save ", other->save.id) : "another save",
                     ", and ", path_, " of save ", manifest_.save.id, "; it is replaced only on request"));
  }

  // 3. and 4.
  absl::Status PutFiles() {
    FSDP_RETURN_IF_ERROR(store_.AbortUploads(KeyOf("")));
    FSDP_ASSIGN_OR_RETURN(const ObjectListing there, store_.List(KeyOf(""), /*one_level=*/false));
    std::map<std::string, int64_t> sizes;
    for (const ObjectEntry& object : there.objects) sizes[object.key] = object.nbytes;
    std::vector<int> missing;
    for (size_t i = 0; i < manifest_.files.size(); ++i) {
      const StoredFile& file = manifest_.files[i];
      const auto size = sizes.find(KeyOf(file.name));
      if (size != sizes.end() && size->second == file.nbytes) continue;
      missing.push_back(static_cast<int>(i));
      report_.sent_bytes += file.nbytes;
    }
    report_.sent_files = static_cast<int64_t>(missing.size());
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                          ThreadPool::Create(options_.threads, "checkpoint-upload"));
    return pool->ParallelFor(static_cast<int64_t>(missing.size()), [&](int64_t i) { return PutFile(missing[i]); });
  }

  absl::Status PutFile(int index) {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenStoredFile(files_, path_, manifest_, index));
    const StoredFile& stored = manifest_.files[index];
    ObjectBody body = FileBody(*file, stored.nbytes);
    body.read = [this, read = std::move(body.read)](int64_t offset, absl::Span<std::byte> out) -> absl::Status {
      if (options_.is_cancelled && options_.is_cancelled()) {
        return absl::CancelledError("the upload was cancelled");
      }
      Count(static_cast<int64_t>(out.size()));
      return read(offset, out);
    };
    return Annotate(store_.Put(KeyOf(stored.name), body), path_);
  }

  // Bytes that are sent again after an error count twice, so the sum is capped at the total.
  void Count(int64_t nbytes) {
    if (!options_.progress) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = std::min(done_ + nbytes, report_.sent_bytes);
    options_.progress(done_, report_.sent_bytes);
  }

  // 5.
  absl::Status Commit() {
    FSDP_RETURN_IF_ERROR(CheckRemoteFiles(store_, report_.step, manifest_));
    const std::string key = RemoteManifestKey(report_.step);
    if (options_.overwrite) return store_.Put(key, TextBody(text_));
    const absl::Status put = store_.PutIfAbsent(key, text_);
    if (!absl::IsAlreadyExists(put)) return put;
    FSDP_ASSIGN_OR_RETURN(const bool is_ours, IsSameThere());
    return is_ours ? absl::OkStatus() : put;
  }

  // 6.
  absl::Status Sweep() {
    const std::string folder = absl::StrCat(report_.step, "/");
    FSDP_ASSIGN_OR_RETURN(const ObjectListing there, store_.List(folder, /*one_level=*/false));
    for (const ObjectEntry& object : there.objects) {
      // Only keys of a save: a folder named by a save id, with a file name that a save gives.
      const std::string name = object.key.substr(folder.size());
      const size_t slash = name.find('/');
      if (slash == std::string::npos || absl::StartsWith(object.key, KeyOf(""))) continue;
      const std::string id = name.substr(0, slash);
      if (!ParseDigest(id).ok() || !IsCheckpointFileName(name.substr(slash + 1))) continue;
      FSDP_RETURN_IF_ERROR(store_.Delete(object.key));
      ++report_.swept_files;
    }
    return store_.AbortUploads(folder);
  }

  FileSystem& files_;
  const std::string& path_;
  ObjectStore& store_;
  const UploadOptions& options_;
  Manifest manifest_;
  std::string text_;  // of the manifest
  UploadReport report_;

  std::mutex mutex_;
  int64_t done_ = 0;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<UploadReport> UploadCheckpoint(FileSystem& files, const std::string& path, ObjectStore& store,
                                              const std::string& run, const UploadOptions& options) {
  return Upload(files, path, store, options).Run(run);
}

}  // namespace fsdp

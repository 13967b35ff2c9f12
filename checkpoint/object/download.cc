// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/object/download.h"

#include <memory>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"
#include "fsdp/checkpoint/object/file_digest_check.h"
#include "fsdp/checkpoint/object/remote_checkpoint.h"
#include "fsdp/checkpoint/storage/disk_room.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {

namespace {

// Gets the object `key` as `path`. The bytes are checked before they are written, in the same pass: no second read of
// the file.
absl::Status GetFile(ObjectStore& store, const std::string& key, const StoredFile& stored, FileSystem& files,
                     const std::string& path, absl::FunctionRef<void(int64_t)> count) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files.Create(path));
  FileDigestCheck check(stored);
  int64_t offset = 0;
  FSDP_RETURN_IF_ERROR(store.Get(key, {0, stored.nbytes}, [&](absl::Span<const std::byte> bytes) -> absl::Status {
    FSDP_RETURN_IF_ERROR(check.Update(bytes));
    FSDP_RETURN_IF_ERROR(file->Write(offset, bytes));
    offset += static_cast<int64_t>(bytes.size());
    count(static_cast<int64_t>(bytes.size()));
    return absl::OkStatus();
  }));
  FSDP_RETURN_IF_ERROR(check.Finish());
  return file->Sync();
}

}  // namespace

absl::StatusOr<DownloadReport> DownloadCheckpoint(ObjectStore& store, const std::string& step, FileSystem& files,
                                                  const std::string& destination, const DownloadOptions& options) {
  FSDP_ASSIGN_OR_RETURN(const RemoteManifest remote, ReadRemoteManifest(store, step));
  const Manifest& manifest = remote.manifest;
  // A hostile manifest may claim any size, so nothing is written before the store has reported files of these sizes and
  // the disk has room for them.
  FSDP_RETURN_IF_ERROR(CheckRemoteFiles(store, step, manifest));
  DownloadReport report = {.step = manifest.save.known_step(), .files = static_cast<int64_t>(manifest.files.size())};
  for (const StoredFile& file : manifest.files) report.bytes += file.nbytes;
  FSDP_RETURN_IF_ERROR(CheckRoom(destination, absl::StrCat("the files of ", store.UrlOf(step)), report.bytes));

  const PathParts parts = SplitPath(destination);
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StagedCheckpoint> staged,
                        StagedCheckpoint::Create(files, parts.directory, parts.name,
                                                 {.overwrite = options.overwrite, .on_leftover = options.note}));
  std::mutex mutex;
  int64_t done = 0;  // guarded by mutex
  const auto count = [&](int64_t nbytes) {
    if (!options.progress) return;
    const std::lock_guard<std::mutex> lock(mutex);
    done += nbytes;
    options.progress(done, report.bytes);
  };
  const auto get = [&](int64_t i) {
    const StoredFile& stored = manifest.files[i];
    return GetFile(store, RemoteFileKey(step, manifest.save.id, stored.name), stored, files,
                   JoinPath(staged->path(), stored.name), count);
  };
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                        ThreadPool::Create(options.threads, "checkpoint-download"));
  // The error of one file ends the download; the destructor of `staged` removes the others.
  const absl::Status got = pool->ParallelFor(report.files, get);
  if (!got.ok()) return Annotate(got, store.UrlOf(step));
  // The text as downloaded, not encoded again, so that its seal and unknown members stay.
  FSDP_RETURN_IF_ERROR(staged->Commit(remote.text));
  return report;
}

}  // namespace fsdp

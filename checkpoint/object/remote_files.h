// SPDX-License-Identifier: Apache-2.0
//
// RemoteFiles: a checkpoint of an object store as a directory of files that are only read, so that what reads a
// checkpoint on a disk, and verifies it, reads it there. Only the bytes that are asked for are transferred: long reads
// as they come, short ones in windows, since a request takes as long as a million bytes.
//
//   step/manifest.json          DIRECTORY/manifest.json, fetched by Open
//   step/<save id>/NAME         DIRECTORY/NAME; DIRECTORY is the URL of the step
//
//   FSDP_ASSIGN_OR_RETURN(std::unique_ptr<RemoteFiles> files, RemoteFiles::Open(std::move(store), step));
//   VerifyCheckpoint(files->directory(), {.file_system = files.get()})
#ifndef FSDP_CHECKPOINT_OBJECT_REMOTE_FILES_H_
#define FSDP_CHECKPOINT_OBJECT_REMOTE_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/object/object_store.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class WindowCache;

// A call that would change a file fails with kUnimplemented. Errors of reading are the store's, but bytes that an
// object lacks are kDataLoss, as of a file. Holds at most 16 MiB, the manifest besides. Thread-safe.
class RemoteFiles final : public FileSystem {
 public:
  // The files of `step`, which FindRemoteCheckpoint returned. Errors as ReadRemoteManifest.
  static absl::StatusOr<std::unique_ptr<RemoteFiles>> Open(std::unique_ptr<ObjectStore> store, const std::string& step);
  ~RemoteFiles() override;

  // "s3://models/gpt2/step-00000100"
  const std::string& directory() const { return directory_; }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  bool Exists(const std::string& path) override;

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> OpenToWrite(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> OpenLocked(const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::Status Unlink(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Replace(const std::string& from, const std::string& to) override;
  absl::Status Exchange(const std::string& a, const std::string& b) override;

 private:
  RemoteFiles(std::unique_ptr<ObjectStore> store, const std::string& step, const std::string& save_id,
              std::string manifest);

  const std::unique_ptr<ObjectStore> store_;
  const std::string prefix_;    // of the keys of the save's files: "step/<save id>/"
  const std::string manifest_;  // the bytes of manifest.json
  const std::string directory_;
  const std::shared_ptr<WindowCache> windows_;  // shared with the files that are open
};

// The checkpoint `step` as a source: each byte that is read is compared with its digest. Errors as RemoteFiles::Open
// and OpenNativeSource.
absl::StatusOr<std::unique_ptr<TensorSource>> OpenRemoteSource(std::unique_ptr<ObjectStore> store,
                                                               const std::string& step,
                                                               const TensorSourceOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_OBJECT_REMOTE_FILES_H_

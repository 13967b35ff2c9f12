// SPDX-License-Identifier: Apache-2.0
//
// FaultFileSystem: a FileSystem for tests, on real files, that counts the operations which change something (open for
// writing, write, reserve, fsync, rename, exchange, link, unlink, directories and their fsync) and fails or crashes at
// the k-th. A crash is final: a write is torn at a multiple of 512 bytes, any other operation is not executed, and all
// later operations fail, even cleaning up. LosePower then reverts unsynced changes, as a power cut would; without it,
// only the process crashes. Syncs are only recorded, so that tests are fast. For faults inside an operation, EINTR and
// short counts, see system_call_faults.h. Ranks with one of these each have different views of one root (Hide).
// Thread-safe.
//
//   FaultFileSystem files(PosixFileSystem());
//   files.CrashAt(k);
//   ... save on `files`, which fails ...
//   files.LosePower(FaultFileSystem::Loss::kNamesAndData);
//   ... the directory must hold the old checkpoint or the new one, whole ...
#ifndef FSDP_CHECKPOINT_STORAGE_FAULT_FILE_SYSTEM_H_
#define FSDP_CHECKPOINT_STORAGE_FAULT_FILE_SYSTEM_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

class FaultFileSystem final : public FileSystem {
 public:
  // The unsynced data that a power cut loses: names, contents, both, or (kSectors) every other sector of 512 bytes of
  // the contents.
  enum class Loss : uint8_t { kNothing, kNamesAndData, kNames, kData, kSectors };

  // Unlinked files are kept in the directory `graveyard`, so that LosePower can bring them back.
  FaultFileSystem(FileSystem& base, std::string graveyard) : base_(base), graveyard_(std::move(graveyard)) {}

  // Operation `operation`, counted from 1, fails with `error`; later operations work.
  void FailAt(int64_t operation, absl::Status error);

  // From operation `operation`, all operations that need space (create, write, reserve, make directory, link) fail with
  // ENOSPC.
  void FillDiskAt(int64_t operation);

  // Operation `operation` and all after it fail with EROFS; reading still works.
  void MakeReadOnlyAt(int64_t operation);

  // Operation `operation` and all after it fail, and nothing can be read.
  void CrashAt(int64_t operation);

  // As on a network file system that shows changes of other hosts late: names that contain `part` do not exist here, in
  // listings neither. Empty: all are seen.
  void Hide(const std::string& part);

  // Operations so far.
  int64_t operations() const;

  // Reverts unsynced names or contents of files; everything else counts as durable afterwards.
  void LosePower(Loss loss);

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path) override;
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
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  bool Exists(const std::string& path) override;

 private:
  friend class FaultFile;

  // A change of names that is not durable yet.
  struct Change {
    enum class Kind : uint8_t { kCreate, kMakeDirectory, kUnlink, kRemoveDirectory, kRename, kExchange };
    Kind kind = Kind::kCreate;
    std::string path;
    std::string other;  // kUnlink: the path in the graveyard; kRename: the old path; kExchange: the other
  };

  enum class Needs : uint8_t { kNothing, kSpace };

  // Counts an operation; returns an error if the operation must fail.
  absl::Status Begin(Needs needs = Needs::kNothing);
  absl::Status CheckAlive() const;
  // kNotFound if `path` is hidden.
  absl::Status CheckSees(const std::string& path) const;
  // Links the file `path` into the graveyard, for LosePower; returns the path there.
  std::string Bury(const std::string& path);
  absl::Status Changed(Change::Kind kind, const std::string& path, const std::string& other = "");
  void Undo(const Change& change);

  FileSystem& base_;
  const std::string graveyard_;

  mutable std::mutex mutex_;
  // All guarded by mutex_.
  int64_t operations_ = 0;
  int64_t fail_at_ = 0;
  int64_t full_at_ = 0;
  int64_t read_only_at_ = 0;
  int64_t crash_at_ = 0;
  absl::Status error_;
  std::string hidden_;
  std::vector<Change> changes_;        // oldest first
  std::vector<std::string> unsynced_;  // the current paths of files whose contents are not durable
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_FAULT_FILE_SYSTEM_H_

// SPDX-License-Identifier: Apache-2.0
//
// The model of a disk: files and names really change immediately, and the changes that a power cut would revert are
// kept as a log. changes_ has every change of a name that no fsync of its directory has made durable, in order;
// unsynced_ has every file with contents that no fsync has made durable. LosePower undoes the log from its end. After a
// rename, the paths in both lists must follow (Moved, Exchanged), or the wrong files would be undone. A rename is
// logged under the directory of its new name, so it becomes durable by an fsync there, as on ext4 and XFS.
#include "fsdp/checkpoint/storage/fault_file_system.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/write_queue.h"

namespace fsdp {
namespace {

// The new path of `path` once `from`, which may be a directory above it, has been renamed to `to`.
std::string Moved(const std::string& path, const std::string& from, const std::string& to) {
  return path == from || absl::StartsWith(path, from + "/") ? to + path.substr(from.size()) : path;
}

// The new path of `path` once `a` and `b` have exchanged names.
std::string Exchanged(const std::string& path, const std::string& a, const std::string& b) {
  const std::string moved = Moved(path, a, b);
  return moved == path ? Moved(path, b, a) : moved;
}

constexpr size_t kSectorBytes = 512;

void LoseEveryOtherSector(const std::string& path) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return;
  const std::string nothing(kSectorBytes, '\0');
  for (uintmax_t at = 0; at < size; at += 2 * kSectorBytes) {
    file.seekp(static_cast<std::streamoff>(at));
    file.write(nothing.data(), static_cast<std::streamsize>(std::min<uintmax_t>(kSectorBytes, size - at)));
  }
}

absl::Status Failed(int error) { return absl::ErrnoToStatus(error, "test"); }

absl::Status Crashed() { return absl::AbortedError("the process has crashed"); }

}  // namespace

// A file whose writes are counted operations. Direct I/O and queues are not simulated: each write is one operation.
class FaultFile final : public File {
 public:
  FaultFile(FaultFileSystem& files, std::unique_ptr<File> base) : files_(files), base_(std::move(base)) {}

  const std::string& path() const override { return base_->path(); }
  absl::StatusOr<int64_t> Size() const override { return base_->Size(); }
  bool locked() const override { return base_->locked(); }

  absl::Status Read(int64_t offset, absl::Span<std::byte> out) const override {
    FSDP_RETURN_IF_ERROR(files_.CheckAlive());
    return base_->Read(offset, out);
  }

  absl::Status Write(int64_t offset, absl::Span<const std::byte> bytes) override {
    // Logged even if the operation fails: a torn write leaves contents that a power cut may take.
    const absl::Status begun = BeginChange();
    if (begun.ok()) return base_->Write(offset, bytes);
    // A torn write: the first half, in whole sectors, reaches the disk.
    (void)base_->Write(offset, bytes.first(bytes.size() / 2 / kSectorBytes * kSectorBytes));
    return begun;
  }

  absl::Status Reserve(int64_t nbytes) override {
    FSDP_RETURN_IF_ERROR(BeginChange());
    return base_->Reserve(nbytes);
  }

  std::unique_ptr<WriteQueue> NewWriteQueue(int) override {
    return NewSynchronousWriteQueue(
        [this](int64_t offset, absl::Span<const std::byte> bytes) { return Write(offset, bytes); });
  }

  absl::Status Sync() override {
    FSDP_RETURN_IF_ERROR(files_.Begin());
    const std::lock_guard<std::mutex> lock(files_.mutex_);
    auto& unsynced = files_.unsynced_;
    unsynced.erase(std::remove(unsynced.begin(), unsynced.end(), path()), unsynced.end());
    return absl::OkStatus();
  }

 private:
  absl::Status BeginChange() {
    const absl::Status begun = files_.Begin(FaultFileSystem::Needs::kSpace);
    const std::lock_guard<std::mutex> lock(files_.mutex_);
    files_.unsynced_.push_back(path());
    return begun;
  }

  FaultFileSystem& files_;
  const std::unique_ptr<File> base_;
};

void FaultFileSystem::FailAt(int64_t operation, absl::Status error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  fail_at_ = operation;
  error_ = std::move(error);
}

void FaultFileSystem::FillDiskAt(int64_t operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  full_at_ = operation;
}

void FaultFileSystem::MakeReadOnlyAt(int64_t operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  read_only_at_ = operation;
}

void FaultFileSystem::CrashAt(int64_t operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  crash_at_ = operation;
}

void FaultFileSystem::Hide(const std::string& part) {
  const std::lock_guard<std::mutex> lock(mutex_);
  hidden_ = part;
}

int64_t FaultFileSystem::operations() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return operations_;
}

absl::Status FaultFileSystem::CheckAlive() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return crash_at_ != 0 && operations_ >= crash_at_ ? Crashed() : absl::OkStatus();
}

absl::Status FaultFileSystem::CheckSees(const std::string& path) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (hidden_.empty() || !absl::StrContains(path, hidden_)) return absl::OkStatus();
  return absl::ErrnoToStatus(ENOENT, absl::StrCat("cannot see ", path));
}

// A crash comes before the other faults: a dead process sees no error.
absl::Status FaultFileSystem::Begin(Needs needs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++operations_;
  if (crash_at_ != 0 && operations_ >= crash_at_) return Crashed();
  if (read_only_at_ != 0 && operations_ >= read_only_at_) return Failed(EROFS);
  if (full_at_ != 0 && operations_ >= full_at_ && needs == Needs::kSpace) return Failed(ENOSPC);
  return operations_ == fail_at_ ? error_ : absl::OkStatus();
}

absl::Status FaultFileSystem::Changed(Change::Kind kind, const std::string& path, const std::string& other) {
  const std::lock_guard<std::mutex> lock(mutex_);
  changes_.push_back({kind, path, other});
  // unsynced_ has current paths, unlike changes_, which is undone step by step from the end.
  for (std::string& unsynced : unsynced_) {
    if (kind == Change::Kind::kRename) unsynced = Moved(unsynced, other, path);
    if (kind == Change::Kind::kExchange) unsynced = Exchanged(unsynced, other, path);
  }
  return absl::OkStatus();
}

std::string FaultFileSystem::Bury(const std::string& path) {
  // A hard link keeps the inode, so an undone unlink also restores links that steps share.
  std::string grave = JoinPath(graveyard_, absl::StrCat("unlinked-", operations()));
  std::error_code ignored;
  std::filesystem::remove(grave, ignored);  // left by another FaultFileSystem
  std::filesystem::create_hard_link(path, grave, ignored);
  return grave;
}

// Errors are ignored: a change that a later undo has already reverted, such as a file in a removed directory, is not a
// fault of the tested code.
void FaultFileSystem::Undo(const Change& change) {
  std::error_code ignored;
  switch (change.kind) {
    case Change::Kind::kCreate:
    case Change::Kind::kMakeDirectory:
      std::filesystem::remove_all(change.path, ignored);
      return;
    case Change::Kind::kUnlink:
      std::filesystem::rename(change.other, change.path, ignored);
      return;
    case Change::Kind::kRemoveDirectory:
      std::filesystem::create_directory(change.path, ignored);
      return;
    case Change::Kind::kRename:
      std::filesystem::rename(change.path, change.other, ignored);
      return;
    case Change::Kind::kExchange:
      (void)base_.Exchange(change.path, change.other);
      return;
  }
}

// Contents first, while every file still has its path in unsynced_.
void FaultFileSystem::LosePower(Loss loss) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (loss == Loss::kNamesAndData || loss == Loss::kData) {
    std::error_code ignored;
    for (const std::string& path : unsynced_) std::filesystem::resize_file(path, 0, ignored);
  }
  if (loss == Loss::kSectors) {
    for (const std::string& path : unsynced_) LoseEveryOtherSector(path);
  }
  if (loss == Loss::kNamesAndData || loss == Loss::kNames) {
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) Undo(*change);
  }
  changes_.clear();
  unsynced_.clear();
}

absl::StatusOr<std::unique_ptr<File>> FaultFileSystem::Create(const std::string& path) {
  FSDP_RETURN_IF_ERROR(CheckSees(path));
  FSDP_RETURN_IF_ERROR(Begin(Needs::kSpace));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_.Create(path));
  FSDP_RETURN_IF_ERROR(Changed(Change::Kind::kCreate, path));
  return std::make_unique<FaultFile>(*this, std::move(file));
}

absl::StatusOr<std::unique_ptr<File>> FaultFileSystem::Open(const std::string& path) {
  FSDP_RETURN_IF_ERROR(CheckSees(path));
  FSDP_RETURN_IF_ERROR(CheckAlive());
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_.Open(path));
  return std::make_unique<FaultFile>(*this, std::move(file));
}

absl::StatusOr<std::unique_ptr<File>> FaultFileSystem::OpenToWrite(const std::string& path) {
  FSDP_RETURN_IF_ERROR(CheckSees(path));
  FSDP_RETURN_IF_ERROR(Begin());
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_.OpenToWrite(path));
  return std::make_unique<FaultFile>(*this, std::move(file));
}

absl::StatusOr<std::unique_ptr<File>> FaultFileSystem::OpenLocked(const std::string& path) {
  const bool is_new = !base_.Exists(path);
  FSDP_RETURN_IF_ERROR(Begin(is_new ? Needs::kSpace : Needs::kNothing));
  FSDP_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_.OpenLocked(path));
  if (is_new) FSDP_RETURN_IF_ERROR(Changed(Change::Kind::kCreate, path));
  return std::make_unique<FaultFile>(*this, std::move(file));
}

absl::Status FaultFileSystem::MakeDirectory(const std::string& path) {
  FSDP_RETURN_IF_ERROR(Begin(Needs::kSpace));
  FSDP_RETURN_IF_ERROR(base_.MakeDirectory(path));
  return Changed(Change::Kind::kMakeDirectory, path);
}

absl::Status FaultFileSystem::RemoveDirectory(const std::string& path) {
  FSDP_RETURN_IF_ERROR(Begin());
  FSDP_RETURN_IF_ERROR(base_.RemoveDirectory(path));
  return Changed(Change::Kind::kRemoveDirectory, path);
}

absl::Status FaultFileSystem::Unlink(const std::string& path) {
  FSDP_RETURN_IF_ERROR(Begin());
  const std::string grave = Bury(path);
  FSDP_RETURN_IF_ERROR(base_.Unlink(path));
  return Changed(Change::Kind::kUnlink, path, grave);
}

absl::Status FaultFileSystem::SyncDirectory(const std::string& path) {
  FSDP_RETURN_IF_ERROR(Begin());
  // Only recorded, not forwarded to the disk, so that long series stay fast.
  if (!base_.Exists(path)) return absl::NotFoundError(path);
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Change> left;  // changes that remain pending
  for (const Change& change : changes_) {
    if (SplitPath(change.path).directory != path) {
      left.push_back(change);
      continue;
    }
    // The rename is durable now, so pending changes of the old name, such as its creation, are durable too.
    if (change.kind == Change::Kind::kRename || change.kind == Change::Kind::kExchange) {
      left.erase(
          std::remove_if(left.begin(), left.end(), [&](const Change& before) { return before.path == change.other; }),
          left.end());
    }
    // Pending changes below the old path are recorded under the new one.
    for (Change& before : left) {
      if (change.kind == Change::Kind::kRename) before.path = Moved(before.path, change.other, change.path);
      if (change.kind == Change::Kind::kExchange) before.path = Exchanged(before.path, change.other, change.path);
    }
  }
  changes_ = std::move(left);
  return absl::OkStatus();
}

absl::Status FaultFileSystem::Link(const std::string& from, const std::string& to) {
  FSDP_RETURN_IF_ERROR(Begin(Needs::kSpace));
  FSDP_RETURN_IF_ERROR(base_.Link(from, to));
  return Changed(Change::Kind::kCreate, to);
}

absl::Status FaultFileSystem::Rename(const std::string& from, const std::string& to) {
  FSDP_RETURN_IF_ERROR(Begin());
  FSDP_RETURN_IF_ERROR(base_.Rename(from, to));
  return Changed(Change::Kind::kRename, to, from);
}

absl::Status FaultFileSystem::Replace(const std::string& from, const std::string& to) {
  FSDP_RETURN_IF_ERROR(Begin());
  // Logged as two changes, so that LosePower can bring back the replaced file.
  const bool was_there = base_.Exists(to);
  const std::string grave = was_there ? Bury(to) : "";
  FSDP_RETURN_IF_ERROR(base_.Replace(from, to));
  if (was_there) FSDP_RETURN_IF_ERROR(Changed(Change::Kind::kUnlink, to, grave));
  return Changed(Change::Kind::kRename, to, from);
}

absl::Status FaultFileSystem::Exchange(const std::string& a, const std::string& b) {
  FSDP_RETURN_IF_ERROR(Begin());
  FSDP_RETURN_IF_ERROR(base_.Exchange(a, b));
  return Changed(Change::Kind::kExchange, b, a);
}

absl::StatusOr<std::vector<std::string>> FaultFileSystem::List(const std::string& path) {
  FSDP_RETURN_IF_ERROR(CheckAlive());
  FSDP_RETURN_IF_ERROR(CheckSees(path));
  FSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, base_.List(path));
  names.erase(std::remove_if(names.begin(), names.end(), [&](const auto& name) { return !CheckSees(name).ok(); }),
              names.end());
  return names;
}

bool FaultFileSystem::Exists(const std::string& path) {
  return CheckAlive().ok() && CheckSees(path).ok() && base_.Exists(path);
}

}  // namespace fsdp

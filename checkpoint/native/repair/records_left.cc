// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/repair/records_left.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/file_scan.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/parity/find_record.h"
#include "fsdp/checkpoint/storage/unread.h"

namespace fsdp {
namespace {

absl::Status Missing(const std::string& name) { return absl::DataLossError(absl::StrCat(name, " is missing")); }

// Opens a file to verify it. An error, such as a FIFO in its place, is reported as damage of the file, unless it says
// nothing about the file (IsUnread).
absl::StatusOr<std::unique_ptr<File>> OpenToCheck(FileSystem& files, const std::string& directory,
                                                  const std::string& name) {
  absl::StatusOr<std::unique_ptr<File>> file = OpenCheckpointFile(files, directory, name);
  if (file.ok() || IsUnread(file.status())) return file;
  return absl::IsNotFound(file.status()) ? Missing(name) : absl::DataLossError(file.status().message());
}

// "rank-00003-of-00008.h5" of "rank-00003-of-00008.step-00000100.h5": its name in the save that wrote it.
std::string OwnName(const std::string& name) { return absl::StrCat(name.substr(0, name.find('.')), ".h5"); }

// Fills a RecordsLeft, member by member.
class Survey {
 public:
  Survey(FileSystem& files, const std::string& directory, ThreadPool& pool)
      : files_(files), directory_(directory), pool_(pool) {}

  absl::StatusOr<RecordsLeft> Run() {
    FSDP_ASSIGN_OR_RETURN(names_, files_.List(directory_));
    // In this order: writers are counted in the one save that is kept, and linked files are known from its records.
    FSDP_RETURN_IF_ERROR(ReadRecords());
    KeepOneSave();
    CountWriters();
    FSDP_RETURN_IF_ERROR(FindLinked());
    FSDP_RETURN_IF_ERROR(FindParity());
    return std::move(left_);
  }

 private:
  bool IsPresent(const std::string& name) const { return std::binary_search(names_.begin(), names_.end(), name); }

  // Notes that the file `name` is damaged. A file that could not be read may be whole, and ends the survey.
  absl::Status Spoil(const std::string& name, const absl::Status& status) {
    if (IsUnread(status)) return status;
    left_.damaged[name] = status;
    return absl::OkStatus();
  }

  absl::Status ReadRecords() {
    for (const std::string& name : names_) {
      if (!ParseRankFileName(name)) continue;
      absl::StatusOr<FileRecord> record = RecordOf(files_, directory_, name, pool_);
      if (!record.ok()) {
        FSDP_RETURN_IF_ERROR(Spoil(name, record.status()));
        continue;
      }
      left_.records[name] = *std::move(record);
    }
    return absl::OkStatus();
  }

  // Keeps the records of the save to which most files belong. A file of another save counts as damaged: it has the name
  // of a file of this one.
  void KeepOneSave() {
    std::map<std::string, int> votes;
    for (const auto& [name, record] : left_.records) ++votes[record.save.id];
    const FileRecord* kept = nullptr;
    std::string kept_name;
    for (const auto& [name, record] : left_.records) {
      if (kept != nullptr && votes[record.save.id] <= votes[kept->save.id]) continue;
      kept = &record;
      kept_name = name;
    }
    for (auto it = left_.records.begin(); it != left_.records.end();) {
      if (it->second.save.id == kept->save.id) {
        ++it;
        continue;
      }
      left_.damaged[it->first] = absl::DataLossError(absl::StrCat(it->first, " is of another save than ", kept_name));
      it = left_.records.erase(it);
    }
  }

  // Rank files of another number of writers ("rank-00000-of-00004.h5" in a save of 8) are not files of this save and
  // are ignored.
  void CountWriters() {
    for (const auto& [name, status] : left_.damaged) {
      // Without any record, only names remain. The largest number of writers fails safely: files that are missing are
      // named.
      left_.writers = std::max(left_.writers, ParseRankFileName(name)->writers);
    }
    if (!left_.records.empty()) left_.writers = left_.records.begin()->second.save.writers;
    for (auto it = left_.damaged.begin(); it != left_.damaged.end();) {
      it = ParseRankFileName(it->first)->writers == left_.writers ? std::next(it) : left_.damaged.erase(it);
    }
    for (int writer = 0; writer < left_.writers; ++writer) {
      const std::string name = RankFileName(writer, left_.writers);
      if (!IsPresent(name)) left_.damaged[name] = Missing(name);
    }
  }

  // The record of a rank file describes the files that it links.
  absl::Status FindLinked() {
    for (const auto& [name, record] : left_.records) {
      for (size_t i = 1; i < record.files.size(); ++i) FSDP_RETURN_IF_ERROR(AddLinked(record.files[i]));
    }
    // If a rank file is lost, its linked files are described only by their own records.
    for (const std::string& name : names_) {
      if (!IsRankFileName(name) || ParseRankFileName(name) || left_.linked.count(name) != 0) continue;
      // The rank file that would link it is undamaged and does not: then this file is not part of the save.
      if (left_.damaged.count(OwnName(name)) == 0) continue;
      absl::StatusOr<FileRecord> record = RecordOf(files_, directory_, name, pool_);
      if (!record.ok()) {
        FSDP_RETURN_IF_ERROR(Spoil(name, record.status()));
        continue;
      }
      left_.linked[name] = std::move(record->files[0]);
      left_.linked[name].name = name;
    }
    return absl::OkStatus();
  }

  absl::Status AddLinked(const StoredFile& stored) {
    left_.linked[stored.name] = stored;
    const absl::Status status = CheckStoredFile(files_, directory_, stored, pool_);
    return status.ok() ? status : Spoil(stored.name, status);
  }

  absl::Status FindParity() {
    const bool is_recorded = !left_.records.empty();  // records also state 0, whatever files the directory has
    int parity = is_recorded ? left_.records.begin()->second.parity_files : 0;
    for (const std::string& name : names_) {
      const auto file = ParseParityFileName(name);
      if (file && parity == 0 && !is_recorded) parity = file->parity;
    }
    // All names of the code, present or not, since a missing file keeps its row of the matrix.
    for (int i = 0; i < parity; ++i) left_.parity.push_back(ParityFileName(i, parity));
    for (const std::string& name : left_.parity) {
      const absl::Status present = CheckPresent(files_, directory_, name);
      if (!present.ok()) FSDP_RETURN_IF_ERROR(Spoil(name, present));
    }
    return absl::OkStatus();
  }

  FileSystem& files_;
  const std::string& directory_;
  ThreadPool& pool_;
  std::vector<std::string> names_;
  RecordsLeft left_;
};

}  // namespace

absl::StatusOr<RecordsLeft> FindRecordsLeft(FileSystem& files, const std::string& directory, ThreadPool& pool) {
  return Survey(files, directory, pool).Run();
}

absl::StatusOr<FileRecord> RecordOf(FileSystem& files, const std::string& directory, const std::string& name,
                                    ThreadPool& pool) {
  const auto read = [&]() -> absl::StatusOr<FileRecord> {
    FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenToCheck(files, directory, name));
    FSDP_ASSIGN_OR_RETURN(FileRecord record, FindRecord(*file));
    if (record.files[0].name != OwnName(name)) {
      return absl::DataLossError(absl::StrCat("it is ", record.files[0].name, " of its save"));
    }
    FSDP_RETURN_IF_ERROR(CheckFileDigests(*file, record.files[0], pool));
    return record;
  };
  absl::StatusOr<FileRecord> record = read();
  if (record.ok()) return record;
  const absl::string_view why = record.status().message();
  const std::string message = absl::StartsWith(why, name) ? std::string(why) : absl::StrCat(name, ": ", why);
  return IsUnread(record.status()) ? WithMessage(record.status(), message) : absl::DataLossError(message);
}

absl::Status CheckPresent(FileSystem& files, const std::string& directory, const std::string& name) {
  return OpenToCheck(files, directory, name).status();
}

absl::Status CheckStoredFile(FileSystem& files, const std::string& directory, const StoredFile& stored,
                             ThreadPool& pool) {
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenToCheck(files, directory, stored.name));
  return CheckFileDigests(*file, stored, pool);
}

}  // namespace fsdp

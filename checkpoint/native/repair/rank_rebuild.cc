// SPDX-License-Identifier: Apache-2.0
//
// For each choice of parity files, as many as the lost rank files:
//
//   1. Sizes. The code needs the length of every rank file. The length of a lost file is in its record, which is lost
//      too, so it is first assumed to be as long as the parity files, which are as long as the longest rank file.
//   2. Rebuild. Padding is zeros, so a file whose length was assumed too large is correct up to its real end, and has
//      its record.
//   3. If the records give other sizes, rebuild again with these.
//   4. Verify every rebuilt file against the digests in its own record, and all records against one save id.
//
// The first choice that passes is right: a wrong one yields bytes whose digests do not match.
#include "fsdp/checkpoint/native/repair/rank_rebuild.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/parity/find_record.h"
#include "fsdp/checkpoint/native/parity/parity_files.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// Maximum number of choices to try. Each reads all files and writes the lost ones.
constexpr int kMaxChoices = 1000;

class RankRebuild {
 public:
  RankRebuild(FileSystem& files, const std::string& directory, RecordsLeft& left, RebuiltFiles& rebuilt,
              ThreadPool& pool)
      : files_(files), directory_(directory), left_(left), rebuilt_(rebuilt), pool_(pool) {}

  absl::StatusOr<std::vector<std::string>> Run() {
    FSDP_RETURN_IF_ERROR(FindParity());
    PlanFiles();
    if (usable_.size() < lost_.size()) {
      return absl::DataLossError(absl::StrCat(lost_.size(), " rank files are lost or damaged, and only ",
                                              usable_.size(), " parity files are present"));
    }
    // Choices in lexical order, as flags of the files in usable_ that a choice leaves out; the first choice uses the
    // first files.
    std::vector<bool> skipped(usable_.size(), true);
    std::fill_n(skipped.begin(), lost_.size(), false);
    absl::Status first_error;
    for (int choice = 0; choice < kMaxChoices; ++choice) {
      std::vector<std::string> used;
      for (size_t i = 0; i < usable_.size(); ++i) {
        if (!skipped[i]) used.push_back(usable_[i].name);
      }
      const absl::Status status = Try(used);
      if (status.ok()) return used;
      // An error of the file system would repeat with every choice.
      if (!absl::IsDataLoss(status)) return status;
      first_error.Update(status);
      if (!std::next_permutation(skipped.begin(), skipped.end())) break;
    }
    return absl::DataLossError(absl::StrCat("the files rebuilt from parity do not match their records, whichever ",
                                            lost_.size(), " of ", usable_.size(),
                                            " parity files are used: ", std::string(first_error.message())));
  }

 private:
  struct ParityFile {
    std::string name;
    int64_t nbytes = 0;
  };

  absl::Status FindParity() {
    for (const std::string& name : left_.parity) {
      if (left_.damaged.count(name) != 0) continue;
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(JoinPath(directory_, name)));
      FSDP_ASSIGN_OR_RETURN(const int64_t nbytes, file->Size());
      usable_.push_back({name, nbytes});
    }
    return absl::OkStatus();
  }

  // Puts all rank files into plan_, by name. A lost file whose size is in no record has 0 bytes for now.
  void PlanFiles() {
    std::map<std::string, int64_t> sizes;
    for (const auto& [name, record] : left_.records) sizes[name] = record.files[0].nbytes;
    for (const auto& [name, file] : left_.linked) sizes[name] = file.nbytes;
    for (const auto& [name, status] : left_.damaged) {
      if (IsRankFileName(name)) sizes.try_emplace(name, 0);
    }
    for (const auto& [name, nbytes] : sizes) {
      if (left_.damaged.count(name) != 0) lost_.push_back(static_cast<int>(plan_.data.size()));
      plan_.data.push_back({name, nbytes});
    }
    // All parity files, even unusable ones: the index of a file in the plan is its row in the code's matrix.
    plan_.parity = left_.parity;
  }

  // Rebuilds the files from the parity files `used`, and keeps them if they verify.
  absl::Status Try(const std::vector<std::string>& used) {
    ParityPlan plan = plan_;
    absl::Status status = GuessSizes(used, plan);
    if (status.ok()) status = Rebuild(used, plan);
    if (status.ok()) {
      absl::StatusOr<bool> changed = ReadSizes(plan);
      status = changed.status();
      if (status.ok() && *changed) status = Rebuild(used, plan);
    }
    if (status.ok()) status = VerifyRebuilt();
    if (!status.ok()) FSDP_RETURN_IF_ERROR(DropRebuilt());
    return status;
  }

  // Step 1.
  absl::Status GuessSizes(const std::vector<std::string>& used, ParityPlan& plan) const {
    int64_t nbytes = plan.nbytes();
    for (const ParityFile& file : usable_) {
      if (std::find(used.begin(), used.end(), file.name) == used.end()) continue;
      if (file.nbytes < plan.nbytes()) {
        return absl::DataLossError(absl::StrCat(file.name, " has ", file.nbytes, " bytes, fewer than a rank file"));
      }
      nbytes = std::max(nbytes, file.nbytes);
    }
    for (const int index : lost_) {
      if (plan.data[index].nbytes == 0) plan.data[index].nbytes = nbytes;
    }
    return absl::OkStatus();
  }

  absl::Status Rebuild(const std::vector<std::string>& used, const ParityPlan& plan) {
    FSDP_RETURN_IF_ERROR(DropRebuilt());
    ParityLoss loss = {lost_, {}};
    for (size_t i = 0; i < plan.parity.size(); ++i) {
      if (std::find(used.begin(), used.end(), plan.parity[i]) != used.end()) continue;
      loss.unused.push_back(static_cast<int>(plan.data.size() + i));
    }
    std::vector<std::string> out;
    for (const int index : lost_) {
      FSDP_ASSIGN_OR_RETURN(out.emplace_back(), rebuilt_.Add(plan.data[index].name));
    }
    return RebuildFromParity(files_, directory_, plan, loss, out, pool_);
  }

  // Sets the sizes of `plan` to those in the records of the rebuilt files. True when one of them changed.
  absl::StatusOr<bool> ReadSizes(ParityPlan& plan) const {
    bool changed = false;
    for (const int index : lost_) {
      ParityPlan::DataFile& data = plan.data[index];
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(JoinPath(rebuilt_.path(), data.name)));
      FSDP_ASSIGN_OR_RETURN(const FileRecord record, FindRecord(*file));
      changed = changed || data.nbytes != record.files[0].nbytes;
      data.nbytes = record.files[0].nbytes;
    }
    return changed;
  }

  // Step 4. A linked file of an earlier save has another save id; a record of this save describes it.
  absl::Status VerifyRebuilt() {
    std::map<std::string, FileRecord> made;
    for (const int index : lost_) {
      const std::string& name = plan_.data[index].name;
      const auto linked = left_.linked.find(name);
      if (linked != left_.linked.end()) {
        FSDP_RETURN_IF_ERROR(CheckStoredFile(files_, rebuilt_.path(), linked->second, pool_));
        continue;
      }
      FSDP_ASSIGN_OR_RETURN(FileRecord record, RecordOf(files_, rebuilt_.path(), name, pool_));
      if (!ParseRankFileName(name)) continue;
      const auto& other = !left_.records.empty() ? left_.records.begin()->second
                          : made.empty()         ? record
                                                 : made.begin()->second;
      if (record.save.id != other.save.id) return absl::DataLossError(absl::StrCat(name, " is of another save"));
      made[name] = std::move(record);
    }
    left_.records.merge(made);
    return absl::OkStatus();
  }

  absl::Status DropRebuilt() {
    for (const int index : lost_) {
      const std::string& name = plan_.data[index].name;
      if (rebuilt_.DirectoryOf(name) != rebuilt_.path()) continue;
      if (!files_.Exists(JoinPath(rebuilt_.path(), name))) continue;
      FSDP_RETURN_IF_ERROR(rebuilt_.Drop(name));
    }
    return absl::OkStatus();
  }

  FileSystem& files_;
  const std::string& directory_;
  RecordsLeft& left_;
  RebuiltFiles& rebuilt_;
  ThreadPool& pool_;
  std::vector<ParityFile> usable_;
  ParityPlan plan_;
  std::vector<int> lost_;  // indices into plan_.data
};

}  // namespace

absl::StatusOr<std::vector<std::string>> RebuildRankFiles(FileSystem& files, const std::string& directory,
                                                          RecordsLeft& left, RebuiltFiles& rebuilt, ThreadPool& pool) {
  return RankRebuild(files, directory, left, rebuilt, pool).Run();
}

}  // namespace fsdp

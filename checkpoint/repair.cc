// SPDX-License-Identifier: Apache-2.0
//
// Repair goes from what describes to what is described:
//
//   1. Where there is a manifest, it says which files are damaged. Where there is none, the rank files' records do;
//   they
//      must be of one save.
//   2. Rank and parity files that are lost or damaged are made from the others, if these are enough, and compared with
//      the manifest's digests, or their own records'.
//   3. checkpoint.h5, and the manifest if it was lost, are made from the records, as the save made them.
//   4. All that was made lies, synced, in .repair-<nonce> inside of the checkpoint. Each file takes its name there by a
//      rename, the manifest last.
#include "checkpoint/repair.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "checkpoint/format/file_digests.h"
#include "checkpoint/format/file_names.h"
#include "checkpoint/format/find_record.h"
#include "checkpoint/format/manifest_file.h"
#include "checkpoint/parity/parity_files.h"
#include "checkpoint/parity/rebuilt_files.h"
#include "checkpoint/storage/file_system.h"

namespace fsdp {
namespace {

std::string Message(const absl::Status& status) { return std::string(status.message()); }

bool IsParityFileName(const std::string& name) { return ParseParityFileName(name).has_value(); }

class Repair {
 public:
  Repair(FileSystem& files, std::string path, const RepairOptions& options, ThreadPool& pool)
      : files_(files), path_(std::move(path)), options_(options), pool_(pool), rebuilt_(files, path_) {}

  absl::StatusOr<RepairReport> Run() {
    ASSIGN_OR_RETURN(names_, files_.List(path_));
    absl::StatusOr<Manifest> manifest = ReadManifest(files_, path_);
    const bool is_lost = absl::IsNotFound(manifest.status()) || absl::IsDataLoss(manifest.status());
    if (!manifest.ok() && !is_lost) return manifest.status();
    if (is_lost && std::none_of(names_.begin(), names_.end(), IsRankFileName)) return WithStep(manifest.status());
    SweepLeftovers();
    RETURN_IF_ERROR(manifest.ok() ? ByManifest(*std::move(manifest)) : ByRecords(Message(manifest.status())));
    // What cannot all be repaired is not repaired by half: a manifest is right for all of its files or for none.
    if (!report_.is_whole()) {
      report_.repaired.clear();
      return report_;
    }
    if (!options_.dry_run) RETURN_IF_ERROR(rebuilt_.Install());
    return report_;
  }

 private:
  // A directory of checkpoints is no checkpoint: `status` with the step that may be meant.
  absl::Status WithStep(const absl::Status& status) const {
    const auto step =
        std::find_if(names_.rbegin(), names_.rend(), [](const auto& name) { return ParseStepName(name); });
    if (step == names_.rend()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(Message(status), "; repair one step, such as ", JoinPath(path_, *step)));
  }

  bool IsThere(const std::string& name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }

  // What an earlier repair left when it crashed.
  void SweepLeftovers() {
    for (const std::string& name : names_) {
      if (IsRebuiltDirectoryName(name) && !options_.dry_run) {
        (void)RemoveTree(files_, JoinPath(path_, name));
      }
    }
  }

  // Why the file `stored` cannot be used as it is in `directory`; OK when it can.
  absl::Status Check(const std::string& directory, const StoredFile& stored) {
    const absl::StatusOr<std::unique_ptr<File>> file = files_.Open(JoinPath(directory, stored.name));
    if (absl::IsNotFound(file.status())) return absl::DataLossError(absl::StrCat(stored.name, " is missing"));
    if (!file.ok()) return absl::DataLossError(absl::StrCat(stored.name, ": ", Message(file.status())));
    return CheckFileDigests(**file, stored, pool_);
  }

  // Step 1 with a manifest.
  absl::Status ByManifest(Manifest manifest) {
    std::map<std::string, absl::Status> damaged;
    for (const StoredFile& stored : manifest.files) {
      if (const absl::Status status = Check(path_, stored); !status.ok()) damaged[stored.name] = status;
    }
    const auto index = damaged.find(kCheckpointFileName);
    const absl::Status index_status = index == damaged.end() ? absl::OkStatus() : index->second;
    if (index != damaged.end()) damaged.erase(index);
    RETURN_IF_ERROR(MakeFromParity(PlanOf(manifest), damaged, [&](const std::string& name) {
      const auto stored = std::find_if(manifest.files.begin(), manifest.files.end(),
                                       [&](const StoredFile& file) { return file.name == name; });
      return Check(rebuilt_.path(), *stored);
    }));
    if (index_status.ok() || !report_.is_whole()) return absl::OkStatus();
    if (manifest.type == StateDictType::kFull) {
      report_.problems.push_back(
          absl::StrCat(Message(index_status), "; a full checkpoint keeps its bytes there and nowhere else"));
      return absl::OkStatus();
    }
    return MakeIndex(manifest, index_status);
  }

  static ParityPlan PlanOf(const Manifest& manifest) {
    ParityPlan plan;
    for (const int file : manifest.parity.data) {
      plan.data.push_back({manifest.files[file].name, manifest.files[file].nbytes});
    }
    for (const int file : manifest.parity.files) plan.parity.push_back(manifest.files[file].name);
    return plan;
  }

  // Step 2. `check` tells whether what was made is right.
  absl::Status MakeFromParity(const ParityPlan& plan, const std::map<std::string, absl::Status>& damaged,
                              const std::function<absl::Status(const std::string&)>& check) {
    if (damaged.empty()) return absl::OkStatus();
    std::vector<int> lost;
    std::vector<std::string> names;
    for (size_t i = 0; i < plan.data.size() + plan.parity.size(); ++i) {
      const std::string& name = i < plan.data.size() ? plan.data[i].name : plan.parity[i - plan.data.size()];
      if (damaged.count(name) == 0) continue;
      lost.push_back(static_cast<int>(i));
      names.push_back(name);
    }
    if (lost.size() < damaged.size() || lost.size() > plan.parity.size()) {
      const std::string why = plan.parity.empty()
                                  ? "there is no parity to make it from"
                                  : absl::StrCat(damaged.size(), " files are lost or damaged, and the ",
                                                 plan.parity.size(), " parity files make up for ", plan.parity.size());
      for (const auto& [name, status] : damaged) report_.problems.push_back(absl::StrCat(Message(status), "; ", why));
      return absl::OkStatus();
    }
    for (const std::string& name : names) {
      report_.repaired.push_back(absl::StrCat(Message(damaged.at(name)), "; made from parity"));
    }
    if (options_.dry_run) return absl::OkStatus();
    std::vector<std::string> out;
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(out.emplace_back(), rebuilt_.Add(name));
    }
    RETURN_IF_ERROR(RebuildFromParity(files_, path_, plan, lost, out, pool_));
    for (const std::string& name : names) {
      if (const absl::Status right = check(name); !right.ok()) {
        report_.problems.push_back(absl::StrCat(name, ": what parity makes of it is not right: ", Message(right)));
      }
    }
    return absl::OkStatus();
  }

  // Step 3 with a manifest.
  absl::Status MakeIndex(const Manifest& manifest, const absl::Status& damage) {
    report_.repaired.push_back(absl::StrCat(Message(damage), "; made from the records of the rank files"));
    if (options_.dry_run) return absl::OkStatus();
    std::vector<Manifest> records;
    for (const StoredFile& stored : manifest.files) {
      if (!stored.record || stored.origin) continue;
      ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                       files_.Open(JoinPath(rebuilt_.DirectoryOf(stored.name), stored.name)));
      ASSIGN_OR_RETURN(Manifest record, FindRecord(*file));
      records.push_back(std::move(record));
    }
    ASSIGN_OR_RETURN(Manifest made, rebuilt_.WriteIndex(records, pool_));
    const auto is_index = [](const StoredFile& file) { return file.name == kCheckpointFileName; };
    const auto was = std::find_if(manifest.files.begin(), manifest.files.end(), is_index);
    const auto now = std::find_if(made.files.begin(), made.files.end(), is_index);
    if (was != manifest.files.end() && was->extents == now->extents && was->rest_digest == now->rest_digest) {
      return absl::OkStatus();
    }
    // Another release laid it out, or HDF5 did; the manifest must then say what it is now.
    Manifest changed = manifest;
    changed.files[was - manifest.files.begin()] = *now;
    changed.texts = made.texts;
    for (StoredText& text : changed.texts) text.file = static_cast<int>(was - manifest.files.begin());
    return rebuilt_.WriteManifest(changed);
  }

  // Steps 1 to 3 without a manifest.
  absl::Status ByRecords(const std::string& why) {
    std::map<std::string, Manifest> records;  // of undamaged files
    std::map<std::string, absl::Status> damaged;
    for (const std::string& name : names_) {
      if (!ParseRankFileName(name)) continue;
      absl::StatusOr<Manifest> record = RecordOf(path_, name);
      if (record.ok()) {
        records[name] = *std::move(record);
      } else {
        damaged[name] = record.status();
      }
    }
    if (records.empty()) {
      report_.problems.push_back(absl::StrCat(why, "; no rank file has an undamaged record"));
      return absl::OkStatus();
    }
    const Manifest first = records.begin()->second;
    for (const auto& [name, record] : records) {
      if (record.save_id == first.save_id) continue;
      report_.problems.push_back(absl::StrCat(name, " is of another save than ", records.begin()->first));
    }
    for (int writer = 0; writer < first.writers; ++writer) {
      const std::string name = RankFileName(writer, first.writers);
      if (!IsThere(name)) damaged[name] = absl::DataLossError(absl::StrCat(name, " is missing"));
    }
    // Files of earlier saves are described where they are used.
    for (const auto& [name, record] : records) {
      for (size_t i = 1; i < record.files.size(); ++i) {
        linked_[record.files[i].name] = record.files[i];
        if (const absl::Status status = Check(path_, record.files[i]); !status.ok()) {
          damaged[record.files[i].name] = status;
        }
      }
    }
    for (const std::string& name : ParityNames()) {
      if (!IsThere(name)) damaged[name] = absl::DataLossError(absl::StrCat(name, " is missing"));
    }
    if (!report_.is_whole()) return absl::OkStatus();
    report_.repaired.push_back(absl::StrCat(why, "; made from the records of the rank files"));
    RETURN_IF_ERROR(MakeRankFiles(records, damaged));
    if (options_.dry_run || !report_.is_whole()) return absl::OkStatus();
    return MakeManifest(records);
  }

  // Without a manifest: the parity files that there were, as the names of those that are left say.
  std::vector<std::string> ParityNames() const {
    std::vector<std::string> parity;
    for (const std::string& name : names_) {
      const auto file = ParseParityFileName(name);
      if (!file || !parity.empty()) continue;
      for (int i = 0; i < file->parity; ++i) parity.push_back(ParityFileName(i, file->parity));
    }
    return parity;
  }

  // The record of a rank file all of whose bytes are as it says.
  absl::StatusOr<Manifest> RecordOf(const std::string& directory, const std::string& name) {
    const auto read = [&]() -> absl::StatusOr<Manifest> {
      ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(JoinPath(directory, name)));
      ASSIGN_OR_RETURN(Manifest record, FindRecord(*file));
      if (record.files[0].name != name) {
        return absl::DataLossError(absl::StrCat("it is ", record.files[0].name, " of its save"));
      }
      RETURN_IF_ERROR(CheckFileDigests(*file, record.files[0], pool_));
      return record;
    };
    absl::StatusOr<Manifest> record = read();
    if (record.ok()) return record;
    return absl::DataLossError(absl::StrCat(name, ": ", Message(record.status())));
  }

  // Step 2 by records. Without a manifest nobody knows how long a lost file was: it is made as long as the parity
  // files first, and its record then says how long it is.
  absl::Status MakeRankFiles(std::map<std::string, Manifest>& records,
                             const std::map<std::string, absl::Status>& damaged) {
    if (std::all_of(damaged.begin(), damaged.end(), [](const auto& file) { return IsParityFileName(file.first); })) {
      for (const auto& [name, status] : damaged) {
        report_.repaired.push_back(absl::StrCat(Message(status), "; made from the rank files"));
      }
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(ParityPlan plan, PlanByNames(records, damaged));
    const auto check_record = [&](const std::string& name) -> absl::Status {
      if (IsParityFileName(name)) return absl::OkStatus();
      if (linked_.count(name) != 0) return Check(rebuilt_.path(), linked_.at(name));
      ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(JoinPath(rebuilt_.path(), name)));
      ASSIGN_OR_RETURN(const Manifest record, FindRecord(*file));
      for (ParityPlan::DataFile& data : plan.data) {
        if (data.name == name) data.nbytes = record.files[0].nbytes;
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(MakeFromParity(plan, damaged, check_record));
    if (options_.dry_run || !report_.is_whole()) return absl::OkStatus();
    for (const auto& [name, status] : damaged) RETURN_IF_ERROR(rebuilt_.Drop(name));
    const std::vector<std::string> said = report_.repaired;
    RETURN_IF_ERROR(MakeFromParity(plan, damaged, [&](const std::string& name) -> absl::Status {
      if (IsParityFileName(name)) return absl::OkStatus();  // made once more with the manifest
      if (linked_.count(name) != 0) return Check(rebuilt_.path(), linked_.at(name));
      ASSIGN_OR_RETURN(records[name], RecordOf(rebuilt_.path(), name));
      if (records[name].save_id == records.begin()->second.save_id) return absl::OkStatus();
      return absl::DataLossError("it is of another save");
    }));
    report_.repaired = said;
    return absl::OkStatus();
  }

  absl::StatusOr<ParityPlan> PlanByNames(const std::map<std::string, Manifest>& records,
                                         const std::map<std::string, absl::Status>& damaged) {
    ParityPlan plan;
    plan.parity = ParityNames();
    int64_t parity_bytes = 0;
    for (const std::string& name : plan.parity) {
      if (!IsThere(name)) continue;
      ASSIGN_OR_RETURN(const std::unique_ptr<File> file, files_.Open(JoinPath(path_, name)));
      ASSIGN_OR_RETURN(parity_bytes, file->Size());
    }
    for (const auto& [name, record] : records) plan.data.push_back({name, record.files[0].nbytes});
    for (const auto& [name, file] : linked_) plan.data.push_back({name, file.nbytes});
    for (const auto& [name, status] : damaged) {
      if (linked_.count(name) == 0 && !IsParityFileName(name)) plan.data.push_back({name, parity_bytes});
    }
    std::sort(plan.data.begin(), plan.data.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    return plan;
  }

  // Step 3 by records. Nobody knows the digests of the parity files, so they are made again too.
  absl::Status MakeManifest(const std::map<std::string, Manifest>& records) {
    std::vector<Manifest> in_order;
    for (int writer = 0; writer < records.begin()->second.writers; ++writer) {
      in_order.push_back(records.at(RankFileName(writer, records.begin()->second.writers)));
    }
    ASSIGN_OR_RETURN(Manifest manifest, rebuilt_.WriteIndex(in_order, pool_));
    const auto parity = static_cast<int>(ParityNames().size());
    if (parity > 0) RETURN_IF_ERROR(rebuilt_.WriteParity(parity, manifest, pool_));
    return rebuilt_.WriteManifest(manifest);
  }

  FileSystem& files_;
  const std::string path_;
  const RepairOptions& options_;
  ThreadPool& pool_;
  RebuiltFiles rebuilt_;
  std::vector<std::string> names_;            // in path_
  std::map<std::string, StoredFile> linked_;  // without a manifest: files of earlier saves
  RepairReport report_;
};

}  // namespace

absl::StatusOr<RepairReport> RepairCheckpoint(const std::string& path, const RepairOptions& options) {
  if (StagedNameOf(SplitPath(path).name)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is a save that was never committed; it is not a checkpoint to repair"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool, ThreadPool::Create(options.io_threads, "checkpoint-repair"));
  return Repair(*options.file_system, path, options, *pool).Run();
}

}  // namespace fsdp

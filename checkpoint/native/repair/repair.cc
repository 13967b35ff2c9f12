// SPDX-License-Identifier: Apache-2.0
//
// Repair works down from the files that describe others to the described files:
//
//   1. The manifest identifies the damaged files. If it is missing or belongs to another save, the rank files' own
//      records do; these must be of one save.
//   2. Lost and damaged rank and parity files are rebuilt from the others, if these suffice, and compared with the
//      digests of the manifest, or of their own records. Without a manifest, damage in a parity file cannot be
//      detected: see rank_rebuild.cc.
//   3. checkpoint.h5, and the manifest if it was lost, are rebuilt from the records, as the save made them.
//   4. A file that is not part of the checkpoint is a problem that repair cannot fix.
//   5. All rebuilt files, synced, are in .repair-<nonce> inside the checkpoint (rebuilt_files.h). A rename gives each
//      its name, the manifest last.
//
// The repair is all or nothing: one file that cannot be repaired leaves the checkpoint unchanged, because a manifest
// must be right for all of its files. So does one that this machine cannot read (IsUnread), since it may be whole; a
// file that the medium cannot read (EIO) is damaged.
#include "fsdp/checkpoint/native/repair/repair.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdp/base/annotate.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/parity/find_record.h"
#include "fsdp/checkpoint/native/parity/parity_files.h"
#include "fsdp/checkpoint/native/repair/rank_rebuild.h"
#include "fsdp/checkpoint/native/repair/rebuilt_files.h"
#include "fsdp/checkpoint/native/repair/records_left.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/unread.h"

namespace fsdp {
namespace {

std::string Message(const absl::Status& status) { return std::string(status.message()); }

class Repair {
 public:
  Repair(FileSystem& files, std::string path, const RepairOptions& options, ThreadPool& pool)
      : files_(files), path_(std::move(path)), options_(options), pool_(pool), rebuilt_(files, path_) {}

  absl::StatusOr<RepairReport> Run() {
    FSDP_ASSIGN_OR_RETURN(names_, files_.List(path_));
    absl::StatusOr<Manifest> manifest = ReadManifest(files_, path_);
    if (manifest.ok()) {
      const absl::Status placed = CheckSaveOf(files_, path_, *manifest);
      if (!placed.ok()) manifest = placed;
    }
    const bool is_lost = absl::IsNotFound(manifest.status()) || absl::IsDataLoss(manifest.status());
    if (!manifest.ok() && !is_lost) return manifest.status();
    if (is_lost && std::none_of(names_.begin(), names_.end(), IsRankFileName)) return WithStep(manifest.status());
    if (!options_.dry_run) RemoveLeftovers();
    const absl::Status made = manifest.ok() ? ByManifest(*std::move(manifest)) : ByRecords(Message(manifest.status()));
    if (IsUnread(made)) return Annotate(made, absl::StrCat(path_, " is as it was"));
    FSDP_RETURN_IF_ERROR(made);
    if (!report_.is_whole()) {
      report_.repaired.clear();
      return report_;
    }
    if (options_.dry_run) return report_;
    ReportDisplaced();
    FSDP_RETURN_IF_ERROR(rebuilt_.Install());
    return report_;
  }

 private:
  // `status`, and a suggestion of the newest step below path_ if it is a ROOT of checkpoints.
  absl::Status WithStep(const absl::Status& status) const {
    const auto step =
        std::find_if(names_.rbegin(), names_.rend(), [](const auto& name) { return ParseStepName(name); });
    if (step == names_.rend()) return status;
    return absl::Status(status.code(),
                        absl::StrCat(Message(status), "; repair one step, such as ", JoinPath(path_, *step)));
  }

  // Reports the directories that RebuiltFiles::Install is going to rename.
  void ReportDisplaced() {
    for (const std::string& name : names_) {
      if (rebuilt_.DirectoryOf(name) != rebuilt_.path() || !files_.List(JoinPath(path_, name)).ok()) continue;
      report_.repaired.push_back(
          absl::StrCat("the directory ", name, " was in the way; it is now ", rebuilt_.DisplacedName(name)));
    }
  }

  // Removes the leftovers of repairs that crashed.
  void RemoveLeftovers() {
    for (const std::string& name : names_) {
      if (IsRebuiltDirectoryName(name)) (void)RemoveTree(files_, JoinPath(path_, name));
    }
  }

  // Step 1 with a manifest.
  absl::Status ByManifest(Manifest manifest) {
    FSDP_RETURN_IF_ERROR(CheckUnknownFiles(manifest, "the manifest names"));
    for (const StoredTensor& tensor : manifest.tensors) {
      if (const absl::Status covered = CheckCovered(tensor); !covered.ok()) {
        report_.problems.push_back(Message(covered));
      }
    }
    std::map<std::string, absl::Status> damaged;
    for (const StoredFile& stored : manifest.files) {
      const absl::Status status = CheckStoredFile(files_, path_, stored, pool_);
      if (IsUnread(status)) return status;
      if (!status.ok()) damaged[stored.name] = status;
    }
    const auto index = damaged.find(kCheckpointFileName);
    const absl::Status index_status = index == damaged.end() ? absl::OkStatus() : index->second;
    if (index != damaged.end()) damaged.erase(index);
    FSDP_RETURN_IF_ERROR(MakeFromParity(PlanOf(manifest), damaged, [&](const std::string& name) {
      const auto stored = std::find_if(manifest.files.begin(), manifest.files.end(),
                                       [&](const StoredFile& file) { return file.name == name; });
      return CheckStoredFile(files_, rebuilt_.path(), *stored, pool_);
    }));
    if (index_status.ok()) return absl::OkStatus();
    if (manifest.save.type == StateDictType::kFull) {
      report_.problems.push_back(
          absl::StrCat(Message(index_status), "; a full checkpoint keeps its bytes there and nowhere else"));
      return absl::OkStatus();
    }
    return report_.is_whole() ? MakeIndex(manifest, index_status) : absl::OkStatus();
  }

  // Reports files that are not part of the checkpoint: they are not ours to remove, and the checkpoint does not verify
  // with them. `manifest` may not be written yet; `says` names the origin of its names in the message.
  absl::Status CheckUnknownFiles(const Manifest& manifest, const char* says) {
    FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, FindUnknownFiles(files_, path_, manifest));
    for (const std::string& name : names) {
      report_.problems.push_back(
          absl::StrCat(Printable(name), ": ", says, " no such file; move it out of the checkpoint"));
    }
    return absl::OkStatus();
  }

  static ParityPlan PlanOf(const Manifest& manifest) {
    ParityPlan plan;
    for (const int file : manifest.parity.data) {
      plan.data.push_back({manifest.files[file].name, manifest.files[file].nbytes});
    }
    for (const int file : manifest.parity.files) plan.parity.push_back(manifest.files[file].name);
    return plan;
  }

  // Step 2. `check` compares a rebuilt file with its digests.
  absl::Status MakeFromParity(const ParityPlan& plan, const std::map<std::string, absl::Status>& damaged,
                              const std::function<absl::Status(const std::string&)>& check) {
    if (damaged.empty()) return absl::OkStatus();
    std::vector<int> lost;
    std::vector<std::string> names;
    std::string used;  // the first undamaged parity files, one for each damaged rank file
    for (size_t i = 0, wanted = 0; i < plan.data.size() + plan.parity.size(); ++i) {
      const bool is_data = i < plan.data.size();
      const std::string& name = is_data ? plan.data[i].name : plan.parity[i - plan.data.size()];
      if (damaged.count(name) != 0) {
        if (is_data) ++wanted;
        lost.push_back(static_cast<int>(i));
        names.push_back(name);
      } else if (!is_data && wanted > 0) {
        --wanted;
        absl::StrAppend(&used, used.empty() ? "" : ", ", name);
      }
    }
    if (lost.size() < damaged.size() || lost.size() > plan.parity.size()) {
      const std::string why = WhyNotByParity(damaged.size(), plan.parity.size());
      for (const auto& [name, status] : damaged) report_.problems.push_back(absl::StrCat(Message(status), "; ", why));
      return absl::OkStatus();
    }
    for (size_t i = 0; i < names.size(); ++i) {
      const bool is_data = lost[i] < static_cast<int>(plan.data.size());
      report_.repaired.push_back(
          absl::StrCat(Message(damaged.at(names[i])), "; made from parity", is_data ? ", with " + used : ""));
    }
    if (options_.dry_run || !report_.is_whole()) return absl::OkStatus();
    std::vector<std::string> out;
    for (const std::string& name : names) {
      FSDP_ASSIGN_OR_RETURN(out.emplace_back(), rebuilt_.Add(name));
    }
    FSDP_RETURN_IF_ERROR(RebuildFromParity(files_, path_, plan, {lost, {}}, out, pool_));
    for (const std::string& name : names) {
      const absl::Status right = check(name);
      if (IsUnread(right)) return right;
      if (!right.ok()) {
        report_.problems.push_back(
            absl::StrCat(name, ": the file rebuilt from parity does not match its digests: ", Message(right)));
      }
    }
    return absl::OkStatus();
  }

  // Step 3 with a manifest.
  absl::Status MakeIndex(const Manifest& manifest, const absl::Status& damage) {
    ReportIndex(damage);
    if (options_.dry_run) return absl::OkStatus();
    std::vector<FileRecord> records;
    for (const StoredFile& stored : manifest.files) {
      if (!stored.record || stored.origin) continue;
      FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            files_.Open(JoinPath(rebuilt_.DirectoryOf(stored.name), stored.name)));
      FSDP_ASSIGN_OR_RETURN(FileRecord record, FindRecord(*file));
      records.push_back(std::move(record));
    }
    FSDP_ASSIGN_OR_RETURN(Manifest made, rebuilt_.WriteIndex(records, pool_));
    const auto is_index = [](const StoredFile& file) { return file.name == kCheckpointFileName; };
    const auto was = std::find_if(manifest.files.begin(), manifest.files.end(), is_index);
    const auto now = std::find_if(made.files.begin(), made.files.end(), is_index);
    if (was != manifest.files.end() && was->extents == now->extents && was->rest_digest == now->rest_digest) {
      return absl::OkStatus();
    }
    // This release, or this HDF5, lays the file out differently from the save, so the manifest must change too.
    Manifest changed = manifest;
    changed.files[was - manifest.files.begin()] = *now;
    changed.texts = made.texts;
    for (StoredText& text : changed.texts) text.file = static_cast<int>(was - manifest.files.begin());
    return rebuilt_.WriteManifest(changed);
  }

  // Steps 1 to 3 without a manifest. A dry run executes them too, since only that shows whether they succeed.
  absl::Status ByRecords(const std::string& why) {
    if (options_.dry_run) {
      FSDP_ASSIGN_OR_RETURN(lock_, DirectoryLock::Take(path_));
      RemoveLeftovers();  // a killed dry run leaves some too
    }
    FSDP_ASSIGN_OR_RETURN(RecordsLeft left, FindRecordsLeft(files_, path_, pool_));
    if (left.writers == 0) {
      report_.problems.push_back(absl::StrCat(why, "; no rank file has an undamaged record"));
      return absl::OkStatus();
    }
    report_.repaired.push_back(absl::StrCat(why, "; made from the records of the rank files"));
    FSDP_RETURN_IF_ERROR(MakeRankFiles(left));
    for (const auto& [name, status] : left.damaged) {
      if (IsRankFileName(name)) continue;
      report_.repaired.push_back(absl::StrCat(Message(status), "; made from the rank files"));
    }
    return report_.is_whole() ? MakeManifest(left) : absl::OkStatus();
  }

  // Step 2 by records.
  absl::Status MakeRankFiles(RecordsLeft& left) {
    std::vector<std::string> lost;
    for (const auto& [name, status] : left.damaged) {
      if (IsRankFileName(name)) lost.push_back(name);
    }
    if (lost.empty()) return absl::OkStatus();
    const auto problem = [&](const std::string& why) {
      for (const std::string& name : lost) {
        report_.problems.push_back(absl::StrCat(Message(left.damaged.at(name)), "; ", why));
      }
      for (const auto& [name, status] : left.damaged) {
        if (!IsRankFileName(name)) report_.problems.push_back(Message(status));
      }
      return absl::OkStatus();
    };
    if (left.damaged.size() > left.parity.size())
      return problem(WhyNotByParity(left.damaged.size(), left.parity.size()));
    const absl::StatusOr<std::vector<std::string>> used = RebuildRankFiles(files_, path_, left, rebuilt_, pool_);
    if (absl::IsDataLoss(used.status())) return problem(Message(used.status()));
    FSDP_RETURN_IF_ERROR(used.status());
    const std::string from = absl::StrCat("parity, with ", absl::StrJoin(*used, ", "));
    for (const std::string& name : lost) {
      report_.repaired.push_back(absl::StrCat(Message(left.damaged.at(name)), "; made from ", from));
    }
    return absl::OkStatus();
  }

  // Step 3 by records. Parity files are verified here against parity that is recomputed from the rank files, since
  // their recorded digests were in the lost manifest.
  absl::Status MakeManifest(const RecordsLeft& left) {
    std::vector<FileRecord> in_order;
    for (int writer = 0; writer < left.writers; ++writer) {
      in_order.push_back(left.records.at(RankFileName(writer, left.writers)));
    }
    FSDP_ASSIGN_OR_RETURN(Manifest manifest, rebuilt_.WriteIndex(in_order, pool_));
    const absl::Status index = CheckStoredFile(files_, path_, IndexOf(manifest), pool_);
    if (IsUnread(index)) return index;
    ReportIndex(index);
    if (!left.parity.empty()) {
      FSDP_RETURN_IF_ERROR(rebuilt_.WriteParity(static_cast<int>(left.parity.size()), manifest, pool_));
      for (const int index : manifest.parity.files) FSDP_RETURN_IF_ERROR(CompareParity(manifest.files[index], left));
    }
    FSDP_RETURN_IF_ERROR(CheckUnknownFiles(manifest, "the records of the rank files name"));
    return rebuilt_.WriteManifest(manifest);
  }

  // Reports that checkpoint.h5 was rebuilt, unless `damage`, the state of the old one, is OK: without a manifest the
  // file is rebuilt in any case.
  void ReportIndex(const absl::Status& damage) {
    if (damage.ok()) return;
    report_.repaired.push_back(absl::StrCat(Message(damage), "; made from the records of the rank files"));
  }

  static const StoredFile& IndexOf(const Manifest& manifest) {
    return *std::find_if(manifest.files.begin(), manifest.files.end(),
                         [](const StoredFile& file) { return file.name == kCheckpointFileName; });
  }

  // Keeps the old parity file if it equals `stored`, the one computed from the rank files.
  absl::Status CompareParity(const StoredFile& stored, const RecordsLeft& left) {
    if (left.damaged.count(stored.name) != 0) return absl::OkStatus();
    const absl::Status status = CheckStoredFile(files_, path_, stored, pool_);
    if (IsUnread(status)) return status;
    if (status.ok()) return rebuilt_.Drop(stored.name);
    report_.repaired.push_back(absl::StrCat(Message(status), "; made from the rank files"));
    return absl::OkStatus();
  }

  static std::string WhyNotByParity(size_t damaged, size_t parity) {
    if (parity == 0) return "there is no parity to make it from";
    return absl::StrCat(damaged, " files are lost or damaged, and the ", parity, " parity files make up for ", parity);
  }

  FileSystem& files_;
  const std::string path_;
  const RepairOptions& options_;
  ThreadPool& pool_;
  DirectoryLock lock_;  // only for a dry run that makes files; for other repairs RepairCheckpoint holds it
  RebuiltFiles rebuilt_;
  std::vector<std::string> names_;  // in path_
  RepairReport report_;
};

}  // namespace

absl::StatusOr<RepairReport> RepairCheckpoint(const std::string& path, const RepairOptions& options) {
  if (StagedNameOf(SplitPath(path).name)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is a save that was never committed; it is not a checkpoint to repair"));
  }
  DirectoryLock lock;
  if (!options.dry_run) {
    FSDP_ASSIGN_OR_RETURN(lock, DirectoryLock::Take(path));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<ThreadPool> pool,
                        ThreadPool::Create(options.io_threads, "checkpoint-repair"));
  return Repair(*options.file_system, path, options, *pool).Run();
}

}  // namespace fsdp

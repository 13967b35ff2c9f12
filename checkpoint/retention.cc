// SPDX-License-Identifier: Apache-2.0
//
// Deletion must never cost the last good checkpoint, so the plan protects before it deletes:
//
//   1. keep_last and keep_every choose the steps that stay.
//   2. KeepNewestGood looks for a good step, the newest first, among those that stay; if none of them is good, among
//      those that would go, and keeps the first it finds.
//   3. If no step is good at all, every step stays: a damaged one may still be repaired.
//
// The search ends at the first good step, so verification usually reads one step only.
#include "fsdp/checkpoint/retention.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/format/file_names.h"
#include "fsdp/checkpoint/format/manifest_file.h"
#include "fsdp/checkpoint/save/staged_checkpoint.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/verify/latest.h"
#include "fsdp/checkpoint/verify/verify.h"

namespace fsdp {
namespace {

namespace fs = std::filesystem;
using Step = RetentionPlan::Step;
using Leftover = RetentionPlan::Leftover;

// Bytes of the files in `directory` that have no other name. A file that disappears while this runs is not counted.
int64_t BytesIn(const std::string& directory) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (!it->is_regular_file(ignored) || it->is_symlink(ignored) || it->hard_link_count(ignored) != 1) continue;
    const uintmax_t size = it->file_size(ignored);
    if (!ignored) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

absl::Duration AgeOf(const std::string& path) {
  std::error_code error;
  const auto changed = fs::last_write_time(path, error);
  if (error) return absl::ZeroDuration();
  return std::max(absl::ZeroDuration(), absl::FromChrono(fs::file_time_type::clock::now() - changed));
}

// True when a running save holds the lock of the staging directory `path`.
bool IsInUse(const std::string& path) {
  const std::string lock_path = JoinPath(path, kManifestName);
  // OpenLocked would create the file.
  if (!PosixFileSystem().Exists(lock_path)) return false;
  const absl::StatusOr<std::unique_ptr<File>> lock = PosixFileSystem().OpenLocked(lock_path);
  return !lock.ok() || !(*lock)->locked();
}

absl::StatusOr<std::vector<Leftover>> ListLeftovers(const std::string& root) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(root));
  std::vector<Leftover> leftovers;
  for (const std::string& name : names) {
    const auto deleted = DeletedNameOf(name);
    const auto staged = StagedNameOf(name);
    if (!ParseStepName(deleted.value_or(staged.value_or("")))) continue;
    const std::string path = JoinPath(root, name);
    leftovers.push_back({name, BytesIn(path), AgeOf(path), !deleted && IsInUse(path)});
  }
  return leftovers;
}

// OK when the step is good in the sense of `policy`.
absl::Status CheckGood(const std::string& root, const std::string& name, const RetentionPolicy& policy) {
  if (policy.good == RetentionPolicy::Good::kVerified) {
    VerifyOptions options;
    options.progress = policy.progress;
    return CheckStep(root, name, options);
  }
  const std::string path = JoinPath(root, name);
  const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  return manifest.ok() ? CheckFilesPresent(PosixFileSystem(), path, *manifest) : manifest.status();
}

// Keeps the newest good step, if possible one that stays anyway. False when no step is good.
bool KeepNewestGood(const std::string& root, const RetentionPolicy& policy, std::vector<Step>& steps) {
  for (const bool among_kept : {true, false}) {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (step->keep != among_kept) continue;
      const absl::Status good = CheckGood(root, step->name, policy);
      step->problem = std::string(good.message());
      if (!good.ok()) continue;
      if (!among_kept) {
        step->keep = true;
        step->reason = policy.good == RetentionPolicy::Good::kVerified ? "the newest that verifies"
                                                                       : "the newest that is complete";
      }
      return true;
    }
  }
  return false;
}

// The caller holds the lock of `root`. A step in use stays, and its error is returned after the others are deleted.
absl::Status DeleteSteps(FileSystem& files, const std::string& root, const RetentionPlan& plan) {
  absl::Status in_use;
  for (const Step& step : plan.steps) {
    if (step.keep) continue;
    const absl::Status deleted = DeleteCheckpointDirectory(files, root, step.name);
    if (!absl::IsUnavailable(deleted)) FSDP_RETURN_IF_ERROR(deleted);
    in_use.Update(deleted);
  }
  return in_use;
}

// Asks for the lock of a staging directory once more: a save may have begun to use it since the plan was made.
absl::Status DeleteLeftover(FileSystem& files, const std::string& root, const Leftover& leftover) {
  const std::string path = JoinPath(root, leftover.name);
  if (DeletedNameOf(leftover.name)) return RemoveTree(files, path);
  const absl::StatusOr<std::unique_ptr<File>> lock = files.OpenLocked(JoinPath(path, kManifestName));
  if (absl::IsNotFound(lock.status()) || absl::IsUnavailable(lock.status())) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(lock.status());
  return (*lock)->locked() ? RemoveTree(files, path) : absl::OkStatus();
}

}  // namespace

absl::StatusOr<RetentionPlan> PlanRetention(const std::string& root, const RetentionPolicy& policy) {
  if (policy.keep_last < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("keep_last is ", policy.keep_last, "; at least one checkpoint stays"));
  }
  if (policy.keep_every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("keep_every is ", policy.keep_every, ", expected 0 or more"));
  }
  RetentionPlan plan;
  FSDP_ASSIGN_OR_RETURN(std::vector<std::string> names, ListCheckpoints(root));
  // A file with the name of a step is no step, and not ours to delete.
  std::erase_if(names, [&](const std::string& name) {
    std::error_code ignored;
    return !fs::is_directory(JoinPath(root, name), ignored);
  });
  for (size_t i = 0; i < names.size(); ++i) {
    Step& step = plan.steps.emplace_back();
    step.name = names[i];
    step.bytes = BytesIn(JoinPath(root, step.name));
    const bool is_last = names.size() - i <= static_cast<size_t>(policy.keep_last);
    const bool is_kept_for_good =
        policy.keep_every > 0 && ParseStepName(step.name).value_or(1) % policy.keep_every == 0;
    step.keep = is_last || is_kept_for_good;
    step.reason = is_last ? "keep_last" : is_kept_for_good ? "keep_every" : "";
  }
  plan.has_good = KeepNewestGood(root, policy, plan.steps);
  if (!plan.has_good) {
    for (Step& step : plan.steps) {
      if (!std::exchange(step.keep, true)) step.reason = "no step is good";
    }
  }
  if (PosixFileSystem().Exists(root)) {
    FSDP_ASSIGN_OR_RETURN(plan.leftovers, ListLeftovers(root));
  }
  return plan;
}

absl::Status ApplyRetention(FileSystem& files, const std::string& root, const RetentionPlan& plan) {
  if (plan.steps.empty() && plan.leftovers.empty()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(root));
  const absl::Status deleted = DeleteSteps(files, root, plan);
  if (!deleted.ok() && !absl::IsUnavailable(deleted)) return deleted;
  for (const Leftover& leftover : plan.leftovers) {
    if (leftover.in_use) continue;
    FSDP_RETURN_IF_ERROR(DeleteLeftover(files, root, leftover));
  }
  return deleted;
}

absl::Status PruneCheckpoints(const std::string& root, int keep_last, int64_t keep_every) {
  RetentionPolicy policy;
  policy.keep_last = keep_last;
  policy.keep_every = keep_every;
  policy.good = RetentionPolicy::Good::kComplete;
  FSDP_ASSIGN_OR_RETURN(const RetentionPlan plan, PlanRetention(root, policy));
  if (plan.steps.empty()) return absl::OkStatus();
  const absl::StatusOr<DirectoryLock> lock = DirectoryLock::Take(root);
  const absl::Status deleted = lock.ok() ? DeleteSteps(PosixFileSystem(), root, plan) : lock.status();
  return absl::IsUnavailable(deleted) ? absl::OkStatus() : deleted;
}

}  // namespace fsdp

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
#include "fsdp/checkpoint/native/retention.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/named_step.h"
#include "fsdp/checkpoint/native/save/checkpoint_proof.h"
#include "fsdp/checkpoint/native/save/leftovers.h"
#include "fsdp/checkpoint/native/save/staged_checkpoint.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/native/verify/verify.h"
#include "fsdp/checkpoint/storage/directory_lock.h"
#include "fsdp/checkpoint/storage/file_age.h"
#include "fsdp/checkpoint/storage/file_identity.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

using Step = RetentionPlan::Step;

// True if a running save holds the lock of the staging directory `path`.
bool IsInUse(const std::string& path) {
  const std::string lock_path = JoinPath(path, kManifestName);
  // OpenLocked would create the file.
  if (!PosixFileSystem().Exists(lock_path)) return false;
  const absl::StatusOr<std::unique_ptr<File>> lock = PosixFileSystem().OpenLocked(lock_path);
  return !lock.ok() || !(*lock)->locked();
}

// CheckIsOurCheckpoint rejects files and links: only a directory can be a step.
absl::Status AddSteps(const std::string& root, RetentionPlan& plan) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<RootStep> steps, ListSteps(root));
  for (const auto& [step, name] : steps) {
    const absl::Status proof = CheckIsOurCheckpoint(PosixFileSystem(), JoinPath(root, name));
    if (proof.ok()) {
      plan.steps.push_back({.name = name, .step = step, .bytes = FreedBytes({JoinPath(root, name)})});
    } else {
      plan.unproven.push_back({name, std::string(proof.message())});
    }
  }
  return absl::OkStatus();
}

// Adds the leftovers of steps only. Leftovers of checkpoints with other names belong to the programs that made them.
absl::Status AddLeftovers(const std::string& root, RetentionPlan& plan) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<Leftover> leftovers, FindLeftovers(PosixFileSystem(), root));
  for (const Leftover& found : leftovers) {
    if (!ParseStepName(found.checkpoint)) continue;
    if (!found.proof.ok()) {
      plan.unproven.push_back({found.name, std::string(found.proof.message())});
      continue;
    }
    const std::string path = JoinPath(root, found.name);
    plan.leftovers.push_back({found.name, FreedBytes({path}), AgeOf(path), !found.is_deletion && IsInUse(path)});
  }
  return absl::OkStatus();
}

// Adds names that resemble a step or a leftover, since their owner may wonder why they stay.
absl::Status AddLookalikes(const std::string& root, RetentionPlan& plan) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(root));
  for (const std::string& name : names) {
    const bool is_hidden = absl::StrContains(name, ".tmp-") || absl::StrContains(name, ".deleted-");
    const absl::StatusOr<std::optional<int64_t>> read = ReadNamedStep(PosixFileSystem(), root, name);
    if (!read.ok() && !absl::IsPermissionDenied(read.status())) return read.status();
    const std::optional<int64_t> named = read.value_or(std::nullopt);
    if (absl::StartsWith(name, "step-") && !ParseStepName(name) && !IsSetAsideName(name) && !named) {
      plan.unproven.push_back({name, "its name is not the name of a step, step- and at least 8 digits"});
    } else if (absl::StartsWith(name, ".step-") && is_hidden && !StagedNameOf(name) && !DeletedNameOf(name)) {
      plan.unproven.push_back({name, "its name does not end in a nonce, 16 lower-case hexadecimal digits"});
    }
  }
  return absl::OkStatus();
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

// A step that would be deleted but holds a file that no save wrote stays and is reported.
void KeepWhatHoldsOthersFiles(const std::string& root, RetentionPlan& plan) {
  for (Step& step : plan.steps) {
    if (step.keep) continue;
    const absl::Status deletable = ProveDeletable(PosixFileSystem(), JoinPath(root, step.name));
    if (deletable.ok()) continue;
    step.keep = true;
    step.reason = std::string(deletable.message());
    plan.unproven.push_back({step.name, step.reason});
  }
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

// The bytes that ApplyRetention frees.
int64_t FreedBy(const std::string& root, const RetentionPlan& plan) {
  // Counted together, since files that several of these steps share are freed only when all of their links are gone.
  std::vector<std::string> paths;
  for (const Step& step : plan.steps) {
    if (!step.keep) paths.push_back(JoinPath(root, step.name));
  }
  for (const RetentionPlan::Leftover& leftover : plan.leftovers) {
    if (!leftover.in_use) paths.push_back(JoinPath(root, leftover.name));
  }
  return FreedBytes(paths);
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
  FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(root));
  if (!is_there) return plan;
  FSDP_RETURN_IF_ERROR(AddSteps(root, plan));
  FSDP_RETURN_IF_ERROR(AddLeftovers(root, plan));
  FSDP_RETURN_IF_ERROR(AddLookalikes(root, plan));
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    Step& step = plan.steps[i];
    const bool is_last = plan.steps.size() - i <= static_cast<size_t>(policy.keep_last);
    const bool is_kept_for_good = policy.keep_every > 0 && step.step % policy.keep_every == 0;
    const bool is_named = policy.keep.count(step.name) != 0;
    step.keep = is_last || is_kept_for_good || is_named;
    step.reason = is_last ? "keep_last" : is_kept_for_good ? "keep_every" : is_named ? "keep" : "";
  }
  plan.has_good = KeepNewestGood(root, policy, plan.steps);
  if (!plan.has_good) {
    for (Step& step : plan.steps) {
      if (!std::exchange(step.keep, true)) step.reason = "no step is good";
    }
  }
  KeepWhatHoldsOthersFiles(root, plan);
  std::sort(plan.unproven.begin(), plan.unproven.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  plan.freed_bytes = FreedBy(root, plan);
  return plan;
}

absl::Status ApplyRetention(FileSystem& files, const std::string& root, const RetentionPlan& plan) {
  if (plan.steps.empty() && plan.leftovers.empty()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(const DirectoryLock lock, DirectoryLock::Take(root));
  const absl::Status deleted = DeleteSteps(files, root, plan);
  if (!deleted.ok() && !absl::IsUnavailable(deleted)) return deleted;
  for (const RetentionPlan::Leftover& leftover : plan.leftovers) {
    // A save may have begun to use it since the plan was made, so RemoveLeftover tries its lock again.
    if (!leftover.in_use) FSDP_RETURN_IF_ERROR(RemoveLeftover(files, root, leftover.name).status());
  }
  return deleted;
}

absl::Status PruneCheckpoints(const std::string& root, int keep_last, int64_t keep_every,
                              std::vector<std::string>* left) {
  RetentionPolicy policy;
  policy.keep_last = keep_last;
  policy.keep_every = keep_every;
  policy.good = RetentionPolicy::Good::kComplete;
  FSDP_ASSIGN_OR_RETURN(const RetentionPlan plan, PlanRetention(root, policy));
  for (const RetentionPlan::Unproven& entry : plan.unproven) {
    if (left != nullptr)
      left->push_back(absl::StrCat(JoinPath(root, Printable(entry.name)), " is left in place: ", entry.reason));
  }
  for (const Step& step : plan.steps) {
    if (left != nullptr && !step.problem.empty()) {
      left->push_back(absl::StrCat(JoinPath(root, step.name),
                                   " is not complete, and older steps stay if no other is: ", step.problem));
    }
  }
  if (plan.steps.empty()) return absl::OkStatus();
  const absl::StatusOr<DirectoryLock> lock = DirectoryLock::Take(root);
  const absl::Status deleted = lock.ok() ? DeleteSteps(PosixFileSystem(), root, plan) : lock.status();
  return absl::IsUnavailable(deleted) ? absl::OkStatus() : deleted;
}

}  // namespace fsdp

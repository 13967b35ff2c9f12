// SPDX-License-Identifier: Apache-2.0
//
// Functions on a directory of checkpoints, and the repair of one.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/c_api/c_status.h"
#include "fsdp/checkpoint/c_api/fsdp_checkpoint.h"
#include "fsdp/checkpoint/native/repair/repair.h"
#include "fsdp/checkpoint/native/retention.h"
#include "fsdp/checkpoint/native/verify/latest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"

namespace fsdp {
namespace {

// "STEP NAME", a line each. No name of a step has a line break (CheckCheckpointName).
absl::StatusOr<std::string> Steps(const char* root) {
  FSDP_RETURN_IF_ERROR(CheckPointer(root, "root"));
  FSDP_ASSIGN_OR_RETURN(const std::vector<RootStep> steps, ListSteps(root));
  return absl::StrJoin(steps, "\n",
                       [](std::string* out, const RootStep& step) { absl::StrAppend(out, step.step, " ", step.name); });
}

absl::StatusOr<std::string> Prune(const char* root, const fsdp_prune_options* given) {
  FSDP_RETURN_IF_ERROR(CheckPointer(root, "root"));
  fsdp_prune_options options = {};
  FSDP_RETURN_IF_ERROR(CopyOptions(given, "options", options));
  RetentionPolicy policy;
  if (options.keep_last != 0) policy.keep_last = options.keep_last;
  policy.keep_every = options.keep_every;
  if (options.no_verify != 0) policy.good = RetentionPolicy::Good::kComplete;
  if (options.keep != nullptr) policy.keep = absl::StrSplit(options.keep, '\n', absl::SkipEmpty());
  FSDP_ASSIGN_OR_RETURN(const RetentionPlan plan, PlanRetention(root, policy));
  if (!plan.steps.empty() && !plan.has_good) {
    return absl::DataLossError(absl::StrCat(root, ": no step is good, so none is deleted"));
  }
  if (options.dry_run == 0) FSDP_RETURN_IF_ERROR(ApplyRetention(PosixFileSystem(), root, plan));
  std::vector<std::string> deleted;
  for (const RetentionPlan::Step& step : plan.steps) {
    if (!step.keep) deleted.push_back(step.name);
  }
  return absl::StrJoin(deleted, "\n");
}

absl::StatusOr<RepairReport> Repair(const char* path, int32_t dry_run) {
  FSDP_RETURN_IF_ERROR(CheckPointer(path, "path"));
  RepairOptions options;
  options.dry_run = dry_run != 0;
  return RepairCheckpoint(path, options);
}

}  // namespace
}  // namespace fsdp

int32_t fsdp_steps(const char* root, char** steps) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::string found, fsdp::Steps(root));
    return fsdp::GiveString(found, steps);
  });
}

int32_t fsdp_latest(const char* root, char** path) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_RETURN_IF_ERROR(fsdp::CheckPointer(root, "root"));
    FSDP_ASSIGN_OR_RETURN(const std::string newest, fsdp::LatestCheckpoint(root));
    return fsdp::GiveString(newest, path);
  });
}

int32_t fsdp_prune(const char* root, const fsdp_prune_options* options, char** deleted) {
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const std::string names, fsdp::Prune(root, options));
    return fsdp::GiveString(names, deleted);
  });
}

int32_t fsdp_repair(const char* path, int32_t dry_run, char** report) {
  // Set before anything can fail, so that the caller may always call fsdp_free.
  if (report != nullptr) *report = nullptr;
  return fsdp::Guard([&]() -> absl::Status {
    FSDP_ASSIGN_OR_RETURN(const fsdp::RepairReport made, fsdp::Repair(path, dry_run));
    std::vector<std::string> lines = made.is_whole() ? made.repaired : made.problems;
    FSDP_RETURN_IF_ERROR(fsdp::GiveString(absl::StrJoin(lines, "\n"), report));
    return made.is_whole() ? absl::OkStatus() : absl::DataLossError(made.problems.front());
  });
}

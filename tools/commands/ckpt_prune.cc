// SPDX-License-Identifier: Apache-2.0
//
// ckpt prune: plans first (checkpoint/native/retention.h), which verifies steps until it finds a good one, then applies
// the plan; --dry_run prints the same plan without applying it. Steps that a run has set aside, and files not proven to
// be a checkpoint of this project, are listed and never deleted: the user decides about them.
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/base/terminal.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/retention.h"
#include "fsdp/checkpoint/native/set_aside.h"
#include "fsdp/checkpoint/storage/file_age.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/tools/cli/ckpt_flags.h"
#include "fsdp/tools/cli/ckpt_report.h"
#include "fsdp/tools/cli/progress.h"
#include "fsdp/tools/commands/commands.h"
#include "nlohmann/json.hpp"

namespace fsdp {
namespace {

using Json = nlohmann::ordered_json;

// The steps to delete and to keep, and the steps that runs have set aside.
struct Pruning {
  RetentionPlan plan;
  std::vector<SetAsideStep> set_aside;
};

// A ROOT without a step that verifies is an error that a scheduled prune must not hide, although nothing was deleted.
absl::Status CheckHasGoodStep(const std::string& root, const RetentionPlan& plan) {
  if (plan.has_good || plan.steps.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("no step of ", root, " verifies"));
}

// A step has "reason" only if it is kept and "problem" only if it does not verify.
std::string ToJson(const std::string& root, const Pruning& pruning, bool dry_run) {
  const RetentionPlan& plan = pruning.plan;
  Json json = {{"path", root}, {"dry_run", dry_run}, {"has_good_step", plan.has_good}};
  if (const absl::Status status = CheckHasGoodStep(root, plan); !status.ok()) {
    json["problem"] = status.message();
    json["problems"] = Json::array({status.message()});
  }
  json["freed_bytes"] = plan.freed_bytes;
  json["steps"] = Json::array();
  for (const auto& step : plan.steps) {
    Json item = {{"name", step.name}, {"bytes", step.bytes}, {"kept", step.keep}};
    if (step.keep) item["reason"] = step.reason;
    if (!step.problem.empty()) item["problem"] = step.problem;
    json["steps"].push_back(item);
  }
  json["leftovers"] = Json::array();
  for (const auto& leftover : plan.leftovers) {
    json["leftovers"].push_back({{"name", leftover.name},
                                 {"bytes", leftover.bytes},
                                 {"age_seconds", absl::ToInt64Seconds(leftover.age)},
                                 {"in_use", leftover.in_use}});
  }
  json["left"] = Json::array();
  for (const auto& left : plan.unproven) json["left"].push_back({{"name", left.name}, {"reason", left.reason}});
  json["set_aside"] = Json::array();
  for (const SetAsideStep& step : pruning.set_aside) {
    json["set_aside"].push_back({{"name", step.name}, {"bytes", step.nbytes}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void PrintText(const Pruning& pruning, bool dry_run) {
  const RetentionPlan& plan = pruning.plan;
  const char* deleted = dry_run ? "would delete" : "deleted";
  const auto size = [](int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); };
  for (const auto& step : plan.steps) {
    const std::string why = step.keep ? absl::StrCat("  ", step.reason) : "";
    Print("%-12s  %s  %s%s\n", step.keep ? "kept" : deleted, step.name, size(step.bytes), why);
    if (!step.problem.empty()) Print("%-12s  does not verify: %s\n", "", step.problem);
  }
  for (const auto& leftover : plan.leftovers) {
    Print("%-12s  %s  %s  %s\n", leftover.in_use ? "kept" : deleted, leftover.name, size(leftover.bytes),
          leftover.in_use ? "a save in progress" : absl::StrCat("left by a crash ", AgeText(leftover.age)));
  }
  // Names from others may contain bytes that a terminal interprets.
  for (const auto& left : plan.unproven) {
    Print("%-12s  %s  %s\n", "left", Printable(left.name), left.reason);
  }
  for (const SetAsideStep& step : pruning.set_aside) {
    Print("%-12s  %s  %s  set aside, since it did not verify; repair it or delete it\n", "kept", step.name,
          size(step.nbytes));
  }
  if (!plan.steps.empty() && !plan.has_good) Print("no step verifies, so none is deleted\n");
  Print("%s %s\n", dry_run ? "would free" : "freed", size(plan.freed_bytes));
}

// All refusals come before the first deletion: DIR must be a ROOT, readable, and not empty.
absl::StatusOr<Pruning> Prune(const std::string& root, const RetentionPolicy& policy, bool dry_run) {
  FileSystem& files = PosixFileSystem();
  // A checkpoint inside DIR would be found as a step; if DIR itself is one, the command line is wrong.
  if (files.Exists(JoinPath(root, kManifestName))) {
    return absl::InvalidArgumentError(
        absl::StrCat(root, " is itself a checkpoint; give the directory that holds its step-* directories"));
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(root, ignored)) {
    return absl::InvalidArgumentError(absl::StrCat(root, " is a file; give a directory that holds step-* directories"));
  }
  FSDP_RETURN_IF_ERROR(files.List(root).status());
  Pruning pruning;
  FSDP_ASSIGN_OR_RETURN(pruning.set_aside, ListSetAside(root));
  FSDP_ASSIGN_OR_RETURN(pruning.plan, PlanRetention(root, policy));
  const RetentionPlan& plan = pruning.plan;
  if (plan.steps.empty() && plan.leftovers.empty() && plan.unproven.empty() && pruning.set_aside.empty()) {
    return absl::NotFoundError(absl::StrCat(root, " holds no checkpoint: expected step-* directories in it"));
  }
  if (!dry_run) FSDP_RETURN_IF_ERROR(ApplyRetention(files, root, plan));
  return pruning;
}

}  // namespace

int RunPrune(const CommandLine& line) {
  const std::string& root = line.operands[0];
  RetentionPolicy policy;
  policy.keep_last = absl::GetFlag(FLAGS_keep_last);
  policy.keep_every = absl::GetFlag(FLAGS_keep_every);
  if (policy.keep_last < 1) {
    return ReportUsage("ckpt prune", absl::InvalidArgumentError("--keep_last: expected a number of steps, 1 or more"));
  }
  if (policy.keep_every < 0) {
    return ReportUsage("ckpt prune", absl::InvalidArgumentError(
                                         absl::StrCat("--keep_every=", policy.keep_every, ", expected 0 or more")));
  }
  const bool dry_run = absl::GetFlag(FLAGS_dry_run);
  absl::StatusOr<Pruning> pruning;
  {
    Progress progress("verify");
    policy.progress = progress.callback();
    pruning = Prune(root, policy, dry_run);
  }
  const bool json = absl::GetFlag(FLAGS_json);
  if (!pruning.ok()) {
    if (json) Print("%s", ProblemJson(pruning.status()));
    return ReportFailure("ckpt prune", pruning.status());
  }
  json ? Print("%s", ToJson(root, *pruning, dry_run)) : PrintText(*pruning, dry_run);
  const absl::Status status = CheckHasGoodStep(root, pruning->plan);
  return status.ok() ? kExitDone : ReportFailure("ckpt prune", status);
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/latest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/file_names.h"
#include "checkpoint/file_system.h"
#include "checkpoint/manifest_file.h"
#include "checkpoint/staged_checkpoint.h"
#include "checkpoint/verify.h"

namespace fsdp {
namespace {

// Why `path` cannot be used; empty when it can.
std::string ProblemOf(const std::string& path) {
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(path);
  if (!report.ok()) return std::string(report.status().message());
  if (report->problems.empty()) return "";
  const size_t more = report->problems.size() - 1;
  return absl::StrCat(report->problems[0], more == 0 ? "" : absl::StrCat(", and ", more, " more problems"));
}

// As ProblemOf, for the step `name` of a ROOT: a directory under another step's name is not that step.
std::string ProblemOfStep(const std::string& path, const std::string& name) {
  const std::string problem = ProblemOf(path);
  if (!problem.empty()) return problem;
  const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  if (!manifest.ok()) return std::string(manifest.status().message());
  if (StepName(manifest->step) == name) return "";
  return absl::StrCat("its manifest is of step ", manifest->step);
}

bool IsComplete(const std::string& path) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  return manifest.ok() && CheckFilesPresent(PosixFileSystem(), path, *manifest).ok();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(root);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  RETURN_IF_ERROR(names.status());
  std::vector<std::pair<int64_t, std::string>> steps;
  for (const std::string& name : *names) {
    if (const auto step = ParseStepName(name)) steps.emplace_back(*step, name);
  }
  std::sort(steps.begin(), steps.end());
  std::vector<std::string> sorted;
  for (auto& [step, name] : steps) sorted.push_back(std::move(name));
  return sorted;
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root, std::vector<std::string>* skipped) {
  if (PosixFileSystem().Exists(JoinPath(root, kManifestName))) {
    const std::string problem = ProblemOf(root);
    if (problem.empty()) return root;
    return absl::DataLossError(absl::StrCat(root, " does not verify: ", problem));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(root));
  std::string reasons;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = JoinPath(root, *step);
    const std::string problem = ProblemOfStep(path, *step);
    if (problem.empty()) return path;
    const std::string sentence = absl::StrCat(*step, " does not verify: ", problem);
    if (skipped != nullptr) skipped->push_back(sentence);
    absl::StrAppend(&reasons, "; ", sentence);
  }
  return absl::NotFoundError(
      absl::StrCat(root, " holds no checkpoint", steps.empty() ? "" : " that verifies", reasons));
}

absl::Status PruneCheckpoints(const std::string& root, int keep_last) {
  if (keep_last < 1) {
    return absl::InvalidArgumentError(absl::StrCat("keep_last is ", keep_last, "; at least one checkpoint stays"));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(root));
  std::vector<std::string> doomed;
  bool is_good_kept = false;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const bool stays = step - steps.rbegin() < keep_last;
    if ((stays || !is_good_kept) && IsComplete(JoinPath(root, *step))) {
      is_good_kept = true;
    } else if (!stays) {
      doomed.push_back(*step);
    }
  }
  if (!is_good_kept) return absl::OkStatus();
  // Oldest first, so that what a crash leaves is again the newest ones.
  for (auto step = doomed.rbegin(); step != doomed.rend(); ++step) {
    RETURN_IF_ERROR(DeleteCheckpointDirectory(PosixFileSystem(), root, *step));
  }
  return absl::OkStatus();
}

}  // namespace fsdp

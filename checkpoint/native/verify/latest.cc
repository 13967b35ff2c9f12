// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/native/verify/latest.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/native/format/file_names.h"
#include "fsdp/checkpoint/native/format/manifest_file.h"
#include "fsdp/checkpoint/native/format/named_step.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"
#include "fsdp/checkpoint/storage/unread.h"

namespace fsdp {
namespace {

// For a search any failure means "not this step", including a version that this release cannot read.
absl::Status NotThisStep(const absl::Status& status) {
  return status.ok() || IsUnread(status) ? status : absl::DataLossError(status.message());
}

// OK when every byte of the checkpoint `path` verifies; else the first problem, as CheckStep.
absl::Status CheckVerifies(const std::string& path, const VerifyOptions& options = {}) {
  const absl::StatusOr<VerifyReport> report = VerifyCheckpoint(path, options);
  return report.ok() ? report->status() : NotThisStep(report.status());
}

// At the top of an ext4 file system, for root only.
constexpr std::string_view kOfFileSystem = "lost+found";

absl::Status TooLittle(const std::string& root, const std::string& sentence) {
  return absl::ResourceExhaustedError(
      absl::StrCat(root, ": ", sentence, "; give this process more descriptors or memory"));
}

// "step-00000003 does not verify: REASON".
std::string Skipped(const std::string& name, const absl::Status& status) {
  return absl::StrCat(name, IsUnread(status) ? " cannot be read here: " : " does not verify: ", status.message());
}

}  // namespace

std::string UnreadEntry::ToString() const { return absl::StrCat(name, " cannot be read here: ", status.message()); }

absl::StatusOr<std::vector<RootStep>> ListSteps(const std::string& root, std::vector<UnreadEntry>* unread) {
  const absl::StatusOr<std::vector<std::string>> names = PosixFileSystem().List(root);
  if (absl::IsNotFound(names.status())) return std::vector<RootStep>();
  FSDP_RETURN_IF_ERROR(names.status());
  std::vector<RootStep> steps;
  for (const std::string& name : *names) {
    std::optional<int64_t> step = ParseStepName(name);
    if (!step) {
      const absl::StatusOr<std::optional<int64_t>> named = ReadNamedStep(PosixFileSystem(), root, name);
      if (unread == nullptr && !named.ok() && !absl::IsPermissionDenied(named.status())) return named.status();
      if (unread != nullptr && !named.ok() && name != kOfFileSystem) unread->push_back({name, named.status()});
      step = named.value_or(std::nullopt);
    }
    if (step) steps.push_back({*step, name});
  }
  // By number and not by name: step-100000000 comes after step-99999999.
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& root, std::vector<UnreadEntry>* unread) {
  FSDP_ASSIGN_OR_RETURN(std::vector<RootStep> steps, ListSteps(root, unread));
  std::vector<std::string> names;
  for (RootStep& step : steps) names.push_back(std::move(step.name));
  return names;
}

absl::Status CheckStep(const std::string& root, const std::string& name, const VerifyOptions& options) {
  const std::string path = JoinPath(root, name);
  FSDP_RETURN_IF_ERROR(CheckVerifies(path, options));
  const absl::StatusOr<Manifest> manifest = ReadManifest(PosixFileSystem(), path);
  if (!manifest.ok()) return NotThisStep(manifest.status());
  // A step that was renamed to another step's name is not that step.
  const SaveIdentity& save = manifest->save;
  if (save.has_step && (name == StepName(save.step) || name == save.name)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("its manifest is of ", save.StepText()));
}

absl::StatusOr<std::string> LatestCheckpoint(const std::string& root, std::vector<std::string>* skipped) {
  // A manifest directly in `root`: the path of one checkpoint, not of a ROOT.
  FSDP_ASSIGN_OR_RETURN(const bool is_checkpoint, IsThere(JoinPath(root, kManifestName)));
  if (is_checkpoint) {
    const absl::Status status = CheckVerifies(root);
    if (status.ok()) return root;
    return absl::Status(status.code(), Skipped(root, status));
  }
  std::vector<UnreadEntry> unread;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> steps, ListCheckpoints(root, &unread));
  std::string reasons;
  const auto skip = [&](const std::string& sentence) {
    if (skipped != nullptr) skipped->push_back(sentence);
    absl::StrAppend(&reasons, "; ", sentence);
  };
  for (const UnreadEntry& entry : unread) {
    if (absl::IsResourceExhausted(entry.status)) return TooLittle(root, entry.ToString());
    skip(entry.ToString());
  }
  // Stops at the first that verifies, so usually only the newest step is read.
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = JoinPath(root, *step);
    const absl::Status status = CheckStep(root, *step);
    if (status.ok()) return path;
    const std::string sentence = Skipped(*step, status);
    if (absl::IsResourceExhausted(status)) return TooLittle(root, sentence);
    skip(sentence);
  }
  const std::string none = absl::StrCat(root, " holds no checkpoint", steps.empty() ? "" : " that verifies", reasons);
  // An entry that cannot be read may be the checkpoint, so kNotFound would claim too much. An entry that this user has
  // no permission to read is not one of the user's steps.
  for (const UnreadEntry& entry : unread) {
    if (!absl::IsPermissionDenied(entry.status)) return absl::Status(entry.status.code(), none);
  }
  return absl::NotFoundError(none);
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/checkpoint/foreign/orbax/orbax_paths.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdp/base/quote.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/checkpoint/foreign/orbax/directory_values.h"
#include "fsdp/checkpoint/foreign/orbax/ocdbt_values.h"
#include "fsdp/checkpoint/foreign/orbax/orbax_tree.h"
#include "fsdp/checkpoint/source/step_counter.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/storage/path.h"
#include "fsdp/checkpoint/storage/presence.h"

namespace fsdp {
namespace {

// Of the folders with a step's name, those that a root is recognised by: any directory may have folders with numbers.
constexpr size_t kMostTried = 8;

struct NumberedStep {
  int64_t step = 0;
  std::string name;
};

// "checkpoint_" of "checkpoint_7".
std::string PrefixOf(const std::string& name) { return name.substr(0, name.rfind('_') + 1); }

absl::StatusOr<bool> IsItem(const std::string& directory) {
  for (const char* name : {kOrbaxTreeName, kOcdbtManifestName}) {
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(JoinPath(directory, name)));
    if (is_there) return true;
  }
  // Early Megatron-Core has folders of zarr, too, with files that say what they are.
  for (const char* name : {"metadata.json", "common.pt"}) {
    FSDP_ASSIGN_OR_RETURN(const bool is_there, IsThere(JoinPath(directory, name)));
    if (is_there) return false;
  }
  return HasZarrArray(directory);
}

// A step of a CheckpointManager has _CHECKPOINT_METADATA; in earlier versions only its folders tell. Few of them are
// looked at, because this question is asked of every directory that a user names.
absl::StatusOr<bool> HoldsItems(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_step, IsThere(JoinPath(directory, kOrbaxStepName)));
  if (is_step) return true;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, DirectoriesIn(directory));
  for (size_t i = 0; i < names.size() && i < kMostTried; ++i) {
    for (const char* name : {kOrbaxTreeName, kOcdbtManifestName}) {
      if (IsUnfinishedOrbaxName(names[i]) || absl::StartsWith(names[i], "ocdbt.process_")) continue;
      // A checkpointer without a manager has steps that are items.
      if (StepOfOrbaxName(names[i])) continue;
      const absl::StatusOr<bool> is_there = IsThere(JoinPath(JoinPath(directory, names[i]), name));
      // Any directory may have folders of others, such as lost+found.
      if (absl::IsPermissionDenied(is_there.status())) continue;
      FSDP_RETURN_IF_ERROR(is_there.status());
      if (*is_there) return true;
    }
  }
  return false;
}

absl::StatusOr<bool> IsCheckpoint(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_item, IsItem(directory));
  if (is_item) return true;
  return HoldsItems(directory);
}

// The folders with a step's name, the highest first.
absl::StatusOr<std::vector<NumberedStep>> NumberedStepsIn(const std::string& root) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, DirectoriesIn(root));
  std::vector<NumberedStep> steps;
  for (const std::string& name : names) {
    if (const std::optional<int64_t> step = StepOfOrbaxName(name)) steps.push_back({*step, name});
  }
  std::sort(steps.begin(), steps.end(), [](const NumberedStep& a, const NumberedStep& b) {
    return std::pair(-a.step, a.name) < std::pair(-b.step, b.name);
  });
  return steps;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DirectoriesIn(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, PosixFileSystem().List(directory));
  std::vector<std::string> directories;
  for (const std::string& name : names) {
    FSDP_ASSIGN_OR_RETURN(const auto type, TypeOfTarget(JoinPath(directory, name)));
    if (type == std::filesystem::file_type::directory) directories.push_back(name);
  }
  return directories;
}

bool IsUnfinishedOrbaxName(std::string_view name) {
  return absl::StrContains(absl::string_view(name.data(), name.size()), ".orbax-checkpoint-tmp");
}

std::optional<int64_t> StepOfOrbaxName(std::string_view name) {
  const size_t underscore = name.rfind('_');
  const std::string_view number = underscore == name.npos ? name : name.substr(underscore + 1);
  return number.empty() ? std::nullopt : StepOfText(number);
}

absl::StatusOr<OrbaxPath> OrbaxPathOf(const std::string& directory) {
  FSDP_ASSIGN_OR_RETURN(const bool is_item, IsItem(directory));
  if (is_item) return OrbaxPath::kItem;
  FSDP_ASSIGN_OR_RETURN(const bool is_step, HoldsItems(directory));
  if (is_step) return OrbaxPath::kStep;
  FSDP_ASSIGN_OR_RETURN(const std::vector<NumberedStep> steps, NumberedStepsIn(directory));
  for (size_t i = 0; i < steps.size() && i < kMostTried; ++i) {
    FSDP_ASSIGN_OR_RETURN(const bool is_checkpoint, IsCheckpoint(JoinPath(directory, steps[i].name)));
    if (is_checkpoint) return OrbaxPath::kRoot;
  }
  return OrbaxPath::kNone;
}

absl::StatusOr<OrbaxSteps> StepsOfRoot(const std::string& root) {
  OrbaxSteps steps;
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> names, DirectoriesIn(root));
  for (const std::string& name : names) {
    if (IsUnfinishedOrbaxName(name)) steps.left_out.push_back(absl::StrCat(Quote(name), " (an unfinished checkpoint)"));
  }
  FSDP_ASSIGN_OR_RETURN(const std::vector<NumberedStep> numbered, NumberedStepsIn(root));
  std::vector<NumberedStep> complete;
  for (const NumberedStep& step : numbered) {
    // Older steps are looked at only to compare their names.
    absl::StatusOr<bool> is_checkpoint = IsCheckpoint(JoinPath(root, step.name));
    FSDP_RETURN_IF_ERROR(is_checkpoint.status());
    if (*is_checkpoint) {
      complete.push_back(step);
    } else if (complete.empty()) {
      steps.left_out.push_back(absl::StrCat(Quote(step.name), " (there is no checkpoint in it)"));
    }
    if (complete.size() < 2) continue;
    const NumberedStep& a = complete[0];
    const NumberedStep& b = complete.back();
    if (a.step == b.step || PrefixOf(a.name) != PrefixOf(b.name)) {
      return absl::InvalidArgumentError(absl::StrCat(root, " has the steps ", Quote(a.name), " and ", Quote(b.name),
                                                     ", and nothing says which is newer: give one of them"));
    }
  }
  if (complete.empty()) return absl::NotFoundError(absl::StrCat(root, " has no complete step"));
  steps.newest = complete[0].name;
  return steps;
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The directories of Orbax, by the names in them; nothing is parsed:
//
//   item   _METADATA, an OCDBT database (manifest.ocdbt) or folders of zarr arrays: one tree
//   step   _CHECKPOINT_METADATA, and folders that are items, or items of JSON: one file each
//   root   folders of steps, named by their numbers: 7, 0007, checkpoint_7
//
// An item may be a step itself (a Checkpointer's directory has _CHECKPOINT_METADATA, too). A directory whose name still
// has .orbax-checkpoint-tmp in it is unfinished.
#ifndef FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_PATHS_H_
#define FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_PATHS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

inline constexpr char kOrbaxStepName[] = "_CHECKPOINT_METADATA";

enum class OrbaxPath : uint8_t { kNone, kItem, kStep, kRoot };

// What `directory` is. Cheap: looks at names in it, and in a few folders in it. Errors of the disk.
absl::StatusOr<OrbaxPath> OrbaxPathOf(const std::string& directory);

// True for "7.orbax-checkpoint-tmp-1700000000" and the like.
bool IsUnfinishedOrbaxName(std::string_view name);

// 7 of "7", "0007" and "checkpoint_7"; nullopt for any other name.
std::optional<int64_t> StepOfOrbaxName(std::string_view name);

struct OrbaxSteps {
  std::string newest;                 // the name of its folder
  std::vector<std::string> left_out;  // folders that are unfinished, or have a step's name and no checkpoint in them
};

// The steps of a root. kInvalidArgument if they do not have one order: two have the same number, or they have
// different prefixes.
absl::StatusOr<OrbaxSteps> StepsOfRoot(const std::string& root);

// The names of the directories in `directory`, sorted.
absl::StatusOr<std::vector<std::string>> DirectoriesIn(const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_ORBAX_ORBAX_PATHS_H_

// SPDX-License-Identifier: Apache-2.0
//
// RankFileNames: the names by which a directory may hold a file of each rank: rank0.pt, rank1.pt, ... A name is only a
// hint; the contents of the files decide (foreign/torch/pt/rank_files.h).
#ifndef FSDP_CHECKPOINT_SOURCE_RANK_FILE_NAMES_H_
#define FSDP_CHECKPOINT_SOURCE_RANK_FILE_NAMES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

// `names` by rank, if they differ only in one number, which counts from 0 without a gap; if there are at least two of
// them, and as many as a number after "of" or "size" says ("rank0_of_4.pt"); and if the number does not count steps,
// epochs or checkpoints ("epoch_0.pt"). Otherwise empty. Pure.
std::vector<std::string> RankFileNames(const std::vector<std::string>& names);

// RankFileNames of the torch files (.pt, .pth, .bin) in `directory`: a torch file with any other name makes the set
// ambiguous, and a missing rank must not go unnoticed. The error of a directory that cannot be listed.
absl::StatusOr<std::vector<std::string>> RankFilesIn(const std::string& directory);

// For SourceLayout::notes of the weight file `path`, given by itself: its name, or the name of a file next to it, says
// that it may be a part of a model. Empty for other names; opens no file.
std::string PartNote(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SOURCE_RANK_FILE_NAMES_H_

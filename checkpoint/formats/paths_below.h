// SPDX-License-Identifier: Apache-2.0
//
// PathsBelow: the checkpoints in the subdirectories of a directory that is not a checkpoint: a set of experiments, a
// trainer's output, a cache.
#ifndef FSDP_CHECKPOINT_FORMATS_PATHS_BELOW_H_
#define FSDP_CHECKPOINT_FORMATS_PATHS_BELOW_H_

#include <functional>
#include <string>
#include <vector>

namespace fsdp {

// The paths, relative to `directory`, of the files in it and of the files and directories below it for which
// `is_checkpoint` is true, in natural order. Only the first level that has a checkpoint counts.
// Searches six levels, without hidden names and links to directories, and gives up after 2,000 names. Entries that
// cannot be read are left out.
std::vector<std::string> PathsBelow(const std::string& directory,
                                    const std::function<bool(const std::string& path)>& is_checkpoint);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FORMATS_PATHS_BELOW_H_

// SPDX-License-Identifier: Apache-2.0
//
// Incremental saves: a rank file omits the datasets that an earlier checkpoint has byte for byte. The earlier file is
// linked into the new checkpoint under its own name ("rank-00000-of-00004.step-00000100.h5"), so each checkpoint is
// complete by itself, and deleting one does not touch another: a file exists as long as one checkpoint names it.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_UNCHANGED_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_UNCHANGED_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/native/format/manifest.h"
#include "fsdp/checkpoint/native/tree/tree_file.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// The earlier checkpoint.
struct BaseCheckpoint {
  std::string path;
  Manifest manifest;
};

// Reads the manifest of the checkpoint directory `path`.
absl::StatusOr<BaseCheckpoint> ReadBaseCheckpoint(FileSystem& files, const std::string& path);

// True if rank files of a save can refer to files of `base`: the kinds and numbers of writers must be equal, and for
// LOCAL the flat units. False for FULL, which has no rank files.
bool IsAlike(const Manifest& base, const SaveIdentity& save, const std::vector<FlatUnitLayout>& units);

// Finds the datasets of the rank file `tree` that the same writer's file of `base`, which IsAlike, holds with equal
// names, elements and digests. Links those files into `directory`, adds them to tree.links, and makes the tensors refer
// to them. A base file is linked only if at least half of its bytes are still referenced; this bounds wasted space to
// the size of the live data. A file that cannot be linked, is gone, or has another size or record than the base's
// manifest says is skipped without an error. Flat datasets are compared whole. Reads every element of the tree, none of
// the base.
absl::Status LinkUnchanged(FileSystem& files, const BaseCheckpoint& base, const std::string& directory, TreeFile& tree,
                           ThreadPool& pool);

// A sentence for people: how many bytes of `manifest` were linked from `base`, or the reason why no bytes were.
std::string DescribeLinks(const absl::StatusOr<BaseCheckpoint>& base, const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_UNCHANGED_H_

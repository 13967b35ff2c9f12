// SPDX-License-Identifier: Apache-2.0
//
// Incremental saves: what of a rank file an earlier checkpoint holds already, byte for byte. The earlier file is then
// linked into the new checkpoint under a name of its own, and the new rank file leaves out what lies there. Each
// checkpoint stays whole by itself, whatever is deleted: a file lives as long as one checkpoint names it.
#ifndef FSDP_CHECKPOINT_SAVE_UNCHANGED_H_
#define FSDP_CHECKPOINT_SAVE_UNCHANGED_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "fsdp/base/thread_pool.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/storage/file_system.h"
#include "fsdp/checkpoint/tree/tree_file.h"

namespace fsdp {

// The checkpoint that was saved before.
struct BaseCheckpoint {
  std::string path;
  Manifest manifest;
};

// Finds the datasets of `tree`, the file of one of `identity.writers` writers, that the same writer's file of `base`
// holds with equal names, elements and digests; links those files into `directory` and takes the datasets out of
// `tree`, which names them in tree.links. A file of which less than half is still the same is not linked, so that what
// is kept for nothing stays below what is used. Reads all elements of the tree, none of the base. Where files cannot be
// linked, are gone, or have another size or record than the base's manifest says, nothing is done. Flat datasets are
// compared whole, and only where the units are the same.
absl::Status LinkUnchanged(FileSystem& files, const BaseCheckpoint& base, const Manifest& identity,
                           const std::string& directory, TreeFile& tree, ThreadPool& pool);

// Whether a save of this identity can have files of `base` at all: not where the kind, the number of writers or flat
// units differ, and a FULL one has no rank files.
bool IsAlike(const Manifest& base, const Manifest& identity);

// Bytes of tensors of `manifest` that lie in files of earlier saves.
int64_t LinkedBytes(const Manifest& manifest);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_UNCHANGED_H_

// SPDX-License-Identifier: Apache-2.0
//
// Whether a directory was written by this project. A name like step-00000001 proves nothing, so before a directory is
// deleted, replaced or counted as a checkpoint, its contents are asked: only what a save wrote there counts.
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_PROOF_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_PROOF_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// OK when `directory` is a directory (not a link to one) that holds one of these two:
//
//   a manifest.json that names this project as its writer; the rest of it may be damaged
//   a rank file, by its exact name and HDF5's signature, with an undamaged record
//
// So a damaged checkpoint is still recognised while the first lines of its manifest or one record are left.
// kFailedPrecondition otherwise: the message says what is there instead, without the path: "it holds notes.txt and no
// manifest.json of this project". Reads the beginning of the manifest; only if that does not decide, the beginning of
// every page of the rank files.
absl::Status ProveCheckpoint(FileSystem& files, const std::string& directory);

// Before a proven checkpoint is deleted or replaced: OK when it is proven and nothing lies in it but what saves and
// repairs write, and what NFS or FUSE keeps of it. kFailedPrecondition names the entry that would go with it: "it holds
// notes.txt, which no save wrote: move that out first".
absl::Status ProveDeletable(FileSystem& files, const std::string& directory);

// As ProveCheckpoint, for a directory whose name (with its nonce) is that of a save or a deletion that was cut short.
// It may have no manifest yet, or none any more. So it is also OK when it is empty, or when every file in it has a name
// that a save gives, or one that NFS or FUSE gives to a file that is deleted while it is open (".nfs...",
// ".fuse_hidden...").
absl::Status ProveLeftover(FileSystem& files, const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_PROOF_H_

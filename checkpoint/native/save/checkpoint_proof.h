// SPDX-License-Identifier: Apache-2.0
//
// Checks that a directory was written by this project. A name like step-00000001 proves nothing, so before a directory
// is deleted, replaced or counted as a checkpoint, its contents are examined for files that a save wrote.
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
// So a damaged checkpoint is recognised as long as the first lines of its manifest or one record remain.
// kFailedPrecondition otherwise, with a message about the actual contents, without the path: "it holds notes.txt and no
// manifest.json of this project". Reads the beginning of the manifest; only if that does not decide, the beginning of
// every page of the rank files. Another error, of reading them, means that neither is known.
absl::Status CheckIsOurCheckpoint(FileSystem& files, const std::string& directory);

// Before a proven checkpoint is deleted or replaced: OK when it is proven and holds only files that saves and repairs
// write, or that NFS or FUSE keep of deleted ones. kFailedPrecondition names another entry that would be deleted with
// it: "it holds notes.txt, which no save wrote: move that out first".
absl::Status ProveDeletable(FileSystem& files, const std::string& directory);

// Like CheckIsOurCheckpoint, for a directory with the name (and nonce) of an interrupted save or deletion. It may have
// no manifest yet, or no longer. So it is also OK when it is empty, or when every file in it has a name that a save
// gives, or that NFS or FUSE gives to a file that is deleted while it is open (".nfs...", ".fuse_hidden...").
absl::Status ProveLeftover(FileSystem& files, const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_CHECKPOINT_PROOF_H_

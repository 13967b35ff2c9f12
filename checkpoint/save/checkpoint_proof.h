// SPDX-License-Identifier: Apache-2.0
//
// ProveCheckpoint: nothing in a ROOT is deleted, and nobody's directory is taken for a checkpoint of this project, for
// its name alone. A directory proves its origin by what a save wrote there.
#ifndef FSDP_CHECKPOINT_SAVE_CHECKPOINT_PROOF_H_
#define FSDP_CHECKPOINT_SAVE_CHECKPOINT_PROOF_H_

#include <string>

#include "absl/status/status.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

// OK when `directory` is a directory, and no link to one, with a manifest.json that says that it is of this project,
// undamaged or not, or with a rank file, by its exact name and HDF5's signature, whose record is undamaged. So a
// damaged checkpoint proves itself as long as the first lines of its manifest or one record are left.
// kFailedPrecondition otherwise: the message says what `directory` is instead, without its path: "it holds notes.txt
// and no manifest.json of this project". Reads little, but where the manifest does not say it, the beginnings of all
// pages of the rank files.
absl::Status ProveCheckpoint(FileSystem& files, const std::string& directory);

// The same for a directory with the name, a nonce included, of a save or a deletion that was cut short: it may have
// lost its manifest, or not have it yet, so it is also proven when it is empty, or every file in it has a name that a
// save gives, or one that NFS or FUSE gives to a file that is deleted while it is open (".nfs...", ".fuse_hidden...").
absl::Status ProveLeftover(FileSystem& files, const std::string& directory);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_SAVE_CHECKPOINT_PROOF_H_

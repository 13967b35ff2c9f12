// SPDX-License-Identifier: Apache-2.0
//
// Leftovers: the hidden directories of interrupted saves and deletions: .X.tmp-<nonce>, .X.deleted-<nonce>. A save
// removes them before it begins; `ckpt prune` lists and removes them. A nonce does not prove enough: the contents must
// be ours too (checkpoint_proof.h).
#ifndef FSDP_CHECKPOINT_NATIVE_SAVE_LEFTOVERS_H_
#define FSDP_CHECKPOINT_NATIVE_SAVE_LEFTOVERS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct Leftover {
  std::string name;          // ".step-00000007.tmp-0123456789abcdef"
  std::string checkpoint;    // its checkpoint: "step-00000007"
  bool is_deletion = false;  // left by a deletion; else by a save
  absl::Status proof = {};   // from ProveLeftover; an unproven leftover is never removed
};

// Every entry of `directory` with such a name, sorted by name. Changes nothing.
absl::StatusOr<std::vector<Leftover>> FindLeftovers(FileSystem& files, const std::string& directory);

// Removes the leftover `name`, unless it is not proven to be ours, its save still holds the lock, or it no longer
// exists: then returns false.
absl::StatusOr<bool> RemoveLeftover(FileSystem& files, const std::string& directory, const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_LEFTOVERS_H_

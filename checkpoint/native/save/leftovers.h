// SPDX-License-Identifier: Apache-2.0
//
// Leftovers: the hidden directories of saves and deletions that were cut short: .X.tmp-<nonce>, .X.deleted-<nonce>. A
// save removes them before it begins, `ckpt prune` lists them and removes them. A nonce is not proof enough: the
// contents must be ours too (checkpoint_proof.h).
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
  std::string checkpoint;    // whose it is: "step-00000007"
  bool is_deletion = false;  // of a deletion; else of a save
  absl::Status proof = {};   // ProveLeftover's; one that is not proven is never removed
};

// Every entry of `directory` with such a name, by name. Changes nothing.
absl::StatusOr<std::vector<Leftover>> FindLeftovers(FileSystem& files, const std::string& directory);

// Removes the leftover `name`, unless it is not proven to be ours, or the save that makes it holds its lock, or it is
// gone by now: then false.
absl::StatusOr<bool> RemoveLeftover(FileSystem& files, const std::string& directory, const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_SAVE_LEFTOVERS_H_

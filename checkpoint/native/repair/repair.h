// SPDX-License-Identifier: Apache-2.0
//
// RepairCheckpoint: restores a damaged checkpoint of our own format, bit for bit, from its undamaged files: rank files
// from parity, checkpoint.h5 and manifest.json from the records of the rank files. Only bytes that match a digest are
// used, so damage is never made part of a new file. Damage that cannot be repaired is reported, and nothing is changed
// then. Anything else in the place of a file, such as a FIFO, counts as a lost file; a directory there is renamed, not
// deleted. `ckpt repair` calls this.
#ifndef FSDP_CHECKPOINT_NATIVE_REPAIR_REPAIR_H_
#define FSDP_CHECKPOINT_NATIVE_REPAIR_REPAIR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RepairOptions {
  // Report what would be done, and change nothing. Without a manifest nothing but the rebuilt files themselves shows
  // whether parity files are damaged: then they are made as in any repair, and removed instead of installed.
  bool dry_run = false;

  int io_threads = 2;
  FileSystem* file_system = &PosixFileSystem();  // tests inject faults
};

struct RepairReport {
  // A sentence for each file that was rebuilt, or would be: which, why, from what. And one for each directory that was
  // in the way of a file.
  std::vector<std::string> repaired;

  // A sentence for each file that stays lost or damaged, with the reason, and for each that is no part of the
  // checkpoint: VerifyCheckpoint refuses these, and they are not ours to move.
  std::vector<std::string> problems;

  // True when nothing was damaged or all damage is repaired: VerifyCheckpoint finds nothing then, and otherwise nothing
  // has been changed.
  bool is_whole() const { return problems.empty(); }
};

// Repairs the checkpoint directory `path`, all of which it reads. A file is replaced by a rename once the new one is
// verified and synced, the manifest last; after a crash the next call continues. kNotFound when `path` has no file of a
// checkpoint; kFailedPrecondition for a save that was never committed; kUnavailable, naming the process, while another
// process repairs, overwrites or deletes the checkpoint; a dry run needs to wait for it only without a manifest.
absl::StatusOr<RepairReport> RepairCheckpoint(const std::string& path, const RepairOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_REPAIR_REPAIR_H_

// SPDX-License-Identifier: Apache-2.0
//
// RepairCheckpoint: restores a damaged checkpoint of our own format, bit for bit, from its undamaged files: rank files
// from parity, checkpoint.h5 and manifest.json from the records of the rank files. Only bytes that match a digest are
// used, so damage never becomes part of a new file. If some damage cannot be repaired, it is reported and nothing is
// changed. A FIFO or the like with the name of a file counts as a lost file; a directory with that name is renamed, not
// deleted. `ckpt repair` calls this.
#ifndef FSDP_CHECKPOINT_NATIVE_REPAIR_REPAIR_H_
#define FSDP_CHECKPOINT_NATIVE_REPAIR_REPAIR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RepairOptions {
  // Only report the repairs; change nothing. Without a manifest, damaged parity files are detected only by rebuilding
  // the files from them: then files are rebuilt as in any repair, and removed instead of installed.
  bool dry_run = false;

  int io_threads = 2;
  FileSystem* file_system = &PosixFileSystem();  // tests inject faults
};

struct RepairReport {
  // A sentence for each file that was, or would be, rebuilt, with the reason and the sources. And one for each
  // directory that had the name of a file.
  std::vector<std::string> repaired;

  // A sentence for each file that stays lost or damaged, with the reason, and for each file that is not part of the
  // checkpoint: VerifyCheckpoint refuses these, and they are not ours to move.
  std::vector<std::string> problems;

  // True if nothing was damaged or all damage is repaired: then VerifyCheckpoint reports no problem. If false, nothing
  // has been changed.
  bool is_whole() const { return problems.empty(); }
};

// Repairs the checkpoint directory `path` and reads all of it. A file is replaced by a rename once the new one is
// verified and synced, the manifest last; after a crash the next call continues. kNotFound when `path` does not have
// any file of a checkpoint; kFailedPrecondition for a save that was never committed; kUnavailable, naming the process,
// while another process repairs, overwrites or deletes the checkpoint; for a dry run only without a manifest.
absl::StatusOr<RepairReport> RepairCheckpoint(const std::string& path, const RepairOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_REPAIR_REPAIR_H_

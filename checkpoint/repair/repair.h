// SPDX-License-Identifier: Apache-2.0
//
// RepairCheckpoint: makes a damaged checkpoint of ours whole again, bit for bit, from what is undamaged: rank files
// from parity, checkpoint.h5 and manifest.json from the records of the rank files. Nothing is believed without its
// digest, so a damaged byte is never blessed; what cannot be repaired is said and left as it is. Something else in the
// place of a file, such as a FIFO, is as good as a lost file; a directory there is renamed, not deleted. What `ckpt
// repair` calls.
#ifndef FSDP_CHECKPOINT_REPAIR_REPAIR_H_
#define FSDP_CHECKPOINT_REPAIR_REPAIR_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct RepairOptions {
  bool dry_run = false;  // say what would be done, and write nothing
  int io_threads = 2;
  FileSystem* file_system = &PosixFileSystem();  // tests inject faults
};

struct RepairReport {
  // A sentence for each file that was made again, or would be (which, why, from what), and for each directory that had
  // to make room.
  std::vector<std::string> repaired;

  // A sentence for each file that stays lost or damaged, with the reason.
  std::vector<std::string> problems;

  // Nothing was wrong, or all that was is repaired.
  bool is_whole() const { return problems.empty(); }
};

// Reads all of the checkpoint directory `path`. A file is replaced by its rename once the new one is verified and
// synced, the manifest last; a crash in between leaves what the next call can go on from. kNotFound when nothing of a
// checkpoint is there; kFailedPrecondition for a save that was never committed; kUnavailable, naming the process, while
// another one repairs, overwrites or deletes it.
absl::StatusOr<RepairReport> RepairCheckpoint(const std::string& path, const RepairOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_REPAIR_REPAIR_H_

// SPDX-License-Identifier: Apache-2.0
//
// VerifyCheckpoint: reads every byte of a checkpoint of ours and compares it with its digest; checks that the files
// match the manifest and that the intervals cover the tensors.
#ifndef FSDP_CHECKPOINT_NATIVE_VERIFY_VERIFY_H_
#define FSDP_CHECKPOINT_NATIVE_VERIFY_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/nonfinite.h"
#include "fsdp/checkpoint/storage/byte_range.h"
#include "fsdp/checkpoint/storage/file_system.h"

namespace fsdp {

struct VerifyOptions {
  // Behaviour.
  bool count_nonfinite = false;  // NaN and infinity in floating-point tensors; costs little compared with the digests
  FileSystem* file_system = &PosixFileSystem();  // that holds the checkpoint, such as RemoteFiles

  // Performance.
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
};

struct VerifyReport {
  // Bytes that differ from what was written, or cannot be read: one or more bytes in `range`. Every damaged byte is
  // inside some `range` of its file, except bytes cut off the end of manifest.json, whose size is not recorded.
  struct Damage {
    std::string file;  // its name in the checkpoint
    ByteRange range;   // a block, a record, a whole file, or all bytes that one digest covers
    std::string what;  // `tensor "model/w", block 0`, "record", "manifest", "HDF5 metadata and padding"
  };

  struct NonFiniteTensor {
    std::string name;
    NonFinite count;
  };

  struct PartlyReadTensor {
    std::string name;
    int64_t read = 0;    // elements
    int64_t unread = 0;  // elements
  };

  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  // read and compared

  // One sentence for each problem, naming file, byte range and tensor, in the order of files and offsets; empty when
  // the checkpoint verifies.
  std::vector<std::string> problems;

  // Those of `problems` that are no damage: this machine could not read bytes that may be right (storage/unread.h).
  std::vector<std::string> unread;
  absl::StatusCode unread_code = absl::StatusCode::kOk;  // of the first of them

  bool is_damaged() const { return problems.size() > unread.size(); }

  // OK without problems. Else the first problem, and how many more there are: kDataLoss if there is damage, otherwise
  // `unread_code`.
  absl::Status status() const;

  // Adds an error to `problems`, and to `unread` if it is no damage.
  void AddProblem(const absl::Status& error);

  // The damage to known bytes, in the same order. A hole in a tensor's cover, or an unknown file, is a problem without
  // damage.
  std::vector<Damage> damage;

  // Tensors with NaN or infinity, in the order of the manifest; not a problem by itself. Damaged blocks are not
  // counted.
  std::vector<NonFiniteTensor> nonfinite;

  // Tensors that VerifySource read only in part, because overlapping views of one storage exceed ReadBound
  // (expansion.h). The unread elements may hold NaN or damage. Not a problem by itself.
  std::vector<PartlyReadTensor> partly_read;
};

// Blocks until all is read. kNotFound or kInvalidArgument when `path` is not a checkpoint of ours; the error of reading
// its manifest if that is no damage. Damage is in the report, not in the status.
absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_NATIVE_VERIFY_VERIFY_H_

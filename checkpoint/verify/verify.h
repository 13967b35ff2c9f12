// SPDX-License-Identifier: Apache-2.0
//
// VerifyCheckpoint: reads every byte of a checkpoint of ours and compares it with what was recorded.
#ifndef FSDP_CHECKPOINT_VERIFY_VERIFY_H_
#define FSDP_CHECKPOINT_VERIFY_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/manifest.h"
#include "fsdp/checkpoint/source/nonfinite.h"

namespace fsdp {

struct VerifyOptions {
  // Behaviour.
  bool count_nonfinite = false;  // NaN and infinity in floating-point tensors; costs little beside the digests

  // Performance.
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
};

struct VerifyReport {
  // Bytes that are not as they were written, or cannot be read.
  struct Damage {
    std::string file;
    ByteRange range;
    std::string what;  // `tensor "model/w", block 0`, "record", "manifest", "HDF5 metadata and padding"
  };

  struct NonFiniteTensor {
    std::string name;
    NonFinite count;
  };

  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  // read and compared

  // One sentence for each problem, naming file, byte range and tensor; empty when all is well.
  std::vector<std::string> problems;

  // The problems that are damage to known bytes, in the same order; one may be damage in several places. A hole in a
  // tensor's cover or a file too many is none.
  std::vector<Damage> damage;

  // Tensors with any, in order; not a problem by itself. Of damaged blocks nothing is counted.
  std::vector<NonFiniteTensor> nonfinite;
};

// kNotFound / kInvalidArgument when `path` is no checkpoint of ours; damage is in the report, not in the status.
absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_VERIFY_H_

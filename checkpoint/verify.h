// SPDX-License-Identifier: Apache-2.0
//
// VerifyCheckpoint: reads every byte of a checkpoint of ours and compares it with what was recorded.
#ifndef FSDP_CHECKPOINT_VERIFY_H_
#define FSDP_CHECKPOINT_VERIFY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdp {

struct VerifyOptions {
  int io_threads = 2;
  std::function<void(int64_t bytes_done, int64_t bytes_total)> progress = {};  // may be empty
};

struct VerifyReport {
  int64_t files = 0;
  int64_t tensors = 0;
  int64_t bytes = 0;  // read and compared

  // One sentence for each problem, naming file, byte range and tensor; empty when all is well.
  std::vector<std::string> problems;
};

// kNotFound / kInvalidArgument when `path` is no checkpoint of ours; damage is in the report, not in the status.
absl::StatusOr<VerifyReport> VerifyCheckpoint(const std::string& path, const VerifyOptions& options = {});

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_VERIFY_H_

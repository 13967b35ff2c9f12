// SPDX-License-Identifier: Apache-2.0
#include "fsdp/train/checkpoint_dir.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_format.h"
#include "fsdp/checkpoint/native/parity/parity_code.h"

namespace fsdp {

absl::Status CheckParity(const TrainOptions& options, int world_size) {
  if (options.parity == 0 || options.parity + world_size <= ParityCode::kMaxRuns) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--parity=%d: expected at most %d with the files of %d ranks",
                                                    options.parity, ParityCode::kMaxRuns - world_size, world_size));
}

absl::Status MakeCheckpointDir(const TrainOptions& options) {
  if (options.checkpoint_dir.empty()) return absl::OkStatus();
  std::error_code error;
  std::filesystem::create_directories(options.checkpoint_dir, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--checkpoint_dir=%s: cannot be made: %s", options.checkpoint_dir, error.message()));
  }
  if (access(options.checkpoint_dir.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("--checkpoint_dir=%s: cannot be written: %s",
                                                    options.checkpoint_dir, std::generic_category().message(errno)));
}

bool IsInDirectory(const std::string& directory, const std::string& path) {
  std::error_code error;
  return !directory.empty() && !path.empty() &&
         std::filesystem::equivalent(std::filesystem::path(path).parent_path(), directory, error);
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// ReadSmallFile: configs and tables, which are whole in memory. Other files of any size are refused before they are
// read.
#ifndef FSDP_TOOLS_SIMULATION_SMALL_FILE_H_
#define FSDP_TOOLS_SIMULATION_SMALL_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

inline constexpr int64_t kMaxSmallFileBytes = int64_t{16} << 20;

// The bytes of the regular file `path`. kNotFound when it cannot be read; kInvalidArgument for anything else than a
// regular file, such as a device or a FIFO, and for one of more than kMaxSmallFileBytes. Never waits.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_SIMULATION_SMALL_FILE_H_

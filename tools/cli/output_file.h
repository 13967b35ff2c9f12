// SPDX-License-Identifier: Apache-2.0
#ifndef FSDP_TOOLS_CLI_OUTPUT_FILE_H_
#define FSDP_TOOLS_CLI_OUTPUT_FILE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace fsdp {

// Writes `text` to the file `path`, which appears complete or not at all and replaces a file of that name. Blocks until
// it is durable. kFailedPrecondition if `path` is not a file, but for example a directory or a device, which stays
// unchanged; further errors are those from StagedPath (checkpoint/storage/staged_path.h). The caller has called
// CheckOutput (checkpoint/formats/output_path.h) before.
absl::Status WriteOutputFile(std::string_view text, const std::string& path);

}  // namespace fsdp

#endif  // FSDP_TOOLS_CLI_OUTPUT_FILE_H_

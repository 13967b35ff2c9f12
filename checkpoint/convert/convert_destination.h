// SPDX-License-Identifier: Apache-2.0
//
// CheckDestination: whether a conversion may write to a path, asked before a byte is read.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// OK when nothing has the name `path`, or when `force` and the path is what a conversion makes: a file where a file is
// to be made, or a directory of checkpoint files, of any format, and nothing else. kAlreadyExists when something is
// there and not `force`. kFailedPrecondition names the first file that `force` would delete though no checkpoint has
// such a file (a mistyped path must not cost a home directory). kNotFound when the directory to write in does not
// exist.
absl::Status CheckDestination(const std::string& path, bool is_directory, bool force);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_

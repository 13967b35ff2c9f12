// SPDX-License-Identifier: Apache-2.0
//
// CheckDestination: whether a conversion may write to a path, asked before a byte is read.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

struct DestinationOptions {
  bool is_directory = false;  // a directory will be made, or else a file
  bool force = false;         // it may replace what has the name
};

// OK when nothing has the name `path`, or when `force` is set and the path is what a conversion makes: a file where a
// file is to be made, or a directory of checkpoint files, of any format, and nothing else. kAlreadyExists when the name
// is taken and `force` is not set. kFailedPrecondition names the first file that `force` would delete although no
// checkpoint has such a file (a mistyped path must not cost a home directory). kNotFound when the directory to write in
// does not exist.
absl::Status CheckDestination(const std::string& path, const DestinationOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_

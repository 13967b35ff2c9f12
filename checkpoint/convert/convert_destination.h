// SPDX-License-Identifier: Apache-2.0
//
// CheckDestination: whether a conversion may write to a path, checked before a byte is read.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_

#include <map>
#include <string>

#include "absl/status/status.h"

namespace fsdp {

struct DestinationOptions {
  bool is_directory = false;  // the output is a directory, otherwise a file
  bool force = false;         // it may replace an existing entry

  // Files of the new directory that are no format's, by name: files of these names in the old one are replaced.
  std::map<std::string, std::string> replaced = {};
};

// OK if `path` does not exist, or if `force` is set and it holds the kind of output that a conversion makes: a file for
// a file, or a directory that contains only checkpoint files, of any format. kAlreadyExists when the name is taken and
// `force` is not set. kFailedPrecondition names the first file that `force` would delete although it does not belong to
// a checkpoint (a mistyped path must not cost a home directory). kNotFound when the parent directory does not exist.
absl::Status CheckDestination(const std::string& path, const DestinationOptions& options);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_DESTINATION_H_

// SPDX-License-Identifier: Apache-2.0
//
// Splits a path into directory and name, and joins them. Pure: no file is accessed.
#ifndef FSDP_CHECKPOINT_STORAGE_PATH_H_
#define FSDP_CHECKPOINT_STORAGE_PATH_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// `directory`/`name`.
std::string JoinPath(const std::string& directory, const std::string& name);

// The directory of `path` ("." when `path` is a bare name) and the name in it, without trailing slashes. The name is
// empty for "/" and for "".
struct PathParts {
  std::string directory;
  std::string name;
};
PathParts SplitPath(const std::string& path);

// OK when `name` names a file directly inside a directory: not empty, "." or "..", no '/', no control character, at
// most 255 bytes. Otherwise kDataLoss.
absl::Status CheckFileName(const std::string& name);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_PATH_H_

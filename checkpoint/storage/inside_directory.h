// SPDX-License-Identifier: Apache-2.0
//
// Paths that a file states, relative to a directory: whether they lead out of it. A checkpoint that came from elsewhere
// must not make a program read, and copy, other files of its user.
#ifndef FSDP_CHECKPOINT_STORAGE_INSIDE_DIRECTORY_H_
#define FSDP_CHECKPOINT_STORAGE_INSIDE_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// OK if `location`, which the file `stated_in` states, names a file below `directory`: not empty, not absolute, without
// "..", and without links that lead out. If stated_in is a link itself, they may lead to the directory of its target:
// the files of a snapshot in the hub's cache are links to one directory of blobs. kInvalidArgument states what is
// wrong. A file that does not exist is OK: who opens it gets the error.
absl::Status CheckStaysInside(const std::string& directory, const std::string& location, const std::string& stated_in);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_STORAGE_INSIDE_DIRECTORY_H_

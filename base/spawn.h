// SPDX-License-Identifier: Apache-2.0
//
// Spawn: a new process by fork and exec, for ChildProcess (child_process.h), which programs use.
#ifndef FSDP_BASE_SPAWN_H_
#define FSDP_BASE_SPAWN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

// Both ends close on exec.
struct Pipe {
  FileDescriptor read;
  FileDescriptor write;

  static absl::StatusOr<Pipe> Create();  // kResourceExhausted
};

// The path of `name` as a shell would find it: `name` itself if it has a slash, else in $PATH. kNotFound;
// kPermissionDenied if there is only a file that is not executable.
absl::StatusOr<std::string> FindProgram(const std::string& name);

struct SpawnOptions {
  std::string program;                   // a path
  std::vector<std::string> arguments;    // with the program's name
  std::vector<std::string> environment;  // NAME=value
  std::string directory;                 // empty: the directory of this process
  int inherited_fd = -1;                 // stays open under its number
  int input_fd = -1;                     // becomes stdin
  int output_fd = -1;                    // becomes stdout; -1: the stdout of this process
  int errors_fd = -1;                    // becomes stderr; -1: the stderr of this process
};

// The pid of a child in a process group of its own, with no signal blocked, that SIGKILL ends when this thread's
// process ends. Returns after the program was executed, or with an error: kNotFound, kPermissionDenied,
// kInvalidArgument if the kernel refuses it, kResourceExhausted if there are too many processes or descriptors. The
// caller must wait for the child.
absl::StatusOr<int> Spawn(const SpawnOptions& options);

}  // namespace fsdp

#endif  // FSDP_BASE_SPAWN_H_

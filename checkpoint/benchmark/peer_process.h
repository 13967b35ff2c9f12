// SPDX-License-Identifier: Apache-2.0
//
// PeerProcess: a program that times other libraries (benchmark_peers.py), started once, since importing them takes
// longer than the timed work. A question is a line; the answer is a line: seconds, or "no: " and the reason. Used by
// one thread.
#ifndef FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_
#define FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/base/child_process.h"
#include "fsdp/base/file_descriptor.h"

namespace fsdp {

class PeerProcess {
 public:
  // Starts `command`, a program and its arguments; its error output is discarded. kUnavailable when it cannot be
  // started.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Start(const std::vector<std::string>& command);

  // Closes the program's input, which ends it, and waits for it.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // Sends `question` and waits for the answer, without a timeout. Returns the seconds; kUnavailable with the program's
  // reason, or if it has ended.
  absl::StatusOr<double> Ask(const std::string& question);

 private:
  PeerProcess(std::unique_ptr<ChildProcess> child, FileDescriptor socket)
      : child_(std::move(child)), socket_(std::move(socket)) {}

  const std::unique_ptr<ChildProcess> child_;
  FileDescriptor socket_;  // the other end is the child's input and output
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_

// SPDX-License-Identifier: Apache-2.0
//
// PeerProcess: a program that measures what others take (benchmark_peers.py), started once, since it takes longer to
// import what it needs than to do what it is asked for. A question is a line; the answer is a line: seconds, or "no: "
// and why there are none. Used by one thread.
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
  // Starts `command`, a program and its arguments; its errors go nowhere. kUnavailable when it cannot be started.
  static absl::StatusOr<std::unique_ptr<PeerProcess>> Start(const std::vector<std::string>& command);

  // Ends it, by the end of its input, and waits for it.
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  // The seconds that it answers; kUnavailable with its reason, or that it has ended.
  absl::StatusOr<double> Ask(const std::string& question);

 private:
  PeerProcess(std::unique_ptr<ChildProcess> child, FileDescriptor socket)
      : child_(std::move(child)), socket_(std::move(socket)) {}

  const std::unique_ptr<ChildProcess> child_;
  FileDescriptor socket_;  // the other end is the child's input and output
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_

// SPDX-License-Identifier: Apache-2.0
//
// PeerProcess: a program that measures what others take (benchmark_peers.py), started once, since it takes longer to
// import what it needs than to do what it is asked for. A question is a line; the answer is a line: seconds, or "no: "
// and why there are none. Used by one thread.
#ifndef FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_
#define FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

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
  PeerProcess(pid_t child, int socket) : child_(child), socket_(socket) {}

  const pid_t child_;
  const int socket_;  // its input and output
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_BENCHMARK_PEER_PROCESS_H_

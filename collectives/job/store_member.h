// SPDX-License-Identifier: Apache-2.0
//
// StoreMember: the process at one end of a store's connection. A client sends it in its hello, the server in every
// reply to one, so each end knows job, rank and process of the other before anything else is exchanged.
#ifndef FSDP_COLLECTIVES_JOB_STORE_MEMBER_H_
#define FSDP_COLLECTIVES_JOB_STORE_MEMBER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "fsdp/collectives/job/store_frame.h"

namespace fsdp {

struct StoreMember {
  std::string job;  // job_identity.h
  int rank = 0;
  int world_size = 1;
  std::string host = {};  // a name, for messages and for IsSameProcess
  int pid = 0;
  uint64_t process = 0;  // a random number: two containers may have one host name and equal pids
  // A digest of the job's token (Rendezvous::token), only in a hello; empty without one. It keeps out processes
  // that join by accident, but not attackers who can read the network.
  std::string token_digest = {};

  // A member in this process.
  static StoreMember OfThisProcess(std::string job, int rank, int world_size);

  bool IsSameProcess(const StoreMember& other) const {
    return process == other.process && pid == other.pid && host == other.host;
  }

  // "rank 1 of 2, pid 77 on host-a"
  std::string ToString() const;

  static std::string DigestOfToken(const std::string& token);

  // Conversion to a frame of kind `kind`: number = rank, key = job, value = world size, pid, host, process and, if
  // there is one, token_digest, one a line. And back; kInvalidArgument if the value is malformed.
  StoreFrame ToFrame(uint32_t kind) const;
  static absl::StatusOr<StoreMember> FromFrame(const StoreFrame& frame);
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_STORE_MEMBER_H_

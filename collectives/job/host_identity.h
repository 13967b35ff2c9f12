// SPDX-License-Identifier: Apache-2.0
//
// HostIdentity: tells whether two processes can share memory as backend "shm" does: one running kernel, one numbering
// of processes. Containers of one machine count as hosts of their own unless they share their process namespace.
#ifndef FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_
#define FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace fsdp {

struct HostIdentity {
  std::string name;    // for people
  std::string kernel;  // boot id and process namespace

  static HostIdentity OfThisProcess();

  // As a blob, and back; a malformed blob gives an identity that equals no other.
  std::string ToBlob() const;
  static HostIdentity FromBlob(const std::string& blob);
};

// OK when all ranks are on one host; else kUnimplemented, which names two ranks and their hosts.
absl::Status CheckOneHost(const std::vector<HostIdentity>& hosts);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_

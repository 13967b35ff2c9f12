// SPDX-License-Identifier: Apache-2.0
//
// HostIdentity: whether two processes can share memory as backend "shm" does, which opens /proc/<pid>/fd/<n> of the
// other process: they must run on the same booted kernel and see the same process numbers. Containers of one machine
// count as different hosts unless they share their process namespace.
#ifndef FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_
#define FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace fsdp {

struct HostIdentity {
  std::string name;    // the host name, for messages only: containers may have equal names
  std::string kernel;  // boot id and process namespace; compared

  // Reads /proc. Where it is not mounted, `kernel` is the same for all such processes.
  static HostIdentity OfThisProcess();

  // As a blob, and back; a malformed blob gives an identity that equals no other.
  std::string ToBlob() const;
  static HostIdentity FromBlob(const std::string& blob);
};

// OK when all ranks are on one host; else kUnimplemented, which names two ranks and their hosts. `hosts` is by rank and
// not empty. Only `kernel` is compared.
absl::Status CheckOneHost(const std::vector<HostIdentity>& hosts);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_

// SPDX-License-Identifier: Apache-2.0
//
// HostIdentity: whether two processes can share memory as backend "shm" does, which opens /proc/<pid>/fd/<n> of the
// other process: they must run on the same booted kernel and see the same process numbers. Containers of one machine
// count as different hosts unless they share their process namespace. FSDP_HOSTID overrides this, as NCCL_HOSTID does
// for NCCL.
#ifndef FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_
#define FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_

#include <string>
#include <string_view>

namespace fsdp {

struct HostIdentity {
  std::string name;    // the host name, for messages only: containers may have equal names
  std::string kernel;  // boot id and process namespace, or their override; compared

  // `host_id`, which processes of one host have in common, else FSDP_HOSTID, else the contents of /proc. If /proc is
  // not mounted, `kernel` is the same for all such processes.
  static HostIdentity OfThisProcess(std::string_view host_id);

  // Conversion to a blob and back. A malformed blob gives an identity that equals no other.
  std::string ToBlob() const;
  static HostIdentity FromBlob(const std::string& blob);
};

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_JOB_HOST_IDENTITY_H_

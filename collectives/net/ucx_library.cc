// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/net/ucx_library.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "absl/strings/str_cat.h"

namespace fsdp {
namespace {

// Sets `function` to the library's `name`; records the first name that is missing.
template <typename Function>
void Find(void* library, const char* name, Function& function, std::string& absent) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr && absent.empty()) absent = name;
}

void SetUnlessSet(const char* name, const char* value) { setenv(name, value, 0); }

}  // namespace

absl::StatusOr<UcpFunctions> LoadUcpFrom(const std::string& path) {
  // UCX reads its environment when it is loaded. ucp_config_modify would accept the last of these, but ignores it.
  SetUnlessSet("UCX_ERROR_SIGNALS", "");
  SetUnlessSet("UCX_MEM_EVENTS", "no");
  SetUnlessSet("UCX_LOG_LEVEL", "fatal");
  // UCX sends a message over TCP in as many parts as fit into a receive of the peer, each with a system call and a wake
  // on both sides. With 512 KiB instead of 64 an all_gather of 256 MiB, which the processors limit, takes half the
  // time; the price is at most as much memory for each peer that sends.
  SetUnlessSet("UCX_TCP_RX_SEG_SIZE", "512k");
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat("ranks on several hosts need UCX, which is not installed on this one (Debian package libucx0): ",
                     why != nullptr ? why : path.c_str()));
  }
  UcpFunctions ucp;
  std::string absent;
  Find(library, "ucp_init_version", ucp.init_version, absent);
  Find(library, "ucp_cleanup", ucp.cleanup, absent);
  Find(library, "ucp_config_read", ucp.config_read, absent);
  Find(library, "ucp_config_modify", ucp.config_modify, absent);
  Find(library, "ucp_config_release", ucp.config_release, absent);
  Find(library, "ucp_worker_create", ucp.worker_create, absent);
  Find(library, "ucp_worker_destroy", ucp.worker_destroy, absent);
  Find(library, "ucp_worker_get_address", ucp.worker_get_address, absent);
  Find(library, "ucp_worker_release_address", ucp.worker_release_address, absent);
  Find(library, "ucp_worker_get_efd", ucp.worker_get_efd, absent);
  Find(library, "ucp_worker_arm", ucp.worker_arm, absent);
  Find(library, "ucp_worker_progress", ucp.worker_progress, absent);
  Find(library, "ucp_ep_create", ucp.ep_create, absent);
  Find(library, "ucp_ep_close_nbx", ucp.ep_close_nbx, absent);
  Find(library, "ucp_tag_send_nbx", ucp.tag_send_nbx, absent);
  Find(library, "ucp_tag_recv_nbx", ucp.tag_recv_nbx, absent);
  Find(library, "ucp_request_check_status", ucp.request_check_status, absent);
  Find(library, "ucp_request_cancel", ucp.request_cancel, absent);
  Find(library, "ucp_request_free", ucp.request_free, absent);
  if (!absent.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " has no ", absent, ": it is older than UCX 1.10, or is not UCX"));
  }
  return ucp;
}

absl::StatusOr<const UcpFunctions*> LoadUcp() {
  static const absl::StatusOr<UcpFunctions>* const loaded =
      new absl::StatusOr<UcpFunctions>(LoadUcpFrom("libucp.so.0"));
  if (!loaded->ok()) return loaded->status();
  return &**loaded;
}

}  // namespace fsdp

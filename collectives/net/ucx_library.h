// SPDX-License-Identifier: Apache-2.0
//
// UcpFunctions: the functions of UCX's libucp that we call, found in the library of this machine at run time. UCX is
// not linked: one host does not need it, and a cluster's own libucp, which supports its networks, is used if there is
// one. libucp keeps its ABI for callers that were compiled with older headers; libucs and libuct do not, so none of
// their functions is called.
#ifndef FSDP_COLLECTIVES_NET_UCX_LIBRARY_H_
#define FSDP_COLLECTIVES_NET_UCX_LIBRARY_H_

#include <ucp/api/ucp.h>

#include <string>

#include "absl/status/statusor.h"

namespace fsdp {

// Members have the names of the functions, without "ucp_".
struct UcpFunctions {
  decltype(&ucp_init_version) init_version = nullptr;
  decltype(&ucp_cleanup) cleanup = nullptr;
  decltype(&ucp_config_read) config_read = nullptr;
  decltype(&ucp_config_modify) config_modify = nullptr;
  decltype(&ucp_config_release) config_release = nullptr;
  decltype(&ucp_worker_create) worker_create = nullptr;
  decltype(&ucp_worker_destroy) worker_destroy = nullptr;
  decltype(&ucp_worker_get_address) worker_get_address = nullptr;
  decltype(&ucp_worker_release_address) worker_release_address = nullptr;
  decltype(&ucp_worker_get_efd) worker_get_efd = nullptr;
  decltype(&ucp_worker_arm) worker_arm = nullptr;
  decltype(&ucp_worker_progress) worker_progress = nullptr;
  decltype(&ucp_ep_create) ep_create = nullptr;
  decltype(&ucp_ep_close_nbx) ep_close_nbx = nullptr;
  decltype(&ucp_tag_send_nbx) tag_send_nbx = nullptr;
  decltype(&ucp_tag_recv_nbx) tag_recv_nbx = nullptr;
  decltype(&ucp_request_check_status) request_check_status = nullptr;
  decltype(&ucp_request_cancel) request_cancel = nullptr;
  decltype(&ucp_request_free) request_free = nullptr;
};

// The functions of libucp.so.0, loaded by the first call and never unloaded. Before that it sets, unless they are set,
// variables by which UCX would take over signals (UCX_ERROR_SIGNALS), memory functions (UCX_MEM_EVENTS) and the output
// (UCX_LOG_LEVEL) of this process. kFailedPrecondition, naming the Debian package, if there is no libucp. Thread-safe.
absl::StatusOr<const UcpFunctions*> LoadUcp();

// LoadUcp for the library at `path`, which each call loads again.
absl::StatusOr<UcpFunctions> LoadUcpFrom(const std::string& path);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_NET_UCX_LIBRARY_H_

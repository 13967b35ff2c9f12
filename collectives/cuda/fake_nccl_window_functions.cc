// SPDX-License-Identifier: Apache-2.0
#include "fsdp/collectives/cuda/fake_nccl.h"
#include "fsdp/collectives/cuda/nccl_window_functions.h"

namespace fsdp {

// NCCL before 2.27 does not have these functions.
NcclWindowFunctions FindNcclWindowFunctions() {
  int version = 0;
  ncclGetVersion(&version);
  if (version < 22700) return {};
  return {.register_window =
              [](ncclComm_t comm, void* data, size_t nbytes, void** window, int flags) {
                return ncclCommWindowRegister(comm, data, nbytes, reinterpret_cast<ncclWindow_t*>(window), flags);
              },
          .deregister_window =
              [](ncclComm_t comm, void* window) {
                return ncclCommWindowDeregister(comm, static_cast<ncclWindow_t>(window));
              }};
}

}  // namespace fsdp

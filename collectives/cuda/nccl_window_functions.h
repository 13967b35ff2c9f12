// SPDX-License-Identifier: Apache-2.0
//
// NcclWindowFunctions: the functions of NCCL 2.27 that an older nccl.h does not declare.
#ifndef FSDP_COLLECTIVES_CUDA_NCCL_WINDOW_FUNCTIONS_H_
#define FSDP_COLLECTIVES_CUDA_NCCL_WINDOW_FUNCTIONS_H_

#include <nccl.h>

#include <cstddef>

namespace fsdp {

// ncclCommWindowRegister and ncclCommWindowDeregister. A window is an ncclWindow_t, a pointer. Both are null if the
// library does not have them.
struct NcclWindowFunctions {
  ncclResult_t (*register_window)(ncclComm_t comm, void* data, size_t nbytes, void** window, int flags) = nullptr;
  ncclResult_t (*deregister_window)(ncclComm_t comm, void* window) = nullptr;
};

// The functions of the loaded library; on the emulated GPU, the functions of the fake NCCL.
NcclWindowFunctions FindNcclWindowFunctions();

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_NCCL_WINDOW_FUNCTIONS_H_

// SPDX-License-Identifier: Apache-2.0
//
// NCCL's symmetric windows (2.27) and its policy of copy engines (2.28), which are newer than the oldest NCCL that this
// builds with: the functions are looked up in the library that is loaded (nccl_window_functions.h), and the policy in
// the nccl.h of the build.
#ifndef FSDP_COLLECTIVES_CUDA_NCCL_WINDOWS_H_
#define FSDP_COLLECTIVES_CUDA_NCCL_WINDOWS_H_

#include <nccl.h>

#include <string>

#include "absl/status/status.h"

namespace fsdp {

// "2.28.9" for 22809, as ncclGetVersion gives it.
std::string NcclVersionText(int version);

// OK if the loaded NCCL has windows. kFailedPrecondition: its version, and the version that is needed.
absl::Status CheckNcclHasWindows();

// OK if the loaded NCCL, the build and the driver have all-gathers by copy engines. kFailedPrecondition as above.
absl::Status CheckNcclHasCopyEngines();

// Registers memory as a window that is symmetric: the offsets that collectives use are equal on all ranks. Not
// blocking: `window` is set once `comm` is no longer in progress. If the GPUs do not reach each other's memory, it
// stays null, or, in older releases, is a registration with which collectives run as without it. Precondition of both:
// CheckNcclHasWindows.
ncclResult_t RegisterNcclWindow(ncclComm_t comm, void* data, size_t nbytes, void** window);
ncclResult_t DeregisterNcclWindow(ncclComm_t comm, void* window);

// Sets NCCL_CTA_POLICY_ZERO: no multiprocessors for what copy engines can do. Precondition: CheckNcclHasCopyEngines.
void UseNoMultiprocessors(ncclConfig_t& config);

}  // namespace fsdp

#endif  // FSDP_COLLECTIVES_CUDA_NCCL_WINDOWS_H_

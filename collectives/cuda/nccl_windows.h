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

// What a program was built with and runs on, as far as windows and copy engines need it.
struct NcclVersions {
  int loaded = 0;             // of the library; 0: it does not say
  bool has_functions = true;  // RegisterNcclWindow and DeregisterNcclWindow are in it
  bool has_policy = true;     // the nccl.h of the build has CTAPolicy
  int driver = 0;             // the CUDA of the driver, 12050 for 12.5; 0: it does not say

  static NcclVersions Find();
};

// OK if there are windows. kFailedPrecondition: the version, and the version that is needed.
absl::Status CheckNcclHasWindows(const NcclVersions& versions = NcclVersions::Find());

// OK if there are all-gathers by copy engines. kFailedPrecondition as above.
absl::Status CheckNcclHasCopyEngines(const NcclVersions& versions = NcclVersions::Find());

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

// SPDX-License-Identifier: Apache-2.0
//
// The numbers are NCCL's (nccl.h of 2.28), written here because the header of the build may be older.
#include "fsdp/collectives/cuda/nccl_windows.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/collectives/cuda/nccl_window_functions.h"

namespace fsdp {
namespace {

constexpr int kSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
constexpr int kZeroCtas = 2;   // NCCL_CTA_POLICY_ZERO

constexpr int kFirstWithWindows = 22700;
constexpr int kFirstWithCopyEngines = 22800;
constexpr int kFirstDriverWithCopyEngines = 12050;  // CUDA 12.5

absl::Status TooOld(const char* what, int loaded, int needed) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": NCCL ", NcclVersionText(loaded), " is loaded: expected ",
                                                    NcclVersionText(needed), " or later (libnccl.so.2)"));
}

// Sets the field if the build's ncclConfig_t has it; false if not.
template <typename Config>
bool SetCtaPolicy(Config& config, int policy) {
  if constexpr (requires { config.CTAPolicy; }) {
    config.CTAPolicy = policy;
    return true;
  }
  return false;
}

}  // namespace

// Versions up to 2.8 have two digits less.
std::string NcclVersionText(int version) {
  const int major = version < 10000 ? 1000 : 10000;
  return absl::StrCat(version / major, ".", version % major / 100, ".", version % 100);
}

NcclVersions NcclVersions::Find() {
  NcclVersions found;
  if (ncclGetVersion(&found.loaded) != ncclSuccess) found.loaded = 0;
  const NcclWindowFunctions functions = FindNcclWindowFunctions();
  found.has_functions = functions.register_window != nullptr && functions.deregister_window != nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  found.has_policy = SetCtaPolicy(config, kZeroCtas);
  if (cudaDriverGetVersion(&found.driver) != cudaSuccess) found.driver = 0;
  return found;
}

absl::Status CheckNcclHasWindows(const NcclVersions& versions) {
  if (versions.has_functions && versions.loaded >= kFirstWithWindows) return absl::OkStatus();
  return TooOld("symmetric windows", versions.loaded, kFirstWithWindows);
}

absl::Status CheckNcclHasCopyEngines(const NcclVersions& versions) {
  constexpr char kWhat[] = "all-gathers by copy engines";
  FSDP_RETURN_IF_ERROR(CheckNcclHasWindows(versions));
  if (versions.loaded < kFirstWithCopyEngines) return TooOld(kWhat, versions.loaded, kFirstWithCopyEngines);
  if (!versions.has_policy) {
    return absl::FailedPreconditionError(
        absl::StrCat(kWhat, ": this program was built with the nccl.h of an NCCL that has no CTAPolicy: expected ",
                     NcclVersionText(kFirstWithWindows), " or later"));
  }
  if (versions.driver < kFirstDriverWithCopyEngines) {
    return absl::FailedPreconditionError(absl::StrCat(kWhat, ": the driver has CUDA ", versions.driver / 1000, ".",
                                                      versions.driver % 1000 / 10, ": expected CUDA 12.5 or later"));
  }
  return absl::OkStatus();
}

ncclResult_t RegisterNcclWindow(ncclComm_t comm, void* data, size_t nbytes, void** window) {
  return FindNcclWindowFunctions().register_window(comm, data, nbytes, window, kSymmetric);
}

ncclResult_t DeregisterNcclWindow(ncclComm_t comm, void* window) {
  return FindNcclWindowFunctions().deregister_window(comm, window);
}

void UseNoMultiprocessors(ncclConfig_t& config) { SetCtaPolicy(config, kZeroCtas); }

}  // namespace fsdp

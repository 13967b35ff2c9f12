// SPDX-License-Identifier: Apache-2.0
//
// cuda_device.h in a build without CUDA.

#include "absl/strings/str_cat.h"
#include "fsdp/cuda/cuda_device.h"

namespace fsdp {

absl::StatusOr<int> CudaDeviceCount() {
  return absl::UnimplementedError("no GPU: this program was built without CUDA");
}

absl::StatusOr<std::shared_ptr<Device>> CreateCudaDevice(int ordinal) {
  return absl::UnimplementedError(absl::StrCat("cuda:", ordinal, ": this program was built without CUDA"));
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// A Device does not know CUDA, but its streams do: the ordinal is read from a new stream.
#include "fsdp/collectives/cuda/cuda_ordinal.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/cuda_stream.h"

namespace fsdp {

absl::StatusOr<int> CudaOrdinal(Device& device) {
  if (device.type() != DeviceType::kCuda) {
    return absl::InvalidArgumentError(absl::StrCat("wanted a GPU, the device is ", device.name()));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream("ordinal"));
  return CudaStream::Of(*stream).ordinal();
}

}  // namespace fsdp

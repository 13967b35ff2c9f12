// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's headers for CUDA need CUDA's. This needs none: c10's guard of a device type, which a LibTorch with CUDA
// registers, knows the current stream and the cudaStream_t behind it.
#include "fsdp/libtorch/stream_order.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <exception>

#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/foreign_stream.h"
#include "fsdp/libtorch/torch_tensor.h"

namespace fsdp {
namespace {

absl::StatusOr<CUstream_st*> CurrentStream(c10::Device device) {
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    return static_cast<CUstream_st*>(guard.getStreamNativeHandle(guard.getStream(device)));
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(MessageOf(error));
  }
}

}  // namespace

absl::Status LibTorchAfter(Stream& ours, c10::Device device) {
  if (device.is_cpu()) return ours.Synchronize();
  FSDP_ASSIGN_OR_RETURN(CUstream_st* const theirs, CurrentStream(device));
  return MakeForeignWait(theirs, device.index(), ours.Record());
}

absl::Status AfterLibTorch(Stream& ours, c10::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(CUstream_st* const theirs, CurrentStream(device));
  FSDP_ASSIGN_OR_RETURN(const Event done, RecordForeign(theirs, device.index()));
  ours.Wait(done);
  return absl::OkStatus();
}

}  // namespace fsdp

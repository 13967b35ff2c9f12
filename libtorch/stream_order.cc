// SPDX-License-Identifier: Apache-2.0
//
// LibTorch's headers for CUDA include CUDA's own. This file needs neither: c10's guard of a device type, which a
// LibTorch with CUDA registers, knows the current stream and the cudaStream_t behind it.
#include "fsdp/libtorch/stream_order.h"

#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>

#include "fsdp/base/status_macros.h"
#include "fsdp/cuda/foreign_stream.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {
namespace {

absl::StatusOr<CUstream_st*> CurrentStream(c10::Device device) {
  try {
    // Throws if no guard is registered for the type: a LibTorch without CUDA.
    const c10::impl::VirtualGuardImpl guard(device.type());
    return static_cast<CUstream_st*>(guard.getStreamNativeHandle(guard.getStream(device)));
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(MessageOf(error));
  }
}

absl::Status MakeOursWait(Stream& ours, CUstream_st* theirs, c10::Device device) {
  FSDP_ASSIGN_OR_RETURN(const Event done, RecordForeign(theirs, device.index()));
  ours.Wait(done);
  return absl::OkStatus();
}

}  // namespace

absl::Status AfterLibTorch(Stream& ours, c10::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(CUstream_st* const theirs, CurrentStream(device));
  return MakeOursWait(ours, theirs, device);
}

absl::Status AwaitLibTorch(c10::Device device) {
  if (device.is_cpu()) return absl::OkStatus();
  try {
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.synchronizeStream(guard.getStream(device));
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(MessageOf(error));
  }
}

absl::Status TorchStreams::Join() {
  if (device_.is_cpu()) return absl::OkStatus();
  FSDP_ASSIGN_OR_RETURN(CUstream_st* const theirs, CurrentStream(device_));
  // A stream that has joined waits in each LibTorchAfter; only a new one must wait here.
  if (std::find(joined_.begin(), joined_.end(), theirs) != joined_.end()) return absl::OkStatus();
  joined_.push_back(theirs);
  return MakeForeignWait(theirs, device_.index(), ours_->Record());
}

absl::Status TorchStreams::LibTorchAfter() {
  // On the host LibTorch computes on this thread, so this thread waits.
  if (device_.is_cpu()) return ours_->Synchronize();
  FSDP_RETURN_IF_ERROR(Join());
  const Event event = ours_->Record();
  for (CUstream_st* const theirs : joined_) FSDP_RETURN_IF_ERROR(MakeForeignWait(theirs, device_.index(), event));
  return absl::OkStatus();
}

absl::Status TorchStreams::AfterLibTorch() {
  if (device_.is_cpu()) return absl::OkStatus();
  FSDP_RETURN_IF_ERROR(Join());
  for (CUstream_st* const theirs : joined_) FSDP_RETURN_IF_ERROR(MakeOursWait(*ours_, theirs, device_));
  return absl::OkStatus();
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/grad_clip.h"

#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/work_graph.h"

namespace fsdp {

// Only the event is waited for later, so work that is issued after this call does not delay Norm.
absl::StatusOr<GradClip> GradClip::Read(const Tensor& result, Stream& stream) {
  GradClip clip;
  FSDP_ASSIGN_OR_RETURN(clip.host_, stream.device().AllocatePinned(result.nbytes()));
  clip.result_ = result;
  clip.coefficient_ = result.Slice({1, 2});
  stream.CopyAsync(clip.host_.data(), result.data(), result.nbytes());
  clip.done_ = RecordForHost(stream);
  return clip;
}

// The copy writes to host_, so it must have ended before host_ is freed.
GradClip::~GradClip() { (void)done_.Synchronize(); }

absl::StatusOr<float> GradClip::Norm() const {
  if (!coefficient_.defined()) return norm_;
  FSDP_RETURN_IF_ERROR(done_.Synchronize());
  return *reinterpret_cast<const float*>(host_.data());
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// GradClip: the result of clipping, which the device may still be computing. The optimizer's kernels read the
// coefficient from device memory, so the host does not wait between norm and step.
//
//   FSDP_ASSIGN_OR_RETURN(GradClip clip, model->ClipGradNormAsync(1.0f));
//   optimizer.set_grad_factor(clip.coefficient());
//   FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
//   FSDP_ASSIGN_OR_RETURN(const float norm, clip.Norm());
//
// The step is the one that ClipGradNorm and Step would have made, in every bit and for every norm.
#ifndef FSDP_FSDP_GRAD_CLIP_H_
#define FSDP_FSDP_GRAD_CLIP_H_

#include "absl/status/statusor.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class GradClip {
 public:
  // The result for gradients that have been scaled already.
  explicit GradClip(float norm) : norm_(norm) {}

  // Copies `result`, which TensorOps::ClipCoefficient writes on `stream`, to the host, in stream order. Does not block.
  static absl::StatusOr<GradClip> Read(const Tensor& result, Stream& stream);

  GradClip(GradClip&&) = default;
  GradClip& operator=(GradClip&&) = delete;
  ~GradClip();  // waits as Norm does

  // The norm of the gradients before clipping. Blocks until the device has computed it, and not for later work.
  absl::StatusOr<float> Norm() const;

  // For Optimizer::set_grad_factor: ClipFactor of the norm (tensor/ops.h). Undefined if the gradients have been scaled
  // already.
  const Tensor& coefficient() const { return coefficient_; }

  // The norm, one float32, if the device computes it; undefined if coefficient() is.
  Tensor norm_on_device() const { return result_.defined() ? result_.Slice({0, 1}) : Tensor(); }

 private:
  GradClip() = default;

  float norm_ = 0;      // of gradients that have been clipped
  Buffer host_;         // [norm, coefficient], once done_
  Tensor result_;       // what it is copied from
  Tensor coefficient_;  // its second element
  Event done_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_GRAD_CLIP_H_

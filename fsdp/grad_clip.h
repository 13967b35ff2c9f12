// SPDX-License-Identifier: Apache-2.0
//
// GradClip: what clipping found out, while the device may still be at it: the optimizer reads the coefficient where it
// lies, so that no host waits between norm and step.
//
//   FSDP_ASSIGN_OR_RETURN(GradClip clip, model->DeferClipGradNorm(1.0f));
//   optimizer.set_grad_factor(clip.coefficient());
//   FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
//   FSDP_ASSIGN_OR_RETURN(const float norm, clip.Norm());
#ifndef FSDP_FSDP_GRAD_CLIP_H_
#define FSDP_FSDP_GRAD_CLIP_H_

#include "absl/status/statusor.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class GradClip {
 public:
  // Gradients that have been clipped already.
  explicit GradClip(float norm) : norm_(norm) {}

  // `result` is what TensorOps::ClipCoefficient puts on `stream`.
  static absl::StatusOr<GradClip> Read(const Tensor& result, Stream& stream);

  GradClip(GradClip&&) = default;
  GradClip& operator=(GradClip&&) = delete;
  ~GradClip();  // waits as Norm does

  // The norm before. Blocks until the device knows it, for no later work.
  absl::StatusOr<float> Norm() const;

  // For Optimizer::set_grad_factor: not finite where the norm is not; undefined where gradients have been scaled.
  const Tensor& coefficient() const { return coefficient_; }

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

// SPDX-License-Identifier: Apache-2.0
//
// DeviceGradScaler: a ShardedGradScaler whose decisions are made on the device: the scale is in its memory, a step that
// overflows is left out by the optimizer's kernels, and a kernel raises or lowers the scale. The host issues a step
// without a wait, also as a graph, and learns of the outcome afterwards. Losses, weights and scales have the bits of
// the host's scaler.
//
//   FSDP_RETURN_IF_ERROR(device_scaler->BeginStep());                    // not captured, unlike what follows
//   found_inf->Begin(stream);
//   loss.ForwardBackward(logits, targets, {.scale = device_scaler->scale()}, tape);   // then model->Backward
//   device_scaler->Unscale();
//   FSDP_ASSIGN_OR_RETURN(const GradClip clip, model->ClipGradNormAsync(1.0f));
//   found_inf->CheckOnAllRanks(clip.norm_on_device(), stream);
//   device_scaler->Update(found_inf->flag());
//   optimizer.set_found_inf(found_inf->flag());
//   FSDP_RETURN_IF_ERROR(optimizer.Step(stream));
//   FSDP_ASSIGN_OR_RETURN(const bool skipped, device_scaler->EndStep());  // waits for Update; not captured
//   if (skipped) optimizer.TakeBackStep();
#ifndef FSDP_FSDP_DEVICE_GRAD_SCALER_H_
#define FSDP_FSDP_DEVICE_GRAD_SCALER_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/fsdp/fully_sharded_data_parallel.h"
#include "fsdp/fsdp/sharded_grad_scaler.h"
#include "fsdp/tensor/buffer.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

class UpdateOps;
struct GradScale;

// Used by one thread, on the model's stream.
class DeviceGradScaler {
 public:
  // `model` and `scaler` are the caller's and outlive this. kUnimplemented, with the reason, if the host has to decide:
  // on a host, with gradients that are not all in the device's memory, and for a scaler that is not enabled. Errors of
  // Validate.
  static absl::StatusOr<std::unique_ptr<DeviceGradScaler>> Create(FullyShardedDataParallel& model,
                                                                  ShardedGradScaler& scaler);
  ~DeviceGradScaler();

  // Gives the device the scaler's state if it changed otherwise than by EndStep, as by a load. Call before each step.
  absl::Status BeginStep();

  // The scale of this step, one float32 on the device.
  const Tensor& scale() const { return scale_; }

  // These put work on the stream and return, and can be captured. Unscale divides the model's gradients by the scale.
  // Update lowers the scale if `found_inf`, which all ranks share, is not 0, and else counts the step.
  void Unscale();
  void Update(const Tensor& found_inf);

  // Waits for Update, and gives the scaler the state of the next step. True if this step overflowed. Local.
  absl::StatusOr<bool> EndStep();

 private:
  DeviceGradScaler(FullyShardedDataParallel& model, ShardedGradScaler& scaler, const UpdateOps& ops);

  absl::Status Allocate();

  FullyShardedDataParallel& model_;
  ShardedGradScaler& scaler_;
  const UpdateOps& ops_;

  Tensor state_;                            // a GradScale on the device
  Tensor scale_, inverse_;                  // its elements
  Buffer uploads_;                          // pinned; what is copied to state_, until uploaded_
  Buffer results_;                          // pinned; what Update copies back, once updated_
  const std::unique_ptr<GradScale> known_;  // what the device has between two steps
  Event uploaded_, updated_;
};

}  // namespace fsdp

#endif  // FSDP_FSDP_DEVICE_GRAD_SCALER_H_

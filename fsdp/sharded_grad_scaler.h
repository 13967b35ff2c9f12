// SPDX-License-Identifier: Apache-2.0
//
// ShardedGradScaler: loss scaling for 16-bit gradients that are sharded
// (torch/distributed/fsdp/sharded_grad_scaler.py). A rank sees only its shards, so all ranks, also those without
// gradients, agree on whether any gradient overflowed.
//
//   FSDP_ASSIGN_OR_RETURN(grad, loss.Backward(scaler.scale(), tape));   // the loss is scaled by way of its gradient
//   FSDP_RETURN_IF_ERROR(model->Backward(grad, tape).status());
//   FSDP_RETURN_IF_ERROR(scaler.Unscale(optimizer, stream));            // before clipping; Step does it otherwise
//   FSDP_ASSIGN_OR_RETURN(const bool stepped, scaler.Step(optimizer, stream));
//   FSDP_RETURN_IF_ERROR(scaler.Update());
#ifndef FSDP_FSDP_SHARDED_GRAD_SCALER_H_
#define FSDP_FSDP_SHARDED_GRAD_SCALER_H_

#include <map>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "fsdp/collectives/group/process_group.h"
#include "fsdp/optim/optimizer.h"
#include "fsdp/tensor/state_dict.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

struct GradScale;

// PyTorch's names and defaults. Not checked while `enabled` is off.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int growth_interval = 2000;  // steps without overflow before the scale grows
  bool enabled = true;         // off: scale() is 1 and Step always steps
};

// kInvalidArgument, naming the field, for a value that cannot work: PyTorch asserts growth_factor > 1 and
// backoff_factor < 1; this also requires init_scale > 0, backoff_factor > 0, growth_interval >= 1, and finite values.
absl::Status Validate(const GradScalerOptions& options);

// The host decides, and waits for the gradients; device_grad_scaler.h has the same without a wait.
//
// Gradients may be on several devices, as with offloaded units. Calls that return a status may return Validate's
// errors.
class ShardedGradScaler {
 public:
  // `group` has all ranks that train one model; the caller owns it, and it outlives this.
  explicit ShardedGradScaler(ProcessGroup& group, const GradScalerOptions& options = {});

  float scale() const { return options_.enabled ? static_cast<float>(scale_) : 1; }

  // Divides the gradients of `optimizer`'s parameters by the scale, and checks whether any gradient of any rank is
  // infinite or NaN. Call before clipping. kFailedPrecondition if called twice before Update, or after Step.
  // Collective; blocks.
  absl::Status Unscale(Optimizer& optimizer, Stream& stream);

  // Unscales if Unscale was not called, then steps unless a gradient overflowed. Returns whether it stepped. If the
  // optimizer can unscale in its own pass, the gradients stay scaled. kFailedPrecondition if called twice before
  // Update. Collective; blocks.
  absl::StatusOr<bool> Step(Optimizer& optimizer, Stream& stream);

  // Lowers the scale after an overflow, raises it after growth_interval steps without, or sets `new_scale`.
  // kFailedPrecondition if nothing was unscaled since the last Update; kInvalidArgument for a new_scale that is not
  // above 0. Local, and the same on every rank.
  absl::Status Update(std::optional<double> new_scale = std::nullopt);

  // Adds the scale, its rule and the steps since it changed to `state`, for a checkpoint: PyTorch's state dict (scale,
  // growth_factor, backoff_factor, growth_interval, _growth_tracker) as JSON text under StateKey::Extra("grad_scaler").
  // Adds nothing if the scaler is not enabled. Call between Update and the next Unscale. Local.
  void AddStateDict(StateDict& state) const;

  // The inverse: training continues as if it had not been interrupted. kInvalidArgument, before anything is changed,
  // for a state without that entry or with values that Validate refuses. Does nothing if the scaler is not enabled.
  // Local.
  absl::Status LoadStateDict(const StateDict& state);

 private:
  friend class DeviceGradScaler;

  struct Progress {
    bool unscaled = false, stepped = false, overflowed = false;
  };

  absl::Status CheckOptions() const;
  absl::StatusOr<bool> AnyOverflow(Optimizer& optimizer, Stream& stream);
  absl::StatusOr<Tensor> InverseScale(Stream& stream) const;
  bool CanFold(const Optimizer& optimizer, const Stream& stream) const;

  ProcessGroup& group_;
  // The scale and its rule, as a device keeps them; the inverse.
  GradScale state() const;
  void set_state(const GradScale& state);

  GradScalerOptions options_;
  double scale_;
  int steps_without_overflow_ = 0;
  std::map<const Optimizer*, Progress> progress_;  // since the last Update
};

}  // namespace fsdp

#endif  // FSDP_FSDP_SHARDED_GRAD_SCALER_H_

// SPDX-License-Identifier: Apache-2.0
//
// UpdateOps: the optimizers' kernels, an interface that each kind of device implements. The host's kernels are always
// linked; another kind's come with their library (//optim:cuda_update_ops). Every device gives the same bits: see
// update_kernels.h.
#ifndef FSDP_OPTIM_UPDATE_OPS_H_
#define FSDP_OPTIM_UPDATE_OPS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/optim/stochastic_rounding.h"
#include "fsdp/optim/update_kernels.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// UpdateExtras in the memory of the parameters' device.
struct TensorExtras {
  Tensor grad_factor;   // one float32, read in stream order; undefined: 1
  Tensor found_inf;     // one float32, read in stream order: unless it is 0, parameter and state stay as they are
  Tensor compute_copy;  // bfloat16, of the parameter's numel; undefined: none

  // Of a parameter and states of bfloat16 in host memory; unset: to the nearest.
  std::optional<StochasticRounding> rounding = {};
};

// One parameter's part of a step: tensors of equal numel, all of data's dtype but the gradient's, as UpdateSlice's; on
// devices data is float32. They keep their memory alive until the step has run.
struct AdamWUpdate {
  AdamWScalars scalars;
  Tensor data, grad, exp_avg, exp_avg_sq;
  TensorExtras extras = {};
  Tensor live_scalars = {};  // in a capture: an AdamWScalars, float32 [7], that each replay reads; else undefined

  // As AdamVariant's. Only hosts have kernels for them: on other devices 0 and undefined.
  float weight_decay = 0;
  Tensor max_exp_avg_sq = {};
};
// As AdamWUpdate, for SGD.
struct SgdUpdate {
  SgdScalars scalars;
  Tensor data, grad;
  Tensor momentum_buffer;  // undefined without momentum
  TensorExtras extras = {};
};

struct LionUpdate {
  LionScalars scalars;
  Tensor data, grad, exp_avg;
  TensorExtras extras = {};
};

// One implementation for each kind of device. Stateless; any thread.
class UpdateOps {
 public:
  virtual ~UpdateOps() = default;

  // Put the updates on `stream` and return: for host memory any stream, for a GPU's memory a stream of that GPU.
  virtual void AdamW(std::vector<AdamWUpdate> updates, Stream& stream) const = 0;
  virtual void Sgd(std::vector<SgdUpdate> updates, Stream& stream) const = 0;

  // Fails the stream with kUnimplemented where there is no kernel, on all but hosts.
  virtual void Lion(std::vector<LionUpdate> updates, Stream& stream) const;

  // `state` has the bytes of a GradScale (grad_scale.h), which advances by a step that overflowed unless `found_inf`,
  // one float32, is 0. Both are in the device's memory. Only for devices with has_grad_scale.
  virtual void UpdateGradScale(const Tensor& state, const Tensor& found_inf, Stream& stream) const;
  virtual bool has_grad_scale() const { return false; }
};

// The kernels for parameters on `device`; kUnimplemented if the program has no kernels for it.
absl::StatusOr<const UpdateOps*> UpdateOpsFor(const Device& device);

// Adds the kernels for devices of `type`. Call from a static initialiser of the library that has them; returns true.
// `ops` must never be destroyed.
bool RegisterUpdateOps(DeviceType type, const UpdateOps* ops);

}  // namespace fsdp

#endif  // FSDP_OPTIM_UPDATE_OPS_H_

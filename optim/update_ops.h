// SPDX-License-Identifier: Apache-2.0
//
// UpdateOps: the optimizers' kernels, as an interface that each kind of device implements: the host's are always there,
// those of another kind come with the library that holds them, once a program links it (//optim:cuda_update_ops). The
// same bits on every device: see update_kernels.h.
#ifndef FSDP_OPTIM_UPDATE_OPS_H_
#define FSDP_OPTIM_UPDATE_OPS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/optim/update_kernels.h"
#include "fsdp/tensor/device.h"
#include "fsdp/tensor/stream.h"
#include "fsdp/tensor/tensor.h"

namespace fsdp {

// UpdateExtras where the parameters are.
struct TensorExtras {
  Tensor grad_factor;   // one float32, read in stream order; undefined: 1
  Tensor compute_copy;  // bfloat16, of the parameter's numel; undefined: none
};

// One parameter's part of a step: tensors of equal numel, of float32, grad of float32 or bfloat16. They hold their
// memory until the step ran.
struct AdamWUpdate {
  AdamWScalars scalars;
  Tensor data, grad, exp_avg, exp_avg_sq;
  TensorExtras extras = {};
  Tensor live_scalars = {};  // in a capture: an AdamWScalars, float32 [7], that each replay reads; else undefined
};
struct SgdUpdate {
  SgdScalars scalars;
  Tensor data, grad;
  Tensor momentum_buffer;  // undefined without momentum
  TensorExtras extras = {};
};

class UpdateOps {
 public:
  virtual ~UpdateOps() = default;

  // Put the updates on `stream`: for memory of the host any stream, for a GPU's one of that GPU.
  virtual void AdamW(std::vector<AdamWUpdate> updates, Stream& stream) const = 0;
  virtual void Sgd(std::vector<SgdUpdate> updates, Stream& stream) const = 0;
};

// The kernels for parameters on `device`; kUnimplemented for a device of which the program has none.
absl::StatusOr<const UpdateOps*> UpdateOpsFor(const Device& device);

// Makes UpdateOpsFor know devices of `type`. For a static initialiser of the library that has their kernels; returns
// true. `ops` lives for ever.
bool RegisterUpdateOps(DeviceType type, const UpdateOps* ops);

}  // namespace fsdp

#endif  // FSDP_OPTIM_UPDATE_OPS_H_

// SPDX-License-Identifier: Apache-2.0
//
// UpdateOps on a CUDA device. The stream gets the buffers that the kernels use and keeps them until the device has run
// the kernels; the updates are captured by value, since the caller returns before the launch.
#include <utility>

#include "fsdp/cuda/cuda_status.h"
#include "fsdp/cuda/cuda_stream.h"
#include "fsdp/optim/cuda_update_kernels.h"
#include "fsdp/optim/update_ops.h"

namespace fsdp {
namespace {

// Undefined tensors have no buffer to keep.
void AddExtras(const TensorExtras& extras, std::vector<Buffer>& uses) {
  for (const Tensor* t : {&extras.grad_factor, &extras.found_inf, &extras.compute_copy}) {
    if (t->defined()) uses.push_back(t->buffer());
  }
}

class CudaUpdateOps final : public UpdateOps {
 public:
  void AdamW(std::vector<AdamWUpdate> updates, Stream& stream) const override {
    std::vector<Buffer> uses;
    for (const AdamWUpdate& u : updates) {
      for (const Tensor* t : {&u.data, &u.grad, &u.exp_avg, &u.exp_avg_sq}) uses.push_back(t->buffer());
      AddExtras(u.extras, uses);
      if (u.live_scalars.defined()) uses.push_back(u.live_scalars.buffer());
    }
    CudaStream& on = CudaStream::Of(stream);
    on.Issue(std::move(uses), [updates = std::move(updates), device = on.ordinal()](CUstream_st* s) {
      CudaUpdateAdamW(updates, s);
      return CudaLaunchStatus("AdamW", device);
    });
  }

  void Sgd(std::vector<SgdUpdate> updates, Stream& stream) const override {
    std::vector<Buffer> uses;
    for (const SgdUpdate& u : updates) {
      for (const Tensor* t : {&u.data, &u.grad, &u.momentum_buffer}) uses.push_back(t->buffer());
      AddExtras(u.extras, uses);
    }
    CudaStream& on = CudaStream::Of(stream);
    on.Issue(std::move(uses), [updates = std::move(updates), device = on.ordinal()](CUstream_st* s) {
      CudaUpdateSgd(updates, s);
      return CudaLaunchStatus("SGD", device);
    });
  }

  void UpdateGradScale(const Tensor& state, const Tensor& found_inf, Stream& stream) const override {
    CudaStream& on = CudaStream::Of(stream);
    on.Issue({state.buffer(), found_inf.buffer()}, [=, device = on.ordinal()](CUstream_st* s) {
      CudaUpdateGradScale(state, found_inf, s);
      return CudaLaunchStatus("the gradient scaler", device);
    });
  }
  bool has_grad_scale() const override { return true; }
};

[[maybe_unused]] const bool registered = RegisterUpdateOps(DeviceType::kCuda, new CudaUpdateOps);

}  // namespace
}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// LocalShards: this rank's slices of parameters as leaf tensors for an optimizer of torch::optim. LibTorch and fsdp/
// record in different ways that values were written and that there is a gradient; this keeps both records equal:
//
//   torch::optim wrote a slice (an operator in place)   -> ShardedParameter::MarkChanged
//   torch::optim's zero_grad made a gradient undefined  -> has_grad = false
//   our ZeroGrad, or a failed backward: no has_grad     -> the tensor's gradient is undefined
//   a backward reduced a gradient: has_grad             -> the tensor's gradient is a view of it
#ifndef FSDP_LIBTORCH_LOCAL_SHARDS_H_
#define FSDP_LIBTORCH_LOCAL_SHARDS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "fsdp/libtorch/slot_storage.h"
#include "fsdp/optim/sharded_parameter.h"

namespace fsdp {

// A UseObserver must observe the thread whose operators write slices: versions of tensors do not show it, since
// torch::optim writes through Tensor::data().
class LocalShards final : public SlotOwner {
 public:
  // Takes the parameters that require a gradient. They must outlive it.
  explicit LocalShards(const std::vector<ShardedParameter*>& parameters);

  // Tensors that outlive this are unbound; a use of one reports why.
  ~LocalShards() override;

  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  // The parameter of tensors()[index].
  ShardedParameter* parameter(size_t index) const { return parameters_[index]; }

  // From LibTorch to fsdp/: call before fsdp/ reads values or gradients.
  void MarkUpdates();

  // From fsdp/ to LibTorch: call when gradients may have come or gone, and before an optimizer steps. The streams that
  // write them must have been waited for.
  void FollowGradients();

  void OnUse(int index, bool in_place) override;

 private:
  std::vector<ShardedParameter*> parameters_;
  std::vector<at::Tensor> tensors_;
  std::vector<c10::intrusive_ptr<SlotStorage>> storages_;  // theirs
  std::vector<bool> written_;                              // since the last MarkUpdates
};

}  // namespace fsdp

#endif  // FSDP_LIBTORCH_LOCAL_SHARDS_H_

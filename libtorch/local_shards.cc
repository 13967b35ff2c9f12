// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/local_shards.h"

#include <utility>

#include "fsdp/libtorch/torch_tensor.h"

namespace fsdp {

LocalShards::LocalShards(const std::vector<ShardedParameter*>& parameters) {
  for (ShardedParameter* parameter : parameters) {
    if (!parameter->requires_grad) continue;
    at::Tensor tensor = TorchViewOf(parameter->data, TorchDeviceOf(*parameter->device));
    tensor.requires_grad_();
    versions_.push_back(tensor._version());
    parameters_.push_back(parameter);
    tensors_.push_back(std::move(tensor));
  }
  FollowGradients();
}

void LocalShards::NoteUpdates() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t version = tensors_[i]._version();
    if (std::exchange(versions_[i], version) != version) parameters_[i]->NoteChanged();
    if (!tensors_[i].grad().defined()) parameters_[i]->has_grad = false;
  }
}

void LocalShards::FollowGradients() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const ShardedParameter& parameter = *parameters_[i];
    at::Tensor& grad = tensors_[i].mutable_grad();
    if (!parameter.has_grad) {
      grad = at::Tensor();
    } else if (!grad.defined()) {
      grad = TorchViewOf(parameter.grad, tensors_[i].device());
    }
  }
}

}  // namespace fsdp

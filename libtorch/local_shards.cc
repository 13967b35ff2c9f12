// SPDX-License-Identifier: Apache-2.0
#include "fsdp/libtorch/local_shards.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {

LocalShards::LocalShards(const std::vector<ShardedParameter*>& parameters) {
  for (ShardedParameter* parameter : parameters) {
    if (!parameter->requires_grad) continue;
    const c10::Device device = TorchDeviceOf(*parameter->device);
    const int index = static_cast<int>(tensors_.size());
    auto storage = c10::make_intrusive<SlotStorage>(this, index, parameter->data.nbytes(), device);
    storage->Bind(parameter->data.data(), parameter->data.nbytes());
    at::Tensor tensor =
        SlotStorage::NewTensor(storage, ScalarTypeOf(parameter->data.dtype()), {parameter->interval.size()});
    tensor.requires_grad_();
    storages_.push_back(std::move(storage));
    written_.push_back(false);
    parameters_.push_back(parameter);
    tensors_.push_back(std::move(tensor));
  }
  FollowGradients();
}

LocalShards::~LocalShards() {
  for (size_t i = 0; i < storages_.size(); ++i) {
    tensors_[i].mutable_grad() = at::Tensor();
    // An optimizer may hold the tensors for longer than this object lives.
    storages_[i]->Unbind(
        absl::StrCat("this rank's slice of parameter \"", parameters_[i]->fqn, "\": its ShardedModule is gone"));
    storages_[i]->Disown();
  }
}

void LocalShards::OnUse(int index, bool in_place) {
  // Reads are reported too; only writes change values.
  if (in_place) written_[index] = true;
}

void LocalShards::MarkUpdates() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (written_[i]) parameters_[i]->MarkChanged();
    written_[i] = false;
    // torch::optim's zero_grad() made the gradient undefined.
    if (!tensors_[i].grad().defined()) parameters_[i]->has_grad = false;
  }
}

void LocalShards::FollowGradients() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const ShardedParameter& parameter = *parameters_[i];
    at::Tensor& grad = tensors_[i].mutable_grad();
    if (!parameter.has_grad) {
      grad = at::Tensor();
      // A defined gradient is a view of `parameter.grad` already.
    } else if (!grad.defined()) {
      grad = TorchViewOf(parameter.grad, tensors_[i].device());
    }
  }
}

}  // namespace fsdp

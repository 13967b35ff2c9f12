// SPDX-License-Identifier: Apache-2.0
//
// A parameter is one TensorImpl for its whole life, because modules, autograd's accumulator and the program hold it.
// set_data gives it a SlotStorage, once. Later only that storage's address changes, and the dtype of the TensorImpl if
// a unit is unsharded in another dtype (full_precision_in_eval, SummonFullParams). Autograd does not count this as a
// change of the parameter, because the values are the same; MarkChanges reports real changes.
#include "fsdp/libtorch/leaf_tensors.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "fsdp/libtorch/tensor_bridge.h"

namespace fsdp {

LeafTensors::LeafTensors(const UnitStore& units, const std::vector<MirroredParameter>& parameters, SlotOwner& owner)
    : of_unit_(units.size()) {
  std::map<const Parameter*, int> unit_of;
  for (int u = 0; u < units.size(); ++u) {
    versions_.push_back(units.unit(u).shard_version());
    for (const auto& parameter : units.unit(u).parameters) unit_of[parameter.get()] = u;
  }
  for (const MirroredParameter& parameter : parameters) {
    const auto unit = unit_of.find(parameter.mirror.get());
    if (unit == unit_of.end()) continue;
    const Unit& of = units.unit(unit->second);
    const int index = static_cast<int>(leaves_.size());
    Leaf leaf{.mirror = parameter.mirror,
              .tensor = parameter.tensor,
              .unit = of.dtype_group_of.value_or(unit->second),
              .part = unit->second};
    const int64_t nbytes = leaf.mirror->shape.numel() * SizeOf(of.compute_dtype);
    leaf.storage = c10::make_intrusive<SlotStorage>(&owner, index, nbytes, parameter.tensor.device());
    Adopt(of, leaf);
    of_unit_[leaf.part].push_back(index);
    leaves_.push_back(std::move(leaf));
  }
}

void LeafTensors::Adopt(const Unit& unit, Leaf& leaf) {
  leaf.type = ScalarTypeOf(unit.compute_dtype);
  leaf.requires_grad = leaf.mirror->requires_grad;
  leaf.message =
      absl::StrCat("parameter \"", leaf.mirror->fqn, "\" is sharded and its unit (", unit.display_name(),
                   ") not gathered: use it within ShardedModule::Forward or SummonFullParams, and call to() and "
                   "half() before it is sharded");
  leaf.storage->Unbind(leaf.message);
  leaf.tensor.set_data(SlotStorage::NewTensor(leaf.storage, leaf.type, SizesOf(leaf.mirror->shape)));
  leaf.tensor.mutable_grad() = at::Tensor();
}

LeafTensors::~LeafTensors() {
  for (Leaf& leaf : leaves_) {
    leaf.tensor.mutable_grad() = at::Tensor();
    leaf.storage->Unbind(absl::StrCat(leaf.message, ", but its ShardedModule is gone"));
    leaf.storage->Disown();
  }
}

void LeafTensors::Follow() {
  at::NoGradGuard no_grad;
  for (Leaf& leaf : leaves_) {
    FollowData(leaf);
    FollowGrad(leaf);
  }
}

void LeafTensors::FollowData(Leaf& leaf) {
  const Tensor& data = leaf.mirror->data;
  if (!data.defined()) {
    if (!leaf.storage->bound()) return;
    // The storage still has the size of its last Bind, which was added to bound_bytes_.
    bound_bytes_ -= static_cast<int64_t>(leaf.storage->nbytes());
    leaf.storage->Unbind(leaf.message);
    return SetType(leaf, leaf.type);
  }
  const at::ScalarType type = ScalarTypeOf(data.dtype());
  if (leaf.storage->bound() && leaf.storage->address() == data.data() && leaf.tensor.scalar_type() == type) return;
  if (leaf.storage->bound()) bound_bytes_ -= static_cast<int64_t>(leaf.storage->nbytes());
  leaf.storage->Bind(data.data(), data.nbytes());
  bound_bytes_ += data.nbytes();
  peak_bound_bytes_ = std::max(peak_bound_bytes_, bound_bytes_);
  SetType(leaf, type);
}

void LeafTensors::SetType(Leaf& leaf, at::ScalarType type) {
  // A tensor that the program gave other memory, as to() and half() do, stays so for Check to name it.
  if (leaf.tensor.scalar_type() == type || SlotStorage::Of(leaf.tensor) != leaf.storage.get()) return;
  leaf.tensor.unsafeGetTensorImpl()->set_storage_and_dtype(c10::Storage(leaf.storage), c10::scalarTypeToTypeMeta(type));
}

void LeafTensors::FollowGrad(Leaf& leaf) {
  const Tensor& grad = leaf.mirror->grad;
  const bool wanted = grad.defined() && leaf.requires_grad;
  at::Tensor& bound = leaf.tensor.mutable_grad();
  // The gradient is at the same address as before: keep the tensor that refers to it.
  if (bound.defined() == wanted && (!wanted || bound.data_ptr() == grad.data())) return;
  bound = wanted ? TorchViewOf(grad, leaf.tensor.device()) : at::Tensor();
}

void LeafTensors::Refuse(int index, const std::string& problem) {
  Leaf& leaf = leaves_[index];
  if (leaf.storage->bound()) bound_bytes_ -= static_cast<int64_t>(leaf.storage->nbytes());
  leaf.storage->Unbind(absl::StrCat("parameter \"", leaf.mirror->fqn, "\": ", problem));
}

void LeafTensors::MarkChanges(const UnitStore& units) {
  for (int u = 0; u < units.size(); ++u) {
    const int64_t version = units.unit(u).shard_version();
    if (std::exchange(versions_[u], version) == version) continue;
    for (const int index : of_unit_[u]) leaves_[index].tensor.unsafeGetTensorImpl()->bump_version();
  }
}

absl::Status LeafTensors::Check() const {
  for (const Leaf& leaf : leaves_) {
    // set_data by the program replaces the storage; requires_grad_() changes the flag. Both would go unnoticed later.
    const bool ours = SlotStorage::Of(leaf.tensor) == leaf.storage.get();
    if (ours && leaf.tensor.requires_grad() == leaf.requires_grad) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter \"", leaf.mirror->fqn, "\": ",
                     ours ? "requires_grad was changed after it was sharded: set it before Shard"
                          : "its memory was replaced after it was sharded: edit it in place within SummonFullParams, "
                            "and call to(), half() and set_data() before Shard"));
  }
  return absl::OkStatus();
}

}  // namespace fsdp

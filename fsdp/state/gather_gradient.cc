// SPDX-License-Identifier: Apache-2.0
#include "fsdp/fsdp/state/gather_gradient.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdp/base/status_macros.h"
#include "fsdp/tensor/ops.h"

namespace fsdp {
namespace {

// The unit that has the parameter, and its place in it.
absl::StatusOr<std::pair<int, size_t>> Find(const UnitStore& units, std::string_view fqn) {
  std::string name(fqn);
  const auto alias = units.aliases().find(name);
  if (alias != units.aliases().end()) name = alias->second;
  for (int u = 0; u < units.size(); ++u) {
    const auto& parameters = units.unit(u).parameters;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i]->fqn == name) return std::make_pair(u, i);
    }
  }
  return absl::NotFoundError(absl::StrCat("gradient of \"", name, "\": no unit has a parameter of this name"));
}

}  // namespace

absl::Status GatherGradients(const UnitStore& units, int u, DType dtype, StateGather& gather) {
  const Unit& unit = units.unit(u);
  FSDP_ASSIGN_OR_RETURN(const Tensor part, gather.OwnPart(u, dtype));
  // A slice without a gradient still holds values of an earlier step, if it has memory.
  gather.device().ops().Zero(part, gather.stream());
  std::vector<TensorCopy> copies;
  for (size_t i = 0; i < unit.parameters.size(); ++i) {
    const ShardedParameter& own = *unit.sharded_parameters[i];
    const ShardLayout::Slice slice = unit.layout.ShardSlice(i, unit.groups.shard_rank());
    if (!own.has_grad || slice.interval.empty()) continue;
    copies.push_back({own.grad, part.Slice({slice.offset_in_shard, slice.end_in_shard()})});
  }
  FSDP_RETURN_IF_ERROR(gather.CopyAll(copies));
  return gather.GatherOwnPart();
}

absl::StatusOr<Tensor> GatherGradient(const UnitStore& units, std::string_view fqn) {
  FSDP_ASSIGN_OR_RETURN(const auto place, Find(units, fqn));
  const auto [u, index] = place;
  const Unit& unit = units.unit(u);
  if (!unit.grad_shard.defined()) {
    return absl::FailedPreconditionError(absl::StrCat("gradient of \"", unit.parameters[index]->fqn, "\": unit ",
                                                      unit.display_name(), " is frozen and has no gradients"));
  }
  FSDP_ASSIGN_OR_RETURN(const std::unique_ptr<StateGather> gather, StateGather::Create(units));
  const ShardedParameter& own = *unit.sharded_parameters[index];
  FSDP_ASSIGN_OR_RETURN(const std::vector<std::string> have, gather->ranks().AllGatherObject(own.has_grad ? "1" : "0"));
  if (std::count(have.begin(), have.end(), "1") == 0) return Tensor();
  const DType dtype = (unit.low_precision_grad.defined() ? unit.low_precision_grad : unit.grad_shard).dtype();
  FSDP_RETURN_IF_ERROR(GatherGradients(units, u, dtype, *gather));
  const Shape& shape = unit.parameters[index]->whole_shape();
  FSDP_ASSIGN_OR_RETURN(Tensor whole, Tensor::Empty(gather->device(), dtype, shape));
  gather->CopyOut(index, {0, shape.numel()}, whole, /*to_host=*/false);
  FSDP_RETURN_IF_ERROR(gather->Synchronize());
  return whole;
}

}  // namespace fsdp

// SPDX-License-Identifier: Apache-2.0
//
// The gradients of a unit of several dtypes: each part, the unit and its dtype groups, goes the way of
// gradient_reduction.cc, one after another. Groups are small (norms, a router), so each has a gradient slot of its own,
// and a reduction of its own instead of a copy to the dtype of the others.
#include <algorithm>
#include <string>
#include <vector>

#include "fsdp/base/status_macros.h"
#include "fsdp/fsdp/units/gradient_reduction.h"
#include "fsdp/fsdp/units/unwritten_gradient.h"

namespace fsdp {

// Of the slot of a trainable dtype group, which never becomes smaller; 0 for other units.
int64_t GradientReduction::GroupBytes(int index) const {
  const Unit& unit = units_.unit(index);
  if (!unit.dtype_group_of.has_value() || !unit.trainable()) return 0;
  const auto pool = group_gradients_.find(index);
  const int64_t nbytes = unit.grad_layout.padded_numel() * SizeOf(unit.compute_dtype);
  return pool == group_gradients_.end() ? nbytes : std::max(nbytes, pool->second.slot_bytes());
}

absl::Status GradientReduction::AllocateForGroups() {
  for (int index = 0; index < units_.size(); ++index) {
    const int64_t nbytes = GroupBytes(index);
    if (nbytes == 0) continue;
    FSDP_ASSIGN_OR_RETURN(
        group_gradients_[index],
        SlotPool::Create(memory_, 1, nbytes, "gradients of unit " + units_.unit(index).display_name()));
  }
  return absl::OkStatus();
}

bool GradientReduction::GroupsSuffice() const {
  for (int index = 0; index < units_.size(); ++index) {
    const auto pool = group_gradients_.find(index);
    const int64_t has = pool == group_gradients_.end() ? 0 : pool->second.slot_bytes();
    if (has < GroupBytes(index)) return false;
  }
  return true;
}

SlotPool& GradientReduction::PoolOf(int index) {
  if (units_.unit(index).dtype_group_of.has_value()) return group_gradients_[index];
  return index == units_.root_unit() ? root_gradients_ : gradients_;
}

std::vector<int> GradientReduction::PartsOf(int index) const {
  std::vector<int> parts = {index};
  if (units_.unit(index).dtype_groups.empty()) return parts;
  for (int other = index + 1; other < units_.size(); ++other) {
    if (units_.unit(other).dtype_group_of == index) parts.push_back(other);
  }
  return parts;
}

std::vector<int> GradientReduction::PartsToReduce(int index) const {
  std::vector<int> parts = PartsOf(index);
  // A unit by itself is reduced whenever it is asked for, so that a gradient that does not exist is an error.
  if (parts.size() > 1) std::erase_if(parts, [&](int part) { return !units_.unit(part).trainable(); });
  return parts;
}

absl::Status GradientReduction::Bind(int index, Sync sync) {
  for (const int part : PartsOf(index)) FSDP_RETURN_IF_ERROR(BindPart(part, sync));
  return absl::OkStatus();
}

void GradientReduction::ZeroUnwritten(int index) {
  for (const int part : PartsOf(index)) fsdp::ZeroUnwritten(units_.unit(part), compute_);
}

absl::Status GradientReduction::Widen(int index) {
  for (const int part : PartsOf(index)) FSDP_RETURN_IF_ERROR(WidenPart(part));
  return absl::OkStatus();
}

void GradientReduction::Unbind(int index, Sync sync) {
  for (const int part : PartsOf(index)) UnbindPart(part, sync);
}

// The sum of a hybrid part is in staging until its all-reduce, so only the first part's may be made before that.
absl::Status GradientReduction::ReduceScatter(int index) {
  const Unit& unit = units_.unit(index);
  const bool one = unit.groups.replicate != nullptr && unit.controls.requires_all_reduce;
  for (const int part : PartsToReduce(index)) {
    FSDP_RETURN_IF_ERROR(ReduceScatterPart(part));
    if (one) break;
  }
  return absl::OkStatus();
}

absl::Status GradientReduction::AllReduce(int index) {
  bool first = true;
  for (const int part : PartsToReduce(index)) {
    if (!first && units_.unit(part).sharded()) FSDP_RETURN_IF_ERROR(ReduceScatterPart(part));
    FSDP_RETURN_IF_ERROR(AllReducePart(part));
    first = false;
  }
  return absl::OkStatus();
}

absl::Status GradientReduction::StoreLocal(int index) {
  for (const int part : PartsToReduce(index)) FSDP_RETURN_IF_ERROR(StoreLocalPart(part));
  return absl::OkStatus();
}

}  // namespace fsdp

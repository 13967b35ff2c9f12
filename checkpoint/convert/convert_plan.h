// SPDX-License-Identifier: Apache-2.0
//
// ConvertPlan: the contents that a conversion will write, worked out before a byte is read: the target's names, dtypes,
// texts, aliases, units and attributes, and which tensor of the source each comes from. Pure.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_PLAN_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_PLAN_H_

#include <map>
#include <optional>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct ConvertPlan {
  StateDict contents;  // of the target; tensors have no shards
  // Target's key -> source's, of those that differ: most conversions rename nothing, and a model may have a million
  // tensors.
  std::map<StateKey, StateKey> origins;

  // The source's key of what the target calls `key`.
  const StateKey& OriginOf(const StateKey& key) const {
    const auto at = origins.find(key);
    return at == origins.end() ? key : at->second;
  }
};

// Keeps the tensors of `source` whose names pass `filter`, with the optimizer state of the same parameters, under their
// new names; so do param_groups, aliases and units. Attributes stay as they are. `dtype` applies to floating-point
// model tensors. With `model_only` optimizer and extra values are left out. kInvalidArgument names both names that
// become one, a filter that leaves no tensor, and a param_groups text that is not JSON when names change.
absl::StatusOr<ConvertPlan> PlanConversion(const StateDict& source, const NameFilter& filter,
                                           std::optional<DType> dtype, bool model_only);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_PLAN_H_

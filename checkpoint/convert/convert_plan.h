// SPDX-License-Identifier: Apache-2.0
//
// ConvertPlan: the contents that a conversion will write, computed before a byte is read: the target's names, dtypes,
// texts, aliases, units and attributes, and the source tensor of each. Pure.
#ifndef FSDP_CHECKPOINT_CONVERT_CONVERT_PLAN_H_
#define FSDP_CHECKPOINT_CONVERT_CONVERT_PLAN_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/convert/name_filter.h"
#include "fsdp/tensor/dtype.h"
#include "fsdp/tensor/state_dict.h"

namespace fsdp {

struct ConvertPlan {
  StateDict contents;  // of the target; tensors have no shards
  // Target's key -> source's key, only for keys that differ: most conversions rename nothing, and a model may have a
  // million tensors.
  std::map<StateKey, StateKey> origins;
  std::vector<std::string> notes;  // a sentence for each tensor that is kept under another name than its first

  // The source's key for the target's `key`.
  const StateKey& OriginOf(const StateKey& key) const {
    const auto at = origins.find(key);
    return at == origins.end() ? key : at->second;
  }
};

// Keeps the tensors of `source` of which a name passes `filter`, with the optimizer state of the same parameters, under
// their new names; param_groups, aliases and units follow. A tied tensor whose first name does not pass is kept under
// the first of its aliases that does. RunMetadata stay as they are. `dtype` applies to floating-point model tensors.
// `model_only` leaves out optimizer and extra values, but no values of the model (model_value.h). kInvalidArgument for
// two names that become one (both are named), for a filter that leaves no tensor, and for a param_groups text that is
// not JSON when names change.
absl::StatusOr<ConvertPlan> PlanConversion(const StateDict& source, const NameFilter& filter,
                                           std::optional<DType> dtype, bool model_only);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_CONVERT_CONVERT_PLAN_H_

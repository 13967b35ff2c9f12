// SPDX-License-Identifier: Apache-2.0
//
// FlatState: the parameters of which the flat parameters in an optimizer's state consist. FSDP1 keys such state by the
// name of the flat parameter, which contains its unit, or only by an id. For ids, the units follow from the parameters
// of the model, in order, and the sizes of the flat parameters, if only one choice of units gives these sizes
// (unit_search.h). Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_FLAT_STATE_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_FLAT_STATE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/source/flat_layout.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Facts that a state dict with flat parameters does not contain.
struct FlatStateOptions {
  // The layout from the caller, or null. Must outlive the options.
  const FlatLayout* layout = nullptr;
  // The number of ranks whose shards, including padding, make up a flat parameter.
  int world_size = 1;
};

// The unit of each key, with offsets for its parts. `keys` are the optimizer's names or ids of its parameters, in the
// order of the groups; `sizes` has the number of elements of the state of each key that has state. A key may also be
// one parameter whose state is flat (use_orig_params): then its unit has only that part. `model` are the model's
// parameters in order, empty if the model is not in the same file; options.layout takes precedence. kInvalidArgument
// states which fact is missing or contradicts another; kFailedPrecondition if the sizes are of no units of the model.
absl::StatusOr<std::map<std::string, FlatUnit>> UnitsOfKeys(const std::vector<std::string>& keys,
                                                            const std::map<std::string, int64_t>& sizes,
                                                            const std::vector<FlatLayout::Parameter>& model,
                                                            const FlatStateOptions& options);

// For errors: how to pass the missing layout.
inline constexpr char kGiveFlatLayout[] =
    "TensorSourceOptions::flat_layout provides it: {\"parameters\": [{\"name\", \"shape\"}, ...] in the order of "
    "named_parameters() of the model before it was wrapped, \"units\": [the wrapped modules' names, \"\" for the "
    "root]}";

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_FLAT_STATE_H_

// SPDX-License-Identifier: Apache-2.0
//
// FlatState: which parameters the flat parameters of an optimizer's state are made of. Torch names a flat parameter by
// its unit, or by an id only; then the parameters of the model, in order, and the sizes of the flat parameters tell
// which modules are units, where only one choice of units makes these sizes. Pure.
#ifndef FSDP_CHECKPOINT_TORCH_STATE_FLAT_STATE_H_
#define FSDP_CHECKPOINT_TORCH_STATE_FLAT_STATE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// What is known beside a state dict.
struct FlatStateOptions {
  const FlatLayout* layout = nullptr;  // --flat_layout; null where none was given
  int world_size = 1;                  // ranks whose shards, padding included, make a flat parameter
};

// By `keys`, the optimizer's names or ids of its parameters, in the order of the groups; `sizes` has the elements of
// the state of each that has any. A key may also stand for one parameter whose state is flat (use_orig_params). `model`
// are the model's parameters in order; none where the model is not in the same file. kInvalidArgument says what is
// missing or contradicts.
absl::StatusOr<std::map<std::string, FlatUnit>> UnitsOfKeys(const std::vector<std::string>& keys,
                                                            const std::map<std::string, int64_t>& sizes,
                                                            const std::vector<FlatLayout::Parameter>& model,
                                                            const FlatStateOptions& options);

// "give the model's parameters with --flat_layout...", for errors. LoadOptions::flat_layout is the same.
inline constexpr char kGiveFlatLayout[] =
    "--flat_layout=FILE says it: {\"parameters\": [{\"name\", \"shape\"}, ...] in the order of "
    "named_parameters() of "
    "the model before it was wrapped, \"units\": [the wrapped modules' names, \"\" for the root]}";

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_TORCH_STATE_FLAT_STATE_H_

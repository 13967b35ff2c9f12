// SPDX-License-Identifier: Apache-2.0
//
// ModelLayout: what FSDP1's flat parameters, in a checkpoint that a run starts from, are made of. LOCAL state dicts do
// not say it, but the model that is to be filled knows its parameters and their order.
#ifndef FSDP_TRAIN_MODEL_LAYOUT_H_
#define FSDP_TRAIN_MODEL_LAYOUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/format/flat_layout.h"
#include "fsdp/nn/module.h"

namespace fsdp {

// As `file` says it (--flat_layout; ReadFlatLayout's errors); where that is empty the parameters of `model` in the
// order of named_parameters(), shared ones once.
absl::StatusOr<FlatLayout> ModelLayout(const std::string& file, Module& model);

}  // namespace fsdp

#endif  // FSDP_TRAIN_MODEL_LAYOUT_H_

// SPDX-License-Identifier: Apache-2.0
//
// ApplyRecipe: a model in another layout as a TensorSource, whose tensors are made while they are read: whatever reads
// sources can convert, load or compare it without a copy.
#ifndef FSDP_CHECKPOINT_RECIPE_RECIPE_SOURCE_H_
#define FSDP_CHECKPOINT_RECIPE_RECIPE_SOURCE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "fsdp/checkpoint/recipe/recipe.h"
#include "fsdp/checkpoint/source/tensor_source.h"

namespace fsdp {

// The targets of `recipe`, made of the model of `source`, whose traits, files, step and metadata it has; nothing else
// of `source`, of which the notes of its layout name the tensors that no target uses. kInvalidArgument names each
// target that does not fit and why, before anything is read.
absl::StatusOr<std::unique_ptr<TensorSource>> ApplyRecipe(std::unique_ptr<TensorSource> source, const Recipe& recipe);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_RECIPE_RECIPE_SOURCE_H_

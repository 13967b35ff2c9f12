// SPDX-License-Identifier: Apache-2.0
//
// ArrangedTensor: a tensor whose elements are those of others in another order, computed for any interval when it is
// read. All operations of a recipe are five kinds of it:
//
//   a tensor of the source
//   joined    rows of several, [outer, widths]: concat and stack
//   cut       a part of each row: chunk and slice
//   swapped   [outer, a, middle, b, inner] as [outer, b, middle, a, inner]: transpose, interleave, rope_permute
//   cast
//
// A reshape changes only the shape. Memory is at most 8 MiB for each operation. Immutable, so thread-safe.
#ifndef FSDP_CHECKPOINT_RECIPE_ARRANGED_TENSOR_H_
#define FSDP_CHECKPOINT_RECIPE_ARRANGED_TENSOR_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "fsdp/checkpoint/recipe/recipe.h"
#include "fsdp/checkpoint/source/tensor_source.h"
#include "fsdp/tensor/interval.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

class ArrangedTensor {
 public:
  virtual ~ArrangedTensor() = default;

  DType dtype = DType::kFloat32;
  Shape shape;

  // Elements `interval` to `out`. Errors of the source.
  virtual absl::Status Read(const Interval& interval, std::byte* out) const = 0;
};

// The tensor that `expression` makes of model tensors of `source`, which must outlive it. kInvalidArgument states what
// does not fit: a tensor that is missing, shapes, sizes that do not divide; reads nothing.
absl::StatusOr<std::unique_ptr<ArrangedTensor>> Arrange(const RecipeExpression& expression, const TensorSource& source);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_RECIPE_ARRANGED_TENSOR_H_

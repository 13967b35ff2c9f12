// SPDX-License-Identifier: Apache-2.0
//
// Tensors of rows that are made of the rows of others: joined, cut and swapped (arranged_tensor.h).
#ifndef FSDP_CHECKPOINT_RECIPE_ARRANGED_ROWS_H_
#define FSDP_CHECKPOINT_RECIPE_ARRANGED_ROWS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/checkpoint/recipe/arranged_tensor.h"

namespace fsdp {

using ArrangedInput = std::unique_ptr<ArrangedTensor>;

// Rows that are a row of each input, one after the other. `widths`: elements in a row of each.
ArrangedInput JoinRows(std::vector<ArrangedInput> inputs, std::vector<int64_t> widths);

// `width` elements from `begin` of each row of `input_width`.
ArrangedInput CutRows(ArrangedInput input, int64_t input_width, int64_t begin, int64_t width);

// [outer, a, middle, b, inner] as [outer, b, middle, a, inner].
struct SwapShape {
  int64_t outer = 1;
  int64_t a = 1;
  int64_t middle = 1;
  int64_t b = 1;
  int64_t inner = 1;

  int64_t slab() const { return a * middle * b * inner; }
};
ArrangedInput SwapAxes(ArrangedInput input, const SwapShape& sizes);

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_RECIPE_ARRANGED_ROWS_H_

// SPDX-License-Identifier: Apache-2.0
//
// DistinctElements: a view that has each element of another view's storage once. A view has one element many times
// where a stride is 0 (torch.expand) or windows overlap (torch.Tensor.unfold); reading such a view costs what the view
// has, reading its distinct elements what the file has. Pure.
#ifndef FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DISTINCT_ELEMENTS_H_
#define FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DISTINCT_ELEMENTS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "fsdp/tensor/shape.h"

namespace fsdp {

// Strides in elements, falling: row-major order is the order in the file.
struct DistinctElements {
  Shape shape;
  std::vector<int64_t> strides;

  // Of a view of these sizes and strides (not negative), one of each for each dimension, whose elements lie in a
  // storage. Its elements are at the same places as those of the view. Each is there once, except where windows overlap
  // by strides that are no multiples of each other, such as 2 and 3: then never more often than in the view.
  static DistinctElements Of(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides);
};

}  // namespace fsdp

#endif  // FSDP_CHECKPOINT_FOREIGN_TORCH_STATE_DISTINCT_ELEMENTS_H_
